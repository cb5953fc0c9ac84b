"""Members that take turns on a CPU train as all at once do, in the same memory each step."""

import logging
from typing import Any

import pytest
import torch
from tests.methods.test_conformance import case_of, wide
from tests.program.test_program import NOISE, assert_same
from tests.tolerance import trained
from torch import Tensor, nn

import stochens
from stochens import objective
from stochens.likelihoods import Categorical
from stochens.program import choice
from stochens.program.apart import Apart
from stochens.program.program import build
from stochens.program.turns import in_turns
from stochens.run.freed import freed_memory_kept

SLOPE = torch.tensor([1.0, 0.25], dtype=torch.float64)  # of the loss in each member's


def both(reuse: bool) -> tuple[Any, Any, Any]:
    """The mean NLL at once and in turns, and what both are functions of."""
    case = wide(case_of("conv2d", "dropout"))
    # not in the network: it has no gradient
    params = {**case.params, "beside": torch.ones(2, 1, dtype=torch.float64)}
    y = torch.arange(len(case.x)) % 2
    program = Apart(build(case.net, case.x))
    plain = objective.mean_nll(case.net, Categorical(), engine="vmap", program=program)
    turns = in_turns(plain, program.program.names, reuse=reuse)
    return plain, turns, (params, case.x, y)


def gradients(term: Any, given: Any, rows: Tensor | None) -> list[Tensor]:
    params, x, y = given
    own = {name: p.clone().requires_grad_() for name, p in params.items()}
    losses = term(own, x, y, rows, NOISE)
    (SLOPE * losses).sum().backward()
    assert own["beside"].grad is None
    return [losses.detach(), *(p.grad for name, p in own.items() if name != "beside")]


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("rows", [None, [[0, 1, 2], [3, 1, 0]]])
def test_one_after_the_other_is_all_at_once(reuse: bool, rows: Any) -> None:
    plain, turns, given = both(reuse)
    chosen = None if rows is None else torch.tensor(rows)
    for _ in range(2):  # what is used again holds nothing of the step before
        assert_same(gradients(turns, given, chosen), gradients(plain, given, chosen))
    with torch.no_grad():
        assert_same([turns(*given, chosen, NOISE)], [plain(*given, chosen, NOISE)])


def test_memory_is_used_again_where_that_is_asked_for() -> None:
    for reuse in (False, True):
        _, turns, given = both(reuse)
        first, second = (gradients(turns, given, None)[1:] for _ in range(2))
        same = [a.data_ptr() == b.data_ptr() for a, b in zip(first, second, strict=True)]
        assert all(same) if reuse else not any(same)


def test_a_gradient_is_taken_once() -> None:
    _, turns, (params, x, y) = both(reuse=False)
    own = {name: p.clone().requires_grad_() for name, p in params.items()}
    loss = turns(own, x, y, None, NOISE).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def net() -> nn.Module:
    conv = nn.Conv2d(3, 4, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))


@pytest.mark.parametrize("method", ["regular", "np-dropout"])
def test_fit_by_turns_is_fit_by_vmap(
    method: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr(choice, "TURNS_FROM", 0.0)
    caplog.set_level(logging.INFO, "stochens")
    x = torch.randn(10, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    data = (x, (x[:, 0, 0, 0] > 0).long())

    def fit(**options: Any) -> stochens.Posterior:
        options |= {"members": 3, "epochs": 2, "batch_size": 4, "lr": 0.01, "seed": 1}
        return stochens.fit(net().double(), data, method=method, **options)

    ours = fit()
    assert "one after the other" in caplog.text
    plain = fit(run=stochens.Run(engine="vmap"))
    within = trained(torch.float64, steps=6, rows=10)
    for name, p in plain.params.items():
        torch.testing.assert_close(ours.params[name], p, **within)


@pytest.mark.filterwarnings("ignore")  # so few draws are troubled
def test_a_sampler_with_much_to_do_takes_turns_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its steps are counted: without them it would be work for vmap."""
    monkeypatch.setattr(choice, "TURNS_FROM", 0.0)
    caplog.set_level(logging.INFO, "stochens")
    x = torch.randn(10, 3, 4, 4, generator=torch.Generator().manual_seed(0)).double()
    data = (x, (x[:, 0, 0, 0] > 0).long())
    steps, batch, chains = 6, 4, 2
    work = choice.BACKWARD * choice.flops(net().double(), x) / len(x) * steps * batch * chains

    def draws(least: float) -> Tensor:
        monkeypatch.setattr(choice, "ON_CPU_FROM", least)
        torch.manual_seed(0)
        options = {"burn_in": 4, "samples": 2, "thin": 1, "chains": chains, "batch_size": batch}
        return stochens.sgmcmc(net().double(), data, **options).params["0.weight"]

    plain = draws(1.01 * work)
    assert "one after the other" not in caplog.text
    ours = draws(work)
    assert "one after the other" in caplog.text
    torch.testing.assert_close(ours, plain, **trained(torch.float64, steps=6, rows=10))


def test_memory_that_is_freed_inside_is_given_back_after_the_last() -> None:
    with freed_memory_kept(), freed_memory_kept():
        kept = torch.ones(1 << 20)
        del kept
    assert torch.ones(1 << 20).sum() == 1 << 20
