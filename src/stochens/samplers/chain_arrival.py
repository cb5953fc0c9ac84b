"""Whether chains of several draws have arrived, by numbers that need no truth.

    energy variance  the mean squared error in the energy of a step, a dimension
    virial           the mean of (q - c) . dU/dq / D, which is 1 for draws and any fixed c
    stiff            the same along the stiffest direction, where steps that are too long show first
    drift            of predictions and of the log density, from the middle third to the last

Members are independent, so that a mean over each of them is one of M numbers for Student's test,
whatever the draws of a member have to do with each other.
"""

import math
from typing import NamedTuple

from torch import Tensor

from stochens.posterior.chains import Chains
from stochens.samplers.arrival import ALARM, LEAST_MEMBERS, student_tails

LEAST_DRAWS = 6  # of a member: three thirds of two
DRIFT_LIMIT = 0.1  # of a prediction's standard deviation: less does not matter
# A virial may be so far off, and so many of its standard errors.
VIRIAL = 0.05, 3.0  # variances 5 % off, which are standard deviations 2.5 % off, do not matter
STIFF = 0.1, 2.5  # of one direction, which is less well known: a standard deviation 5 % off
OVER = 3.0  # times the wanted energy variance


class Arrival(NamedTuple):
    """What the draws say of themselves. NaN where there is too little to say it from."""

    energy_variance: float  # of a step and a dimension
    wanted: float  # what it was tuned to; NaN: steps are accepted or not, and it does not matter
    failed: int  # steps that could not be taken
    virial: tuple[float, float]  # with its standard error
    stiff: tuple[float, float]  # likewise
    drift: float  # the largest of a prediction, in its standard deviations
    drift_chance: float  # of such a drift by chance, of any of them
    energy_drift: tuple[float, float]  # of the log density, in nats, with its standard error

    @property
    def too_long(self) -> bool:
        """Whether the steps were, by what they got wrong."""
        over = self.energy_variance > OVER * self.wanted
        return over or self.failed > 0 or _off(self.virial, *VIRIAL) or _off(self.stiff, *STIFF)

    def __str__(self) -> str:
        return (
            f"energy variance {self.energy_variance:.1e} a step and dimension, virial "
            f"{_in_words(self.virial)}, in the stiffest direction {_in_words(self.stiff)}, log "
            f"density drifts by {_in_words(self.energy_drift, '+.2g')} nats, predictions by up to "
            f"{self.drift:.2g} standard deviations"
        )


def _in_words(number: tuple[float, float], form: str = ".3g") -> str:
    """A value with its standard error, where that is known."""
    value, error = number
    return f"{value:{form}}" if math.isnan(error) else f"{value:{form}} +- {error:.2g}"


def measure_arrival(chains: Chains, outputs: Tensor) -> Arrival:
    """outputs [M, n, K]: what each draw of each member predicts."""
    stats = {name: t.double() for name, t in chains.stats.items()}
    log_density = -(stats["likelihood"] + stats["prior"]).unsqueeze(2)  # [M, n, 1]
    drift, chance = _largest_drift(outputs.double().cpu())
    return Arrival(
        energy_variance=float(stats["error"].mean()),
        wanted=math.nan if "accept" in stats else float(chains.settings["energy_variance"]),
        failed=int(stats["failed"].sum()),
        virial=_mean_and_error(stats["virial"].mean(1)),
        stiff=_mean_and_error(stats["stiff"].mean(1)) if "stiff" in stats else (math.nan, math.nan),
        drift=drift,
        drift_chance=chance,
        energy_drift=_mean_and_error(_between_thirds(log_density).squeeze(1)),
    )


def _mean_and_error(values: Tensor) -> tuple[float, float]:
    """Of M independent values [M]."""
    if len(values) < LEAST_MEMBERS:
        return float(values.mean()), math.nan
    return float(values.mean()), float(values.std()) / math.sqrt(len(values))


def _off(virial: tuple[float, float], limit: float, errors: float) -> bool:
    """Whether it is not 1, beyond chance. NaN: no."""
    value, error = virial
    return abs(value - 1) > max(limit, errors * error)


def _between_thirds(q: Tensor) -> Tensor:
    """The mean of the last third less that of the middle one: [M, n, K] -> [M, K]."""
    third = q.shape[1] // 3
    return q[:, -third:].mean(1) - q[:, -2 * third : -third].mean(1)


def _largest_drift(outputs: Tensor) -> tuple[float, float]:
    M, n, K = outputs.shape
    if n < LEAST_DRAWS or K == 0:
        return math.nan, math.nan
    moved = _between_thirds(outputs)  # [M, K]
    spread = outputs.flatten(0, 1).std(0)
    share = (moved.mean(0) / spread).nan_to_num(0.0, 0.0, 0.0).abs()  # of one that never changes
    if M < LEAST_MEMBERS:
        return float(share.max()), math.nan
    error = moved.std(0) / math.sqrt(M)
    t = (moved.mean(0) / error).nan_to_num(0.0, 0.0, 0.0).abs()
    return float(share.max()), min(1.0, K * student_tails(float(t.max()), M - 1))


def arrival_troubles(found: Arrival) -> list[str]:
    """What fails, in words and with what to do."""
    said = []
    nats, of_nats = found.energy_drift
    accepted = math.isnan(found.wanted)
    smaller = (
        "more draws_per_member" if accepted else "a smaller energy_variance, or target_accept=0.9"
    )
    if found.failed:
        said.append(
            f"{found.failed} steps failed and were not taken: the posterior is too curved there "
            f"for them, and those places are visited too rarely. Try {smaller}"
        )
    if found.energy_variance > OVER * found.wanted:
        said.append(
            f"the energy variance is {found.energy_variance:.2g} a step and dimension, where "
            f"{found.wanted:.2g} was asked for: the posterior is more curved in some places than "
            f"where the steps were tuned. Try {smaller}"
        )
    if abs(nats) > 3 * of_nats and abs(nats) > 1:
        way = "rising" if nats > 0 else "falling"
        said.append(
            f"the log density is still {way}, by {abs(nats):.2g} +- {of_nats:.2g} nats from the "
            "middle third of the draws to the last: members have not arrived. Try a longer warmup"
        )
    if found.drift > DRIFT_LIMIT and found.drift_chance < ALARM:
        said.append(
            f"predictions drift by up to {found.drift:.2g} of their standard deviation from the "
            "middle third of the draws to the last: members have not arrived. Try a longer warmup"
        )
    if _off(found.virial, *VIRIAL):
        width = "wide" if found.virial[0] > 1 else "narrow"
        said.append(
            f"the virial is {_in_words(found.virial)}, where 1 is right: the draws of a member "
            f"are too {width}. Try {smaller}"
        )
    if _off(found.stiff, *STIFF):
        width = "wide" if found.stiff[0] > 1 else "narrow"
        said.append(
            f"the virial of the stiffest direction is {_in_words(found.stiff)}, where 1 is "
            f"right: the draws are too {width} there"
            + ("" if accepted else ", because the steps are too long for it")
            + f". Try {smaller}"
        )
    return said
