"""The numbers of several CIFAR runs in one file, row by row.

    row -> run          members, epochs, images, draws, seconds, command, seed, device
           accuracy, nll, ece, agreement, variance    {value, low, high}
           auroc        other set -> {value, low, high}
           corrupted    the same measures, the mean over the corrupted sets

What is not known is left out; of the reference's run, which is not ours, nothing is known.
"""

from collections.abc import Sequence
from typing import Any

from stochens_lab.report.cifar.rows import OOD, TEST_METRICS, Row, gather, is_cifar, name_set
from stochens_lab.report.paper import CORRUPTED, TEST
from stochens_lab.report.run_folder import Run
from stochens_lab.report.view import View

RUN_KEYS = ("members", "epochs", "images", "draws", "seconds", "command", "seed", "device")


def cifar_metrics(runs: Sequence[Run]) -> dict[str, Any]:
    """Rows by the names that they have in the tables; where there are several sets, with theirs."""
    views = [view for i, run in enumerate(runs) if is_cifar(view := View(run, f"run{i}"))]
    sets = gather(views)
    return {
        f"{row.name}, {name_set(rows.set_name)}" if len(sets) > 1 else row.name: _row(
            row, rows.ood, reference=row in rows.references
        )
        for rows in sets
        for row in rows.all
    }


def _row(row: Row, others: Sequence[str], *, reference: bool) -> dict[str, Any]:
    found: dict[str, Any] = {"run": dict.fromkeys(RUN_KEYS) if reference else _run(row)}
    # Against itself the reference has agreement 1 and variance 0, which is no measurement.
    names = [n for n in TEST_METRICS if not (reference and n in ("agreement", "variance"))]
    found |= _measures(row, TEST, names)
    auroc = {name: _interval(row, name, OOD) for name in others}
    if any(auroc.values()):
        found["auroc"] = {name: interval for name, interval in auroc.items() if interval}
    corrupted = _measures(row, CORRUPTED, names)
    return found | ({"corrupted": corrupted} if corrupted else {})


def _measures(row: Row, domain: str, names: Sequence[str]) -> dict[str, Any]:
    found = {name.lower(): _interval(row, domain, name) for name in names}
    return {name: interval for name, interval in found.items() if interval}


def _interval(row: Row, domain: str, metric: str) -> dict[str, float] | None:
    interval = row.interval(domain, metric)
    return None if interval is None else interval._asdict()


def _run(row: Row) -> dict[str, Any]:
    about = row.views[0].about
    machine = about.get("machine") or {}
    cores = f"{machine['cores']} cores" if machine.get("cores") else None
    return {
        **{key: row.settings.get(key) for key in ("members", "epochs", "images", "draws")},
        "seconds": about.get("seconds"),
        "command": about.get("command"),
        "seed": row.settings.get("seed"),
        "device": machine.get("gpu") or cores,
    }
