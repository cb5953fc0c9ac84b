"""Targets in files, by what they are: classes, labels of yes or no, shares of classes, or numbers.

Which of the four it is, the likelihood states (`Likelihood.targets`).
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods import LIKELIHOODS, Likelihood
from stochens.likelihoods.base import Targets
from stochens_lab.data.columns import (
    list_names,
    parse_label,
    parse_labels,
    parse_numbers,
    parse_yes_or_no,
)
from stochens_lab.data.examples import Examples, Layout

KINDS: tuple[Targets, ...] = get_args(Targets)


def refuse_unfit(layout: Layout, like: Likelihood, file: Path) -> None:
    """Whether data that lie so can have targets of the likelihood's kind."""
    if layout.kind == "images" and like.targets != "classes":
        raise InputError(
            f"{file} is a folder of images: its folders are classes, and --likelihood {like.name} "
            f"takes {like.targets}; save images and targets as arrays in an .npz"
        )
    if like.targets == "classes" and len(layout.targets) != 1:
        raise InputError(
            f"classes need one target, got {', '.join(layout.targets)}; for several columns of yes "
            "or no say --likelihood multilabel, for regression --likelihood gaussian"
        )


def read_targets(
    kind: Targets, examples: Examples, layout: Layout, classes: Sequence[str], file: Path
) -> Tensor:
    """[N] numbers of classes, or [N, D] float64 in the targets' own units; NaN where there is no
    value, which readers let through only where that was asked for."""
    if kind == "classes":
        return encode(read_labels(examples, layout, file), classes, file)
    parse = parse_yes_or_no if kind == "labels" else parse_numbers
    columns = []
    for values, name in zip(examples.targets, layout.targets, strict=True):
        found = torch.from_numpy(parse(values, name, file))
        columns.append(found.unsqueeze(1) if found.dim() == 1 else found)
    return torch.cat(columns, 1)


def read_labels(examples: Examples, layout: Layout, file: Path) -> list[str]:
    values = examples.targets[0]
    if isinstance(values, np.ndarray) and values.ndim != 1:
        zero_or_one = values.ndim == 2 and np.isin(values, (0, 1)).all()
        instead = "one for each example"
        if zero_or_one and (values.sum(1) == 1).all():
            instead = "they are one-hot: save their argmax"
        elif zero_or_one:
            instead += ", or --likelihood multilabel for several yes or no"
        raise InputError(f"{file}: labels must be [N], got {list(values.shape)}; {instead}")
    return parse_labels(values, layout.targets[0], file)


def encode(found: Sequence[str], classes: Sequence[str], file: Path) -> Tensor:
    """Class numbers [N]."""
    number = {name: k for k, name in enumerate(classes)}
    for row, name in enumerate(found):
        if name not in number:
            raise InputError(
                f"{file}: row {row + 1} is of the class {name[:40]!r}, and the run knows "
                f"{list_names(classes)}"
            )
    return torch.tensor([number[name] for name in found])


def name_columns(layout: Layout, width: int) -> tuple[str, ...]:
    """What [N, width] targets are called: the columns, or the places in an array."""
    named = layout.targets
    return named if len(named) == width else tuple(str(k) for k in range(width))


def choose_classes(
    examples: Examples,
    layout: Layout,
    file: Path,
    *,
    like: Likelihood,
    outputs: Tensor,
    order: Sequence[str],
) -> tuple[str, ...]:
    """Those of `order` where it is given. Otherwise whole numbers that fit the outputs stay what
    they are, and other labels are sorted."""
    known = set(read_labels(examples, layout, file)) | {parse_label(n) for n in examples.classes}
    count, whole = like.classes(outputs), all(map(_is_whole, known))
    if order:
        classes = tuple(parse_label(name) for name in order)
        _check_order(classes, known, layout, file)
    elif whole and all(0 <= int(name) < count for name in known):
        return tuple(str(k) for k in range(count))
    elif whole:
        classes = tuple(sorted(known, key=int))
    elif like.ordered:
        some = list_names(sorted(known), 5)
        raise InputError(
            f"{file}: the order of the classes {some} is not told by their names; say it from the "
            "lowest to the highest, --order NAME --order NAME ..., or write whole numbers"
        )
    else:
        classes = tuple(sorted(known))
    if len(classes) != count:
        raise InputError(_wrong_count(classes, layout, file, like, outputs))
    return classes


def _check_order(classes: Sequence[str], known: set[str], layout: Layout, file: Path) -> None:
    if len(set(classes)) < len(classes):
        raise InputError(f"--order names a class twice: {', '.join(classes)}")
    other = sorted(known - set(classes))
    if other:
        raise InputError(
            f"{file}: {layout.targets[0]!r} has {list_names(other, 5)}, which --order does not name"
        )


def _wrong_count(
    classes: Sequence[str], layout: Layout, file: Path, like: Likelihood, outputs: Tensor
) -> str:
    column = "" if layout.kind == "images" else f": column {layout.targets[0]!r}"
    fitting = [
        name
        for name, kind in LIKELIHOODS.items()
        if kind.targets == "classes" and not kind.ordered and _takes(kind(), outputs, len(classes))
    ]
    hint = f"; --likelihood {fitting[0]} would fit" if fitting else "; they must be as many"
    return (
        f"{file}{column} has {len(classes)} classes ({list_names(classes, 5)}), and the network "
        f"has {outputs.shape[-1]} outputs, which --likelihood {like.name} takes for "
        f"{like.classes(outputs)}{hint}"
    )


def _takes(like: Likelihood, outputs: Tensor, classes: int) -> bool:
    with contextlib.suppress(InputError):
        return like.classes(outputs) == classes
    return False


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(digits)) == digits


def whole_classes(classes: Sequence[str]) -> list[int] | None:
    """The classes as numbers, where all are."""
    return [int(name) for name in classes] if all(map(_is_whole, classes)) else None
