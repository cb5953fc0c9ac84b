"""`stochens data`: what it finds, says and refuses."""

import io

import numpy as np
import pytest
from rich.console import Console
from tests.lab.data.image_files import CIFAR10, pixels, write_batch, write_parquet

from stochens.errors import InputError
from stochens_lab.experiments.data_folder import show_folder, take_inventory

X, Y = pixels(4), [0, 1, 2, 3]


def shown(folder, **options) -> str:
    out = io.StringIO()
    show_folder(folder, console=Console(file=out, width=200), **options)
    return out.getvalue()


def test_empty_folder(tmp_path):
    said = shown(tmp_path)
    for name in ("cifar10", "cifar100", "svhn", "hmc"):
        assert f"no {name}: put " in said
        assert f"stochens data {tmp_path} --download {name}" in said
    assert take_inventory(tmp_path) == []


def test_no_folder(tmp_path):
    with pytest.raises(InputError, match="is no folder"):
        shown(tmp_path / "none")


def test_what_is_there(tmp_path):
    names = {"label": CIFAR10}
    write_parquet(
        tmp_path / "cifar10" / "test-00000-of-00001.parquet", X, {"label": Y}, names=names
    )
    write_batch(tmp_path / "cifar-100-binary" / "train.bin", X, Y, Y)
    entries = take_inventory(tmp_path)
    assert [entry[:3] for entry in entries] == [
        ("cifar10", "test", "parquet"),
        ("cifar100", "train", "binary batches"),
    ]
    assert [(entry.rows, entry.whole) for entry in entries] == [(4, 10_000), (4, 50_000)]
    assert entries[0].checks == "readable; not the original rows in the original order"
    said = shown(tmp_path)
    assert "4 of 10000" in said
    assert "no svhn" in said
    assert "no cifar10" not in said


def test_files_in_the_folder_itself_are_one_set(tmp_path):
    write_parquet(tmp_path / "test.parquet", X, {"label": Y}, names={"label": CIFAR10})
    assert [entry.name for entry in take_inventory(tmp_path)] == ["cifar10"]


def test_damage_is_said_after_what_is_good(tmp_path):
    write_parquet(tmp_path / "svhn" / "test.parquet", X, {"label": Y})
    file = write_parquet(tmp_path / "cifar10" / "test.parquet", X, {"label": Y})
    file.write_bytes(file.read_bytes()[:500])
    out = io.StringIO()
    with pytest.raises(InputError, match=r"cifar10/test.parquet cannot be read"):
        show_folder(tmp_path, console=Console(file=out, width=200))
    said = out.getvalue()
    assert "svhn" in said
    assert "damaged, see below" in said


def test_reference_without_its_images(tmp_path):
    np.save(tmp_path / "hmc_probs.npy", np.full((10_000, 10), 0.1, np.float32))
    (entry,) = take_inventory(tmp_path)
    assert entry.checks == "distributions; order unproved without the test labels"
    np.save(tmp_path / "hmc_probs.npy", np.full((9_999, 10), 0.1, np.float32))
    (entry,) = take_inventory(tmp_path)
    assert "expected [10000, 10]" in entry.fault


def test_unknown_download(tmp_path):
    with pytest.raises(InputError, match="to be had are"):
        shown(tmp_path, fetch=["mnist"])


def test_real_folder(shared_data):
    entries = {(entry.name, entry.split): entry for entry in take_inventory(shared_data)}
    assert not [entry.fault for entry in entries.values() if entry.fault]
    for key in [("cifar10", "train"), ("cifar10", "test"), ("cifar100", "test")]:
        assert entries[key].checks == "pixels, labels and order are the original ones"
        assert entries[key].rows == entries[key].whole
    assert entries["svhn", "test"].rows == 5000
    assert "accuracy 91.44 %" in entries["hmc", "test"].checks
