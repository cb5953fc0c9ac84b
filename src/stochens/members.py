"""The one representation: parameters of many members, stacked on a leading member axis M.

`Params` is named as in `named_parameters()`. A trained ensemble, averages, draws of a sampler are
all `Params`; nothing downstream knows who made them.
"""

import contextlib
import copy
import dataclasses
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from stochens.casts import after_casts, with_casts
from stochens.errors import InputError
from stochens.private_names import reset_of
from stochens.products import in_order
from stochens.randomness.noise import one_by_one, over_members, replay_noise
from stochens.randomness.seeds import INITIALISATION, member_seed, seeded
from stochens.recurrent import under_vmap
from stochens.trees import Input, leaves_of, split

Params = dict[str, Tensor]
Builder = Callable[[], nn.Module]
Engine = Literal["vmap", "loop"]


def trainable(net: nn.Module) -> dict[str, Tensor]:
    """The parameters that members own. Frozen ones (requires_grad=False) are shared by all."""
    return {name: p for name, p in net.named_parameters() if p.requires_grad}


def shared_by_all(net: nn.Module) -> dict[str, Tensor]:
    """Buffers and frozen parameters, which all members have in common."""
    own = {id(p) for p in net.parameters() if p.requires_grad}
    state = net.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in state.items() if id(t) not in own}


def size(params: Params) -> int:
    """How many members, M."""
    return len(next(iter(params.values())))


def device_of(params: Params) -> torch.device:
    return next(iter(params.values())).device


def take(params: Params, members: slice | Sequence[int] | Tensor) -> Params:
    """The chosen members, [len(members), ...].

    >>> take({"w": torch.arange(6.0).view(3, 2)}, [2])["w"]
    tensor([[4., 5.]])
    """
    return {name: p[members] for name, p in params.items()}


def join(blocks: Sequence[Params]) -> Params:
    """Blocks of members as one, in order: [M1, ...] and [M2, ...] to [M1 + M2, ...]."""
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def flatten(params: Params) -> Tensor:
    """Params of M members as [M, D], in their order.

    >>> flatten({"w": torch.ones(3, 2, 2), "scale": torch.zeros(3)}).shape
    torch.Size([3, 5])
    """
    return torch.cat([p.reshape(len(p), -1) for p in params.values()], dim=1)


def move(params: Params, device: torch.device | str) -> Params:
    """The same on another device."""
    return {name: p.to(device) for name, p in params.items()}


# -- building and initialising ------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Factory:
    """Makes freshly initialised networks."""

    make: Builder
    again: Callable[[nn.Module], None] | None = None  # initialises one once more, in place

    def __call__(self) -> nn.Module:
        return self.make()

    def then(self, change: Callable[[nn.Module], nn.Module]) -> "Factory":
        """The same networks, each changed (but for what its initialisation draws)."""
        return Factory(lambda: change(self.make()), self.again)


def builder(net: nn.Module | Builder) -> Factory:
    """What makes a freshly initialised network: the user's function, or copies of a module.

    A module is initialised again through its layers' own `reset_parameters`, children before their
    parents as in a constructor; a parameter that no layer can reset is named in the error.
    """
    if isinstance(net, Factory):
        return net
    if not isinstance(net, nn.Module):
        if not callable(net):
            raise InputError(f"net must be an nn.Module or a function that builds one, got {net!r}")
        return Factory(_checked(net))
    _refuse_unresettable(net)

    def rebuild() -> nn.Module:
        fresh = copy_network(net)
        for p in trainable(fresh).values():
            p.data.fill_(math.nan)
        _reset(fresh)
        for name, p in trainable(fresh).items():
            if bool(p.isnan().any()):
                raise InputError(
                    f"parameter {name!r} stays what it was when its layers are reset, so that all "
                    "members would begin alike (weight or spectral normalisation, pruning?). Pass "
                    "a function that builds the network, e.g. fit(lambda: MyNet(), ...)"
                )
        return fresh.cpu()  # wherever the user's is: members start on the CPU, the same everywhere

    return Factory(rebuild, _reset)


def copy_network(net: nn.Module) -> nn.Module:
    """A copy of the network, which must not hold what has none: a tensor with a history, a lock."""
    try:
        return copy.deepcopy(net)
    except (RuntimeError, TypeError) as error:
        raise InputError(f"the network cannot be copied: {error}") from error


