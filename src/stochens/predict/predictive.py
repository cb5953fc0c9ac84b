"""Predictive distributions: draws of the network's output, and what follows from them."""

import abc
import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.information import entropy
from stochens.likelihoods import LOG_2_PI, Gaussian, Likelihood

QUANTILE_STEPS = 50  # halvings of the bracket: to float32's precision and beyond
DRAWS_BUDGET = 1 << 30  # bytes of draws that are kept without being asked


@dataclasses.dataclass(frozen=True)
class Predictive:
    """p(y | x, data) for classes, from S draws (members times draws of each) at B inputs.

    >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # two draws that contradict each other
    >>> p = Predictive.of(draws)
    >>> p.mean, p.entropy, p.mutual_information, p.aleatoric
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]), tensor([0.6931]), tensor([0.]))
    >>> p
    Predictive(2 draws, 1 examples, 2 classes)
    """

    mean: Tensor  # [B, C]
    aleatoric: Tensor  # [B], mean entropy of the draws: the noise of the data, in nats
    draws: Tensor | None  # [S, B, C], None when they were too many to keep
    chains: "tuple[Predictive, ...]" = ()  # of a sampler: what each of its chains says, alone

    def __repr__(self) -> str:
        examples, classes = self.mean.shape
        return f"Predictive({_kept(self.draws)}, {examples} examples, {classes} classes)"

    @classmethod
    def of(cls, probs: Tensor) -> "Predictive":
        """From draws [S, B, C]."""
        if probs.dim() != 3:
            raise InputError(
                f"probs must be [S, B, C], got {tuple(probs.shape)}; did you average the draws?"
            )
        return cls(probs.mean(0), entropy(probs).mean(0).to(probs), probs)

    @property
    def probs(self) -> Tensor:
        """Every draw, [S, B, C]."""
        if self.draws is None:
            raise InputError(
                "the draws were not kept, to save memory; mean, entropy and mutual_information are "
                "here, or call predict(x, keep_draws=True)"
            )
        return self.draws

    @property
    def entropy(self) -> Tensor:
        """H[mean p], the whole uncertainty in nats: [B]."""
        return entropy(self.mean).to(self.mean)

    @property
    def mutual_information(self) -> Tensor:
        """H[mean p] - mean H[p], what the parameters are unsure of: [B]."""
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each input: [B]."""
        return self.mean.argmax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """log of the mean probability of the labels y [B], in nats and float64: [B].

        -inf would end every comparison, so 0 counts as the smallest number of the network's kind.
        """
        if y.shape != self.mean.shape[:1] or y.is_floating_point():
            raise InputError(f"labels must be integers [{len(self.mean)}], got {tuple(y.shape)}")
        low, high, last = int(y.min()), int(y.max()), self.mean.shape[1] - 1
        if low < 0 or high > last:
            raise InputError(f"labels must be 0 to {last}, got {low}..{high}")
        mean = self.mean.clamp_min(torch.finfo(self.mean.dtype).tiny).double()
        return mean.gather(-1, y.to(mean.device).unsqueeze(-1)).squeeze(-1).log()

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """Labels drawn from the predictive, [n, B]; each row from one draw of the network, so that
        inputs covary as the posterior says (from the mean where the draws were not kept)."""
        generator = torch.Generator().manual_seed(int(seed))
        if self.draws is None:
            rows = self.mean.expand(n, -1, -1)
        else:
            rows = self.draws[torch.randint(len(self.draws), (n,), generator=generator)]
        u = torch.rand(rows.shape[:2], generator=generator).unsqueeze(-1)
        below = rows.cumsum(-1)[..., :-1] < u  # the last class takes what rounding leaves over
        return below.sum(-1)


@dataclasses.dataclass(frozen=True)
class GaussianPredictive:
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

    def __repr__(self) -> str:
        examples, targets = self.mean.shape
        kept = _kept(self.draw_means)
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
    def variance(self) -> Tensor:
        """aleatoric + epistemic, the variance of y: [B, D]."""
        return self.aleatoric + self.epistemic

    @property
    def std(self) -> Tensor:
        return self.variance.sqrt()

    def components(self) -> tuple[Tensor, Tensor]:
        """The mixture's means and variances, each [S, B, D]."""
        if self.draw_means is None or self.draw_variances is None:
            raise InputError(
                "the draws were not kept, to save memory; mean and std are here, or call "
                "predict(x, keep_draws=True)"
            )
        return self.draw_means, self.draw_variances

    def quantile(self, level: float) -> Tensor:
        """y with P(Y <= y) = level under the mixture, by bisection: [B, D]."""
        if not 0 < level < 1:
            raise InputError(f"a quantile's level must be in (0, 1), got {level!r}")
        means, variances = (t.double() for t in self.components())
        sds = variances.sqrt()
        normal = torch.distributions.Normal(0.0, 1.0, validate_args=False)
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

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """The central interval that holds y with probability `level`: low and high, each [B, D]."""
        if not 0 < level < 1:
            raise InputError(f"an interval's level must be in (0, 1), got {level!r}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def log_prob(self, y: Tensor) -> Tensor:
        """log 1/S sum_s N(y; mean_s, variance_s) of targets y [B] or [B, D], in float64: [B]."""
        means, variances = (t.double() for t in self.components())
        y = y.unsqueeze(-1) if y.dim() == 1 else y
        if y.shape != means.shape[1:]:
            raise InputError(f"targets must be {tuple(means.shape[1:])}, got {tuple(y.shape)}")
        terms = (y.to(means) - means).square() / variances + variances.log() + LOG_2_PI
        return (-0.5 * terms.sum(-1)).logsumexp(0) - math.log(len(means))  # [S, B] -> [B]

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """y drawn from the predictive, [n, B, D]; each row from one draw of the network."""
        means, variances = self.components()
        generator = torch.Generator().manual_seed(int(seed))
        rows = torch.randint(len(means), (n,), generator=generator)
        noise = torch.randn(n, *means.shape[1:], generator=generator, dtype=means.dtype)
        return means[rows] + variances[rows].sqrt() * noise


def _kept(draws: Tensor | None) -> str:
    return "draws not kept" if draws is None else f"{len(draws)} draws"


# -- streaming: sums over draws, so that S draws need not be held at once -------------------------


class Sums(abc.ABC):
    """Collects outputs [m, b, C] of some draws at some rows; `result` when all have come."""

    def __init__(
        self, draws: int, rows: int, *, keep: bool | None, groups: int, of_rows: int
    ) -> None:
        self.shape = (draws, rows)
        self.of_rows = of_rows  # of all that is predicted; these may be a part
        self.keep = keep
        self.groups = groups  # equal blocks of draws (chains) that are summed apart
        self.sums: tuple[Tensor, ...] = ()
        self.kept: tuple[Tensor, ...] = ()

    def add(self, outputs: Tensor, *, rows: slice, first_draw: int) -> None:
        outputs = outputs.float() if outputs.dtype.itemsize < 4 else outputs
        draws, terms = self.terms(outputs, rows)
        if not self.sums:
            self._allocate(draws, terms)
        size, last = self.shape[0] // self.groups, first_draw + len(outputs)
        for group in range(first_draw // size, (last - 1) // size + 1):
            own = slice(max(0, group * size - first_draw), (group + 1) * size - first_draw)
            for total, term in zip(self.sums, terms, strict=True):
                total[group, rows] += term[own].sum(0, dtype=torch.float64).cpu()
        for kept, draw in zip(self.kept, draws, strict=False):
            kept[first_draw : first_draw + len(draw), rows] = draw.cpu()

    def _allocate(self, draws: tuple[Tensor, ...], terms: tuple[Tensor, ...]) -> None:
        count, rows = self.shape
        size = count * self.of_rows * sum(d[0, 0].numel() * d.element_size() for d in draws)
        if self.keep or (self.keep is None and size <= DRAWS_BUDGET):
            self.kept = tuple(torch.empty(count, rows, *d.shape[2:], dtype=d.dtype) for d in draws)
        self.sums = tuple(
            torch.zeros(self.groups, rows, *t.shape[2:], dtype=torch.float64) for t in terms
        )
        self.dtype = draws[0].dtype

    @abc.abstractmethod
    def terms(self, outputs: Tensor, rows: slice) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """What is kept of each draw, and what is summed over draws."""

    @abc.abstractmethod
    def result(self) -> Predictive | GaussianPredictive: ...


class ClassSums(Sums):
    def terms(self, outputs: Tensor, rows: slice) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        probs = outputs.softmax(-1)
        return (probs,), (probs, entropy(probs))

    def result(self) -> Predictive:
        size = self.shape[0] // self.groups
        means, aleatorics = (total / size for total in self.sums)  # [groups, B, C], [groups, B]
        parts = (
            (m.to(self.dtype), a.to(self.dtype)) for m, a in zip(means, aleatorics, strict=True)
        )
        chains = tuple(Predictive(m, a, None) for m, a in parts) if self.groups > 1 else ()
        mean, aleatoric = (t.mean(0).to(self.dtype) for t in (means, aleatorics))
        draws = self.kept[0] if self.kept else None
        return Predictive(mean, aleatoric, draws, chains)


class GaussianSums(Sums):
    def __init__(self, *shape: int, likelihood: Gaussian, **options: Any) -> None:
        super().__init__(*shape, **options)
        self.likelihood = likelihood
        # By first row. The squares are of distances to the first draw: those of the means
        # themselves would leave nothing of a spread that is small beside them.
        self.centres: dict[int, Tensor] = {}

    def terms(self, outputs: Tensor, rows: slice) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        mean, variance = self.likelihood.moments(outputs)
        centre = self.centres.setdefault(rows.start, mean[0].double())  # [b, D]
        return (mean, variance), (mean, variance, (mean.double() - centre).square())

    def result(self) -> GaussianPredictive:
        mean, aleatoric, square = (total.sum(0) / self.shape[0] for total in self.sums)
        centre = torch.cat([self.centres[first] for first in sorted(self.centres)]).cpu()
        epistemic = (square - (mean - centre).square()).clamp_min(0)
        moments = (t.to(self.dtype) for t in (mean, aleatoric, epistemic))
        return GaussianPredictive(*moments, *(self.kept or (None, None)))


def sums_for(likelihood: Likelihood, draws: int, rows: int, **options: Any) -> Sums:
    """`options` are those of Sums."""
    if isinstance(likelihood, Gaussian):
        return GaussianSums(draws, rows, likelihood=likelihood, **options)
    return ClassSums(draws, rows, **options)


def join_rows(parts: list[Any]) -> Any:
    """Predictions at some inputs and at others, as one, in order; all of one kind."""
    first = parts[0]
    if isinstance(first, GaussianPredictive):
        moments = (_rows(parts, n, 0) for n in ("mean", "aleatoric", "epistemic"))
        kept = (_rows(parts, n, 1) for n in ("draw_means", "draw_variances"))
        return GaussianPredictive(*moments, *kept)  # type: ignore[arg-type]
    chains = tuple(join_rows(list(each)) for each in zip(*(p.chains for p in parts), strict=True))
    mean, aleatoric = (_rows(parts, name, 0) for name in ("mean", "aleatoric"))
    return Predictive(mean, aleatoric, _rows(parts, "draws", 1), chains)  # type: ignore[arg-type]


def _rows(parts: list[Any], name: str, axis: int) -> Tensor | None:
    tensors = [getattr(part, name) for part in parts]
    return None if tensors[0] is None else torch.cat(tensors, dim=axis)
