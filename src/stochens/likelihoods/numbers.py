"""y are numbers, of any family of torch.distributions."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from stochens.errors import InputError
from stochens.likelihoods.crossing import crossing, first_whole
from stochens.likelihoods.draws import Draws, Measure, Parameters, how_many
from stochens.likelihoods.moments import Moments, exported_moments, has_cdf, moments_of
from stochens.likelihoods.number_measures import LEVEL, number_measures
from stochens.likelihoods.targets import Missing, check_missing, present
from stochens.randomness.seeds import seeded

DOUBLINGS = 60  # of a first guess of a quantile's bracket
CLASSES = (torch.distributions.Categorical, torch.distributions.OneHotCategorical)


@dataclasses.dataclass(frozen=True, repr=False)
class NumberPredictive(Moments):
    """p(y | x, data) for numbers: an equal mixture of S distributions of one family at B inputs.

    `aleatoric` and `epistemic` are variances, which add up to `variance`; `std` is its root.

    >>> rates = torch.tensor([[[1.0]], [[3.0]]])  # of two draws at one input
    >>> p = NumberPredictive.of(Numbers(torch.distributions.Poisson, rate=rates))
    >>> p.mean.item(), p.aleatoric.item(), p.epistemic.item()
    (2.0, 2.0, 1.0)
    >>> p
    NumberPredictive(2 draws, 1 examples, 1 targets)
    """

    mean: Tensor  # [B, D]
    aleatoric: Tensor
    epistemic: Tensor
    draws: "Numbers | None"
    missing: Missing = "refuse"
    more: "Measures | None" = None  # what the likelihood measures beside the usual

    def __repr__(self) -> str:
        kept = how_many(None if self.draws is None else len(self.draws.parameters[0]))
        targets = self.mean[0].numel()
        return f"NumberPredictive({kept}, {len(self.mean)} examples, {targets} targets)"

    @classmethod
    def of(cls, draws: "Numbers") -> "NumberPredictive":
        """From all draws at once."""
        means, variances = draws.moments()
        spread = means.var(0, correction=0)
        return cls(means.mean(0), variances.mean(0), spread, draws, draws.missing, draws.more)

    @property
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""
        return self.draws is not None

    def light(self) -> "NumberPredictive":
        """The same without its draws."""
        return dataclasses.replace(self, draws=None)

    def some(self, rows: slice) -> "NumberPredictive":
        """The same at some of the inputs."""
        draws = self.draws and self.draws.at(tuple(p[:, rows] for p in self.draws.parameters))
        return dataclasses.replace(
            self,
            mean=self.mean[rows],
            aleatoric=self.aleatoric[rows],
            epistemic=self.epistemic[rows],
            draws=draws,
        )

    def by_draw(self) -> dict[str, Tensor]:
        """The parameters of every draw's distribution, each [B, S, ...]."""
        return {f"draw_{n}": p.transpose(0, 1) for n, p in self.components().named.items()}

    @classmethod
    def joined(cls, parts: "Sequence[NumberPredictive]") -> "NumberPredictive":
        """Predictions at some inputs and at others, as one, in order."""
        mean, aleatoric, epistemic = (
            torch.cat([getattr(p, name) for p in parts])
            for name in ("mean", "aleatoric", "epistemic")
        )
        kept = [p.draws for p in parts if p.draws is not None]
        also = (parts[0].missing, parts[0].more)
        if len(kept) < len(parts):
            return cls(mean, aleatoric, epistemic, None, *also)
        each = zip(*(draws.parameters for draws in kept), strict=True)
        draws = kept[0].at(tuple(torch.cat(p, 1) for p in each))
        return cls(mean, aleatoric, epistemic, draws, *also)

    def moved(self, shift: Tensor, scale: Tensor) -> "NumberPredictive":
        """The prediction of  shift + scale y  in float64, with draws where they were kept."""
        draws = None if self.draws is None else self.draws.moved(shift, scale)
        shift, scale = (t.to(self.mean.device, torch.float64) for t in (shift, scale))
        return dataclasses.replace(
            self,
            mean=self.mean.double() * scale + shift,
            aleatoric=self.aleatoric.double() * scale**2,
            epistemic=self.epistemic.double() * scale**2,
            draws=draws,
        )

    def draw_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y by each draw, [S, B, D]."""
        return self.components().moments()

    def components(self) -> "Numbers":
        """The mixture's distributions; `.each` is one of torch's, of [S, B, D]."""
        if self.draws is None:
            raise InputError(
                "the draws were not kept, to save memory; mean and std are here, or call "
                "predict(x, keep_draws=True)"
            )
        return self.draws

    def each(self) -> Distribution:
        """Each draw's distribution of y, one of torch's of [S, B, D], in float64."""
        return self.components().double().each

    def log_prob(self, y: Tensor) -> Tensor:
        """log 1/S sum_s p(y | x, theta_s) of targets y [B] or [B, D], in float64: [B]. NaN in y is
        left out where the likelihood has missing="mask"."""
        each, y = self.each(), self._targets(y).to(self.mean.device, torch.float64)
        filled, there = present(y)
        terms = each.log_prob(filled if terms_are_apart(each) else y)  # [S, B, ...]
        if terms_are_apart(each):
            terms = terms.where(there, 0.0)
        elif not bool(there.all()) and bool(terms.isnan().any()):
            raise InputError(f"{type(each).__name__} cannot leave some targets of a row out")
        return terms.reshape(*terms.shape[:2], -1).sum(-1).logsumexp(0) - math.log(len(terms))

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """y drawn from the predictive, [n, B, D]; each row from one draw of the network."""
        draws = self.components()
        with seeded(int(seed)):  # torch.distributions know no generator of one's own
            rows = torch.randint(len(draws.parameters[0]), (n,))
            return draws.at(tuple(p[rows] for p in draws.parameters)).each.sample()

    def quantile(self, level: float) -> Tensor:
        """The smallest y with P(Y <= y) >= level under the mixture: [B, D]."""
        if not 0 < level < 1:
            raise InputError(f"a quantile's level must be in (0, 1), got {level!r}")
        each, mean = self.each(), self.mean.double()

        def above(y: Tensor) -> Tensor:  # NaN, as below the support, is not
            return (_cdf(each, y).mean(0) - level).nan_to_num(-1.0)

        reach = ((each.mean - mean).abs() + each.stddev).amax(0)
        # a guess, which need not be good; of the size of y, which may be 1e-24
        reach = reach.nan_to_num(1.0, 1.0).maximum(1e-9 * mean.abs().nan_to_num(1.0, 1.0))
        low, high = mean - reach, mean + reach
        for _ in range(DOUBLINGS):
            over, under = above(low) >= 0, above(high) < 0
            if not bool((over | under).any()):
                break
            reach = 2 * reach
            low = torch.where(over, mean - reach, low)
            high = torch.where(under, mean + reach, high)
        whole = getattr(each.support, "is_discrete", False)
        found = (first_whole if whole else crossing)(above, low, high)
        return torch.where(mean.isfinite(), found, math.nan).to(self.mean)

    def measures(self, y: Tensor) -> dict[str, Measure]:
        """Of targets y [B] or [B, D]: errors, and the interval where the family has a cdf."""
        y = self._targets(y).to(self.mean)
        interval = self.interval(LEVEL) if has_cdf(self.each()) else None
        found = number_measures(self.mean, y, -self.log_prob(y), self.crps(y), interval)
        return found if self.more is None else found | self.more(self, y)

    def of_draws(self, rows: slice) -> "NumberPredictive":
        """What some of its draws say alone."""
        draws = self.components()
        return NumberPredictive.of(draws.at(tuple(p[rows] for p in draws.parameters)))

    def quantities(self) -> Tensor:
        """The means of the draws, [S, K]."""
        return self.components().moments()[0].flatten(1)


Measures = Callable[[NumberPredictive, Tensor], dict[str, Measure]]


def terms_are_apart(each: Distribution) -> bool:
    """Whether log_prob is of each target by itself, [S, B, D], and not of all together."""
    return not each.event_shape


def _cdf(each: Distribution, y: Tensor) -> Tensor:
    try:
        return each.cdf(y)
    except NotImplementedError:
        raise InputError(
            f"torch's {type(each).__name__} has no cdf, which quantiles need; give Numbers a "
            "subclass of it that has one, or take the quantiles of p.sample(1000)"
        ) from None


Named = dict[str, Tensor]
Rescaled = Callable[[Named, Tensor, Tensor], Named]


def location_scale(named: Named, shift: Tensor, scale: Tensor) -> Named:
    """shift + scale y  of  y = loc + scale z:  loc and scale [..., D].

    >>> one = torch.ones(1)
    >>> location_scale({"loc": one, "scale": one}, 3 * one, 2 * one)
    {'loc': tensor([5.]), 'scale': tensor([2.])}
    """
    return {"loc": shift + scale * named["loc"], "scale": scale * named["scale"]}


class Numbers(Draws):
    """Each draw's distribution of y, by a family of torch.distributions and its parameters.

    The family may be any function of the parameters, each [S, B, D], that returns a Distribution.
    They make a `NumberPredictive`.

    missing="mask": NaN among targets is left out. more(p, y): what is measured beside the usual.
    rescaled(parameters, shift, scale): the parameters by name of shift + scale y, both [D], where
    such a y is of the same family (`location_scale`); a table with scaled targets needs it.

    >>> draws = Numbers(torch.distributions.Poisson, rate=torch.ones(3, 5, 1))
    >>> draws.each.mean.shape  # [S, B, D]
    torch.Size([3, 5, 1])
    """

    def __init__(
        self,
        family: Callable[..., Distribution],
        *,
        missing: Missing = "refuse",
        more: Measures | None = None,
        rescaled: "Rescaled | None" = None,
        **parameters: Tensor,
    ) -> None:
        check_missing(missing)
        if not parameters:
            raise InputError("Numbers needs the family's parameters by name: rate=outputs.exp()")
        if family in CLASSES:
            raise InputError("Numbers is for numbers; for classes return Classes(probs)")
        self.family, self.named = family, parameters
        self.missing, self.more, self.rescaled = missing, more, rescaled

    @property
    def each(self) -> Distribution:
        """One of torch's distributions, of [S, B, D]."""
        # its checks cannot be traced, and stop at what a network far from its data overflows to
        quiet: dict[str, Any] = {"validate_args": False} if isinstance(self.family, type) else {}
        return self.family(**self.named, **quiet)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance of y by each draw, [S, B, D]."""
        each = self.each
        try:
            return each.mean, each.variance
        except NotImplementedError:
            raise InputError(
                f"{type(each).__name__} has no mean or no variance, which predictions are made of; "
                "give Numbers a subclass that has both"
            ) from None

    @property
    def parameters(self) -> Parameters:
        return tuple(self.named.values())

    @property
    def scale(self) -> Tensor | None:
        return self.named.get("scale")

    def at(self, parameters: Parameters) -> "Numbers":
        named = dict(zip(self.named, parameters, strict=True))
        also = {"missing": self.missing, "more": self.more, "rescaled": self.rescaled}
        return Numbers(self.family, **also, **named)  # type: ignore[arg-type]

    def moved(self, shift: Tensor, scale: Tensor) -> "Numbers":
        """The distributions of  shift + scale y,  in float64; both [D]."""
        if self.rescaled is None:
            raise InputError(
                f"{type(self.each).__name__} in other units is not known: give Numbers "
                "rescaled=..., which says what becomes of its parameters"
            )
        wide = {name: p.double() for name, p in self.named.items()}
        ends = (t.to(self.parameters[0].device, torch.float64) for t in (shift, scale))
        changed = wide | self.rescaled(wide, *ends)
        return self.at(tuple(changed[name] for name in self.named))

    def double(self) -> "Numbers":
        """In float64."""
        return self.at(tuple(p.double() for p in self.parameters))

    def centre(self) -> Parameters:
        """The first draw's mean: squares of the means themselves would leave nothing of a spread
        that is small beside them."""
        return (self.moments()[0][0].double(),)

    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        means, variances = self.moments()
        return means, variances, (means.double() - centre[0]).square()

    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> NumberPredictive:
        moments = moments_of(averages, centre, self.moments()[0].dtype)
        draws = None if kept is None else self.at(kept)
        return NumberPredictive(*moments, draws, self.missing, self.more)

    def exported(self) -> dict[str, Tensor]:
        return exported_moments(*self.moments())
