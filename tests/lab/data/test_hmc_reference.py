"""The HMC reference: its order is proved, and a wrong one cannot pass."""

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from stochens.errors import InputError
from stochens_lab.data.download import SOURCES
from stochens_lab.data.hmc_reference import accuracy, check_aligned, load_hmc_reference, tfds_order
from stochens_lab.data.images import load_images

PREFIX = [9933, 5669, 163, 6686, 4747, 131, 9167, 1579, 6174, 8443, 5209, 8055]  # of TFDS's test


def likeness(right: float = 0.91) -> tuple[np.ndarray, torch.Tensor]:
    """Probabilities [10000, 10] that are right as often as HMC's, and the labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, 10_000)
    logits = rng.normal(size=(10_000, 10))
    guess = np.where(rng.random(10_000) < right, y, (y + 1) % 10)
    logits[np.arange(10_000), guess] += 8
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return p.astype(np.float32), torch.as_tensor(y)


P, Y = likeness()
ORDER = tfds_order()


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    """The published form: rows in TFDS's order, as np.savetxt writes them."""
    file = tmp_path_factory.mktemp("hmc") / "probs.csv"
    np.savetxt(file, P[ORDER], delimiter=",")
    return file


def save(tmp_path, array):
    np.save(tmp_path / "hmc_probs.npy", array)
    return tmp_path / "hmc_probs.npy"


def test_order_of_tensorflow_datasets():
    assert ORDER[: len(PREFIX)].tolist() == PREFIX
    assert sorted(ORDER.tolist()) == list(range(10_000))


def test_published_csv_is_put_right(csv):
    for labels in (None, Y):
        torch.testing.assert_close(load_hmc_reference(csv, labels), torch.as_tensor(P))


def test_csv_with_spaces(csv, tmp_path):
    (tmp_path / "probs.csv").write_text(csv.read_text().replace(",", " "))
    torch.testing.assert_close(load_hmc_reference(tmp_path, Y), torch.as_tensor(P))


def test_npy_is_in_the_original_order(tmp_path):
    file = save(tmp_path, P)
    for path in (file, tmp_path):
        for labels in (None, Y):
            assert torch.equal(load_hmc_reference(path, labels), torch.as_tensor(P))


def test_labels_decide_the_order(csv, tmp_path):
    """A CSV in the original order, an .npy in TFDS's: both come out right."""
    np.savetxt(tmp_path / "probs.csv", P, delimiter=",")
    torch.testing.assert_close(load_hmc_reference(tmp_path / "probs.csv", Y), torch.as_tensor(P))
    assert torch.equal(load_hmc_reference(save(tmp_path, P[ORDER]), Y), torch.as_tensor(P))
    # images in TFDS's order get the rows in that order
    torch.testing.assert_close(load_hmc_reference(csv, Y[ORDER]), torch.as_tensor(P[ORDER]))


@pytest.mark.parametrize(
    "wrong",
    [
        np.arange(10_000)[::-1],
        np.roll(np.arange(10_000), 1),
        np.r_[np.arange(9000), np.roll(np.arange(9000, 10_000), 1)],  # only the last part
        ORDER[ORDER].numpy(),
        np.argsort(Y.numpy(), kind="stable"),  # as an image folder has them
    ],
)
def test_misaligned_rows_cannot_pass(tmp_path, wrong):
    with pytest.raises(InputError, match="rows and images are misaligned"):
        load_hmc_reference(save(tmp_path, P[wrong]), Y)
    with pytest.raises(InputError, match="rows and images are misaligned"):
        load_hmc_reference(save(tmp_path, P), Y[torch.as_tensor(wrong.copy())])
    with pytest.raises(InputError, match="rows and images are misaligned"):
        check_aligned(torch.as_tensor(P[wrong]), Y)


@given(st.permutations(range(10)))
def test_swapped_classes_cannot_pass(classes):
    if [k for k in range(10) if classes[k] != k]:
        with pytest.raises(InputError, match="misaligned"):
            check_aligned(torch.as_tensor(P[:, classes]), Y)


