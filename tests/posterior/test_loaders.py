"""Prediction from a DataLoader: the same numbers as from one tensor, and no more in memory."""

import itertools
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stochens
from stochens import MLP, Dropout, InputError
from stochens.posterior import predictive, streaming


@pytest.fixture
def small(monkeypatch):
    """Batches of a few rows and members, and pieces of a few batches."""
    monkeypatch.setattr(streaming, "ACTIVATIONS", 6000)
    monkeypatch.setattr("stochens.posterior.pieces.PIECE", 500)


def equal(one, other):
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.aleatoric, other.aleatoric)
    assert torch.equal(one.probs, other.probs)


class Stream(IterableDataset[Any]):
    """Of unknown length."""

    def __init__(self, blocks):
        self.blocks = blocks

    def __iter__(self):
        return iter(self.blocks)


@pytest.mark.parametrize("cut", [None, 16, 1000])
@pytest.mark.parametrize("rows", [1, 59, 600])
def test_draws_are_those_of_the_whole_tensor(small, rows, cut):
    """Fresh noise on outputs, which depends on where batches begin; and draws of SWAG."""
    x, y = stochens.toy_set("a", n=60)
    posterior = stochens.fit(MLP(2, 6, 2), (x, y), method=Dropout(0.3), members=7, epochs=2)
    x = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0))
    whole = posterior.predict(x, draws=2, batch_size=cut, seed=3)
    for loader in (
        DataLoader(x, batch_size=7),
        DataLoader(TensorDataset(x, x), batch_size=500),
        DataLoader(Stream(list(x.split(9))), batch_size=None),
        TensorDataset(x),
    ):
        equal(posterior.predict(loader, draws=2, batch_size=cut, seed=3), whole)


def test_pieces_of_a_swag_of_regression_and_of_chains(small):
    x, y = stochens.toy_set("a", n=60)
    swag = stochens.multiswag(
        MLP(2, 4, 1), (x, x.sum(1)), likelihood="gaussian", members=2, epochs=20, rank=3
    )
    loader: DataLoader[Any] = DataLoader(x, batch_size=7)
    one, other = (swag.predict(given, draws=2) for given in (x, loader))
    assert torch.equal(one.draw_means, other.draw_means)
    # sums over the same draws, whose centres lie in other pieces but are the same numbers
    assert torch.equal(one.epistemic, other.epistemic)
    chains = stochens.sgmcmc(nn.Linear(2, 2), (x, y), chains=2, samples=3, burn_in=5, device="cpu")
    one, other = (chains.predict(given) for given in (x, loader))
    equal(one, other)
    for a, b in zip(one.chains, other.chains, strict=True):
        assert torch.equal(a.mean, b.mean)


def test_draws_are_kept_while_they_fit(small, monkeypatch):
    x, y = stochens.toy_set("a", n=60)
    posterior = stochens.fit(MLP(2, 6, 2), (x, y), members=4, epochs=1)
    loader = DataLoader(Stream(list(x.split(9))), batch_size=None)
    monkeypatch.setattr(predictive, "DRAWS_BUDGET", 4 * 60 * 2 * 4)
    assert posterior.predict(loader).draws is not None
    monkeypatch.setattr(predictive, "DRAWS_BUDGET", 4 * 60 * 2 * 4 - 1)
    light = posterior.predict(loader)
    assert light.draws is None
    assert torch.equal(light.mean, posterior.predict(x).mean)
    assert posterior.predict(loader, keep_draws=True).draws is not None
    assert posterior.predict(loader, keep_draws=False).draws is None


def test_no_more_is_held_than_is_predicted_at_once(small):
    """500 batches, of which a few are there at a time."""
    x, y = stochens.toy_set("a", n=60)
    posterior = stochens.fit(MLP(2, 6, 2), (x, y), method="regular", members=2, epochs=1)
    alive, most = [0], [0]

    def blocks():
        for k in range(500):
            array = np.full((10, 2), k / 500, dtype=np.float32)
            alive[0] += 1
            weakref.finalize(array, lambda: alive.__setitem__(0, alive[0] - 1))
            most[0] = max(most[0], alive[0])
            yield torch.from_numpy(array)  # holds the array as long as it is there itself

    p = posterior.predict(DataLoader(Stream(blocks()), batch_size=None), keep_draws=False)
    assert len(p.mean) == 5000
    # PIECE is 500 bytes, 63 rows; a batch by the budget of activations has 6000 / 2 / 64 = 46
    assert most[0] <= 30, "of 500"


