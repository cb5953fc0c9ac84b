"""Negative log likelihood of M small MLPs, each on its own batch, with all gradients in one pass.

    u_l = (W_l h_l + b_l) * z_l / (1 - p_l),   h_{l+1} = f_l(u_l),   z_l ~ Bernoulli(1 - p_l)
    nll_m = -1/B sum_b log p(y_b | h_L)

The draw z depends only on (seed, member id, layer, row in the batch, node), see `_bits`.
"""

import ctypes
import functools
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from stochens.kernels import build

Likelihood = Literal["categorical", "gaussian-heteroscedastic"] | tuple[Literal["gaussian"], float]

# the order is that of the enums in mlp.cpp
ACTIVATIONS = {"identity": lambda u: u, "relu": F.relu, "tanh": torch.tanh, "silu": F.silu}
CODES = {name: code for code, name in enumerate(ACTIVATIONS)}
LIKELIHOODS = ("categorical", "gaussian", "gaussian-heteroscedastic")
MAX_THREADS = 64
PROCESS = os.getpid()


def available() -> bool:
    """Whether `nll` can run here: there is a compiler and kernels are not switched off."""
    return _library(torch.float32) is not None


def nll(
    weights: Sequence[Tensor],  # L of [M, out, in]
    biases: Sequence[Tensor | None] | None,  # L of [M, out]
    x: Tensor,  # [N, in]
    y: Tensor,  # [N] labels, or [N, D]
    *,
    index: Tensor | None,  # [M, B] rows of x; None: every member takes all rows
    activation: Sequence[str],
    dropout: Sequence[float],
    likelihood: Likelihood,
    members: Tensor,  # [M] ids
    seed: int,
) -> Tensor:
    """[M], the mean negative log likelihood of each member on its batch.

    Differentiable in weights and biases; their gradients come out of the same pass.
    """
    net = _check(weights, biases, x, y, index, activation, dropout, likelihood, members, seed)
    parameters = [*net.weights, *(b for b in net.biases if b is not None)]
    if torch.is_grad_enabled() and any(p.requires_grad for p in parameters):
        loss: Tensor = _Fused.apply(net, *parameters)  # type: ignore[no-untyped-call]
        return loss
    return _run(net, grads=None)


def nll_reference(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    y: Tensor,
    *,
    index: Tensor | None,
    activation: Sequence[str],
    dropout: Sequence[float],
    likelihood: Likelihood,
    members: Tensor,
    seed: int,
) -> Tensor:
    """The same as `nll`, with the same dropout masks, in plain torch."""
    net = _check(weights, biases, x, y, index, activation, dropout, likelihood, members, seed)
    M = len(members)
    h = x.expand(M, *x.shape) if index is None else x[index]  # [M, B, in]
    y = y.expand(M, *y.shape) if index is None else y[index]  # [M, B] or [M, B, D]
    for layer, (w, b, p) in enumerate(zip(net.weights, net.biases, net.dropout, strict=True)):
        u = h @ w.mT  # [M, B, out]
        u = u if b is None else u + b[:, None]
        if p > 0:
            u = u * keep(p, u.shape[1:], layer=layer, members=members, seed=seed) / (1 - p)
        h = ACTIVATIONS[activation[layer]](u)
    return _nll(h, y, likelihood).mean(1)


