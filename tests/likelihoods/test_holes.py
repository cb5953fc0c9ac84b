"""Predictions at the edge: one row, one draw, targets of which some, or all, are missing; inputs of
several tensors; and the NLL of held-out data under every option."""

import math

import pytest
import torch
from tests.likelihoods.table import ROWS, outputs_of
from tests.likelihoods.test_conformance import prediction, targets
from tests.long import long_but
from torch import nn

import stochens
from stochens import InputError
from stochens.likelihoods import Binary, MixtureDensity, Multilabel, Quantiles
from stochens.members import forward

BY_DRAWS = ("mixture", "quantiles", "student-t", "student-t, scale given")
SLOW = ("student-t", "student-t, scale given", "negative-binomial")  # continued fractions
MASKED = [name for name, row in ROWS.items() if row.masked is not None]


def measured(p, y):
    return stochens.compare({"p": p}, y, resamples=5, show=False).rows["p"]


@pytest.mark.parametrize(("draws", "rows"), [(4, 1), (1, 3)])
@pytest.mark.parametrize("name", long_but([n for n in ROWS if n not in SLOW], ROWS))
def test_one_row_and_one_draw_have_every_measure(name, draws, rows):
    row = ROWS[name]
    p, y = prediction(row, outputs_of(row, draws, rows)), targets(row, rows)
    found = measured(p, y)
    assert all(math.isfinite(end) for interval in found.values() for end in interval)
    assert p.log_prob(y).shape == (rows,)
    assert len(p.sample(3)) == 3


@pytest.mark.parametrize("name", long_but([n for n in MASKED if n not in SLOW], MASKED))
def test_an_example_without_targets_changes_no_measure(name):
    """And others count by the targets that they have."""
    row = ROWS[name]._replace(like=ROWS[name].masked)
    y = targets(row, 6)
    hole = torch.zeros_like(y, dtype=torch.bool)
    if y.dim() > 1:
        hole[1::2, 0] = True
    y = y.masked_fill(hole, row.hole)
    outputs = outputs_of(row, 4, 6)
    alone = measured(prediction(row, outputs[:, 1:]), y[1:])
    y[0] = row.hole
    found = measured(prediction(row, outputs), y)
    for measure, interval in alone.items():
        if measure == "CRPS" and name in BY_DRAWS:
            continue  # of drawn y, which are others
        assert found[measure].value == pytest.approx(interval.value, rel=1e-9), measure
    with pytest.raises(InputError, match=r"no (label|target) is left to measure by: all are"):
        measured(prediction(row, outputs), torch.full_like(y, row.hole))


def test_the_pinball_loss_is_over_the_targets_that_are_there():
    """Was: over the rows that have all of theirs."""
    row = ROWS["quantiles"]._replace(like=ROWS["quantiles"].masked)
    p, y = prediction(row, outputs_of(row, 4, 5)), targets(row, 5)
    y[torch.arange(5), torch.tensor([0, 1, 0, 1, 1])] = math.nan
    total, count = 0.0, 0
    for b in range(5):
        for d in range(2):
            if math.isnan(y[b, d]):
                continue
            for level in row.like.levels:
                error = float(y[b, d] - p.quantile(level)[b, d])
                total += max(level * error, (level - 1) * error) / len(row.like.levels)
            count += 1
    assert measured(p, y)["pinball"].value == pytest.approx(total / count, rel=1e-12)


class Two(nn.Module):
    """Of a dictionary of inputs, with so many outputs."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, outputs), nn.Linear(1, outputs)

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return self.a(a) + self.b(b)


@pytest.mark.parametrize("name", ["multilabel", "ordinal", "mixture", "quantiles", "poisson"])
def test_trees_of_inputs(name):
    """As if their columns were one tensor."""
    row = ROWS[name]
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    tree = {"a": x[:, :2], "b": x[:, 2:]}
    y = row.targets(20, torch.Generator().manual_seed(1))
    y = y.float() if y.is_floating_point() else y
    options = {"likelihood": row.like, "method": "regular", "members": 2, "epochs": 2}
    posterior = stochens.fit(
        lambda: Two(row.outputs[0]), {**tree, "labels": y}, progress=False, **options
    )
    p = posterior.predict(tree)
    outputs = torch.stack(
        [
            x[:, :2] @ posterior.params["a.weight"][m].T
            + x[:, 2:] @ posterior.params["b.weight"][m].T
            + posterior.params["a.bias"][m]
            + posterior.params["b.bias"][m]
            for m in range(2)
        ]
    )
    wanted = prediction(row, outputs.detach().double())
    # float32 sums of 5 terms, of order 1
    torch.testing.assert_close(p.mean.double(), wanted.mean, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        p.log_prob(y), wanted.log_prob(row.like.check_targets(y)), rtol=1e-4, atol=1e-4
    )
    first = posterior.predict({"a": x[:1, :2], "b": x[:1, 2:]})
    torch.testing.assert_close(first.mean, p.mean[:1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("like", "outputs", "hole"),
    [
        (stochens.Categorical(class_weights=[0.5, 1.0, 4.0], ignore_index=-1), 3, -1),
        (Binary(class_weights=[0.2, 3.0]), 1, None),
        (Multilabel(missing="mask"), 2, math.nan),
        (Quantiles((0.1, 0.9), missing="mask"), 4, math.nan),
        (MixtureDensity(2, missing="mask"), 10, math.nan),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_nll_of_held_out_data_is_that_of_training(like, outputs, hole):
    """sum_b w_y nll_b / N over the held-out rows, in float64, whatever they lack."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(40, 2, generator=generator)
    kind = like.targets
    if kind == "classes":
        y = torch.randint(like.classes(torch.zeros(1, outputs)), (40,), generator=generator)
    else:
        y = torch.randint(2, (40, 2), generator=generator).float()
    if hole is not None:
        gone = torch.rand(y.shape, generator=generator) < 0.3
        y = y.masked_fill(gone, hole)
    posterior = stochens.fit(
        stochens.MLP(2, 4, outputs),
        (x[:20], y[:20]),
        likelihood=like,
        method="regular",
        members=2,
        epochs=3,
        validation=(x[20:], y[20:]),
        progress=False,
    )
    with torch.no_grad():
        found = forward(
            posterior.net, posterior.params, x[20:], engine="loop"
        ).double()  # [M, B, C]
    total = torch.zeros(2, dtype=torch.float64)
    checked = like.check_targets(y[20:])
    checked = checked.double() if checked.is_floating_point() else checked
    for b in range(20):
        own = checked[b : b + 1].expand(2, 1, *checked.shape[1:])
        total += like.nll(found[:, b : b + 1].double(), own)
    kept = posterior.history.validation[posterior.history.kept, torch.arange(2)]
    torch.testing.assert_close(kept.double(), total / 20, rtol=1e-5, atol=1e-6)  # float32 sums
