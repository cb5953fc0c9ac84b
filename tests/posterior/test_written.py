"""Predictions batch by batch, and in a file: the numbers of `predict`, whole or not there."""

import json
import sys
from typing import Any

import numpy as np
import pytest
import torch
from tests.likelihoods.table import ROWS, network
from tests.long import long_but
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stochens
from stochens import MLP, Dropout, InputError
from stochens.files import tables
from stochens.posterior import pieces, predictive, streaming
from stochens.posterior.reading import join_pieces
from stochens.program import outputs

X = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def small(monkeypatch):
    """Batches of a few rows and members, pieces of a few batches, chunks of a few rows."""
    monkeypatch.setattr(streaming, "ACTIVATIONS", 6000)
    monkeypatch.setattr(pieces, "PIECE", 500)
    monkeypatch.setattr(tables, "GROUP", 300)
    monkeypatch.setattr(tables, "CHUNK", 300)


@pytest.fixture(scope="module")
def posterior():
    data = stochens.toy_set("a", n=60)
    return stochens.fit(MLP(2, 6, 2), data, method=Dropout(0.3), members=7, epochs=2, device="cpu")


def read_zarr(folder):
    """By the format's own words alone; the package zarr reads it too."""
    assert json.loads((folder / ".zgroup").read_text()) == {"zarr_format": 2}
    found = {}
    for about in sorted(folder.glob("*/.zarray")):
        told = json.loads(about.read_text())
        assert told["compressor"] is told["filters"] is None
        chunks = sorted(
            (p for p in about.parent.iterdir() if p != about),
            key=lambda p: int(p.stem.split(".")[0]),
        )
        parts = [np.fromfile(p, told["dtype"]).reshape(told["chunks"]) for p in chunks]
        found[about.parent.name] = np.concatenate(parts)[: told["shape"][0]]
        assert list(found[about.parent.name].shape) == told["shape"]
    return found


def read_parquet(file):
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(file)
    shapes = json.loads(table.schema.metadata[b"stochens"])["shapes"]
    found = {}
    for name, shape in shapes.items():
        column = table[name].combine_chunks()
        flat = column.flatten() if hasattr(column, "flatten") and len(shape) else column
        found[name] = flat.to_numpy(zero_copy_only=False).reshape(-1, *shape)
    return found


def read(path):
    return read_parquet(path) if path.suffix == ".parquet" else read_zarr(path)


def equal(found, wanted):
    assert found.keys() == wanted.keys()
    for name, t in wanted.items():
        assert found[name].dtype == t.numpy().dtype
        np.testing.assert_array_equal(found[name], t.numpy(), err_msg=name)


NAMES = {
    "Predictive": {"probs", "entropy", "mutual_information"},
    "MultilabelPredictive": {"probs", "entropy", "mutual_information"},
    "GaussianPredictive": {"mean", "std", "aleatoric", "epistemic", "low", "high"},
    "NumberPredictive": {"mean", "std", "aleatoric", "epistemic", "low", "high"},
}


@pytest.mark.parametrize(
    "name", long_but(["categorical", "multilabel", "gaussian", "poisson"], ROWS)
)
def test_every_likelihood_says_what_is_written(name, small, tmp_path):
    row, x = ROWS[name], X[:40]
    y = row.targets(20, torch.Generator().manual_seed(1))
    y = y.float() if y.is_floating_point() else y
    options = {"members": 3, "epochs": 1, "likelihood": row.like, "device": "cpu", "seed": 2}
    posterior = stochens.fit(network(row), (x[:20], y), method=Dropout(0.3), **options)
    asked = {"draws": 2, "seed": 4}
    whole = posterior.predict(x, keep_draws=True, **asked)
    said, drawn = whole.summaries(), whole.by_draw()
    assert said.keys() == NAMES[type(whole).__name__]
    loader: DataLoader[Any] = DataLoader(x, batch_size=11)
    for out, keep, wanted in [
        ("a.parquet", True, said | drawn),
        ("b.zarr", None, said),
        ("c.zarr", False, whole.light().summaries()),
    ]:
        wrote = posterior.predict(loader, out=tmp_path / out, keep_draws=keep, **asked)
        assert wrote == tmp_path / out
        equal(read(wrote), wanted)
    joined = join_pieces(posterior.predict_batches(x, keep_draws=True, **asked))
    for key, t in joined.by_draw().items():
        assert torch.equal(drawn[key], t), key
    for key, t in joined.light().summaries().items():
        assert torch.equal(said[key], t), key


