"""scikit-learn estimators: a stochastic ensemble with `fit`, `predict` and its uncertainties.

Each draw of a member is one function of x here (shared noise), so that the prediction for a row
does not depend on the rows beside it, as scikit-learn expects.
"""

import abc
import contextlib
import copy
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.preprocessing import StandardScaler
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from stochens import likelihoods
from stochens.checks import renamed, whole
from stochens.data import Data
from stochens.errors import Failed, InputError, Unsuited
from stochens.likelihoods import Likelihood
from stochens.methods import MethodLike
from stochens.networks import MLP
from stochens.prior import Prior
from stochens.private_names import check_sample_weight
from stochens.randomness.seeds import seeded
from stochens.run.options import Run
from stochens.training.auto import Auto
from stochens.training.fit import fit
from stochens.training.schedules import Optimizer

Array = np.ndarray[Any, np.dtype[Any]]
# The user's own network: made by (features, outputs), or a module to be initialised again
NetLike = Callable[[int, int], nn.Module] | nn.Module | None

DTYPES = {"float32": torch.float32, "float64": torch.float64}
FEW = 4  # rows of a rehearsal
BLOCK = 4096  # rows whose draws are held at once


class Uncertainty(NamedTuple):
    """How unsure a prediction is, and why: total = aleatoric + epistemic.

    For classes each is [B], in nats: entropy, mean entropy of the draws, mutual information. For
    regression each is a variance, [B] or [B, D]; the command line writes their roots instead.
    """

    total: Array
    aleatoric: Array  # the noise of the data
    epistemic: Array  # what the parameters are unsure of


class _Ensemble(BaseEstimator, abc.ABC):  # type: ignore[misc]
    """What both estimators share. The constructor only stores."""

    @renamed(temperature="kl_weight", prior_precision="prior")
    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden_layer_sizes: tuple[int, ...] = (50, 50),
        method: MethodLike | None = None,
        members: int = 20,
        epochs: int = 100,
        batch_size: int | None = 64,
        optimizer: str = "adam",
        lr: float | None = 0.01,
        schedule: str = "cosine",
        prior: float | Prior = 1.0,
        kl_weight: float = 1.0,
        standardize: bool = True,
        draws: int = 5,
        dtype: str | None = None,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.net = net
        self.hidden_layer_sizes = hidden_layer_sizes
        self.method = method
        self.members = members
        self.epochs = epochs
        self.batch_size = batch_size
        self.optimizer = optimizer
        self.lr = lr
        self.schedule = schedule
        self.prior = prior
        self.kl_weight = kl_weight
        self.standardize = standardize
        self.draws = draws
        self.dtype = dtype
        self.device = device
        self.random_state = random_state

    def _train(
        self, x: Array, y: Tensor, outputs: int, likelihood: Likelihood, sample_weight: Any
    ) -> Self:
        """x [N, features] as validated, y as the likelihood wants it."""
        whole(draws=self.draws)
        if sample_weight is not None:
            sample_weight = check_sample_weight(sample_weight, x)
        scaler = StandardScaler(with_mean=self.standardize, with_std=self.standardize)
        self.scaler_ = scaler.fit(x, sample_weight=sample_weight)
        net, data = self._network(x.shape[1], outputs), self._tensor(self.scaler_.transform(x))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if self.net is not None:  # our own can predict
            _rehearse(net, data[:FEW], y[:FEW], self.method, likelihood, seed, outputs)
        self.posterior_ = fit(
            net,
            Data((data, y), weights=sample_weight),
            method=self.method,
            members=self.members,
            epochs=self.epochs,
            batch_size=self.batch_size,
            optimizer=Optimizer(self.optimizer, schedule=self.schedule),
            lr=self.lr,
            prior=self.prior,
            kl_weight=self.kl_weight,
            likelihood=likelihood,
            seed=seed,
            device=self.device,
            progress=False,
        )
        return self

    def _network(self, features: int, outputs: int) -> nn.Module | Callable[[], nn.Module]:
        kind = DTYPES[self.dtype_]
        if self.net is None:
            sizes = self.hidden_layer_sizes
            if not isinstance(sizes, (tuple, list)):
                raise InputError(f"hidden_layer_sizes must be a tuple, say (50,), got {sizes!r}")
            for width in sizes:
                whole(hidden_layer_sizes=width)
            with seeded(0):  # members have starts of their own, and other threads their stream
                return MLP(features, *sizes, outputs).to(kind)
        if isinstance(self.net, nn.Module):
            return copy.deepcopy(self.net).to(kind)
        if not callable(self.net):
            raise InputError(
                "net must be a function (features, outputs) that builds an nn.Module, or one, got "
                f"{self.net!r}"
            )
        return functools.partial(_build_for, self.net, features, outputs, kind)

    def _validated(self, X: Any, *targets: Any, **options: Any) -> Any:
        """X [N, features] as float32 or float64, and y where it is given; remembers which."""
        if self.dtype is not None and self.dtype not in DTYPES:
            raise InputError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        kinds = [np.float64, np.float32]  # float32 stays as it is, all others become the first
        checked = validate_data(self, X, *targets, dtype=kinds, **options)
        x = checked[0] if targets else checked
        if targets:
            self.dtype_ = self.dtype or str(x.dtype)
        return checked

    def _tensor(self, array: Array) -> Tensor:
        return torch.tensor(array, dtype=DTYPES[self.dtype_])

    def _predictive(self, X: Any) -> Any:
        """The predictive distribution at X [B, features]."""
        return next(self._blocks(X, keep_draws=False, rows=None))

    def _blocks(self, X: Any, *, keep_draws: bool, rows: int | None) -> Iterator[Any]:
        """Likewise, some rows at a time: the draws are the same functions for all of them."""
        check_is_fitted(self)
        x = self._tensor(self.scaler_.transform(self._validated(X, reset=False)))
        for part in x.split(rows or len(x)):
            yield self.posterior_.predict(
                part,
                draws=self.draws,
                keep_draws=keep_draws,
                noise="shared",
                seed=self.posterior_.seed,
            )