@pytest.mark.parametrize(
    ("array", "match"),
    [
        (P[:9999], r"shape \[9999, 10\]; expected \[10000, 10\]"),
        (np.concatenate([P, P[:1]]), r"shape \[10001, 10\]"),
        (P[:, :9], r"shape \[10000, 9\]"),
        (P.reshape(-1), r"shape \[100000\]"),
        (P * 2, "row 0 is no distribution.* sum 2; 10000 such rows"),
        (P.astype(np.int64), "no array of floats"),
        (P.astype(object), "no array of floats"),
        (np.where(np.arange(10_000)[:, None] == 7, np.nan, P), "row 7 is no distribution.*1 such"),
        (np.where(np.arange(10_000)[:, None] == 7, np.inf, P), "row 7 is no distribution"),
        (P + np.array([-1] + [0] * 8 + [1]) * (P[:, :1] < 0.5), "lowest value -"),
    ],
)
def test_arrays_that_are_no_reference(tmp_path, array, match):
    with pytest.raises(InputError, match=match):
        load_hmc_reference(save(tmp_path, array))


def test_labels_of_another_length(tmp_path):
    with pytest.raises(InputError, match=r"all test images, \[10000\], got \[5000\]"):
        load_hmc_reference(save(tmp_path, P), Y[:5000])


def test_missing_and_strange_files(tmp_path):
    with pytest.raises(InputError, match="has no HMC reference: put"):
        load_hmc_reference(tmp_path)
    with pytest.raises(InputError, match="does not exist"):
        load_hmc_reference(tmp_path / "no.npy")
    (tmp_path / "probs.txt").write_text("1")
    with pytest.raises(InputError, match=r"neither .npy nor .csv"):
        load_hmc_reference(tmp_path / "probs.txt")


@pytest.mark.parametrize("text", ["", "a,b\n", "1,2\n3\n", "1,,2\n3,4\n", "\x00", "0.5 0.5\n"])
def test_damaged_csv(tmp_path, text):
    (tmp_path / "probs.csv").write_text(text)
    with pytest.raises(InputError, match=r"probs.csv"):
        load_hmc_reference(tmp_path)


def test_stated_shape_takes_no_memory(tmp_path):
    """A header that promises 40 TB over a small file."""
    file = save(tmp_path, P[:10])
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"(10, 10), }" + b" " * 11, b"(1000000000000, 10), }"))
    with pytest.raises(InputError, match=r"hmc_probs.npy"):
        load_hmc_reference(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@example(at=68, new=b"\0\0\0", length=0)  # tokenize.TokenError
@given(at=st.integers(0, 130), new=st.binary(max_size=5), length=st.integers(0, 400_128))
def test_a_damaged_npy_is_read_or_refused(tmp_path, at, new, length):
    whole = (tmp_path / "whole.npy").read_bytes() if (tmp_path / "whole.npy").exists() else b""
    if not whole:
        np.save(tmp_path / "whole.npy", P)
        whole = (tmp_path / "whole.npy").read_bytes()
    file = tmp_path / "hmc_probs.npy"
    for damaged in (whole[:length], whole[:at] + new + whole[at + len(new) :]):
        file.unlink(missing_ok=True)  # an earlier one may still be mapped
        file.write_bytes(damaged)
        try:
            assert load_hmc_reference(file).shape == (10_000, 10)
        except InputError as error:
            assert "hmc_probs.npy" in str(error)  # noqa: PT017


# the real files


def test_real_order_and_figures(shared_data, tmp_path):
    """Accuracy 91.44 %, NLL 0.2773 (README of the data), from both forms."""
    order = np.load(shared_data / "cifar10" / "tfds_test_order.npy")
    np.testing.assert_array_equal(ORDER, order)
    y = load_images(shared_data, "cifar10", "test").y
    probs = load_hmc_reference(shared_data, y)
    assert accuracy(probs, y) == pytest.approx(0.9144, abs=1e-6)
    nll = -probs.double()[torch.arange(10_000), y].log().mean()
    assert float(nll) == pytest.approx(0.2773, abs=5e-5)
    as_published = probs[ORDER]
    assert accuracy(as_published, y) == pytest.approx(0.1, abs=0.02)  # chance
    np.savetxt(tmp_path / "probs.csv", as_published.numpy(), delimiter=",")
    digest = hashlib.sha256((tmp_path / "probs.csv").read_bytes()).hexdigest()
    assert digest == SOURCES["hmc"][0].sha256  # the published file, byte by byte
    assert torch.equal(load_hmc_reference(tmp_path, y), probs)
    with pytest.raises(InputError, match="misaligned"):
        check_aligned(as_published, y)
