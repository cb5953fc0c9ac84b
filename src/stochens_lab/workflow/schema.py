"""What a run's data look like: which columns, which classes, and how numbers are brought to size.

It is learned from the training data once, kept with the run, and applied to all data after that.
"""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import read_folder, reading, write_folder
from stochens.likelihoods import Likelihood, Predicted
from stochens.likelihoods.base import Targets
from stochens_lab.data.examples import Examples, Layout
from stochens_lab.workflow.targets import KINDS as TARGET_KINDS
from stochens_lab.workflow.targets import (
    choose_classes,
    name_columns,
    read_targets,
    refuse_unfit,
)

FORMAT = "stochens schema 1"
TARGETS = "target kind"  # of older runs it is told by whether there are classes
KINDS = ("columns", "array", "images")
PIXEL = 255.0


@dataclasses.dataclass(frozen=True)
class Scale:
    """(value - mean) / sd, of each feature or channel; float64."""

    mean: Tensor
    sd: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Scale":
        """Learned from [N, F] by column, from [N, C, H, W] by channel, else from all at once."""
        axes = {2: (0,), 4: (0, 2, 3)}.get(values.dim(), tuple(range(values.dim())))
        mean = values.mean(axes)
        sd = values.var(axes, correction=0).sqrt()
        if bool(mean.isnan().any()):  # of targets that are missing
            mean = values.nanmean(axes)
            sd = (values - mean).square().nanmean(axes).sqrt()
        # what does not vary has no size; rounding may leave a trace of one
        still = sd <= 1e-9 * mean.abs()
        sd = torch.where(still | (sd == 0), torch.ones_like(sd), sd)
        return cls(mean, sd)

    def _like(self, values: Tensor) -> tuple[Tensor, Tensor]:
        shape = (-1, 1, 1) if values.dim() == 4 else self.mean.shape
        return self.mean.view(shape), self.sd.view(shape)

    def __call__(self, values: Tensor) -> Tensor:
        mean, sd = self._like(values)
        return (values - mean) / sd


@dataclasses.dataclass(frozen=True)
class Schema:
    layout: Layout
    classes: tuple[str, ...]  # name of class k; none where targets are labels or numbers
    inputs_scale: Scale | None = None
    target_scale: Scale | None = None
    kind: Targets = "classes"  # of the targets, as the likelihood states it

    def inputs(self, examples: Examples) -> Tensor:
        """x [N, ...] as the network takes it: float32, or whole numbers as they are."""
        values = _to_tensor(examples.x, self.layout.kind)
        if self.inputs_scale is not None:
            values = self.inputs_scale(values.double())
        return values.float() if values.is_floating_point() else values

    def targets(self, examples: Examples, file: Path) -> Tensor:
        """y as the likelihood takes it: [N] classes, or [N, D] numbers, scaled like those learned
        from."""
        y = self.truth(examples, file)
        y = y if self.target_scale is None else self.target_scale(y)
        return y.float() if y.is_floating_point() else y

    def truth(self, examples: Examples, file: Path) -> Tensor:
        """y to measure predictions by: [N] classes, or [N, D] in the targets' own units."""
        return read_targets(self.kind, examples, self.layout, self.classes, file)

    def names(self, width: int) -> tuple[str, ...]:
        """What the columns of [N, width] predictions are called."""
        return self.classes if len(self.classes) == width else name_columns(self.layout, width)

    @property
    def width(self) -> int | None:
        """How many classes, labels or numbers there are; None where the data did not say."""
        if self.classes or self.layout.kind == "columns":
            return len(self.classes or self.layout.targets)
        return None if self.target_scale is None else self.target_scale.mean.numel()

    def in_units(self, p: Predicted) -> Predicted:
        """The prediction in the target's own units, in float64."""
        if self.target_scale is None:
            return p
        return p.moved(self.target_scale.mean, self.target_scale.sd)

    # -- on disk ----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, scale in (("inputs", self.inputs_scale), ("target", self.target_scale)):
            if scale is not None:
                tensors |= {f"{name}/mean": scale.mean, f"{name}/sd": scale.sd}
        about = {**self.layout._asdict(), "classes": list(self.classes), TARGETS: self.kind}
        write_folder(path, FORMAT, tensors, about, overwrite=True)

    @classmethod
    def load(cls, path: Path) -> "Schema":
        tensors, about = read_folder(path, FORMAT)
        with reading(path):
            layout = Layout(
                _check_one_of(about["kind"], KINDS),
                _check_texts(about["features"]),
                _check_texts(about["targets"]),
                tuple(int(size) for size in about["shape"]),
            )
            if layout.kind == "columns" and layout.shape != (len(layout.features),):
                raise InputError(f"{path} is damaged: its features are not {layout.shape}")
            classes = _check_texts(about["classes"])
            older = "classes" if classes else "numbers"
            kind: Any = _check_one_of(about.get(TARGETS, older), TARGET_KINDS)
            if bool(classes) != (kind in ("classes", "shares")) or not layout.targets:
                raise InputError(f"{path} is damaged: it says {kind}, and {len(classes)} classes")
            if kind == "classes" and len(layout.targets) != 1:
                raise InputError(f"{path} is damaged: it has classes, and several targets")
            return cls(
                layout,
                classes,
                _read_scale(tensors, "inputs", _stat_shape(layout.shape)),
                _read_scale(tensors, "target", None),
                kind,
            )


