"""The part of a network that no member changes, computed once: features in the place of inputs.

    x --prefix--> features --rest--> outputs

x and features are one tensor or several: a mask that the rest needs too is one of the features.

In the graph of one member, values that depend on no parameter of a member and on no noise are the
same for all. They are cut off where they are smallest: the prefix is a function of x alone, and the
rest is a network of features, with the parameters of the whole under their own names and with
its noise, drawn in the same order. So whatever runs the whole runs the rest, and gets the same.
"""

import logging
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.fx.experimental.symbolic_shapes import is_symbolic
from torch.utils.flop_counter import FlopCounterMode

from stochens.members import Engine, Params, forward, trainable
from stochens.program.parts import Batch, batch_of, is_batch, is_of_batch, prefix_of, rest_of
from stochens.program.precision import whole_float32
from stochens.program.program import is_check, placeholders
from stochens.program.stacker import arguments_of, is_random
from stochens.program.trace import Traced, Untraceable, is_operator, trace
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import seeded
from stochens.trees import Input, for_members, leaves_of, like_leaves

log = logging.getLogger("stochens")

WORTH = 0.1  # of the operations of a pass: less is not kept
NEARLY = 0.95  # of the operations that could be saved: a cut may miss the others to be small
WITHIN = {torch.float64: 1e-8, torch.float32: 1e-3}  # relative; a wrong cut is off by far more
APART = 0.05  # how far the second member of the test is from the network's own parameters


class Split(NamedTuple):
    """outputs = rest(prefix(x)), in the mode that the network was in."""

    prefix: nn.Module  # x [B, ...] -> features [B, ...], the same for all members
    rest: nn.Module  # features -> outputs, with the network's trainable parameters
    bytes_each: int  # of the values that the rest computes for one example
    saved: float  # share of the operations of a pass that is in the prefix

    def features(self, x: Input) -> Input:
        """Of x [B, ...] on the network's device, without a gradient."""
        with torch.no_grad():
            made: Input = self.prefix(_two_or_more(x))
        return made[: len(x)]


def _two_or_more(x: Input) -> Input:
    """1 is another case for torch."""
    made: Input = x if len(x) > 1 else for_members(x[0], 2)
    return made


def has_frozen(net: nn.Module) -> bool:
    return any(not p.requires_grad for p in net.parameters())


def split(net: nn.Module, few: Input, *, engine: Engine = "vmap") -> Split | None:
    """The network in its mode, cut for inputs like few [B, ...], on their device, which is its own.

    None where it has no frozen parameters, where little would be saved, and where it cannot be
    done: the log has one line that says why.

    >>> net = nn.Sequential(nn.Linear(3, 50), nn.Tanh(), nn.Linear(50, 2))
    >>> cut = split(net.requires_grad_(False), torch.zeros(4, 3))
    >>> cut is None  # nothing is trained
    True
    >>> net[2].requires_grad_(True)
    Linear(in_features=50, out_features=2, bias=True)
    >>> cut = split(net, torch.zeros(4, 3))
    >>> cut.features(torch.zeros(7, 3)).shape, cut.rest(cut.features(torch.zeros(7, 3))).shape
    (torch.Size([7, 50]), torch.Size([7, 2]))
    """
    if not has_frozen(net) or not trainable(net):
        return None
    few = _two_or_more(few)
    try:
        with seeded(0, few.device):
            traced = trace(net, few, copied=False)
            found = _cut(net, traced, few)
            if isinstance(found, str):
                log.info("the frozen part is computed in each step: %s", found)
                return None
            with whole_float32():
                _refuse_wrong(net, found, few, engine)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # torch.export and the user's operators raise many kinds
        reason = str(error).strip().split("\n")[0] or type(error).__name__
        log.warning("the frozen part is computed in each step: it cannot be cut off (%s)", reason)
        return None
    return found


# -- where to cut ---------------------------------------------------------------------------------


class _Place(NamedTuple):
    """A cut: the prefix ends with these values."""

    values: list[fx.Node]
    operations: float  # before it
    size: float  # bytes of an example


def _cut(net: nn.Module, traced: Traced, few: Input) -> Split | str:
    """The split, or why there is none."""
    batch = batch_of(traced)
    if traced.least == traced.most:
        return "the network fixes the number of examples (by len(x)? x.shape[0] leaves it free)"
    measured = _Measured(net, traced)
    measured.run_on(few)
    total = sum(measured.operations.values())
    order = [node for node in traced.graph.nodes if node.op in ("placeholder", "call_function")]
    shared, drawn = _shared(traced, order)
    places = list(_places(traced, order, shared, batch, measured))
    most = max((place.operations for place in places), default=0.0)
    if most == 0 or most < WORTH * total:
        if drawn:
            _tell_of_noise(drawn)
        return f"what comes before all members and noise has {most / (total or 1):.0%} of the work"
    able = [place for place in places if place.operations >= NEARLY * most]
    best = min(able, key=lambda place: place.size)
    rest, names = rest_of(net, traced, best.values, batch)
    each = sum(measured.sizes.get(name, 0.0) for name in names)
    return Split(prefix_of(traced, best.values), rest, math.ceil(each), best.operations / total)


def _tell_of_noise(drawn: list[fx.Node]) -> None:
    names = ", ".join(sorted({str(node.target).split(".")[1] for node in drawn}))
    log.warning(
        "the frozen part of the network draws noise of its own (%s), so that each member computes "
        "it in each step. It is computed once where that noise is off in training: give the frozen "
        "modules in eval mode (net.eval() before fit), or set the rate to 0",
        names,
    )


