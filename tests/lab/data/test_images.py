"""Every form of an image set gives the same tensors, and every fault one clear error."""

import hashlib
import io
import sys
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.io
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.lab.data.image_files import CIFAR10, encoded, pixels, write_batch, write_parquet

from stochens.errors import InputError
from stochens_lab.data import svhn_mat
from stochens_lab.data.image_sets import normalise
from stochens_lab.data.images import find_images, is_original, load_images
from stochens_lab.data.pixels import decode_one

X = pixels(10)
Y = [3, 8, 8, 0, 6, 6, 1, 6, 3, 1]
NAMES = {"label": CIFAR10}


def check(images, x=X, y=Y):
    assert images.x.dtype == torch.uint8
    assert images.y.dtype == torch.int64
    np.testing.assert_array_equal(images.x, x)
    assert images.y.tolist() == y
    assert images.classes == tuple(CIFAR10)


def test_parquet_shards_in_order(tmp_path):
    for shard, rows in enumerate([slice(0, 6), slice(6, 10)]):
        file = tmp_path / "cifar10" / f"train-{shard:05d}-of-00002.parquet"
        write_parquet(file, X[rows], {"label": Y[rows]}, names=NAMES, form=["PNG", "WEBP"][shard])
    check(load_images(tmp_path, "cifar10", "train"))
    check(load_images(tmp_path / "cifar10", "cifar10", "train"))  # the folder itself


def test_parquet_without_names_or_with_another_image_column(tmp_path):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y}, image="image")
    check(load_images(tmp_path, "cifar10", "test"))


def test_binary_batches(tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    for k in range(5):
        rows = slice(2 * k, 2 * k + 2)
        write_batch(folder / f"data_batch_{k + 1}.bin", X[rows], Y[rows])
    write_batch(folder / "test_batch.bin", X, Y)
    check(load_images(tmp_path, "cifar10", "train"))
    check(load_images(tmp_path, "cifar10", "test"))


def test_binary_batches_are_what_their_page_says(tmp_path):
    """https://www.cs.toronto.edu/~kriz/cifar.html: a label, 1024 bytes of red, of green, of blue,
    row by row."""
    row = bytes([7]) + bytes([1]) * 32 + bytes([2]) * 992 + bytes([3]) * 1024 + bytes([4]) * 1024
    (tmp_path / "test_batch.bin").write_bytes(row)
    images = load_images(tmp_path, "cifar10", "test")
    assert images.y.tolist() == [7]
    assert images.x[0, :, 0, :].unique(dim=1).flatten().tolist() == [1, 3, 4]
    assert images.x[0, :, 1:, :].flatten(1).unique(dim=1).flatten().tolist() == [2, 3, 4]


def test_cifar100_has_its_fine_labels(tmp_path):
    labels = {"fine_label": [99, *Y[1:]], "coarse_label": [19, *Y[1:]]}
    write_parquet(tmp_path / "cifar100" / "test-00000-of-00001.parquet", X, labels)
    folder = tmp_path / "cifar-100-binary"
    write_batch(folder / "train.bin", X, labels["coarse_label"], labels["fine_label"])
    (folder / "fine_label_names.txt").write_text("".join(f"c{k}\n" for k in range(100)))
    for split in ("train", "test"):
        assert load_images(tmp_path, "cifar100", split).y.tolist()[0] == 99
    assert load_images(tmp_path, "cifar100", "train").classes[99] == "c99"


def test_svhn_mat_file(tmp_path, monkeypatch):
    file = tmp_path / "svhn" / "test_32x32.mat"
    file.parent.mkdir()
    y = np.array([[10 if label == 0 else label] for label in Y], np.uint8)
    scipy.io.savemat(file, {"X": X.transpose(2, 3, 1, 0), "y": y}, do_compression=True)
    with pytest.raises(InputError, match="not the published file"):
        load_images(tmp_path, "svhn", "test")
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(svhn_mat.SHA256, "test", digest)
    images = load_images(tmp_path, "svhn", "test")
    np.testing.assert_array_equal(images.x, X)
    assert images.y.tolist() == Y


def test_svhn_file_with_another_ending(tmp_path):
    write_parquet(tmp_path / "svhn" / "test-first10.parquet", X, {"label": Y}, image="image")
    assert load_images(tmp_path, "svhn", "test").y.tolist() == Y


# faults: each is one clear error


def refused(tmp_path, match, *, name="cifar10", split="test"):
    with pytest.raises(InputError, match=match) as error:
        load_images(tmp_path, name, split)
    assert "\n" not in str(error.value)


def test_nothing_there(tmp_path):
    refused(tmp_path, r"no cifar10 test images; put train-\*.parquet .* --download cifar10")
    refused(tmp_path / "none", "is no folder; put")
    refused(tmp_path, "image sets are .*'cifar11'; did you mean", name="cifar11")
    refused(tmp_path, "splits are train, test, got 'val'", split="val")


def test_missing_shard(tmp_path):
    write_parquet(tmp_path / "train-00001-of-00003.parquet", X, {"label": Y})
    write_parquet(tmp_path / "train-00002-of-00003.parquet", X, {"label": Y})
    refused(tmp_path, "train-00000-of-00003.parquet is missing", split="train")


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00001", "train-00000-of-00002"),
        ("train-00000-of-00001", "train-00000-of-00001-0a1b"),
        ("train-00000-of-00001", "train-small"),
        ("train", "train-small"),
        ("train-00000-of-00001", "train-00001-of-00001"),
    ],
)
def test_shards_of_two_sets(tmp_path, names):
    for name in names:
        write_parquet(tmp_path / f"{name}.parquet", X, {"label": Y})
    refused(tmp_path, "keep one set", split="train")