def _rehearse(
    net: nn.Module | Callable[[], nn.Module],
    x: Tensor,
    y: Tensor,
    method: MethodLike | Auto | None,
    likelihood: Likelihood,
    seed: int,
    outputs: int,
) -> None:
    """Train and predict in small, so that a network whose examples cannot share noise is refused
    before it is trained at length; all candidates, since trials may choose any."""
    auto = Auto() if method == "auto" else method
    for one in auto.candidates if isinstance(auto, Auto) else [auto]:
        with warnings.catch_warnings(), contextlib.suppress(Unsuited, Failed):  # `fit` says it
            warnings.simplefilter("ignore")
            posterior = fit(
                net,
                (x, y),
                method=one,
                members=1,
                epochs=1,
                likelihood=likelihood,
                on_divergence="keep",
                seed=seed,
                device="cpu",
                progress=False,
                run=Run(engine="loop"),
            )
            p = posterior.predict(x[:1].expand(FEW, *x.shape[1:]), noise="shared")
            if p.mean.shape[-1] != outputs and not likelihood.in_units:
                raise InputError(
                    f"the network has {p.mean.shape[-1]} outputs, and y has {outputs} classes; net "
                    "may be a function (features, outputs), which is told"
                )


def _build_for(
    net: Callable[[int, int], nn.Module], n: int, m: int, dtype: torch.dtype
) -> nn.Module:
    try:
        inspect.signature(net).bind(n, m)
    except TypeError as error:
        raise InputError(
            f"net must be a module or a function (features, outputs) -> nn.Module: {error}. One "
            "without arguments, as `stochens.fit` takes it, goes in by lambda n, m: build()"
        ) from None
    except ValueError:
        pass  # some classes tell no signature
    made = net(n, m)
    if not isinstance(made, nn.Module):
        raise InputError(f"the function given as net must return an nn.Module, got {made!r}")
    return made.to(dtype)


