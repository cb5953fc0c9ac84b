"""What runs a network's members: its program, or none, and then vmap serves.

A program is taken after it has been seen to give what vmap gives, for two members on a few inputs,
and the gradients that each member alone has. The log says in one line what is taken, and why not
the program where it is not.
"""

import importlib.util
import logging
import math
import weakref
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.flop_counter import FlopCounterMode

from stochens.members import Engine, Params, forward, forward_each, places_of, trainable
from stochens.program.apart import Apart
from stochens.program.precision import whole_float32
from stochens.program.program import Noise, Program, build
from stochens.program.trace import Untraceable
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import seeded
from stochens.trees import Input, for_members

log = logging.getLogger("stochens")

# ||program - vmap|| / ||vmap|| that rounding may make: a wrong rule is off by far more
WITHIN = {torch.float64: 1e-8, torch.float32: 1e-2, torch.bfloat16: 0.2}
# Likewise of the gradient of one parameter, which goes through every layer twice. What is below
# SMALL of the whole gradient may be rounding.
GRADIENTS_WITHIN = {torch.float64: 1e-6, torch.float32: 0.1}
SMALL = 1e-3
APART = 0.05  # how far the second member of the test is from the network's own parameters

# One H200 (benchmarks/results/programs-h200.json). Compiling takes 5 to 80 s and programs are 1.2
# to 1.9 times as fast then; eager ones do 20 to 80 TFLOP/s: worth it after some two minutes.
COMPILE_FROM = 5e15  # floating-point operations of a whole training
# Floating-point operations of the average convolution of a member's batch, by weights of its own,
# from which on each member has a stream. ResNet-18 (10 GFLOP) is 1.4 times as fast by streams as by
# grouped convolutions, the small CNN (2.4 at most) 0.9 times.
STREAMS_FROM = 5e9
# Likewise on a CPU, by any weights, where members then take turns. Grouped convolutions are slower
# than that; frozen ones for all members at once take 1.1 to 1.7 times as long (4 members, 48
# channels of 32 x 32 positions, one thread).
TURNS_FROM = 1e8
# Of that, where convolutions have groups: MobileNetV2 at 9e6 to 9e7 is two to three times as fast
# in turns, and at 1e6 slower (4 or 8 members, one thread).
GROUPED = 0.05
# Operations of all the work on a CPU. By vmap they are 7 to 12 s of an MLP, of which a program
# saves 1 to 5 s, and 1 to 2 s of a transformer, of which it saves less than 0.3 s. To trace one
# takes 0.1 to 2 s.
ON_CPU_FROM = 1e11
MOST_TRACES = 32  # of one training: a network may need one for each length of its inputs
COMPILES_SINCE = "2.11"  # torch's versions that have been tried
TRIED = 4  # examples on which a program is held against vmap
BACKWARD = 3  # operations of a step for each one of its forward pass


class Workload(NamedTuple):
    """What a program will be used for."""

    batch: int  # examples of a member at a time
    examples: float  # of all members, in all of the training
    own_rows: bool  # whether each member has inputs of its own
    compile: bool | None = None  # None: where it is worth its time
    engine: Engine = "vmap"  # what runs the network otherwise
    dtype: torch.dtype | None = None  # what the program computes in; None: that of the parameters
    gradients: bool = True  # whether they are asked for; predictions need none


class Choice(NamedTuple):
    """What runs the members, and whether to put the function that calls it through torch.compile
    (members apart are compiled by themselves already)."""

    outputs: Program | Apart
    compiled: bool
    traces: int = 1  # how many forms of inputs are worth a trace of their own

    @property
    def program(self) -> Program:
        """The program itself."""
        return self.outputs.program if isinstance(self.outputs, Apart) else self.outputs

    @property
    def compiles(self) -> bool:
        """Whether anything goes through torch.compile."""
        return self.compiled or (isinstance(self.outputs, Apart) and self.outputs.compiled)


