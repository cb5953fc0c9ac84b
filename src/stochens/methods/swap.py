"""Swapping the layers of a network for stochastic ones, and where their parameters start."""

from collections.abc import Iterable

from torch import nn

from stochens.errors import Unsuited
from stochens.members import Params, copy_network, watch
from stochens.methods.base import Method, StochasticLayer, register
from stochens.methods.patterns import matches, refuse_unmatched
from stochens.methods.reach import owners, weights
from stochens.methods.registry import METHODS, MethodLike, resolve
from stochens.moved import refuse_moved
from stochens.private_names import parts_of
from stochens.trees import Input


@refuse_moved
def stochastic(
    net: nn.Module,
    method: MethodLike,
    *,
    output: str | None = None,
) -> nn.Module:
    """A copy of the network whose layers follow the method; its parameters are omega.

    Layers that the method skips stay as they are. So does the output layer, unless the method says
    otherwise: the layer named `output`, else the last one registered (`output_layer(net, x)` finds
    the last one called).

    >>> net = nn.Sequential(nn.Linear(2, 10), nn.ReLU(), nn.Linear(10, 2))
    >>> stochastic(net, "dropout")
    Sequential(
      (0): DropoutLayer(p=0.1, Linear(in_features=2, out_features=10, bias=True))
      (1): ReLU()
      (2): Linear(in_features=10, out_features=2, bias=True)
    )
    """
    net = copy_network(net)
    output = output if output is not None else next(reversed(layers_of(net)), None)
    rules = resolve(method)
    for rule in rules:
        net = rule.adapt(net, output=output)
    for rule in rules:
        net = _apply(rule, net, output=output)
    if stochastic_layers(net):
        for module in net.modules():  # its fast path, off without this flag, reads past our layers
            if isinstance(module, nn.TransformerEncoderLayer):
                module.activation_relu_or_gelu = 0
    return net


def _others(layers: dict[str, nn.Module], output: str | None) -> str:
    """Methods that would find a layer."""
    inner = [_plain(layer) for path, layer in layers.items() if path != output]
    able = [name for name, m in METHODS.items() if any(isinstance(x, m.applies_to) for x in inner)]
    return f". Methods that take one of them: {', '.join(able)}" if able else ""


def _frozen(layers: list[str]) -> str:
    return f"; frozen layers get none: {', '.join(map(repr, layers))}" if layers else ""


def _apply(rule: Method, net: nn.Module, *, output: str | None) -> nn.Module:
    layers = layers_of(net)  # every layer that some method could take, by name
    taken = {p: layer for p, layer in layers.items() if isinstance(_plain(layer), rule.applies_to)}
    others = owners(net, layers)  # modules of other kinds, of which few methods know
    refuse_unmatched(rule.skip, [*layers, *filter(None, others)])
    refuse_unmatched(rule.patterns(), list(taken))
    if rule.applies_to:
        reached = [*taken, *filter(None, others)] if rule.everywhere else list(taken)
        refuse_unmatched(rule.layers, reached)
    only = rule.layers if rule.applies_to else ()
    swapped: dict[nn.Module, nn.Module] = {}
    frozen: list[str] = []
    for path, layer in taken.items():
        if matches(rule.skip, path) or (only and not rule.names(path)):
            continue
        if path == output and not (rule.takes_output(path) or rule.names(path)):
            continue
        asked = rule.asks_for(path) or rule.names(path)
        if not any(p.requires_grad for p in layer.parameters()) and not asked:
            frozen.append(path)
            continue
        if isinstance(layer, StochasticLayer) and (layer.last or not rule.goes_on_noise):
            raise Unsuited(
                f"{rule.name} cannot go on {path!r}, which is stochastic already: only gaussian "
                "goes on other methods, once and last"
            )
        swapped[layer] = rule.wrap(layer, path)
    wanted = {
        path: module
        for path, module in others.items()
        if rule.everywhere
        and not matches(rule.skip, path)
        and (not only or rule.names(path))
        and any(p.requires_grad for p in weights(module).values())
    }
    if not swapped and not wanted and rule.applies_to:
        raise Unsuited(
            f"{rule.name} found no layer to make stochastic; the layers are "
            f"{', '.join(map(repr, layers)) or '(none)'}, and the output layer {output!r} is left "
            f"alone{rule.output_hint}{_frozen(frozen)}{_others(layers, output)}"
        )
    net = _swap(net, swapped)
    for path, module in reversed(wanted.items()):  # parts first: they are what a whole has then
        swapped[module] = rule.wrap_own(module, path)
        net = _swap(net, {module: swapped[module]})
    _tie(layer for layer in swapped.values() if isinstance(layer, StochasticLayer))
    return net


