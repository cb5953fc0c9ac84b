"""Negative log likelihood of M small MLPs, each on its own batch, with all gradients in one pass.

    u_l = (W_l h_l + b_l) * z_l / (1 - p_l) + sqrt(S_l h_l^2 + s_l) * eps_l,   h_{l+1} = f_l(u_l)
    nll_m = -1/B sum_b log p(y_b | h_L),   z_l ~ Bernoulli(1 - p_l),   eps_l ~ N(0, 1)

`nll` runs mlp.cpp; tests/kernels/mlp_reference.py has the same function in plain torch. The draws
are those of randomness/noise.py, by (seed, member id, number of the draw, row in the batch, node):
a member sees the same noise in any company, and by whatever runs it.
"""

import contextlib
import ctypes
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, NotRequired, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor

from stochens.kernels import build

Likelihood = Literal["categorical", "gaussian-heteroscedastic"] | tuple[Literal["gaussian"], float]

# both in the order of the enums in mlp.cpp
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda u: u,
    "relu": F.relu,
    "tanh": torch.tanh,
    "silu": F.silu,
}
LIKELIHOODS = ("categorical", "gaussian", "gaussian-heteroscedastic")
MAX_THREADS = 64
NO_MEMORY = 3  # of the enum Error


# of a layer's weights [M, out, in] and of its bias [M, out]
Variance = tuple[Tensor, Tensor | None]


class Options(TypedDict):
    """What `nll` needs besides the parameters and the data."""

    index: Tensor | None  # [M, B] rows of x for each member; None: every member takes all rows
    activation: Sequence[str]  # after each layer
    dropout: Sequence[float]  # rate of each layer's outputs, before the activation
    likelihood: Likelihood  # ("gaussian", noise standard deviation)
    members: Tensor  # [M] ids, which choose the noise
    seed: int
    variances: NotRequired[Sequence[Variance | None] | None]  # Gaussian noise of each layer
    sites: NotRequired[Sequence[int] | None]  # numbers of 2 L draws: masks, Gaussians; None: 0, 1..


def available() -> bool:
    """Whether `nll` can run here: there is a compiler and kernels are not switched off."""
    return _library(torch.float32) is not None


def nll(
    weights: Sequence[Tensor],  # L of [M, out, in]
    biases: Sequence[Tensor | None] | None,  # L of [M, out]
    x: Tensor,  # [N, in]
    y: Tensor,  # [N] labels, or [N, D]
    **options: Unpack[Options],
) -> Tensor:
    """[M], the mean negative log likelihood of each member on its batch.

    Differentiable, once, in weights, biases and variances: their gradients come out of the same
    pass. A layer's variances (S, s) add sqrt(S h^2 + s) eps to its outputs, eps ~ N(0, 1), after
    dropout and before the activation.
    """
    call = check(weights, biases, x, y, **options)
    parameters = [t for t in (*call.weights, *call.biases) if t is not None]
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        loss: Tensor = _Fused.apply(call, *parameters)  # type: ignore[no-untyped-call]
        return loss
    return _run(call, grads=None)


def nll_and_grads(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    y: Tensor,
    **options: Unpack[Options],
) -> tuple[Tensor, list[Tensor], list[Tensor | None]]:
    """`nll` and d nll_m / d (weights, biases) of m, without autograd, which costs 0.1 ms a call."""
    call = check(weights, biases, x, y, **options)
    grads = [None if t is None else torch.empty_like(t) for t in (*call.weights, *call.biases)]
    loss = _run(call, [g for g in grads if g is not None])
    L, twice = len(weights), len(call.weights)
    return loss, [g for g in grads[:L] if g is not None], grads[twice : twice + L]


def outputs(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    *,
    activation: Sequence[str],
    dropout: Sequence[float],
    members: Tensor,
    seed: int,
    variances: Sequence[Variance | None] | None = None,
    sites: Sequence[int] | None = None,
) -> Tensor:
    """[M, N, out], what each member's network says of every row of x; no gradients."""
    call = check(
        weights,
        biases,
        x,
        None,
        index=None,
        activation=activation,
        dropout=dropout,
        likelihood="categorical",
        members=members,
        seed=seed,
        variances=variances,
        sites=sites,
    )
    result = x.new_empty(len(call.members), len(x), call.widths[-1])
    _run(call, grads=None, outputs=result)
    return result


# Threads -----------------------------------------------------------------------------------------

_threads = 0  # of the kernel; 0: as many as torch has
_inside = 0  # trainings that are alone on the cores now, each in a thread of Python's
_counting = threading.Lock()


def threads() -> int:
    """How many the kernel may use now."""
    return min(_threads or torch.get_num_threads(), MAX_THREADS)


