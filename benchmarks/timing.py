"""What the speed benchmarks share: clocks, CUDA graphs, time limits, warm caches, rows of JSON."""

import contextlib
import gc
import importlib.metadata
import json
import os
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import stochens

Step = Callable[[], object]
Row = dict[str, Any]


class OutOfTime(BaseException):  # not an Exception: torch.compile catches those on its way
    """A case took longer than it may."""


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """What runs inside is stopped by `OutOfTime` after so many seconds."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"stopped after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def graphed(step: Step) -> Step:
    """The whole step as a CUDA graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    captured, before = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
    try:
        with torch.cuda.graph(captured):
            step()
    finally:  # a recording that fails stays on its own stream
        torch.cuda.set_stream(before)
    return captured.replay


def graphed_if_possible(step: Step) -> tuple[Step, Row]:
    """As a CUDA graph, or as it is with the reason."""
    try:
        return graphed(step), {}
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        return step, {"without_graph": " ".join(str(error).split())[:200]}


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def step_seconds(step: Step, *, repeats: int, each: float) -> list[float]:
    """Of one step, `repeats` times, from runs of about `each` seconds with a wait at both ends."""

    def run(count: int) -> float:
        wait()
        began = time.perf_counter()
        for _ in range(count):
            step()
        wait()
        return time.perf_counter() - began

    run(1)
    once = run(3) / 3
    count = max(1, round(each / max(once, 1e-7)))
    return [run(count) / count for _ in range(repeats)]


def tidy() -> None:
    """Leave nothing of one case to the next."""
    torch._dynamo.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rate_row(seconds: Sequence[float], examples: int) -> Row:
    """Member-examples a second: the median of the repeats, the least and the most."""
    rates = [examples / s for s in seconds]
    return {
        "member_examples_per_s": round(statistics.median(rates)),
        "spread": [round(min(rates)), round(max(rates))],
        "ms_a_step": 1e3 * statistics.median(seconds),
        "repeats": len(seconds),
    }


def attempt(work: Callable[[], Row], seconds: float) -> Row:
    """The row that `work` returns, or one with its error; with the wall time in any case."""
    began = time.perf_counter()
    try:
        with limit(seconds):
            row = work()
    except (Exception, OutOfTime) as error:
        text = " ".join(str(error).split())
        row = {"error": f"{type(error).__name__}: {text}"[:600]}
    row["wall_s"] = round(time.perf_counter() - began, 2)
    try:
        tidy()
    except Exception as error:  # a broken device: say so, and go on with what is left
        row["after"] = f"{type(error).__name__}: {error}"[:200]
    return row


def about(**more: Any) -> dict[str, Any]:
    """The machine and the versions."""
    cuda = torch.cuda.is_available()
    packages = {}
    for package in ("jax", "triton"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[package] = importlib.metadata.version(package)
    words = [Path(word).name if word.startswith("/") else word for word in sys.argv[1:]]
    return {
        "command": shlex.join(["python", "benchmarks/" + Path(sys.argv[0]).name, *words]),
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "cores": len(os.sched_getaffinity(0)),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        **packages,
        "stochens": stochens.__version__,
        **more,
    }


def ceilings() -> dict[str, float]:
    """What the GPU can do: a large copy (bytes read and written), a large bf16 product."""
    big = torch.randn(1 << 29, device="cuda")  # 2 GiB
    copy = statistics.median(step_seconds(lambda: big.clone(), repeats=3, each=0.05))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = statistics.median(step_seconds(lambda: a @ a, repeats=3, each=0.05))
    return {
        "copy_tb_per_s": 2 * big.numel() * 4 / copy / 1e12,
        "bf16_tflop_per_s": 2 * 8192**3 / product / 1e12,
    }


class Report:
    """Rows, printed as they come and written each time, so that a run cut short leaves its part."""

    def __init__(self, file: Path | None, head: dict[str, Any], budget: float) -> None:
        self.file, self.head, self.rows = file, head, list[Row]()
        self._began, self._budget = time.monotonic(), budget
        print(", ".join(f"{name} {value}" for name, value in head.items()), flush=True)

    @property
    def left(self) -> float:
        """Seconds of the budget."""
        return self._budget - (time.monotonic() - self._began)

    def add(self, row: Row, line: str) -> None:
        self.rows.append(row)
        print(line, flush=True)
        self.write()

    def write(self) -> None:
        if self.file is not None:
            self.head["wall_s"] = round(time.monotonic() - self._began, 1)
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self.file.write_text(json.dumps({**self.head, "cases": self.rows}, indent=1) + "\n")


def warm_caches(
    script: Path, cases: Sequence[str], options: Sequence[str], *, workers: int, seconds: float
) -> dict[str, float]:
    """Compile all cases in several processes, so that the one that measures finds the code in
    torch's caches on disk. Seconds that each case took, with no cache and the others beside it.

    A process runs `script --warm CASE ...`, and prints a line of JSON for each case it has done.
    """
    threads = str(max(1, (os.cpu_count() or 2) // max(workers, 1)))
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": threads}
    began, cold = time.monotonic(), dict[str, float]()
    shares = [share for k in range(workers) if (share := list(cases[k::workers]))]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as held:
        started: list[tuple[subprocess.Popen[bytes], Path]] = []
        for k, share in enumerate(shares):
            said = Path(folder) / str(k)
            out = held.enter_context(said.open("wb"))
            words = [sys.executable, str(script), *options, "--warm", *share]
            process = subprocess.Popen(
                words, stdout=out, stderr=subprocess.DEVNULL, env=environment
            )
            started.append((process, said))
        for process, said in started:
            try:
                process.wait(max(1.0, seconds - (time.monotonic() - began)))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for line in said.read_text().splitlines():
                with contextlib.suppress(ValueError):
                    cold |= json.loads(line)
    wall = time.monotonic() - began
    print(f"compiled {len(cold)} of {len(cases)} cases beforehand in {wall:.0f} s", flush=True)
    return cold


def warm(cases: Sequence[str], compile_case: Callable[[str], object]) -> None:
    """What such a process does."""
    for case in cases:
        began = time.perf_counter()
        with contextlib.suppress(Exception):  # the process that measures reports it
            compile_case(case)
            wait()
            print(json.dumps({case: round(time.perf_counter() - began, 1)}), flush=True)
        with contextlib.suppress(Exception):
            tidy()
