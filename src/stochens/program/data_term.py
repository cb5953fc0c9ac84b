"""The mean NLL of all members on their rows, by the fastest way that fits: a kernel (fusions.py), a
program (choice.py) or the engine. `fit` and the samplers take gradients of it. loader_term.py is
the same for batches that come unseen, outputs.py for outputs without targets.
"""

import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from stochens import objective
from stochens.errors import InputError, Unsuited
from stochens.kernels.noise import words
from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params
from stochens.program.apart import Apart
from stochens.program.choice import TRIED, Choice, Workload, choose, say
from stochens.program.features import OnHost
from stochens.program.fusions import fused_nll
from stochens.program.precision import auto_dtype
from stochens.program.program import Noise
from stochens.program.turns import in_turns
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import noise_seed
from stochens.run.freed import freed_memory_kept
from stochens.trees import Input

LOOKED_AT = 16  # examples that tell whether bfloat16 is enough

# (params [M, ...], batch, the number of the step, which inside a CUDA graph is a tensor [1]) -> [M]
# A batch is rows [M, B] of the data, or None for all of them; of a loader (x [B, ...], y [B, ...]).
DataTerm = Callable[[Params, Any, int | Tensor], Tensor]


class InMemory(NamedTuple):
    """The data, on the device that computes."""

    x: Input | OnHost  # [N, ...]
    y: Tensor  # [N, ...]
    weights: Tensor | None = None  # [N], of mean 1


class Way(NamedTuple):
    """How the network may be run."""

    engine: Engine  # what runs it where nothing else does
    fast: bool = True  # whether kernels and programs may
    compile: bool | None = False  # by torch.compile; None: where it is worth its time
    bf16: bool | None = None  # None: by kernels, and by programs where `bf16_programs`
    bf16_programs: bool = False
    batch: int = 0  # examples of a member at a time; 0: all of the data
    examples: float = 0.0  # of all members, in all of the work
    own_rows: bool = False  # whether each member has rows of its own
    # whether gradients are done with before the next are asked for, so that those may take their
    # memory
    reuse: bool = False


class Term(NamedTuple):
    """The mean NLL of each member on its rows, and how it wants to be called."""

    of: DataTerm
    context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    recordable: bool = False  # whether a CUDA graph can hold it
    compiled: bool = False  # whether its first call compiles


