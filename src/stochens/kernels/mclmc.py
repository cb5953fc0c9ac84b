"""Microcanonical Langevin chains of small MLPs, compiled: mclmc.cpp, on a CPU.

It works in place on the tensors of samplers/mclmc_steps.py and mclmc_trials.py, whose own steps are
its twin.
"""

import ctypes
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.kernels import build, mlp
from stochens.kernels.nuts import Layers

SIZES = ("members", "parameters", "steps", "first", "watches", "trials")
NUMBERS = ("precision", "turn", "large", "forget", "trust", "shrink", "learn", "rare", "small")
TRIAL = 9  # tensors of a trial


def _library(dtype: torch.dtype) -> ctypes.CDLL | None:
    return build.load("mclmc", "REAL=float" if dtype == torch.float32 else "REAL=double")


def available(x: Tensor) -> bool:
    """Whether chains on inputs x [N, in] can run here."""
    fits = x.is_cpu and x.dtype in (torch.float32, torch.float64)
    return fits and _library(x.dtype) is not None


class Walk:
    """`advance` moves every chain on, in place, a thread for each chain as far as there are any."""

    def __init__(
        self,
        layers: Layers,
        likelihood: mlp.Likelihood,
        x: Tensor,
        y: Tensor,
        key: Tensor,
        numbers: Mapping[str, float],
    ) -> None:
        library = _library(x.dtype)
        assert library is not None
        self._library, self._numbers = library, dict(numbers)
        self._x, self._y, self._key = x.flatten(1).contiguous(), y.contiguous(), key.contiguous()
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

    def advance(
        self,
        state: Mapping[str, Tensor],
        first: int,
        count: int,
        wanted: Sequence[float] | None,
        watched: bool,
        trial: Mapping[str, Tensor] | None = None,
        target: float | None = None,
    ) -> None:
        """`count` steps of the state's tensors, contiguous and in its order, from the number
        `first` on; wanted: the energy variance that each tunes h to. trial: likewise, where steps
        are those of trials; target: the acceptance that h is tuned to."""
        tensors = list(state.values())
        own = [None] * TRIAL if trial is None else [t.data_ptr() for t in trial.values()]
        M, D = tensors[0].shape
        goals = None if wanted is None else (ctypes.c_double * count)(*wanted)
        fields = (
            *((name, ctypes.c_int64) for name in SIZES),
            *((name, ctypes.c_double) for name in (*NUMBERS, "target")),
            *((f"at_{k}", ctypes.c_void_p) for k in range(2 + len(tensors) + TRIAL)),
        )
        kind: Any = type("Walk", (ctypes.Structure,), {"_fields_": fields})
        walk = kind(
            *(M, D, count, first, int(watched), int(trial is not None)),
            *(float(self._numbers[name]) for name in NUMBERS),
            math.nan if target is None else target,
            None if goals is None else ctypes.addressof(goals),
            self._key.data_ptr(),
            *(t.data_ptr() for t in tensors),
            *own,
        )
        self._job.threads = mlp.threads()
        failed = self._library.mclmc_advance(ctypes.byref(self._job), ctypes.byref(walk), *self._at)
        if failed == mlp.NO_MEMORY:
            raise MemoryError("no memory for the scratch of the mclmc kernel")
        if failed:
            raise ValueError(f"y holds a label that is out of range: {self._job.bad_value}")
