"""stochens: any nn.Module as a stochastic ensemble, close to its Bayesian posterior.

>>> import stochens
>>> stochens.fit  # doctest: +ELLIPSIS
<function fit at ...>
"""

import sys
from typing import TYPE_CHECKING, Any

from stochens import metrics
from stochens.comparison import compare
from stochens.conversions import freeze_batchnorm, keep_dropout, replace_batchnorm
from stochens.data import Data, Replicas
from stochens.description.describe import describe
from stochens.description.table import Description
from stochens.errors import Failed, InputError
from stochens.likelihoods import Categorical, Heteroscedastic, Homoscedastic
from stochens.methods import (
    DropConnect,
    Dropout,
    Gaussian,
    LastLayer,
    LoRA,
    NPDropout,
    Regular,
    stochastic,
)
from stochens.networks import FRN, MLP
from stochens.posterior import acquisition, calibration, selection
from stochens.posterior.joining import join_parts as join
from stochens.posterior.posterior import Posterior, load
from stochens.posterior.predictive import GaussianPredictive, Predictive
from stochens.prior import Prior
from stochens.run.cluster.connect import Ray
from stochens.run.options import Run
from stochens.samplers.diagnostics import diagnose
from stochens.samplers.langevin import langevin
from stochens.samplers.mclmc import mclmc
from stochens.samplers.sampling import hmc, nuts
from stochens.samplers.sgmcmc import sgmcmc
from stochens.samplers.swag import multiswa, multiswag
from stochens.toy import toy_set
from stochens.training.auto import Auto
from stochens.training.callbacks import Callback, MLflow, TensorBoard, View, WandB
from stochens.training.fit import fit
from stochens.training.request import Start
from stochens.training.schedules import Natural, Optimizer
from stochens.training.validation import Validation
from stochens.version import __version__

if TYPE_CHECKING:
    from stochens.estimators import StochasticEnsembleClassifier, StochasticEnsembleRegressor

__all__ = [
    "FRN",
    "MLP",
    "Auto",
    "Callback",
    "Categorical",
    "Data",
    "Description",
    "DropConnect",
    "Dropout",
    "Failed",
    "Gaussian",
    "GaussianPredictive",
    "Heteroscedastic",
    "Homoscedastic",
    "InputError",
    "LastLayer",
    "LoRA",
    "MLflow",
    "NPDropout",
    "Natural",
    "Optimizer",
    "Posterior",
    "Predictive",
    "Prior",
    "Ray",
    "Regular",
    "Replicas",
    "Run",
    "Start",
    "StochasticEnsembleClassifier",
    "StochasticEnsembleRegressor",
    "TensorBoard",
    "Validation",
    "View",
    "WandB",
    "__version__",
    "acquisition",
    "calibration",
    "compare",
    "describe",
    "diagnose",
    "fit",
    "freeze_batchnorm",
    "hmc",
    "join",
    "keep_dropout",
    "langevin",
    "load",
    "mclmc",
    "metrics",
    "multiswa",
    "multiswag",
    "nuts",
    "replace_batchnorm",
    "selection",
    "sgmcmc",
    "stochastic",
    "toy_set",
]


# so that `from stochens.calibration import fit_temperature` finds them as well
sys.modules |= {
    f"stochens.{module.__name__.rpartition('.')[2]}": module
    for module in (acquisition, calibration, selection)
}


def __getattr__(name: str) -> Any:
    """The estimators come when they are asked for: scikit-learn takes a second to import."""
    if name in ("StochasticEnsembleClassifier", "StochasticEnsembleRegressor"):
        try:
            from stochens import estimators
        except ModuleNotFoundError as error:
            if (error.name or "").split(".")[0] != "sklearn":
                raise
            raise ImportError(
                f"stochens.{name} needs scikit-learn: pip install 'stochens[sklearn]'"
            ) from None
        return getattr(estimators, name)
    raise AttributeError(f"module 'stochens' has no attribute {name!r}")
