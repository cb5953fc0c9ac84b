"""The tables of `stochens tabular`: means and standard errors over splits, beside what others have
published."""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.tables import join_cells

OUTSIDERS = ("bde", "lightgbm")  # rows by other packages


class Published(NamedTuple):
    """The best of others for a set; which of the measures, and by whom."""

    value: float
    runs: int  # splits that a whole row has; seeds, of a set with one split


# the best mean NLL of MC dropout, deep ensembles, evidential regression, NGBoost, concrete dropout
UCI = {
    "boston": Published(2.35, 20),
    "concrete": Published(2.83, 20),
    "energy": Published(0.53, 20),
    "kin8nm": Published(-1.24, 20),
    "naval": Published(-5.87, 20),
    "power": Published(2.60, 20),
    "protein": Published(2.63, 5),
    "wine": Published(0.89, 20),
    "yacht": Published(0.16, 20),
}
TABM = {"california": Published(0.4414, 5), "house": Published(30018.0, 5)}  # without embeddings
# RMSE of bde and of XGBoost, NLL of TabPFN v2 and of bde (Arvanitis et al. 2026)
BDE_RMSE = {"airfoil": Published(0.1215, 5), "bike": Published(0.2143, 5)}
BDE_NLL = {"airfoil": Published(-0.934, 5), "bike": Published(-0.7315, 5)}


class Panel(NamedTuple):
    """One table: a measure on some sets."""

    title: str
    measure: str
    published: Mapping[str, Published | None]


def _only(sets: Mapping[str, Published]) -> dict[str, None]:
    return dict.fromkeys(sets)


PANELS = (
    Panel("UCI: NLL of the predictive density, a mixture of all draws", "mixture NLL", UCI),
    Panel("UCI: NLL of one Gaussian with the mean and variance of all draws", "NLL", UCI),
    Panel("UCI: RMSE", "RMSE", _only(UCI)),
    Panel("bde's sets: NLL of one Gaussian, standardised", "NLL", BDE_NLL),
    Panel("bde's sets: RMSE, standardised", "RMSE", BDE_RMSE),
    Panel("TabM's sets: RMSE", "RMSE", TABM),
    Panel("TabM's sets: NLL of the predictive density", "mixture NLL", _only(TABM)),
    Panel("Seconds", "seconds", _only({**BDE_RMSE, **UCI, **TABM})),
)
HOW = (
    "Mean ± standard error over splits (number of splits; of seeds, for sets with one split). A "
    "cell with fewer splits than its set has is not finished, and no claim; an empty one was not "
    "run. Bold: at or below the best published, with all splits."
)


def format_tabular(run: SavedRun) -> Iterator[str]:
    """Every panel that has something to show, as Markdown."""
    found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = run.about.get("found") or {}
    yield from ("", HOW)
    for panel in PANELS:
        yield from _format_panel(panel, found)


def _format_panel(
    panel: Panel, found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
) -> Iterator[str]:
    names = [name for name in panel.published if name in found]
    rows = list(dict.fromkeys(row for name in names for row in found[name]))
    if not names:
        return
    best = any(panel.published[name] for name in names)
    heads = ["set", *(["best published"] if best else []), *rows]
    yield from ("", f"## {panel.title}", "", join_cells(heads), join_cells(["---"] * len(heads)))
    for name in names:
        known = panel.published[name]
        cells = [name, *([f"{known.value:g}"] if known else [])]
        for row in rows:
            runs = found[name].get(row, [])
            values = [one[panel.measure] for one in runs if panel.measure in one]
            cells.append(_format_cell(values, known))
        yield join_cells(cells)
    if best:
        yield from ("", _tell_reached(panel, found, names))


def _tell_reached(
    panel: Panel, found: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]], names: list[str]
) -> str:
    """Which sets a row of ours brings to what was published, and on how many of their splits."""
    reached = []
    for name in names:
        known = panel.published[name]
        rows = []
        for row, runs in found[name].items():
            values = [one[panel.measure] for one in runs if panel.measure in one]
            if row in OUTSIDERS or not known or not values:
                continue
            if None not in values and statistics.fmean(values) <= known.value:
                rows.append(f"{row} ({len(values)} of {known.runs})")
        reached += [f"{name} by {', '.join(rows)}"] if rows else []
    which = f": {'; '.join(reached)}" if reached else ""
    return (
        "Our rows at or below the best published, on the splits that were run: "
        f"{len(reached)} of {len(panel.published)} sets{which}."
    )


def _format_cell(values: Sequence[float | None], known: Published | None) -> str:
    """
    >>> _format_cell([1.0, 2.0], Published(1.6, 2)), _format_cell([1.0], Published(1.6, 20))
    ('**1.50 ± 0.50** (2 of 2)', '1.00 (1 of 20)')
    >>> _format_cell([None], None)
    'inf (1)'
    """
    if not values:
        return ""
    runs = f"({len(values)} of {known.runs})" if known else f"({len(values)})"
    whole = [v for v in values if v is not None and math.isfinite(v)]
    if len(whole) < len(values):
        return f"inf {runs}"
    mean, text = statistics.fmean(whole), _format_number(statistics.fmean(whole))
    if len(whole) > 1:
        error = statistics.stdev(whole) / math.sqrt(len(whole))
        text += f" ± {_format_number(error, like=mean)}"
    reached = known and mean <= known.value and len(whole) >= known.runs
    return f"**{text}** {runs}" if reached else f"{text} {runs}"


def _format_number(value: float, like: float | None = None) -> str:
    """With as many decimals as numbers of its size, or of the size of `like`, have in papers.

    >>> _format_number(0.12346), _format_number(-5.8765), _format_number(30018.4)
    ('0.1235', '-5.88', '30018')
    """
    size = abs(value if like is None else like)
    digits = 4 if size < 0.5 else 3 if size < 1 else 2 if size < 1000 else 0
    return f"{value:.{digits}f}"
