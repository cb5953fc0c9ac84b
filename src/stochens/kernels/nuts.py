"""NUTS and HMC chains of small MLPs, compiled: nuts.cpp on a CPU, nuts.cu on a GPU.

Both work in place on the very tensors of posteriors/trajectory.py, so that a run can pass from one
engine to another, be saved and gone on with, and torch's own iteration is their twin.
"""

import ctypes
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.kernels import build, mlp
from stochens.kernels.fused import Step

SIZES = ("chains", "parameters", "checkpoints", "warmup", "transitions", "samples")
SIZES += ("max_depth", "max_leapfrogs")
NUMBERS = ("target_accept", "length", "jitter", "max_error", "precision")


class Layers(NamedTuple):
    """Where the layers of an MLP lie in flat parameters."""

    widths: list[int]
    activation: list[int]
    weight_at: list[int]
    bias_at: list[int]  # -1 where there is no bias


def layers_of(steps: list[Step], shapes: Mapping[str, torch.Size]) -> Layers | None:
    """None unless the layers are exactly all the parameters there are."""
    offsets, at = {}, 0
    for name, shape in shapes.items():
        offsets[name] = at
        at += shape.numel()
    names = [step.prefix + "weight" for step in steps]
    if not all(name in offsets for name in names):
        return None
    codes = list(mlp.ACTIVATIONS)
    biases = [step.prefix + "bias" for step in steps]
    found = {name for name in (*names, *biases) if name in offsets}
    if found != set(offsets) or any(
        s.layer.bias is not None and b not in offsets for s, b in zip(steps, biases, strict=True)
    ):
        return None
    return Layers(
        widths=[shapes[names[0]][1], *(shapes[name][0] for name in names)],
        activation=[codes.index(step.activation) for step in steps],
        weight_at=[offsets[name] for name in names],
        bias_at=[offsets.get(name, -1) for name in biases],
    )


class Sampler(ctypes.Structure):
    """struct Sampler of nuts.hpp, field by field; made for one list of tensors by `sampler_of`."""


def sampler_of(numbers: Mapping[str, float], tensors: Mapping[str, Tensor], kind: type[Any]) -> Any:
    """The struct: sizes, numbers, then the addresses of the tensors in their order."""
    values = [int(numbers[name]) for name in SIZES]
    values += [float(numbers[name]) for name in NUMBERS]
    for name, t in tensors.items():
        assert t.is_contiguous(), name
    return kind(*values, *(t.data_ptr() for t in tensors.values()))


def struct_for(tensors: Mapping[str, Tensor]) -> type[ctypes.Structure]:
    fields = (
        *((name, ctypes.c_int64) for name in SIZES),
        *((name, ctypes.c_double) for name in NUMBERS),
        *((f"at_{name}", ctypes.c_void_p) for name in tensors),
    )
    return type("Sampler", (ctypes.Structure,), {"_fields_": fields})


def cpu_library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return build.load("nuts", "REAL=float" if dtype == torch.float32 else "REAL=double")


class CpuChains:
    """`advance` moves every chain on, in place, a thread for each chain as far as there are any."""

    def __init__(
        self,
        layers: Layers,
        x: Tensor,
        y: Tensor,
        likelihood: mlp.Likelihood,
        numbers: Mapping[str, float],
        tensors: Mapping[str, Tensor],
    ) -> None:
        library = cpu_library(x.dtype)
        assert library is not None
        self._library = library
        self._tensors = dict(tensors)  # their memory must live as long as we do
        self._x, self._y = x.flatten(1).contiguous(), y.contiguous()
        self._sampler = sampler_of(numbers, self._tensors, struct_for(self._tensors))
        L = len(layers.activation)
        self._arrays = {
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
