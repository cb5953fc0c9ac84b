"""The device to work on, and how many members and examples fit into its memory at once."""

import contextlib
import os

import torch
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.members import trainable, watch
from stochens.trees import Input, row_bytes

SHARE = 0.5  # of the free memory that a run may plan with; the rest is for what we cannot foresee


def chosen_device(device: str | torch.device | None, *, elsewhere: bool = False) -> torch.device:
    """The one that is asked for, which must be here unless the work is done `elsewhere`; the GPU,
    if there is one, when None."""
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise InputError(f"device must be 'cpu' or 'cuda', got {device!r}") from None
    if chosen.type == "cuda" and not elsewhere and not torch.cuda.is_available():
        raise InputError(f"device = {str(chosen)!r}, but torch finds no GPU here; use 'cpu'")
    return chosen


def activation_bytes(net: nn.Module, x: Input) -> int:
    """Bytes of all layer outputs for one example of one member; x [B, ...]."""
    total = row_bytes(x)

    def add(_module: nn.Module, _args: object, output: object) -> None:
        nonlocal total
        parts = output if isinstance(output, (tuple, list)) else (output,)
        total += sum(t.numel() * t.element_size() for t in parts if isinstance(t, Tensor)) // len(x)

    watch(net, x, {m: add for m in net.modules() if not list(m.children())})
    return total


def parameter_bytes(net: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in trainable(net).values())


def free_bytes(device: torch.device) -> int:
    """Memory that is free now."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    with contextlib.suppress(OSError), open("/proc/meminfo") as lines:  # Linux has it exactly
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError):
        return 4 << 30


def member_bytes(net: nn.Module, x: Input, *, batch_size: int) -> int:
    """Of one member in training: parameters, gradients and two moments of each, and the activations
    of a batch, kept for the backward pass and doubled by it."""
    return 6 * parameter_bytes(net) + 4 * batch_size * activation_bytes(net, x)


def members_that_fit(net: nn.Module, x: Input, *, batch_size: int, device: torch.device) -> int:
    """How many members can train together."""
    one = member_bytes(net, x, batch_size=batch_size)
    return max(1, int(SHARE * free_bytes(device)) // max(one, 1))