def data_term(
    net: nn.Module,
    likelihood: Likelihood,
    data: InMemory,
    members: tuple[int, ...],
    seed: int,
    way: Way,
) -> Term:
    """Of the network in the mode that it is in. Noise is a function of (seed, member, step),
    whatever runs it and whoever the other members are."""
    on_gpu = data.x.is_cuda
    if way.fast and not way.compile and isinstance(data.x, Tensor):
        kernel = _kernel(net, likelihood, data, members, seed, way)
        if kernel is not None:
            return kernel
    chosen = program_by(net, likelihood, data.x, way)
    mean_nll = objective.mean_nll(
        net,
        likelihood,
        engine=way.engine,
        bf16=bool(way.bf16),
        compiled=bool(way.compile) if chosen is None else chosen.compiled,
        weights=data.weights,
        program=None if chosen is None else chosen.outputs,
    )
    context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if chosen is not None and isinstance(chosen.outputs, Apart) and not on_gpu:
        mean_nll = in_turns(mean_nll, chosen.outputs.program.names, reuse=way.reuse)
        context = freed_memory_kept()
    noise_of = whose_noise(members, seed, data.x.device)

    def by_program(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        return mean_nll(params, _inputs(data, rows), data.y, rows, noise_of(step))

    def by_engine(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        return mean_nll(params, _inputs(data, rows), data.y, rows)

    if chosen is not None:
        return Term(by_program, context, recordable=on_gpu, compiled=chosen.compiles)
    recordable = on_gpu and way.fast and way.engine == "vmap"
    if way.compile:  # it takes the noise of torch
        say(net, "compiled without a program: a member's noise depends on who else is in its block")
        return Term(by_engine, recordable=recordable, compiled=True)
    return Term(with_own_noise(by_engine, members, seed, data.x.device), recordable=recordable)


def program_by(
    net: nn.Module, likelihood: Likelihood, x: Input | OnHost, way: Way
) -> Choice | None:
    """How to run the network's program for inputs like x [B, ...], where one may and pays."""
    if not way.fast:
        return None
    load = Workload(
        batch=way.batch or len(x),
        examples=way.examples,
        own_rows=way.own_rows,
        compile=way.compile,
        engine=way.engine,
        dtype=_dtype(net, likelihood, x, way),
    )
    return choose(net, x[:TRIED], load)


def _dtype(
    net: nn.Module, likelihood: Likelihood, x: Input | OnHost, way: Way
) -> torch.dtype | None:
    """What a program computes in; None: in the precision of the parameters."""
    if way.bf16:
        return torch.bfloat16
    if way.bf16 is False or not way.bf16_programs:
        return None
    apart = x[:: max(1, len(x) // LOOKED_AT)][:LOOKED_AT]  # neighbours may be alike
    return auto_dtype(net, apart, coarse=likelihood.coarse)


def _inputs(data: InMemory, rows: Tensor | None) -> Input:
    """x, whose rows come from the host when they are taken, or at once where all are wanted."""
    if isinstance(data.x, OnHost) and rows is None:
        return data.x[:]
    return cast(Input, data.x)


def _kernel(
    net: nn.Module,
    likelihood: Likelihood,
    data: InMemory,
    members: tuple[int, ...],
    seed: int,
    way: Way,
) -> Term | None:
    """By a kernel for the whole network, where there is one."""
    if data.weights is not None or way.engine != "vmap":  # kernels know no weights
        return None
    if not isinstance(data.x, Tensor):
        return None
    on = (net, likelihood, data.x, data.y, members, seed)
    found = fused_nll(*on, bf16=way.bf16 is not False)
    if found is None:
        return None
    fusion, nll = found
    # it makes noise on outputs by itself; that on weights is drawn before it runs
    own = with_own_noise(nll, members, seed, data.x.device)
    return Term(own, fusion.context(), recordable=fusion.recordable)


def refuse_unfused(net: nn.Module, likelihood: Likelihood, data: InMemory) -> None:
    """Where no kernel runs this network."""
    if data.weights is not None:
        raise InputError("engine='fused' knows no weights of rows; use engine='auto'")
    if _kernel(net, likelihood, data, (0,), 0, Way("vmap")) is None:
        raise Unsuited(
            "engine='fused' runs chains of small Linear layers and activations on a CPU with a C++ "
            "compiler, not this network; use engine='auto'"
        )


def own_noise(noise: Noise) -> contextlib.AbstractContextManager[None]:
    """Inside, layers draw each member's own noise, where the device has it."""
    if noise.members.device.type not in ("cpu", "cuda"):
        return contextlib.nullcontext()
    return member_noise(*noise, words)


def with_own_noise(
    term: Callable[[Params, Any, int | Tensor], Tensor],
    members: tuple[int, ...],
    seed: int,
    device: torch.device,
) -> Callable[[Params, Any, int | Tensor], Tensor]:
    """The same with each member's own noise where vmap or a loop runs it."""
    noise_of = whose_noise(members, seed, device)

    def own(params: Params, batch: Any, step: int | Tensor) -> Tensor:
        with own_noise(noise_of(step)):
            return term(params, batch, step)

    return own


def whose_noise(
    members: tuple[int, ...], seed: int, device: torch.device
) -> Callable[[int | Tensor], Noise]:
    """The noise of these members in each step."""
    ids = torch.tensor(members, device=device)
    first = torch.tensor([noise_seed(seed)], device=device)
    return lambda step: Noise(ids, first + step)
