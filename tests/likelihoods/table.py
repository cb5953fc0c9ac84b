"""The table of likelihoods; test_conformance.py holds each row to one contract."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch import distributions as d

from stochens import MLP
from stochens.likelihoods import (
    Binary,
    Categorical,
    Heteroscedastic,
    Homoscedastic,
    Laplace,
    Likelihood,
    MixtureDensity,
    Multilabel,
    NegativeBinomial,
    Ordinal,
    Poisson,
    Quantiles,
    SoftLabels,
    StudentT,
)

NAN = torch.nan
LEVELS = (0.1, 0.5, 0.8)


class Row(NamedTuple):
    like: Likelihood
    outputs: tuple[int, ...]  # of one example
    targets: Callable[[int, torch.Generator], Tensor]  # N of them, as a user has them
    log_prob: Callable[[Tensor, Tensor], Tensor]  # outputs, targets of `check_targets` -> [..., B]
    bad: tuple[tuple[Tensor, str], ...]  # targets, and what is said of them
    masked: Likelihood | None = None  # that takes NaN, or a label that is none
    hole: float = NAN  # a target that is missing
    net: Callable[[], nn.Module] | None = None  # x [N, 2] -> outputs; an MLP if not given


def uniform(*shape: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda n, g: 4 * torch.rand(n, *shape, generator=g, dtype=torch.float64) - 2


def integers(most: int, *shape: int) -> Callable[[int, torch.Generator], Tensor]:
    return lambda n, g: torch.randint(most, (n, *shape), generator=g)


def soft(n: int, g: torch.Generator) -> Tensor:
    return torch.rand(n, 3, generator=g, dtype=torch.float64).softmax(-1)


def halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    first, second = outputs.chunk(2, -1)
    return first, (second / 2).exp()


def labelled(logits: Tensor, y: Tensor) -> Tensor:
    """Classes last; places summed."""
    return d.Categorical(logits=logits).log_prob(y).reshape(*y.shape[:2], -1).sum(-1)


def ordered(outputs: Tensor, y: Tensor) -> Tensor:
    c = torch.cat([outputs[..., :1], nn.functional.softplus(outputs[..., 1:])], -1).cumsum(-1)
    zero = torch.zeros_like(c[..., :1])
    cdf = torch.cat([zero, c.sigmoid(), zero + 1], -1)
    return d.Categorical(probs=cdf.diff(dim=-1)).log_prob(y)


def mixed(outputs: Tensor, y: Tensor) -> Tensor:
    logits, loc, log_square = outputs.split([2, 4, 4], -1)
    loc, log_square = (t.unflatten(-1, (2, 2)) for t in (loc, log_square))
    parts = d.Independent(d.Normal(loc, (log_square / 2).exp()), 1)
    return d.MixtureSameFamily(d.Categorical(logits=logits), parts).log_prob(y)


def negative_binomial(outputs: Tensor, y: Tensor) -> Tensor:
    log_mean, log_r = outputs.chunk(2, -1)
    return d.NegativeBinomial(log_r.exp(), logits=log_mean - log_r).log_prob(y).sum(-1)


def pinballs(outputs: Tensor, y: Tensor) -> Tensor:
    """No density: minus the loss, quantile by quantile."""
    total = torch.zeros(y.shape[:-1], dtype=y.dtype)
    for k, level in enumerate(LEVELS):
        error = y - outputs[..., 2 * k : 2 * k + 2]
        total -= torch.where(error > 0, level * error, (level - 1) * error).sum(-1)
    return total


def on_places(*shape: int) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, torch.Size(shape).numel()), nn.Unflatten(1, shape)
    )


NUMBERS = (
    (torch.zeros(3, 2, 1), r"must be \[N\] or \[N, D\]"),
    (torch.tensor([0.0, NAN]), "must be finite; row 1 is .nan.*missing='mask' leaves NaN out"),
    (torch.tensor([0.0, torch.inf]), r"must be finite; row 1 is \[inf\]$"),
    (torch.zeros(2, dtype=torch.complex64), "must be real"),
)
COUNTS = (
    (torch.tensor([0.5, 1.0]), "counts must be whole numbers .*row 0"),
    (torch.tensor([1, -1]), "counts must be whole numbers .*row 1"),
    (torch.tensor([2**60]), "counts must be whole numbers from 0 to 2.53"),
    (torch.tensor([NAN]), "counts must be finite"),
)
LABELS = ((torch.zeros(3), "labels must be integers"),)

ROWS: dict[str, Row] = {
    "categorical": Row(
        Categorical(),
        (3,),
        integers(3),
        labelled,
        LABELS,
        Categorical(ignore_index=-1),
        hole=-1,
    ),
    "categorical, tokens": Row(
        Categorical(ignore_index=9),
        (4, 3),
        integers(3, 4),
        labelled,
        LABELS,
        Categorical(ignore_index=9),
        hole=9,
        net=on_places(4, 3),
    ),
    "categorical, images": Row(
        Categorical(ignore_index=255),
        (3, 2, 4),
        integers(3, 2, 4),
        lambda outputs, y: labelled(outputs.movedim(2, -1), y),
        LABELS,
        Categorical(ignore_index=255),
        hole=255,
        net=on_places(3, 2, 4),
    ),
    "binary": Row(
        Binary(),
        (1,),
        integers(2),
        lambda outputs, y: d.Bernoulli(logits=outputs.squeeze(-1)).log_prob(y.double()),
        (
            (torch.tensor([0, 2]), r"labels must be 0 or 1, .* got \[2.0\]"),
            (torch.tensor([0.5]), "labels must be 0 or 1"),
            (torch.tensor(1), "labels must be 0 or 1, one for each example"),
        ),
        Binary(ignore_index=-1),
        hole=-1,
    ),
    "binary, images": Row(
        Binary(),
        (1, 2, 3),
        integers(2, 2, 3),
        lambda outputs, y: (
            d.Bernoulli(logits=outputs.squeeze(2)).log_prob(y.double()).sum((-1, -2))
        ),
        ((torch.tensor([[[0, 1, 7]]]), "labels must be 0 or 1"),),
        Binary(ignore_index=-1),
        hole=-1,
        net=on_places(1, 2, 3),
    ),
    "multilabel": Row(
        Multilabel(),
        (3,),
        integers(2, 3),
        lambda outputs, y: d.Bernoulli(logits=outputs).log_prob(y).sum(-1),
        (
            (torch.tensor([0, 1]), r"labels must be \[N, L\].*use 'binary'"),
            (torch.tensor([[0.0, 0.5]]), "labels must be 0 or 1; row 0"),
            (torch.tensor([[0.0, NAN]]), r"row 0 .*; Multilabel\(missing='mask'\) leaves NaN out"),
        ),
        Multilabel(missing="mask"),
    ),
    "ordinal": Row(
        Ordinal(),
        (3,),
        integers(4),
        ordered,
        ((torch.tensor([0.0]), "integers .N. from 0 on"), (torch.zeros(2, 2).long(), "integers")),
    ),
    "soft-labels": Row(
        SoftLabels(),
        (3,),
        soft,
        lambda outputs, y: (y * outputs.log_softmax(-1)).sum(-1),
        (
            (torch.tensor([0, 1]), "probabilities .N, C., got torch.int64"),
            (torch.tensor([[0.5, 0.4]]), "sum to 1; row 0"),
            (torch.tensor([[1.5, -0.5]]), "sum to 1; row 0"),
            (torch.tensor([[NAN, 1.0]]), "sum to 1; row 0"),
        ),
    ),
    "gaussian": Row(
        Homoscedastic(0.3),
        (2,),
        uniform(2),
        lambda outputs, y: d.Normal(outputs, 0.3).log_prob(y).sum(-1),
        NUMBERS,
        Homoscedastic(0.3, missing="mask"),
    ),
    "heteroscedastic": Row(
        Heteroscedastic(),
        (4,),
        uniform(2),
        lambda outputs, y: d.Normal(*halves(outputs)).log_prob(y).sum(-1),
        NUMBERS,
        Heteroscedastic(missing="mask"),
    ),
    "student-t": Row(
        StudentT(df=9.0),
        (4,),
        uniform(2),
        lambda outputs, y: d.StudentT(9.0, *halves(outputs)).log_prob(y).sum(-1),
        NUMBERS,
        StudentT(df=9.0, missing="mask"),
    ),
    "student-t, scale given": Row(
        StudentT(df=9.0, scale=0.2),
        (2,),
        uniform(2),
        lambda outputs, y: d.StudentT(9.0, outputs, 0.2).log_prob(y).sum(-1),
        NUMBERS,
        StudentT(df=9.0, scale=0.2, missing="mask"),
    ),
    "laplace": Row(
        Laplace(),
        (4,),
        uniform(2),
        lambda outputs, y: d.Laplace(*halves(outputs)).log_prob(y).sum(-1),
        NUMBERS,
        Laplace(missing="mask"),
    ),
    "mixture": Row(
        MixtureDensity(components=2),
        (10,),
        uniform(2),
        mixed,
        NUMBERS,
        MixtureDensity(components=2, missing="mask"),
    ),
    "quantiles": Row(
        Quantiles(LEVELS), (6,), uniform(2), pinballs, NUMBERS, Quantiles(LEVELS, missing="mask")
    ),
    "poisson": Row(
        Poisson(),
        (2,),
        integers(6, 2),
        lambda outputs, y: d.Poisson(outputs.exp()).log_prob(y).sum(-1),
        COUNTS,
        Poisson(missing="mask"),
    ),
    "negative-binomial": Row(
        NegativeBinomial(),
        (4,),
        integers(6, 2),
        negative_binomial,
        COUNTS,
        NegativeBinomial(missing="mask"),
    ),
}


def network(row: Row) -> nn.Module:
    return MLP(2, 5, row.outputs[0]) if row.net is None else row.net()


def outputs_of(row: Row, *leading: int, seed: int = 0, **options: Any) -> Tensor:
    """Of the size of those of a network."""
    generator = torch.Generator().manual_seed(seed)
    shape = (*leading, *row.outputs)
    return 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64)
