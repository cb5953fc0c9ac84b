"""The temperature that a posterior predicts at, as it is kept."""

from typing import Any, NamedTuple


class Calibration(NamedTuple):
    """What `stochens.calibration.fit_temperature` found on held-out examples.

    NLLs are of the ensemble's mean prediction, in nats for each of those examples.

    >>> print(Calibration(1.5, 200, 0.42, 0.38))
    temperature 1.5 (200 held-out examples: NLL 0.42 -> 0.38)
    """

    temperature: float
    examples: int
    nll_before: float  # at temperature 1
    nll: float

    def __str__(self) -> str:
        return (
            f"temperature {self.temperature:.4g} ({self.examples} held-out examples: NLL "
            f"{self.nll_before:.4g} -> {self.nll:.4g})"
        )

    @classmethod
    def read(cls, about: dict[str, Any] | None) -> "Calibration | None":
        """From what `_asdict` gave."""
        if about is None:
            return None
        temperature, examples = float(about["temperature"]), int(about["examples"])
        if not 0 < temperature < float("inf"):
            raise ValueError(f"the temperature is {temperature}")
        return cls(temperature, examples, float(about["nll_before"]), float(about["nll"]))


def temperature_of(calibration: Calibration | None) -> float:
    """
    >>> temperature_of(None)
    1.0
    """
    return 1.0 if calibration is None else calibration.temperature