class StochasticEnsembleClassifier(ClassifierMixin, _Ensemble):  # type: ignore[misc]
    """A stochastic ensemble as a scikit-learn classifier.

    net: a function (features, outputs) -> nn.Module, or a module; an MLP with
        `hidden_layer_sizes` when None. X is [N, features]: a convolutional network begins with
        nn.Unflatten. An estimator whose net is a lambda cannot be pickled (joblib): name a function
        of a module.
    method, members, epochs, batch_size, optimizer, lr, schedule, prior, kl_weight, device: as
        in `stochens.fit`. `method` may be "auto"; None is "dropout" for classes and
        "regular" for regression.
    standardize: whether columns (and targets of regression) are brought to mean 0 and variance 1
        first, which a prior of one precision for all parameters presumes.
    draws: of each member in a prediction.
    dtype: "float32" or "float64", of the network and its predictions; as X when None.
    random_state: a number, a RandomState or None, as ever in scikit-learn.

    After `fit`: `posterior_` is the Posterior, with all that it can do.

    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = StochasticEnsembleClassifier(members=5, epochs=20, random_state=0).fit(X, y)
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X [N, features], y [N] labels of any kind, sample_weight [N]."""
        X, y = self._validated(X, y)
        check_classification_targets(y)
        self.classes_, codes = np.unique(y, return_inverse=True)
        labels = torch.tensor(codes, dtype=torch.long)
        like = likelihoods.Categorical()
        return self._train(X, labels, len(self.classes_), like, sample_weight)

    def predict(self, X: Any) -> Array:
        """The likeliest label of each row: [B]."""
        codes = self.predict_proba(X).argmax(1)
        chosen: Array = self.classes_[codes]
        return chosen

    def predict_proba(self, X: Any) -> Array:
        """The mean predictive probabilities, in the order of `classes_`: [B, C]."""
        mean: Array = self._predictive(X).mean.double().numpy()
        probs: Array = (mean / mean.sum(1, keepdims=True)).astype(self.dtype_)
        return probs

    def predict_std(self, X: Any) -> Array:
        """The standard deviation of each probability over the draws: [B, C]."""
        parts = self._blocks(X, keep_draws=True, rows=BLOCK)
        stds = [p.probs.double().std(0, correction=0) for p in parts]
        std: Array = torch.cat(stds).numpy().astype(self.dtype_)
        return std

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Entropy, mean entropy of the draws and mutual information, each [B], in nats."""
        p = self._predictive(X)
        return Uncertainty(*(t.numpy() for t in (p.entropy, p.aleatoric, p.mutual_information)))


class StochasticEnsembleRegressor(RegressorMixin, _Ensemble):  # type: ignore[misc]
    """A stochastic ensemble as a scikit-learn regressor, of one target or several.

    Options as in StochasticEnsembleClassifier, and
    likelihood: "gaussian" (one noise, learned) or "heteroscedastic" (a network with two outputs
        for each target: the D means first, then the D log variances), or an object, which sees the
        targets as the network does: with `standardize` a noise that is given is in units of their
        standard deviation.

    >>> X = np.linspace(-1, 1, 80)[:, None]
    >>> model = StochasticEnsembleRegressor(members=5, epochs=20, random_state=0)
    >>> mean, std = model.fit(X, np.sin(3 * X[:, 0])).predict(X[:3], return_std=True)
    >>> mean.shape, std.shape
    ((3,), (3,))
    """

    @renamed(temperature="kl_weight", prior_precision="prior")
    def __init__(
        self,
        net: NetLike = None,
        *,
        hidden_layer_sizes: tuple[int, ...] = (50, 50),
        likelihood: str | Likelihood = "gaussian",
        method: MethodLike | None = None,
        members: int = 20,
        epochs: int = 100,
        batch_size: int | None = 64,
        optimizer: str = "adam",
        lr: float | None = 0.01,
        schedule: str = "cosine",
        prior: float | Prior = 1.0,
        kl_weight: float = 1.0,
        standardize: bool = True,
        draws: int = 5,
        dtype: str | None = None,
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        super().__init__(  # scikit-learn reads the names of the options off this signature
            net,
            hidden_layer_sizes=hidden_layer_sizes,
            method=method,
            members=members,
            epochs=epochs,
            batch_size=batch_size,
            optimizer=optimizer,
            lr=lr,
            schedule=schedule,
            prior=prior,
            kl_weight=kl_weight,
            standardize=standardize,
            draws=draws,
            dtype=dtype,
            device=device,
            random_state=random_state,
        )
        self.likelihood = likelihood

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        return tags

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """X [N, features], y [N] or [N, D], sample_weight [N]."""
        X, y = self._validated(X, y, y_numeric=True, multi_output=True)
        like = likelihoods.resolve(self.likelihood)
        if not like.in_units:  # targets are brought to mean 0, which counts and classes do not bear
            raise InputError(
                "a regressor needs a likelihood of numbers in their own units, such as 'gaussian' "
                f"or 'student-t', got {like.name!r}"
            )
        columns = y.reshape(len(y), -1).astype(float)  # [N, D]
        scaler = StandardScaler(with_mean=self.standardize, with_std=self.standardize)
        self.target_scaler_ = scaler.fit(columns, sample_weight=sample_weight)
        self.one_target_ = y.ndim == 1
        targets = self._tensor(self.target_scaler_.transform(columns))
        return self._train(X, targets, like.width(columns.shape[1]), like, sample_weight)

    def predict(self, X: Any, *, return_std: bool = False) -> Any:
        """The mean of y, [B] or [B, D]; with `return_std` also its standard deviation."""
        p = self._predictive(X)
        mean = self._shaped(self.target_scaler_.inverse_transform(p.mean.double().numpy()))
        return (mean, self._std(p)) if return_std else mean

    def predict_std(self, X: Any) -> Array:
        """The standard deviation of y, noise and ignorance together: [B] or [B, D]."""
        return self._std(self._predictive(X))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Variances of y, each [B] or [B, D]."""
        p = self._predictive(X)
        parts = (self._variance(t) for t in (p.variance, p.aleatoric, p.epistemic))
        return Uncertainty(*map(self._shaped, parts))

    def _std(self, p: Any) -> Array:
        return self._shaped(np.sqrt(self._variance(p.variance)))

    def _variance(self, variance: Tensor) -> Array:
        """[B, D] in the target's own units and float64: a std of 1e-24 has no square in float32."""
        scale = self.target_scaler_.scale_
        units: Array = variance.double().numpy() * (1.0 if scale is None else scale**2)
        return units

    def _shaped(self, columns: Array) -> Array:
        """[B, D] as the targets of training were, in the network's dtype."""
        values: Array = columns.astype(self.dtype_)
        return values[:, 0] if self.one_target_ else values