class Stream(IterableDataset[Any]):
    def __init__(self, blocks):
        self.blocks = blocks

    def __iter__(self):
        return iter(self.blocks)


@pytest.mark.parametrize("noise", ["fresh", "shared"])
@pytest.mark.parametrize("piece", [1, 700, 1 << 20])
def test_batches_are_those_of_predict_whatever_they_come_in(posterior, piece, noise, monkeypatch):
    monkeypatch.setattr(streaming, "ACTIVATIONS", 2000)
    monkeypatch.setattr(pieces, "PIECE", piece)
    asked = {"draws": 2, "seed": 3, "noise": noise}
    whole = posterior.predict(X, **asked)
    mapped = {"x": X, "loader": DataLoader(TensorDataset(X, X), batch_size=7), "rows": Stream(X)}
    for name, given in {**mapped, "iterator": None}.items():
        given = iter(X.split(13)) if name == "iterator" else given
        each = list(posterior.predict_batches(given, **asked))
        assert len(each) > 1 or piece > 700
        joined = join_pieces(each)
        assert torch.equal(joined.probs, whole.probs), name
        assert torch.equal(joined.mean, whole.mean), name
        assert torch.equal(joined.mutual_information, whole.mutual_information), name


def test_batches_have_the_size_that_is_asked_for(posterior):
    whole = posterior.predict(X, batch_size=20, seed=5)
    each = list(posterior.predict_batches(DataLoader(X, batch_size=8), batch_size=20, seed=5))
    assert [len(p.mean) for p in each] == [20, 20, 20, 20, 10]
    assert torch.equal(join_pieces(each).probs, whole.probs)
    one = list(posterior.predict_batches(X[:1]))
    assert torch.equal(one[0].probs, posterior.predict(X[:1]).probs)


def test_a_program_that_pays_for_all_rows_runs_the_first_batch_too(small, posterior, monkeypatch):
    """Which of the ways runs a network depends on how much there is to do, and rounds."""
    ran = []
    kept = outputs.kept_program

    def counted(net, few, task):
        ran.append(task.examples)
        return kept(net, few, task)

    monkeypatch.setattr(outputs, "kept_kernel", lambda *_: None)
    monkeypatch.setattr(outputs, "kept_program", counted)
    whole = posterior.predict(X)
    (examples,) = set(ran)
    ran.clear()
    for given in (X, TensorDataset(X)):
        joined = join_pieces(posterior.predict_batches(given))
        assert set(ran) == {examples}
        assert torch.equal(joined.probs, whole.probs)


def test_nothing_is_read_before_it_is_asked_for_and_no_more_than_is_needed(small, posterior):
    seen = []

    def blocks():
        for k in range(100):
            seen.append(k)
            yield X[:10]

    each = posterior.predict_batches(blocks())
    assert not seen
    next(each)
    assert len(seen) < 30
    with pytest.raises(InputError, match="noise must be"):  # at once, and not with the first batch
        posterior.predict_batches(blocks(), noise="loud")


