"""Where members begin: each its own initialisation, a draw from the prior, or what is given."""

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from stochens import methods
from stochens.checks import check_network
from stochens.conversions import FrozenBatchNorm
from stochens.errors import InputError, did_you_mean
from stochens.members import (
    Builder,
    Factory,
    Params,
    builder,
    copy_network,
    init,
    init_from_prior,
    shared_by_all,
    take,
    trainable,
)
from stochens.methods import stochastic_layers
from stochens.posterior.posterior import Posterior
from stochens.prior import Centred, weights_of
from stochens.randomness.seeds import JITTER, SECOND_SET, derive, member_seed, seeded
from stochens.training.request import Request

log = logging.getLogger("stochens")
STARTS = ("reset", "prior", "module")

R = TypeVar("R", bound=Request)


def settle_start(request: R, rules: Sequence[methods.Method] = ()) -> R:
    """The same request, whose start is a name or Params [members, ...]: weights that are given for
    all members become those of the network, by start='module'. rules: the methods, where they are
    known."""
    net, start, count = request.net, request.start, len(request.ids)
    if isinstance(start, str):
        _refuse_unknown(start)
        if start == "reset" and isinstance(net, nn.Module):
            _tell_of_reset(net, rules)
        return request
    if isinstance(start, Posterior):
        if len(start) < count:
            raise InputError(
                f"start has {len(start)} members, fewer than {request.which} = {count}"
            )
        _refuse_other_shared(_network(request), shared_by_all(start.net), "the posterior")
        return dataclasses.replace(request, start=take(start.params, slice(0, count)))
    if isinstance(start, nn.Module):
        return _at(request, start.state_dict())
    if isinstance(start, Mapping):
        return _at(request, start) if _is_state(start, request) else request
    if not isinstance(start, Sequence) or not all(
        isinstance(each, (nn.Module, Mapping)) for each in start
    ):
        raise InputError(
            f"start must be {_known()}, a module, a state dict, a list of them, Params or a "
            f"Posterior, got {type(start).__name__}"
        )
    if len(start) != count:
        raise InputError(
            f"start has {len(start)} networks, and {request.which} = {count}; give one for each, "
            "or one for all"
        )
    each: Any = start
    return _at_each(
        request, [e.state_dict() if isinstance(e, nn.Module) else dict(e) for e in each]
    )


def _tell_of_reset(net: nn.Module, rules: Sequence[methods.Method]) -> None:
    """Which weights of the module are not used."""
    # who passes a network in evaluation mode has trained it, or loaded it
    level = logging.INFO if net.training else logging.WARNING
    if any(rule.begins_at_module for rule in rules):
        level, said = logging.INFO, "all members begin at the weights of the module"
    elif any(rule.freezes for rule in rules) or not all(p.requires_grad for p in net.parameters()):
        said = (
            "what members train begins at an initialisation of each member's own, and the rest is "
            "that of the module; start='module' begins all of it there"
        )
    else:
        said = (
            "each member begins at an initialisation of its own, and the weights of the module are "
            "not used; start='module' begins there"
        )
    names = " + ".join(rule.name for rule in rules if rule.freezes)
    log.log(level, "%s: %s", f"method={names!r}" if names else "start='reset'", said)


def _refuse_unknown(start: str) -> None:
    if start == "default":
        raise InputError("start='default' is called start='reset' now")
    if start not in STARTS:
        hint = did_you_mean(start, STARTS)
        raise InputError(
            f"start must be {_known()}, or weights to begin at (a module, a state dict, a list of "
            f"them, Params, a Posterior), got {start!r}{hint}"
        )


def _known() -> str:
    return ", ".join(map(repr, STARTS))


def _network(request: Request) -> nn.Module:
    """A network of the kind that is asked for, to hold weights that are given."""
    if isinstance(request.net, nn.Module):
        check_network(request.net)
        return copy_network(request.net).cpu()
    with seeded(derive(int(request.seed))):
        return builder(request.net)()


def _is_state(start: Mapping[str, Tensor], request: Request) -> bool:
    """Whether tensors by name are those of one network; else they are stacked, or do not fit."""
    own = trainable(_network(request))
    common = next((name for name in own if name in start), None)
    return common is not None and start[common].shape == own[common].shape


def _at(request: R, state: Mapping[str, Tensor]) -> R:
    """All members at these weights, buffers and all."""
    net = _network(request)
    _load(net, state, "start")
    return dataclasses.replace(request, net=net, start="module")


