"""The mean NLL of all members on batches that come unseen, as a DataLoader or a stream gives them,
by the fastest way that fits. data_term.py is the same for data in memory.

All members see the same batch. One batch may have other lengths than the next: what was made for
the first of them serves those of its form, and the engine any other. What is frozen before the
members is computed once for a batch: vmap and programs do so by themselves, and where members run
one after the other it is cut off.
"""

import contextlib
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from stochens import objective
from stochens.likelihoods import Likelihood
from stochens.members import Params
from stochens.objective import MeanNLL
from stochens.program.apart import Apart
from stochens.program.choice import TRIED, Choice, flops, traces_worth
from stochens.program.data_term import (
    DataTerm,
    Term,
    Way,
    program_by,
    whose_noise,
    with_own_noise,
)
from stochens.program.fusions import fused_batch_nll
from stochens.program.prefix import Split, has_frozen, split
from stochens.program.program import Noise, forms_of
from stochens.program.turns import in_turns
from stochens.randomness.seeds import seeded
from stochens.run.freed import freed_memory_kept
from stochens.trees import Input, form, leaves_of

Pair = tuple[Input, Tensor]  # x [B, ...], y [B, ...]


def loader_term(
    net: nn.Module,
    likelihood: Likelihood,
    first: Pair,
    members: tuple[int, ...],
    seed: int,
    way: Way,
) -> Term:
    """Of the network in the mode that it is in, as a function (params, (x, y), step) -> [M]. first:
    the first batch. Targets are held against the outputs each time."""
    whole, one_by_one = _term(net, likelihood, first, members, seed, way)
    if not one_by_one or len(members) < 2 or not has_frozen(net):
        return whole
    return _behind_frozen(whole, net, likelihood, first, members, seed, way)


def _behind_frozen(
    whole: Term,
    net: nn.Module,
    likelihood: Likelihood,
    first: Pair,
    members: tuple[int, ...],
    seed: int,
    way: Way,
) -> Term:
    """Of the features of each batch: those of as many forms as are worth a trace, and `whole` of
    the others."""
    few = first[0][:TRIED]
    saved = way.examples * (1 - 1 / len(members)) * flops(net, few) / len(few)
    most = traces_worth(saved, on_gpu=few.is_cuda)
    found: dict[Hashable, tuple[Split, Term] | None] = {}

    def cut_for(batch: Pair) -> tuple[Split, Term] | None:
        x, y = batch
        kind = form(x)
        if kind not in found and len(found) < most:
            cut = split(net, x[:TRIED], engine=way.engine)
            found[kind] = None
            if cut is not None:
                pair = cut.features(x), y
                found[kind] = cut, _term(cut.rest, likelihood, pair, members, seed, way)[0]
        return found.get(kind)

    def of(params: Params, batch: Pair, step: int | Tensor) -> Tensor:
        cut = cut_for(batch)
        if cut is None:
            return whole.of(params, batch, step)
        x, y = batch
        return cut[1].of(params, (cut[0].features(x), y), step)

    begun = cut_for(first)
    if begun is None:  # nor is it to be tried for any other length
        return whole
    return Term(of, begun[1].context, compiled=whole.compiled or begun[1].compiled)


def _term(
    net: nn.Module,
    likelihood: Likelihood,
    first: Pair,
    members: tuple[int, ...],
    seed: int,
    way: Way,
) -> tuple[Term, bool]:
    """Of the network as it is, and whether members run one after the other."""
    x = first[0]
    by_engine = objective.mean_nll(
        net, likelihood, engine=way.engine, bf16=bool(way.bf16), check=True
    )

    def of_engine(params: Params, batch: Pair, step: int | Tensor) -> Tensor:
        x, y = batch
        return by_engine(params, x, y, None)

    engine: DataTerm = with_own_noise(of_engine, members, seed, x.device)
    kernel = _kernel(net, likelihood, x, members, seed, way, engine)
    if kernel is not None:
        return kernel, False
    chosen = program_by(net, likelihood, x, way)
    if chosen is None:
        return Term(engine), way.engine == "loop"
    term = _by_program(net, likelihood, x, way, chosen)
    noise_of = whose_noise(members, seed, x.device)
    program = chosen.program

    def of(params: Params, batch: Pair, step: int | Tensor) -> Tensor:
        x, y = batch
        if program.ready_for(x, chosen.traces):
            return term(params, x, y, noise_of(step))
        return engine(params, batch, step)

    apart = isinstance(chosen.outputs, Apart)
    context = freed_memory_kept() if apart and not x.is_cuda else contextlib.nullcontext()
    return Term(of, context, compiled=chosen.compiles), apart


def _kernel(
    net: nn.Module,
    likelihood: Likelihood,
    x: Input,
    members: tuple[int, ...],
    seed: int,
    way: Way,
    engine: DataTerm,
) -> Term | None:
    """By a kernel for the whole network, where there is one."""
    if not way.fast or way.compile or way.engine != "vmap" or not isinstance(x, Tensor):
        return None
    found = fused_batch_nll(net, likelihood, x, members, seed, bf16=way.bf16 is not False)
    if found is None:
        return None
    fusion, nll_of = found
    check = _check_of(net, likelihood, x)

    def of(params: Params, batch: tuple[Tensor, Tensor], step: int | Tensor) -> Tensor:
        nll = nll_of(*batch) if batch[0].shape[1:] == x.shape[1:] else None
        if nll is None:
            return engine(params, batch, step)
        check(batch[1])
        return nll(params, None, step)

    # it makes noise on outputs by itself; that on weights is drawn before it runs
    return Term(with_own_noise(of, members, seed, x.device), fusion.context())


def _by_program(
    net: nn.Module, likelihood: Likelihood, x: Input, way: Way, chosen: Choice
) -> Callable[[Params, Input, Tensor, Noise], Tensor]:
    """By the network's program; compiled for batches of the form of x alone, since each form is
    compiled by itself, for longer than many a training takes."""
    plain = Apart(chosen.program) if isinstance(chosen.outputs, Apart) else chosen.program
    common: MeanNLL = objective.mean_nll(
        net, likelihood, engine=way.engine, check=True, program=plain
    )
    if isinstance(plain, Apart) and not x.is_cuda:
        common = in_turns(common, chosen.program.names, reuse=way.reuse)
    if not chosen.compiles:
        return lambda params, x, y, noise: common(params, x, y, None, noise)
    compiled = objective.mean_nll(
        net, likelihood, engine=way.engine, compiled=chosen.compiled, program=chosen.outputs
    )
    check, form = _check_of(net, likelihood, x), forms_of(leaves_of(x))

    def of(params: Params, x: Input, y: Tensor, noise: Noise) -> Tensor:
        if forms_of(leaves_of(x)) != form:
            return common(params, x, y, None, noise)
        check(y)
        return compiled(params, x, y, None, noise)

    return of


def _check_of(net: nn.Module, likelihood: Likelihood, x: Input) -> Callable[[Tensor], None]:
    """Whether targets [B, ...] fit what the network gives for inputs like x [B, ...]."""
    with torch.no_grad(), seeded(0, x.device):
        one: Any = net(x[:1])
    return lambda y: likelihood.check_outputs(one.expand(len(y), *one.shape[1:]), y)
