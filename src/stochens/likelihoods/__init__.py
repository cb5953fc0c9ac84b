"""What the outputs of a network mean, p(y | x, theta), and what is predicted with them."""

from stochens.errors import check_known
from stochens.likelihoods.base import (
    Likelihood,
    check_distribution,
    draws_of,
    mean_over_examples,
    refuse_unstated,
)
from stochens.likelihoods.binary import Binary
from stochens.likelihoods.categorical import Categorical, SoftLabels
from stochens.likelihoods.classes import Classes, Predictive
from stochens.likelihoods.counts import NegativeBinomial, Poisson
from stochens.likelihoods.draws import Draws, Predicted, mean_of_draws
from stochens.likelihoods.gaussian import (
    LOG_2_PI,
    GaussianLikelihood,
    GaussianPredictive,
    Gaussians,
    Heteroscedastic,
    Homoscedastic,
)
from stochens.likelihoods.heavy_tails import Laplace, StudentT
from stochens.likelihoods.mixture import MixtureDensity
from stochens.likelihoods.multilabel import Labels, Multilabel, MultilabelPredictive
from stochens.likelihoods.numbers import NumberPredictive, Numbers
from stochens.likelihoods.ordinal import Ordinal
from stochens.likelihoods.quantiles import Quantiles

__all__ = [
    "LIKELIHOODS",
    "LOG_2_PI",
    "Binary",
    "Categorical",
    "Classes",
    "Draws",
    "GaussianLikelihood",
    "GaussianPredictive",
    "Gaussians",
    "Heteroscedastic",
    "Homoscedastic",
    "Labels",
    "Laplace",
    "Likelihood",
    "MixtureDensity",
    "Multilabel",
    "MultilabelPredictive",
    "NegativeBinomial",
    "NumberPredictive",
    "Numbers",
    "Ordinal",
    "Poisson",
    "Predicted",
    "Predictive",
    "Quantiles",
    "SoftLabels",
    "StudentT",
    "check_distribution",
    "draws_of",
    "mean_of_draws",
    "mean_over_examples",
    "resolve",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (
        Categorical,
        Binary,
        Multilabel,
        Ordinal,
        SoftLabels,
        Homoscedastic,
        Heteroscedastic,
        StudentT,
        Laplace,
        MixtureDensity,
        Quantiles,
        Poisson,
        NegativeBinomial,
    )
}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """A likelihood by name or by object.

    >>> resolve("gaussian")
    Homoscedastic(noise=None, missing='refuse')
    """
    if isinstance(likelihood, Likelihood):
        refuse_unstated(likelihood)
        return likelihood
    check_known("likelihood", likelihood, LIKELIHOODS)
    return LIKELIHOODS[likelihood]()
