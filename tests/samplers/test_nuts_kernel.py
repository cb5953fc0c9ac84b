"""The compiled NUTS is the same machine as the plain one."""

import pytest
import torch
from tests.long import long_but
from tests.samplers import density
from torch import nn

from stochens.kernels import mlp
from stochens.likelihoods import Homoscedastic

needs_compiler = pytest.mark.skipif(not mlp.available(), reason="no compiler here")
TWINS = {
    "relu, classes": (nn.ReLU, 2, True, "categorical", 5, 19),
    "tanh, classes, no bias": (nn.Tanh, 3, False, "categorical", 1, 41),
    "silu, noise 0.3": (nn.SiLU, 1, True, Homoscedastic(noise=0.3), 2, 37),
    "relu, noise 0.3, no bias": (nn.ReLU, 1, False, Homoscedastic(noise=0.3), 1, 1),
    "tanh, heteroscedastic": (nn.Tanh, 2, True, "heteroscedastic", 3, 23),
}


@needs_compiler
@pytest.mark.parametrize("name", long_but([*TWINS][::2], TWINS))
def test_the_kernel_is_the_same_machine(name):
    """Through the fast start, the window, its close, the fast end and some draws. Rounding grows
    by some thousand in blocks of 10 iterations (measured), so blocks are of 4."""
    activation, outputs, bias, likelihood, chains, n = TWINS[name]
    data = density.classes(n) if likelihood == "categorical" else density.curve(n)
    stats = density.lockstep(
        density.small_net(activation, outputs, bias=bias),
        data,
        density.rules_for(50, max_depth=3),
        chains=chains,
        samples=3,
        block=4,
        likelihood=likelihood,
    )
    assert float(stats["depth"].max()) == 3
    assert float(stats["leapfrogs"].min()) >= 1


@needs_compiler
def test_the_kernel_on_a_single_layer():
    density.lockstep(
        nn.Linear(3, 2),
        density.classes(),
        density.rules_for(0, max_depth=4),
        chains=2,
        samples=5,
        block=10,
    )


@needs_compiler
def test_the_kernel_in_deep_trees():
    """Small steps, so that a tree of depth 6 opens and closes all its checkpoints."""
    stats = density.lockstep(
        density.small_net(nn.Tanh, 2),
        density.classes(),
        density.rules_for(0, max_depth=7),
        chains=3,
        samples=4,
        block=16,
        step=0.02,
    )
    assert float(stats["depth"].max()) >= 6


@needs_compiler
def test_the_kernel_diverges_alike():
    """Too large a step: leaves beyond the bounds on energy."""
    stats = density.lockstep(
        density.small_net(nn.SiLU, 1),
        density.curve(),
        density.rules_for(0, max_depth=5),
        chains=5,
        samples=6,
        block=1,
        likelihood=Homoscedastic(noise=0.3),
        step=0.05,
    )
    assert 0 < float(stats["diverged"].mean()) < 1


@needs_compiler
def test_the_kernel_in_float32():
    """The first transition of every chain: energies of about 100 in 24 bits, and some hundred
    operations between."""
    x, y = density.classes()
    stats = density.lockstep(
        density.small_net(nn.Tanh, 2),
        (x.float(), y),
        density.rules_for(0, max_depth=3),
        chains=5,
        samples=1,
        block=7,
        dtype=torch.float32,
        step=0.05,
    )
    assert bool((stats["leapfrogs"] > 1).all())
