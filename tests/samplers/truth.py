"""The one table of problems whose posterior is known, for every sampler that makes an ensemble.

A problem of LINEAR has its standard deviations in closed form. Those of NETWORKS were sampled by
NUTS, 8 chains of 500 draws or MORE; truth_by_nuts.json has their standard deviations of
predictions, of those of AUDITED their means as well, and what the draws are worth.

python -m tests.samplers.truth [NAME ...]    # makes these anew, in minutes each
"""

import functools
import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import stochens
from stochens.errors import Failed, InputError
from stochens.samplers.diagnostics import SamplingWarning
from stochens.samplers.mixing import mixing

RIGHT = 0.05  # of a standard deviation, beside chance
MOST = 0.1  # of a standard deviation, chance included
LEAST = 0.01  # of a standard deviation that counts: probabilities next to 0 or 1 are skewed
KEPT = Path(__file__).with_name("truth_by_nuts.json")
LINE = torch.linspace(-3, 3, 11).unsqueeze(1)  # [B, 1]
SQUARE = torch.cartesian_prod(torch.linspace(-2, 2, 4), torch.linspace(-2, 2, 4))  # [B, 2]


class Said(NamedTuple):
    """What comes of a run: its posterior, and what it says is wrong with it."""

    posterior: stochens.Posterior | None  # None: refused
    warnings: tuple[str, ...]


def listen(sample: Callable[[], stochens.Posterior]) -> Said:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            posterior = sample()
        except (Failed, InputError) as refused:
            return Said(None, (str(refused),))
    words = (str(w.message) for w in caught if issubclass(w.category, SamplingWarning))
    return Said(posterior, tuple(words))


# -- linear regressions, in closed form ------------------------------------------------------------


class Linear(NamedTuple):
    """Bayesian linear regression with a known noise."""

    N: int
    noise: float = 1.0
    scale: float = 1.0  # of the inputs
    prior: float = 1.0
    features: int = 4
    offset: float = 0.0  # of the inputs, in their scale: makes one direction stiff
    scales: Sequence[float] = ()  # of each input, beside that

    def data(self) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(self.N)
        x = torch.randn(self.N, self.features, generator=generator) + self.offset
        noise = self.noise * torch.randn(self.N, generator=generator)
        y = (x - self.offset).sum(1) + 0.3 + noise
        return self.scale * x * torch.tensor(self.scales or [1.0]), y

    def covariance(self) -> Tensor:
        """Of the weights and the bias under the posterior, [D, D], float64."""
        design = _with_one(self.data()[0])
        precision = design.T @ design / self.noise**2 + self.prior * torch.eye(design.shape[1])
        return torch.linalg.inv(precision)

    def options(self) -> dict[str, Any]:
        return {"likelihood": stochens.Homoscedastic(self.noise), "prior": self.prior}

    def sample(self, sampler: Callable[..., stochens.Posterior], **options: Any) -> Said:
        net, data = nn.Linear(self.features, 1), self.data()
        return listen(lambda: sampler(net, data, **self.options() | options))

    def ratios(self, posterior: stochens.Posterior) -> Tensor:
        """Of each parameter's standard deviation to the exact one, and of that along the stiffest
        direction, [D + 1]."""
        draws = torch.cat(
            [posterior.params["weight"].flatten(1), posterior.params["bias"]], 1
        ).cpu()
        covariance = self.covariance()
        exact, directions = torch.linalg.eigh(covariance)
        stiff = (draws.double() @ directions[:, 0]).std(0) / exact[0].sqrt()
        each = draws.double().std(0) / covariance.diagonal().sqrt()
        return torch.cat([each, stiff.reshape(1)])


def _with_one(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1).double()


LINEAR = {
    "small-noise": Linear(400, noise=0.1),
    "smaller-noise": Linear(100, noise=0.01),
    "large-inputs": Linear(100, scale=10.0),
    "larger-inputs": Linear(100, scale=100.0),
    "small-inputs": Linear(400, scale=0.01),
    "wide-prior": Linear(100, prior=0.01),
    "narrow-prior": Linear(400, prior=100.0),
    "narrow-prior-small-inputs": Linear(1000, scale=0.01, prior=100.0),
    "N1500": Linear(1500),
    "N20000-large-inputs-wide-prior": Linear(20_000, scale=100.0, prior=0.01),
    "N50000": Linear(50_000),
    "inputs-of-all-scales": Linear(200, scales=(0.01, 0.1, 10.0, 100.0)),
    "one-stiff-direction": Linear(200, features=30, offset=1.0),
    "one-stiffer-direction": Linear(200, features=30, offset=10.0),
}


# -- networks, by NUTS -----------------------------------------------------------------------------


class Network(NamedTuple):
    """A network whose predictions at `grid` were sampled by NUTS."""

    net: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    likelihood: Any
    grid: Tensor
    prior: float = 1.0

    def options(self) -> dict[str, Any]:
        return {"likelihood": self.likelihood, "prior": self.prior}

    def sample(self, sampler: Callable[..., stochens.Posterior], **options: Any) -> Said:
        return listen(lambda: sampler(self.net(), self.data(), **self.options() | options))

    def predicted(self, posterior: stochens.Posterior) -> Tensor:
        """What each draw predicts at the grid, [S, K], float64."""
        found: Tensor = posterior.predict(self.grid, keep_draws=True).quantities()
        return found.double()


def ratio_to_nuts(name: str, posterior: stochens.Posterior) -> float:
    """Of the standard deviations of predictions, the median over them."""
    exact = torch.tensor(by_nuts()[name]["sd"]).double()
    sd = KNOWN[name].predicted(posterior).std(0)
    return float((sd / exact)[exact > LEAST].median())


