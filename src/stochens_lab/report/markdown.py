"""A run's results as Markdown tables, to read in a repository and to paste."""

from collections.abc import Iterator, Sequence

from stochens.metrics import Interval
from stochens_lab.report.cifar.markdown import cifar_lines
from stochens_lab.report.cifar.rows import gather, is_cifar
from stochens_lab.report.page.run import View, domain_name, metric
from stochens_lab.report.run_folder import Run


def tables(run: Run) -> str:
    """Every set, method, metric and domain, with intervals, under the command that made them."""
    return "\n".join(_lines(View(run, ""))) + "\n"


def merged(runs: Sequence[Run]) -> str:
    """The rows of all CIFAR runs in the paper's tables, then each other run on its own."""
    if len(runs) == 1:
        return tables(runs[0])
    views = [View(run, f"run{i}") for i, run in enumerate(runs)]
    images = [view for view in views if is_cifar(view)]
    others = [list(_lines(view)) for view in views if not is_cifar(view)]
    if images:
        sets = gather(images)
        rows = {v.key: row.name for found in sets for row in found.methods for v in row.views}
        made = [f"- {v.run.name}: {_made(v)} Row: {rows.get(v.key, 'none')}." for v in images]
        others.insert(0, [*made, *cifar_lines(sets)])
    return "\n\n".join("\n".join(part) for part in others) + "\n"


def _made(view: View) -> str:
    """The command, where and how long, on one line."""
    command, _, where = list(_about(view))
    return f"{command}, {where}"


def _lines(view: View) -> Iterator[str]:
    yield from _about(view)
    if is_cifar(view):
        yield from cifar_lines(gather([view]))
        return
    yield from _sets(view)


def _about(view: View) -> Iterator[str]:
    about, machine = view.about, view.about["machine"]
    state = "" if view.complete else " The run was stopped before its end."
    where = machine["gpu"] or f"{machine['cores']} cores"
    yield f"`{about['command']}`"
    yield ""
    yield f"{where}, seed {view.config.get('seed')}, {about['seconds']:.0f} s.{state}"


def _sets(view: View) -> Iterator[str]:
    for set_name, rows in view.run.metrics.items():
        columns = [(name, d) for name, domains in view.columns(set_name).items() for d in domains]
        heads = [f"{_label(name)}, {domain_name(d)}" for name, d in columns]
        yield from ("", f"## {set_name}", "", f"| | {' | '.join(heads)} |")
        yield "| --- |" + " --- |" * len(columns)
        for method in rows:
            cells = [_cell(view.interval(set_name, method, d, name), name) for name, d in columns]
            yield f"| {method} | {' | '.join(cells)} |"


def _label(name: str) -> str:
    shown = metric(name)
    return f"{shown.label} ({shown.unit})" if shown.unit else shown.label


def _cell(interval: Interval | None, name: str) -> str:
    if interval is None:
        return ""
    value, low, high = map(metric(name).text, interval)
    return f"{value} ({low} to {high})"
