"""A step with the prior's L2 in the optimiser is the step on the whole loss."""

from typing import Any

import pytest
import torch
from tests.tolerance import trained
from torch import Tensor, nn

import stochens
from stochens import objective
from stochens.training import loop


class Unused(nn.Module):
    """Has a parameter that its outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.idle = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def fit(net: Any, **options: Any) -> stochens.Posterior:
    x = torch.randn(25, 3, generator=torch.Generator().manual_seed(0)).double()
    data = x, (x[:, 0] > 0).long()
    return stochens.fit(net, data, members=3, epochs=3, batch_size=8, seed=1, **options)


@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect", "np-dropout"])
@pytest.mark.parametrize("clip", [None, 0.05])  # the second is less than all gradients
@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_l2_in_the_optimiser_is_l2_in_the_loss(
    name: str, clip: float | None, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last batch is short, so that the step counts less, and a parameter has no gradient."""
    optimizer = stochens.Optimizer(name, weight_decay=0.3, clip=clip)
    options = {"method": method, "optimizer": optimizer, "prior": 7.0, "kl_weight": 0.5}
    ours = fit(lambda: Unused().double(), **options)
    whole = objective.penalty_for
    monkeypatch.setattr(
        loop.objective, "penalty_for", lambda *args: whole(*args)._replace(slopes=None)
    )
    theirs = fit(lambda: Unused().double(), **options)
    within = trained(torch.float64, steps=12, rows=8)
    for part, p in theirs.params.items():
        torch.testing.assert_close(ours.params[part], p, **within)
    torch.testing.assert_close(ours.history.loss, theirs.history.loss)
