"""A run folder: what was asked, on what, how long it took, and everything that came out.

    run.json         config, seed, command, versions, machine, timings, whether it is complete
    metrics.json     set -> method -> domain -> metric -> {value, low, high}
    training.json    set -> method -> KL terms, loss and its fluctuation, its course
    sampler.json     set -> diagnostics of the reference
    predictions.npz  "set/method/domain/mean" [B, C], ".../entropy" [B], ".../mi" [B], and points
    figures/         PNG and SVG
    tables.md        the metrics as tables
    report.html      all of it on one page
    SHA256SUMS       checksums of the first five, which are compared whenever they are read

Files are written whole and often: what a stopped run leaves can be read and shown.
"""

import contextlib
import datetime
import json
import math
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochens.errors import InputError
from stochens.files.storage import CHECKSUMS, DAMAGE, LOCK, format_of, new_folder, reading
from stochens.files.sums import read_files, replace_files
from stochens.metrics import Interval
from stochens.posterior.predictive import Predictive
from stochens.run.checkpoints import alone_in
from stochens.version import __version__
from stochens_lab.npz import npz_bytes, read_npz

RUN, METRICS, TRAINING, SAMPLER = "run.json", "metrics.json", "training.json", "sampler.json"
PREDICTIONS, FIGURES = "predictions.npz", "figures"
PAGE, TABLES = "report.html", "tables.md"


