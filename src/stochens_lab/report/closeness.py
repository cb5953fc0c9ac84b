"""How close a prediction is to a reference, under the names of the paper's tables."""

from stochens import comparison
from stochens.metrics import Interval
from stochens.posterior.predictive import Predictive

PAPER = {"total variation": "variance"}  # the paper's word for it


def closeness(
    p: Predictive, reference: Predictive, *, resamples: int | None
) -> dict[str, Interval]:
    return _by_paper(comparison.closeness(p, reference, resamples=resamples))


def own_noise(p: Predictive, *, resamples: int | None) -> dict[str, Interval]:
    return _by_paper(comparison.own_noise(p, resamples=resamples))


def _by_paper(found: dict[str, Interval]) -> dict[str, Interval]:
    return {PAPER.get(name, name): interval for name, interval in found.items()}
