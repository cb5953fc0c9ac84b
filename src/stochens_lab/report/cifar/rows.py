"""The rows of one or several CIFAR runs in one table, and how close each comes to the reference."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import isclose
from typing import Any

import numpy as np
import torch

from stochens.metrics import Interval, ece_interval
from stochens_lab.report.paper import CIFAR, CIFAR_ROWS, TEST
from stochens_lab.report.view import METRICS, Metric, RunView, unique

ALL_IMAGES = 50_000  # that CIFAR has to train on; a run that asks for no number has them all
# In the order in which they are tried. {s} is the plural's letter.
SETTINGS = {
    "members": "{:,} member{s}",
    "lr": "learning rate {:g}",
    "step_size": "step size {:g}",
    "epochs": "{:,} epoch{s}",
    "images": "{:,} image{s}",
    "draws": "{:,} inference{s} each",
    "batch_size": "batches of {:,}",
    "schedule": "{} schedule",
    "prior_precision": "prior precision {:g}",
    "test_images": "{:,} test image{s}",
    "seed": "seed {}",
}


def phrase_setting(key: str, value: Any) -> str:
    """
    >>> phrase_setting("images", 40960), phrase_setting("step_size", 1.8e-3)
    ('40,960 images', 'step size 0.0018')
    """
    return SETTINGS[key].format(value, s="" if value == 1 else "s")


def read_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's settings that make a difference to its row, as far as they are known."""
    found = {key: config[key] for key in SETTINGS if _known(key, config.get(key))}
    if "images" in config and config["images"] is None:
        found["images"] = ALL_IMAGES
    return found


def _known(key: str, value: Any) -> bool:
    """A run written by hand may have anything in its settings."""
    return isinstance(value, str if key == "schedule" else int | float)


def distinguish(found: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """What to add to the name that all of these have, no more than is needed.

    >>> found = [{"members": 50, "epochs": 60}, {"members": 10, "epochs": 60}]
    >>> distinguish([*found, {"members": 10, "epochs": 15}], ["a", "b", "c"])
    [', 50 members', ', 10 members, 60 epochs', ', 10 members, 15 epochs']
    """
    if len(found) < 2:
        return [""] * len(found)
    for key in SETTINGS:
        values = [one.get(key) for one in found]
        if None in values or len(set(values)) == 1:
            continue
        ends = [""] * len(found)
        for value in set(values):
            at = [i for i in range(len(found)) if values[i] == value]
            rest = distinguish([found[i] for i in at], [folders[i] for i in at])
            for i, more in zip(at, rest, strict=True):
                ends[i] = f", {phrase_setting(key, value)}{more}"
        return ends
    return [f" ({folder})" for folder in folders]


NAMES = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "svhn": "SVHN"}
ORDER = (*CIFAR_ROWS, "MultiSWAG", "SE2", "SE3")  # other rows come after these
OOD = "OOD AUROC"
TEST_METRICS = ("accuracy", "NLL", "ECE", "agreement", "variance")
# With the paper's digits, so that its rows and ours can be read together.
SHOWN_AS = METRICS | {
    "accuracy": Metric("accuracy", "%", 100, 2, 1),
    "NLL": Metric("NLL", "nats", 1, 3, -1),
    "ECE": Metric("ECE", "", 1, 3, -1),
    "agreement": Metric("agreement", "%", 100, 2, 1),
    "entropy histogram": Metric("entropy histogram", "nats", 1, 4, -1),
}
TARGETS = {"agreement": 1.0, "variance": 0.0, "entropy error": 0.0, "MI error": 0.0}
SAME = 2e-5  # two runs' values of one reference may differ by rounding, not by one image of 10,000


def is_cifar(view: RunView) -> bool:
    return view.experiment == CIFAR


def describe_metric(name: str) -> Metric:
    return SHOWN_AS.get(name) or Metric(name)


def name_set(name: str) -> str:
    return NAMES.get(name, name)


MORE = re.compile(r", (\d+) inferences$")  # of the same members, measured beside their row
POOLED = " + "


def family(method: str) -> str:
    """What the paper calls it: without the drop rate. Members of several kinds are their own.

    >>> family("SE1 0.1"), family("SE1 0.2 + SE1 0.1 natural, 16 inferences")
    ('SE1', 'SE1 0.2 + SE1 0.1 natural')
    """
    method = MORE.sub("", method)
    return method if POOLED in method else method.split(" ")[0] or method


def parse_corruption(domain: str) -> tuple[str, int] | None:
    """
    >>> parse_corruption("gaussian_blur-3"), parse_corruption("cifar100")
    (('gaussian_blur', 3), None)
    """
    found = re.fullmatch(r"(.+)-(\d+)", domain)
    return (found[1], int(found[2])) if found else None


