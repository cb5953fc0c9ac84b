"""NUTS and HMC chains of small MLPs, compiled: nuts.cpp on a CPU, nuts.cu on a GPU.

Both work in place on the very tensors of posteriors/trajectory.py, so that a run can pass from one
engine to another, be saved and gone on with, and torch's own iteration is their twin.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.kernels import build, mlp

SIZES = (
    "chains",
    "parameters",
    "checkpoints",
    "warmup",
    "transitions",
    "samples",
    "max_depth",
    "max_leapfrogs",
)
NUMBERS = ("target_accept", "length", "jitter", "max_error", "precision")


class Layers(NamedTuple):
    """Where the layers of an MLP lie in flat parameters."""

    widths: tuple[int, ...]
    activation: tuple[int, ...]
    weight_at: tuple[int, ...]
    bias_at: tuple[int, ...]  # -1 where there is no bias


def _sampler(numbers: Mapping[str, float], tensors: Mapping[str, Tensor]) -> Any:
    """struct Sampler of nuts.hpp: sizes, numbers, then the addresses of the tensors in order."""
    fields = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, ctypes.c_double) for name in NUMBERS),
        *((f"at_{name}", ctypes.c_void_p) for name in tensors),
    )
    assert all(t.is_contiguous() for t in tensors.values())
    kind: Any = type("Sampler", (ctypes.Structure,), {"_fields_": fields})
    values = [*(int(numbers[n]) for n in SIZES), *(float(numbers[n]) for n in NUMBERS)]
    return kind(*values, *(t.data_ptr() for t in tensors.values()))


def cpu_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return build.load("nuts", "REAL=float" if dtype == torch.float32 else "REAL=double")


Kernel = Callable[..., "CpuChains | CudaChains"]  # of (x, y, numbers, tensors)


def kernel_for(
    layers: Layers, likelihood: mlp.Likelihood, x: Tensor, parameters: int
) -> Kernel | None:
    """The kernel that runs the chains of such an MLP, of so many parameters, where x [N, in] is, or
    None where none does."""
    if x.dtype not in (torch.float32, torch.float64) or x.shape[1:].numel() != layers.widths[0]:
        return None
    if x.device.type == "cuda":
        able = parameters <= MOST_PARAMETERS and build.cuda_compiles()
        return functools.partial(CudaChains, layers, likelihood) if able else None
    if x.device.type != "cpu" or cpu_library(x.dtype) is None:
        return None
    return functools.partial(CpuChains, layers, likelihood)


class CpuChains:
    """`advance` moves every chain on, in place, a thread for each chain as far as there are any."""

    def __init__(
        self,
        layers: Layers,
        likelihood: mlp.Likelihood,
        x: Tensor,
        y: Tensor,
        numbers: Mapping[str, float],
        tensors: Mapping[str, Tensor],
    ) -> None:
        library = cpu_library(x.dtype)
        assert library is not None
        self._library = library
        self._tensors = dict(tensors)  # their memory must live as long as we do
        self._x, self._y = x.flatten(1).contiguous(), y.contiguous()
        self._sampler = _sampler(numbers, self._tensors)
        L = len(layers.activation)
        self._arrays: dict[str, ctypes.Array[Any]] = {
            "widths": (ctypes.c_int64 * (L + 1))(*layers.widths),
            "activation": (ctypes.c_int32 * L)(*layers.activation),
            "dropout": (ctypes.c_double * L)(),
        }
        self._at = [(ctypes.c_int64 * L)(*at) for at in (layers.weight_at, layers.bias_at)]
        code, noise = mlp.likelihood_code(likelihood)
        self._job = mlp.Job(
            members=1,
            layers=L,
            rows=len(self._x),
            batch=len(self._x),
            x=self._x.data_ptr(),
            y=self._y.data_ptr(),
            noise=noise,
            likelihood=code,
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        )

    def advance(self, iterations: int) -> None:
        self._job.threads = mlp.threads()
        failed = self._library.nuts_advance(
            ctypes.byref(self._job),
            ctypes.byref(self._sampler),
            *self._at,
            ctypes.c_int64(iterations),
        )
        if failed == mlp.NO_MEMORY:
            raise MemoryError("no memory for the scratch of the nuts kernel")
        if failed:
            raise ValueError(f"y holds a label that is out of range: {self._job.bad_value}")


THREADS = 128  # of a block, which runs one chain; 256 were no faster at 500 and 2000 rows (H200)
MOST_PARAMETERS = 256  # each thread has the gradient of all of them in registers


class CudaChains:
    """The same on a GPU: a block of threads for each chain."""

    def __init__(
        self,
        layers: Layers,
        likelihood: mlp.Likelihood,
        x: Tensor,
        y: Tensor,
        numbers: Mapping[str, float],
        tensors: Mapping[str, Tensor],
    ) -> None:
        code, noise = mlp.likelihood_code(likelihood)
        parameters = int(numbers["parameters"])
        self._kernel = _cuda_kernel(layers, code, x.dtype, parameters, THREADS)
        self._tensors = dict(tensors)
        self._chains = int(numbers["chains"])
        sampler = bytearray(_sampler(numbers, self._tensors))
        self._sampler = torch.frombuffer(sampler, dtype=torch.uint8).to(x.device)
        self._x, self._y = x.flatten(1).contiguous(), y.contiguous()
        self._noise = torch.tensor([noise], dtype=torch.float64, device=x.device)

    def advance(self, iterations: int) -> None:
        arguments = [self._sampler, self._x, self._y, self._noise, len(self._x), iterations]
        self._kernel((self._chains, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def _cuda_kernel(
    layers: Layers, likelihood: int, dtype: torch.dtype, parameters: int, threads: int
) -> Any:
    """Compiled for this very network by NVRTC, which every CUDA build of torch brings along."""

    def many(values: tuple[int, ...]) -> str:
        return ",".join(map(str, values))

    defines = {
        "REAL": "float" if dtype == torch.float32 else "double",
        "WIDTHS": many(layers.widths),
        "ACTIVATIONS": many(layers.activation),
        "WEIGHT_AT": many(layers.weight_at),
        "BIAS_AT": many(layers.bias_at),
        "LIKELIHOOD": str(likelihood),
        "PARAMETERS": str(parameters),
        "THREADS": str(threads),
    }
    head = "".join(f"#define {name} {value}\n" for name, value in defines.items())
    return build.cuda_kernel(head + build.source("nuts.cu"), "nuts_advance")
