"""Whether chains of stochastic-gradient MCMC are as warm as they should be, by what draws obey.

For q from exp(-U / T), any fixed point c, and a mini-batch that q does not depend on,

    E (q - c) . g = T D         the virial
    E p . p = 2 T D / (1 + beta)    the temperature

and likewise for the part of each parameter by itself. Steps that are too large, and the noise of
mini-batches, make both of them larger, by the share by which variances are too large. Chains that
have not arrived, or hardly move, are off in the virial alone.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.samplers.arrival import ALARM, student_tails

LIMIT = 0.1  # of a variance: standard deviations 5 % off do not matter
BLOCKS = 10  # of a chain's draws, each of which counts as one independent number
LEAST_DRAWS = 2 * BLOCKS


class Heat(NamedTuple):
    """Of every draw, as a share of what it should be."""

    virial: Tensor  # [M, n, K], of each of K parameters
    temperature: Tensor  # [M, n, K]


class Finding(NamedTuple):
    """The worst of one of the two, in one parameter, or in all of them."""

    value: float  # 1 is right
    error: float  # its standard error
    place: str | None  # None: all parameters together
    off: bool  # beyond what matters and what chance does


def parts(values: Tensor, sizes: list[int]) -> Tensor:
    """Sums over the coordinates of each parameter, [M, D] -> [M, K], float64.

    >>> parts(torch.tensor([[1.0, 2.0, 3.0]]), [1, 2])
    tensor([[1., 5.]], dtype=torch.float64)
    """
    return torch.stack([part.sum(1, dtype=torch.float64) for part in values.split(sizes, 1)], 1)


def measured(
    q: Tensor, centre: Tensor, g: Tensor, p: Tensor, momentum: float, sizes: list[int]
) -> Heat:
    """At temperature 1, of one draw of each chain: [M, 1, K]. g is the gradient at q."""
    count = torch.tensor(sizes, dtype=torch.float64, device=q.device)
    virial = parts((q - centre) * g, sizes) / count
    temperature = parts(p.square(), sizes) * (1 + momentum) / 2 / count
    return Heat(virial.unsqueeze(1), temperature.unsqueeze(1))


def find(values: Tensor, sizes: dict[str, int]) -> Finding | None:
    """values [M, n, K], which should be 1 on average; None where there are too few draws.

    A chain's draws depend on each other, so that blocks of them are compared and not draws.
    """
    values = values[values.isfinite().all(2).all(1)]
    M, n, K = values.shape
    if M == 0 or n < LEAST_DRAWS:
        return None
    count = torch.tensor(list(sizes.values()), dtype=torch.float64)
    share = count / count.sum()
    whole = (values * share).sum(2, keepdim=True)  # [M, n, 1]
    blocks = torch.cat([values, whole], 2)[:, n % BLOCKS :].unflatten(1, (BLOCKS, -1)).mean(2)
    blocks = blocks.flatten(0, 1)  # [M BLOCKS, K + 1]
    mean, error = blocks.mean(0), blocks.std(0) / math.sqrt(len(blocks))
    # of a Gaussian's D coordinates neither varies less from one independent draw to the next
    least = (2 / torch.cat([count, count.sum().reshape(1)]) / (M * n)).sqrt()
    t = (mean - 1) / torch.maximum(error, least)
    chances = [(K + 1) * student_tails(each, len(blocks) - 1) for each in t.tolist()]
    beyond = ((mean - 1).abs() > LIMIT) & (torch.tensor(chances) < ALARM)
    worst = int(torch.where(beyond, t.abs(), t.abs() - t.abs().max() - 1).argmax())
    place = None if worst == K or K == 1 else list(sizes)[worst]
    return Finding(float(mean[worst]), float(error[worst]), place, bool(beyond[worst]))


def heat_in_words(
    heat: Heat, sizes: dict[str, int], *, lr: float, mini_batches: bool
) -> str | None:
    """What is wrong, with what to do; None if nothing is."""
    temperature, virial = find(heat.temperature, sizes), find(heat.virial, sizes)
    if temperature is not None and temperature.off and temperature.value > 1:
        why = "the noise of mini-batches heats them" if mini_batches else "the steps are too large"
        larger = "a larger batch_size, or " if mini_batches else ""
        cool = float(f"{lr * LIMIT / 2 / (temperature.value - 1):.1g}")
        return (
            f"these chains are too hot: their temperature is {_number(temperature)}, where 1 is "
            f"right, and their variances are too large by about as much; {why}. Try {larger}"
            f"lr={cool:g} with more burn_in and thin"
        )
    if virial is not None and virial.off:
        return (
            f"these chains have not arrived at the posterior, or are not let go on for long enough:"
            f" their virial is {_number(virial)}, where 1 is right. Try a longer burn_in and more "
            "samples, or a start that is trained already"
        )
    return None


def _number(found: Finding) -> str:
    where = "" if found.place is None else f" in {found.place!r}"
    return f"{found.value:.3g} +- {found.error:.2g}{where}"
