"""Parts of a run that end well or badly, for processes of their own."""

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from stochens import InputError
from stochens_lab.experiments.runs import open_run
from stochens_lab.report.run_folder import METRICS


@dataclasses.dataclass(frozen=True)
class Part:
    out: Path
    how: str


def run(part: Part, *, resume: bool = False, note: Callable[[str], None] = print) -> Path:
    """What is done before a kill stays: the number of times that it was begun."""
    with open_run(part.out, "toy", {}, "cpu", resume=resume) as folder:
        times = folder._tables[METRICS].get(part.out.name, 0) + 1
        folder.put(METRICS, (part.out.name,), times)
        folder.write()
        match part.how:
            case "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            case "killed once" if times == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            case "refused":
                raise InputError("the part is wrong")
            case "faulty":
                raise ZeroDivisionError("by zero")
            case "slow":
                (part.out / "slow").write_text(str(os.getpid()))
                time.sleep(600)
        folder.write(complete=True)
    return part.out