@dataclass(frozen=True)
class Row:
    """A method of a run; or the reference, of all the runs that share it."""

    name: str  # as it is shown, unlike that of any other row
    method: str
    set_name: str
    views: tuple[RunView, ...]

    def interval(self, domain: str, metric: str) -> Interval | None:
        found = (view.interval(self.set_name, self.method, domain, metric) for view in self.views)
        stored = next((interval for interval in found if interval is not None), None)
        if stored is None or metric != "ECE" or domain != TEST or self._ece is None:
            return stored
        return Interval(stored.value, self._ece.low, self._ece.high)

    @cached_property
    def _ece(self) -> Interval | None:
        """Measured again: older versions stored a bootstrap interval, which is none for ECE."""
        mean, labels = self.array(TEST, "mean"), self.labels(TEST)
        if mean is None or labels is None:
            return None
        return ece_interval(torch.from_numpy(mean), torch.from_numpy(labels))

    def array(self, place: str, kind: str) -> np.ndarray | None:
        found = (view.predictions.get((self.set_name, self.method, place)) for view in self.views)
        return next((kinds[kind] for kinds in found if kinds and kind in kinds), None)

    def labels(self, place: str) -> np.ndarray | None:
        found = (view.points(self.set_name, f"labels-{place}") for view in self.views)
        return next((labels for labels in found if labels is not None), None)

    @property
    def training(self) -> dict[str, Any]:
        return self.views[0].training_of(self.set_name, self.base)

    @property
    def domains(self) -> list[str]:
        rows = [view.run.metrics.get(self.set_name, {}) for view in self.views]
        return unique(domain for row in rows for domain in row.get(self.method) or {})

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Its settings; members are those that there are, not those that were asked for."""
        found = read_settings(self.views[0].config)
        counted = (self.training.get("members curve") or {}).get("members")
        if counted:
            found["members"] = counted[-1]
        if more := MORE.search(self.method):
            found["draws"] = int(more[1])
        return found

    @property
    def base(self) -> str:
        """The method whose members these are, of a row with more inferences of them."""
        return MORE.sub("", self.method)

    @property
    def recipe(self) -> str:
        """How it was made, in a few words."""
        keys = ["members", "epochs", "images"]
        if self.settings.get("draws", 1) != 1:
            keys.append("draws")
        said = [phrase_setting(key, self.settings[key]) for key in keys if key in self.settings]
        return ", ".join(said if self.views[0].complete else [*said, "not complete"])


@dataclass(frozen=True)
class Rows:
    """`references` are the reference and what it reaches against itself; `methods` compete."""

    set_name: str
    references: tuple[Row, ...]
    methods: tuple[Row, ...]
    several: bool  # whether they come from more than one run

    @property
    def all(self) -> tuple[Row, ...]:
        return (*self.references, *self.methods)

    @property
    def distinct(self) -> list[Row]:
        """Those that compete, without further inferences of the same members."""
        return [row for row in self.methods if row.base == row.method]

    def reference_of(self, row: Row) -> Row | None:
        """That of the same run, or else the first."""
        known = [one for one in self.references if one.method == one.views[0].reference]
        own = [one for one in known if row.views[0] in one.views]
        return next(iter([*own, *known]), None)

    @cached_property
    def ood(self) -> list[str]:
        return unique(
            d for row in self.all for d in row.domains if row.interval(d, OOD) is not None
        )

    @property
    def columns(self) -> list[tuple[str, str]]:
        """Of Table 2: (domain, metric), those that any row has a value of."""
        wanted = [*((TEST, name) for name in TEST_METRICS), *((domain, OOD) for domain in self.ood)]
        return self.having(wanted)

    def having(self, columns: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
        return [c for c in columns if any(row.interval(*c) is not None for row in self.all)]

    def by_definition(self, row: Row, domain: str, metric: str) -> float | None:
        """What the reference has against itself, and no run needs to measure."""
        own = row is self.reference_of(row) and domain == TEST
        return TARGETS.get(metric) if own and row.interval(domain, metric) is None else None

    def target(self, row: Row, domain: str, metric: str) -> float | None:
        """What the value would be if the predictions were the reference's."""
        if metric in TARGETS:
            return TARGETS[metric]
        reference = self.reference_of(row)
        found = reference.interval(domain, metric) if reference else None
        return found.value if found else None

    def gaps(self, domain: str, metric: str) -> dict[str, tuple[float, float]]:
        """Row -> distance to the target, of its value and the least within its interval."""
        found = {}
        for row in self.methods:
            interval, target = row.interval(domain, metric), self.target(row, domain, metric)
            if interval is None or target is None:
                continue
            # The bootstrap interval of ECE that older versions stored may leave out its value.
            low, high = min(interval.low, interval.value), max(interval.high, interval.value)
            nearest = min(max(target, low), high)
            found[row.name] = abs(interval.value - target), abs(nearest - target)
        return found

    def marks(self, domain: str, metric: str) -> dict[str, str]:
        """Row -> "best", the closest to the reference, or "near", if its interval is as close."""
        gaps = self.gaps(domain, metric)
        if len(gaps) < 2:
            return {}
        best = min(gaps, key=lambda name: gaps[name][0])
        near = {name: "near" for name, (_, least) in gaps.items() if least <= gaps[best][0]}
        return near | {best: "best"}