class RunFolder:
    """One being written: `put` what is known, when it is known. Inside `with` it is locked."""

    def __init__(
        self, path: str | Path, *, experiment: str, config: Mapping[str, Any], device: str
    ) -> None:
        self.path = new_folder(path)
        self._hold()
        self.arrays: dict[str, np.ndarray] = {}
        self._tables: dict[str, dict[str, Any]] = {METRICS: {}, TRAINING: {}, SAMPLER: {}}
        self._began = time.monotonic()
        self._about: dict[str, Any] = {
            "experiment": experiment,
            "config": dict(config),
            "command": shlex.join(["stochens", *sys.argv[1:]]),
            "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "versions": {
                "stochens": __version__,
                "torch": torch.__version__,
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
            "machine": machine(device, config.get("engine")),
            "timings": {},
            "seconds": 0.0,
            "complete": False,
        }
        self.write()

    @classmethod
    def reopen(cls, path: str | Path, *, config: Mapping[str, Any], device: str) -> "RunFolder":
        """One that was stopped, to go on with: all that it holds stays, and time adds up."""
        folder = cls.__new__(cls)
        folder.path = Path(path)
        SavedRun(path)  # is one, or nothing is written there
        folder._hold()
        before = SavedRun(path)
        folder.arrays = dict(before.arrays)
        folder._tables = {
            METRICS: before.metrics,
            TRAINING: before.training,
            SAMPLER: before.sampler,
        }
        folder._began = time.monotonic() - float(before.about["seconds"])
        command = shlex.join(["stochens", *sys.argv[1:]])
        folder._about = before.about | {
            "config": dict(config),
            "machine": machine(device, config.get("engine")),
            "then": [*before.about.get("then", []), command],
        }
        folder.write()
        return folder

    def _hold(self) -> None:
        """The folder is ours alone until the run is whole, or this process ends."""
        self._lock = contextlib.ExitStack()
        with _writing(self.path):
            (self.path / LOCK).touch()
        self._lock.enter_context(alone_in(self.path))

    def __enter__(self) -> "RunFolder":
        return self

    def __exit__(self, *error: object) -> None:
        self._lock.close()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds of what was timed so far, by name."""
        return dict(self._about["timings"])

    def say(self, **about: Any) -> None:
        """Put it into run.json, at once."""
        self._about |= about
        self.write()

    def put(self, table: str, keys: tuple[str, ...], value: Any) -> None:
        """Store a value in one of the tables, under its keys."""
        at = self._tables[table]
        for key in keys[:-1]:
            at = at.setdefault(key, {})
        at[keys[-1]] = value

    def put_row(self, keys: tuple[str, ...], row: Mapping[str, Interval]) -> None:
        """Store measures, with their intervals, in the table of metrics."""
        for metric, interval in row.items():
            self.put(METRICS, (*keys, metric), interval._asdict())

    def predictive(self, keys: tuple[str, ...], p: Predictive) -> None:
        """Keep what the maps and the tables need of a prediction."""
        prefix = "/".join(keys)
        self.arrays[f"{prefix}/mean"] = p.mean.cpu().numpy().astype(np.float32)
        self.arrays[f"{prefix}/entropy"] = p.entropy.cpu().numpy().astype(np.float32)
        self.arrays[f"{prefix}/mi"] = p.mutual_information.cpu().numpy().astype(np.float32)

    def absorb(self, part: "SavedRun") -> None:
        """Take over all that a run of other sets, or of other methods, holds."""
        for name, found in ((METRICS, part.metrics), (TRAINING, part.training)):
            for set_name, rows in found.items():
                self._tables[name].setdefault(set_name, {}).update(rows)
        self._tables[SAMPLER].update(part.sampler)
        self.arrays.update(part.arrays)
        self._about["timings"].update(part.about["timings"])

    @contextlib.contextmanager
    def timed(self, what: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            before = self._about["timings"].get(what, 0.0)  # of a run that was stopped in it
            self._about["timings"][what] = round(before + time.monotonic() - began, 2)

    def write(self, *, complete: bool = False) -> None:
        """Everything so far, each file whole or as it was."""
        self._about["seconds"] = round(time.monotonic() - self._began, 1)
        self._about["complete"] = complete
        # run.json is the last: it says whether the others are complete
        tables = self._tables | {RUN: self._about}
        files = {
            name: json.dumps(finite(table), indent=2, allow_nan=False).encode() + b"\n"
            for name, table in tables.items()
        }
        if self.arrays:
            files = {PREDICTIONS: npz_bytes(self.arrays), **files}
        with _writing(self.path):
            replace_files(self.path, files)
        if complete:
            self._lock.close()
            (self.path / LOCK).unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """For JSON, which has no infinity: null. An NLL is infinite where a label had probability 0;
    what a run took hours for is not lost over it.

    >>> finite({"std": [float("inf"), 1.0]})
    {'std': [None, 1.0]}
    """
    if isinstance(value, dict):
        return {key: finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from error


def machine(device: str, engine: object) -> dict[str, Any]:
    """This one, and the GPU that members were trained on."""
    gpu = None
    if device.startswith("cuda"):
        gpu = "GPUs of a cluster" if engine == "ray" else torch.cuda.get_device_name()
    return {"gpu": gpu, "cores": os.cpu_count(), "system": platform.platform()}


@contextlib.contextmanager
def blame_damage(paths: Iterable[Path]) -> Iterator[None]:
    """Inside, what is not as expected in a run without checksums is laid to its files."""
    try:
        yield
    except InputError:
        raise
    except DAMAGE as error:
        for path in paths:
            if not (path / CHECKSUMS).exists():
                raise InputError(
                    f"{path} cannot be used: {type(error).__name__}: {error}; it has no checksums, "
                    "and its files may be damaged"
                ) from error
        raise


def refuse_saved(path: Path) -> None:
    """A posterior, or a training that was stopped, is no run: it holds no measures."""
    if (path / RUN).exists() or (kind := format_of(path)) is None:
        return
    if (path.resolve().parent / RUN).exists():  # as `stochens fit` puts it there
        raise InputError(f"{path} is a part of a run; name the run: {path.resolve().parent}")
    if kind.startswith("stochens posterior"):
        raise InputError(
            f"{path} is a saved posterior, not a run: it holds members, and no measures to show. "
            "stochens fit makes runs, which evaluate, compare and report take. In Python: "
            f"posterior = stochens.load({str(path)!r}, net), then stochens.compare("
            "{'mine': posterior.predict(x)}, y)"
        )
    raise InputError(f"{path} holds {kind!r}, and is no run; stochens fit makes runs")


class SavedRun:
    """One that was written, read back."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        refuse_saved(self.path)
        with reading(self.path):
            files = read_files(self.path, (RUN, METRICS, TRAINING, SAMPLER, PREDICTIONS))
        self.about, self.metrics = self._json(RUN, files), self._json(METRICS, files)
        self.training, self.sampler = self._json(TRAINING, files), self._json(SAMPLER, files)
        self.arrays: dict[str, np.ndarray] = {}
        if PREDICTIONS in files:
            with reading(self.path / PREDICTIONS):
                self.arrays = read_npz(files[PREDICTIONS], self.path / PREDICTIONS)

    def _json(self, name: str, files: Mapping[str, bytes]) -> dict[str, Any]:
        if name not in files:
            raise InputError(f"{self.path} is no saved folder: {self.path / name} is missing")
        with reading(self.path / name):
            found = json.loads(files[name])
        if not isinstance(found, dict):
            raise InputError(f"{self.path / name} is damaged: not a table")
        return found

    def predictive(self, keys: tuple[str, ...]) -> Predictive:
        """What `RunFolder.predictive` kept, without the draws."""
        mean, entropy, mi = (
            torch.from_numpy(self.arrays["/".join((*keys, what))])
            for what in ("mean", "entropy", "mi")
        )
        return Predictive(mean, entropy - mi, None)

    @property
    def name(self) -> str:
        return self.path.resolve().name
