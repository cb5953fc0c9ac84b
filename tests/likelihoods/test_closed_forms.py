"""Parts of predictions against numbers worked out by hand."""

import math

import pytest
import torch

from stochens import GaussianPredictive
from stochens.likelihoods import Classes, MultilabelPredictive, moments
from stochens.likelihoods.mixture import GaussianMixture
from stochens.likelihoods.quantiles import QuantileSpline


def test_the_entropy_of_a_distribution_by_quantiles():
    """Four pieces of mass 1/4 with densities 1/4, 1/4, 1/8, 1/8: -log f, and 1 more in a tail."""
    each = QuantileSpline(torch.tensor([0.0, 1.0, 3.0]).double(), (0.25, 0.5, 0.75))
    assert float(each.entropy()) == pytest.approx(0.5 + 2.5 * math.log(2), rel=1e-12)


def test_the_shapes_of_a_mixture():
    """S = 2 draws at B = 3 inputs, of K = 4 components in D = 5."""
    mixed = GaussianMixture(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4, 5), torch.ones(2, 3, 4, 5))
    assert (mixed.batch_shape, mixed.event_shape) == ((2, 3), (5,))


@pytest.mark.parametrize(("most", "exact"), [(32, True), (31, False)])
def test_the_crps_is_exact_up_to_so_many_pairs_of_draws(most, exact, monkeypatch):
    """Each of 2 draws with each, at 8 targets: 32."""
    generator = torch.Generator().manual_seed(0)
    p = GaussianPredictive.of(torch.randn(2, 8, 1, generator=generator), torch.ones(2, 8, 1))
    known = p.crps(torch.zeros(8, 1))
    monkeypatch.setattr(moments, "CRPS_PAIRS", most)
    assert torch.equal(p.crps(torch.zeros(8, 1)), known) is exact


def test_only_on_a_cpu_are_probabilities_averaged_in_one_step():
    """Elsewhere their sums have another order; `meta` is no CPU, and no GPU is needed."""
    here, there = (Classes(torch.full((2, 3, 4), 0.25, device=d)) for d in ("cpu", "meta"))
    assert torch.equal(here.whole(here.parameters).mean, torch.full((3, 4), 0.25))
    assert there.whole(there.parameters) is None


def test_labels_that_are_joined_keep_draws_where_all_have_them():
    logits = torch.arange(12.0).view(2, 3, 2)
    whole = MultilabelPredictive.of(logits)
    parts = [MultilabelPredictive.of(logits[:, :1]), MultilabelPredictive.of(logits[:, 1:])]
    joined = MultilabelPredictive.joined(parts)
    assert torch.equal(joined.mean, whole.mean)
    assert torch.equal(joined.logits, logits)
    assert not MultilabelPredictive.joined([parts[0], parts[1].light()]).keeps_draws