def _reset(net: nn.Module) -> None:
    """Initialise every layer again, in place; what is frozen is not ours to reset."""
    frozen = [(p, p.data.clone()) for p in net.parameters() if not p.requires_grad]
    for module in reversed(list(net.modules())):  # reversed pre-order: children first
        reset = reset_of(module)
        if reset is not None and trainable(module):
            reset()
    for p, value in frozen:
        p.data.copy_(value)


def _checked(build: Builder) -> Builder:
    def checked() -> nn.Module:
        net = build()
        if not isinstance(net, nn.Module):
            raise InputError(f"the function given as net must return an nn.Module, got {net!r}")
        return net.cpu()

    return checked


def _refuse_unresettable(net: nn.Module) -> None:
    for prefix, module in net.named_modules():
        if reset_of(module) is not None:
            continue
        for name, p in module.named_parameters(recurse=False):
            if p.requires_grad:
                path = f"{prefix}.{name}" if prefix else name
                raise InputError(
                    f"parameter {path!r} cannot be initialised again for each member: "
                    f"{type(module).__name__} has no reset_parameters(). Give it one, or pass a "
                    "function that builds the network, e.g. fit(lambda: MyNet(), ...)"
                )


def init(
    build: Builder, *, members: Sequence[int], seed: int, purpose: int = INITIALISATION
) -> Params:
    """Each member's own initialisation, exactly as the author of the network wrote it.

    Member k depends only on (seed, k, purpose).

    >>> params = init(builder(nn.Linear(2, 3)), members=range(5), seed=0)
    >>> {name: tuple(p.shape) for name, p in params.items()}
    {'weight': (5, 3, 2), 'bias': (5, 3)}
    """
    stacked: Params = {}
    shared: dict[str, Tensor] = {}
    again = build.again if isinstance(build, Factory) else None
    net: nn.Module | None = None
    for row, member in enumerate(members):
        with seeded(member_seed(seed, member, purpose)):
            if net is None or again is None:
                before, net = net, build()
                if net is before:
                    raise InputError(
                        "the function given as net returns the same module each time, so that all "
                        "members would begin alike; let it build a new one, or give the module"
                    )
            else:
                again(net)  # to copy a module takes longer than all the rest
        own = trainable(net)
        fixed = {name: t for name, t in net.state_dict().items() if name not in own}
        if row == 0:
            stacked = {
                name: p.detach().new_empty(len(members), *p.shape) for name, p in own.items()
            }
            shared = {name: t.clone() for name, t in fixed.items()}
        for name, p in own.items():
            stacked[name][row] = p.detach()
        _same_for_all(shared, fixed, own)
    return stacked


def _same_for_all(shared: dict[str, Tensor], fixed: dict[str, Tensor], own: Params) -> None:
    for name, t in fixed.items():
        if name not in shared:
            continue  # another name of a tied parameter
        if any(t.data_ptr() == p.data_ptr() for p in own.values() if p.numel()):
            continue
        if not torch.equal(shared[name], t):
            raise InputError(
                f"{name!r} differs between two calls of the function that builds the network, but "
                "buffers and frozen parameters are shared by all members. Make it a trainable "
                "parameter, or build it from a fixed seed"
            )


def init_from_prior(
    shapes: Params,
    *,
    members: Sequence[int],
    seed: int,
    sd: float | Mapping[str, float],
    mean: Params | None = None,
) -> Params:
    """theta_k ~ N(mean, sd^2) for each member; `shapes` is any Params with the names and shapes.

    sd: of all, or by name. mean: [1 or members, ...] by name; 0 where there is none.
    """
    drawn = {name: p.new_empty(len(members), *p.shape[1:]) for name, p in shapes.items()}
    generator = torch.Generator()
    for row, member in enumerate(members):
        generator.manual_seed(member_seed(seed, member, INITIALISATION))
        for name, p in drawn.items():
            own = sd if isinstance(sd, float) else sd[name]
            p[row] = own * torch.randn(p.shape[1:], generator=generator, dtype=p.dtype)
    for name, centre in (mean or {}).items():
        if name in drawn:
            drawn[name] += centre.to(drawn[name])
    return drawn


# -- the forward pass ---------------------------------------------------------------------------


