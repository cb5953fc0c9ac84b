"""What trials of the methods found, kept beside the checkpoints of the training they are for.

CHECKPOINT/trials/000000003   the outcomes of the first three candidates
CHECKPOINT/trial-003          the training of the fourth, until its outcome is kept
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stochens.cluster.folder import at_hand, below, forget, held
from stochens.files.checkpoints import Checkpoints, as_read, refuse_other

FORMAT = "stochens trials 1"


class Outcome(NamedTuple):
    """Of one candidate, all that the table of trials is made of."""

    log_p: Tensor  # [held-out examples], float64
    loss: Tensor  # [M], the training KL loss of the last epoch
    loss_sd: Tensor  # [M], its fluctuation
    stochasticity: Tensor  # []
    ranked: Tensor  # [], bool: whether its KL loss is on the others' scale


class Outcomes:
    """By label; what is added is on the disk before the next trial begins."""

    def __init__(
        self, place: str | Path | None, kept: Checkpoints | None, settings: dict[str, Any]
    ) -> None:
        self.found: dict[str, Outcome] = {}
        self.refused: dict[str, str] = {}  # candidate -> why
        self._place, self._kept, self._settings = place, kept, settings
        content = None if kept is None else kept.latest()
        if kept is None or content is None:
            return
        tensors, about = content
        refuse_other(settings, about["settings"], str(kept.folder))
        self.refused = about["refused"]
        for name in about["found"]:
            self.found[name] = Outcome(*(tensors[f"{name}/{part}"] for part in Outcome._fields))

    def __len__(self) -> int:
        return len(self.found) + len(self.refused)

    def folder(self, number: int) -> str | Path | None:
        """Where a trial is kept while it trains."""
        return None if self._place is None else below(self._place, f"trial-{number:03d}")

    def add(self, name: str, outcome: Outcome | str) -> None:
        """A trial that has ended: its outcome, or why it could not be."""
        number = len(self)
        if isinstance(outcome, str):
            self.refused[name] = outcome
        else:
            self.found[name] = outcome
        if self._kept is None:
            return
        tensors = {
            f"{name}/{part}": t
            for name, one in self.found.items()
            for part, t in one._asdict().items()
        }
        about = {
            "settings": self._settings,
            "found": list(self.found),
            "refused": self.refused,
        }
        self._kept.save(len(self), tensors, about)
        forget(self.folder(number))


@contextlib.contextmanager
def kept_outcomes(place: str | Path | None, settings: dict[str, Any]) -> Iterator[Outcomes]:
    """Those that were kept below a checkpoint's place, which is ours alone meanwhile; None: none.

    `settings` are what trials that go on must share with those before them.
    """
    if place is None:
        yield Outcomes(None, None, {})
        return
    with held(place), at_hand(below(place, "trials")) as folder:
        yield Outcomes(place, Checkpoints(folder, FORMAT), as_read(settings))
