"""y is one of C classes."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from stochens import metrics
from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, mean_over_examples, wide
from stochens.likelihoods.draws import Draws, Measure, Parameters, Predicted, how_many
from stochens.metrics.information import entropy


@dataclasses.dataclass(frozen=True)
class Predictive(Predicted):
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
        kept = how_many(None if self.draws is None else len(self.draws))
        return f"Predictive({kept}, {examples} examples, {classes} classes)"

    @classmethod
    def of(cls, probs: Tensor) -> "Predictive":
        """From draws [S, B, C]."""
        if probs.dim() != 3:
            raise InputError(
                f"probs must be [S, B, C], got {tuple(probs.shape)}; did you average the draws?"
            )
        return cls(probs.mean(0), entropy(probs).mean(0).to(probs), probs)

    @property
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""
        return self.draws is not None

    def light(self) -> "Predictive":
        """The same without its draws."""
        return dataclasses.replace(self, draws=None)

    @classmethod
    def joined(cls, parts: "Sequence[Predictive]") -> "Predictive":
        """Predictions at some inputs and at others, as one, in order."""
        kept = [p.draws for p in parts if p.draws is not None]
        return cls(
            torch.cat([p.mean for p in parts]),
            torch.cat([p.aleatoric for p in parts]),
            torch.cat(kept, 1) if len(kept) == len(parts) else None,
            tuple(cls.joined(each) for each in zip(*(p.chains for p in parts), strict=True)),
        )

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
        y = y.squeeze(1) if y.dim() == 2 and y.shape[1] == 1 else y
        whole = not y.is_floating_point() or bool((y == y.round()).all())  # 0.0 and 1.0 are labels
        if y.shape != self.mean.shape[:1] or not whole:
            raise InputError(f"labels must be integers [{len(self.mean)}], got {tuple(y.shape)}")
        low, high, last = int(y.min()), int(y.max()), self.mean.shape[1] - 1
        if low < 0 or high > last:
            raise InputError(f"labels must be 0 to {last}, got {low}..{high}")
        mean = self.mean.clamp_min(torch.finfo(self.mean.dtype).tiny).double()
        return mean.gather(-1, y.long().to(mean.device).unsqueeze(-1)).squeeze(-1).log()

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

    def measures(self, y: Tensor) -> dict[str, Measure]:
        """Of the labels y [B]."""
        return {
            "accuracy": (metrics.accuracy, self.mean, y),
            "NLL": (metrics.nll, self.mean, y),
            "Brier": (metrics.brier, self.mean, y),
            "ECE": (metrics.ece, self.mean, y),
            "AURC": (metrics.aurc, self.mean, y),
            "entropy": (torch.mean, self.entropy),
            "MI": (torch.mean, self.mutual_information),
        }

    def quantities(self) -> Tensor:
        """All probabilities but the first class's, which is what the others leave: [S, K]."""
        return self.probs[..., 1:].flatten(1)


@dataclasses.dataclass(frozen=True)
class Classes(Draws):
    """Each draw's probabilities of C classes, [S, B, C]. They make a `Predictive`.

    >>> Classes(torch.zeros(3, 5, 2).softmax(-1)).exported()["mutual_information"].shape  # [B]
    torch.Size([5])
    """

    probs: Tensor

    def __post_init__(self) -> None:
        if self.probs.dim() != 3:
            raise InputError(f"Classes wants probs [S, B, C], got {tuple(self.probs.shape)}")

    @property
    def parameters(self) -> Parameters:
        return (self.probs,)

    def at(self, parameters: Parameters) -> "Classes":
        return Classes(*parameters)

    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        return self.probs, entropy(self.probs)

    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> Predictive:
        dtype = self.probs.dtype
        means, aleatorics = averages  # [chains, B, C], [chains, B]
        pairs = zip(means.to(dtype), aleatorics.to(dtype), strict=True)
        chains = tuple(Predictive(m, a, None) for m, a in pairs) if len(means) > 1 else ()
        mean, aleatoric = (t.mean(0).to(dtype) for t in averages)
        return Predictive(mean, aleatoric, kept[0] if kept else None, chains)

    def exported(self) -> dict[str, Tensor]:
        mean = self.probs.mean(0)
        total = _plain_entropy(mean)
        unsure = (total - _plain_entropy(self.probs).mean(0)).clamp_min(0.0)
        return {"probs": mean, "entropy": total, "mutual_information": unsure}


def _plain_entropy(probs: Tensor) -> Tensor:
    """-sum_c p_c log p_c, by operations that ONNX has."""
    tiny = torch.finfo(probs.dtype).tiny
    return -(probs * probs.clamp_min(tiny).log()).sum(-1)


@dataclasses.dataclass(frozen=True)
class Categorical(Likelihood):
    """p(y | x) = softmax(outputs)_y: outputs [..., B, C] are logits, y [..., B] integers.

    >>> float(Categorical().nll(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])))
    0.6931...
    """

    name: ClassVar[str] = "categorical"
    coarse: ClassVar[bool] = True

    def distribution(self, outputs: Tensor) -> Classes:
        """softmax(outputs)"""
        return Classes(outputs.softmax(-1))

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        logp = wide(outputs).log_softmax(-1)
        return mean_over_examples(-logp.gather(-1, y.unsqueeze(-1)).squeeze(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() == 2 and y.shape[1] == 1:
            raise InputError(f"labels must be [N], got {tuple(y.shape)}; use y.squeeze(1)")
        if y.dim() != 1:
            raise InputError(f"labels must be [N], got {tuple(y.shape)}; {_instead(y)}")
        if y.is_floating_point() or y.is_complex():
            raise InputError(
                f"labels must be integers, got {y.dtype}; use y.long(), or likelihood='gaussian' "
                "for regression"
            )
        return y.long()

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.dim() != 2:
            raise InputError(f"the network must return logits [B, C], got {tuple(outputs.shape)}")
        classes = outputs.shape[1]
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            if classes == 1:
                raise InputError(
                    f"label {wrong} is out of range: the network has one output, and two classes "
                    "need two (logits, one for each class)"
                )
            raise InputError(
                f"label {wrong} is out of range: the network has {classes} outputs, so labels must "
                f"be 0 to {classes - 1}"
            )


def _instead(y: Tensor) -> str:
    """What to do with targets that are not [N]."""
    if y.dim() == 2 and len(y) and bool(((y == 0) | (y == 1)).all() & (y.sum(1) == 1).all()):
        return f"each row is one-hot: use y.argmax(1), with a network of {y.shape[1]} outputs"
    if y.is_floating_point():
        return "for numbers use likelihood='gaussian', which takes [N, D]"
    return (
        "one label for each example is supported, not one for each token or pixel; numbers or "
        "counts are for likelihood='gaussian' or one of your own (docs: A likelihood of your own)"
    )
