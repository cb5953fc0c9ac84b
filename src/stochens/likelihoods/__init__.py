"""What the outputs of a network mean, p(y | x, theta), and what is predicted with them."""

from stochens.errors import check_known
from stochens.likelihoods.base import (
    Likelihood,
    check_distribution,
    draws_of,
    mean_over_examples,
    refuse_unstated,
)
from stochens.likelihoods.classes import Categorical, Classes, Predictive
from stochens.likelihoods.draws import Draws, Predicted
from stochens.likelihoods.gaussian import (
    LOG_2_PI,
    GaussianLikelihood,
    GaussianPredictive,
    Gaussians,
    Heteroscedastic,
    Homoscedastic,
    learned_noise,
)
from stochens.likelihoods.numbers import NumberPredictive, Numbers

__all__ = [
    "LIKELIHOODS",
    "LOG_2_PI",
    "Categorical",
    "Classes",
    "Draws",
    "GaussianLikelihood",
    "GaussianPredictive",
    "Gaussians",
    "Heteroscedastic",
    "Homoscedastic",
    "Likelihood",
    "NumberPredictive",
    "Numbers",
    "Predicted",
    "Predictive",
    "check_distribution",
    "draws_of",
    "learned_noise",
    "mean_over_examples",
    "resolve",
]

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Categorical, Homoscedastic, Heteroscedastic)
}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """A likelihood by name or by object.

    >>> resolve("gaussian")
    Homoscedastic(noise=None)
    """
    if isinstance(likelihood, Likelihood):
        refuse_unstated(likelihood)
        return likelihood
    check_known("likelihood", likelihood, LIKELIHOODS)
    return LIKELIHOODS[likelihood]()
