"""The draws and steps of natural gradients as a GPU makes them: by natural_draw.cu and
natural_step.cu, here emulated where there is no GPU, against training/natural.py in plain torch."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tests.kernels import emulated
from tests.tolerance import rounding
from torch import Tensor

from stochens.kernels import natural as kernel
from stochens.training.natural import NaturalGradient
from stochens.training.schedules import Natural

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, STEPS = 200.0, 4
SHAPES = {"w": (30, 21), "b": (30,), "c": (1, 7)}


@pytest.fixture(autouse=True)
def kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE == "cuda":
        return
    made = {name: emulated.compiled(name, kernel.source(name)) for name in kernel.NAMES}
    monkeypatch.setattr(kernel, "_kernels", lambda device: made)
    monkeypatch.setattr(kernel, "available", lambda m: True)


def optimizer(prior: dict[str, float], means: Any, piece: int | None) -> NaturalGradient:
    generator = torch.Generator().manual_seed(0)
    params = {
        name: torch.randn(3, *shape, generator=generator).to(DEVICE)
        for name, shape in SHAPES.items()
    }
    made = NaturalGradient(
        params,
        Natural(memory=20.0),
        lr=0.3,
        examples=N,
        slopes=prior,
        means=means,
        steps=STEPS,
        members=(4, 0, 9),
        seed=7,
    )
    if piece is not None:
        made._piece = piece
    return made


def run(made: NaturalGradient, shares: Sequence[float], *, by_kernel: bool) -> list[Tensor]:
    """Steps down a quadratic whose curvature differs from number to number."""
    group, seen = made.param_groups[0], []
    if by_kernel:
        group["lr"] = torch.tensor(0.3, device=DEVICE)
    curvature = torch.linspace(0.1, 3.0, len(made.mean), device=DEVICE)
    for number, share in enumerate(shares):
        group["share"] = share
        at = torch.tensor([number], device=DEVICE) if by_kernel else number
        made.draw(at)
        assert (made._terms is not None) == by_kernel
        theta, kl = made.theta(), made.kl_of_sigma()
        seen += [theta.detach().clone(), kl.clone()]
        (share * 0.5 * (curvature * (theta - 1).square()).sum()).backward()
        made.step()
    return [*seen, made.mean.clone(), made.sigma()]


@pytest.mark.parametrize("shares", [[1.0] * STEPS, [0.25] * STEPS, [1.0, 0.01, 2.5, 0.25]], ids=str)
@pytest.mark.parametrize("piece", [None, 100])  # members' numbers in one piece, or in seven
@pytest.mark.parametrize("prior", ["one", "each", "mean", "flat"])
def test_the_kernels_do_what_plain_torch_does(
    prior: str, piece: int | None, shares: list[float]
) -> None:
    slopes = {"w": 2.0, "b": 2.0, "c": 2.0}
    means = None
    if prior == "each":
        slopes["b"] = 50.0
    if prior == "mean":
        means = {"w": torch.full((1, *SHAPES["w"]), 0.5, device=DEVICE)}
    if prior == "flat":  # as with prior=0, whose KL is infinite
        slopes = dict.fromkeys(slopes, 0.0)
    plain = run(optimizer(slopes, means, piece), shares, by_kernel=False)
    ours = run(optimizer(slopes, means, piece), shares, by_kernel=True)
    # a step is some 30 operations; one of theta's gradients is at most 3 (|theta| + 1), near 10,
    # and sigma eps of it is taken times N forgotten, N / 20 = 10, in the exponent of sigma
    within = rounding(torch.float32, terms=30, depth=STEPS, condition=100)
    for a, b in zip(ours, plain, strict=True):
        scale = float(b.abs().max()) if bool(b.isfinite().all()) else 1.0
        torch.testing.assert_close(a, b, rtol=within, atol=within * max(1.0, scale))


def test_a_member_that_is_lost_stays_so() -> None:
    """NaN in a gradient is NaN in the member, and in no other."""
    made = optimizer(dict.fromkeys(SHAPES, 2.0), None, None)
    made.param_groups[0]["lr"] = torch.tensor(0.3, device=DEVICE)
    made.draw(torch.tensor([0], device=DEVICE))
    g = torch.ones_like(made.mean)
    made.layout.named(g)["w"][1] = math.nan
    made.theta().grad = g
    made.step()
    for values in (made.mean, made.sigma()):
        w = made.layout.named(values)["w"]
        assert w[1].isnan().all()
        assert w[0].isfinite().all()
        assert w[2].isfinite().all()