def _at_each(request: R, states: list[dict[str, Tensor]]) -> R:
    """Each member at its own; what members share must be the same in all."""
    net = _network(request)
    _load(net, states[0], "start[0]")
    shared = shared_by_all(net)
    names = trainable(net)
    for k, state in enumerate(states):
        _refuse_other_state(net, state, f"start[{k}]")
        _refuse_other_shared(net, {n: state[n] for n in shared}, f"start[{k}]")
    stacked = {n: torch.stack([s[n].detach().cpu().to(names[n]) for s in states]) for n in names}
    return dataclasses.replace(request, net=net, start=stacked)


def _load(net: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    _refuse_other_state(net, state, what)
    net.load_state_dict(dict(state))


def _refuse_other_state(net: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    own = net.state_dict()
    for name in [*own, *state]:
        here = tuple(own[name].shape) if name in own else "absent"
        there = tuple(state[name].shape) if name in state else "absent"
        if here != there:
            raise InputError(
                f"{what} is of another network: {name!r} is {here} in the network and {there} in it"
            )


def _refuse_other_shared(net: nn.Module, other: Mapping[str, Tensor], what: str) -> None:
    """Buffers and frozen parameters, which all members share."""
    for name, t in shared_by_all(net).items():
        if name in other and not torch.equal(t, other[name].detach().cpu().to(t)):
            raise InputError(
                f"{name!r}, which all members share, is another in {what} than in the network. "
                "Networks that differ in their batch statistics go into stochens.Posterior.of(...),"
                " which folds them into weights; of others, make it a trainable parameter"
            )


def start_network(net: nn.Module | Builder, start: object) -> nn.Module | Builder:
    """The network for this start: a module begins anew in each member, or as it is."""
    if not isinstance(net, nn.Module):
        if isinstance(start, str) and start == "module":
            raise InputError(
                "start='module' needs a module, got a function that builds one, whose networks "
                "begin as it builds them; leave start out, or give the module itself"
            )
        return net
    if not isinstance(start, str) or start == "module":
        check_network(net)
        return Factory(lambda: copy_network(net).cpu(), again=lambda net: None)
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
    prior: float | Centred,
    adds: tuple[str, ...] = (),
) -> Params:
    """omega at step 0, [M, ...]. adds: what the likelihood has added to the network."""
    if not isinstance(start, str):
        return complete_params(start, template, len(ids), adds)
    first = init(build, members=ids, seed=seed)
    second: Params = {}
    if any(layer.needs_second_set for layer in _all_layers(template)):
        second = init(build, members=ids, seed=seed, purpose=SECOND_SET)
    if start == "prior":
        first = draw_from_prior(first, prior, ids, seed)
        second = draw_from_prior(second, prior, ids, derive(seed, SECOND_SET))
    return methods.start(template, first, second)


def draw_from_prior(
    shapes: Params, prior: float | Centred, ids: tuple[int, ...], seed: int
) -> Params:
    """A draw for each member, [M, ...], of parameters with these names and shapes."""
    if not isinstance(prior, Centred):
        return init_from_prior(shapes, members=ids, seed=seed, sd=prior**-0.5)
    sd = {name: precision**-0.5 for name, precision in prior.precision.items()}
    return init_from_prior(shapes, members=ids, seed=seed, sd=sd, mean=prior.mean)


def complete_params(
    start: Params, template: nn.Module, count: int, adds: tuple[str, ...] = ()
) -> Params:
    """Params [M, ...] of a network with this method, from what may be those of the plain network:
    a second set begins at the first, a sigma or a noise level where it always does."""
    wanted, given = trainable(template), dict(start)
    for name in adds:
        if name in wanted and name not in given:
            given[name] = wanted[name].detach().expand(count, *wanted[name].shape).clone()
    if any(name not in given for name in wanted):
        given = {**methods.start(template, given, given), **given}
    refuse_other_shapes(given, wanted, count)
    return {name: given[name].detach().to("cpu", p.dtype) for name, p in wanted.items()}


def jittered(
    params: Params, template: nn.Module, ids: tuple[int, ...], *, seed: int, size: float
) -> Params:
    """p + size rms(p) n,  n ~ N(0, 1) by (seed, member), for the weights [M, ...]."""
    if size == 0:
        return params
    moved = {name: p.clone() for name, p in params.items()}
    names = weights_of(template)
    for row, member in enumerate(ids):
        generator = torch.Generator().manual_seed(member_seed(seed, member, JITTER))
        for name in names:
            p = moved[name][row]
            n = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            p.add_(size * p.square().mean().sqrt() * n)
    return moved


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