def gather(views: Sequence[RunView]) -> list[Rows]:
    """One for each set; runs are told apart by their names, references only if they differ."""
    names = _run_names(views)
    found = []
    for set_name in unique(name for view in views for name in view.sets):
        rows = [
            Row(method, method, set_name, (view,))
            for view in views
            for method in _methods(view, set_name)
        ]
        references = [row for row in rows if _is_reference(row)]
        methods = sorted((row for row in rows if not _is_reference(row)), key=_sort_key)
        found.append(
            Rows(
                set_name,
                tuple(_distinguish_references(_merge_references(references), names)),
                tuple(_distinguish_methods(methods, names)),
                len(views) > 1,
            )
        )
    return found


def _methods(view: RunView, set_name: str) -> list[str]:
    """Measured or only predicted: a stopped run may have either."""
    predicted = [method for s, method, _ in view.predictions if s == set_name]
    return unique([*view.run.metrics.get(set_name, {}), *predicted])


def _is_reference(row: Row) -> bool:
    reference = row.views[0].reference
    return reference is not None and (
        row.method == reference or row.method.startswith(f"{reference}, ")
    )


def _sort_key(row: Row) -> tuple[int | str | float, ...]:
    """The paper's order; among those of one name by drop rate, then the largest first."""
    name = family(row.method)
    at = ORDER.index(name) if name in ORDER else len(ORDER)
    found = re.match(r" (\d*\.?\d+)", row.base.removeprefix(name))
    rate = float(found[1]) if found else 0.0
    size = (-float(row.settings.get(key, 0)) for key in ("members", "epochs"))
    return at, name, rate, row.base, *size, float(row.settings.get("draws", 0))


def _merge_references(rows: Sequence[Row]) -> list[Row]:
    """Those of one name that differ in no value that they share become one."""
    kept: list[Row] = []
    for row in rows:
        for i, other in enumerate(kept):
            if other.method == row.method and not _differ(other, row):
                kept[i] = replace(other, views=other.views + row.views)
                break
        else:
            kept.append(row)
    return kept


def _differ(one: Row, other: Row) -> bool:
    cells = [(domain, metric) for domain in other.domains for metric in SHOWN_AS]
    pairs = [(one.interval(*cell), other.interval(*cell)) for cell in cells]
    return any(
        a and b and not isclose(a.value, b.value, rel_tol=SAME, abs_tol=SAME) for a, b in pairs
    )


def _distinguish_references(rows: Sequence[Row], names: dict[str, str]) -> list[Row]:
    times = Counter(row.method for row in rows)
    return [
        replace(row, name=f"{row.method} ({names[row.views[0].key]})")
        if times[row.method] > 1
        else row
        for row in rows
    ]


def _distinguish_methods(rows: Sequence[Row], names: dict[str, str]) -> list[Row]:
    """Rows of one method have in their names what they were made with; and those of more
    inferences, behind the name of the row with those members, how many."""
    own = [row for row in rows if row.base == row.method]
    ends: dict[tuple[str, str], str] = {}  # by method and run
    for method in {row.method for row in own}:
        same = [row for row in own if row.method == method]
        folders = [names[row.views[0].key] for row in same]
        found = distinguish([row.settings for row in same], folders)
        ends |= {(method, row.views[0].key): end for row, end in zip(same, found, strict=True)}
    return [
        replace(row, name=row.base + ends.get((row.base, row.views[0].key), "") + _more(row))
        for row in rows
    ]


def _more(row: Row) -> str:
    known = row.base != row.method
    return f", {phrase_setting('draws', row.settings['draws'])}" if known else ""


def _run_names(views: Sequence[RunView]) -> dict[str, str]:
    """RunView's key -> the run's name, longer where two folders have the same."""
    short = Counter(view.run.name for view in views)
    names: dict[str, str] = {}
    for view in views:
        name = view.run.name
        if short[name] > 1:
            name = f"{view.run.path.resolve().parent.name}/{name}"
        while name in names.values():
            name += "'"
        names[view.key] = name
    return names
