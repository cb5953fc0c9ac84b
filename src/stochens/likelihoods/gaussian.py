"""y are numbers with Gaussian noise: regression."""

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Distribution, Normal

from stochens.errors import InputError
from stochens.likelihoods.base import Kernel, Likelihood, limited, mean_over_examples, wide
from stochens.likelihoods.draws import Draws, Measure, Parameters, how_many
from stochens.likelihoods.moments import Moments, exported_moments, moments_of
from stochens.likelihoods.number_measures import LEVEL, number_measures
from stochens.likelihoods.targets import (
    Missing,
    check_missing,
    check_width,
    present,
    real_targets,
)
from stochens.methods.base import LOG_VARIANCE
from stochens.private_names import hooks_of

LOG_2_PI = math.log(2 * math.pi)
QUANTILE_STEPS = 50  # halvings of the bracket: to float32's precision and beyond


@dataclasses.dataclass(frozen=True)
class GaussianPredictive(Moments):
    """p(y | x, data) for regression: an equal mixture of S Gaussians at B inputs, D targets.

    `aleatoric` and `epistemic` are variances, which add up to `variance`; `std` is its root. (The
    command line writes their roots, `aleatoric_std` and `epistemic_std`.)

    >>> p = GaussianPredictive.of(torch.tensor([[[-1.0]], [[1.0]]]), torch.full((2, 1, 1), 0.25))
    >>> p.mean.item(), p.epistemic.item(), p.aleatoric.item()
    (0.0, 1.0, 0.25)
    """

    mean: Tensor  # [B, D]
    aleatoric: Tensor  # [B, D], mean variance of the draws: the noise of the data
    epistemic: Tensor  # [B, D], variance of the draws' means: what the parameters are unsure of
    draw_means: Tensor | None  # [S, B, D]
    draw_variances: Tensor | None  # [S, B, D]
    missing: Missing = "refuse"

    def __repr__(self) -> str:
        examples, targets = self.mean.shape
        kept = how_many(None if self.draw_means is None else len(self.draw_means))
        return f"GaussianPredictive({kept}, {examples} examples, {targets} targets)"

    @classmethod
    def of(cls, means: Tensor, variances: Tensor) -> "GaussianPredictive":
        """From draws of mean and variance, each [S, B, D]."""
        if means.dim() != 3 or means.shape != variances.shape:
            raise InputError(
                f"means and variances must both be [S, B, D], got {tuple(means.shape)} and "
                f"{tuple(variances.shape)}"
            )
        spread = means.var(0, correction=0)
        return cls(means.mean(0), variances.mean(0), spread, means, variances)

    @property
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""
        return self.draw_means is not None

    def light(self) -> "GaussianPredictive":
        """The same without its draws."""
        return dataclasses.replace(self, draw_means=None, draw_variances=None)

    def some(self, rows: slice) -> "GaussianPredictive":
        """The same at some of the inputs."""
        means, variances = self.draw_means, self.draw_variances
        return dataclasses.replace(
            self,
            mean=self.mean[rows],
            aleatoric=self.aleatoric[rows],
            epistemic=self.epistemic[rows],
            draw_means=None if means is None else means[:, rows],
            draw_variances=None if variances is None else variances[:, rows],
        )

    def by_draw(self) -> dict[str, Tensor]:
        """Mean and variance of every draw, each [B, S, D]."""
        means, variances = self.components()
        return {"draw_mean": means.transpose(0, 1), "draw_variance": variances.transpose(0, 1)}

    @classmethod
    def joined(cls, parts: "Sequence[GaussianPredictive]") -> "GaussianPredictive":
        """Predictions at some inputs and at others, as one, in order."""

        def cat(name: str, axis: int) -> Any:
            tensors = [getattr(p, name) for p in parts]
            return None if any(t is None for t in tensors) else torch.cat(tensors, axis)

        mean, aleatoric, epistemic = (cat(name, 0) for name in ("mean", "aleatoric", "epistemic"))
        draws = cat("draw_means", 1), cat("draw_variances", 1)
        return cls(mean, aleatoric, epistemic, *draws, parts[0].missing)

    def stretched(self, scale: float) -> "GaussianPredictive":
        """mean + scale (y - mean): the same mean, and scale times the standard deviation."""
        if scale == 1:
            return self
        means, variances = self.draw_means, self.draw_variances
        return dataclasses.replace(
            self,
            aleatoric=scale**2 * self.aleatoric,
            epistemic=scale**2 * self.epistemic,
            draw_means=None if means is None else self.mean + scale * (means - self.mean),
            draw_variances=None if variances is None else scale**2 * variances,
        )

    def moved(self, shift: Tensor, scale: Tensor) -> "GaussianPredictive":
        """The prediction of  shift + scale y  in float64: a float32 has no digits left for a spread
        of 1 around 1e8, and no variance of what is of the size 1e-24 or 1e24."""
        shift, scale = (t.to(self.mean.device, torch.float64) for t in (shift, scale))
        means, variances = self.draw_means, self.draw_variances
        return dataclasses.replace(
            self,
            mean=self.mean.double() * scale + shift,
            aleatoric=self.aleatoric.double() * scale**2,
            epistemic=self.epistemic.double() * scale**2,
            draw_means=None if means is None else means.double() * scale + shift,
            draw_variances=None if variances is None else variances.double() * scale**2,
        )

    def draw_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y by each draw, [S, B, D]."""
        return self.components()

    def components(self) -> tuple[Tensor, Tensor]:
        """The mixture's means and variances, each [S, B, D]."""
        if self.draw_means is None or self.draw_variances is None:
            raise InputError(
                "the draws were not kept, to save memory; mean and std are here, or call "
                "predict(x, keep_draws=True)"
            )
        return self.draw_means, self.draw_variances

    def each(self) -> Distribution:
        """Each draw's Gaussian, [S, B, D], in float64."""
        means, variances = (t.double() for t in self.components())
        return Normal(means, variances.sqrt(), validate_args=False)

    def quantile(self, level: float) -> Tensor:
        """y with P(Y <= y) = level under the mixture, by bisection: [B, D]."""
        if not 0 < level < 1:
            raise InputError(f"a quantile's level must be in (0, 1), got {level!r}")
        means, variances = (t.double() for t in self.components())
        sds = variances.sqrt()
        normal = Normal(0.0, 1.0, validate_args=False)
        z = normal.icdf(torch.tensor(level, dtype=torch.float64))
        low = (means + z * sds).amin(0)  # the mixture's quantile lies between its components'
        high = (means + z * sds).amax(0)
        for _ in range(QUANTILE_STEPS):
            middle = (low + high) / 2
            below = normal.cdf((middle - means) / sds).mean(0) < level
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        whole = (means.isfinite() & sds.isfinite()).all(0)  # a network may overflow far from data
        beyond = math.inf * (level - 0.5) if level != 0.5 else math.nan
        return torch.where(whole, (low + high) / 2, beyond).to(self.mean)

    def log_prob(self, y: Tensor) -> Tensor:
        """log 1/S sum_s N(y; mean_s, variance_s) of targets y [B] or [B, D], in float64: [B].
        NaN in y is left out where the likelihood has missing="mask"."""
        means, variances = (t.double() for t in self.components())
        own, there = present(self._targets(y).to(means))
        terms = (own - means).square() / variances + variances.log() + LOG_2_PI
        # of inf / inf, infinitely wide or far: no density
        terms = terms.nan_to_num(math.inf, math.inf, -math.inf).where(there, 0.0)
        return (-0.5 * terms.sum(-1)).logsumexp(0) - math.log(len(means))  # [S, B] -> [B]

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """y drawn from the predictive, [n, B, D]; each row from one draw of the network."""
        means, variances = self.components()
        generator = torch.Generator().manual_seed(int(seed))
        rows = torch.randint(len(means), (n,), generator=generator)
        noise = torch.randn(n, *means.shape[1:], generator=generator, dtype=means.dtype)
        return means[rows] + variances[rows].sqrt() * noise

    def measures(self, y: Tensor) -> dict[str, Measure]:
        """Of targets y [B] or [B, D]."""
        y = self._targets(y)
        return number_measures(self.mean, y, -self.log_prob(y), self.crps(y), self.interval(LEVEL))

    def of_draws(self, rows: slice) -> "GaussianPredictive":
        """What some of its draws say alone."""
        found = GaussianPredictive.of(*(t[rows] for t in self.components()))
        return dataclasses.replace(found, missing=self.missing)

    def quantities(self) -> Tensor:
        """The means of the draws, [S, K]."""
        return self.components()[0].flatten(1)


