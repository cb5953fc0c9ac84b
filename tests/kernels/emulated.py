"""Kernels for a GPU on the CPU: compiled by the C++ compiler with emulator.hpp in CUDA's place.

It cannot find races. A copy to shared memory (cp.async) is done at once instead of in the
background, so a wait that is missing or waits for too few copies changes nothing; and threads run
one after the other, always in the same order, so that a missing barrier need not show either.
"""

import ctypes
import functools
import hashlib
import subprocess
import tempfile
from pathlib import Path

from torch import Tensor

from stochens.kernels import build, conv
from stochens.kernels.conv_plan import LaunchPlan, Layer

HERE = Path(__file__).parent
LAUNCH = (
    'extern "C" void {name}_(const int *grid, int block, int shared, void **args) '
    "{{ emulator::launch({name}, grid, block, shared, args); }}\n"
)


FLAGS = ("-std=c++17", "-O1", "-fPIC")


def built(command: list[str], code: str, suffix: str) -> Path:
    """What the compiler makes of the code, from the cache if it is there."""
    key = hashlib.sha256("\0".join([*command, code]).encode()).hexdigest()[:16]
    made = Path(tempfile.gettempdir()) / f"stochens-emulated-{key}{suffix}"
    if not made.exists():
        with tempfile.TemporaryDirectory(dir=made.parent) as folder:
            new, file = Path(folder) / f"new{suffix}", Path(folder) / "code"
            file.write_text(code)
            command = [*build._compiler(), *FLAGS, *command, str(file), "-o", str(new)]
            subprocess.run(command, check=True)
            new.replace(made)  # at once: another worker of the tests may be loading it
    return made


@functools.cache
def library(name: str, source: str) -> ctypes.CDLL:
    # the header is compiled once for all: it takes longer than a kernel
    header = built(["-x", "c++-header"], (HERE / "emulator.hpp").read_text(), ".hpp.gch")
    command = ["-shared", "-include", str(header.with_suffix("")), "-x", "c++"]
    return ctypes.CDLL(str(built(command, source + LAUNCH.format(name=name), ".so")))


def compiled(name: str, source: str) -> conv.Kernel:
    """A kernel of some source, to be launched like those of torch.cuda._compile_kernel."""
    run = getattr(library(name, source), f"{name}_")

    def launch(grid, block, args, shared_mem=0):
        values = [
            ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_int(a)
            for a in args
        ]
        addresses = (ctypes.c_void_p * len(values))(
            *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
        )
        run((ctypes.c_int * 3)(*grid), block[0], shared_mem, addresses)

    return launch


@functools.cache
def kernel(name: str, layer: Layer, plan: LaunchPlan, flags: int, device) -> conv.Kernel:
    """In the place of `conv.kernel`."""
    return compiled(name, conv.source(name, layer, plan, flags))