def choose(net: nn.Module, few: Input, task: Workload) -> Choice | None:
    """How to run a network in its mode for inputs like few [B, ...], on their device; None where
    there is no program.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> task = Workload(batch=20, examples=1e12, own_rows=True)
    >>> choose(net, torch.randn(4, 3), task).compiled
    False
    """
    work = BACKWARD * task.examples * flops(net, few) / len(few)
    if not few.is_cuda and not task.compile and work < ON_CPU_FROM:
        # done by vmap before a program is traced
        say(net, f"members run by {task.engine}: a program pays from {ON_CPU_FROM:.0e} operations")
        return None
    program = program_for(net, few, task)
    if program is None:
        return None
    compiled = task.compile
    if compiled is None:
        able = few.is_cuda and importlib.util.find_spec("triton") is not None
        compiled = able and torch.__version__ >= COMPILES_SINCE and work >= COMPILE_FROM
    if program.recurrent:  # torch.compile leaves their layers as they are
        compiled = False
    apart = members_apart(program, task.batch, on_gpu=few.is_cuda)
    how = (", each on a stream" if few.is_cuda else ", one after the other") if apart else ""
    log.info(
        "members run by one program%s%s: %.1e floating-point operations to do",
        *(how, ", compiled" if compiled else "", work),
    )
    traces = traces_worth(work, on_gpu=few.is_cuda)
    if apart:
        return Choice(Apart(program, compiled=compiled), False, traces)
    return Choice(program, compiled, traces)


def traces_worth(work: float, *, on_gpu: bool) -> int:
    """How many forms of inputs are worth a trace of their own. On a CPU each takes as long as what
    it may save of `work` operations."""
    return MOST_TRACES if on_gpu else max(1, int(min(MOST_TRACES, work / max(ON_CPU_FROM, 1.0))))


def members_apart(program: Program, batch: int, *, on_gpu: bool) -> bool:
    """Whether each member runs by itself, on a stream of a GPU or in its turn on a CPU. On a GPU a
    layer whose weights all share is one launch for all members; on a CPU it is not faster than
    members in turns, whose values stay in the cache. Depthwise convolutions of all members side by
    side take twice the time there."""
    if not on_gpu:
        return program.mean_convolution * batch >= (GROUPED if program.grouped else 1) * TURNS_FROM
    large = program.own_convolution * batch >= STREAMS_FROM
    return large or program.own_recurrent or program.grouped


def flops(net: nn.Module, few: Input) -> float:
    """Of a forward pass of one member: products, convolutions and attention."""
    # Detached: the counter hooks into gradients, and a view of a parameter, such as a class token
    # that is expanded to the batch, asks for one even in no_grad, and has no function to hook into.
    named = dict(net.named_parameters())
    plain = {place: named[name].detach() for place, name in places_of(net).items()}
    more = {torch.ops.aten.mkldnn_rnn_layer: _flops_of_lstm}
    counting = FlopCounterMode(display=False, custom_mapping=more)
    with torch.no_grad(), seeded(0, few.device), counting as counter:
        functional_call(net, plain, (few,), tie_weights=False)
    return float(counter.get_total_flops())


def _flops_of_lstm(x: Any, into: Any, back: Any, *rest: Any, **named: Any) -> int:
    """oneDNN's, by shapes: x [T, B, I], into [4 H, I], back [4 H, H]."""
    return int(2 * math.prod(x[:-1]) * (math.prod(into) + math.prod(back)))


def program_for(net: nn.Module, few: Input, task: Workload) -> Program | None:
    """The network's program where it can be traced, runs, and gives what the engine gives."""
    try:
        program = build(net, few, dtype=task.dtype)
        with seeded(0, few.device):
            off = distance_to_members(program, net, few, task)
        wrong = _wrong_gradient(program, net, few, task)
    except Untraceable as error:
        say(net, f"members run by {task.engine}: the network cannot be traced ({error})")
        return None
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        say(net, f"members run by {task.engine}: their program does not run ({reason})")
        return None
    allowed = WITHIN.get(task.dtype or next(iter(trainable(net).values())).dtype, 0.2)
    said = "" if off <= allowed else f"is off by {off:.1e}, and {allowed:.1e} is allowed"
    if said or wrong:
        log.warning(
            "members run by %s: their program %s; please report this network",
            *(task.engine, said or wrong),
        )
        return None
    return program


_said: weakref.WeakKeyDictionary[nn.Module, set[str]] = weakref.WeakKeyDictionary()


def say(net: nn.Module, text: str) -> None:
    """In the log, once for a network, whatever number of blocks its members come in."""
    if text not in _said.setdefault(net, set()):
        _said[net].add(text)
        log.info(text)


