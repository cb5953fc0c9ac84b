"""Inputs as what a person can look at: small pictures inside the page, texts, or numbers."""

import base64
import io
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import colormaps, colors
from matplotlib.image import imsave
from torch import Tensor

from stochens.errors import InputError
from stochens.figures.style import COLOURS
from stochens.figures.views import Map
from stochens.trees import Input, InputTree

LARGEST = 128  # pixels of a picture's longer side
SMALL = 48  # up to so many pixels it is enlarged without smoothing
CHANNELS = (1, 3, 4)
MOST_NUMBERS = 10  # columns of a row
MOST_TEXT = 400  # characters
IGNORED = "#9aa0a6"  # a place without a label


class Image(NamedTuple):
    uri: str
    label: str
    small: bool


class Shown(NamedTuple):
    """One input: a picture, a text, or numbers by name."""

    image: Image | None = None
    text: str = ""
    cells: Mapping[str, str] = MappingProxyType({})


def show_input(
    x: Input, features: Sequence[str] = (), show: Callable[[Any], Any] | None = None
) -> Shown:
    """Of one input [1, ...]. `show` says what to show of it: an array [H, W] or [H, W, 3], or a
    text."""
    if show is not None:
        found = show(x[0] if isinstance(x, Tensor) else x[0].tree)
        if isinstance(found, str):
            return Shown(text=_cut(found))
        return Shown(image=_image(_pixels(torch.as_tensor(found))))
    if isinstance(x, InputTree):
        return _show_tree(x, features)
    return _show_tensor(x[0], features)


def _show_tensor(x: Tensor, features: Sequence[str]) -> Shown:
    if x.is_complex():
        x = x.abs()
    if x.dim() == 3 or (x.dim() == 2 and x.is_floating_point()):
        return Shown(image=_image(_pixels(x)))
    if x.dim() > 3:  # volumes, films: their middle
        return _show_tensor(x[:, x.shape[1] // 2] if x.dim() == 4 else x[len(x) // 2], features)
    values = x.flatten()
    if not x.is_floating_point() and len(values) > 1 and not features:
        return Shown(text=_cut(" ".join(str(int(v)) for v in values[:MOST_TEXT])))
    names = features or [f"x{k}" for k in range(len(values))]
    pairs = zip(names, values[:MOST_NUMBERS], strict=False)
    return Shown(cells={str(name): f"{float(v):.4g}" for name, v in pairs})


def _show_tree(x: InputTree, features: Sequence[str]) -> Shown:
    """Its first picture, or else all that it holds, by name."""
    each = {name: _show_tensor(t[0], ()) for name, t in x.named().items()}
    picture = next((one.image for one in each.values() if one.image is not None), None)
    if picture is not None:
        return Shown(image=picture)
    if any(one.text for one in each.values()):
        lines = [f"{name}: {one.text or _listed(one.cells)}" for name, one in each.items()]
        return Shown(text=_cut("; ".join(lines)))
    cells = {
        name if len(one.cells) == 1 else f"{name}.{key}": value
        for name, one in each.items()
        for key, value in one.cells.items()
    }
    return Shown(cells=dict(list(cells.items())[:MOST_NUMBERS]))


def _listed(cells: Mapping[str, str]) -> str:
    return " ".join(cells.values())


def _cut(text: str) -> str:
    return text if len(text) <= MOST_TEXT else text[:MOST_TEXT] + "…"


def _pixels(x: Tensor) -> Tensor:
    """[H, W], [C, H, W] or [H, W, C] as [3, H, W] in [0, 1], whatever its numbers are."""
    if x.dim() == 2:
        x = x.unsqueeze(0)
    if x.dim() != 3:
        raise InputError(
            f"a picture must be [H, W] or [H, W, 3], or a text; show gave {tuple(x.shape)}"
        )
    if x.shape[0] not in CHANNELS and x.shape[-1] in CHANNELS:
        x = x.movedim(-1, 0)
    bytes_ = x.dtype == torch.uint8
    x = x.detach().float().cpu().nan_to_num(0.0)
    x = x[:3] if x.shape[0] in (3, 4) else x.mean(0, keepdim=True)
    low, high = float(x.min()), float(x.max())
    if bytes_:
        x = x / 255
    elif low < 0 or high > 1:  # brought to another size: its own range
        x = (x - low) / ((high - low) or 1.0)
    x = _shrink(x)
    return x.expand(3, -1, -1).clamp(0, 1)


def _shrink(x: Tensor) -> Tensor:
    """[C, H, W] with neither side longer than LARGEST."""
    longest = max(x.shape[1:])
    if longest <= LARGEST:
        return x
    size = [max(1, round(side * LARGEST / longest)) for side in x.shape[1:]]
    small: Tensor = torch.nn.functional.interpolate(x[None], size, mode="area")[0]
    return small


def _image(pixels: Tensor, label: str = "input") -> Image:
    content = io.BytesIO()
    array = (255 * pixels.movedim(0, -1)).round().to(torch.uint8).numpy()
    imsave(content, np.ascontiguousarray(array), format="png")
    uri = "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
    return Image(uri, label, max(pixels.shape[1:]) <= SMALL)


def show_map(found: Map) -> Image:
    """Classes by the colours of figures, amounts from dark to bright."""
    values = found.values
    if found.top is None:
        palette = torch.tensor([colors.to_rgb(c) for c in (*COLOURS, IGNORED)])
        place = torch.where(values >= 0, values % len(COLOURS), len(COLOURS))
        pixels = palette[place].movedim(-1, 0)
        step = math.ceil(max(values.shape) / LARGEST)
        pixels = pixels[:, ::step, ::step]  # no class between two others
    else:
        share = _shrink((values.float() / found.top).clamp(0, 1).unsqueeze(0))[0]
        pixels = torch.from_numpy(colormaps["viridis"](share.numpy())[..., :3]).movedim(-1, 0)
    return _image(pixels.float(), found.title)
