"""`posterior.report`: what is predicted, gathered for one HTML page."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.checks import whole, whole_seed
from stochens.errors import InputError
from stochens.figures.axes import missing
from stochens.figures.views import few
from stochens.files.storage import write_whole
from stochens.inputs import first_input, pick_rows, targets
from stochens.likelihoods import Predicted
from stochens.posterior.pieces import trained_on
from stochens.reading import read_target
from stochens.trees import Input, InputTree
from stochens.version import __version__

KEPT = 2 << 30  # bytes of draws, up to which members can be shown each by itself
MOST_MEMBERS = 16  # that are; of more, some that lie equally far apart


class Wishes(NamedTuple):
    """What a report is to have: see `Posterior.report`."""

    title: str | None = None
    names: Sequence[str] = ()
    features: Sequence[str] = ()
    show: Callable[[Any], Any] | None = None
    draws: int = 1
    seed: int = 0
    resamples: int = 300


def check_place(out: Any, *, overwrite: bool) -> Path:
    """Whether a page can be written there; said before the work."""
    path = Path(out)
    if path.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"a report is one .html file, got {path.name!r}")
    if path.is_dir():
        raise InputError(f"{path} is a folder; name a file in it")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; pass overwrite=True")
    above = next(one for one in path.absolute().parents if one.exists())
    if not above.is_dir() or not os.access(above, os.W_OK):
        raise InputError(f"cannot write {path}: {above} is no folder that can be written to")
    return path


def write_report(
    posterior: Any,
    x: Any,
    y: Any,
    ood: Any,
    path: Path,
    wishes: Wishes,
    convert: Callable[[Predicted], Predicted] = lambda p: p,
    shown: Any = None,
) -> None:
    """The page, whole or not at all. `convert`: predictions in other units, those of y; `shown`:
    what to show of examples in the place of x."""
    whole(draws=wishes.draws, resamples=wishes.resamples)
    whole_seed(wishes.seed)
    build, content = _page_parts()
    if isinstance(x, Iterator):
        raise InputError(
            f"a report reads x several times, and x, a {type(x).__name__}, can be read once; give "
            "a Dataset, a DataLoader or tensors"
        )
    like, target = trained_on(posterior)
    pair = isinstance(x, (tuple, list)) and len(x) == 2 and not isinstance(like, InputTree)
    if y is None and pair:
        x, y = x
    known = targets(x, like, target=target) if y is None else read_target(y)
    known = posterior.likelihood.check_targets(known.cpu())

    def predict(given: Any, keep: bool | None) -> Predicted:
        found = posterior.predict(given, draws=wishes.draws, seed=wishes.seed, keep_draws=keep)
        return convert(found)

    first = first_input(x, like, target=target)
    one = predict(first, True)
    count = wishes.draws * len(posterior)
    keep = True if 8 * count * len(known) * one.mean.numel() <= KEPT else None
    p = predict(x, keep)
    _check(p, one, known, wishes)
    _check_features(first, wishes.features)
    page = content(
        title="A report on your model" if wishes.title is None else str(wishes.title),
        facts=_facts(posterior, p, known, wishes),
        p=p,
        y=known,
        pick=lambda rows: pick_rows(x if shown is None else shown, rows, like, target=target),
        far=None if ood is None else predict(ood, None),
        alone=_alone(posterior, p, wishes.draws) if p.keeps_draws else {},
        history=posterior.history,
        names=tuple(map(str, wishes.names)),
        features=tuple(map(str, wishes.features)),
        show=wishes.show,
        resamples=wishes.resamples,
        seed=wishes.seed,
    )
    text = build(page)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error
    write_whole(path, text.encode())


def _page_parts() -> tuple[Callable[[Any], str], Any]:
    """What builds the page; matplotlib and jinja2 come with an extra."""
    try:
        from stochens.report.build import build_report
        from stochens.report.content import Content
    except ModuleNotFoundError as error:
        raise InputError(missing(error)) from None
    return build_report, Content


def _check(p: Predicted, one: Predicted, y: Tensor, wishes: Wishes) -> None:
    """`one`: the prediction of the first example, with its draws."""
    if len(p.mean) != len(y):
        raise InputError(f"x has {len(p.mean)} rows, and y {len(y)}; they must be the same")
    width = p.views.width()
    if wishes.names and len(wishes.names) != width:
        raise InputError(
            f"names must be {width}, one for each class, label or target, got {len(wishes.names)}"
        )
    if p.keeps_draws:
        return
    one.measures(y[:1])  # so that it is for want of its draws if it fails the next time
    try:
        one.light().measures(y[:1])
    except InputError as error:
        raise InputError(
            f"the draws of {len(y)} examples do not fit into memory, and the measures need them; "
            "give fewer examples, or posterior.take(...) of the members"
        ) from error


def _check_features(first: Input, features: Sequence[str]) -> None:
    """first [1, ...]: of a row of numbers, each has a name."""
    if not features or not isinstance(first, Tensor) or first.dim() > 2:
        return
    if len(features) != (columns := first[0].numel()):
        raise InputError(
            f"features must be {columns}, one for each column of x, got {len(features)}"
        )


def _alone(posterior: Any, p: Predicted, draws: int) -> dict[str, Predicted]:
    """What each chain says, or some of the members: draw d of member m is row d * M + m."""
    count = len(posterior)
    if posterior.chains is not None and draws == 1:
        size = count // posterior.chains.count
        blocks = [slice(k * size, (k + 1) * size) for k in range(posterior.chains.count)]
        return {f"chain {k}": p.of_draws(block) for k, block in enumerate(blocks)}
    places = [int(m) for m in few(count, MOST_MEMBERS)]
    return {f"member {posterior.members[m]}": p.of_draws(slice(m, None, count)) for m in places}


def _facts(posterior: Any, p: Predicted, y: Tensor, wishes: Wishes) -> list[tuple[str, str]]:
    size = sum(t[0].numel() for t in posterior.params.values())
    draws = wishes.draws * len(posterior)
    found = [
        ("Posterior", repr(posterior)),
        ("Parameters of a member", f"{size:,}"),
        ("Likelihood", str(posterior.likelihood.name)),
        ("Examples", f"{len(y):,}"),
        ("Predictions from", f"{draws:,} {'draw' if draws == 1 else 'draws'}"),
    ]
    if posterior.calibration is not None:
        found.append(("Calibration", str(posterior.calibration)))
    return [*found, ("Made with", f"stochens {__version__}, torch {torch.__version__}")]
