"""The averaged predictor as one function of x and of the noise, by torch.export.

Members run at once, stacked by the operator rules of every program. Where all of them would need
much memory, groups of them run one after the other in a loop inside the graph (ONNX's Scan), and so
do further draws of a member, so that the graph does not grow with their number.
"""

import contextlib
import copy
import logging
import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.func import functional_call
from torch.fx.experimental.symbolic_shapes import is_symbolic

from stochens.errors import InputError
from stochens.likelihoods import Likelihood, draws_of
from stochens.members import Params, forward, places_of, plain_attention, size
from stochens.posterior.shared_noise import noise_requests
from stochens.private_names import scan
from stochens.program import operators
from stochens.program.program import placeholders, stack
from stochens.program.stacker import Stacker
from stochens.program.trace import Traced, Untraceable, read
from stochens.randomness.noise import replay_noise
from stochens.trees import Input, cat, named

log = logging.getLogger("stochens")

OLDEST_TORCH = "2.10"  # the first whose scan can be traced with a network inside
TOGETHER = 2**18  # bytes of one example's largest tensor, of all members that run at once


class Predictor(NamedTuple):
    """What is to be written. S draws are rows of M members: draw s is of member s mod M."""

    net: nn.Module
    params: Params  # [M, ...], or [S, ...] where each draw has parameters of its own
    likelihood: Likelihood
    noise: dict[str, Tensor]  # each [S, ...]
    draws: int  # S
    temperature: float = 1.0


class _One(nn.Module):
    """One draw of one member as a function of x, its parameters and its noise. `joined` makes the
    network's input of x."""

    def __init__(self, net: nn.Module, names: list[str], joined: Callable[[Any], Input]) -> None:
        super().__init__()
        self._net, self._names, self._joined = net, names, joined
        self._places = places_of(net)

    def forward(self, x: Any, params: list[Tensor], noise: list[Tensor]) -> Tensor:
        own = dict(zip(self._names, params, strict=True))
        everywhere = {place: own[name] for place, name in self._places.items() if name in own}
        with replay_noise(noise), plain_attention():
            outputs: Tensor = functional_call(
                self._net, everywhere, (self._joined(x),), tie_weights=False
            )
        return outputs  # [B, C]


class _Group(NamedTuple):
    """Members that run at once: (x, params [G, ...], noise [G, ...]) -> outputs [G, B, C]."""

    run: nn.Module
    members: int  # G


class _Alone(nn.Module):
    """A group of one, by the graph that torch.export made of it."""

    def __init__(self, one: nn.Module) -> None:
        super().__init__()
        self._one = one

    def forward(self, x: Any, params: list[Tensor], noise: list[Tensor]) -> Tensor:
        own = [[t.squeeze(0) for t in given] for given in (params, noise)]
        return self._one(x, *own).unsqueeze(0)  # type: ignore[no-any-return]


class _Stacked(nn.Module):
    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__()
        self._graph = graph

    def forward(self, x: Any, params: list[Tensor], noise: list[Tensor]) -> Tensor:
        return self._graph(*_tensors(x), *params, *noise)  # type: ignore[no-any-return]


