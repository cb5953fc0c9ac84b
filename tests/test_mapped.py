"""Memory-mapped arrays as data: the same numbers, and never all of them in memory."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import stochens
from stochens import MLP, Data, InputError
from stochens.data import source
from stochens.files.mapped import is_mapped, mapped, mapped_tensor, take_rows

X, Y = stochens.toy_set("a", n=60)
OPTIONS = {"members": 3, "epochs": 2, "batch_size": 16, "device": "cpu"}


@pytest.fixture
def stored(tmp_path):
    """An array in a file, as it is mapped in a mode."""

    def store(array, mode="r"):
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.npy"
        np.save(path, array)
        return np.load(path, mmap_mode=mode)

    return store


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_])
def test_what_torch_can_use_stays_where_it_is(stored, mode, dtype):
    array = stored((10 * X.numpy()).astype(dtype), mode)
    with warnings.catch_warnings(action="error"):  # torch's, of arrays that cannot be written to
        x = source((array, Y)).x
    assert x.data_ptr() == array.ctypes.data
    assert is_mapped(x)
    assert is_mapped(x[3:7])
    np.testing.assert_array_equal(x.numpy(), array)
    view = source((array[10:20, :1], Y[:10])).x  # of rows, which lie apart
    np.testing.assert_array_equal(view.numpy(), array[10:20, :1])


@pytest.mark.parametrize("dtype", ["f8", "f2"])
def test_other_floats_become_a_file_of_torchs_default(stored, dtype, monkeypatch):
    monkeypatch.setattr("stochens.files.mapped.BLOCK", 100)
    array = stored(X.numpy().astype(dtype))
    x = source((array, Y)).x
    assert x.dtype == torch.float32
    assert is_mapped(x)
    np.testing.assert_array_equal(x.numpy(), np.asarray(array).astype(np.float32))
    columns = stored(np.asfortranarray(X.numpy()))
    kept = mapped_tensor(columns)
    assert is_mapped(kept)
    assert kept.is_contiguous()
    np.testing.assert_array_equal(kept.numpy(), columns)


def test_an_address_is_known_no_longer_than_its_array():
    before = torch.zeros(3)
    assert not is_mapped(before)
    rows = mapped((4, 2), torch.float32)
    rows.copy_(torch.arange(8.0).view(4, 2))
    some = take_rows(rows, torch.tensor([3, 0]))
    assert is_mapped(some)
    assert some.tolist() == [[6.0, 7.0], [0.0, 1.0]]
    assert not is_mapped(take_rows(before, torch.tensor([1])))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "options",
    [{}, {"validation": 0.25}, {"weights": [0.0] * 10 + [1.0] * 50}, {"bootstrap": True}],
    ids=lambda options: next(iter(options), "plain"),
)
def test_members_are_those_of_data_in_memory(stored, dtype, options):
    options = OPTIONS | options
    weights = options.pop("weights", None)
    one, other = (
        stochens.fit(MLP(2, 5, 2), Data(data, weights=weights), **options)
        for data in ((X, Y), (stored(X.numpy().astype(dtype)), stored(Y.numpy())))
    )
    assert all(torch.equal(p, other.params[name]) for name, p in one.params.items())


class Both(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = torch.nn.Linear(2, 5), torch.nn.Embedding(2, 5)
        self.last = torch.nn.Linear(5, 2)

    def forward(self, a, b):
        return self.last((self.one(a) + self.two(b)).relu())


def test_predictions_are_those_of_data_in_memory(stored, monkeypatch):
    monkeypatch.setattr("stochens.inputs.BLOCK", 100)
    posterior = stochens.fit(MLP(2, 5, 2), (X, Y), **OPTIONS)
    whole = posterior.predict(X)
    for array in (X.numpy(), X.numpy().astype(np.float64)):
        assert torch.equal(posterior.predict(stored(array)).probs, whole.probs)
    assert torch.equal(
        posterior.predict(stored(X.numpy())[5:]).probs, posterior.predict(X[5:]).probs
    )
    tree = {"a": X, "b": Y, "label": Y}
    several = stochens.fit(Both, tree, **OPTIONS)
    arrays = {name: stored(t.numpy()) for name, t in tree.items()}
    assert torch.equal(several.predict(arrays).probs, several.predict(tree).probs)
    bad = X.numpy().copy()
    bad[44, 1] = np.inf
    for take in (posterior.predict, lambda x: stochens.fit(MLP(2, 5, 2), (x, Y), **OPTIONS)):
        with pytest.raises(InputError, match=r"x must be finite; x\[44, 1\] is inf"):
            take(stored(bad))
    with pytest.raises(InputError, match="x is empty"):
        posterior.predict(stored(X.numpy()[:0]))


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere memory has no such limit")
def test_none_of_them_is_ever_whole_in_memory(tmp_path):
    """A process that may take 72 MB more uses 96 MB of float32 and 96 MB of float64."""
    script = Path(__file__).with_name("use_mapped.py")
    source = Path(stochens.__file__).parents[1]
    # so that what is freed goes back to the system at once, and not into a heap with holes
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "100000", "PYTHONPATH": str(source)}
    done = subprocess.run(
        [sys.executable, script, tmp_path], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused", "fit", "sgmcmc", "predict", "written"] * 2
