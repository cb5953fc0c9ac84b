"""Outputs of all members by the fastest way that fits: a kernel, the network's program, or its
engine. Predictions, validation and batches that a user's function changes take what is chosen here;
data_term.py is the same for losses.
"""

import contextlib
import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from stochens.members import Engine, Params, forward, forward_each, shared_by_all
from stochens.private_names import changes
from stochens.program.apart import Apart
from stochens.program.choice import BACKWARD, ON_CPU_FROM, TRIED, Workload, choose, flops
from stochens.program.features import OnHost
from stochens.program.fusions import Outputs as Fused
from stochens.program.fusions import fused_outputs
from stochens.program.known import findings
from stochens.program.program import Noise, Program
from stochens.randomness.seeds import alone
from stochens.trees import Input

Source = contextlib.AbstractContextManager[None]  # inside, layers draw each member's own noise


class Outputs(NamedTuple):
    """What runs the members of a network in its mode. Noise is that of (member, seed, site),
    whichever of the three it is."""

    net: nn.Module
    engine: Engine
    bf16: bool = False  # of what the engine computes, on CUDA
    program: Callable[[], Program | Apart | None] = lambda: None
    kernel: Fused | None = None

    def __call__(
        self,
        params: Params,
        x: Input,
        noise: Noise,
        source: Source,
        given: list[Tensor] | None = None,
    ) -> Tensor:
        """params [M, ...], x [B, ...] of all members -> [M, B, C]. source: the same noise for the
        layers themselves; given: tensors in the place of all noise, which the engine takes."""
        if given is None and self.kernel is not None and isinstance(x, Tensor):
            with source:  # noise on weights is drawn before it runs
                return self.kernel(params, x, noise)
        program = self.program() if given is None else None
        if program is not None:
            return program(params, x, noise)
        with source, self._precision(x):
            return forward(self.net, params, x, engine=self.engine, noise=given)

    def each(self, params: Params, x: Input, noise: Noise, source: Source) -> Tensor:
        """Likewise where each member has inputs of its own, x [M, B, ...]."""
        program = self.program()
        if program is not None:
            return program.each(params, x, noise)
        with source, self._precision(x):
            return forward_each(self.net, params, x, engine=self.engine)

    def _precision(self, x: Input) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(x.device.type, torch.bfloat16, enabled=self.bf16)


def outputs_for(
    net: nn.Module, few: Input, load: Workload, *, fast: bool, bf16: bool | None
) -> Outputs:
    """For inputs like few [B, ...] on the device that computes; `fast`: whether the program may."""
    chosen = choose(net, few, load) if fast and not bf16 else None
    found = None if chosen is None else chosen.outputs
    return Outputs(net, load.engine, bool(bf16), lambda: found)


def predicted_by(
    net: nn.Module,
    params: Params,
    x: Input | OnHost,
    load: Workload,
    *,
    device: torch.device,
    bf16: bool | None,
    kernels: bool = True,
    known: dict[Hashable, Any] | None = None,
) -> Outputs:
    """For predictions of members at x [B, ...], again and again: what was found out about a network
    is kept. known: its findings, if the caller has them. bf16: None is by kernels alone. Only
    threads that are alone with the network may call what this gives: the program is traced when it
    is first needed."""
    kernel = None
    if kernels and load.engine == "vmap" and len(x):
        few = x[:TRIED]
        if isinstance(few, Tensor):
            with alone():
                known = findings(net) if known is None else known
                kernel = kept_kernel(net, known, params, few.to(device), bf16)
    if load.engine != "vmap" or bf16 or kernel is not None:
        return Outputs(net, load.engine, bool(bf16), kernel=kernel)
    program = functools.cache(lambda: kept_program(net, x[:TRIED].to(device), load))
    return Outputs(net, load.engine, False, program)


def kept_kernel(
    net: nn.Module, known: dict[Hashable, Any], params: Params, few: Tensor, bf16: bool | None
) -> Fused | None:
    """The kernel that runs all members on inputs like few [B, ...], if any; chosen once."""
    dtype, allowed = next(iter(params.values())).dtype, bf16 is not False
    case = ("kernel", few.shape[1:], few.dtype, few.device, dtype, allowed)
    if case in known:
        return cast(Fused | None, known[case])
    found = fused_outputs(net, params, few, bf16=allowed)
    if "graph" in known:  # else something was in the way, and will not be the next time
        known[case] = found
    return found


class _Traced(NamedTuple):
    """A network's program, if it has one, and what of the network it depends on."""

    operations: float  # of one example and member
    outputs: Program | Apart | None
    tried: bool  # whether there is one is known
    shared: dict[str, Tensor]  # buffers and frozen parameters, which it holds copies of
    changed: list[Callable[[], bool]]


def unchanged(net: nn.Module, shared: dict[str, Tensor], changed: list[Callable[[], bool]]) -> bool:
    """Whether what all members share is as it was."""
    now = shared_by_all(net)
    same = now.keys() == shared.keys() and all(
        now[name].data_ptr() == t.data_ptr() for name, t in shared.items()
    )
    return same and not any(one() for one in changed)


_traced: weakref.WeakKeyDictionary[nn.Module, _Traced] = weakref.WeakKeyDictionary()


def kept_program(net: nn.Module, few: Input, load: Workload) -> Program | Apart | None:
    """The network's program, on a GPU or for long work on a CPU; it is traced once."""
    held = _traced.get(net)
    if held is not None and not _pays(held.operations, few, load):
        return None
    if held is None or not unchanged(net, held.shared, held.changed):
        shared = shared_by_all(net)
        changed = [changes(t) for t in shared.values()]
        held = _Traced(flops(net, few) / len(few), None, False, shared, changed)
    pays = _pays(held.operations, few, load)
    if pays and not held.tried:
        chosen = choose(net, few, load)
        held = held._replace(outputs=None if chosen is None else chosen.outputs, tried=True)
    _traced[net] = held
    return held.outputs if pays else None


def _pays(operations: float, few: Input, load: Workload) -> bool:
    return few.is_cuda or operations * BACKWARD * load.examples >= ON_CPU_FROM