def learn_schema(
    layout: Layout,
    examples: Examples,
    file: Path,
    *,
    like: Likelihood,
    outputs: Callable[[Tensor], Tensor],
    order: Sequence[str],
    normalise: bool,
    rows: Tensor,
) -> Schema:
    """What the training data say; scales are of the rows that will be learned from alone.

    `outputs` are those of the network for some x; `order` names classes, where it is given.
    """
    refuse_unfit(layout, like, file)
    if order and like.targets != "classes":
        raise InputError(f"--order is for classes, and --likelihood {like.name} has none")
    scale = None
    if normalise:
        scale = Scale.of(_to_tensor(examples.x[rows.numpy()], layout.kind).double())
    plain = Schema(layout, (), scale, kind=like.targets)
    if like.targets == "classes":
        few = outputs(plain.inputs(examples._replace(x=examples.x[:4])))
        classes = choose_classes(examples, layout, file, like=like, outputs=few, order=order)
        return dataclasses.replace(plain, classes=classes)
    y = read_targets(like.targets, examples, layout, (), file)
    if like.targets == "shares":
        return dataclasses.replace(plain, classes=name_columns(layout, y.shape[1]))
    if normalise and like.in_units:
        empty = y[rows].isnan().all(0)
        if bool(empty.any()):
            name = name_columns(layout, y.shape[1])[int(empty.int().argmax())]
            raise InputError(f"{file}: {name!r} has no value in any row that is learned from")
        return dataclasses.replace(plain, target_scale=Scale.of(y[rows]))
    return plain


def _to_tensor(x: np.ndarray, kind: str) -> Tensor:
    """Pixels in [0, 1], floats as floats; whole numbers of an array stay whole (tokens), unless
    they are bytes or yes and no."""
    if kind == "images":
        return torch.from_numpy(x).float() / PIXEL
    if x.dtype.kind in "iu" and x.dtype.itemsize > 1:
        return torch.from_numpy(x.astype(np.int64))
    return torch.from_numpy(x.astype(np.float64 if x.dtype.kind == "f" else np.float32))


# -- reading it back: nothing in the file is believed ----------------------------------------------


def _stat_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of the scale of inputs with this shape."""
    return {1: shape, 3: shape[:1]}.get(len(shape), ())


def _read_scale(
    tensors: dict[str, Tensor], name: str, shape: tuple[int, ...] | None
) -> Scale | None:
    if f"{name}/mean" not in tensors:
        return None
    mean, sd = tensors[f"{name}/mean"].double(), tensors[f"{name}/sd"].double()
    wanted = mean.shape if shape is None else shape
    if mean.shape != wanted or sd.shape != wanted or mean.dim() > 1:
        raise InputError(f"the scale of the {name} is {tuple(mean.shape)}, not {tuple(wanted)}")
    if not bool((sd > 0).all()) or not bool(mean.isfinite().all()):
        raise InputError(f"the scale of the {name} holds no sizes")
    return Scale(mean, sd)


def _check_texts(given: Any) -> tuple[str, ...]:
    if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
        raise InputError(f"expected names, got {given!r:.80}")
    return tuple(given)


def _check_one_of(given: Any, known: Sequence[str]) -> str:
    if given not in known:
        raise InputError(f"expected one of {', '.join(known)}, got {given!r:.80}")
    return str(given)
