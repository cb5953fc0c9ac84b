"""Compiles the C++ sources of this folder with the system compiler, and CUDA by NVRTC, once per
machine.

A library is cached as name-hash.so, where the hash covers the source, the flags, the compiler and
the CPU (the code is built for this very CPU); a CUDA kernel as name-hash.cubin, for each kind of
GPU. Without a compiler everything still works, slower.

torch.utils.cpp_extension is not used: it needs ninja and torch's headers, and these sources know
nothing of torch.
"""

import contextlib
import ctypes
import functools
import logging
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from stochens.errors import InputError
from stochens.files.hashing import hash_bytes
from stochens.files.storage import write_whole
from stochens.private_names import compile_cuda, compiles_cuda, cuda_machine_code, load_cuda

log = logging.getLogger("stochens")

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
FLAGS = ("-std=c++17", "-O3", "-fno-math-errno", "-fPIC", "-shared", "-pthread")
NATIVE = ("-march=native", "-mcpu=native", "")  # the first that the compiler knows
CUDA_FLAGS = ["-std=c++17"]
SECONDS = 120  # a compile that hangs must not hang the program


@functools.cache
def load(name: str, *defines: str) -> ctypes.CDLL | None:
    """The library built from name.cpp with -Ddefine for each, or None where it cannot be built.

    Never raises: the reason why there is none goes to the log "stochens", once.
    """
    if switched_off():
        log.info("kernel %s is off: STOCHENS_KERNELS=off", name)
        return None
    try:
        source = SOURCES / f"{name}.cpp"
        return ctypes.CDLL(str(_library(source, [f"-D{define}" for define in defines])))
    except Exception as error:  # whatever goes wrong, the torch twin does the work
        log.info("kernel %s is not used: %s", name, error)
        return None


def source(name: str) -> str:
    """A file of this folder with what it includes in place, for compilers that see no files."""
    code = (SOURCES / name).read_text()
    return re.sub(r'#include "(\w+\.hpp)"\n', lambda found: source(found[1]), code)


def cuda_compiles() -> bool:
    """Kernels are not switched off, and this torch can compile one."""
    return not switched_off() and compiles_cuda()


def cuda_kernel(code: str, name: str) -> Any:
    """Compiled by NVRTC, which every CUDA build of torch brings along, for the current device; or
    as an earlier run compiled it."""
    try:
        return _kept_cuda_kernel(code, name)
    except Exception as error:  # a torch that has other names for these two steps, say
        log.debug("kernel %s is not kept: %s", name, error)
        return compile_cuda(code, name, nvcc_options=CUDA_FLAGS)


def _kept_cuda_kernel(code: str, name: str) -> Any:
    about = [torch.__version__, torch.version.cuda, torch.cuda.get_device_capability(), CUDA_FLAGS]
    key = hash_bytes(code.encode(), name.encode(), repr(about).encode())
    file = _cache() / f"{name}-{key[:16]}.cubin"
    if (held := _read_kept(file)) is not None:
        return load_cuda(*held)
    made, inside = cuda_machine_code(code, name, CUDA_FLAGS)
    kernel = load_cuda(made, inside)  # only what loads goes into the cache
    content = inside.encode() + b"\n" + made
    with contextlib.suppress(InputError):  # no room: the next run compiles again
        write_whole(file, hash_bytes(content).encode() + b"\n" + content)
    return kernel


def _read_kept(file: Path) -> tuple[bytes, str] | None:
    """A kernel's machine code and its name inside; None where it is not there, or was damaged."""
    if not file.exists():
        return None
    checksum, _, content = file.read_bytes().partition(b"\n")
    if hash_bytes(content).encode() != checksum:
        return None
    inside, _, machine_code = content.partition(b"\n")
    return machine_code, inside.decode()


def switched_off() -> bool:
    return os.environ.get("STOCHENS_KERNELS", "").lower() == "off"


def _library(source: Path, defines: list[str]) -> Path:
    """Path of the compiled source, from the cache if it is there."""
    compiler = _compiler()
    version = _output([*compiler, "--version"])
    code = b"".join(file.read_bytes() for file in sorted(SOURCES.glob("*.[ch]pp")))  # and includes
    errors = []
    for native in NATIVE:
        flags = [flag for flag in (*FLAGS, native, *defines) if flag]
        key = b"\0".join([code, " ".join(flags).encode(), version.encode(), _cpu().encode()])
        file = f"{source.stem}-{hash_bytes(key)[:16]}.so"
        folder = _cache()
        if (folder / file).exists():
            return folder / file
        log.info("compiling the kernel %s, which is kept for the next run", source.stem)
        began = time.monotonic()
        try:
            made = _compile([*compiler, *flags], source, folder / file)
            log.info("compiled in %.1f s", time.monotonic() - began)
            return made
        except RuntimeError as error:
            errors.append(str(error))
    raise RuntimeError(errors[-1])


def _compiler() -> list[str]:
    """The command of $CXX, which may hold arguments, or the first compiler on PATH."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    if chosen:
        return chosen
    found = next(filter(None, map(shutil.which, COMPILERS)), None)
    if found is None:
        raise RuntimeError(f"no C++ compiler: none of {', '.join(COMPILERS)} is on PATH")
    return [found]


def _compile(command: list[str], source: Path, library: Path) -> Path:
    """Builds under a temporary name: another process may build or load the same library now."""
    handle, temporary = tempfile.mkstemp(suffix=".so", dir=library.parent)
    os.close(handle)
    try:
        _output([*command, str(source), "-o", temporary])
        ctypes.CDLL(temporary)  # only what loads goes into the cache
        os.chmod(temporary, 0o755)
        os.replace(temporary, library)
    finally:
        Path(temporary).unlink(missing_ok=True)
    return library


def _output(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        raise RuntimeError(f"{command[0]} failed: {done.stderr.strip()[-2000:]}")
    return done.stdout


@functools.cache
def _temporary() -> Path:
    return Path(tempfile.mkdtemp(prefix="stochens-"))


def _cache() -> Path:
    """$STOCHENS_CACHE, else ~/.cache/stochens, else (not writable) a folder of this process."""
    chosen = os.environ.get("STOCHENS_CACHE")
    try:
        folder = Path(chosen) if chosen else Path.home() / ".cache" / "stochens"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return folder
    except (OSError, RuntimeError):  # RuntimeError: there is no home
        return _temporary()


def _cpu() -> str:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        keys = ("model name", "flags", "Features", "CPU part")
        return "\n".join(sorted({line for line in lines if line.startswith(keys)}))
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
