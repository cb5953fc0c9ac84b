"""Members or chains that were made apart, as one posterior."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.members import Params, join, shared_by_all
from stochens.posterior.chains import Chains
from stochens.posterior.fingerprint import ROUNDING, differs, fingerprint
from stochens.posterior.history import History
from stochens.posterior.low_rank import join_low_rank
from stochens.posterior.posterior import Posterior

SHARED = ("recipe", "likelihood", "data_size", "sample_weight", "prior_precision", "seed")


def join_parts(posteriors: Sequence[Posterior]) -> Posterior:
    """Members, or chains of one sampler, that were made apart, as one posterior, in order.

    They must be of the same network, method, data size and weights, and no member may come twice.
    Chains must share all options of their sampler and have the same number of draws; then the
    sampler can go on with all of them.

    >>> import stochens
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> parts = [stochens.fit(net, data, members=ids, epochs=1) for ids in (range(2), range(2, 5))]
    >>> join_parts(parts).params["0.weight"].shape  # [M, 5, 2]
    torch.Size([5, 5, 2])
    """
    sampled = bool(posteriors) and all(p.chains is not None for p in posteriors)
    return join_chains(posteriors) if sampled else join_posteriors(posteriors)


def join_posteriors(posteriors: Sequence[Posterior]) -> Posterior:
    """Members that were made apart, as one posterior; chains are not kept."""
    if not posteriors:
        raise InputError("nothing to join")
    first, *others = posteriors
    if others:
        _refuse_temperatures(posteriors)
    for other in others:
        for field in SHARED:
            if getattr(first, field) != getattr(other, field):
                raise InputError(
                    f"posteriors differ in {field}: {getattr(first, field)} and "
                    f"{getattr(other, field)}"
                )
        if {n: p.shape[1:] for n, p in first.params.items()} != {
            n: p.shape[1:] for n, p in other.params.items()
        }:
            raise InputError("posteriors are of different networks")
        if _described(first) != _described(other):
            raise InputError(
                f"posteriors differ in prior: {_described(first)} and {_described(other)}"
            )
        _refuse_other_network(first, other)
        if (first.low_rank is None) != (other.low_rank is None):
            raise InputError("of the posteriors only some have SWAG's Gaussian around each member")
    ids = [member for posterior in posteriors for member in posterior.members]
    if len(set(ids)) < len(ids):
        raise InputError("a member is in two of the posteriors; train them with other member ids")
    histories = [p.history for p in posteriors if p.history is not None]
    spreads = [p.low_rank for p in posteriors if p.low_rank is not None]
    return dataclasses.replace(
        first,
        params=join([p.params for p in posteriors]),
        prior_mean=_joined_means(posteriors),
        members=tuple(ids),
        history=_together(histories) if len(histories) == len(posteriors) else None,
        low_rank=join_low_rank(spreads) if len(spreads) == len(posteriors) else None,
        chains=None,
    )


def _refuse_temperatures(posteriors: Sequence[Posterior]) -> None:
    """A temperature was fitted to the mean of its own members, and more of them need another."""
    if any(p.calibration is not None for p in posteriors):
        raise InputError(
            "a posterior has a temperature, which is of its own members alone; join the posteriors "
            "without it (posterior.uncalibrated()), and fit one of all members"
        )


def _described(posterior: Posterior) -> dict[str, Any] | None:
    return None if posterior.prior is None else posterior.prior.description()


def _joined_means(posteriors: Sequence[Posterior]) -> Params:
    """The prior's means, [1, ...] where all members have the same, else [M, ...]."""
    found: Params = {}
    for name in posteriors[0].prior_mean:
        means = [p.prior_mean[name] for p in posteriors]
        if all(len(mean) == 1 and torch.equal(mean, means[0].to(mean)) for mean in means):
            found[name] = means[0]
        elif any(p.chains is not None for p in posteriors):
            raise InputError(f"posteriors differ in the mean of the prior of {name!r}")
        else:
            each = (m.expand(len(p), *m.shape[1:]) for m, p in zip(means, posteriors, strict=True))
            found[name] = torch.cat([m.to(means[0]) for m in each])
    return found


def _refuse_other_network(first: Posterior, other: Posterior) -> None:
    """Parameters of the same names and shapes may be of networks that compute something else."""
    if other.net is first.net:
        return
    ours, theirs = (shared_by_all(p.net) for p in (first, other))
    for name, t in ours.items():
        if not _same(t, theirs.get(name)):
            raise InputError(
                f"posteriors are of different networks: {name!r}, which all members share, differs"
            )
    one, two = (fingerprint(p.net, first.params, first.inputs) for p in (first, other))
    if one is not None and two is not None and (apart := differs(one, two)) is not None:
        raise InputError(
            "posteriors are of different networks: with the same parameters their outputs are up "
            f"to {apart:.3g} apart"
        )


def _same(one: Tensor, other: Tensor | None) -> bool:
    """To rounding: tables of constants may have been computed on other machines."""
    if other is None or one.shape != other.shape:
        return False
    one, other = one.cpu(), other.cpu()
    return torch.equal(one, other) or torch.allclose(one.double(), other.double(), rtol=ROUNDING)


def _together(histories: list[History]) -> History | None:
    """None where some trained for more epochs than others, or with validation."""
    same = len({(len(h.loss), len(h.validation)) for h in histories}) == 1
    return History.join(histories) if same else None


def join_chains(posteriors: Sequence[Posterior]) -> Posterior:
    """Chains of one sampler that ran apart, as one posterior, chain after chain."""
    parts = [p.chains for p in posteriors if p.chains is not None]
    assert len(parts) == len(posteriors)
    _refuse_other_chains(parts, [len(p) // p.chains.count for p in posteriors if p.chains])
    joined = join_posteriors(
        [dataclasses.replace(p, members=()) for p in posteriors]  # draws of each count from 0
    )
    members = tuple(range(len(joined)))
    return dataclasses.replace(joined, members=members, chains=Chains.join(parts))


def _refuse_other_chains(parts: list[Chains], draws: list[int]) -> None:
    """They must agree in all but which they are. draws: of each chain, of each part."""
    first, *others = (
        {**p.settings, "draws of each chain": n} for p, n in zip(parts, draws, strict=True)
    )
    for name, value in first.items():
        for other in others:
            if name != "chains" and other.get(name) != value:
                raise InputError(f"chains differ in {name}: {value!r} and {other.get(name)!r}")
    ids = [chain for part in parts for chain in part.ids]
    if len(set(ids)) < len(ids):
        raise InputError("a chain is in two of the posteriors; sample other ones, e.g. chains=[2]")
