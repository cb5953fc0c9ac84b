"""A run's results as Markdown tables, to read in a repository and to paste."""

from collections.abc import Iterator, Sequence

from stochens.report.tables import Head, Row, Table
from stochens_lab.report.cifar.markdown import format_cifar
from stochens_lab.report.cifar.rows import gather, is_cifar
from stochens_lab.report.run_folder import SavedRun
from stochens_lab.report.tables import format_markdown
from stochens_lab.report.tabular import format_tabular
from stochens_lab.report.view import RunView, describe_metric, name_domain


def format_run(run: SavedRun) -> str:
    """Every set, method, metric and domain, with intervals, under the command that made them."""
    return "\n".join(_format_view(RunView(run, ""))) + "\n"


def format_runs(runs: Sequence[SavedRun]) -> str:
    """The rows of all CIFAR runs in the paper's tables, then each other run on its own."""
    if len(runs) == 1:
        return format_run(runs[0])
    views = [RunView(run, f"run{i}") for i, run in enumerate(runs)]
    images = [view for view in views if is_cifar(view)]
    others = [list(_format_view(view)) for view in views if not is_cifar(view)]
    if images:
        sets = gather(images)
        rows = {v.key: row.name for found in sets for row in found.methods for v in row.views}
        origins = [
            f"- {v.run.name}: {_tell_origin(v)} Row: {rows.get(v.key, 'none')}." for v in images
        ]
        others.insert(0, [*origins, *format_cifar(sets)])
    return "\n\n".join("\n".join(part) for part in others) + "\n"


def _tell_origin(view: RunView) -> str:
    """The command, where and how long, on one line."""
    command, _, where = list(_tell_command(view))
    return f"{command}, {where}"


def _format_view(view: RunView) -> Iterator[str]:
    yield from _tell_command(view)
    if is_cifar(view):
        yield from format_cifar(gather([view]))
        return
    if view.experiment == "tabular":
        yield from format_tabular(view.run)
        return
    yield from _format_sets(view)


def _tell_command(view: RunView) -> Iterator[str]:
    about, machine = view.about, view.about["machine"]
    state = "" if view.complete else " The run was stopped before its end."
    where = machine["gpu"] or f"{machine['cores']} cores"
    yield f"`{about['command']}`"
    yield ""
    yield f"{where}, seed {view.config.get('seed')}, {about['seconds']:.0f} s.{state}"


def _format_sets(view: RunView) -> Iterator[str]:
    for set_name, rows in view.run.metrics.items():
        columns = [
            (describe_metric(name), name, domain)
            for name, domains in view.columns(set_name).items()
            for domain in domains
        ]
        heads = [Head(metric.label, metric.unit, name_domain(d)) for metric, _, d in columns]
        lines = [
            Row(method, [m.cell(view.interval(set_name, method, d, n)) for m, n, d in columns])
            for method in rows
        ]
        yield from ("", f"## {set_name}", "")
        yield from format_markdown(Table("", [Head(""), *heads], lines))