def _nll(h: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """[M, B], -log p(y | h)"""
    if likelihood == "categorical":
        return -h.log_softmax(-1).gather(-1, y[..., None])[..., 0]
    if likelihood == "gaussian-heteroscedastic":
        mean, log_variance = h.chunk(2, -1)
    else:
        mean, log_variance = h, torch.full_like(h, 2 * math.log(likelihood[1]))
    square = (y - mean) ** 2 * (-log_variance).exp()
    return 0.5 * (square + log_variance + math.log(2 * math.pi)).sum(-1)


# Dropout bits -----------------------------------------------------------------------------------

WORD = 0xFFFFFFFF
KEYS = (0x9E3779B9, 0x85EBCA6B)


def keep(p: float, shape: Sequence[int], *, layer: int, members: Tensor, seed: int) -> Tensor:
    """z ~ Bernoulli(1 - p), [M, B, out] for shape (B, out): 1 where 32 hashed bits >= p 2^32."""
    rows, width = shape
    first, second = (k[:, None] for k in _keys(seed, members, layer))  # [M, 1]
    counter = torch.arange(rows * width) & WORD  # row * width + node
    bits = _avalanche(counter ^ first, second)  # [M, B * out]
    return (bits >= min(round(p * 2**32), WORD)).view(len(members), rows, width)


def _keys(seed: int, members: Tensor, layer: int) -> list[Tensor]:
    """Two 32-bit keys for each member, from the words of (seed, member, layer)"""
    words = (seed & WORD, seed >> 32 & WORD, members & WORD, members >> 32 & WORD, layer)
    keys = []
    for start in KEYS:
        key = torch.full_like(members, start)
        for word in words:
            key = _avalanche(key ^ word) + start & WORD
        keys.append(key)
    return keys


def _avalanche(x: Tensor, key: Tensor | int = 0) -> Tensor:
    """C. Wellons's lowbias32 of 32-bit words held in int64, with a key between its two rounds."""
    x = x ^ x >> 16
    x = x * 0x7FEB352D & WORD
    x = x ^ key
    x = x ^ x >> 15
    x = x * 0x846CA68B & WORD
    return x ^ x >> 16


# The call into mlp.cpp --------------------------------------------------------------------------


class _Net(NamedTuple):
    """Checked arguments."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    x: Tensor
    y: Tensor
    index: Tensor | None
    widths: list[int]
    activation: list[int]
    dropout: list[float]
    likelihood: int
    noise: float
    members: Tensor
    seed: int


class _Job(ctypes.Structure):
    """struct Job of mlp.cpp, field by field"""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("members", "layers", "rows", "batch")),
        *((name, ctypes.c_void_p) for name in ("widths", "activation", "dropout", "weights")),
        *((name, ctypes.c_void_p) for name in ("biases", "weight_grads", "bias_grads")),
        *((name, ctypes.c_void_p) for name in ("x", "y", "index", "member_ids", "loss")),
        ("seed", ctypes.c_uint64),
        ("noise", ctypes.c_double),
        ("likelihood", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        ("gomp_parallel", ctypes.c_void_p),
        ("bad_value", ctypes.c_int64),
    ]


class _Fused(torch.autograd.Function):
    """The gradients are made in the forward pass; backward scales them by d / d nll."""

    @staticmethod
    def forward(ctx: Any, net: _Net, *parameters: Tensor) -> Tensor:
        ctx.grads = [torch.empty_like(p) for p in parameters]
        return _run(net, ctx.grads)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        M = len(grad)
        return None, *(g * grad.view(M, *[1] * (g.ndim - 1)) for g in ctx.grads)


def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return build.load("mlp", "REAL=float" if dtype == torch.float32 else "REAL=double")


@functools.cache
def _gomp_parallel(process: int) -> int | None:
    """Address of the function that runs work on torch's own OpenMP threads, where it uses them.

    A forked child has none of its parent's threads, and libgomp would wait for them.
    """
    if process != PROCESS:
        return None
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return ctypes.cast(torch_cpu.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _pointers(tensors: Sequence[Tensor | None]) -> Any:
    return (ctypes.c_void_p * len(tensors))(*(None if t is None else t.data_ptr() for t in tensors))


def _run(net: _Net, grads: list[Tensor] | None) -> Tensor:
    M, L = len(net.members), len(net.weights)
    loss = net.weights[0].new_empty(M)
    arrays = {
        "widths": (ctypes.c_int64 * (L + 1))(*net.widths),
        "activation": (ctypes.c_int32 * L)(*net.activation),
        "dropout": (ctypes.c_double * L)(*net.dropout),
        "weights": _pointers(net.weights),
        "biases": _pointers(net.biases),
    }
    if grads is not None:
        rest = iter(grads[L:])
        arrays["weight_grads"] = _pointers(grads[:L])
        arrays["bias_grads"] = _pointers([None if b is None else next(rest) for b in net.biases])
    job = _Job(
        members=M,
        layers=L,
        rows=len(net.x),
        batch=len(net.x) if net.index is None else net.index.shape[1],
        x=net.x.data_ptr(),
        y=net.y.data_ptr(),
        index=None if net.index is None else net.index.data_ptr(),
        member_ids=net.members.data_ptr(),
        loss=loss.data_ptr(),
        seed=net.seed & 0xFFFFFFFFFFFFFFFF,
        noise=net.noise,
        likelihood=net.likelihood,
        threads=min(torch.get_num_threads(), MAX_THREADS),
        gomp_parallel=_gomp_parallel(os.getpid()),
        **{name: ctypes.addressof(array) for name, array in arrays.items()},
    )
    library = _library(loss.dtype)
    if library is None:
        raise RuntimeError("the kernel mlp is not available here; use nll_reference")
    match library.mlp_nll(ctypes.byref(job)):
        case 1:
            raise ValueError(f"index must be in [0, {len(net.x)}), got {job.bad_value}")
        case 2:
            raise ValueError(f"y must be labels in [0, {net.widths[-1]}), got {job.bad_value}")
        case 3:
            raise MemoryError("no memory for the scratch of the mlp kernel")
    return loss


def _check(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    y: Tensor,
    index: Tensor | None,
    activation: Sequence[str],
    dropout: Sequence[float],
    likelihood: Likelihood,
    members: Tensor,
    seed: int,
) -> _Net:
    """Everything that a pointer will be trusted for; labels and indices the kernel checks."""
    L = len(weights)
    if L == 0:
        raise ValueError("weights must hold at least one layer, got none")
    biases = [None] * L if biases is None else list(biases)
    for name, values in (("biases", biases), ("activation", activation), ("dropout", dropout)):
        if len(values) != L:
            raise ValueError(
                f"{name} must have one entry for each of {L} layers, got {len(values)}"
            )
    for name in activation:
        if name not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {list(ACTIVATIONS)}, got {name!r}")
    for p in dropout:
        if not 0 <= p < 1:
            raise ValueError(f"dropout must be in [0, 1), got {p}")
    kind, noise = (likelihood, 1.0) if isinstance(likelihood, str) else likelihood
    if kind not in LIKELIHOODS or isinstance(likelihood, str) == (kind == "gaussian"):
        raise ValueError(
            "likelihood must be 'categorical', ('gaussian', noise) or 'gaussian-heteroscedastic', "
            f"got {likelihood!r}"
        )
    if not 0 < noise < math.inf:
        raise ValueError(f"the noise of the Gaussian likelihood must be positive, got {noise}")

    dtype = weights[0].dtype
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"weights[0] must be float32 or float64, got {dtype}")
    members = _tensor("members", members, torch.int64, (None,))
    x = _data("x", x, dtype, (None, None))
    M, N = len(members), len(x)
    widths = [x.shape[1]]
    new_weights: list[Tensor] = []
    new_biases: list[Tensor | None] = []
    for i, (w, b) in enumerate(zip(weights, biases, strict=True)):
        new_weights.append(_tensor(f"weights[{i}]", w, dtype, (M, None, widths[-1])))
        widths.append(w.shape[1])
        b = None if b is None else _tensor(f"biases[{i}]", b, dtype, (M, widths[-1]))
        new_biases.append(b)
    if kind == "categorical":
        y = _tensor("y", y, torch.int64, (N,))
    else:
        outputs = 1 if kind == "gaussian" else 2
        if widths[-1] % outputs:
            raise ValueError(
                f"the last layer must have an even number of outputs for {kind}, got {widths[-1]}"
            )
        y = _data("y", y, dtype, (N, widths[-1] // outputs))
    if index is not None:
        index = _tensor("index", index, torch.int64, (M, None))
    return _Net(
        new_weights,
        new_biases,
        x,
        y,
        index,
        widths,
        [CODES[name] for name in activation],
        list(dropout),
        LIKELIHOODS.index(kind),
        noise,
        members,
        seed,
    )


def _tensor(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    """t, contiguous; None in shape stands for any size but 0"""
    fits = t.ndim == len(shape) and all(
        n > 0 and want in (n, None) for n, want in zip(t.shape, shape, strict=True)
    )
    if not fits:
        want = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{name} must be [{want}], none of them 0, got {tuple(t.shape)}")
    if t.dtype != dtype:
        raise ValueError(f"{name} must be {dtype}, got {t.dtype}")
    if not t.is_cpu:
        raise ValueError(f"{name} must be on the CPU, got {t.device}")
    return t.contiguous()


def _data(name: str, t: Tensor, dtype: torch.dtype, shape: tuple[int | None, ...]) -> Tensor:
    if t.requires_grad:
        raise ValueError(f"{name} requires grad, but nll differentiates weights and biases only")
    return _tensor(name, t, dtype, shape)
