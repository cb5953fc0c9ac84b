"""What was run, how it was trained, what the sampler says of itself, how long it took, and how to
read the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from stochens.report.parts import Definitions, Heading, Note
from stochens.report.pictures import show_figure
from stochens.report.tables import Cell, Head, Row, Table
from stochens.report.text import DASH, format_duration, format_number
from stochens_lab.report.figures.courses import draw_calibration, draw_losses, draw_steps
from stochens_lab.report.page.parts import Part, Troubles
from stochens_lab.report.view import RunView, unique

DIAGNOSTICS = {
    "e_bfmi": "E-BFMI, lowest",
    "accept": "acceptance, mean",
    "leapfrogs": "leapfrogs a draw",
    "draws": "draws a chain",
    "predictions rhat": "R-hat of predictions, worst",
    "predictions ess_bulk": "bulk ESS of predictions, lowest",
    "predictions ess_tail": "tail ESS of predictions, lowest",
    "parameters rhat": "R-hat of parameters, worst",
    "parameters ess_bulk": "bulk ESS of parameters, lowest",
    "parameters ess_tail": "tail ESS of parameters, lowest",
}
TROUBLES = "troubles"

KL_LOSS = (
    "KL loss",
    "the paper uses its level and its fluctuation to foresee which method suits a task: lower and "
    "calmer is better, among methods that leave out the same constant.",
)
READING = (
    ("Agreement", "share of inputs where a method and the reference choose the same class."),
    (
        "Variance",
        "mean total-variation distance between a method's mean prediction and the reference's; "
        "0 is the same prediction everywhere.",
    ),
    (
        "Entropy and MI error",
        "mean absolute difference to the reference of the predictive entropy (all uncertainty) and "
        "of the mutual information (the part that more data could remove), in nats.",
    ),
    (
        "The reference's own noise",
        "how far its mean is from that of infinitely many draws, told by the differences between "
        "its chains. The exact posterior would be about as far from the reference. In runs of "
        "older versions the row is “chain to chain”: half of the chains against the other half, "
        "which is about twice as far.",
    ),
    (
        "Rows",
        "a plain name is the authors' schedule; “, Q” starts from the prior and takes fewer steps; "
        "“, early” is a control that stops early, at a step picked by its distance to the "
        "reference.",
    ),
    KL_LOSS,
)


def show_facts(view: RunView) -> list[Part]:
    """The run's own account of itself."""
    about, config = view.about, view.config
    machine = about.get("machine") or {}
    where = (
        machine.get("gpu") or "CPU",
        f"{machine['cores']} cores" if machine.get("cores") else None,
        machine.get("system"),
    )
    versions = ", ".join(f"{name} {v}" for name, v in (about.get("versions") or {}).items())
    started = str(about.get("started", DASH)).replace("T", " ").replace("+00:00", " UTC")
    rows: list[tuple[str, str | Markup]] = [
        ("Experiment", view.experiment),
        *([("Preset", str(config["preset"]))] if config.get("preset") else []),
        ("Command", Markup("<code>{}</code>").format(about.get("command", DASH))),
        ("Started", started),
        ("Wall time", format_duration(float(about.get("seconds") or 0))),
        ("Seed", str(config.get("seed", DASH))),
        ("Machine", ", ".join(str(word) for word in where if word)),
        ("Versions", versions or DASH),
    ]
    settings = [(name, _format_setting(value)) for name, value in config.items()]
    all_settings = [Definitions(settings, "facts dense", "All settings")] if settings else []
    return [Definitions(rows, "facts"), *all_settings]


