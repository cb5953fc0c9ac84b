"""Whether chains of stochastic-gradient MCMC are as warm as they should be, by what draws obey.

For q from exp(-U / T), any fixed point c, and a mini-batch that q does not depend on,

    E (q - c) . g = T D         the virial
    E p . p = 2 T D / (1 + beta)    the temperature

and likewise for the part of each parameter by itself, and along one direction of length 1. Steps
that are too large, and the noise of mini-batches, make both of them larger, by the share by which
variances are too large. Chains that have not arrived, or hardly move, are off in the virial alone.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.posterior.chains import Chains
from stochens.samplers.arrival import ALARM, student_tails

LIMIT = 0.1  # of a variance: standard deviations 5 % off do not matter
BLOCKS = 10  # of a chain's draws, each of which counts as one independent number
LEAST_DRAWS = 2 * BLOCKS


class Heat(NamedTuple):
    """Of every draw, as a share of what it should be: of each of K parameters, and along v."""

    virial: Tensor  # [M, n, K + 1]
    temperature: Tensor  # [M, n, K + 1]


class Finding(NamedTuple):
    """The worst of one of the two, in one parameter, or in all of them."""

    value: float  # 1 is right
    error: float  # its standard error
    place: str  # where, in words; none for all parameters together
    off: bool  # beyond what matters and what chance does

    def __str__(self) -> str:
        return f"{self.value:.3g} +- {self.error:.2g}{self.place}"


def parts(values: Tensor, sizes: list[int]) -> Tensor:
    """Sums over the coordinates of each parameter, [M, D] -> [M, K], float64.

    >>> parts(torch.tensor([[1.0, 2.0, 3.0]]), [1, 2])
    tensor([[1., 5.]], dtype=torch.float64)
    """
    return torch.stack([part.sum(1, dtype=torch.float64) for part in values.split(sizes, 1)], 1)


def measured(
    away: Tensor, g: Tensor, p: Tensor, v: Tensor, momentum: float, sizes: list[int]
) -> Heat:
    """At temperature 1, of one draw of each chain: [M, K + 1].

    away = (q - c) / s,  g = s dU/dq,  p and v are all in the coordinates of the steps, [M, D].
    """
    count = torch.tensor(sizes, dtype=torch.float64, device=p.device)
    usual = 2 / (1 + momentum)  # E p_d^2
    along = [(t.double() * v).sum(1, keepdim=True) for t in (away, g, p)]  # each [M, 1]
    virial = [parts(away * g, sizes) / count, along[0] * along[1]]
    temperature = [parts(p.square(), sizes) / count / usual, along[2].square() / usual]
    return Heat(torch.cat(virial, 1), torch.cat(temperature, 1))


def find(values: Tensor, sizes: dict[str, int]) -> Finding | None:
    """values [M, n, K + 1], which should be 1 on average; None where there are too few draws.

    A chain's draws depend on each other, so that blocks of them are compared and not draws.
    """
    values = values[values.isfinite().all(2).all(1)].cpu()
    M, n, _ = values.shape
    if M == 0 or n < LEAST_DRAWS:
        return None
    count = torch.tensor(list(sizes.values()), dtype=torch.float64)
    whole = (values[..., :-1] * count).sum(2, keepdim=True) / count.sum()  # [M, n, 1]
    blocks = torch.cat([values, whole], 2)[:, n % BLOCKS :].unflatten(1, (BLOCKS, -1)).mean(2)
    blocks = blocks.flatten(0, 1)  # [M BLOCKS, K + 2]
    mean, error = blocks.mean(0), blocks.std(0) / math.sqrt(len(blocks))
    # of a Gaussian's D coordinates neither varies less from one independent draw to the next
    free = torch.cat([count, torch.tensor([1.0, float(count.sum())])])
    t = (mean - 1) / torch.maximum(error, (2 / (free * M * n)).sqrt())
    chances = [len(t) * student_tails(each, len(blocks) - 1) for each in t.tolist()]
    beyond = ((mean - 1).abs() > LIMIT) & (torch.tensor(chances) < ALARM)
    worst = int((t.abs() + beyond * (1 + t.abs().max())).argmax())
    places = [*(f" in {name!r}" for name in sizes), " in its stiffest direction", ""]
    return Finding(float(mean[worst]), float(error[worst]), places[worst], bool(beyond[worst]))


def heat_of(chains: Chains) -> Heat | None:
    """What `sgmcmc` kept of its draws, as a share of its temperature; None of other samplers, and
    of chains that were to descend."""
    if "virial" not in chains.state or not chains.settings["temperature"]:
        return None
    return Heat(*(chains.state[name] / chains.settings["temperature"] for name in Heat._fields))


def heat_troubles(chains: Chains, sizes: dict[str, int], data_size: float) -> list[str]:
    """What is wrong, with what to do."""
    heat, settings = heat_of(chains), chains.settings
    if heat is None:
        return []
    batch = settings["batch_size"]
    mini = batch is not None and batch < data_size
    lr = settings["lr"] * float(chains.state["noise rate"].median())
    said = heat_in_words(heat, sizes, lr=lr, mini_batches=mini)
    return [] if said is None else [said]


def heat_in_words(
    heat: Heat, sizes: dict[str, int], *, lr: float, mini_batches: bool
) -> str | None:
    """What is wrong, with what to do; None if nothing is."""
    temperature, virial = find(heat.temperature, sizes), find(heat.virial, sizes)
    if temperature is not None and temperature.off:
        hot = temperature.value > 1
        why = "the noise of mini-batches heats them" if mini_batches else "the steps are too large"
        if not hot:
            why = "too much was taken off for the noise of mini-batches"
        larger = "a larger batch_size, or " if mini_batches else ""
        mended = float(f"{lr * LIMIT / 2 / abs(temperature.value - 1):.1g}")
        return (
            f"these chains are too {'hot' if hot else 'cold'}: their temperature is {temperature}, "
            f"where 1 is right, and their variances are too {'large' if hot else 'small'} by about "
            f"as much; {why}. Try {larger}lr={mended:g} with more burn_in and thin"
        )
    if virial is not None and virial.off:
        return (
            f"these chains have not arrived at the posterior, or are not let go on for long enough:"
            f" their virial is {virial}, where 1 is right. Try a longer burn_in and more "
            "samples, or a start that is trained already"
        )
    return None