def test_what_cannot_be_written_is_refused_before_anything_is_read(
    posterior, tmp_path, monkeypatch
):
    def never():
        yield pytest.fail("the inputs were read")

    there = tmp_path / "there.zarr"
    there.mkdir()
    for out, message in [
        ("p.csv", r"a name in \.parquet or \.zarr, got .*p\.csv"),
        ("p", r"a name in \.parquet"),
        ("no/p.zarr", "no is not there; make that folder first"),
        ("there.zarr", "there already; choose another name, or remove it"),
    ]:
        with pytest.raises(InputError, match=message):
            posterior.predict(never(), out=tmp_path / out)
    with pytest.raises(InputError, match="out must be the name of a file, got 3"):
        posterior.predict(never(), out=3)
    with pytest.raises(InputError, match="noise must be"):
        posterior.predict(never(), out=tmp_path / "p.zarr", noise="loud")
    with pytest.raises(InputError, match="engine='ray' gives all predictions at once"):
        posterior.predict(never(), out=tmp_path / "p.zarr", run=stochens.Run(engine="ray"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"pip install 'stochens\[parquet\]'"):
        posterior.predict(never(), out=tmp_path / "p.parquet")
    assert list(tmp_path.iterdir()) == [there]


@pytest.mark.parametrize("suffix", tables.SUFFIXES)
def test_what_breaks_off_leaves_nothing(suffix, small, posterior, tmp_path, monkeypatch):
    out = tmp_path / f"p{suffix}"

    def blocks(error):
        for _ in range(20):
            yield X
            assert not out.exists()
        raise error

    for error in (KeyboardInterrupt("now"), OSError("the network is down"), ValueError("mine")):
        with pytest.raises(type(error), match=str(error)):
            posterior.predict(blocks(error), out=out)
        assert not list(tmp_path.iterdir())
    bad = X.clone()
    bad[80, 1] = torch.nan
    with pytest.raises(InputError, match=r"x\[80, 1\] is nan"):
        posterior.predict(DataLoader(bad, batch_size=7), out=out)
    where = tables._Parquet if suffix == ".parquet" else tables._ZarrArray

    def refuse(_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(where, "_flush", refuse)
        with pytest.raises(InputError, match=r"cannot write .*No space"):
            posterior.predict(X, out=out)
    assert not list(tmp_path.iterdir())
    posterior.predict(X, out=out)  # and the same call again is well
    assert list(tmp_path.iterdir()) == [out]
    equal(read(out), posterior.predict(X).summaries())


def test_predictions_of_different_shapes_are_no_one_table(tmp_path):
    class Widths(nn.Linear):
        def forward(self, x):
            return super().forward(x.unsqueeze(-1)).flatten(1)  # [B, T, 1] -> [B, T]

    x, y = [torch.rand(4, 3), torch.rand(4, 5)], torch.zeros(4).long()
    posterior = stochens.fit(lambda: Widths(1, 1), (x[0], y), method="regular", epochs=1)
    with pytest.raises(InputError, match=r"one shape.*got \(4, 3\) and \(4, 5\)"):
        posterior.predict(iter(x), out=tmp_path / "p.zarr")
    assert not list(tmp_path.iterdir())
    assert [p.mean.shape for p in posterior.predict_batches(iter(x))] == [(4, 3), (4, 5)]


def test_intervals_are_in_all_rows_or_in_none(small, tmp_path, monkeypatch):
    """Draws of one batch that are too many leave them out, also where the last batch has few."""
    x, _ = stochens.toy_set("a", n=60)
    options = {"likelihood": "gaussian", "members": 4, "epochs": 1, "device": "cpu"}
    posterior = stochens.fit(MLP(2, 6, 1), (x, x.sum(1)), **options)
    monkeypatch.setattr(predictive, "DRAWS_BUDGET", 4 * 8 * 20)  # of 20 rows
    some = posterior.predict(X, out=tmp_path / "some.zarr", batch_size=20)
    none = posterior.predict(X, out=tmp_path / "none.zarr", batch_size=21)
    assert read(some).keys() - read(none).keys() == {"low", "high"}
    assert len(read(some)["low"]) == len(read(none)["mean"]) == 90


def test_progress_is_shown_with_the_number_of_rows_where_that_is_known(small, posterior, tmp_path):
    told: list[Any] = []
    show = lambda *what: told.append(what)  # noqa: E731
    posterior.predict(X, out=tmp_path / "a.zarr", progress=show)
    assert told[-1][:2] == (90, 90)
    posterior.predict(iter(X.split(9)), out=tmp_path / "b.zarr", progress=show)
    assert told[-1][:2] == (90, 0)


def test_a_likelihood_of_ones_own_writes_its_mean(tmp_path):
    class Mean(stochens.likelihoods.Predicted):
        mean = torch.zeros(3, 2)

    Mean.__abstractmethods__ = frozenset()
    one: Any = Mean()  # type: ignore[abstract]
    assert one.summaries().keys() == {"mean"}
    with pytest.raises(InputError, match="a Mean does not say what its draws are"):
        one.by_draw()
