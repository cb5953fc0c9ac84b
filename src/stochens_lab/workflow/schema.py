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
from stochens.posterior.predictive import GaussianPredictive
from stochens_lab.data.columns import list_names, parse_label, parse_labels, parse_numbers
from stochens_lab.data.examples import Examples, Layout

FORMAT = "stochens schema 1"
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
    classes: tuple[str, ...]  # name of class k; none in regression
    inputs_scale: Scale | None = None
    target_scale: Scale | None = None

    def inputs(self, examples: Examples) -> Tensor:
        """x [N, ...] as the network takes it: float32, or whole numbers as they are."""
        values = _to_tensor(examples.x, self.layout.kind)
        if self.inputs_scale is not None:
            values = self.inputs_scale(values.double())
        return values.float() if values.is_floating_point() else values

    def targets(self, examples: Examples, file: Path) -> Tensor:
        """y as the likelihood takes it: [N] classes, or [N, D] numbers, scaled like those learned
        from."""
        if self.classes:
            return self.encode(read_labels(examples, self.layout, file), file)
        y = read_numbers(examples, self.layout, file)
        return (y if self.target_scale is None else self.target_scale(y)).float()

    def truth(self, examples: Examples, file: Path) -> Tensor:
        """y to measure predictions by: [N] classes, or [N, D] in the targets' own units."""
        if self.classes:
            return self.targets(examples, file)
        return read_numbers(examples, self.layout, file)

    def encode(self, found: Sequence[str], file: Path) -> Tensor:
        """Class numbers [N]."""
        number = {name: k for k, name in enumerate(self.classes)}
        for row, name in enumerate(found):
            if name not in number:
                raise InputError(
                    f"{file}: row {row + 1} is of the class {name[:40]!r}, and the run knows "
                    f"{list_names(self.classes)}"
                )
        return torch.tensor([number[name] for name in found])

    def in_units(self, p: GaussianPredictive) -> GaussianPredictive:
        """The prediction in the target's own units, in float64: a float32 has no digits left for a
        spread of 1 around 1e8, and no variance of what is of the size 1e-24 or 1e24."""
        if self.target_scale is None:
            return p
        mean, sd = (t.to(p.mean.device) for t in (self.target_scale.mean, self.target_scale.sd))
        draws = p.draw_means, p.draw_variances
        return GaussianPredictive(
            p.mean.double() * sd + mean,
            p.aleatoric.double() * sd**2,
            p.epistemic.double() * sd**2,
            None if draws[0] is None else draws[0].double() * sd + mean,
            None if draws[1] is None else draws[1].double() * sd**2,
        )

    # -- on disk ----------------------------------------------------------------------------------

    def save(self, path: Path) -> None:
        tensors: dict[str, Tensor] = {}
        for name, scale in (("inputs", self.inputs_scale), ("target", self.target_scale)):
            if scale is not None:
                tensors |= {f"{name}/mean": scale.mean, f"{name}/sd": scale.sd}
        about = {**self.layout._asdict(), "classes": list(self.classes)}
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
            return cls(
                layout,
                _check_texts(about["classes"]),
                _read_scale(tensors, "inputs", _stat_shape(layout.shape)),
                _read_scale(tensors, "target", None),
            )


def learn_schema(
    layout: Layout,
    examples: Examples,
    file: Path,
    *,
    outputs: Callable[[Tensor], int],
    regression: bool,
    normalise: bool,
    rows: Tensor,
) -> Schema:
    """What the training data say; scales are of the rows that will be learned from alone.

    `outputs` tells how many the network has for some x.
    """
    scale = None
    if normalise:
        scale = Scale.of(_to_tensor(examples.x[rows.numpy()], layout.kind).double())
    if regression:
        y = read_numbers(examples, layout, file)
        return Schema(layout, (), scale, Scale.of(y[rows]) if normalise else None)
    found = read_labels(examples, layout, file)
    few = Schema(layout, (), scale).inputs(examples._replace(x=examples.x[:4]))
    return Schema(layout, _choose_classes(found, examples, layout, outputs(few), file), scale)


def read_labels(examples: Examples, layout: Layout, file: Path) -> list[str]:
    if len(layout.targets) != 1:
        raise InputError(
            f"classes need one target, got {', '.join(layout.targets)}; for regression say "
            "--likelihood gaussian"
        )
    values = examples.targets[0]
    if isinstance(values, np.ndarray) and values.ndim != 1:
        one_hot = values.ndim == 2 and np.isin(values, (0, 1)).all() and (values.sum(1) == 1).all()
        instead = "they are one-hot: save their argmax" if one_hot else "one for each example"
        raise InputError(f"{file}: labels must be [N], got {list(values.shape)}; {instead}")
    return parse_labels(values, layout.targets[0], file)


def read_numbers(examples: Examples, layout: Layout, file: Path) -> Tensor:
    """[N, D] float64, in the targets' own units."""
    columns = []
    for values, name in zip(examples.targets, layout.targets, strict=True):
        found = torch.from_numpy(parse_numbers(values, name, file))
        columns.append(found.unsqueeze(1) if found.dim() == 1 else found)
    return torch.cat(columns, 1)


def _choose_classes(
    found: list[str], examples: Examples, layout: Layout, outputs: int, file: Path
) -> tuple[str, ...]:
    """Whole numbers that fit the outputs stay what they are; other labels are sorted."""
    known = set(found) | {parse_label(name) for name in examples.classes}
    whole = all(_is_whole(name) for name in known)
    if whole and all(0 <= int(name) < outputs for name in known):
        return tuple(str(k) for k in range(outputs))
    classes = sorted(known, key=int) if whole else sorted(known)
    if len(classes) != outputs:
        of = (
            f"{file} has {len(classes)} classes"
            if layout.kind == "images"
            else (f"{file}: column {layout.targets[0]!r} has {len(classes)} classes")
        )
        raise InputError(
            f"{of} ({list_names(classes, 5)}), and the network has {outputs} outputs; they must be "
            "as many"
        )
    return tuple(classes)


def _is_whole(name: str) -> bool:
    digits = name.removeprefix("-")
    return digits.isascii() and digits.isdigit() and str(int(digits)) == digits


def whole_classes(classes: Sequence[str]) -> list[int] | None:
    """The classes as numbers, where all are."""
    return [int(name) for name in classes] if all(map(_is_whole, classes)) else None


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