@dataclasses.dataclass(frozen=True)
class Gaussians(Draws):
    """Each draw's mean and variance of y, [S, B, D]. They make a `GaussianPredictive`, whose
    distances from its mean are `stretch` times as large."""

    means: Tensor
    variances: Tensor
    missing: Missing = "refuse"
    stretch: float = 1.0

    @property
    def parameters(self) -> Parameters:
        return self.means, self.variances

    @property
    def scale(self) -> Tensor:
        return self.variances.sqrt()

    def moments(self) -> tuple[Tensor, Tensor]:
        return self.means, self.variances

    def at(self, parameters: Parameters) -> "Gaussians":
        means, variances = parameters
        return dataclasses.replace(self, means=means, variances=variances)

    def centre(self) -> Parameters:
        """The first draw's mean: squares of the means themselves would leave nothing of a spread
        that is small beside them."""
        return (self.means[0].double(),)

    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        return self.means, self.variances, (self.means.double() - centre[0]).square()

    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> GaussianPredictive:
        moments = moments_of(averages, centre, self.means.dtype)
        means, variances = kept or (None, None)
        found = GaussianPredictive(*moments, means, variances, self.missing)
        return found.stretched(self.stretch)

    def exported(self) -> dict[str, Tensor]:
        found, scale = exported_moments(self.means, self.variances), self.stretch
        if scale == 1:
            return found
        return {
            "mean": found["mean"],
            "std": scale * found["std"],
            "aleatoric": scale**2 * found["aleatoric"],
            "epistemic": scale**2 * found["epistemic"],
        }


