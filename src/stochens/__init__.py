"""stochens: any nn.Module as a stochastic ensemble, close to its Bayesian posterior.

>>> import stochens
>>> stochens.fit  # doctest: +ELLIPSIS
<function fit at ...>
"""

from typing import TYPE_CHECKING, Any

from stochens import metrics
from stochens.cluster.connect import Ray
from stochens.conversions import freeze_batchnorm, keep_dropout, replace_batchnorm
from stochens.data.source import Replicas
from stochens.data.toy import toy_set
from stochens.errors import Failed, InputError
from stochens.likelihoods import Categorical, Heteroscedastic, Homoscedastic
from stochens.methods import DropConnect, Dropout, Gaussian, NPDropout, Regular, stochastic
from stochens.networks import FRN, MLP
from stochens.posteriors.diagnostics import diagnose
from stochens.posteriors.langevin import langevin
from stochens.posteriors.sampling import hmc, nuts
from stochens.posteriors.sgmcmc import sgmcmc
from stochens.posteriors.swag import multiswa, multiswag
from stochens.predict.predictive import GaussianPredictive, Predictive
from stochens.report.compare import compare
from stochens.result.joining import join_posteriors as join
from stochens.result.posterior import Posterior, load
from stochens.training.auto import Auto
from stochens.training.fit import fit
from stochens.version import __version__

if TYPE_CHECKING:
    from stochens.estimators import StochasticEnsembleClassifier, StochasticEnsembleRegressor

__all__ = [
    "FRN",
    "MLP",
    "Auto",
    "Categorical",
    "DropConnect",
    "Dropout",
    "Failed",
    "Gaussian",
    "GaussianPredictive",
    "Heteroscedastic",
    "Homoscedastic",
    "InputError",
    "NPDropout",
    "Posterior",
    "Predictive",
    "Ray",
    "Regular",
    "Replicas",
    "StochasticEnsembleClassifier",
    "StochasticEnsembleRegressor",
    "__version__",
    "compare",
    "diagnose",
    "fit",
    "freeze_batchnorm",
    "hmc",
    "join",
    "keep_dropout",
    "langevin",
    "load",
    "metrics",
    "multiswa",
    "multiswag",
    "nuts",
    "replace_batchnorm",
    "sgmcmc",
    "stochastic",
    "toy_set",
]


def __getattr__(name: str) -> Any:
    """The estimators come when they are asked for: scikit-learn takes a second to import."""
    if name in ("StochasticEnsembleClassifier", "StochasticEnsembleRegressor"):
        from stochens import estimators

        return getattr(estimators, name)
    raise AttributeError(f"module 'stochens' has no attribute {name!r}")
