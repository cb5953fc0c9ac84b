import logging
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stochens.errors import InputError
from stochens.kernels import build

ANSWER = 'extern "C" int answer() { return ANSWER; }'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with one small source, an empty cache beside it, and nothing loaded yet."""
    try:
        build._compiler()
    except RuntimeError as error:
        pytest.skip(str(error))
    (tmp_path / "small.cpp").write_text(ANSWER)
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    monkeypatch.setenv("STOCHENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("STOCHENS_KERNELS", raising=False)
    build.load.cache_clear()
    yield tmp_path
    build.load.cache_clear()


def answer(value: int) -> int:
    library = build.load("small", f"ANSWER={value}")
    assert library is not None
    return int(library.answer())


def test_compiles_and_caches(sources: Path) -> None:
    assert answer(42) == 42
    assert answer(43) == 43  # another definition is another library
    made = {f: f.stat().st_mtime_ns for f in (sources / "cache").iterdir()}
    assert len(made) == 2
    assert all(f.suffix == ".so" for f in made)  # no temporary file is left
    build.load.cache_clear()
    assert answer(42) == 42
    assert {f: f.stat().st_mtime_ns for f in (sources / "cache").iterdir()} == made


def test_compiling_is_told_once_for_all_runs(
    sources: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stochens")
    for _ in range(2):  # the second finds it in the cache, as another process would
        assert answer(7) == 7
        build.load.cache_clear()
    said = [record.getMessage() for record in caplog.records]
    assert said[0] == "compiling the kernel small, which is kept for the next run"
    assert said[1].startswith("compiled in ")
    assert len(said) == 2


def test_new_source_is_compiled_again(sources: Path) -> None:
    assert answer(1) == 1
    (sources / "small.cpp").write_text(ANSWER.replace("ANSWER;", "-ANSWER;"))
    build.load.cache_clear()
    assert answer(1) == -1


def test_no_compiler(
    sources: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with caplog.at_level(logging.INFO, logger="stochens"):
        assert build.load("small", "ANSWER=1") is None
        assert build.load("small", "ANSWER=1") is None
    assert [r.getMessage() for r in caplog.records if "no C++ compiler" in r.getMessage()]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "false", "true"])
def test_bad_compiler_is_no_error(
    sources: Path, monkeypatch: pytest.MonkeyPatch, compiler: str
) -> None:
    """Missing, failing, and one that makes a file that is no library."""
    monkeypatch.setenv("CXX", compiler)
    assert build.load("small", "ANSWER=1") is None
    assert not list(sources.glob("cache/*"))


def test_broken_source_and_missing_source(sources: Path) -> None:
    (sources / "broken.cpp").write_text("this is not C++")
    assert build.load("broken") is None
    assert build.load("missing") is None
    assert list((sources / "cache").iterdir()) == []


def test_compiler_with_arguments(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", f"{build._compiler()[0]} -DANSWER=7")
    library = build.load("small")
    assert library is not None
    assert library.answer() == 7


def test_compiler_that_knows_no_native_cpu(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = sources / "simple-c++"
    wrapper.write_text(
        f'#!/bin/sh\ncase "$*" in *native*) exit 1;; esac\nexec {build._compiler()[0]} "$@"\n'
    )
    wrapper.chmod(0o755)
    monkeypatch.setenv("CXX", str(wrapper))
    assert answer(5) == 5


def test_switched_off(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCHENS_KERNELS", "off")
    assert build.load("small", "ANSWER=1") is None
    assert not (sources / "cache").exists()


def test_unwritable_cache_falls_back(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (sources / "file").touch()  # no folder can be made below a file, not even by root
    monkeypatch.setenv("STOCHENS_CACHE", str(sources / "file" / "cache"))
    assert answer(3) == 3


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_read_only_cache_falls_back(sources: Path) -> None:
    (sources / "cache").mkdir(mode=stat.S_IREAD | stat.S_IEXEC)
    assert answer(3) == 3


def test_racing_builds(sources: Path) -> None:
    with ThreadPoolExecutor(4) as threads:
        libraries = threads.map(
            lambda _: build._library(sources / "small.cpp", ["-DANSWER=9"]), range(8)
        )
        assert len(set(libraries)) == 1
    assert len(list((sources / "cache").iterdir())) == 1
    assert answer(9) == 9


# CUDA kernels: a compiler that is played, since what is kept needs no GPU


class Compiler:
    """NVRTC and the driver: counts what is compiled, and loads only what it has made."""

    def __init__(self) -> None:
        self.compiled: list[str] = []

    def compile(self, code: str, name: str, nvcc_options: list[str]) -> tuple[bytes, str]:
        self.compiled.append(name)
        return b"\x7fELF\n\0" + code.encode(), f"_Z{name}"

    def load(self, machine_code: bytes, name: str) -> tuple[str, str]:
        assert machine_code.startswith(b"\x7fELF\n\0")
        return machine_code[6:].decode(), name


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setenv("STOCHENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(build, "cuda_machine_code", made.compile)
    monkeypatch.setattr(build, "load_cuda", made.load)
    monkeypatch.setattr(build, "compile_cuda", lambda code, *_, **__: ("each time", code))
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (9, 0))
    return made


def test_a_cuda_kernel_is_compiled_once_for_all_runs(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        assert build.cuda_kernel("code", "step") == ("code", "_Zstep")
    assert compiler.compiled == ["step"]
    assert build.cuda_kernel("other code", "step") == ("other code", "_Zstep")
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (10, 0))
    build.cuda_kernel("code", "step")
    assert compiler.compiled == ["step"] * 3, "another source and another GPU are other kernels"
    assert len(list((tmp_path / "cache").iterdir())) == 3


def test_a_damaged_cuda_kernel_is_compiled_again(compiler: Compiler, tmp_path: Path) -> None:
    build.cuda_kernel("code", "step")
    (kept,) = (tmp_path / "cache").iterdir()
    whole = kept.read_bytes()
    for damaged in (b"", whole[:-1], whole[:70], whole.replace(b"code", b"c0de")):
        kept.write_bytes(damaged)
        assert build.cuda_kernel("code", "step") == ("code", "_Zstep")
        assert kept.read_bytes() == whole
    assert len(compiler.compiled) == 5


def test_a_cuda_kernel_that_cannot_be_kept_still_runs(
    compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise InputError("cannot write: no space left on device")

    monkeypatch.setattr(build, "write_whole", full)
    assert build.cuda_kernel("code", "step") == ("code", "_Zstep")

    def gone(code: str, name: str, nvcc_options: list[str]) -> tuple[bytes, str]:
        raise ImportError("cannot import name '_nvrtc_compile'")  # as of another torch

    monkeypatch.setattr(build, "cuda_machine_code", gone)
    assert build.cuda_kernel("code", "step") == ("each time", "code")