class GaussianLikelihood(Likelihood):
    """What the two regression likelihoods share: targets [N, D], mean and variance per output."""

    in_units: ClassVar[bool] = True
    usual_method: ClassVar[str] = "regular"  # its predictions are calibrated
    least_squares: ClassVar[bool] = True
    missing: Missing

    @abc.abstractmethod
    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, each [..., B, D]."""

    def distribution(self, outputs: Tensor) -> Gaussians:
        """N(mean, variance) of each output."""
        return Gaussians(*self.moments(outputs), self.missing)

    def tempered(self, outputs: Tensor, temperature: float) -> Gaussians:
        """The whole mixture about its mean, not the noise alone: where members agree too much, that
        is as much a part of the predictive standard deviation."""
        return dataclasses.replace(self.distribution(outputs), stretch=temperature)

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """1/2 sum_d [(y_d - mean_d)^2 / var_d + log var_d + log 2 pi]"""
        mean, variance = self.moments(wide(outputs))
        if self.missing == "refuse":
            terms = (y - mean).square() / variance + variance.log() + LOG_2_PI
        else:
            own, there = present(y)
            terms = (own - mean).square() / variance + variance.log() + LOG_2_PI
            terms = terms.where(there, 0.0)
        return mean_over_examples(0.5 * terms.sum(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        return real_targets(y, self.missing)

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        check_width(self, outputs, y)


@dataclasses.dataclass(frozen=True)
class Homoscedastic(GaussianLikelihood):
    """y ~ N(f(x), noise^2), one noise for all x: outputs [..., B, D].

    `noise` is fixed where it is given. Otherwise each member learns log noise^2 for each target, as
    a parameter `log_variance` under the same prior as the weights.

    missing="mask": NaN in y is a number that nobody measured; it adds nothing to the likelihood.

    >>> outputs, y = torch.zeros(4, 1), torch.zeros(4, 1)  # [B, D]
    >>> float(Homoscedastic(noise=1.0).nll(outputs, y))  # log(2 pi) / 2
    0.9189...
    """

    noise: float | None = None
    _: dataclasses.KW_ONLY
    missing: Missing = "refuse"
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        check_missing(self.missing)
        if self.noise is not None and not 0 < self.noise < math.inf:
            raise InputError(f"noise must be a positive number or None, got {self.noise!r}")

    def prepare(self, net: nn.Module, y: Tensor) -> nn.Module:
        done = _append_log_variance in hooks_of(net)
        if self.noise is None and not done:
            if hasattr(net, LOG_VARIANCE):
                raise InputError(
                    "the network has a log_variance of its own, and likelihood='gaussian' adds one "
                    "under that name; rename it, or use 'heteroscedastic'"
                )
            dtype = next((p.dtype for p in net.parameters()), y.dtype)
            net.register_parameter(LOG_VARIANCE, nn.Parameter(torch.zeros(y.shape[1], dtype=dtype)))
            net.register_forward_hook(_append_log_variance)
        return net

    def adds(self) -> tuple[str, ...]:
        return (LOG_VARIANCE,) if self.noise is None else ()

    def noise_parameter(self) -> str | None:
        return LOG_VARIANCE if self.noise is None else None

    @property
    def learns_noise(self) -> bool:
        return self.noise is None

    def kernel(self) -> Kernel | None:
        if self.noise is None or self != Homoscedastic(self.noise):
            return None
        return "gaussian", self.noise

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.noise is None:
            return Heteroscedastic().moments(outputs)
        return outputs, torch.full_like(outputs, self.noise**2)

    def width(self, targets: int) -> int:
        return targets

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if self.noise is None and outputs.dim() == 2:
            outputs = outputs[:, : -y.shape[1]]  # what the user's network gave, before `prepare`
        super().check_outputs(outputs, y)


def _append_log_variance(net: nn.Module, _: Any, mean: Any) -> Any:
    if not isinstance(mean, Tensor) or mean.dim() != 2:
        return mean  # which is refused, by its shape
    log_variance: Tensor = net.log_variance  # type: ignore[assignment]
    return torch.cat([mean, log_variance.expand(mean.shape[0], -1)], -1)


@dataclasses.dataclass(frozen=True)
class Heteroscedastic(GaussianLikelihood):
    """y ~ N(f(x), noise(x)^2): outputs [..., B, 2 D] are the D means, then the D log noise^2.

    Noise is between 1e-13 and 1e13 in float32, beyond which its square has no digits left.
    missing="mask": as in Homoscedastic.

    >>> mean, variance = Heteroscedastic().moments(torch.zeros(4, 2))  # [B, 2 D]
    >>> mean.shape, float(variance[0, 0])
    (torch.Size([4, 1]), 1.0)
    """

    _: dataclasses.KW_ONLY
    missing: Missing = "refuse"
    name: ClassVar[str] = "heteroscedastic"

    def __post_init__(self) -> None:
        check_missing(self.missing)

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return mean, limited(log_variance).exp()

    def width(self, targets: int) -> int:
        return 2 * targets

    def kernel(self) -> Kernel | None:
        return "gaussian-heteroscedastic" if self == Heteroscedastic() else None
