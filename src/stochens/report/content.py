"""What a report is on: predictions, the truth, and where both come from."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from stochens.likelihoods import Predicted
from stochens.trees import Input


class Course(Protocol):
    """What training recorded: a posterior's `History`."""

    @property
    def nll(self) -> Tensor: ...  # [E, M]

    @property
    def validation(self) -> Tensor: ...  # [E, M], or [0, M]

    @property
    def kept(self) -> Tensor: ...  # [M]


class Content(NamedTuple):
    """Everything that a page shows."""

    title: str
    facts: Sequence[tuple[str, str]]
    p: Predicted
    y: Tensor
    pick: Callable[[Sequence[int]], list[Input]]  # the inputs of some examples, each [1, ...]
    far: Predicted | None = None  # at inputs of another kind
    alone: Mapping[str, Predicted] = MappingProxyType({})  # each member, or chain, by itself
    history: Course | None = None
    names: Sequence[str] = ()  # of classes, labels or targets
    features: Sequence[str] = ()  # of the columns of x
    show: Callable[[Any], Any] | None = None  # one input as a picture or a text
    resamples: int = 300
    seed: int = 0
