"""What methods do to a network whose members own a part of it: the rest is frozen."""

from collections.abc import Sequence

from torch import nn

from stochens.methods.base import of_likelihood
from stochens.methods.patterns import matches
from stochens.private_names import parts_of


def freeze_but(net: nn.Module, kept: Sequence[str], skip: Sequence[str] = ()) -> None:
    """Freeze all parameters but those below modules with such a name, and what a likelihood has
    added. What was frozen stays so, and what stands below a module to skip is frozen."""
    below = [path for path, _ in net.named_modules() if path and matches(kept, path)]
    everything = "" in kept
    free = {
        id(p) for path in below for p in net.get_submodule(path).parameters() if p.requires_grad
    }
    left = {
        id(p)
        for path, module in net.named_modules()
        if matches(skip, path)
        for p in module.parameters()
    }
    for name, p in net.named_parameters():
        own = ((id(p) in free or everything) and id(p) not in left) or of_likelihood(net, name)
        p.requires_grad_(p.requires_grad and own)


def exchange(net: nn.Module, swapped: dict[nn.Module, nn.Module]) -> nn.Module:
    """Modules for others, wherever they stand; the network may be one of them itself."""
    for parent in list(net.modules()):
        if parent in swapped.values():
            continue
        for name, child in list(parts_of(parent).items()):  # a shared layer has several parents
            if child is not None and child in swapped:
                parts_of(parent)[name] = swapped[child]
    return swapped.get(net, net)


def switch_off_fast_path(net: nn.Module) -> None:
    """nn.TransformerEncoderLayer's, which reads weights past layers that stand in its place."""
    for module in net.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