def _format_setting(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return DASH if value is None else str(value)


def show_sampler(view: RunView) -> list[Part]:
    found = view.run.sampler
    if not found:
        return []
    flat = {name: dict(_flatten(about)) for name, about in found.items()}
    rows = [
        Row(
            DIAGNOSTICS.get(key, key),
            [Cell(format_number(row.get(key), _choose_digits(key))) for row in flat.values()],
        )
        for key in dict.fromkeys(key for row in flat.values() for key in row)
    ]
    heads = [Head(""), *(Head(f"set {name}") for name in flat)]
    troubles = [Troubles(name, about.get(TROUBLES) or []) for name, about in found.items()]
    return [*troubles, Table("Diagnostics of the reference sampler", heads, rows)]


def _choose_digits(key: str) -> int:
    return 3 if any(word in key for word in ("rhat", "accept", "bfmi")) else 1


def _flatten(about: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in about.items():
        if key == TROUBLES:
            continue
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", value


def show_timings(view: RunView) -> list[Part]:
    """Seconds by method and set, the mean over draws and seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    sets: dict[str, None] = {}
    for key, seconds in (view.about.get("timings") or {}).items():
        set_name, method = _split_key(view, key)
        sets[set_name] = None
        found.setdefault(method, {}).setdefault(set_name, []).append(float(seconds))
    if not found:
        return []
    longest = max(sum(v) / len(v) for row in found.values() for v in row.values()) or 1
    rows = [
        Row(method, [_build_time(row.get(name, []), longest) for name in sets])
        for method, row in found.items()
    ]
    heads = [Head(""), *(Head(f"set {name}" if name else "all") for name in sets)]
    caption = "Seconds for one training, sampling or prediction"
    return [Table(caption, heads, rows, style="times")]


def _build_time(values: Sequence[float], longest: float) -> Cell:
    if not values:
        return Cell()
    mean = sum(values) / len(values)
    times = (f"{len(values)} times",) if len(values) > 1 else ()
    return Cell(format_number(mean, 1), notes=times, mark="barred", share=mean / longest)


def _split_key(view: RunView, key: str) -> tuple[str, str]:
    """ "set/draw/seed/method", where names may have "/" in them."""
    for set_name in view.sets:
        if key.startswith(f"{set_name}/"):
            parts = key[len(set_name) + 1 :].split("/")
            while len(parts) > 1 and parts[0].isdigit():
                parts = parts[1:]
            return set_name, "/".join(parts)
    return "", key


LOSS = (
    "The training KL loss: the expected negative log-likelihood of all the data, the L2 and "
    "stochasticity terms and those of a finite sigma. The constant of machine precision is left "
    "out, so a method with a finite sigma lies higher. Each panel is one method, the line its mean "
    "over members, the band their spread (one standard deviation); the other methods are grey "
    "behind it. The first steps reach above the panels. In the tables, “fluctuation” is how much a "
    "member's loss moves from step to step at the end of training."
)
STEPS = (
    "Shorter trainings of the same method, each run to the end of its own schedule; the right-most "
    "point is the method of the table. The set distance says how far apart a method's two "
    "parameter sets are: at 0 a member is a plain network."
)
KL_NAMES = {"l2": "L2"}


def show_training(view: RunView) -> list[Part]:
    parts: list[Part] = []
    for i, set_name in enumerate(view.sets):
        rows = view.run.training.get(set_name)
        if rows:
            label = f"Set {set_name}: KL loss over training steps, method by method"
            figure = draw_losses(view, set_name)
            shown = show_figure(figure, key=view.id("loss", i), label=label)
            parts += [Heading(f"Set {set_name}"), *shown, _build_terms(set_name, rows)]
    return [Note(LOSS), *parts] if parts else []


def _build_terms(set_name: str, rows: dict[str, dict[str, Any]]) -> Table:
    terms = unique(term for row in rows.values() for term in row.get("kl") or {})
    heads = ["method", "steps", "loss", "fluctuation", *(KL_NAMES.get(t, t) for t in terms)]
    lines = []
    for method, row in rows.items():
        kl = row.get("kl") or {}
        values = [row.get("steps"), row.get("loss"), row.get("loss_sd"), *map(kl.get, terms)]
        if any(value is not None for value in values):
            lines.append(Row(method, [Cell(format_number(value, 1)) for value in values]))
    caption = f"Set {set_name}: loss, fluctuation and KL terms, in nats"
    return Table(caption, [Head(word) for word in heads], lines)


def show_steps(view: RunView) -> list[Part]:
    label = "Distance to the reference over training steps"
    shown = show_figure(draw_steps(view), key=view.id("steps"), label=label)
    return [Note(STEPS), *shown] if shown else []


def show_calibration(view: RunView) -> list[Part]:
    label = "Accuracy over confidence"
    return [*show_figure(draw_calibration(view), key=view.id("calibration"), label=label)]