def test_truncated_parquet(tmp_path):
    file = write_parquet(tmp_path / "test.parquet", X, {"label": Y})
    whole = file.read_bytes()
    for length in (0, 3, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        refused(tmp_path, r"test.parquet cannot be read: .*get the file again")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 1), new=st.binary(min_size=1, max_size=3))
def test_a_damaged_parquet_is_read_or_refused(tmp_path, at, new):
    file = write_parquet(tmp_path / "test.parquet", X[:3], {"label": Y[:3]}, names=NAMES)
    whole = file.read_bytes()
    place = int(at * (len(whole) - len(new)))
    file.write_bytes(whole[:place] + new + whole[place + len(new) :])
    try:
        images = load_images(tmp_path, "cifar10", "test")
    except InputError as error:
        assert "test.parquet" in str(error) or str(tmp_path) in str(error)  # noqa: PT017
    else:
        assert images.x.shape[1:] == (3, 32, 32)


def test_missing_column(tmp_path):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y})
    refused(tmp_path, "columns img, label; expected img or image, and fine_label", name="cifar100")
    write_parquet(tmp_path / "test.parquet", X, {"label": Y}, image="picture")
    refused(tmp_path, "has the columns picture, label; expected img")


def test_another_set_is_not_taken_for_it(tmp_path):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y}, names=NAMES)
    refused(tmp_path, "airplane.*expected 10: 0, 1, 2, ...; this is another set", name="svhn")
    swapped = {"label": [*CIFAR10[1:], "airplane"]}
    write_parquet(tmp_path / "test.parquet", X, {"label": Y}, names=swapped)
    refused(tmp_path, "this is another set")
    assert find_images(tmp_path, "svhn", "test") is not None
    (tmp_path / "cifar10").mkdir()
    assert find_images(tmp_path / "cifar10", "svhn", "test") is None


@pytest.mark.parametrize("wrong", [-1, 10, 2**40])
def test_label_out_of_range(tmp_path, wrong):
    write_parquet(tmp_path / "test.parquet", X, {"label": [*Y[:4], wrong, *Y[5:]]})
    refused(tmp_path, f"label of row 4 is {wrong}, not in 0...9")


def test_rows_without_an_image_or_label(tmp_path):
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    for image, label in [({"bytes": None}, 1), (None, 1), ({"bytes": encoded(X[0])}, None)]:
        table = pa.table({"img": pa.array([image], kind), "label": pa.array([label], pa.int64())})
        pq.write_table(table, tmp_path / "test.parquet")
        refused(tmp_path, "rows without an image or a label")
    pq.write_table(table.slice(0, 0), tmp_path / "test.parquet")
    refused(tmp_path, "has no rows")


