"""What reports need to know of a run, read from its files and not from names known beforehand."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stochens.comparison import OWN_NOISE
from stochens.metrics import Interval
from stochens.report.tables import Cell
from stochens.report.text import MINUS
from stochens_lab.report.run_folder import SavedRun

HALVES = ", chain to chain"  # half of the chains against the other half: of older runs
CONTROL_SUFFIX = ", early"
REFERENCES = ("HMC", "NUTS")  # their rows, where nothing else tells what the others are held to
POINTS = "points"
DOMAIN_NAMES = {"in": "in domain", "out": "out of domain"}
START_NAMES = {
    "reset": "default start",
    "default": "default start",
    "prior": "start from the prior",
    "trained": "start at trained members",
}


@dataclass(frozen=True)
class Metric:
    """How a metric is shown; `better` is 1 if more is better, -1 if less is, 0 for neither."""

    label: str
    unit: str = ""
    scale: float = 1.0
    digits: int = 3
    better: int = 0

    def text(self, value: float) -> str:
        return f"{value * self.scale:.{self.digits}f}".replace("-", MINUS)

    def range(self, interval: Interval) -> str:
        """Of an interval; nothing where it has no width, as that of a time has not.

        >>> METRICS["NLL"].range(Interval(1.0, 0.5, 2.0)), METRICS["NLL"].range(Interval(1, 1, 1))
        ('0.500 to 2.000', '')
        """
        low, high = interval.low, interval.high
        return "" if low == high else f"{self.text(low)} to {self.text(high)}"

    def cell(self, interval: Interval | None, **more: Any) -> Cell:
        """Of a table; a dash where nothing was measured."""
        if interval is None:
            return Cell()
        return Cell(self.text(interval.value), interval.value, self.range(interval), **more)


METRICS = {
    "agreement": Metric("agreement", "%", 100, 1, 1),
    "variance": Metric("variance", "10⁻²", 100, 2, -1),
    "entropy error": Metric("entropy error", "nats", 1, 3, -1),
    "MI error": Metric("MI error", "nats", 1, 3, -1),
    "accuracy": Metric("accuracy", "%", 100, 1, 1),
    "NLL": Metric("NLL", "nats", 1, 3, -1),
    "Brier": Metric("Brier score", "", 1, 3, -1),
    "ECE": Metric("ECE", "%", 100, 2, -1),
    "AURC": Metric("AURC", "%", 100, 2, -1),
    "OOD AUROC": Metric("OOD AUROC", "%", 100, 1, 1),
    "OOD AUROC (MI)": Metric("OOD AUROC (MI)", "%", 100, 1, 1),
    "RMSE": Metric("RMSE", "", 1, 3, -1),
    "entropy": Metric("entropy", "nats"),
    "MI": Metric("MI", "nats"),
    "training": Metric("training", "s", 1, 1, -1),
    "prediction": Metric("prediction", "s", 1, 1, -1),
    "GPU memory": Metric("GPU memory", "GB", 1, 2, -1),
    "stored": Metric("stored", "MB", 1, 1, -1),
}
COST = "cost"  # the domain of what a row took
HEADLINE = ("variance", "NLL", "accuracy", "RMSE")  # the first that is there tells who is closest


def describe_metric(name: str) -> Metric:
    return METRICS.get(name) or Metric(name)


def name_domain(domain: str) -> str:
    return DOMAIN_NAMES.get(domain, domain)


def phrase_domain(domain: str) -> str:
    """A domain inside a sentence."""
    return DOMAIN_NAMES.get(domain, f"on {domain}")


def unique(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


class RunView:
    """A run, and the `key` that its elements' ids begin with."""

    def __init__(self, run: SavedRun, key: str) -> None:
        self.run, self.key = run, key
        self.about: dict[str, Any] = run.about
        self.config: dict[str, Any] = run.about.get("config") or {}
        self.experiment = str(run.about.get("experiment", "unnamed"))
        self.complete = bool(run.about.get("complete"))

    def id(self, *words: object) -> str:
        return "-".join([self.key, *map(str, words)])

    @cached_property
    def sets(self) -> list[str]:
        known = [*self.run.metrics, *self.run.training, *self.run.sampler]
        return unique([*known, *(name for name, _, _ in self.predictions)])

    @cached_property
    def predictions(self) -> dict[tuple[str, str, str], dict[str, np.ndarray]]:
        """(set, method, place) -> mean, entropy, mi."""
        found: dict[tuple[str, str, str], dict[str, np.ndarray]] = {}
        for key, array in self.run.arrays.items():
            parts = self._parts(key)
            if parts is not None and parts[1] != POINTS:
                found.setdefault(parts[:3], {})[parts[3]] = array
        return found

    def _parts(self, key: str) -> tuple[str, str, str, str] | None:
        """A set or a method may have "/" in its name: known sets are tried first."""
        rest, _, kind = key.rpartition("/")
        names, _, place = rest.rpartition("/")
        tables = (self.run.metrics, self.run.training, self.run.sampler)
        for set_name in (name for table in tables for name in table):
            if names.startswith(f"{set_name}/"):
                return set_name, names[len(set_name) + 1 :], place, kind
        set_name, _, method = names.partition("/")
        return (set_name, method, place, kind) if method else None

    def points(self, set_name: str, what: str) -> np.ndarray | None:
        return self.run.arrays.get(f"{set_name}/{POINTS}/{what}")

    def noise(self, set_name: str) -> str | None:
        """The row with the noise of the reference itself."""
        rows = self.run.metrics.get(set_name, {})
        return next((name for name in rows if name.endswith((OWN_NOISE, HALVES))), None)

    @cached_property
    def reference(self) -> str | None:
        """The one whose noise is told, or else the only one that was never trained or measured, or
        else the one that has the name of a sampler."""
        for set_name in self.sets:
            noise = self.noise(set_name)
            if noise is not None:
                return noise.removesuffix(OWN_NOISE).removesuffix(HALVES)
        tables = (self.run.training, self.run.metrics)
        predicted = {method for _, method, _ in self.predictions}
        known = {name for table in tables for rows in table.values() for name in rows}
        others = predicted - known
        if len(others) == 1:
            return others.pop()
        return next((name for name in REFERENCES if name in predicted | known), None)

    def references(self, set_name: str) -> list[str]:
        """The rows that do not compete: the reference, its noise, and some of its draws."""
        own = f"{self.reference}, "
        rows = self.run.metrics.get(set_name, {})
        return [name for name in rows if name == self.reference or name.startswith(own)]

    def methods(self, set_name: str) -> list[str]:
        """The rows that compete."""
        references = self.references(set_name)
        return [n for n in self.run.metrics.get(set_name, {}) if n not in references]

    def columns(self, set_name: str) -> dict[str, list[str]]:
        """Metric -> its domains, each in the order of the file."""
        found: dict[str, list[str]] = {}
        for row in self.run.metrics.get(set_name, {}).values():
            for domain, values in row.items():
                for name in values:
                    if domain not in found.setdefault(name, []):
                        found[name].append(domain)
        return found

    def interval(self, set_name: str, method: str, domain: str, name: str) -> Interval | None:
        row = self.run.metrics.get(set_name, {}).get(method, {})
        found = row.get(domain, {}).get(name)
        if not found or found.get("value") is None:
            return None
        value = float(found["value"])
        low, high = found.get("low", value), found.get("high", value)
        return Interval(value, low, math.inf if high is None else high)  # null: it has no end

    def best(self, set_name: str, domain: str, name: str) -> str | None:
        """The method with the best value, if one can be best at all."""
        better = describe_metric(name).better
        found = {
            method: interval.value * better
            for method in self.methods(set_name)
            if (interval := self.interval(set_name, method, domain, name)) is not None
        }
        return max(found, key=lambda method: found[method]) if better and len(found) > 1 else None

    def training_of(self, set_name: str, method: str) -> dict[str, Any]:
        found: dict[str, Any] = self.run.training.get(set_name, {}).get(method, {})
        return found

    def schedule(self, set_name: str, method: str) -> str:
        """How a method was trained, in a few words."""
        about = self.training_of(set_name, method)
        words = [f"{about['steps']:,} steps"] if isinstance(about.get("steps"), int) else []
        if "start" in about:
            words.append(START_NAMES.get(about["start"], f"start: {about['start']}"))
        if method.endswith(CONTROL_SUFFIX):
            words.append("control, stopped early")
        return ", ".join(words)
