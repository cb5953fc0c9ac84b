"""y are L answers of yes or no for each example."""

import dataclasses
import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid, softplus

from stochens.errors import InputError
from stochens.likelihoods.base import Likelihood, Targets, mean_over_examples, wide
from stochens.likelihoods.draws import (
    Draws,
    Measure,
    Parameters,
    Predicted,
    central_interval,
    how_many,
    over_chains,
)
from stochens.likelihoods.label_views import LabelViews
from stochens.likelihoods.targets import Missing, check_missing, present
from stochens.metrics import bins, dense
from stochens.metrics.information import entropy


@dataclasses.dataclass(frozen=True)
class Multilabel(Likelihood):
    """p(y_l = 1 | x) = 1 / (1 + exp(-output_l)): outputs [B, L] are logits, y [B, L] is 0 or 1.

    Given the parameters, labels of one example are independent; over all draws they are not.

    missing="mask": NaN in y is a label that nobody gave; it adds nothing to the likelihood.

    >>> y = Multilabel().check_targets(torch.tensor([[1, 0, 1]]))
    >>> float(Multilabel().nll(torch.zeros(1, 3), y))  # 3 log 2
    2.079...
    """

    missing: Missing = "refuse"
    name: ClassVar[str] = "multilabel"
    coarse: ClassVar[bool] = True
    logits: ClassVar[bool] = True
    targets: ClassVar[Targets] = "labels"

    def __post_init__(self) -> None:
        check_missing(self.missing)

    def distribution(self, outputs: Tensor) -> "Labels":
        """The logits, which say more of probabilities near 1 than these do."""
        return Labels(outputs, self.missing)

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """sum_l log(1 + exp(logit)) - y logit"""
        logits, (own, there) = wide(outputs), present(y)
        terms = softplus((1 - 2 * own) * logits).where(there, 0.0)
        return mean_over_examples(terms.sum(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() != 2:
            raise InputError(
                f"labels must be [N, L], a column for each, got {tuple(y.shape)}; for one yes or "
                "no use 'binary'"
            )
        y = y if y.is_floating_point() else y.to(torch.get_default_dtype())
        wrong = (y != 0) & (y != 1)
        wrong = wrong & ~y.isnan() if self.missing == "mask" else wrong
        if bool(wrong.any()):
            row = int(wrong.any(1).nonzero()[0])
            remedy = "; Multilabel(missing='mask') leaves NaN out" if y[row].isnan().any() else ""
            raise InputError(f"labels must be 0 or 1; row {row} is {y[row].tolist()}{remedy}")
        return y

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.dim() != 2 or outputs.shape[1] != y.shape[1]:
            raise InputError(
                f"for labels [N, {y.shape[1]}] the network must return logits [B, {y.shape[1]}], "
                f"got {tuple(outputs.shape)}"
            )


@dataclasses.dataclass(frozen=True)
class MultilabelPredictive(Predicted):
    """p(y | x, data) for L labels of yes or no, from S draws at B inputs.

    Entropy and mutual information are those of each label by itself; `log_prob` is of all
    together.

    >>> p = MultilabelPredictive.of(torch.tensor([[[-9.0, 0.0]], [[9.0, 0.0]]]))  # logits
    >>> p.mean, p.mutual_information.round(decimals=2)
    (tensor([[0.5000, 0.5000]]), tensor([[0.6900, 0.0000]]))
    """

    mean: Tensor  # [B, L], P(y_l = 1)
    aleatoric: Tensor  # [B, L], mean entropy of the draws, in nats
    draws: Tensor | None  # [S, B, L] logits
    missing: Missing = "refuse"

    def __repr__(self) -> str:
        examples, labels = self.mean.shape
        kept = how_many(None if self.draws is None else len(self.draws))
        return f"MultilabelPredictive({kept}, {examples} examples, {labels} labels)"

    @classmethod
    def of(cls, logits: Tensor) -> "MultilabelPredictive":
        """From draws of logits [S, B, L]."""
        if logits.dim() != 3:
            raise InputError(f"logits must be [S, B, L], got {tuple(logits.shape)}")
        return cls(logits.sigmoid().mean(0), _entropies(logits).mean(0).to(logits), logits)

    @property
    def keeps_draws(self) -> bool:
        """Whether all draws are here, and not their averages alone."""
        return self.draws is not None

    def light(self) -> "MultilabelPredictive":
        """The same without its draws."""
        return dataclasses.replace(self, draws=None)

    def summaries(self, level: float | None = None) -> dict[str, Tensor]:
        """Probabilities of yes, entropy and mutual information in nats, of each label: [B, L]; with
        a level the interval of each probability over the draws."""
        unsure = {"entropy": self.entropy, "mutual_information": self.mutual_information}
        found = {"probs": self.mean, **unsure}
        if level is None:
            return found
        low, high = central_interval(self.logits.sigmoid(), level)
        return {**found, "low": low, "high": high}

    def by_draw(self) -> dict[str, Tensor]:
        """The logits of every draw, [B, S, L]."""
        return {"draw_logits": self.logits.transpose(0, 1)}

    @classmethod
    def joined(cls, parts: "Sequence[MultilabelPredictive]") -> "MultilabelPredictive":
        """Predictions at some inputs and at others, as one, in order."""
        kept = [p.draws for p in parts if p.draws is not None]
        return dataclasses.replace(
            parts[0],
            mean=torch.cat([p.mean for p in parts]),
            aleatoric=torch.cat([p.aleatoric for p in parts]),
            draws=torch.cat(kept, 1) if len(kept) == len(parts) else None,
        )

    @property
    def logits(self) -> Tensor:
        """Every draw, [S, B, L]."""
        if self.draws is None:
            raise InputError(
                "the draws were not kept, to save memory; mean, entropy and mutual_information are "
                "here, or call predict(x, keep_draws=True)"
            )
        return self.draws

    @property
    def entropy(self) -> Tensor:
        """H of each label under the mean, in nats: [B, L]."""
        return entropy(torch.stack([self.mean, 1 - self.mean], -1)).to(self.mean)

    @property
    def mutual_information(self) -> Tensor:
        """What the parameters are unsure of, of each label: [B, L]."""
        return (self.entropy - self.aleatoric).clamp_min(0.0)

    @property
    def labels(self) -> Tensor:
        """Which labels are likelier than not, as 0 and 1: [B, L]."""
        return (self.mean > 0.5).long()

    def log_prob(self, y: Tensor) -> Tensor:
        """log 1/S sum_s prod_l p_s(y_l) of labels y [B, L], in nats and float64: [B]. NaN in y is
        left out where the likelihood has missing="mask"."""
        logits, (own, there) = self.logits.double(), present(self._targets(y).double())
        terms = logsigmoid((2 * own - 1).to(logits) * logits).where(there.to(logits.device), 0.0)
        return terms.sum(-1).logsumexp(0) - math.log(len(logits))

    def sample(self, n: int = 1, *, seed: int = 0) -> Tensor:
        """Labels drawn from the predictive, [n, B, L]; each row from one draw of the network."""
        generator = torch.Generator().manual_seed(int(seed))
        rows = torch.randint(len(self.logits), (n,), generator=generator)
        probs = self.logits[rows].sigmoid()
        return (torch.rand(probs.shape, generator=generator) < probs.cpu()).long()

    def measures(self, y: Tensor) -> dict[str, Measure]:
        """Of labels y [B, L]; examples of which none is known are left out."""
        own, there = present(self._targets(y).double().cpu())
        rows = there.any(1)
        if not bool(rows.any()):
            raise InputError("no label is left to measure by: all are NaN")
        nll, both = -self.log_prob(y).cpu()[rows], (self.entropy, self.mutual_information)
        said_yes = self.mean.cpu()[rows]
        own, there, mean = own[rows], there[rows].double(), said_yes.double()
        said, count = (mean > 0.5).double(), there.sum(1)
        hit, wrong = said * own * there, (said != own).double() * there
        tables = torch.stack([hit, said * there, own * there], -1)  # [B, L, 3]
        unsure = [(t.double().cpu()[rows] * there).sum(1) for t in both]
        return {
            "exact match": (torch.mean, (wrong.sum(1) == 0).double()),
            "accuracy": (dense.ratio, count - wrong.sum(1), count),
            "macro F1": (_macro_f1, tables),
            "micro F1": (_micro_f1, tables),
            "NLL": (torch.mean, nll),
            "Brier": (dense.ratio, ((mean - own).square() * there).sum(1), count),
            "ECE": (bins.binned_ece, bins.tables(said_yes, own, there)),
            "entropy": (dense.ratio, unsure[0], count),
            "MI": (dense.ratio, unsure[1], count),
        }

    @property
    def views(self) -> LabelViews:
        """What figures and reports show of it."""
        return LabelViews(self, self._targets)

    def of_draws(self, rows: slice) -> "MultilabelPredictive":
        """What some of its draws say alone."""
        found = MultilabelPredictive.of(self.logits[rows])
        return dataclasses.replace(found, missing=self.missing)

    def quantities(self) -> Tensor:
        """The probabilities of each draw, [S, K]."""
        return self.logits.sigmoid().flatten(1)

    def _targets(self, y: Tensor) -> Tensor:
        y = torch.as_tensor(y)
        if y.shape != self.mean.shape:
            raise InputError(f"labels must be {tuple(self.mean.shape)}, got {tuple(y.shape)}")
        return Multilabel(self.missing).check_targets(y)


@dataclasses.dataclass(frozen=True)
class Labels(Draws):
    """Each draw's logits of L labels of yes or no, [S, B, L].

    They make a `MultilabelPredictive`.

    >>> Labels(torch.zeros(3, 5, 2)).exported()["probs"].shape  # [B, L]
    torch.Size([5, 2])
    """

    logits: Tensor
    missing: Missing = "refuse"

    @property
    def parameters(self) -> Parameters:
        return (self.logits,)

    @property
    def summed_up(self) -> bool:
        return True

    def at(self, parameters: Parameters) -> "Labels":
        return dataclasses.replace(self, logits=parameters[0])

    def terms(self, *centre: Tensor) -> tuple[Tensor, ...]:
        return self.logits.sigmoid(), _entropies(self.logits)

    def averaged(
        self, averages: tuple[Tensor, ...], centre: Parameters, kept: Parameters | None
    ) -> MultilabelPredictive:
        mean, aleatoric = (over_chains(t).to(self.logits.dtype) for t in averages)
        return MultilabelPredictive(mean, aleatoric, kept[0] if kept else None, self.missing)

    def exported(self) -> dict[str, Tensor]:
        mean = self.logits.sigmoid().mean(0)
        total = _plain_entropy(mean)
        each = _plain_entropy(self.logits.sigmoid()).mean(0)
        unsure = (total - each).clamp_min(0.0)
        return {"probs": mean, "entropy": total, "mutual_information": unsure}


def _entropies(logits: Tensor) -> Tensor:
    """Of each label, in float64: [...] -> [...]."""
    logits = logits.double()
    return entropy(torch.stack([logits.sigmoid(), (-logits).sigmoid()], -1))


def _plain_entropy(p: Tensor) -> Tensor:
    """By operations that ONNX has."""
    tiny = torch.finfo(p.dtype).tiny
    return -sum((q * q.clamp_min(tiny).log() for q in (p, 1 - p)), torch.zeros_like(p))


def _macro_f1(tables: Tensor) -> float:
    """The mean over labels of 2 TP / (predicted + true), 0 where that is 0 / 0: [B, L, 3]."""
    hit, said, true = tables.sum(0).unbind(-1)
    return float((2 * hit / (said + true).where(said + true > 0, 1.0)).mean())


def _micro_f1(tables: Tensor) -> float:
    hit, said, true = tables.sum((0, 1))
    return float(2 * hit / (said + true)) if float(said + true) else 0.0