class _Measured(fx.Interpreter):
    """One member's pass: the operations of each node and the bytes of its value, for an example."""

    def __init__(self, net: nn.Module, traced: Traced) -> None:
        super().__init__(fx.GraphModule(nn.Module(), traced.graph))
        self._net, self._traced = net, traced
        self.operations: dict[str, float] = {}  # by the node's name: GraphModule has copies
        self.sizes: dict[str, float] = {}

    def run_on(self, few: Input) -> None:
        own = [p.detach() for p in trainable(self._net).values()]
        numbers = torch.zeros(3, dtype=torch.int64, device=few.device)  # a member, two seeds
        self._rows = len(few)
        inputs = [*self._traced.constants.values(), *leaves_of(few), *own, numbers[0], numbers[1:]]
        with torch.no_grad(), FlopCounterMode(display=False) as self._counter:
            self.run(*inputs)

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_function" and is_check(n.target):
            return None
        before = self._counter.get_total_flops()
        value = super().run_node(n)
        self.operations[n.name] = float(self._counter.get_total_flops() - before)
        if isinstance(value, Tensor):
            self.sizes[n.name] = value.numel() * value.element_size() / self._rows
        return value


def _shared(traced: Traced, order: list[fx.Node]) -> tuple[set[fx.Node], list[fx.Node]]:
    """Nodes that depend on no member and no noise; and those that would, but draw torch's noise."""
    own = set(placeholders(traced)[traced.inputs :])  # parameters, member, seeds
    shared: set[fx.Node] = set()
    drawn: list[fx.Node] = []
    for node in order:
        if node in own or not all(source in shared for source in node.all_input_nodes):
            continue
        if node.op == "call_function" and _draws(node):
            drawn.append(node)
        else:
            shared.add(node)
    return shared, drawn


def _draws(node: fx.Node) -> bool:
    """Whether it takes numbers from torch's generator. Dropout of rate 0, or that is off, takes
    none."""
    if not is_operator(node.target) or not is_random(node.target):
        return False
    given = arguments_of(node.target, node.args, node.kwargs)
    rate = next((given[name] for name in ("p", "dropout_p", "dropout") if name in given), None)
    on = next((given[name] for name in ("train", "training") if name in given), True)
    return bool(on) and rate != 0


def _places(
    traced: Traced, order: list[fx.Node], shared: set[fx.Node], batch: Batch, measured: _Measured
) -> Iterator[_Place]:
    """All cuts. After each node of the graph, the shared values of x that are needed later."""
    number = {node: k for k, node in enumerate(order)}
    of_x = set(placeholders(traced)[: traced.inputs])
    needed: dict[fx.Node, float] = {}  # value -> the last node that needs it
    operations = 0.0
    for place, node in enumerate(order):
        if node in shared and (node in of_x or any(v in of_x for v in node.all_input_nodes)):
            operations += measured.operations.get(node.name, 0.0)
            if not isinstance(node.meta.get("val"), int | torch.SymInt):
                of_x.add(node)
                users = [u for u in node.users if not is_batch(u, batch) and not _checks(u)]
                last = [number[u] if u in shared else math.inf for u in users]
                needed[node] = max(last, default=-1)
        needed = {value: last for value, last in needed.items() if last > place}
        values = list(needed)
        if node.op == "placeholder":  # the next one may be needed too
            continue
        if values and _storable(values, batch):
            size = sum(measured.sizes[value.name] for value in values)
            yield _Place(values, operations, size)


def _storable(values: list[fx.Node], batch: Batch) -> bool:
    """Whether each is [B, ...] of a fixed shape."""
    return all(
        isinstance(t, Tensor)
        and t.dim() > 0
        and is_of_batch(t.shape[0], batch)
        and all(not is_symbolic(length) for length in t.shape[1:])
        for t in (node.meta["val"] for node in values)
    )


def _checks(node: fx.Node) -> bool:
    return node.op == "call_function" and is_check(node.target)


# -- whether it is right --------------------------------------------------------------------------


def _refuse_wrong(net: nn.Module, found: Split, few: Input, engine: Engine) -> None:
    """Two members by the whole and by the parts; and examples whose features depend on others."""
    params: Params = {}
    for name, p in trainable(net).items():
        one = p.detach()
        params[name] = torch.stack([one, one + APART * torch.randn_like(one)])
    few = _all_apart(few)
    allowed = WITHIN.get(next(iter(params.values())).dtype, 0.2)
    ids = torch.tensor([0, 1], device=few.device)
    outputs = []
    features = found.features(few)
    with torch.no_grad():
        for run, x in ((net, few), (found.rest, features)):
            with seeded(0, few.device), member_noise(ids, ids[:1]):
                outputs.append(forward(run, params, x, engine=engine))
    if not _distance(*outputs) <= allowed:
        raise Untraceable(f"its parts are off by {_distance(*outputs):.1e}")
    for row in (0, len(few) - 1):
        alone = found.features(few[[row, row]])
        for ours, theirs in zip(leaves_of(features), leaves_of(alone), strict=True):
            if not _distance(ours[row], theirs[0]) <= allowed:
                raise Untraceable("the features of an example depend on the others of its batch")


def _all_apart(few: Input) -> Input:
    """Rows that are all the same would not tell. Of several tensors, those of 0 and 1 are masks,
    and stay so."""
    leaves = leaves_of(few)

    def apart(t: Tensor) -> Tensor:
        if not t.is_floating_point() or (len(leaves) > 1 and bool(((t == 0) | (t == 1)).all())):
            return t
        return t + (APART * t.std() + 1e-3) * torch.randn_like(t)

    made: Input = like_leaves(few, [apart(t) for t in leaves])
    return made


def _distance(one: Tensor, other: Tensor) -> float:
    one, other = one.double(), other.double()
    off = (one - other).where(one != other, 0.0)  # a mask may have -inf
    return float(off.norm() / one.norm().clamp_min(1e-30))
