"""Optimisers and schedules of the user's own."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import gather
from tests.tolerance import trained
from torch import Tensor

import stochens
from stochens import MLP, InputError, Optimizer


def points(n: int = 26) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0] * x[:, 1] > 0).long()


def fit(**options: Any) -> stochens.Posterior:
    usual = {"members": 3, "epochs": 4, "batch_size": 8, "method": "dropout", "prior": 3.0}
    return stochens.fit(lambda: MLP(2, 4, 2).double(), points(), **gather(**usual | options))


def adam(params: list[Tensor]) -> torch.optim.Optimizer:
    return torch.optim.Adam(params, lr=0.05)


@pytest.mark.parametrize("more", [{}, {"clip": 0.05}, {"accumulate": 2, "schedule": "step"}])
def test_ones_own_adam_is_adam(more: dict[str, Any]) -> None:
    """The last batch is short; the prior is in the loss of one, and in the decay of the other."""
    own, named = fit(optimizer=adam, **more), fit(optimizer="adam", lr=0.05, **more)
    for name, p in named.params.items():
        within = trained(torch.float64, steps=16, rows=8)
        torch.testing.assert_close(own.params[name], p, **within)
    torch.testing.assert_close(own.history.loss, named.history.loss)


def test_groups_have_rates_of_their_own() -> None:
    def make(params: list[Tensor]) -> torch.optim.Optimizer:
        groups = [{"params": params[:2], "lr": 0.1}, {"params": params[2:], "lr": 0.0}]
        return torch.optim.SGD(groups, lr=1.0)

    still = fit(optimizer=Optimizer(make, schedule="constant"), epochs=1)
    begun = fit(lr=1e-30, epochs=1)
    assert torch.equal(still.params["2.weight"], begun.params["2.weight"])
    assert not torch.equal(still.params["0.weight"], begun.params["0.weight"])


def test_a_schedule_is_a_function_of_progress() -> None:
    def cosine(done: float) -> float:
        return 0.5 * (1 + math.cos(math.pi * done))

    own, named = fit(schedule=cosine, lr=0.05), fit(schedule="cosine", lr=0.05)
    assert all(torch.equal(own.params[name], p) for name, p in named.params.items())


class Normed(torch.optim.Optimizer):
    """Steps of length lr for each tensor, over all members at once."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad / p.grad.norm())
                self.state[p]["count"] = self.state[p].get("count", 0) + 1


class NormedEach(Normed):
    """Likewise for each member by itself."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                norm = p.grad.flatten(1).norm(dim=1).view(-1, *[1] * (p.dim() - 1))
                p.sub_(group["lr"] * p.grad / norm)
                self.state[p]["count"] = self.state[p].get("count", 0) + 1


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Normed, "Normed moves a member otherwise when another is beside it"),
        (torch.optim.Adafactor, "Adafactor moves a member otherwise"),
        (torch.optim.LBFGS, "LBFGS cannot step for parameters stacked over members"),
        (lambda params: adam(params[1:]), "has 3 parameters, and must have the 4"),
        (lambda params: 3, "gives a torch.optim.Optimizer; it gives a int"),
    ],
)
def test_what_mixes_members_is_refused(make: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit(optimizer=make)


def test_a_norm_of_each_member_is_taken() -> None:
    assert fit(optimizer=NormedEach).params["0.weight"].isfinite().all()


def test_a_state_that_no_checkpoint_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="keeps a int in its state, and a checkpoint has tensors"):
        fit(optimizer=NormedEach, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_knows_them(tmp_path: Path) -> None:
    options: dict[str, Any] = {"checkpoint": tmp_path / "run", "epochs": 1}
    fit(optimizer=adam, **options)
    with pytest.raises(InputError, match='is of another run: own optimizer was "Adam'):
        fit(optimizer=lambda params: torch.optim.Adam(params, lr=0.1), **options)
    with pytest.raises(InputError, match="is of another run: schedule was 'cosine' there"):
        fit(optimizer=Optimizer(adam, schedule=lambda done: 1 - done), **options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"optimizer": adam, "lr": 0.1}, "an optimizer of your own has its own rate"),
        ({"optimizer": adam, "weight_decay": 0.1}, "your own has its own weight_decay"),
        ({"schedule": lambda done: -1.0}, "at 0 of training it gives -1.0"),
        ({"schedule": lambda done: None}, "schedule must give a factor .* gives None"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'"),
    ],
)
def test_bad_options_get_one_clear_error(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit(**options)
