"""Predictions of classes: one for each input, or one for each of its places (pixels, tokens)."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods.class_measures import (
    closeness,
    dense_measures,
    flat_measures,
    soft_measures,
    told_apart,
)
from stochens.likelihoods.class_views import ClassViews
from stochens.likelihoods.draws import (
    Draws,
    Measure,
    Parameters,
    Predicted,
    central_interval,
    how_many,
    mean_of_draws,
    over_chains,
)
from stochens.metrics.information import entropy

FEW_PLACES = 256  # of dense predictions, which chains of a sampler must agree about


@dataclasses.dataclass(frozen=True)
class Predictive(Predicted):
    """p(y | x, data) for classes, from S draws (members times draws of each) at B inputs.

    Dense tasks have axes of places between B and C: images [B, H, W, C], tokens [B, T, C]. Classes
    come last, wherever the network has them.

    >>> draws = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # two draws that contradict each other
    >>> p = Predictive.of(draws)
    >>> p.mean, p.entropy, p.mutual_information, p.aleatoric
    (tensor([[0.5000, 0.5000]]), tensor([0.6931]), tensor([0.6931]), tensor([0.]))
    >>> p
    Predictive(2 draws, 1 examples, 2 classes)
    """

    mean: Tensor  # [B, C], or [B, ..., C]
    aleatoric: Tensor  # [B, ...], mean entropy of the draws: the noise of the data, in nats
    draws: Tensor | None  # [S, B, ..., C], None when they were too many to keep
    chains: "tuple[Predictive, ...]" = ()  # of a sampler: what each of its chains says, alone
    ignore_index: int | None = None  # labels that are none
    more: "Measures | None" = None  # what the likelihood measures beside the usual

    def __repr__(self) -> str:
        examples, *places, classes = self.mean.shape
        kept = how_many(None if self.draws is None else len(self.draws))
        of = f" of {' x '.join(map(str, places))}" if places else ""
        return f"Predictive({kept}, {examples} examples{of}, {classes} classes)"

    @classmethod
    def of(cls, probs: Tensor) -> "Predictive":
        """From draws [S, B, C], or [S, B, ..., C]."""
        if probs.dim() < 3:
            raise InputError(
                f"probs must be [S, B, C], got {tuple(probs.shape)}; did you average the draws?"
            )
        return cls(probs.mean(0), entropy(probs).mean(0).to(probs), probs)

    @classmethod
    def later(
        cls, mean: Tensor, draws: Tensor, ignore_index: int | None, more: "Measures | None"
    ) -> "Predictive":
        """One whose `aleatoric` is worked out when it is first asked for."""
        made = cls(mean, mean, draws, (), ignore_index, more)
        del vars(made)["aleatoric"]
        return made

    def __getattr__(self, name: str) -> Any:
        """Of what `later` has left out."""
        if name != "aleatoric":
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        found = mean_of_draws(entropy(self.probs))[0].to(self.mean.dtype)
        vars(self)["aleatoric"] = found
        return found

    @property
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""
        return self.draws is not None

    def light(self) -> "Predictive":
        """The same without its draws."""
        return dataclasses.replace(self, draws=None)

    def summaries(self, level: float | None = None) -> dict[str, Tensor]:
        """Mean probabilities [B, ..., C], entropy and mutual information [B, ...] in nats; with a
        level the interval of each probability over the draws."""
        unsure = {"entropy": self.entropy, "mutual_information": self.mutual_information}
        found = {"probs": self.mean, **unsure}
        if level is None:
            return found
        low, high = central_interval(self.probs, level)
        return {**found, "low": low, "high": high}

    def by_draw(self) -> dict[str, Tensor]:
        """The probabilities of every draw, [B, S, ..., C]."""
        return {"draw_probs": self.probs.transpose(0, 1)}

    @classmethod
    def joined(cls, parts: "Sequence[Predictive]") -> "Predictive":
        """Predictions at some inputs and at others, as one, in order."""
        if len(places := {tuple(p.mean.shape[1:-1]) for p in parts}) > 1:
            raise InputError(
                f"predictions at {' and '.join(map(str, sorted(places)))} places cannot be one: "
                "pad all inputs to one length, or predict batch by batch"
            )
        kept = [p.draws for p in parts if p.draws is not None]
        return dataclasses.replace(
            parts[0],
            mean=torch.cat([p.mean for p in parts]),
            aleatoric=torch.cat([p.aleatoric for p in parts]),
            draws=torch.cat(kept, 1) if len(kept) == len(parts) else None,
            chains=tuple(cls.joined(each) for each in zip(*(p.chains for p in parts), strict=True)),
        )

    @property
    def probs(self) -> Tensor:
        """Every draw, [S, B, ..., C]."""
        if self.draws is None:
            raise InputError(
                "the draws were not kept, to save memory; mean, entropy and mutual_information are "
                "here, or call predict(x, keep_draws=True)"
            )
        return self.draws

    @property
    def entropy(self) -> Tensor:
        """H[mean p], the whole uncertainty in nats: [B, ...]."""
        return entropy(self.mean).to(self.mean)

    @property
    def mutual_information(self) -> Tensor:
        """H[mean p] - mean H[p], what the parameters are unsure of: [B, ...]."""
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def labels(self) -> Tensor:
        """The likeliest class of each input, or of each of its places: [B, ...]."""
        return self.mean.argmax(-1)

    def log_prob(self, y: Tensor) -> Tensor:
        """log of the mean probability of the labels y [B], in nats and float64: [B].

        Of dense labels y [B, ...] it is the sum over the places that are not ignored, each by its
        own mean probability. Of soft labels, probabilities y [B, ..., C], it is the expectation.
        -inf would end every comparison, so 0 counts as the smallest number of the network's kind.
        """
        y = self._targets(y).to(self.mean.device)
        logs = self.mean.clamp_min(torch.finfo(self.mean.dtype).tiny).double().log()
        if y.is_floating_point():
            terms = (y.double() * logs).sum(-1)
        else:
            kept = torch.ones_like(y, dtype=torch.bool)
            kept = kept if self.ignore_index is None else y != self.ignore_index
            own = logs.gather(-1, y.where(kept, 0).unsqueeze(-1)).squeeze(-1)
            terms = own.where(kept, 0.0)
        return terms.flatten(1).sum(1) if terms.dim() > 1 else terms

    def _targets(self, y: Tensor) -> Tensor:
        """Labels as whole numbers [B, ...], or soft ones [B, ..., C] as they are; others are
        refused."""
        y = torch.as_tensor(y)
        if y.is_floating_point() and y.shape == self.mean.shape:
            return y
        y = y.squeeze(1) if y.dim() == self.mean.dim() and y.shape[1] == 1 else y
        whole = not y.is_floating_point() or bool((y == y.round()).all())  # 0.0 and 1.0 are labels
        places = tuple(self.mean.shape[:-1])
        if tuple(y.shape) != places or not whole:
            wanted = ", ".join(map(str, places))
            raise InputError(f"labels must be integers [{wanted}], got {tuple(y.shape)}")
        y, last = y.long(), self.mean.shape[-1] - 1
        real = y if self.ignore_index is None else y[y != self.ignore_index]
        low, high = (int(real.min()), int(real.max())) if real.numel() else (0, 0)
        if low < 0 or high > last:
            raise InputError(f"labels must be 0 to {last}, got {low}..{high}")
        return y

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """Labels drawn from the predictive, [n, B, ...]; each row from one draw of the network, so
        that inputs covary as the posterior says (from the mean where the draws were not kept)."""
        generator = torch.Generator().manual_seed(int(seed))
        if self.draws is None:
            rows = self.mean.expand(n, *self.mean.shape)
        else:
            rows = self.draws[torch.randint(len(self.draws), (n,), generator=generator)]
        u = torch.rand(rows.shape[:-1], generator=generator).unsqueeze(-1)
        below = rows.cumsum(-1)[..., :-1] < u  # the last class takes what rounding leaves over
        return below.sum(-1)

    def measures(self, y: Tensor) -> dict[str, Measure]:
        """Of labels y [B], dense ones y [B, ...], or soft ones y [B, C]."""
        if y.is_floating_point() and y.shape == self.mean.shape:
            found = soft_measures(self, y)
        elif self.mean.dim() > 2:
            found = dense_measures(self, self._targets(y))
        else:
            found = flat_measures(self, y)
        return found if self.more is None else found | self.more(self, y)

    def of_chains(self, weights: Sequence[float]) -> "Predictive":
        """What the chains say together when each counts so much; the weights sum to 1."""
        parts = [(w, chain) for w, chain in zip(weights, self.chains, strict=True) if w]
        mean = sum((w * c.mean.double() for w, c in parts), torch.zeros(()))
        aleatoric = sum((w * c.aleatoric.double() for w, c in parts), torch.zeros(()))
        return dataclasses.replace(
            self,
            mean=mean.to(self.mean),
            aleatoric=aleatoric.to(self.aleatoric),
            draws=None,
            chains=(),
        )

    @property
    def views(self) -> ClassViews:
        """What figures and reports show of it."""
        return ClassViews(self, self._targets)

    def of_draws(self, rows: slice) -> "Predictive":
        """What some of its draws say alone."""
        probs = self.probs[rows]
        aleatoric = entropy(probs).mean(0).to(probs)
        return dataclasses.replace(
            self, mean=probs.mean(0), aleatoric=aleatoric, draws=probs, chains=()
        )

    def beside(self, reference: "Predictive") -> dict[str, Tensor]:
        """Agreement, total variation, and absolute differences of entropy and mutual information,
        each [B]."""
        return closeness(self, reference)

    def apart(self, far: "Predictive") -> dict[str, Measure]:
        """How well inputs of another kind, predicted as `far`, are told from these."""
        return told_apart(self, far)

    def quantities(self) -> Tensor:
        """All probabilities but the first class's, which is what the others leave: [S, K]. Of dense
        predictions those at some places."""
        found = self.probs[..., 1:].flatten(1)
        apart = math.ceil(self.mean[..., 0].numel() / FEW_PLACES) if self.mean.dim() > 2 else 1
        return found if apart == 1 else self.probs[..., 1:].flatten(1, -2)[:, ::apart].flatten(1)


Measures = Callable[[Predictive, Tensor], dict[str, Measure]]


@dataclasses.dataclass(frozen=True)
class Classes(Draws):
    """Each draw's probabilities of C classes, [S, B, C], or of dense tasks [S, B, ..., C]. They
    make a `Predictive`.

    ignore_index: labels that are none. more(p, y): what is measured beside the usual.

    >>> Classes(torch.zeros(3, 5, 2).softmax(-1)).exported()["mutual_information"].shape  # [B]
    torch.Size([5])
    """

    probs: Tensor
    ignore_index: int | None = None
    more: Measures | None = None

    def __post_init__(self) -> None:
        if self.probs.dim() < 3:
            raise InputError(f"Classes wants probs [S, B, C], got {tuple(self.probs.shape)}")

    @property
    def parameters(self) -> Parameters:
        return (self.probs,)

    @property
    def large(self) -> bool:
        return self.probs.dim() > 3

    @property
    def summed_up(self) -> bool:
        return True

    def at(self, parameters: Parameters) -> "Classes":
        return dataclasses.replace(self, probs=parameters[0])

    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        return self.probs, entropy(self.probs)

    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> Predictive:
        dtype = self.probs.dtype
        means, aleatorics = averages  # [chains, B, ..., C], [chains, B, ...]
        also = (self.ignore_index, self.more)
        chains: tuple[Predictive, ...] = ()
        if len(means) > 1:
            pairs = zip(means.to(dtype), aleatorics.to(dtype), strict=True)
            chains = tuple(Predictive(m, a, None, (), *also) for m, a in pairs)
        mean, aleatoric = (over_chains(t).to(dtype) for t in averages)
        return Predictive(mean, aleatoric, kept[0] if kept else None, chains, *also)

    def whole(self, kept: Parameters) -> Predictive | None:
        if not self.probs.is_cpu:  # whose sums have another order
            return None
        mean = mean_of_draws(self.probs)[0].to(self.probs.dtype)
        return Predictive.later(mean, kept[0], self.ignore_index, self.more)

    def exported(self) -> dict[str, Tensor]:
        mean = self.probs.mean(0)
        total = _plain_entropy(mean)
        unsure = (total - _plain_entropy(self.probs).mean(0)).clamp_min(0.0)
        return {"probs": mean, "entropy": total, "mutual_information": unsure}


def _plain_entropy(probs: Tensor) -> Tensor:
    """-sum_c p_c log p_c, by operations that ONNX has."""
    tiny = torch.finfo(probs.dtype).tiny
    return -(probs * probs.clamp_min(tiny).log()).sum(-1)
