"""One row for each layer of a stochastic network: its noise, its parameters and their bytes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from torch import Tensor, nn

from stochens.members import places_of
from stochens.methods import Method, StochasticLayer, stochastic_layers
from stochens.methods.base import of_likelihood
from stochens.methods.partial import NORMS, holder_of, holders_of, reason_without
from stochens.methods.reach import weights
from stochens.methods.swap import layers_of

ITSELF = "(the network)"  # the path of a network that is one layer, or holds parameters itself


class LayerRow(NamedTuple):
    """A layer, or another module that holds parameters itself.

    A parameter that stands in several places is counted where it stands first, and so are its
    bytes.
    """

    path: str
    kind: str  # the name of its class
    noise: str  # "dropout 0.1 on outputs", "none: output layer"
    parameters: int  # numbers that each member has for itself
    frozen: int  # numbers that all members share: requires_grad=False
    bytes: int  # of a member's own parameters
    without_noise: tuple[str, ...]  # names of parameters, as the layer calls them
    notes: str  # parameters of a module that is no layer; what is frozen, tied, or there twice
    unreached: bool  # whether it has no noise though nobody asked for that


def layer_rows(
    net: nn.Module,
    rules: Sequence[Method],
    *,
    output: str | None = None,
    called: set[str] | None = None,
) -> tuple[LayerRow, ...]:
    """Of a network that already has its noise, in the order in which its layers are registered.

    called: the names of the stochastic layers that a pass calls; None: not known, and taken for all
    of them.
    """
    holders = {**stochastic_layers(net), **holders_of(net)}
    root = net.plain if isinstance(net, StochasticLayer) else net
    names, tensors = places_of(net), dict(net.named_parameters())
    places: dict[str, list[str]] = {}  # by the path of what holds them
    for place in names:
        if not of_likelihood(root, place):
            places.setdefault(holder_of(place, holders)[0], []).append(place)
    paths: dict[nn.Module, list[str]] = {}
    for path, module in net.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    by = [rule for rule in rules if rule.applies_to]
    layers = layers_of(net)

    def row(path: str, here: list[str]) -> LayerRow:
        module = holders.get(path, root)
        prefix = f"{path}." if path else ""
        own = {place.removeprefix(prefix): tensors[place] for place in here if place in tensors}
        tied = {place.removeprefix(prefix): names[place] for place in here if place not in tensors}
        every = {place.removeprefix(prefix): tensors[names[place]] for place in here}
        reason = reason_without(path, module, by, output=output) if by else ""
        noise, unreached = _noise(module, every, by, reason, called is None or path in called)
        others = [other for other in paths.get(module, ()) if other != path]
        known = path in layers or isinstance(module, NORMS)
        held = () if known else [name for name in every if name in plain_names(module)]
        return LayerRow(
            path or ITSELF,
            type(module.plain if isinstance(module, StochasticLayer) else module).__name__,
            noise,
            sum(p.numel() for p in own.values() if p.requires_grad),
            sum(p.numel() for p in own.values() if not p.requires_grad),
            count_bytes(p for p in own.values() if p.requires_grad),
            tuple(_silent(module, every, noise.startswith("none"))),
            "; ".join(_notes(held, every, tied, others)),
            unreached,
        )

    rows = [row(path, here) for path, here in places.items()]
    added = [name for name in tensors if of_likelihood(root, name)]
    return (*rows, *(_noise_level(name, tensors[name]) for name in added))


def plain_names(module: nn.Module) -> list[str]:
    """Of its parameters, without what a method has added."""
    if isinstance(module, StochasticLayer):
        return module.plain_names()
    return list(weights(module))


def count_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


def _noise(
    module: nn.Module, every: Mapping[str, Tensor], by: Sequence[Method], reason: str, called: bool
) -> tuple[str, bool]:
    """In words, and whether it is missing unasked."""
    if isinstance(module, StochasticLayer):
        if called:
            return " + ".join(_words(module)), False
        return "none: never called, others read its parameters", True
    if not by:
        return "none", False
    if not any(p.requires_grad for p in every.values()):
        return "none: frozen", False
    if reason:
        return f"none: {reason}", False
    return f"none: out of reach of {' and '.join(rule.name for rule in by)}", True


def _words(layer: StochasticLayer) -> Iterator[str]:
    """From the inside out: the order in which methods were applied."""
    if isinstance(layer.inner, StochasticLayer):
        yield from _words(layer.inner)
    yield layer.noise_words()


def _silent(module: nn.Module, every: Mapping[str, Tensor], all_: bool) -> list[str]:
    """The parameters of a layer that have no noise, without what a method has added."""
    if all_ or not isinstance(module, StochasticLayer):
        return list(every)
    return [name for name in module.plain_names() if name in every and name not in module.noisy]


def _notes(
    held: Sequence[str], every: Mapping[str, Tensor], tied: Mapping[str, str], others: Sequence[str]
) -> Iterator[str]:
    if held:
        yield ", ".join(held)
    frozen = [name for name, p in every.items() if not p.requires_grad]
    if frozen:
        yield "frozen" if len(frozen) == len(every) else f"frozen: {', '.join(frozen)}"
    if tied:
        yield "tied: " + ", ".join(f"{name} is {known}" for name, known in tied.items())
    if others:
        yield f"also {', '.join(others)}"


def _noise_level(name: str, p: Tensor) -> LayerRow:
    """What the likelihood has added."""
    size = count_bytes([p])
    about = "learned noise of the likelihood"
    return LayerRow(name, "Parameter", "none: no weight", p.numel(), 0, size, (name,), about, False)
