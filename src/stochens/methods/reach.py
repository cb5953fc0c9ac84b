"""Which modules of a network hold its parameters themselves."""

from torch import nn

from stochens.methods.base import StochasticLayer, of_likelihood
from stochens.private_names import parameters_of, parts_of

LISTS = (nn.ParameterList, nn.ParameterDict)  # their parameters are of the module that has them
NEVER_CALLED = (*LISTS, nn.ModuleList, nn.ModuleDict)


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Those that a module holds itself, or in its lists and dictionaries of parameters.

    >>> sorted(own_parameters(nn.MultiheadAttention(4, 2)))
    ['in_proj_bias', 'in_proj_weight']
    """
    found = {name: p for name, p in parameters_of(module).items() if p is not None}
    for name, child in parts_of(module).items():
        if isinstance(child, LISTS):
            found |= {f"{name}.{own}": p for own, p in child.named_parameters()}
    return found


def weights(module: nn.Module) -> dict[str, nn.Parameter]:
    """Likewise, without what a likelihood has added."""
    return {n: p for n, p in own_parameters(module).items() if not of_likelihood(module, n)}


def owners(net: nn.Module, layers: dict[str, nn.Module]) -> dict[str, nn.Module]:
    """The modules beside these layers that hold parameters themselves, by name."""
    inside = {part for layer in layers.values() for part in layer.modules()}
    return {
        path: module
        for path, module in net.named_modules()
        if module not in inside
        and not isinstance(module, (*NEVER_CALLED, StochasticLayer))
        and weights(module)
    }
