"""Who takes the leapfrog steps: torch, a CUDA graph of torch, or a compiled kernel."""

import functools
import logging
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.kernels.graphs import record_graph
from stochens.kernels.nuts import CpuChains, CudaChains, kernel_for
from stochens.private_names import copy_all
from stochens.program.graph import graph_of
from stochens.program.mlp_fusion import flat_layers
from stochens.samplers import fixed, nuts
from stochens.samplers.adaptation import Adaptation
from stochens.samplers.problem import Problem
from stochens.samplers.target import Target
from stochens.samplers.trajectory import (
    MAX_ENERGY_ERROR,
    Guard,
    Point,
    Record,
    Rules,
    State,
    always,
    leapfrog,
    look,
)

Arrive = Callable[[State, Point, Rules, Record, Guard], State]
log = logging.getLogger("stochens")


class Runner(Protocol):
    """Holds the chains' state and moves it on."""

    def state(self) -> State: ...

    def advance(self, iterations: int) -> None:
        """At most so many leapfrog steps of every chain."""


def rule(rules: Rules) -> Arrive:
    return fixed.arrive if rules.length else nuts.arrive


class PlainRunner:
    """Plain torch, one operation after the other: the reference that the others are held to."""

    def __init__(self, state: State, target: Target, rules: Rules, record: Record) -> None:
        self._state, self._target, self._rules, self._record = state, target, rules, record

    def state(self) -> State:
        return self._state

    def advance(self, iterations: int) -> None:
        arrive = rule(self._rules)
        for _ in range(iterations):
            to = leapfrog(self._state, self._target)
            self._state = arrive(self._state, to, self._rules, self._record, look)


class GraphRunner:
    """The same operations, recorded once as a CUDA graph and replayed: Python is not in the loop.

    What follows a leapfrog step is hundreds of small operations, which torch.compile makes few.
    """

    def __init__(self, state: State, target: Target, rules: Rules, record: Record) -> None:
        self._static = tensors(state)
        before = [t.clone() for t in (*self._static, *record)]

        def step(arrive: Arrive) -> None:
            now = restored(self._static)
            new = arrive(now, leapfrog(now, target), rules, record, always)
            copy_all(self._static, tensors(new))

        log.info("compiling a step of the chains; torch keeps it for the next run")
        try:
            self._graph = record_graph(functools.partial(step, compiled_rule(rules)))
        except Exception as error:  # whatever the compiler stumbles over, torch itself can do it
            log.info("chains run without torch.compile: %s", error)
            self._graph = record_graph(functools.partial(step, rule(rules)))
        # warming up and recording moved the chains too
        copy_all([*self._static, *record], before)

    def state(self) -> State:
        return restored(self._static)

    def advance(self, iterations: int) -> None:
        for _ in range(iterations):
            self._graph.replay()


def compiled_rule(rules: Rules) -> Arrive:
    compiled: Arrive = torch.compile(rule(rules), fullgraph=True, dynamic=False)
    return compiled


def tensors(state: State) -> list[Tensor]:
    """Every tensor of a state, in order, as memory of its own."""
    flat = [*state[:-1], *state.adaptation]
    seen: set[int] = set()
    own = []
    for t in flat:
        t = t.contiguous()
        own.append(t.clone() if t.data_ptr() in seen else t)
        seen.add(own[-1].data_ptr())
    return own


def restored(flat: list[Tensor]) -> State:
    """The inverse of `tensors`."""
    fields = len(State._fields) - 1
    return State._make([*flat[:fields], Adaptation(*flat[fields:])])


def names() -> list[str]:
    """The names of `tensors`, in order."""
    return [*State._fields[:-1], *Adaptation._fields]


def choose(
    engine: str, problem: Problem, target: Target, state: State, rules: Rules, record: Record
) -> Runner:
    """The fastest way that fits."""
    if engine in ("auto", "fused"):
        compiled = _compiled(problem, state, rules, record)
        if compiled is not None:
            log.info("chains run by a compiled kernel, whole leapfrog steps at a time")
            return compiled
        if engine == "fused":
            raise InputError(
                "engine='fused' runs chains of small Linear layers and activations where there is "
                "a compiler and the prior is N(0, 1 / precision), not this network here; use "
                "engine='auto'"
            )
    if state.key.device.type == "cuda" and problem.engine != "loop":
        return GraphRunner(state, target, rules, record)
    return PlainRunner(state, target, rules, record)


class Compiled:
    """A kernel that works on the state in place."""

    def __init__(self, static: list[Tensor], kernel: CpuChains | CudaChains) -> None:
        self._static, self._kernel = static, kernel

    def state(self) -> State:
        return restored(self._static)

    def advance(self, iterations: int) -> None:
        self._kernel.advance(iterations)


def _compiled(problem: Problem, state: State, rules: Rules, record: Record) -> Compiled | None:
    x = problem.x
    if not isinstance(x, Tensor):
        return None  # kernels take one tensor
    if not problem.coordinates.plain:  # kernels know one precision, and no mean
        return None
    layers = flat_layers(graph_of(problem.net), x, problem.shapes)
    code = problem.likelihood.kernel()
    if layers is None or code is None:
        return None
    kind = kernel_for(layers, code, x, state.tree_q.shape[1])
    if kind is None:
        return None
    static = tensors(state)
    numbers = {
        **{k: v for k, v in rules._asdict().items() if k != "windows"},
        "chains": len(state.key),
        "parameters": state.tree_q.shape[1],
        "checkpoints": state.check_p.shape[1],
        "transitions": record.stats.shape[1],
        "samples": record.draws.shape[1],
        "max_error": MAX_ENERGY_ERROR,
        "precision": problem.prior_precision,
    }
    named = {
        **rules.windows._asdict(),
        "draws": record.draws,
        "stats": record.stats,
        **dict(zip(names(), static, strict=True)),
    }
    return Compiled(static, kind(x, problem.y, numbers, named))
