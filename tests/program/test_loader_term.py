"""Batches of a DataLoader run by what runs data in memory: a kernel, the network's program, and the
engine where a batch has a form of its own."""

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.tolerance import trained
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stochens
from stochens.errors import InputError
from stochens.kernels import mlp
from stochens.program import choice, loader_term
from stochens.program.program import Program, build

ROWS, BATCH, EPOCHS = 10, 4, 2  # the last batch has 2


def images() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0, 0, 0] > 0).long()


def convolutions() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


def rows() -> tuple[Tensor, Tensor]:
    x = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0] > 0).long()


def chain() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))


class Stream(IterableDataset[Any]):
    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        return zip(*self._data, strict=True)


def loader(data: tuple[Tensor, Tensor]) -> Any:
    return DataLoader(TensorDataset(*data), batch_size=BATCH)


def stream(data: tuple[Tensor, Tensor]) -> Any:
    return stochens.Data(DataLoader(Stream(data), batch_size=BATCH), size=ROWS)


def fit(net: Callable[[], nn.Module], data: Any, engine: str, **options: Any) -> stochens.Posterior:
    options = {"members": 3, "epochs": EPOCHS, "lr": 0.01, "seed": 1, "method": "dropout"} | options
    run = stochens.Run(engine=engine, device="cpu")
    return stochens.fit(lambda: net().double(), data, run=run, **options)


def assert_trained_alike(ours: stochens.Posterior, plain: stochens.Posterior) -> None:
    within = trained(torch.float64, steps=EPOCHS * 3, rows=BATCH)
    for name, p in plain.params.items():
        torch.testing.assert_close(ours.params[name], p, **within)


@pytest.mark.parametrize("given", [loader, stream])
@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect", "gaussian"])
@pytest.mark.skipif(not mlp.available(), reason="no C++ compiler")
def test_a_small_chain_runs_by_the_kernel(
    method: str, given: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, found = [], mlp.nll

    def seen(*args: Any, **options: Any) -> Tensor:
        taken.append(len(args[2]))
        return found(*args, **options)

    monkeypatch.setattr(mlp, "nll", seen)
    data = rows()
    ours = fit(chain, given(data), "auto", method=method)
    assert taken == [4, 4, 2] * EPOCHS
    assert_trained_alike(ours, fit(chain, given(data), "vmap", method=method))
    assert len(taken) == 3 * EPOCHS


@pytest.mark.parametrize("given", [loader, stream])
@pytest.mark.parametrize("turns_from", [0.0, 1e30])
@pytest.mark.parametrize("method", ["regular", "np-dropout"])
def test_a_network_runs_by_its_program(
    method: str,
    turns_from: float,
    given: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """In turns or all members at once."""
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr(choice, "TURNS_FROM", turns_from)
    caplog.set_level(logging.INFO, "stochens")
    data = images()
    ours = fit(convolutions, given(data), "auto", method=method)
    assert "members run by one program" in caplog.text
    assert ("one after the other" in caplog.text) == (turns_from == 0)
    assert_trained_alike(ours, fit(convolutions, given(data), "vmap", method=method))


def test_steps_of_several_batches_have_their_gradients_summed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Members in turns keep their gradients' memory only where a step has one batch."""
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr(choice, "TURNS_FROM", 0.0)
    data = loader(images())
    options = {"optimizer": stochens.Optimizer("sgd", accumulate=2), "method": "regular"}
    ours = fit(convolutions, data, "auto", **options)
    assert_trained_alike(ours, fit(convolutions, data, "vmap", **options))


class Words(nn.Module):
    """A mean over words, of which there may be any number."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(9, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).tanh().mean(1))


LENGTHS = (6, 3, 6, 4, 5, 3)  # of the words of each batch


def ragged() -> Any:
    given = torch.Generator().manual_seed(0)
    rows = [torch.randint(9, (length,), generator=given) for length in LENGTHS for _ in range(3)]
    labels = [int(row.sum()) % 2 for row in rows]
    return DataLoader(list(zip(rows, labels, strict=True)), batch_size=3)


@pytest.mark.parametrize(("most", "by_engine"), [(1, 4), (2, 2), (9, 0)])
def test_a_batch_of_another_length_has_a_trace_of_its_own_or_the_engine(
    most: int, by_engine: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many traces as the work is worth; which ones does not change the members."""
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr(choice, "MOST_TRACES", most)
    plain = fit(Words, ragged(), "vmap")
    lengths: list[int] = []
    found = loader_term.objective.mean_nll

    def counted(*args: Any, program: Any = None, **options: Any) -> Any:
        term = found(*args, program=program, **options)

        def of(params: Any, x: Tensor, *rest: Any) -> Tensor:
            if program is None:
                lengths.append(x.shape[1])
            return term(params, x, *rest)

        return of

    monkeypatch.setattr(loader_term.objective, "mean_nll", counted)
    ours = fit(Words, ragged(), "auto")
    assert len(lengths) == EPOCHS * by_engine
    assert_trained_alike(ours, plain)


def test_a_program_says_what_it_is_ready_for(monkeypatch: pytest.MonkeyPatch) -> None:
    program = build(Words(), torch.zeros(4, 6, dtype=torch.int64))
    three, four = (torch.zeros(4, n, dtype=torch.int64) for n in (3, 4))
    assert program.ready_for(torch.zeros(2, 6, dtype=torch.int64), 1)  # any number of rows
    assert not program.ready_for(three, 1)
    assert program.ready_for(three, 2)
    assert program.ready_for(three, 1)
    tried = []

    def refused(*_: Any) -> Any:
        tried.append(1)
        raise choice.Untraceable("not this one")

    monkeypatch.setattr(Program, "graphs", refused)
    assert not program.ready_for(four, 9)
    assert not program.ready_for(four, 9)
    assert len(tried) == 1


@pytest.mark.parametrize("net", [chain, convolutions])
def test_labels_that_do_not_fit_are_refused_whenever_they_come(
    net: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would be read from outside of the outputs."""
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    x, y = rows() if net is chain else images()
    y[-1] = 7  # in the last batch
    with pytest.raises(InputError, match="7"):
        fit(net, loader((x, y)), "auto")


def test_rows_of_another_width_are_the_network_s_error() -> None:
    x, y = rows()
    batches = [*zip(x[:4], y[:4], strict=True), *zip(x[4:, :2], y[4:], strict=True)]
    with pytest.raises(RuntimeError):
        fit(chain, DataLoader(batches, batch_size=BATCH), "auto")
