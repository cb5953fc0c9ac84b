import logging
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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