def distance_to_nuts(name: str, posterior: stochens.Posterior) -> tuple[float, float]:
    """Of averaged predictions of two classes, in total variation: the mean over the grid. And how
    far as many independent draws are by chance: what is expected, and four standard deviations.

    The distance at a place is |N(0, s^2)|, s^2 = sd^2 (1 / M + 1 / ESS), with mean .80 s and
    standard deviation .60 s. That of an average is at most the average of them.
    """
    nuts, predicted = by_nuts()[name], KNOWN[name].predicted(posterior)  # [M, K]
    distance = (predicted.mean(0) - torch.tensor(nuts["mean"])).abs().mean()
    s = predicted.std(0).mean() * math.sqrt(1 / len(predicted) + 1 / nuts["ess"])
    return float(distance), float(s * (math.sqrt(2 / math.pi) + 4 * math.sqrt(1 - 2 / math.pi)))


def sine(seed: int) -> tuple[Tensor, Tensor]:
    """100 points of a sine with noise 0.6."""
    generator = torch.Generator().manual_seed(seed)
    x = 4 * torch.rand(100, 1, generator=generator) - 2
    y = torch.sin(2 * x[:, 0]) + 0.6 * torch.randn(100, generator=generator)
    return x, y


def growing_noise() -> tuple[Tensor, Tensor]:
    """100 points of a sine whose noise grows from left to right."""
    generator = torch.Generator().manual_seed(3)
    x = 4 * torch.rand(100, 1, generator=generator) - 2
    noise = 0.1 + 0.15 * (x[:, 0] + 2)
    return x, torch.sin(2 * x[:, 0]) + noise * torch.randn(100, generator=generator)


def three_classes() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(150, 2, generator=generator)
    return x, (x @ torch.tensor([[1.0, -1, 0], [0, 1, -1]])).argmax(1)


def four_classes() -> tuple[Tensor, Tensor]:
    """Quadrants, with labels that are wrong one time in five."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(100, 2, generator=generator)
    y = 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    wrong = torch.rand(100, generator=generator) < 0.2
    return x, torch.where(wrong, torch.randint(0, 4, (100,), generator=generator), y)


def regressor(activation: type[nn.Module], outputs: int = 1) -> nn.Module:
    layers = [nn.Linear(1, 10), activation(), nn.Linear(10, 10), activation()]
    return nn.Sequential(*layers, nn.Linear(10, outputs))


NOISY = stochens.Homoscedastic(0.6)
NETWORKS = {
    "softmax": Network(lambda: nn.Linear(2, 3), three_classes, "categorical", SQUARE),
    "tanh-1": Network(lambda: regressor(nn.Tanh), lambda: sine(1), NOISY, LINE),
    "tanh-2": Network(lambda: regressor(nn.Tanh), lambda: sine(2), NOISY, LINE),
    "relu": Network(lambda: regressor(nn.ReLU), lambda: sine(1), NOISY, LINE),
    "heteroscedastic": Network(
        lambda: regressor(nn.Tanh, 2), growing_noise, "heteroscedastic", LINE
    ),
    **{
        f"toy-{name}": Network(
            lambda: stochens.MLP(2, 10, 10, 2),
            functools.partial(stochens.toy_set, name, n=100),
            "categorical",
            SQUARE,
        )
        for name in "abc"
    },
    "2-50-50-50-4": Network(
        lambda: stochens.MLP(2, 50, 50, 50, 4), four_classes, "categorical", SQUARE
    ),
}

# What an audit of `langevin` ran beside those. The other samplers do not run them.
AUDITED = {
    "tanh-3": Network(lambda: regressor(nn.Tanh), lambda: sine(3), NOISY, LINE),
    **{
        name: Network(
            lambda: stochens.MLP(2, 10, 10, 2),
            lambda: stochens.toy_set("b", n=400),
            "categorical",
            SQUARE,
            prior,
        )
        for name, prior in (("toy-b-400", 1.0), ("toy-b-400-wide", 0.1))
    },
}
KNOWN = NETWORKS | AUDITED
MORE = {"toy-b-400-wide": {"samples": 4000, "warmup": 1500, "target_accept": 0.97}}  # 11 minutes


@functools.cache
def by_nuts() -> dict[str, dict[str, Any]]:
    kept: dict[str, dict[str, Any]] = json.loads(KEPT.read_text())
    return kept


def make_truth(name: str) -> dict[str, Any]:
    problem = KNOWN[name]
    chains = 8
    options = {"chains": chains, "samples": 500, "warmup": 500, "start": "reset"}
    options |= MORE.get(name, {})
    posterior, told = problem.sample(stochens.nuts, **options)
    assert posterior is not None
    predicted = problem.predicted(posterior)  # [S, K]
    found = mixing(predicted.unflatten(0, (chains, -1)))
    return {
        "mean": [round(mean, 5) for mean in predicted.mean(0).tolist()],
        "sd": [round(sd, 5) for sd in predicted.std(0).tolist()],
        "ess": round(float(found.ess_bulk.min())),
        "rhat": round(float(found.rhat.max()), 3),
        "told": list(told),
    }


if __name__ == "__main__":
    kept = by_nuts() if KEPT.exists() else {}
    for asked in sys.argv[1:] or KNOWN:
        kept[asked] = make_truth(asked)
        KEPT.write_text(json.dumps(kept, indent=1) + "\n")
        print(asked, kept[asked], flush=True)
