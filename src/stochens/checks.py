"""Said before training starts: what in a network would break an ensemble, or stay silent in one,
and options that are out of their range."""

import functools
import math
import operator
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from numbers import Integral, Real
from typing import Any, ParamSpec

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from stochens.conversions import OWN_DROPOUT
from stochens.errors import InputError, outside
from stochens.members import plain_attention
from stochens.private_names import (
    SPECTRAL,
    BatchNorm,
    InstanceNorm,
    changes,
    checkpointing_refused,
    pre_hooks_of,
)
from stochens.randomness.seeds import seeded
from stochens.trees import Input, InputTree, describe, named

ROUNDING = 1e-3  # of an output, relative to the largest, in whatever precision


class SilentNoiseWarning(UserWarning):
    """The network has dropout of its own that is off at test time."""


def check_network(net: nn.Module) -> None:
    """Refuse layers that mix examples, keep state, or have no parameters yet."""
    for path, module in net.named_modules():
        name = repr(path) if path else "the network itself"
        if isinstance(module, BatchNorm):
            raise InputError(
                f"{name} is a {type(module).__name__}: it mixes the examples of a batch and keeps "
                "state, so its members are no draws from a posterior. Two ways out: "
                "stochens.freeze_batchnorm(net) keeps its running statistics for ever (for a "
                "trained network, whose weights fit begins at by start='module'); "
                "stochens.replace_batchnorm(net, 'frn' or 'group') puts FRN or GroupNorm in its "
                "place"
            )
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise InputError(
                f"{name} is a {type(module).__name__}, through which members cannot be "
                "called; give the network inside it, net.module"
            )
        if isinstance(module, InstanceNorm) and module.track_running_stats:
            raise InputError(
                f"{name} is a {type(module).__name__} with track_running_stats=True, which keeps "
                "state; build it with track_running_stats=False"
            )
        if any(type(part).__name__ in SPECTRAL for part in (module, *pre_hooks_of(module))):
            raise InputError(
                f"{name} has spectral normalisation, which keeps state that all members would "
                "share; remove it, or use weight normalisation"
            )
        own = module.parameters(recurse=False)
        if any(isinstance(p, nn.parameter.UninitializedParameter) for p in own):
            raise InputError(f"{name} is lazy and has no shape yet; call the network once first")
        for own_name, p in module.named_parameters(recurse=False):
            if p.is_complex() and p.requires_grad:
                at = f"{path}.{own_name}" if path else own_name
                raise InputError(
                    f"parameter {at!r} is complex ({p.dtype}), and priors and noise are of real "
                    "numbers; hold its real and imaginary parts as one real parameter [..., 2] and "
                    "join them in forward, by torch.view_as_complex"
                )
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise InputError(
                f"{name} has sparse=True, and sparse gradients cannot be stacked for all members; "
                "build it with sparse=False"
            )
    if not any(p.requires_grad for p in net.parameters()):
        raise InputError("the network has no trainable parameter")


def telling_rows(x: Any, count: int) -> Any:
    """The first rows of x [N, ...], to try a network on; of whole numbers also the rows with the
    smallest and the largest, which an embedding may not have."""
    if isinstance(x, InputTree):
        return _telling_rows_of_tree(x, count)
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool or len(x) <= count:
        return x[:count]
    rows = x.flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    ends = x[[int(rows.amin(1).argmin()), int(rows.amax(1).argmax())]]
    return torch.cat([x[: max(1, count - 2)], ends])


def _telling_rows_of_tree(x: InputTree, count: int) -> InputTree:
    """Likewise; of each tensor of whole numbers the rows of its smallest and its largest."""
    if len(x) <= count:
        return x
    ends: set[int] = set()
    for t in x.leaves:
        if not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool):
            rows = t.reshape(len(t), -1)
            ends |= {int(rows.amin(1).argmin()), int(rows.amax(1).argmax())}
    return x[[*range(max(1, count - 2) if ends else count), *sorted(ends)]]


