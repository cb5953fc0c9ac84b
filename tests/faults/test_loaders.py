"""Readers of image sets and of HMC's predictions: any content comes back, any damage is refused or
plain data, whatever is too large is refused by its size."""

import io
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.lab.data.image_files import CIFAR10, encoded, pixels, write_batch, write_parquet

from stochens import InputError
from stochens_lab.data import hmc_reference, image_parquet
from stochens_lab.data.images import load_images


def as_parquet(folder: Path, x: np.ndarray, y: list[int]) -> None:
    write_parquet(folder / "test.parquet", x, {"label": y}, names={"label": CIFAR10})


def as_batch(folder: Path, x: np.ndarray, y: list[int]) -> None:
    write_batch(folder / "test_batch.bin", x, y)


FORMS = [as_parquet, as_batch]


@contextmanager
def written(form, y: list[int], seed: int):
    with tempfile.TemporaryDirectory() as folder:
        x = pixels(len(y), seed)
        form(Path(folder), x, y)
        yield Path(folder), x


labels = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(y=labels, seed=st.integers(0, 999))
def test_whatever_is_written_comes_back(form, y, seed):
    with written(form, y, seed) as (folder, x):
        found = load_images(folder, "cifar10", "test")
    assert found.y.tolist() == y
    np.testing.assert_array_equal(found.x, x)
    assert found.classes == tuple(CIFAR10)


def whole_or_refused(folder: Path, file: Path) -> bool:
    """Whether it is refused, in one sentence that says where."""
    try:
        x, y, classes = load_images(folder, "cifar10", "test")
    except InputError as error:
        assert file.name in str(error) or str(folder) in str(error)  # noqa: PT017
        return True
    assert x.shape == (len(y), 3, 32, 32)
    assert x.dtype == torch.uint8
    assert len(classes) == 10
    assert bool(((y >= 0) & (y < 10)).all())
    return False


def some_file(folder: Path, at: float) -> Path:
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return files[int(at * len(files))]


share = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=40)
@given(which=share, at=share, new=st.binary(min_size=1, max_size=9), left_out=st.integers(0, 9))
def test_damage_is_refused_or_read_as_images(form, which, at, new, left_out):
    with written(form, [3, 4], 0) as (folder, _):
        file = some_file(folder, which)
        content = file.read_bytes()
        place = int(at * len(content))
        file.write_bytes(content[:place] + new + content[place + left_out :])
        whole_or_refused(folder, file)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=30)
@given(at=share)
def test_what_is_cut_short_is_refused_unless_it_is_cut_between_rows(form, at):
    with written(form, [3, 4], 0) as (folder, x):
        file = some_file(folder, 0)
        content = file.read_bytes()
        file.write_bytes(content[: int(at * len(content))])
        if not whole_or_refused(folder, file):
            assert form is as_batch
            np.testing.assert_array_equal(load_images(folder, "cifar10", "test").x, x[:1])


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(wrong=st.integers(10, 255))
def test_labels_that_are_no_class_are_refused(form, wrong):
    with written(form, [3, wrong], 0) as (folder, _), pytest.raises(InputError, match="not in 0"):
        load_images(folder, "cifar10", "test")


# Oversized ----------------------------------------------------------------------------------------


def test_a_parquet_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    as_parquet(tmp_path, pixels(3), [1, 2, 3])
    monkeypatch.setattr(image_parquet, "MOST_ROWS", 2)
    with pytest.raises(InputError, match="says it has 3 rows"):
        load_images(tmp_path, "cifar10", "test")
    monkeypatch.undo()
    big = io.BytesIO(encoded(pixels(1)[0])).getvalue() + bytes(2_000_000)
    table = pq.read_table(tmp_path / "test.parquet").to_pylist()
    table[0]["img"]["bytes"] = big
    schema = pq.read_schema(tmp_path / "test.parquet")
    pq.write_table(
        type(pq.read_table(tmp_path / "test.parquet")).from_pylist(table, schema),
        tmp_path / "test.parquet",
    )
    with pytest.raises(InputError, match=r"test.parquet.* bytes"):
        load_images(tmp_path, "cifar10", "test")


# HMC's predictions as CSV -------------------------------------------------------------------------

ROW = "0.1,0.2,0.05,0.15,0.1,0.1,0.1,0.1,0.05,0.05\n"


def probs_of(text: bytes) -> torch.Tensor | None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "probs.csv").write_bytes(text)
        try:
            return hmc_reference.load_hmc_reference(folder)
        except InputError as error:
            assert "probs.csv" in str(error)  # noqa: PT017
            return None


@settings(max_examples=25)
@given(at=share, new=st.binary(min_size=1, max_size=5) | st.sampled_from([b"nan", b"1e999", b"-"]))
def test_a_damaged_csv_is_refused_or_its_rows_are_distributions(at, new):
    text = (ROW * 10_000).encode()
    place = int(at * len(text))
    for damaged in (text[:place] + new + text[place:], text[:place] + new + text[place + 5 :]):
        found = probs_of(damaged)
        if found is not None:
            assert found.shape == (10_000, 10)
            assert bool((found >= 0).all())
            assert float((found.double().sum(1) - 1).abs().max()) < 2e-3


@settings(max_examples=25)
@given(at=st.floats(0, 0.9999))
def test_a_csv_that_is_cut_short_is_refused(at):
    text = (ROW * 10_000).encode()
    assert probs_of(text[: int(at * len(text))]) is None


def test_a_csv_that_is_too_large_is_not_read(tmp_path):
    with (tmp_path / "probs.csv").open("wb") as file:
        file.truncate(hmc_reference.MOST_BYTES + 1)
    with pytest.raises(InputError, match="has 20000001 bytes"):
        hmc_reference.load_hmc_reference(tmp_path)
