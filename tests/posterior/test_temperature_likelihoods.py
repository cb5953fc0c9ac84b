"""A temperature of every likelihood of classes, and one error for those that have none."""

import pytest
import torch
from torch import nn

from stochens import InputError, Posterior
from stochens.posterior.calibration import fit_temperature

ROWS = 40
X = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(0))


def labels(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(1))


class Pixels(nn.Module):
    """[B, 3] -> logits of 4 classes at 2 x 2 pixels, [B, 4, 2, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 16)

    def forward(self, x):
        return self.layer(x).reshape(-1, 4, 2, 2)


CASES = {
    "categorical": (lambda: nn.Linear(3, 4), labels(4, ROWS)),
    "soft-labels": (lambda: nn.Linear(3, 2), torch.tensor([[0.75, 0.25]] * ROWS)),
    "binary": (lambda: nn.Linear(3, 1), labels(2, ROWS)),
    "multilabel": (lambda: nn.Linear(3, 5), labels(2, ROWS, 5)),
    "ordinal": (lambda: nn.Linear(3, 3), labels(4, ROWS)),
    "dense": (Pixels, labels(4, ROWS, 2, 2)),
}


def members(make, likelihood):
    torch.manual_seed(0)
    nets = [make() for _ in range(3)]
    for net in nets:
        for p in net.parameters():
            p.data *= 8  # far too sure of labels that are chance
    name = "categorical" if likelihood == "dense" else likelihood
    return Posterior.of(nets, likelihood=name, example=X[:2])


@pytest.mark.parametrize("likelihood", CASES)
def test_it_lowers_the_nll_and_predictions_have_it(likelihood):
    make, y = CASES[likelihood]
    posterior = members(make, likelihood)
    found = fit_temperature(posterior, (X, y))
    assert found.calibration.temperature > 1.5
    assert found.calibration.nll < found.calibration.nll_before
    own = posterior.likelihood.check_targets(y)
    before, after = (-p.predict(X).log_prob(own).mean().item() for p in (posterior, found))
    # the same steps; sums over members may come in another order
    assert before == pytest.approx(found.calibration.nll_before, rel=1e-6)
    assert after == pytest.approx(found.calibration.nll, rel=1e-6)


def test_those_without_one_say_so():
    nets = [nn.Linear(3, 1) for _ in range(2)]
    posterior = Posterior.of(nets, likelihood="poisson", example=X[:2])
    with pytest.raises(InputError, match="Poisson does not say what a temperature does"):
        fit_temperature(posterior, (X, labels(4, ROWS).float()))