def probe(net: nn.Module, x: Input) -> Tensor:
    """Outputs of a forward pass in training mode; warns of dropout that is off in eval mode."""
    training = net.training
    on, still_on = _DropoutSpy(), _DropoutSpy()
    x = x.clone()  # the user's own stay what they are, should the network change them
    changed = [changes(t) for t in named(x).values()]
    try:
        with torch.no_grad(), plain_attention(), seeded(0, x.device):
            with still_on:
                net.eval()(x)
            state = {name: t.clone() for name, t in net.named_buffers()}
            with on:
                outputs = net.train()(x)
    finally:
        net.train(training)
    if any(one() for one in changed):
        raise InputError(
            "the network changes its input in place, which is your data, and would do so in every "
            "pass; let it begin with x = x.clone(), or without an in-place operation on x"
        )
    for name, t in net.named_buffers():
        if name in state and not _same(state[name], t):
            raise InputError(
                f"the forward pass changes the buffer {name!r}, which all members share, so that "
                "they are no longer independent; let it stay as it is"
            )
    if not isinstance(outputs, Tensor):
        raise InputError(f"the network must return one tensor, got {type(outputs).__name__}")
    if outputs.dim() > 1 and len(outputs) != len(x):  # other shapes are the likelihood's to refuse
        raise InputError(
            f"the network must return a row for each of its inputs, got {tuple(outputs.shape)} for "
            f"x {describe(x)}"
        )
    _warn_silent(own_dropout(net), on.rates - still_on.rates)
    return outputs


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether it is what it was; of another size, it is a cache that was made anew."""
    return one.shape != other.shape or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def own_dropout(net: nn.Module) -> list[str]:
    """Names of the network's own dropout layers that are on in training and off at test time."""
    found = []
    for path, module in net.named_modules():
        rate = module.p if type(module) in OWN_DROPOUT else getattr(module, "dropout", 0.0)
        if isinstance(module, (*OWN_DROPOUT, nn.MultiheadAttention, nn.RNNBase)) and rate:
            found.append(path or type(module).__name__)
    return found


class _DropoutSpy(TorchFunctionMode):
    """Sees functional dropout, which no walk over modules can."""

    def __init__(self) -> None:
        super().__init__()
        self.rates: Counter[float] = Counter()  # how often each rate above 0 was in use

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        rate = 0.0
        if "dropout" in name:  # F.dropout(x, p, training) or torch.dropout(x, p, train)
            training = kwargs.get("train", args[2] if len(args) > 2 else True)
            if kwargs.get("training", training):
                rate = float(kwargs.get("p", args[1] if len(args) > 1 else 0.5))
        if name == "scaled_dot_product_attention":
            rate = float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
        if rate:
            self.rates[rate] += 1
        return func(*args, **kwargs)


def _warn_silent(layers: list[str], rates: Counter[float]) -> None:
    remedy = (
        "It trains the members but adds nothing to their spread. To keep it on, pass "
        "stochens.keep_dropout(net), which sees nn.Dropout layers only; to leave it to the method, "
        "set its rate to 0"
    )
    if layers:
        warnings.warn(
            f"the network's own dropout ({', '.join(layers)}) is off at test time. {remedy}",
            SilentNoiseWarning,
            stacklevel=outside(),
        )
    elif rates:
        warnings.warn(
            f"the network calls dropout as a function (rate {max(rates)}), which is off at test "
            f"time. {remedy}",
            SilentNoiseWarning,
            stacklevel=outside(),
        )


def probe_outputs(plain: nn.Module, few: Input) -> Tensor:
    """`probe`, where a network that fails on the data is the user's to mend."""
    try:
        with seeded(0, few.device), checkpointing_refused():  # seeded: in one thread at a time
            outputs = probe(plain, few)
            if outputs.dim() > 1:
                _refuse_mixed(plain, few)
            return outputs
    except InputError:
        raise
    except Exception as error:  # whatever the user's own code raises
        raise InputError(
            f"the network fails on x {describe(few)}, its parameters are "
            f"{next(plain.parameters()).dtype}{dtype_remedy(plain, few)}: "
            f"{str(error) or type(error).__name__}"
        ) from error


