"""Features of a whole data set, computed once and kept where there is room for them."""

import logging
import shutil
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.files.mapped import mapped
from stochens.members import Engine
from stochens.program.prefix import Split, has_frozen, split
from stochens.run.memory import SHARE, activation_bytes, free_bytes, parameter_bytes
from stochens.trees import Input, describe, leaves_of, like_leaves, row_bytes

log = logging.getLogger("stochens")

ACTIVATIONS = 256 << 20  # bytes of activations at once on a CPU
DISK_SHARE = 0.9  # of the free space in the temporary folder that a file may take


class OnHost:
    """Rows of what is too large for the device, which go there when they are asked for."""

    is_cuda = False  # no CUDA graph can hold it

    def __init__(self, kept: Input, device: torch.device) -> None:
        self.kept, self.device = kept, device

    def __len__(self) -> int:
        return len(self.kept)

    def __getitem__(self, rows: Tensor | slice) -> Input:
        return self.kept[rows.cpu() if isinstance(rows, Tensor) else rows].to(self.device)


class Kept(NamedTuple):
    """What takes the place of a network and its inputs while members train."""

    net: nn.Module  # of features, with the parameters of the whole
    x: Input | OnHost  # [N, ...], the features of every row
    bytes_each: int  # of activations of one example and member

    def members_that_fit(self, *, batch_size: int, device: torch.device) -> int:
        """Likewise as run.memory's, of the part that members run."""
        one = 6 * parameter_bytes(self.net) + 4 * batch_size * self.bytes_each
        return max(1, int(SHARE * free_bytes(device)) // max(one, 1))


def keep_features(net: nn.Module, x: Input, few: Input, *, engine: Engine) -> Kept | None:
    """The network in its mode and x [N, ...], on one device, behind the part that is frozen; None
    where there is no such part. few: some rows of x, or rows like them."""
    if not has_frozen(net):
        return None
    device = x.device
    cut = split(net, few.to(device), engine=engine)
    if cut is None:
        return None
    features = features_of(cut, x, rows_at_once(net, few.to(device)), device)
    if features is None:
        return None
    held: Input = features.kept if isinstance(features, OnHost) else features
    where = device.type if held is features else "the host"
    log.info(
        "the frozen part, %.0f%% of a pass, is computed once: features %s, on %s",
        *(100 * cut.saved, describe(held), where),
    )
    return Kept(cut.rest, features, cut.bytes_each)


def rows_at_once(net: nn.Module, few: Input) -> int:
    """Examples of which all activations fit into their share."""
    device = few.device
    room = free_bytes(device) // 4 if device.type == "cuda" else ACTIVATIONS
    return max(2, room // max(1, activation_bytes(net, few)))


def features_of(cut: Split, x: Input, rows: int, device: torch.device) -> Input | OnHost | None:
    """Of x [N, ...], some rows at a time, on the network's device; None where no room is left."""
    kept: Input | None = None
    top = 0
    while top < len(x):
        try:
            part = cut.features(x[top : top + rows].to(device))
        except torch.OutOfMemoryError:
            if rows <= 2:
                raise
            rows //= 2
            continue
        if kept is None:
            if rows >= len(x):
                return _its_own(part, x)
            kept = _room(len(x), part, device)
            if kept is None:
                return None
        for whole, some in zip(leaves_of(kept), leaves_of(part), strict=True):
            whole[top : top + len(part)] = some.to(whole.device)
        top += len(part)
    if kept is None:
        raise InputError(f"x is empty: {describe(x)}")
    return kept if kept.device == device else OnHost(kept, device)


def _its_own(features: Input, x: Input) -> Input:
    """In memory of its own: a mask among the features may be a part of x itself."""
    theirs = {t.untyped_storage().data_ptr() for t in leaves_of(x)}
    own = [
        t.clone() if t.untyped_storage().data_ptr() in theirs else t for t in leaves_of(features)
    ]
    made: Input = like_leaves(features, own)
    return made


def _room(count: int, like: Input, device: torch.device) -> Input | None:
    """For `count` rows like these: memory of the device; where that is short of the host, or files
    there; or None."""

    def made(empty: Callable[..., Tensor]) -> Input:
        each = [empty((count, *t.shape[1:]), t.dtype) for t in leaves_of(like)]
        room: Input = like_leaves(like, each)
        return room

    need = count * row_bytes(like)
    for place in {device: 0, torch.device("cpu"): 0}:
        if need <= SHARE * free_bytes(place):
            return made(lambda shape, dtype: torch.empty(shape, dtype=dtype, device=place))  # noqa: B023, called at once
    if need <= DISK_SHARE * shutil.disk_usage(tempfile.gettempdir()).free:
        return made(mapped)
    log.warning(
        "the frozen part is computed in each step: its features %s need %.1f GB, for which there "
        "is room neither in memory nor in %s",
        *(f"[{count}, ...] like {describe(like)}", need / 1e9, tempfile.gettempdir()),
    )
    return None
