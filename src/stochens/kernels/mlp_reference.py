"""The plain torch twin of the MLP kernel: what its results are held against."""

import math
from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from stochens.kernels.mlp import ACTIVATIONS, Call, Likelihood, Options, check


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
            u = u * keep(p, u.shape[1:], layer=layer, members=members, seed=seed) / (1 - p)
        spread = call.weights[L + layer]
        if spread is not None:
            v = _affine(h.square(), spread, call.biases[L + layer]) + VARIANCE_FLOOR
            u = u + v.sqrt() * normal(u, layer=layer + GAUSSIAN_STREAM, members=members, seed=seed)
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


# Dropout bits: a 32-bit hash of the counter row * width + node, under a 64-bit key ---------------

WORD = 0xFFFFFFFF
KEYS = (0x9E3779B9, 0x85EBCA6B)


def keep(p: float, shape: Sequence[int], *, layer: int, members: Tensor, seed: int) -> Tensor:
    """z ~ Bernoulli(1 - p), [M, B, out] for shape (B, out): true where the hash >= p 2^32."""
    rows, width = shape
    first, second = (k[:, None] for k in _keys(seed, members, layer))  # [M, 1]
    counter = torch.arange(rows * width) & WORD
    bits = _avalanche(counter ^ first, second)  # [M, B * out]
    return (bits >= min(round(p * 2**32), WORD)).view(len(members), rows, width)


# Giles's inverse of erf (2012), highest power first, as in mlp.cpp
# fmt: off
CENTRE = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
          -0.00125372503, -0.00417768164, 0.246640727, 1.50140941)
TAIL = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
        -0.0076224613, 0.00943887047, 1.00167406, 2.83297682)
# fmt: on
GAUSSIAN_STREAM = 1 << 16  # added to the layer, for a key of its own
VARIANCE_FLOOR = 1e-12


def normal(like: Tensor, *, layer: int, members: Tensor, seed: int) -> Tensor:
    """eps ~ N(0, 1), of the shape [M, B, out] and dtype of `like`."""
    _, rows, width = like.shape
    first, second = (k[:, None] for k in _keys(seed, members, layer))
    bits = _avalanche(torch.arange(rows * width) & WORD ^ first, second)
    x = ((bits >> 9).to(like.dtype) + 0.5) * 2**-22 - 1
    w = -((1 - x) * (1 + x)).log()
    centre, tail = torch.zeros_like(w), torch.zeros_like(w)
    for a, b in zip(CENTRE, TAIL, strict=True):
        centre, tail = centre * (w - 2.5) + a, tail * (w.sqrt() - 3) + b
    return (torch.where(w < 5, centre, tail) * x * math.sqrt(2)).view(like.shape)


def _keys(seed: int, members: Tensor, layer: int) -> list[Tensor]:
    """Two 32-bit keys for each member, from the words of (seed, member, layer)."""
    words = (seed & WORD, seed >> 32 & WORD, members & WORD, members >> 32 & WORD, layer)
    keys = []
    for start in KEYS:
        key = torch.full_like(members, start)
        for word in words:
            key = _avalanche(key ^ word) + start & WORD
        keys.append(key)
    return keys


def _avalanche(x: Tensor, key: Tensor | int = 0) -> Tensor:
    """C. Wellons's lowbias32 of 32-bit words held in int64, with a key between its two rounds."""
    x = x ^ x >> 16
    x = x * 0x7FEB352D & WORD
    x = x ^ key
    x = x ^ x >> 15
    x = x * 0x846CA68B & WORD
    return x ^ x >> 16