@contextlib.contextmanager
def alone_on_the_cores() -> Iterator[None]:
    """Inside, the kernel has all of torch's threads and torch's own operations have one.

    What is left to torch in a step is small (an optimiser over a few weights), and its OpenMP
    threads wait for each other by spinning: on a core that something else uses too, each operation
    then costs milliseconds (measured: a step of 5 ms took 100).
    """
    global _threads, _inside
    with _counting:
        if _inside == 0:
            _threads = torch.get_num_threads()
        _inside, before = _inside + 1, _threads
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)  # not what it was on entry: perhaps 1, by another thread
        with _counting:
            _inside -= 1
            if _inside == 0:
                _threads = 0


# The call into mlp.cpp ---------------------------------------------------------------------------


class Call(NamedTuple):
    """Checked arguments."""

    weights: list[Tensor | None]  # of L layers, then their variances
    biases: list[Tensor | None]  # likewise
    x: Tensor
    y: Tensor | None  # None where no loss is asked for
    rows: Tensor | None
    widths: list[int]
    activation: list[int]
    dropout: list[float]
    likelihood: int
    noise: float
    members: Tensor
    seed: int
    sites: list[int]


class Job(ctypes.Structure):
    """struct Job of mlp.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("members", "layers", "rows", "batch")),
        *((name, ctypes.c_void_p) for name in ("widths", "activation", "dropout")),
        *((name, ctypes.c_void_p) for name in ("weights", "biases", "weight_grads", "bias_grads")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "index", "member_ids", "sites")),
        *((name, ctypes.c_void_p) for name in ("loss", "outputs")),
        ("seed", ctypes.c_uint64),
        ("noise", ctypes.c_double),
        ("likelihood", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("bad_value", ctypes.c_int64),
    )


class _Fused(torch.autograd.Function):
    """The gradients are made in the forward pass; backward scales them by d / d nll."""

    @staticmethod
    def forward(ctx: Any, call: Call, *parameters: Tensor) -> Tensor:
        ctx.grads = [torch.empty_like(p) for p in parameters]
        return _run(call, ctx.grads)

    @staticmethod
    def backward(ctx: Any, by: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: once_differentiable would let some cases pass
            raise RuntimeError("the mlp kernel has no second derivative; use engine='vmap'")
        return None, *_scale(ctx.grads, by.contiguous())


def _scale(grads: list[Tensor], by: Tensor) -> list[Tensor]:
    """by[m] * grad[m], on this thread: to wake others, as torch would, costs more than it saves."""
    library = _library(by.dtype)
    assert library is not None
    scaled, M = [torch.empty_like(g) for g in grads], len(by)
    cells = (ctypes.c_int64 * len(grads))(*(g.numel() // M for g in grads))
    library.mlp_scale(
        ctypes.c_int64(len(grads)),
        ctypes.c_int64(M),
        cells,
        ctypes.c_void_p(by.data_ptr()),
        _pointers(grads),
        _pointers(scaled),
    )
    return scaled


def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return build.load("mlp", "REAL=float" if dtype == torch.float32 else "REAL=double")


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))


def _run(call: Call, grads: list[Tensor] | None, outputs: Tensor | None = None) -> Tensor:
    """[M] losses; fills grads, those of the weights and then of the biases, or else outputs."""
    library = _library(call.x.dtype)
    if library is None:
        raise RuntimeError("the mlp kernel is not available here; use engine='vmap'")
    M, L, N = len(call.members), len(call.dropout), len(call.x)
    loss = call.x.new_empty(M)
    arrays = {
        "widths": (ctypes.c_int64 * (L + 1))(*call.widths),
        "activation": (ctypes.c_int32 * L)(*call.activation),
        "dropout": (ctypes.c_double * L)(*call.dropout),
        "sites": (ctypes.c_int64 * (2 * L))(*call.sites),
        "weights": _pointers(call.weights),
        "biases": _pointers(call.biases),
    }
    if grads is not None:
        rest = iter(grads)
        for name, tensors in (("weight_grads", call.weights), ("bias_grads", call.biases)):
            arrays[name] = _pointers([None if t is None else next(rest) for t in tensors])
    job = Job(
        members=M,
        layers=L,
        rows=N,
        batch=N if call.rows is None else call.rows.shape[1],
        x=call.x.data_ptr(),
        y=None if call.y is None else call.y.data_ptr(),
        index=None if call.rows is None else call.rows.data_ptr(),
        member_ids=call.members.data_ptr(),
        loss=loss.data_ptr(),
        outputs=None if outputs is None else outputs.data_ptr(),
        seed=call.seed & 0xFFFFFFFFFFFFFFFF,
        noise=call.noise,
        likelihood=call.likelihood,
        threads=threads(),
        **{name: ctypes.addressof(array) for name, array in arrays.items()},
    )
    match library.mlp_nll(ctypes.byref(job)):
        case 1:
            raise ValueError(f"index must be in [0, {N}), got {job.bad_value}")
        case 2:
            raise ValueError(f"y must be labels in [0, {call.widths[-1]}), got {job.bad_value}")
        case 3:
            raise MemoryError("no memory for the scratch of the mlp kernel")
    return loss


def check(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    y: Tensor | None,
    *,
    index: Tensor | None,
    activation: Sequence[str],
    dropout: Sequence[float],
    likelihood: Likelihood,
    members: Tensor,
    seed: int,
    variances: Sequence[Variance | None] | None = None,
    sites: Sequence[int] | None = None,
) -> Call:
    """All that the kernel takes on trust; it checks labels and indices itself."""
    L = len(weights)
    if L == 0:
        raise ValueError("weights must hold at least one layer, got none")
    biases = [None] * L if biases is None else biases
    for name, values in (("biases", biases), ("activation", activation), ("dropout", dropout)):
        if len(values) != L:
            raise ValueError(f"{name} must have an entry for each of {L} layers, got {len(values)}")
    for f in activation:
        if f not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {f!r}")
    for p in dropout:
        if not 0 <= p < 1:
            raise ValueError(f"dropout must be in [0, 1), got {p}")
    code, noise = likelihood_code(likelihood)
    kind = LIKELIHOODS[code]
    dtype = weights[0].dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"weights[0] must be float32 or float64, got {dtype}")
    if x.requires_grad or (y is not None and y.requires_grad):
        raise ValueError(
            "x and y must not require grad: nll is differentiable in weights and biases"
        )
    members = _tensor("members", members, torch.int64, (None,))
    x = _tensor("x", x, dtype, (None, None))
    M, (N, width) = len(members), x.shape
    variances = [None] * L if variances is None else variances
    if len(variances) != L:
        raise ValueError(f"variances must have an entry for each of {L} layers")
    sites = range(2 * L) if sites is None else sites
    if len(sites) != 2 * L:
        raise ValueError(f"sites must have two entries for each of {L} layers, got {len(sites)}")
    widths: list[int] = [width]
    checked_weights: list[Tensor | None] = []
    checked_biases: list[Tensor | None] = []
    spreads: list[Tensor | None] = []
    bias_spreads: list[Tensor | None] = []
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        checked_weights.append(_tensor(f"weights[{i}]", w, dtype, (M, None, width)))
        spread, bias_spread = variances[i] or (None, None)
        if spread is not None:
            spread = _tensor(f"variances[{i}]", spread, dtype, (M, w.shape[1], width))
        if bias_spread is not None:
            bias_spread = _tensor(f"variances[{i}]", bias_spread, dtype, (M, w.shape[1]))
        spreads.append(spread)
        bias_spreads.append(bias_spread)
        width = w.shape[1]
        widths.append(width)
        if b is not None:
            b = _tensor(f"biases[{i}]", b, dtype, (M, width))
        checked_biases.append(b)
    if kind == "gaussian-heteroscedastic" and width % 2:
        raise ValueError(f"outputs for {kind} are means and log variances, but got {width} in all")
    if y is not None and kind == "categorical":
        y = _tensor("y", y, torch.int64, (N,))
    elif y is not None:
        y = _tensor("y", y, dtype, (N, width if kind == "gaussian" else width // 2))
    if index is not None:
        index = _tensor("index", index, torch.int64, (M, None))
    return Call(
        checked_weights + spreads,
        checked_biases + bias_spreads,
        x,
        y,
        index,
        widths,
        [CODES[f] for f in activation],
        [float(p) for p in dropout],
        code,
        noise,
        members,
        seed,
        list(sites),
    )


def likelihood_code(likelihood: Likelihood) -> tuple[int, float]:
    """The number of mlp.cpp's enum, and the noise of a Gaussian."""
    kind, noise = (likelihood, 1.0) if isinstance(likelihood, str) else likelihood
    if kind not in LIKELIHOODS or isinstance(likelihood, str) is (kind == "gaussian"):
        raise ValueError(
            "likelihood must be 'categorical', ('gaussian', noise) or 'gaussian-heteroscedastic', "
            f"got {likelihood!r}"
        )
    if not 0 < noise < math.inf:
        raise ValueError(f"the noise of the Gaussian likelihood must be positive, got {noise}")
    return LIKELIHOODS.index(kind), noise


CODES = {name: code for code, name in enumerate(ACTIVATIONS)}


def _tensor(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """t, contiguous; None in shape stands for any size but 0."""
    got, fits = t.shape, t.dim() == len(shape)
    for n, want in zip(got, shape, strict=False):
        fits = fits and n > 0 and (want is None or n == want)
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be [{wanted}], no size 0, got {tuple(got)}")
    if t.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {t.dtype}")
    if not t.is_cpu:
        raise ValueError(f"{name} must be on the CPU, got {t.device}")
    return t.contiguous()
