"""What `nuts` refuses, and what it accepts."""

import math
from typing import Any

import pytest
import torch
from tests.running import gather
from tests.samplers.going_on import quiet
from torch import nn
from torch.nn import functional as F

import stochens
from stochens import InputError


def test_a_density_that_is_not_finite_names_chain_and_parameter(xor):
    """NaN in the data is said at once; an overflow depends on where a chain starts."""
    x = xor[0].clone()
    x[3, 1] = math.nan
    with pytest.raises(InputError, match=r"x\[3, 1\] is nan"):
        stochens.nuts(nn.Linear(2, 2), (x, xor[1]))
    x[3] = 1e38
    start = {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}
    start["weight"][2] = 100.0  # both logits are infinite there
    with pytest.raises(InputError, match=r"chain 2 .*log density is nan.*'weight'"):
        stochens.nuts(nn.Linear(2, 2), (x, xor[1]), chains=3, start=start)


def test_a_start_that_is_not_finite_names_its_chain(xor):
    start = {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}
    start["bias"][1, 0] = math.inf
    with pytest.raises(InputError, match=r"chain 1 .*'bias' is not finite"):
        stochens.nuts(nn.Linear(2, 2), xor, chains=3, start=start)


def test_a_density_that_overflows_names_the_largest_parameter(xor):
    """3e19 is a float32, its square is none: the energy is infinite, all gradients are finite."""
    start = {"weight": torch.zeros(2, 1, 2), "bias": torch.zeros(2, 1)}
    start["bias"][1] = 3e19
    data, like = (xor[0], xor[0][:, :1]), stochens.Homoscedastic(1.0)
    says = r"chain 1 .* is -inf; its largest parameter is 'bias', up to 3e\+19"
    with pytest.raises(InputError, match=says):
        stochens.nuts(nn.Linear(2, 1), data, chains=2, start=start, likelihood=like)


class OwnNoise(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(F.dropout(x, 0.5))  # whatever the mode


NOISY = {
    "dropout in train mode": lambda: nn.Sequential(
        nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2)
    ),
    "a function": OwnNoise,
    "a function in eval mode": lambda: OwnNoise().eval(),
    "stochastic layers": lambda: stochens.stochastic(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), "dropout"
    ),
    "stochastic layers in eval mode": lambda: stochens.stochastic(
        nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)), "dropout"
    ).eval(),
}


@pytest.mark.parametrize("what", NOISY)
def test_a_stochastic_network_is_refused(what, xor):
    with pytest.raises(InputError, match="stochastic"):
        stochens.nuts(NOISY[what](), xor, samples=2, warmup=2)


@quiet
def test_dropout_that_is_off_is_accepted(xor):
    net = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, 2)).eval()
    posterior = stochens.nuts(net, xor, chains=2, samples=2, warmup=2, max_depth=2)
    assert len(posterior) == 4
    assert not posterior.net.training


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "max_depth 0": ({"max_depth": 0}, "max_depth"),
    "max_depth 17": ({"max_depth": 17}, "max_depth"),
    "max_depth 2.5": ({"max_depth": 2.5}, "max_depth"),
    "target_accept 0": ({"target_accept": 0.0}, "target_accept"),
    "target_accept 1": ({"target_accept": 1.0}, "target_accept"),
    "target_accept nan": ({"target_accept": math.nan}, "target_accept"),
    "engine": ({"engine": "jit"}, "engine"),
    "chains": ({"chains": 0}, "chains"),
    "no chains": ({"chains": None}, "chains"),
    "samples": ({"samples": 0}, "samples"),
    "no samples": ({"samples": None}, "samples"),
    "warmup": ({"warmup": -1}, "warmup"),
    "no warmup": ({"warmup": None}, "warmup"),
    "step_size": ({"step_size": 0.0}, "step_size"),
    "prior": ({"prior": -1.0}, "prior must be a positive number"),
    "precision": ({"precision": "float16"}, "precision"),
    "likelihood": ({"likelihood": "poisson"}, "likelihood"),
    "start by name": ({"start": "posterior"}, "start"),
    "start of wrong shape": (
        {"start": {"weight": torch.zeros(2, 2, 3), "bias": torch.zeros(2, 2)}},
        "'weight' must be",
    ),
    "start of wrong count": (
        {"start": {"weight": torch.zeros(3, 2, 2), "bias": torch.zeros(3, 2)}},
        "'weight' must be",
    ),
    "start without bias": ({"start": {"weight": torch.zeros(2, 2, 2)}}, "'bias' must be"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_bad_options_are_refused(what, xor):
    options, message = REFUSED[what]
    with pytest.raises(InputError, match=message):
        stochens.nuts(
            nn.Linear(2, 2), xor, **gather(**{"chains": 2, "samples": 2, "warmup": 2, **options})
        )


def test_the_kernel_is_not_had_for_every_network(xor):
    net = nn.Sequential(nn.Linear(2, 3), nn.GELU(), nn.Linear(3, 2))
    with pytest.raises(InputError, match="fused"):
        stochens.nuts(net, xor, run=stochens.Run(engine="fused"))


def test_a_loader_is_refused(xor):
    data = torch.utils.data.TensorDataset(*xor)
    loader = torch.utils.data.DataLoader(data, batch_size=10)
    with pytest.raises(InputError, match="DataLoader"):
        stochens.nuts(nn.Linear(2, 2), loader, samples=2, warmup=2)


@quiet
def test_a_start_from_a_posterior(xor):
    """Its first members, one for each chain; with no step size to speak of they stay there."""
    trained = stochens.fit(nn.Linear(2, 2), xor, method="regular", members=3, epochs=2)
    options = {"samples": 1, "warmup": 1, "max_depth": 1, "step_size": 1e-12}
    with pytest.raises(InputError, match="3 members"):
        stochens.nuts(nn.Linear(2, 2), xor, chains=4, start=trained, **gather(**options))
    posterior = stochens.nuts(nn.Linear(2, 2), xor, chains=2, start=trained, **gather(**options))
    for name, p in posterior.params.items():
        torch.testing.assert_close(p, trained.params[name][:2], rtol=1e-5, atol=1e-5)
