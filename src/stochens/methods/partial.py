"""What a method leaves without noise, said by name: partial noise is never silent."""

import warnings
from collections.abc import Callable, Sequence

from torch import nn

from stochens.conversions import FrozenBatchNorm
from stochens.errors import outside
from stochens.members import watch
from stochens.methods.base import NORM, Method, StochasticLayer, of_likelihood
from stochens.methods.gaussian import GaussianOwn
from stochens.methods.reach import owners
from stochens.methods.swap import layers_of, stochastic_layers
from stochens.private_names import BatchOrInstanceNorm
from stochens.trees import Input

NORMS = (*NORM, BatchOrInstanceNorm, FrozenBatchNorm)
TOLD = 6  # names in a warning


class PartialNoiseWarning(UserWarning):
    """Some parameters have no noise, though the method gives noise to others."""


def warn_partial(
    net: nn.Module,
    rules: Sequence[Method],
    few: Input,
    *,
    output: str | None,
) -> None:
    """Name what has no noise in a network with these methods, and was not meant to be without.

    Meant to be without is what options skip, the output layer, and normalisation where the method
    does not take it. few [B, ...]: inputs, to see which layers are called.
    """
    asked = any(rule.freezes for rule in rules)  # what is frozen is meant to be
    rules = [rule for rule in rules if rule.applies_to]
    if not rules:
        return
    by = " and ".join(rule.name for rule in rules)
    for what, names in without_noise(net, rules, few, output=output).items():
        if names and not (asked and what is FROZEN):
            words = what.format(by=by, told=told(names))
            if what is UNKNOWN and not any(rule.everywhere for rule in rules):
                words += "; gaussian gives noise to every parameter"
            words += ". stochens.describe(net, method) lists every layer with its noise"
            warnings.warn(words, PartialNoiseWarning, stacklevel=outside())


def told(names: Sequence[str]) -> str:
    """The first of them, and how many more there are."""
    more = f" and {len(names) - TOLD} more" if len(names) > TOLD else ""
    return ", ".join(names[:TOLD]) + more


UNKNOWN = "{by} gives no noise to {told}, which stands in no layer that it takes"
UNCALLED = "no noise for {told}: other modules read its parameters, and do not call it"
FROZEN = "frozen parameters (requires_grad=False) have no noise: {told}"


def without_noise(
    net: nn.Module,
    rules: Sequence[Method],
    few: Input,
    *,
    output: str | None,
) -> dict[str, list[str]]:
    """The names, by what is said of them."""
    noisy = stochastic_layers(net)
    called = called_layers(net, noisy, few)
    found: dict[str, list[str]] = {UNKNOWN: [], UNCALLED: [], FROZEN: []}
    found[UNCALLED] += [path for path in noisy if path not in called]
    reached = {  # what stands in a layer with noise -> whether it has noise there
        f"{path}.{own}" if path else own: p.requires_grad or own in layer.noisy
        for path, layer in noisy.items()
        for own, p in layer.owned().items()
    }
    holders = holders_of(net)
    root = net.plain if isinstance(net, StochasticLayer) else net
    for name, p in net.named_parameters():
        if of_likelihood(root, name) or reached.get(name):
            continue
        path, module = holder_of(name, holders)
        meant = reason_without(path, module, rules, output=output)
        if name in reached or not meant:
            found[UNKNOWN if p.requires_grad else FROZEN].append(name)
    return found


def reason_without(
    path: str,
    module: nn.Module,
    rules: Sequence[Method],
    *,
    output: str | None,
) -> str:
    """Why a layer is meant to have no noise, or nothing where it is not."""
    if all(rule.declines(path) for rule in rules):
        return "left out by the options"
    wanted = any(rule.takes_output(path) or rule.names(path) for rule in rules)
    if path == output and not wanted:
        return "output layer"
    norms = any(kind in rule.applies_to for rule in rules for kind in NORM)
    return "normalisation" if isinstance(module, NORMS) and not norms else ""


def called_layers(net: nn.Module, layers: dict[str, StochasticLayer], few: Input) -> set[str]:
    """The names of those layers that a pass calls."""
    called: set[str] = set()
    hooks: dict[nn.Module, Callable[..., None]] = {
        layer: lambda *_, path=path: called.add(path) for path, layer in layers.items()
    }
    own = [layer for layer in hooks if isinstance(layer, GaussianOwn)]
    for layer in own:
        layer.on_call = hooks[layer]
    try:
        watch(net, few, hooks)
    finally:
        for layer in own:
            layer.on_call = None
    return called


def holders_of(net: nn.Module) -> dict[str, nn.Module]:
    """The layers, and the other modules that hold parameters themselves, by name."""
    layers = layers_of(net)
    return {**layers, **owners(net, layers)}


def holder_of(name: str, holders: dict[str, nn.Module]) -> tuple[str, nn.Module]:
    """The module that a parameter belongs to: the layer, or what holds it itself."""
    parts = name.split(".")
    for end in range(len(parts) - 1, -1, -1):
        if (path := ".".join(parts[:end])) in holders:
            return path, holders[path]
    return "", nn.Module()