class Tagger(nn.Module):
    """Tokens [B, T] to logits [B, 2]; 0 is padding."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 2)

    def forward(self, x):
        mask = (x > 0).unsqueeze(-1)
        return self.head((self.embedding(x) * mask).sum(1) / mask.sum(1).clamp_min(1))


def sentences(lengths):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, 20, (n,), generator=generator) for n in lengths]


def padded(rows):
    x = nn.utils.rnn.pad_sequence([x for x, _ in rows], batch_first=True)
    return x, torch.tensor([y for _, y in rows])


@pytest.mark.parametrize("method", ["regular", Dropout(0.3)])
def test_batches_of_different_lengths(method):
    """Sequences that are padded batch by batch: `fit` took them, `predict` did not."""
    x = sentences([3, 5, 4, 9, 8, 9, 2, 7, 7, 7, 6])
    rows = [(x, int(x[0] > 10)) for x in x]
    loader: DataLoader[Any] = DataLoader(rows, batch_size=3, collate_fn=padded)
    lengths = [batch.shape[1] for batch, _ in loader]
    assert len(set(lengths)) > 1
    posterior = stochens.fit(Tagger, loader, method=method, members=3, epochs=20, lr=0.1)
    p = posterior.predict(loader)
    assert p.probs.shape == (3, 11, 2)
    assert torch.equal(p.mean, posterior.predict(loader).mean)
    if method == "regular":  # row by row, without any padding
        alone = [posterior.predict(tokens.unsqueeze(0)).probs for tokens in x]
        torch.testing.assert_close(p.probs, torch.cat(alone, 1))  # float32 rounding of short sums
    else:
        firsts = [p.probs[:, 3 * k] for k in range(3)]
        for one, other in itertools.combinations(firsts, 2):
            assert not torch.equal(one, other), "batches have noise of their own"
    with pytest.raises(InputError, match=r"different shapes, \(3, 5\) and \(3, 9\), cannot"):
        stochens.inputs.inputs(loader)


def test_predictions_of_different_shapes_are_no_one_prediction():
    class Widths(nn.Linear):
        def forward(self, x):
            return super().forward(x.unsqueeze(-1)).flatten(1)  # [B, T, 1] -> [B, T]

    x, y = [torch.rand(4, 3), torch.rand(4, 5)], torch.zeros(4).long()
    posterior = stochens.fit(lambda: Widths(1, 1), (x[0], y), method="regular", epochs=1)
    with pytest.raises(InputError, match=r"one shape.*got \(4, 3\) and \(4, 5\); predict each"):
        posterior.predict(DataLoader(Stream(x), batch_size=None))


def test_a_bad_row_is_named_by_its_place_wherever_it_is(small):
    x = torch.zeros(200, 2)
    x[150, 1] = torch.nan
    posterior = stochens.fit(MLP(2, 4, 2), stochens.toy_set("a", n=30), members=2, epochs=1)
    with pytest.raises(InputError, match=r"x must be finite; x\[150, 1\] is nan"):
        posterior.predict(DataLoader(x, batch_size=20))
    tokens = torch.ones(200, 3, dtype=torch.long)
    tagger = stochens.fit(Tagger, (tokens, torch.arange(200) % 2), members=2, epochs=1)
    tokens[150, 1] = 20
    with pytest.raises(InputError, match=r"the network fails on x .*index out of range"):
        tagger.predict(DataLoader(tokens, batch_size=20))
    with pytest.raises(InputError, match="the data set is empty"):
        tagger.predict(DataLoader(Stream([]), batch_size=None))


def test_export_reads_no_more_than_an_example():
    posterior = stochens.fit(MLP(2, 4, 2), stochens.toy_set("a", n=30), members=2, epochs=1)

    def blocks():
        yield torch.zeros(5, 2)
        raise AssertionError("one batch tells it all")

    loader = DataLoader(Stream(blocks()), batch_size=None)
    assert posterior.noise_inputs(loader).keys() == posterior.noise_inputs().keys()