def _swap(net: nn.Module, swapped: dict[nn.Module, nn.Module]) -> nn.Module:
    for parent in list(net.modules()):
        for name, child in list(parts_of(parent).items()):  # a shared layer has several parents
            if child is not None and child in swapped:
                parts_of(parent)[name] = swapped[child]
    return swapped.get(net, net)  # the network may be one of them itself


def _tie(layers: Iterable[StochasticLayer]) -> None:
    """Where weights are tied, what a method trains beside them is tied too."""
    known: dict[tuple[int, str], nn.Parameter] = {}
    for layer in layers:
        plain = {name: layer.plain.get_parameter(name) for name in layer.plain_names()}
        for name, p in layer.owned().items():
            base = max((n for n in plain if name.startswith(n)), key=len)  # weight_2 -> weight
            register(layer, name, known.setdefault((id(plain[base]), name[len(base) :]), p))


def _plain(layer: nn.Module) -> nn.Module:
    return layer.plain if isinstance(layer, StochasticLayer) else layer


def layers_of(net: nn.Module) -> dict[str, nn.Module]:
    """The layers that a method can swap: outermost modules of a known type with parameters."""
    known = tuple(kind for method in METHODS.values() for kind in method.applies_to)
    found: dict[str, nn.Module] = {}
    inside: set[nn.Module] = set()  # parts of a layer that is taken whole, such as attention's
    for path, module in net.named_modules():
        if module in inside:
            continue
        if isinstance(_plain(module), known) and any(True for _ in module.parameters()):
            found[path] = module
            inside.update(module.modules())
    return found


def output_layer(net: nn.Module, x: Input) -> str | None:
    """The name of the last layer called on x [B, ...]: the one that makes the outputs."""
    called: list[str] = []
    hooks = {
        layer: lambda *_, path=path: called.append(path) for path, layer in layers_of(net).items()
    }
    watch(net, x, hooks)
    return called[-1] if called else None


def stochastic_layers(net: nn.Module) -> dict[str, StochasticLayer]:
    """The stochastic layers of a network, by name."""
    return {p: layer for p, layer in net.named_modules() if isinstance(layer, StochasticLayer)}


def stochastic_places(net: nn.Module) -> dict[str, StochasticLayer]:
    """Likewise, where a layer that the network has under several names is there by each."""
    modules = net.named_modules(remove_duplicate=False)
    return {p: layer for p, layer in modules if isinstance(layer, StochasticLayer)}


def start(net: nn.Module, first: Params, second: Params) -> Params:
    """Starting values of omega [M, ...], from initialisations of the plain network.

    `second` is an independent one, for the methods that train two sets; it may be empty otherwise.
    """
    params = dict(first)
    for path, layer in stochastic_layers(net).items():
        prefix = f"{path}." if path else ""
        own = [{n: p[prefix + n] for n in _names(layer, p, prefix)} for p in (first, second)]
        params |= {prefix + name: value for name, value in layer.start(own[0], own[1]).items()}
    return params


def _names(layer: StochasticLayer, params: Params, prefix: str) -> list[str]:
    return [n for n in layer.plain_names() if prefix + n in params]
