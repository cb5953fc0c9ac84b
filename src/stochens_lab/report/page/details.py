"""What was run, what the sampler says of itself, how long it took, and how to read the page."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stochens_lab.report.page.html import DASH, Html, duration, join, number, table, tag
from stochens_lab.report.page.run import View

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
    (
        "KL loss",
        "the paper uses its level and its fluctuation to foresee which method suits a task: lower "
        "and calmer is better, among methods that leave out the same constant.",
    ),
)


def facts(view: View) -> Html:
    """The run's own account of itself."""
    about, config = view.about, view.config
    machine = about.get("machine") or {}
    where = ", ".join(
        str(word)
        for word in (
            machine.get("gpu") or "CPU",
            f"{machine['cores']} cores" if machine.get("cores") else None,
            machine.get("system"),
        )
        if word
    )
    versions = ", ".join(f"{name} {v}" for name, v in (about.get("versions") or {}).items())
    started = str(about.get("started", DASH)).replace("T", " ").replace("+00:00", " UTC")
    rows: list[tuple[str, object]] = [
        ("Experiment", view.experiment),
        *([("Preset", config["preset"])] if config.get("preset") else []),
        ("Command", tag("code", about.get("command", DASH))),
        ("Started", started),
        ("Wall time", duration(float(about.get("seconds") or 0))),
        ("Seed", config.get("seed", DASH)),
        ("Machine", where),
        ("Versions", versions or DASH),
    ]
    items = [tag("div", tag("dt", name), tag("dd", value)) for name, value in rows]
    return join([tag("dl", *items, class_="facts"), _settings(config)])


def _settings(config: Mapping[str, Any]) -> Html | None:
    if not config:
        return None
    rows = [tag("div", tag("dt", name), tag("dd", _plain(value))) for name, value in config.items()]
    summary = tag("summary", "All settings")
    return tag("details", summary, tag("dl", *rows, class_="facts dense"))


def _plain(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value)) or "none"
    return DASH if value is None else str(value)


def sampler(view: View) -> Html | None:
    found = view.run.sampler
    if not found:
        return None
    flat = {name: dict(_flat(about)) for name, about in found.items()}
    keys = dict.fromkeys(key for row in flat.values() for key in row)
    rows = [
        tag(
            "tr",
            tag("th", DIAGNOSTICS.get(key, key), scope="row", class_="name"),
            *(tag("td", number(row.get(key), 3 if _fine(key) else 1)) for row in flat.values()),
        )
        for key in keys
    ]
    heads = [tag("th", "", scope="col"), *(tag("th", f"set {s}", scope="col") for s in flat)]
    body = table(
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        caption="Diagnostics of the reference sampler",
    )
    return join([*(_troubles(name, about) for name, about in found.items()), body])


def _fine(key: str) -> bool:
    return any(word in key for word in ("rhat", "accept", "bfmi"))


def _troubles(set_name: str, about: Mapping[str, Any]) -> Html:
    troubles = about.get(TROUBLES) or []
    if not troubles:
        return tag("p", tag("b", f"Set {set_name}: "), "no trouble found.", class_="fine")
    said = [tag("li", trouble) for trouble in troubles]
    return tag("div", tag("b", f"Set {set_name}: look here"), tag("ul", *said), class_="trouble")


def _flat(about: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in about.items():
        if key == TROUBLES:
            continue
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key} ")
        else:
            yield f"{prefix}{key}", value


def timings(view: View) -> Html | None:
    """Seconds by method and set, the mean over draws and seeds."""
    found: dict[str, dict[str, list[float]]] = {}
    sets: dict[str, None] = {}
    for key, seconds in (view.about.get("timings") or {}).items():
        set_name, method = _timed(view, key)
        sets[set_name] = None
        found.setdefault(method, {}).setdefault(set_name, []).append(float(seconds))
    if not found:
        return None
    longest = max(sum(v) / len(v) for row in found.values() for v in row.values()) or 1
    rows = []
    for method, row in found.items():
        cells = [tag("th", method, scope="row", class_="name")]
        for name in sets:
            values = row.get(name)
            if not values:
                cells.append(tag("td", DASH))
                continue
            mean = sum(values) / len(values)
            times = tag("small", f"{len(values)} times") if len(values) > 1 else None
            share = f"--share:{mean / longest:.3f}"
            cells.append(tag("td", number(mean, 1), times, class_="barred", style=share))
        rows.append(tag("tr", *cells))
    labels = [f"set {name}" if name else "all" for name in sets]
    heads = [tag("th", "", scope="col"), *(tag("th", label, scope="col") for label in labels)]
    return table(
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        caption="Seconds for one training, sampling or prediction",
        class_="times",
    )


def _timed(view: View, key: str) -> tuple[str, str]:
    """ "set/draw/seed/method", where names may have "/" in them."""
    for set_name in view.sets:
        if key.startswith(f"{set_name}/"):
            parts = key[len(set_name) + 1 :].split("/")
            while len(parts) > 1 and parts[0].isdigit():
                parts = parts[1:]
            return set_name, "/".join(parts)
    return "", key


def reading(words: Sequence[tuple[str, str]] = READING) -> Html:
    items = [tag("div", tag("dt", name), tag("dd", text)) for name, text in words]
    return tag("dl", *items, class_="reading")
