"""What trials of the methods found, kept beside the checkpoints of the training they are for.

CHECKPOINT/trials/000000003   three outcomes
CHECKPOINT/trial-003          the training of the fourth candidate, until its outcome is kept
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stochens.run.checkpoints import Checkpoints, as_read, refuse_other
from stochens.run.cluster.folder import at_hand, below, forget, held, is_url

FORMAT = "stochens trials 2"  # 1: kl_weight was called temperature


class Outcome(NamedTuple):
    """Of one candidate, all that the table of trials is made of."""

    log_p: Tensor  # [held-out examples], float64
    loss: Tensor  # [M], the training KL loss of the last epoch
    loss_sd: Tensor  # [M], its fluctuation
    stochasticity: Tensor  # []
    ranked: Tensor  # [], bool: whether its KL loss is on the others' scale


class Outcomes:
    """By the candidate's label. Those that are whole are kept, and not made again by a run that
    goes on; who was refused may not be then, by another engine or with more memory."""

    def __init__(
        self,
        labels: Sequence[str],
        place: str | Path | None,
        kept: Checkpoints | None,
        settings: dict[str, Any],
    ) -> None:
        self.found: dict[str, Outcome] = {}
        self.refused: dict[str, str] = {}  # candidate -> why
        self._labels, self._place, self._kept, self._settings = labels, place, kept, settings
        self._whole: list[str] = []
        content = None if kept is None else kept.latest()
        if kept is None or content is None:
            return
        tensors, about = content
        refuse_other(settings, about["settings"], str(kept.folder))
        self._whole = list(about["found"])
        for name in self._whole:
            self.found[name] = Outcome(*(tensors[f"{name}/{part}"] for part in Outcome._fields))

    def folder(self, name: str) -> str | Path | None:
        """Where a trial is kept while it trains."""
        number = self._labels.index(name)
        return None if self._place is None else below(self._place, f"trial-{number:03d}")

    def add(self, name: str, outcome: Outcome, *, whole: bool) -> None:
        """`whole`: no member is missing that the same call might make."""
        self.found[name] = outcome
        if self._kept is None or not whole:
            return
        self._whole.append(name)
        tensors = {
            f"{name}/{part}": t
            for name in self._whole
            for part, t in self.found[name]._asdict().items()
        }
        about = {"settings": self._settings, "found": self._whole}
        self._kept.save(len(self._whole), tensors, about)
        if not is_url(self._place):  # there, nobody knows yet whether the copy has arrived
            forget(self.folder(name))

    def in_order(self) -> dict[str, Outcome]:
        return {name: self.found[name] for name in self._labels if name in self.found}

    def tidy_up(self) -> None:
        """Remove what was left of trials, all of which have ended."""
        for name in self._labels:
            forget(self.folder(name))


@contextlib.contextmanager
def open_outcomes(
    labels: Sequence[str], place: str | Path | None, settings: dict[str, Any]
) -> Iterator[Outcomes]:
    """Those that were kept below a checkpoint's place, which is ours alone meanwhile; None: none.

    `settings` are what trials that go on must share with those before them.
    """
    if place is None:
        yield Outcomes(labels, None, None, {})
        return
    with held(place):
        with at_hand(below(place, "trials")) as folder:
            outcomes = Outcomes(labels, place, Checkpoints(folder, FORMAT), as_read(settings))
            yield outcomes
        outcomes.tidy_up()
