"""`Validation`: data that members do not learn from, by which each is judged after every epoch."""

import dataclasses
from numbers import Real
from typing import Any

import torch

from stochens.checks import whole, whole_or_none
from stochens.data import Data, Source, rows_of, source
from stochens.errors import InputError
from stochens.randomness.seeds import VALIDATION, derive
from stochens.trees import cat


@dataclasses.dataclass(frozen=True, eq=False)
class Validation:
    """What `fit` validates on, and what it does by it: `fit(..., validation=Validation(0.2, ...))`.

    After each epoch the NLL of each member on these data goes into `posterior.history.validation`
    [E, M]. It is the expected NLL of a data point under the member's noise, as `history.nll` is for
    the training data, with the same noise in every epoch, so that two epochs differ by the member.

    data: as `fit` takes it (a DataLoader is read once into memory), or a share in (0, 1) of the
        rows of the training data, drawn by the seed, which no member learns from then.
    patience: a member stops after so many epochs in a row without a better NLL, and has the state
        of its best epoch. The others go on as if it were not there. None: nobody stops.
    best: whether a member has the state of its best epoch where nobody stops.
        `posterior.history.kept` [M] says which epoch that is.
    draws: of a member's noise that the NLL is the mean of.

    >>> import stochens
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=60)
    >>> chosen = Validation(0.25, patience=2)
    >>> posterior = stochens.fit(net, data, members=3, epochs=4, validation=chosen)
    >>> posterior.data_size, posterior.history.validation.shape  # [E, M]
    (45, torch.Size([4, 3]))
    """

    data: Any
    patience: int | None = None
    best: bool = False
    draws: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.data, Validation):
            raise InputError("Validation in Validation: say patience, best and draws once")
        if self.data is None:
            raise InputError("Validation needs data, or a share of the rows, such as 0.1")
        whole_or_none(patience=self.patience)
        whole(draws=self.draws)
        if self.share is not None and not 0 < self.share < 1:
            raise InputError(
                f"validation must be data, or a share of the rows in (0, 1), got {self.share!r}"
            )

    @property
    def share(self) -> float | None:
        """Of the training data; None where there are data of its own."""
        return float(self.data) if isinstance(self.data, Real) else None

    @property
    def chooses(self) -> bool:
        """Whether members have the state of their best epoch."""
        return self.best or self.patience is not None

    def options(self) -> dict[str, Any]:
        """All but the data: what a training that goes on must share with the one before it."""
        return {"patience": self.patience, "best": self.chooses, "draws": self.draws}


def as_validation(given: Any) -> Validation | None:
    """What `fit` was given: data or a share alone are for the record.

    >>> as_validation(0.1).chooses, as_validation(None) is None
    (False, True)
    """
    return given if given is None or isinstance(given, Validation) else Validation(given)


def held_out(given: Source, validation: Validation, seed: int) -> tuple[Source, Source]:
    """The data to train on, and those to validate on, both as they were given (on the CPU)."""
    if validation.share is not None:
        return _share_of(given, validation.share, seed)
    own = validation.data
    if not isinstance(own, Data):  # y is called there as in the data to train on
        own = Data(own, None if isinstance(own, (tuple, list)) else given.target)
    held = source(own)
    if held.augment is not None:
        raise InputError("validation data are taken as they are; leave augment out of them")
    if held.sets > 1:
        raise InputError("validation needs one data set for all members, not Replicas")
    if held.loader is not None:
        parts = list(held.batches())
        x, y = cat([x for x, _ in parts]), torch.cat([y for _, y in parts])
        held = Source(x, y, len(x))
    return given, held


def _share_of(given: Source, share: float, seed: int) -> tuple[Source, Source]:
    if given.loader is not None or given.sets > 1:
        what = "a DataLoader or a stream" if given.loader is not None else "Replicas"
        raise InputError(
            f"validation={share:g} takes rows of one data set in memory, and the data are {what}; "
            "give data to validate on: validation=(x, y)"
        )
    count = round(share * given.size)
    if count < 1 or count > given.size - 1:
        raise InputError(
            f"validation={share:g} of {given.size} rows would be {count}; it needs at least 1, and "
            "1 to train on"
        )
    generator = torch.Generator().manual_seed(derive(seed, VALIDATION))
    order = torch.randperm(given.size, generator=generator).to(given.x.device)
    # in their order: what a member sees is shuffled anyway
    held, rest = order[:count].sort().values, order[count:].sort().values
    return _rows_of(given, rest), _rows_of(given, held)._replace(augment=None)


def _rows_of(given: Source, rows: torch.Tensor) -> Source:
    """Some of the rows, whose weights have a mean of 1 again, and the sum that they had."""
    total = None if given.total is None else given.total * len(rows) / given.size
    weights = None if given.weights is None else given.weights[rows]
    if weights is not None:
        mean = float(weights.double().mean())
        weights = weights / mean
        total = None if total is None else total * mean
    return given._replace(
        x=rows_of(given.x, rows), y=given.y[rows], size=len(rows), weights=weights, total=total
    )
