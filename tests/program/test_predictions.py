"""Predictions by programs draw what vmap draws, in any blocks of members."""

import logging
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import nn

import stochens
from stochens import DropConnect, Dropout, Gaussian, NPDropout
from stochens.methods import stochastic
from stochens.posterior import streaming
from stochens.program import choice, drops, outputs
from stochens.program.program import Noise, build

METHODS = ["regular", Dropout(0.3), DropConnect(0.3), NPDropout(), [Dropout(0.2), Gaussian(0.2)]]


def net() -> nn.Module:
    """No chain of linear layers alone, which a kernel would run."""
    layers = [nn.Conv1d(2, 3, 3, padding=1), nn.GELU(), nn.Flatten(), nn.LayerNorm(12)]
    return nn.Sequential(*layers, nn.Linear(12, 2))


def posterior(method: Any) -> tuple[stochens.Posterior, torch.Tensor]:
    x = torch.randn(11, 2, 4, generator=torch.Generator().manual_seed(0)).double()
    data = (x, (x[:, 0, 0] > 0).long())
    made = stochens.fit(net().double(), data, method=method, members=5, epochs=1, seed=2)
    return made, x


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_program_draws_what_vmap_draws(
    method: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, x = posterior(method)
    caplog.set_level(logging.INFO, "stochens")
    plain = made.predict(x, draws=3, batch_size=4, seed=7)
    assert "one program" not in caplog.text  # too little work for one
    for module in (choice, outputs):
        monkeypatch.setattr(module, "ON_CPU_FROM", 0.0)
    ours = made.predict(x, draws=3, batch_size=4, seed=7)
    assert "members run by one program" in caplog.text
    within = close(torch.float64, terms=20, depth=10)
    torch.testing.assert_close(ours.probs, plain.probs, **within)
    caplog.clear()
    made.predict(x, draws=3, batch_size=4, seed=7)
    assert "one program" not in caplog.text  # it is traced once


@pytest.mark.parametrize("node", ["position", "channel"])
def test_dropout_without_gradients_is_one_operation_with_the_same_numbers(
    node: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, however members lie: side by side as channels, in front, or alone."""
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 5), nn.GELU()]
    plain = nn.Sequential(*layers, nn.Linear(5, 2))
    noisy = stochastic(plain, [Dropout(0.3, node=node)]).eval()
    x = torch.randn(5, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    program = build(noisy, x)
    params = {n: torch.stack([p, p + 0.1]).detach() for n, p in noisy.named_parameters()}
    for p in params.values():
        p.requires_grad_()
    noise = Noise(torch.tensor([4, 9]), torch.tensor([3, 5]))
    one = {n: p[1] for n, p in params.items()}, Noise(noise.members[1], noise.seed)

    def run() -> list[torch.Tensor]:
        each = program.each(params, torch.stack([x, x]), noise)
        return [program(params, x, noise), each, program.one(one[0], x, one[1])]

    calls, made = [], drops.divisors

    def counted(*given: Any) -> torch.Tensor | None:
        calls.append(given)
        return made(*given)

    monkeypatch.setattr(drops, "divisors", counted)
    with torch.no_grad():
        ours = run()
    assert len(calls) == 3 * 2  # two layers, three ways
    for got, want in zip(ours, run(), strict=True):  # with gradients: masks
        assert torch.equal(got, want)
    assert len(calls) == 3 * 2


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", METHODS[1:], ids=str)
def test_a_member_draws_the_same_in_whatever_company(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, x = posterior(method)
    whole = made.predict(x, draws=2, batch_size=4, seed=7)
    monkeypatch.setattr(streaming, "plan", lambda *_, **__: (4, 2))
    monkeypatch.setattr("stochens.posterior.pieces.plan", lambda *_, **__: (4, 2))
    blocks = made.predict(x, draws=2, batch_size=4, seed=7)
    torch.testing.assert_close(
        blocks.probs, whole.probs, **close(torch.float64, terms=20, depth=10)
    )
    assert not torch.equal(whole.probs[:5], whole.probs[5:])  # two draws


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_noise_on_weights_is_one_function_of_x() -> None:
    """Whatever batch a row is in; noise on outputs is fresh for each row."""
    made, x = posterior(DropConnect(0.3))
    same = x[:1].expand(9, -1, -1)
    probs = made.predict(same, batch_size=2, seed=7).probs  # [5, 9, 2]
    torch.testing.assert_close(probs, probs[:, :1].expand_as(probs))
    made, x = posterior(Dropout(0.3))
    probs = made.predict(same, batch_size=2, seed=7).probs
    assert all(len(member.unique(dim=0)) > 2 for member in probs)
