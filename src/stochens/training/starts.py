"""Where members begin: each its own initialisation, a draw from the prior, or what is given."""

from collections.abc import Iterator

from torch import nn

from stochens import methods
from stochens.checks import check_network
from stochens.conversions import FrozenBatchNorm
from stochens.errors import InputError
from stochens.members import (
    Builder,
    Factory,
    Params,
    copy_network,
    init,
    init_from_prior,
    trainable,
)
from stochens.methods import stochastic_layers
from stochens.randomness.seeds import SECOND_SET, derive

STARTS = ("default", "prior", "module")


def start_network(net: nn.Module | Builder, start: str | Params) -> nn.Module | Builder:
    """The network for this start: a module begins anew in each member, or as it is."""
    if not isinstance(net, nn.Module):
        if isinstance(start, str) and start == "module":
            raise InputError(
                "start='module' needs a module, got a function that builds one, whose networks "
                "begin as it builds them; leave start out, or give the module itself"
            )
        return net
    if isinstance(start, str) and start == "module":
        check_network(net)
        return Factory(lambda: copy_network(net).cpu(), again=lambda net: None)
    if isinstance(start, str):
        _refuse_lost_weights(net, start)
    return net


def start_adapters(net: nn.Module | Builder) -> Factory:
    """Likewise of a network with adapters: each member draws its own, and all else is the
    network's."""
    assert isinstance(net, nn.Module)
    check_network(net)

    def make() -> nn.Module:
        fresh = copy_network(net).cpu()
        methods.begin_adapters(fresh)
        return fresh

    return Factory(make, again=methods.begin_adapters)


def _refuse_lost_weights(net: nn.Module, start: str) -> None:
    """Statistics of trained weights mean nothing to weights that are drawn anew."""
    drawn = False  # whether what comes before, as it was registered, is not frozen
    for path, module in net.named_modules():
        drawn = drawn or any(p.requires_grad for p in module.parameters(recurse=False))
        if isinstance(module, FrozenBatchNorm) and module.trained and drawn:
            name = repr(path) if path else "the network itself"
            raise InputError(
                f"{name} is batch normalisation with the statistics of trained weights, and "
                f"start={start!r} would draw new weights under them. start='module' begins at the "
                "network's own weights; to train from scratch, use stochens.replace_batchnorm "
                "instead of freeze_batchnorm"
            )


def first_params(
    template: nn.Module,
    build: Factory,
    start: str | Params,
    ids: tuple[int, ...],
    seed: int,
    precision: float,
) -> Params:
    """omega at step 0, [M, ...]."""
    if not isinstance(start, str):
        refuse_other_shapes(start, trainable(template), len(ids))
        return {name: start[name].detach().cpu() for name in trainable(template)}
    if start not in STARTS:
        known = ", ".join(map(repr, STARTS))
        raise InputError(f"start must be one of {known}, or Params, got {start!r}")
    first = init(build, members=ids, seed=seed)
    second: Params = {}
    if any(layer.needs_second_set for layer in _all_layers(template)):
        second = init(build, members=ids, seed=seed, purpose=SECOND_SET)
    if start == "prior":
        sd = precision**-0.5
        first = init_from_prior(first, members=ids, seed=seed, sd=sd)
        second = init_from_prior(second, members=ids, seed=derive(seed, SECOND_SET), sd=sd)
    return methods.start(template, first, second)


def _all_layers(net: nn.Module) -> Iterator[methods.StochasticLayer]:
    for layer in stochastic_layers(net).values():
        yield layer
        if isinstance(layer.inner, methods.StochasticLayer):
            yield layer.inner


def refuse_other_shapes(start: Params, wanted: Params, count: int) -> None:
    """What is given for `count` members or chains must fit `wanted`, the parameters of one."""
    for name, p in wanted.items():
        want = (count, *p.shape)
        got = tuple(start[name].shape) if name in start else "absent"
        if got != want:
            raise InputError(f"start: parameter {name!r} must be {want}, got {got}")
