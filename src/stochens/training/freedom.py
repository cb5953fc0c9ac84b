"""How much of the noise of its data a network has followed: its effective degrees of freedom.

A network with gamma degrees of freedom takes gamma of the N squared errors of its training data
away, so that a noise learned from what is left is too small by sqrt(1 - gamma / N).
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from stochens.data import Source
from stochens.likelihoods import Likelihood
from stochens.members import Params, forward
from stochens.randomness.seeds import seeded
from stochens.trees import Input, cat, form, split

MOST = 20_000_000  # elements of the Jacobian, 80 MB in float32
WIDEST = 3000  # of its rows or its columns: the eigenvalues of so many take seconds


def noise_too_small(
    net: nn.Module,
    member: Params,
    like: Likelihood,
    data: Source,
    precision: float,
    each: Mapping[str, float] | None = None,
) -> float | None:
    """The true noise over the learned one, about, for a member's parameters (no member axis), of a
    likelihood with `least_squares`.

        gamma = sum_i s_i / (s_i + lambda noise^2),   noise^2 = learned^2 N / (N - gamma),

    s_i the eigenvalues of J J', J [N, D] the derivative of the mean at each row (MacKay, 1992).
    With precisions of `each` parameter, lambda times those, J is divided by their roots.
    With one noise for each row, J is that of mean / noise. None: too large to look at. A DataLoader
    is read once more.

    >>> x = torch.linspace(-1, 1, 5).unsqueeze(1)
    >>> data = Source(x, x, 5)  # a line through 5 points: 5 - 2 squared errors are left
    >>> from stochens.likelihoods import Heteroscedastic
    >>> member = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    >>> noise_too_small(nn.Linear(1, 2), member, Heteroscedastic(), data, 1e-6)
    1.29...
    """
    columns = sum(p.numel() for p in member.values())
    targets = like.check_targets(data.y[:1]).shape[1]
    rows = data.size * targets
    if rows * columns > MOST or min(rows, columns) > WIDEST:
        return None
    x = data.x[: data.size] if data.loader is None else _read(data)
    if x is None:
        return None
    rows = len(x) * targets

    tensors, joined = split(x)

    def scaled(member: Params, row: Any, target: int) -> Tensor:
        """mean / noise at one row, as a function of what the mean depends on."""
        one = {name: p.unsqueeze(0) for name, p in member.items()}
        outputs = forward(net, one, joined(row).unsqueeze(0), engine="loop")  # [1, 1, C]
        mean, variance = like.distribution(outputs).moments()
        return (mean / variance.detach().sqrt())[0, 0, target]

    try:
        by_row = vmap(grad(scaled), (None, 0, None))
        parts = [by_row(member, tensors, target) for target in range(targets)]
    except RuntimeError:  # what vmap or grad cannot run
        return None
    scale = {name: 1.0 if each is None else each[name] ** -0.5 for name in member}
    jacobian = torch.cat(
        [torch.cat([scale[n] * p.flatten(1) for n, p in part.items()], 1) for part in parts]
    )
    if data.weights is not None:
        jacobian = jacobian * data.weights.sqrt().repeat(targets).unsqueeze(1)
    jacobian = jacobian * math.sqrt(data.examples / data.size)  # a row of weight w is w rows
    square = jacobian @ jacobian.T if rows <= columns else jacobian.T @ jacobian
    if not bool(square.isfinite().all()):
        return None
    s = torch.linalg.eigvalsh(square.double()).clamp_min(0)
    return math.sqrt(_ratio(s, precision, data.examples * targets))


def _read(data: Source) -> Input | None:
    """The inputs of one epoch of a loader, [N, ...]; None where it gives more or fewer than it said
    (other rows may come in the next), or they are no one tensor."""
    with seeded(0):  # a shuffle draws from torch's generator, which threads share
        blocks = [x.to(data.x.device) for x, _ in data.batches()]
    if sum(map(len, blocks)) != data.size or any(form(b) != form(data.x) for b in blocks):
        return None
    joined: Input = cat(blocks)
    return joined


def _ratio(s: Tensor, precision: float, examples: float) -> float:
    """noise^2 over the learned one, by its own equation."""
    ratio = 1.0
    for _ in range(50):
        gamma = float((s / (s + precision * ratio)).sum())
        ratio = examples / max(examples - gamma, 1e-3 * examples)
    return ratio