def forward(
    net: nn.Module,
    params: Params,
    x: Input,
    *,
    engine: Engine = "vmap",
    noise: Sequence[Tensor] | None = None,
) -> Tensor:
    """Outputs of every member for the same inputs: x [B, ...] -> [M, B, C].

    `noise`: what the stochastic layers take in turn, each [M, ...]; None: fresh noise.

    >>> net = nn.Linear(2, 3)
    >>> params = init(builder(net), members=range(5), seed=0)
    >>> forward(net, params, torch.zeros(4, 2)).shape
    torch.Size([5, 4, 3])
    """
    return _run(net, params, x, x_axis=None, engine=engine, noise=noise)


def forward_each(net: nn.Module, params: Params, x: Input, *, engine: Engine = "vmap") -> Tensor:
    """Outputs of every member for its own inputs: x [M, B, ...] -> [M, B, C]."""
    return _run(net, params, x, x_axis=0, engine=engine)


def _run(
    net: nn.Module,
    params: Params,
    x: Input,
    *,
    x_axis: int | None,
    engine: Engine,
    noise: Sequence[Tensor] | None = None,
) -> Tensor:
    places = places_of(net)
    drawn = [] if noise is None else list(noise)
    tensors, joined = split(x)

    def call(member: Params, tensors: Any, own: list[Tensor]) -> Tensor:
        everywhere = {place: member[name] for place, name in places.items() if name in member}
        # Tied by us: functional_call's own tying swaps a module with two names twice, and then
        # puts the wrong tensor back.
        # In here, since a mode is told of each question that vmap itself asks of a tensor
        seen = leaves_of(joined(tensors)) if engine == "vmap" else None
        ordered = contextlib.nullcontext() if seen is None else in_order(net, seen)
        with contextlib.nullcontext() if noise is None else replay_noise(own), ordered:
            outputs: Tensor = functional_call(
                net, everywhere, (joined(tensors),), tie_weights=False
            )
        return outputs

    def one(k: int) -> Tensor:
        own = {n: p[k] for n, p in params.items()}
        return call(own, split(x if x_axis is None else x[k])[0], [t[k] for t in drawn])

    layers = under_vmap(places) if engine == "vmap" else contextlib.nullcontext()
    with plain_attention(), layers, with_casts(x.device):  # casts come before layers
        if engine == "vmap":
            axes = (0, x_axis, 0) if drawn else (0, x_axis, None)
            outputs: Tensor = over_members(call, axes)(params, tensors, drawn)
        else:
            outputs = one_by_one(one, size(params))
    return after_casts(outputs)


def watch(net: nn.Module, x: Input, hooks: dict[nn.Module, Callable[..., None]]) -> None:
    """One forward pass of a single network with hooks on some modules, leaving no trace of it."""
    with torch.no_grad(), plain_attention(), seeded(0, x.device):
        # Inside, where no other thread calls the network, or it would call the hooks as well.
        handles = [module.register_forward_hook(hook) for module, hook in hooks.items()]
        try:
            net(x)
        finally:
            for handle in handles:
                handle.remove()


def places_of(net: nn.Module) -> dict[str, str]:
    """Every place where a parameter stands -> the name it goes by; each module once.

    A tied parameter stands in several places and has one name, as in `named_parameters()`.
    """
    names: dict[int, str] = {}
    places: dict[str, str] = {}
    for path, module in net.named_modules():
        for name, p in module.named_parameters(recurse=False):
            place = f"{path}.{name}" if path else name
            places[place] = names.setdefault(id(p), place)
    return places


def plain_attention() -> contextlib.AbstractContextManager[None]:
    """Attention by its plain formula.

    nn.TransformerEncoderLayer's inference fast path reads weights past the layers that own them,
    and so past their noise; and vmap runs the fused attention kernels one member at a time.
    """
    # torch.compile and torch.export trace what is done inside, and no lock.
    return _plain_attention() if torch.compiler.is_compiling() else _plain_for_all_threads()


_switch = threading.Lock()
_inside = 0  # how many blocks there are now, in all threads
_undo = contextlib.ExitStack()


@contextlib.contextmanager
def _plain_for_all_threads() -> Iterator[None]:
    """The first that comes turns the switches, which all threads share, and the last one back."""
    global _inside
    with _switch:
        if _inside == 0:
            _undo.enter_context(_plain_attention())
        _inside += 1
    try:
        yield
    finally:
        with _switch:
            _inside -= 1
            if _inside == 0:
                _undo.close()


@contextlib.contextmanager
def _plain_attention() -> Iterator[None]:
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