def _refuse_mixed(net: nn.Module, x: Input) -> None:
    """A row's output must be the same whatever rows are beside it: a member is a function of x."""
    last = len(x) - 1
    among = {k: x[[k if j == k or last < 2 else 1 for j in range(last + 1)]] for k in (0, last)}

    def outputs(x: Input, seed: int = 0) -> Tensor:
        with torch.no_grad(), plain_attention(), seeded(seed, x.device):
            made: Tensor = net(x)
            return made.double()

    training = net.training
    try:
        for mode in (False, True):
            net.train(mode)
            own = outputs(x)
            if not own.isfinite().all() or not torch.equal(own, outputs(x, seed=1)):
                continue  # noise of its own hides what else may differ
            for k, others in among.items():
                apart = (own[k] - outputs(others)[k]).abs().max()
                if not apart <= ROUNDING * own.abs().max():
                    raise InputError(
                        "the network's output for a row depends on the rows beside it, so that its "
                        "members are no functions of x. Is a layer without batch_first=True, or is "
                        "a mean taken over the batch? x comes as [B, ...]"
                    )
    finally:
        net.train(training)


def dtype_remedy(net: nn.Module, x: Input) -> str:
    """For a tensor of another type, which was perhaps meant as one, and so is not converted; and
    for numpy's own float64, which is. Whole numbers that an embedding takes are right."""
    own = next(net.parameters()).dtype
    if isinstance(x, InputTree):
        floats = {name: t for name, t in x.named().items() if t.is_floating_point()}
        other = [name for name, t in floats.items() if t.dtype != own]
        return f"; the network is {own}, so use .to({own}) for {', '.join(other)}" if other else ""
    looked_up = not x.is_floating_point() and any(map(_looks_up, net.modules()))
    if x.dtype == own or looked_up:
        return ""
    if own == torch.float64:
        return "; use torch.as_tensor(x).double()"
    return "; use x.float()" if own == torch.float32 else ""


def _looks_up(module: nn.Module) -> bool:
    return isinstance(module, (nn.Embedding, nn.EmbeddingBag))


def whole(**values: Any) -> None:
    """Each a whole number, at least 1."""
    for name, value in values.items():
        if not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} must be a whole number, at least 1, got {value!r}")


def whole_or_none(**values: Any) -> None:
    """Likewise, where None stands for a choice of ours."""
    whole(**{name: value for name, value in values.items() if value is not None})


def positive(**values: Any) -> None:
    """Each a positive, finite number."""
    for name, value in values.items():
        if not isinstance(value, Real) or not 0 < float(value) < math.inf:
            raise InputError(f"{name} must be a positive number, got {value!r}")


def not_negative(**values: Any) -> None:
    """Each a finite number, 0 or more."""
    for name, value in values.items():
        if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
            raise InputError(f"{name} must not be negative, got {value!r}")


def refuse_renamed(options: dict[str, Any], where: str, **names: str) -> None:
    """Options by names that they had before, each with the name it has now."""
    for old, new in names.items():
        if options.get(old) is not None:
            raise InputError(
                f"{where} has no {old} any more: it is called {new} now, {new}={options[old]!r}"
            )


P = ParamSpec("P")


def renamed(**names: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """For a constructor that may not have options beside those it stores: `refuse_renamed`."""

    def decorate(init: Callable[P, None]) -> Callable[P, None]:
        @functools.wraps(init)
        def wrapper(*args: P.args, **options: P.kwargs) -> None:
            refuse_renamed(options, type(args[0]).__name__, **names)
            init(*args, **options)

        return wrapper

    return decorate


def whole_seed(seed: Any) -> int:
    """Any whole number."""
    if not isinstance(seed, Integral):
        raise InputError(f"seed must be a whole number, got {seed!r}")
    return int(seed)


def member_ids(members: int | Sequence[int], which: str = "members") -> tuple[int, ...]:
    """Those that are asked for: how many, or which."""
    asked: Any = members
    try:
        # numpy's integers too, but no text and no half of a member
        each = range(int(asked)) if isinstance(asked, Integral) else asked
        ids = tuple(map(operator.index, each))
    except TypeError:
        what = f"{which} must be a whole number or a list of them, got {members!r}"
        raise InputError(what) from None
    if not ids:
        raise InputError(f"{which} must be at least 1, got {members!r}")
    if min(ids) < 0 or len(set(ids)) < len(ids):
        raise InputError(f"{which[:-1]} ids must be distinct and not negative, got {list(ids)}")
    return ids