def test_columns_of_another_type(tmp_path):
    kind = pa.struct([("bytes", pa.binary())])
    good = pa.array([{"bytes": encoded(X[0])}], kind)
    pq.write_table(pa.table({"img": [b"x"], "label": [1]}), tmp_path / "test.parquet")
    refused(tmp_path, "not struct<bytes, path>")
    pq.write_table(pa.table({"img": good, "label": [0.5]}), tmp_path / "test.parquet")
    refused(tmp_path, "holds no whole numbers")


def test_wrong_image_size(tmp_path):
    write_parquet(tmp_path / "test.parquet", X[:, :, :28, :28], {"label": Y})
    refused(tmp_path, "image 0 is 28x28 RGB; images must be 32x32 RGB")


def test_batches_that_do_not_fit(tmp_path):
    for k in (1, 2, 4, 5):
        write_batch(tmp_path / f"data_batch_{k}.bin", X, Y)
    refused(tmp_path, "data_batch_3.bin is missing", split="train")
    file = write_batch(tmp_path / "test_batch.bin", X, [*Y[:9], 10])
    refused(tmp_path, "label of row 9 is 10, not in 0...9")
    whole = file.read_bytes()
    for wrong in (b"", whole[:-1], whole + b"?", X.tobytes()):
        file.write_bytes(wrong)
        refused(tmp_path, rf"has {len(wrong)} bytes, no rows of 3073; get the file again")
    with file.open("wb") as hole:  # it takes no place on the disk
        hole.truncate(3073 * 10_001)
    refused(tmp_path, "has 30733073 bytes, no rows of 3073")


# one image


@pytest.mark.parametrize("form", ["PNG", "WEBP"])
def test_size_is_checked_before_decoding(form, monkeypatch):
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", None)  # may not be asked
    with pytest.raises(InputError, match=r"it is 33x32 RGB; images must be 32x32"):
        decode_one(encoded(np.zeros((3, 32, 33), np.uint8), form), "it")
    with pytest.raises(InputError, match="has 70000 bytes"):
        decode_one(bytes(70_000), "it")


def test_a_header_that_states_any_size_takes_no_memory():
    png = bytearray(encoded(X[0]))
    png[16:24] = (2**31 - 1).to_bytes(4, "big") * 2
    png[29:33] = zlib.crc32(png[12:29]).to_bytes(4, "big")
    with pytest.raises(InputError, match="exceeds limit"):
        decode_one(bytes(png), "it")


@pytest.mark.parametrize("mode", ["L", "RGBA", "P"])
def test_only_rgb(mode):
    out = io.BytesIO()
    Image.fromarray(X[0].transpose(1, 2, 0)).convert(mode).save(out, "PNG")
    with pytest.raises(InputError, match=f"is 32x32 {mode}; images must be 32x32 RGB"):
        decode_one(out.getvalue(), "it")


@given(st.sampled_from(["PNG", "WEBP"]), st.integers(0, 3000), st.binary(max_size=8))
def test_a_damaged_image_is_decoded_or_refused(form, at, new):
    data = encoded(X[0], form)
    for damaged in (data[:at], data[:at] + new + data[at + len(new) :]):
        try:
            assert decode_one(damaged, "it").shape == (32, 32, 3)
        except InputError as error:
            assert str(error).startswith("it ")  # noqa: PT017


# bytes to network inputs


def test_normalised():
    x = torch.as_tensor(X)
    mean, sd = [0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]
    by_hand = torch.stack([(x[:, c].double() / 255 - mean[c]) / sd[c] for c in range(3)], 1)
    torch.testing.assert_close(normalise(x, "cifar10").double(), by_hand, atol=1e-5, rtol=0)
    assert normalise(x, "cifar100").dtype == torch.float32
    np.testing.assert_array_equal(x, X)  # the bytes are as they were
    with pytest.raises(InputError, match="must be uint8"):
        normalise(x.float(), "cifar10")


def test_small_files_are_not_the_original(tmp_path):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y})
    images = load_images(tmp_path, "cifar10", "test")
    assert is_original(images, "cifar10", "test") is False
    assert is_original(images, "svhn", "test") is None


@pytest.mark.parametrize("module", ["pyarrow.parquet", "PIL"])
def test_without_the_extra_it_says_what_to_install(tmp_path, monkeypatch, module):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y})
    monkeypatch.setitem(sys.modules, module, None)
    refused(tmp_path, r"need (pyarrow|Pillow): pip install 'stochens\[lab\]'")
