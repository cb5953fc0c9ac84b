"""The plain torch twin of the MLP kernel: what its results are held against."""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from stochens.kernels.mlp import ACTIVATIONS, Call, Likelihood, Options, check
from stochens.randomness.hashed import wrapped
from stochens.randomness.noise import below, hashed_words, normal_numbers


def nll_reference(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor | None] | None,
    x: Tensor,
    y: Tensor,
    **options: Unpack[Options],
) -> Tensor:
    """`nll` in plain torch, with the same dropout masks."""
    call = check(weights, biases, x, y, **options)
    M = len(call.members)
    rows = slice(None) if call.rows is None else call.rows
    h = forward_reference(call, options["activation"])  # [M, B, out]
    y = y[rows].expand(M, *h.shape[1:2], *y.shape[1:])  # [M, B] or [M, B, D]
    return _nll(h, y, options["likelihood"]).mean(1)


def forward_reference(call: Call, activation: Sequence[str]) -> Tensor:
    """The network's outputs [M, B, out] in plain torch."""
    rows = slice(None) if call.rows is None else call.rows
    h = call.x[rows].expand(len(call.members), -1, -1)  # [M, B, in]
    L = len(call.dropout)
    members, seed = call.members, call.seed
    for layer, p in enumerate(call.dropout):
        u = _affine(h, call.weights[layer], call.biases[layer])  # [M, B, out]
        if p > 0:
            site = call.sites[layer]
            u = u * keep(p, u.shape[1:], site=site, members=members, seed=seed) / (1 - p)
        spread = call.weights[L + layer]
        if spread is not None:
            v = _affine(h.square(), spread, call.biases[L + layer]) + VARIANCE_FLOOR
            site = call.sites[L + layer]
            u = u + v.sqrt() * normal(u, site=site, members=members, seed=seed)
        h = ACTIVATIONS[activation[layer]](u)
    return h


def _affine(h: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
    assert w is not None
    return h @ w.mT if b is None else h @ w.mT + b[:, None]


def _nll(h: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """-log p(y | h), [M, B]"""
    if likelihood == "categorical":
        return -h.log_softmax(-1).gather(-1, y[..., None])[..., 0]
    if likelihood == "gaussian-heteroscedastic":
        mean, log_variance = h.chunk(2, -1)
    else:
        mean, log_variance = h, torch.full_like(h, 2 * math.log(likelihood[1]))
    square = (mean - y) ** 2 * (-log_variance).exp()
    return 0.5 * (square + log_variance + math.log(2 * math.pi)).sum(-1)


VARIANCE_FLOOR = 1e-12


def keep(p: float, shape: Sequence[int], *, site: int, members: Tensor, seed: int) -> Tensor:
    """z ~ Bernoulli(1 - p), [M, B, out] for shape (B, out)."""
    drawn = hashed_words(members, torch.tensor([wrapped(seed)]), site, tuple(shape))
    return drawn < below(1 - p)


def normal(like: Tensor, *, site: int, members: Tensor, seed: int) -> Tensor:
    """eps ~ N(0, 1), of the shape [M, B, out] and dtype of `like`."""
    drawn = hashed_words(members, torch.tensor([wrapped(seed)]), site, like.shape[1:])
    return normal_numbers(drawn, like.dtype)
