"""`p.plot`: figures of a prediction, as matplotlib's axes."""

from typing import Any, Protocol

import torch

from stochens.errors import InputError, check_known
from stochens.figures.axes import draw_amounts, draw_reliability, draw_risk, new_axes
from stochens.figures.views import Views

IN, OUT = "in domain", "out of domain"


class Viewed(Protocol):
    """A prediction."""

    @property
    def views(self) -> Views: ...


class Plots:
    """Figures of what `posterior.predict` returns: `p.plot.reliability(y)`.

    Each takes `ax`, matplotlib's axes to draw on, or makes a figure of its own, and returns the
    axes. They need `stochens[report]`.

    >>> import torch
    >>> from stochens import Predictive
    >>> p = Predictive.of(torch.tensor([[[0.9, 0.1], [0.4, 0.6]]]))  # [S, B, C]
    >>> ax = p.plot.reliability(torch.tensor([0, 1]))
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('confidence', 'accuracy')
    """

    def __init__(self, p: Viewed) -> None:
        self._views, self._kind = p.views, type(p).__name__

    def reliability(self, y: Any, *, ax: Any = None) -> Any:
        """What was promised against what came, given the truth y. Of classes accuracy over
        confidence, in the bins of the ECE; of numbers the share of targets inside central
        intervals over their level. On the diagonal promises are kept."""
        found = self._views.reliability(torch.as_tensor(y))
        if found is None:
            raise InputError(f"a {self._kind} has no reliability to be shown")
        return draw_reliability(new_axes() if ax is None else ax, found)

    def risk_coverage(self, y: Any, *, ax: Any = None) -> Any:
        """The error among the surest share of the answers, over that share; of numbers the RMSE.
        The area under it is the AURC of `stochens.compare`."""
        found = self._views.risk(torch.as_tensor(y))
        if found is None:
            raise InputError(f"a {self._kind} has no risk to be shown")
        return draw_risk(new_axes() if ax is None else ax, found)

    def uncertainty(
        self, ood: Viewed | None = None, *, what: str | None = None, ax: Any = None
    ) -> Any:
        """A histogram of one kind of uncertainty, here and at inputs of another kind, predicted as
        `ood`. `what`: "entropy" or "mutual information" of classes, "std" or "epistemic std" of
        numbers; the first if not given."""
        here = self._views.amounts()
        if not here:
            raise InputError(f"a {self._kind} has no uncertainty to be shown")
        what = next(iter(here)) if what is None else what
        check_known("uncertainty", what, here)
        shown = {IN: here[what]}
        if ood is not None:
            there = ood.views.amounts()
            check_known("uncertainty of ood", what, there)
            shown[OUT] = there[what]
        return draw_amounts(new_axes() if ax is None else ax, shown)