def distance_to_members(program: Program, net: nn.Module, few: Input, task: Workload) -> float:
    """||program - engine|| / ||engine|| of outputs, for two members with noise of their own; 0
    where the network draws from torch's generator, so that two passes never agree."""
    two = _two_members(net, few, task)
    with torch.no_grad():
        ours = two.by_program(program)
        before = _generator(few.device)
        theirs = two.by_engine(net, task.engine)
    if not torch.equal(before, _generator(few.device)):
        return 0.0
    return distance(ours, theirs)


def two_members(net: nn.Module, device: torch.device) -> Params:
    """The network's own parameters, and others near them; [2, ...]."""
    params: Params = {}
    for name, p in trainable(net).items():
        one = p.detach().to(device)
        params[name] = torch.stack([one, one + APART * torch.randn_like(one)])
    return params


def distance(ours: Tensor, known: Tensor) -> float:
    """||ours - known|| / ||known||, infinite where they have not even the same shape."""
    if ours.shape != known.shape:
        return math.inf
    return float((ours - known).double().norm() / known.double().norm().clamp_min(1e-30))


def _wrong_gradient(program: Program, net: nn.Module, few: Input, task: Workload) -> str:
    """In words, or nothing. They are held in the precision of the parameters: in bfloat16 rounding
    would hide a wrong rule, and the rules are the same."""
    if not task.gradients:
        return ""
    exact = program if program.dtype is None else build(net, few)
    with seeded(0, few.device), whole_float32():
        off, name = gradient_distance(exact, net, few, task)
    allowed = GRADIENTS_WITHIN.get(next(iter(trainable(net).values())).dtype, 0.5)
    if off <= allowed:
        return ""
    return f"has a gradient of {name} that is off by {off:.1e}, and {allowed:.1e} is allowed"


def gradient_distance(
    program: Program, net: nn.Module, few: Input, task: Workload
) -> tuple[float, str]:
    """The largest ||program - loop|| / ||loop|| over the gradients of all parameters, and whose it
    is: of a random projection of the outputs, for two members. Not vmap: its embedding gives the
    padding row a gradient. 0 where the network draws from torch's generator.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    >>> few = torch.randn(4, 3).double()
    >>> off, _ = gradient_distance(build(net, few), net, few, Workload(4, 1.0, own_rows=False))
    >>> off < 1e-12
    True
    """
    two = _two_members(net, few, task)
    for p in two.params.values():
        p.requires_grad_()
    before = _generator(few.device)
    with torch.enable_grad():
        theirs = two.by_engine(net, "loop")
        if not torch.equal(before, _generator(few.device)):
            return 0.0, ""
        along = torch.randn_like(theirs)
        expected = _gradients(theirs, along, two.params)
        ours = _gradients(two.by_program(program), along, two.params)
    whole = torch.stack([g.norm() for g in expected.values()]).norm()
    least = (SMALL * whole).clamp_min(1e-30)
    off = {n: (ours[n] - g).norm() / g.norm().maximum(least) for n, g in expected.items()}
    name = max(off, key=lambda n: float(off[n].nan_to_num(torch.inf)))
    return float(off[name]), name


def _gradients(outputs: Tensor, along: Tensor, params: Params) -> Params:
    own = list(params.values())
    found = torch.autograd.grad(outputs, own, along, allow_unused=True, materialize_grads=True)
    return {name: g.double() for name, g in zip(params, found, strict=True)}


class _Two(NamedTuple):
    """Two members on a few inputs, each with noise of its own."""

    params: Params
    x: Input  # [B, ...], or [2, B, ...]
    noise: Noise
    own_rows: bool

    def by_program(self, program: Program) -> Tensor:
        run = program.each if self.own_rows else program
        return run(self.params, self.x, self.noise)

    def by_engine(self, net: nn.Module, engine: Engine) -> Tensor:
        run = forward_each if self.own_rows else forward
        with member_noise(*self.noise):
            return run(net, self.params, self.x, engine=engine)


def _two_members(net: nn.Module, few: Input, task: Workload) -> _Two:
    ids = torch.tensor([0, 1], device=few.device)
    params = two_members(net, few.device)
    x = for_members(few, 2) if task.own_rows else few
    return _Two(params, x, Noise(ids, torch.tensor([0], device=few.device)), task.own_rows)


def _generator(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
