"""`Posterior.of`: networks that are trained already, as the members of a posterior."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens import likelihoods
from stochens.adapter import Calling, Output, calling_for
from stochens.checks import check_network, member_ids, not_negative
from stochens.errors import InputError
from stochens.inputs import inputs
from stochens.likelihoods import Likelihood, check_distribution
from stochens.members import (
    Builder,
    Engine,
    Params,
    builder,
    copy_network,
    forward,
    places_of,
    plain_attention,
    take,
)
from stochens.methods import resolve as methods_named
from stochens.methods import stochastic_layers
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.fingerprint import differs
from stochens.posterior.recipe import Inputs, Recipe
from stochens.posterior.templates import (
    fold_statistics,
    frozen_norms,
    give_affine,
    with_frozen_norms,
)
from stochens.prior import Prior, as_prior, resolve
from stochens.randomness.seeds import derive, seeded
from stochens.trees import Input

ROWS = 8  # of the example on which networks are held against the posterior


class _State(NamedTuple):
    """Of one network, batch norms frozen; the tensors are its own."""

    params: dict[str, Tensor]
    buffers: dict[str, Tensor]


def fields_of(
    networks: Sequence[nn.Module | Mapping[str, Tensor]],
    net: nn.Module | Builder | None,
    likelihood: str | Likelihood,
    *,
    example: Any,
    data_size: float,
    members: Sequence[int] | None,
    prior: float | Prior,
    output: Output | None = None,
) -> PosteriorFields:
    """What `Posterior.of` says, on the CPU."""
    given = _listed(networks)
    not_negative(data_size=data_size)
    like = likelihoods.resolve(likelihood)
    if like.adds():
        raise InputError(
            f"likelihood {like.name!r} learns {', '.join(like.adds())} with the network, which "
            "networks that are given do not have; give the noise, e.g. "
            "stochens.Homoscedastic(0.1), or use 'heteroscedastic'"
        )
    ids = member_ids(len(given) if members is None else members)
    if len(ids) != len(given):
        raise InputError(f"members names {len(ids)}, and there are {len(given)} networks")
    plain = _plain(given, net)
    states = [_state(plain, each, k) for k, each in enumerate(given)]
    template = copy.deepcopy(with_frozen_norms(plain)).cpu().eval()
    _fold(template, states)
    _refuse_other_buffers(states)
    _choose_members_own(template, states)
    check_network(template)
    params = {
        name: torch.stack([s.params[name].detach().cpu() for s in states])
        for name, p in template.named_parameters()
        if p.requires_grad
    }
    _set_shared(template, states[0])
    kept = as_prior(prior)
    mean: Params = {}
    if not kept.plain:
        if kept.needs_start:
            raise InputError(
                "these networks have no start that is known here, so the prior's mean must be "
                "'zero' or tensors by name"
            )
        mean = resolve(kept, template, {}, rows=range(len(ids)), members=len(ids)).mean
    few = None if example is None else inputs(example)[:ROWS].cpu()
    engine: Engine = "vmap"
    calling = None if output is None else Calling(output, None)
    if few is not None:
        calling = calling_for(plain.eval(), few, output, None)
    if calling is not None:
        template = calling.adapt(template)
    if few is not None:
        engine = _held_against(plain, given, template, params, few, like, calling)
    return PosteriorFields(
        net=template,
        params=params,
        likelihood=like,
        recipe=Recipe(methods=tuple(methods_named("regular")), calling=calling),
        members=ids,
        data_size=data_size,
        prior_precision=kept.precision,
        prior=None if kept.plain else kept,
        prior_mean=mean,
        inputs=None if few is None else Inputs.of(few),
        engine=engine,
    )


def _listed(networks: Any) -> list[nn.Module | Mapping[str, Tensor]]:
    single = isinstance(networks, (nn.Module, Mapping, str))
    given = [] if single or not isinstance(networks, Sequence) else list(networks)
    if not given or not all(isinstance(each, (nn.Module, Mapping)) for each in given):
        raise InputError(
            "Posterior.of takes a list of networks or of their state dicts, got "
            + (f"a {type(networks).__name__}" if single or not given else "something else in it")
        )
    return given


def _plain(given: list[Any], net: nn.Module | Builder | None) -> nn.Module:
    """The network whose parameters all of them have; on the CPU, and not changed by anything."""
    if net is None:
        net = next((each for each in given if isinstance(each, nn.Module)), None)
    if net is None:
        raise InputError("state dicts belong to a network: give it, Posterior.of(..., net=net)")
    if isinstance(net, nn.Module):
        plain = copy_network(net).cpu()
    else:
        with seeded(derive(0)):
            plain = builder(net)()
    if noisy := list(stochastic_layers(plain)):
        raise InputError(f"the network is stochastic ({noisy[0]}); give the plain one")
    return plain


def _state(plain: nn.Module, one: nn.Module | Mapping[str, Tensor], k: int) -> _State:
    """Of the k-th, whose names, shapes and types must be those of the others."""
    here = dict(plain.state_dict())
    there = dict(one.state_dict() if isinstance(one, nn.Module) else one)
    for name in [*here, *there]:
        a, b = (_about(t.get(name)) for t in (here, there))
        if a != b:
            raise InputError(
                f"networks must have the same parameters and shapes: {name!r} is {a} in the first "
                f"and {b} in number {k}"
            )
    if isinstance(one, nn.Module):
        _refuse_other_modules(plain, one, k)
        own = one
    else:
        for place, name in places_of(plain).items():  # a state dict may tell tied weights apart
            if place in there and not torch.equal(there[place], there[name]):
                raise InputError(
                    f"{name!r} and {place!r} are one parameter in the network, and differ in state "
                    f"dict number {k}"
                )
        own = copy.deepcopy(plain)
        own.load_state_dict(there)
    frozen = with_frozen_norms(own)
    return _State(dict(frozen.named_parameters()), dict(frozen.named_buffers()))


def _about(t: Tensor | None) -> str:
    return "absent" if t is None else f"{tuple(t.shape)} of {str(t.dtype).removeprefix('torch.')}"


def _refuse_other_modules(plain: nn.Module, one: nn.Module, k: int) -> None:
    """Parameters of the same names and shapes may be of networks that compute something else."""
    if {*places_of(plain).items()} != {*places_of(one).items()}:
        raise InputError(f"network number {k} ties other parameters than the first")
    for a, b in zip(str(plain).split("\n"), str(one).split("\n"), strict=False):
        if a != b:
            raise InputError(
                f"networks must compute the same of their parameters: {a.strip()} in the first is "
                f"{b.strip()} in number {k}. If that makes no difference, give state dicts and net="
            )


def _fold(template: nn.Module, states: list[_State]) -> None:
    """Batch norms whose statistics differ become weights of each member, in place."""
    for path, norm in frozen_norms(template).items():
        prefix = f"{path}." if path else ""
        m, v, w, b = (prefix + name for name in ("mean", "var", "weight", "bias"))
        first = states[0].buffers
        if all(_equal(s.buffers[n], first[n]) for s in states for n in (m, v)):
            continue
        for s in states:
            s.params[w], s.params[b] = fold_statistics(
                s.buffers[m], s.buffers[v], s.params.get(w), s.params.get(b), norm.eps
            )
            s.buffers[m], s.buffers[v] = torch.zeros_like(norm.mean), torch.ones_like(norm.var)
        give_affine(norm)


def _refuse_other_buffers(states: list[_State]) -> None:
    for k, s in enumerate(states):
        for name, t in states[0].buffers.items():
            if name not in s.buffers or not _equal(t, s.buffers[name]):
                raise InputError(
                    f"the buffer {name!r} differs between the first network and number {k}, and "
                    "members share buffers. Make it a parameter, or give all networks the same one"
                )


def _equal(one: Tensor, other: Tensor) -> bool:
    one, other = one.detach().cpu(), other.detach().cpu()
    return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())


def _choose_members_own(template: nn.Module, states: list[_State]) -> None:
    """Members own what is trainable or differs; what is frozen and the same is there once."""
    named = dict(template.named_parameters())
    for name, p in named.items():
        same = all(_equal(s.params[name], states[0].params[name]) for s in states)
        p.requires_grad_(p.is_floating_point() and (p.requires_grad or not same))
        if not same and not p.requires_grad:
            raise InputError(f"{name!r} is {p.dtype} and differs, and members own real numbers")
    if not any(p.requires_grad for p in named.values()):  # frozen to be used, not to be shared
        for p in named.values():
            p.requires_grad_(p.is_floating_point())


def _set_shared(template: nn.Module, first: _State) -> None:
    """Buffers, and frozen parameters, as the networks have them."""
    with torch.no_grad():
        for name, t in template.named_buffers():
            t.copy_(first.buffers[name])
        for name, p in template.named_parameters():
            p.copy_(first.params[name])


def _held_against(
    plain: nn.Module,
    given: list[Any],
    template: nn.Module,
    params: Params,
    few: Input,
    like: Likelihood,
    calling: Calling | None,
) -> Engine:
    """The engine that runs the members, whose outputs must be those of the networks."""
    with torch.no_grad(), plain_attention(), seeded(0):
        for k, one in enumerate(given):
            alone = copy.deepcopy(one if isinstance(one, nn.Module) else plain).cpu().eval()
            if not isinstance(one, nn.Module):
                alone.load_state_dict(dict(one))
            known = (alone if calling is None else calling.adapt(alone))(few.clone())
            if k == 0:
                check_distribution(like, known)
            found = forward(template, take(params, slice(k, k + 1)), few, engine="loop")[0]
            if (apart := differs(known, found)) is not None:
                raise InputError(
                    f"network number {k} computes something else at the example than its "
                    f"parameters do in {'net' if k == 0 else 'the first network'}: outputs are "
                    f"{apart:.3g} apart. Do the networks differ in options or constants?"
                )
        try:
            forward(template, take(params, slice(0, 2)), few)
        except Exception:  # the network ran alone, so it is vmap that cannot
            return "loop"
    return "vmap"