class _All(nn.Module):
    """Every draw, and their averages."""

    def __init__(self, predictor: Predictor, group: _Group, loop: Callable[..., Any]) -> None:
        super().__init__()
        self._run, self._together, self._scan = group.run, group.members, loop
        self._likelihood, self._draws = predictor.likelihood, predictor.draws
        self._temperature = predictor.temperature
        self._count = size(predictor.params)
        for k, p in enumerate(predictor.params.values()):
            self.register_buffer(f"parameter_{k}", p)

    def forward(self, x: Any, noise: dict[str, Tensor]) -> tuple[Tensor, ...]:
        params = list(self.buffers(recurse=False))  # each [M, ...]
        if self._together == self._count == self._draws:
            outputs = self._run(x, params, list(noise.values()))  # [S, B, C]
        else:
            outputs = self._in_turns(x, params, noise)
        said = draws_of(self._likelihood, outputs, self._temperature)
        return tuple(said.exported().values())

    def _in_turns(self, x: Any, params: list[Tensor], noise: dict[str, Tensor]) -> Tensor:
        def turn(carry: Tensor, row: list[Tensor]) -> tuple[Tensor, Tensor]:
            members, own = row[0], list(row[1:])  # older torch takes `members, *own` for a tuple
            whole = self._together == self._count
            theta = params if whole else [p.index_select(0, members) for p in params]
            return carry.clone(), self._run(x, theta, own)

        groups = (self._draws // self._together, self._together)
        rows = (torch.arange(self._draws) % self._count).view(groups)
        given = [rows, *(t.unflatten(0, groups) for t in noise.values())]
        _, outputs = self._scan(turn, _tensors(x)[0].new_zeros(()), given)
        return outputs.flatten(0, 1)  # type: ignore[no-any-return]


def _tensors(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values())


def output_names(predictor: Predictor, x: Input) -> list[str]:
    """What the likelihood calls its averages, in order; x is an example."""
    net = copy.deepcopy(predictor.net).cpu().eval()
    one = {name: p[:1].detach().cpu() for name, p in predictor.params.items()}
    noise = [t[:1] for t in predictor.noise.values()]
    with torch.no_grad():
        outputs = forward(net, one, x[:1].cpu(), engine="loop", noise=noise)  # [1, 1, C]
    return list(draws_of(predictor.likelihood, outputs).exported())


class Sequence(NamedTuple):
    """Which axes have the length of a sequence, which stays free."""

    of_x: dict[str, set[int]]  # of each input
    of_noise: list[set[int]]  # of each tensor of noise, for one draw


def program(predictor: Predictor, x: Input) -> Any:
    """The torch.export.ExportedProgram of (x [B, ...], noise) -> averages; x is an example.

    Of a tree x is a dictionary of its tensors by name. Lengths of sequences stay free where torch
    can trace that.
    """
    if torch.__version__ < OLDEST_TORCH:  # compared as versions, not as strings
        raise InputError(f"export needs torch {OLDEST_TORCH} or newer, this is {torch.__version__}")
    net = copy.deepcopy(predictor.net).cpu().eval().requires_grad_(False)
    # copies: those of a sampler are views of one tensor, and torch's scan takes no two such
    params = {name: p.detach().cpu().clone() for name, p in predictor.params.items()}
    predictor, x = predictor._replace(net=net, params=params), x[:1].cpu()
    if (free := sequence(net, x)) is not None:
        with contextlib.suppress(RuntimeError, ValueError, TypeError, AssertionError):
            return _traced(predictor, x, free)
    return _traced(predictor, x, Sequence({}, [set() for _ in predictor.noise]))


def sequence(net: nn.Module, x: Input) -> Sequence | None:
    """The axes that are of another length where x [1, T, ...] is one shorter; None where nothing is
    a sequence, or the network takes no other length.

    T is the length of the second axes of whole numbers and of masks.
    """
    lengths = _lengths(x)
    if not lengths or min(lengths) < 3:  # torch takes 0 and 1 for lengths that are always these
        return None
    of_x = {name: {1} for name, t in named(x).items() if t.dim() > 1 and t.shape[1] in lengths}
    cut = {name: t[:, :-1] if name in of_x else t for name, t in named(x).items()}
    shorter = cut["x"] if isinstance(x, Tensor) else x.with_leaves(list(cut.values()))
    try:
        then, now = noise_requests(net, x), noise_requests(net, shorter)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    pairs = [(enumerate(a.shape), b.shape) for a, b in zip(then, now, strict=True)]
    return Sequence(of_x, [{k for k, size in one if other[k] != size} for one, other in pairs])


def _lengths(x: Input) -> set[int]:
    """
    >>> _lengths(torch.zeros(2, 7, dtype=torch.long)), _lengths(torch.zeros(2, 7))
    ({7}, set())
    """
    return {t.shape[1] for t in named(x).values() if t.dim() > 1 and not t.is_floating_point()}


def _traced(predictor: Predictor, x: Input, free: Sequence) -> Any:
    """By all members at once where the rules and torch can do that; else one after the other."""
    try:
        return _averages(predictor, x, free, _stacked)
    except (Untraceable, RuntimeError, ValueError, TypeError, AssertionError) as error:
        log.debug("members are exported one after the other: %s", error)
    return _averages(predictor, x, free, _alone)


def _averages(
    predictor: Predictor, x: Input, free: Sequence, grouped: Callable[[Any, Predictor], _Group]
) -> Any:
    net, params = predictor.net, predictor.params
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim.AUTO
    first = [p[0] for p in params.values()]
    noise = [t[0] for t in predictor.noise.values()]
    # torch takes an axis of length 1 for one that is always 1, and two of one length for the same
    given, joined = example_of(cat([x] * next(n for n in (3, 5, 7) if n not in _lengths(x))))
    axes = [{0: batch, **dict.fromkeys(free.of_x.get(name, ()), length)} for name in named(x)]
    shapes: Any = axes[0] if isinstance(x, Tensor) else dict(zip(given, axes, strict=True))
    of_one = [dict.fromkeys(own, length) for own in free.of_noise]
    of_all = [{k + 1: length for k in own} for own in free.of_noise]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        one = torch.export.export(
            _One(net, list(params), joined),
            (given, first, noise),
            dynamic_shapes=(shapes, [None] * len(first), of_one),
        )
        group = grouped(one, predictor)
        if 1 < group.members < predictor.draws:  # the loop takes operators alone
            n = group.members
            rows = [[t[:n] for t in named.values()] for named in (params, predictor.noise)]
            flat = torch.export.export(
                group.run, (given, *rows), dynamic_shapes=(shapes, [None] * len(first), of_all)
            )
            group = _Group(_with_constants(flat), n)
        return torch.export.export(
            _All(predictor, group, scan()),
            (given, predictor.noise),
            dynamic_shapes=(shapes, dict(zip(predictor.noise, of_all, strict=True))),
        )


def _stacked(one: Any, predictor: Predictor) -> _Group:
    count = len(one.graph_signature.user_inputs) - len(predictor.params) - len(predictor.noise)
    traced = read(one, list(predictor.params), inputs=count, last_shared=0)
    graph = stack(traced, Stacker(), own_rows=False)
    most = math.gcd(size(predictor.params), predictor.draws)
    room = max(1, TOGETHER // _largest(traced))
    members = next(n for n in range(min(most, room), 0, -1) if most % n == 0)
    if members == 1 or any(node.target is operators.loop_members for node in graph.graph.nodes):
        raise Untraceable("one member at a time is as well")
    return _Group(_Stacked(graph), members)


def _alone(one: Any, predictor: Predictor) -> _Group:
    return _Group(_Alone(_with_constants(one)), 1)


def _largest(traced: Traced) -> int:
    """Bytes of the largest tensor that one example has in one member."""
    given = placeholders(traced)[: traced.inputs]
    of_x = set(given)
    largest = 1
    for node in traced.graph.nodes:
        if not of_x.isdisjoint(node.all_input_nodes):
            of_x.add(node)
            if isinstance(t := node.meta.get("val"), Tensor):
                largest = max(largest, math.prod(map(_length, t.shape)) * t.element_size())
    return largest // _length(given[0].meta["val"].shape[0])


def _length(size: Any) -> int:
    """Of a free one what it has in the example."""
    return int(size.node.hint) if is_symbolic(size) else int(size)


def _with_constants(made: Any) -> nn.Module:
    """The traced module, with the tensors that it makes of numbers as buffers: torch's scan does
    not take others."""
    module: nn.Module = made.module()
    for name in made.constants:
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if own in vars(owner):
            value = vars(owner).pop(own)
            owner.register_buffer(own, value)
    return module


def example_of(x: Input) -> tuple[Any, Callable[[Any], Input]]:
    """What the exported function takes, and how the network's input is made of that."""
    if isinstance(x, Tensor):
        return x, lambda t: t
    return x.named(), lambda given: x.with_leaves(list(given.values()))
