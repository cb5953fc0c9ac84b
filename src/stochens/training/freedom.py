"""How much of the noise of its data a network has followed: its effective degrees of freedom.

A network with gamma degrees of freedom takes gamma of the N squared errors of its training data
away, so that a noise learned from what is left is too small by sqrt(1 - gamma / N).
"""

import math
from collections.abc import Callable, Mapping
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
LEAST = 20  # rows, of which fewer say nothing of all
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
    With one noise for each row, J is that of mean / noise. None: too large to look at
    (`noise_at_most` is for those). A DataLoader is read once more.

    >>> x = torch.linspace(-1, 1, 5).unsqueeze(1)
    >>> data = Source(x, x, 5)  # a line through 5 points: 5 - 2 squared errors are left
    >>> from stochens.likelihoods import Heteroscedastic
    >>> member = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    >>> noise_too_small(nn.Linear(1, 2), member, Heteroscedastic(), data, 1e-6)
    1.29...
    """
    targets = like.check_targets(data.y[:1]).shape[1]
    if data.size > _rows_that_fit(member, targets):
        return None
    x = data.x[: data.size] if data.loader is None else _read(data)
    if x is None:
        return None
    jacobian = _jacobian(net, member, like, x, data, targets, each)
    s = None if jacobian is None else _eigenvalues(jacobian)
    if s is None:
        return None
    return _factor(lambda shrunk: _gamma(s, shrunk), precision, data.examples * targets)


def noise_at_most(
    net: nn.Module,
    member: Params,
    like: Likelihood,
    data: Source,
    precision: float,
    each: Mapping[str, float] | None = None,
) -> tuple[float, int]:
    """Likewise at most, where all rows are too many to look at; and how many were looked at.

    A row takes less of its noise for itself the more rows there are. So, on average over the choice
    of n of the N rows and h of those,

        gamma_N <= gamma_n + (N - n) (gamma_n - gamma_h) / (n - h),   gamma_N <= D.

    0 rows: D alone says it, since nothing else can. Of a DataLoader they are those of its first
    batch.

    >>> x = torch.linspace(-1, 1, 400).unsqueeze(1)
    >>> from stochens.likelihoods import Heteroscedastic
    >>> member = {"weight": torch.zeros(2, 1), "bias": torch.zeros(2)}
    >>> noise_at_most(nn.Linear(1, 2), member, Heteroscedastic(), Source(x, x, 400), 1e-6)
    (1.00..., 400)
    """
    targets = like.check_targets(data.y[:1]).shape[1]
    columns = float(sum(p.numel() for p in member.values()))
    have = len(data.x) if data.loader is not None else data.size
    count = min(have, _rows_that_fit(member, targets))
    at_most = _factor(lambda _: columns, precision, data.examples * targets), 0
    if count < LEAST:
        return at_most
    rows = torch.arange(count, device=data.x.device) * have // count  # evenly spaced
    some = data._replace(weights=None if data.weights is None else data.weights[rows])
    jacobian = _jacobian(net, member, like, data.x[rows], some, targets, each)
    if jacobian is None:
        return at_most
    half = jacobian.unflatten(0, (targets, count))[:, ::2]  # [targets, h, D]
    s, of_half = _eigenvalues(jacobian), _eigenvalues(half.flatten(0, 1))
    if s is None or of_half is None:
        return at_most
    further = (data.size - count) / (count - half.shape[1])

    def gamma(shrunk: float) -> float:
        found = _gamma(s, shrunk)
        grown: float = found + further * max(found - _gamma(of_half, shrunk), 0.0)
        return min(grown, columns)

    return _factor(gamma, precision, data.examples * targets), count


def _rows_that_fit(member: Params, targets: int) -> int:
    columns = sum(p.numel() for p in member.values())
    most = MOST // (columns * targets)
    return most if columns <= WIDEST else min(most, WIDEST // targets)


def _jacobian(
    net: nn.Module,
    member: Params,
    like: Likelihood,
    x: Input,
    data: Source,
    targets: int,
    each: Mapping[str, float] | None,
) -> Tensor | None:
    """J [targets * N, D] at x [N, ...], target after target, with the weights that rows and
    parameters have; None where it cannot be computed."""
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
    jacobian: Tensor = torch.cat(
        [torch.cat([scale[n] * p.flatten(1) for n, p in part.items()], 1) for part in parts]
    )
    if data.weights is not None:
        jacobian = jacobian * data.weights.sqrt().repeat(targets).unsqueeze(1)
    return jacobian * math.sqrt(data.examples / data.size)  # a row of weight w is w rows


def _eigenvalues(jacobian: Tensor) -> Tensor | None:
    """Of J J', those that are not 0 for all J of this shape."""
    rows, columns = jacobian.shape
    square = jacobian @ jacobian.T if rows <= columns else jacobian.T @ jacobian
    if not bool(square.isfinite().all()):
        return None
    found: Tensor = torch.linalg.eigvalsh(square.double()).clamp_min(0)
    return found


def _gamma(s: Tensor, shrunk: float) -> float:
    return float((s / (s + shrunk)).sum())


def _factor(gamma: Callable[[float], float], precision: float, examples: float) -> float:
    """The noise over the learned one, by its own equation."""
    ratio = 1.0
    for _ in range(50):
        ratio = examples / max(examples - gamma(precision * ratio), 1e-3 * examples)
    return math.sqrt(ratio)


def _read(data: Source) -> Input | None:
    """The inputs of one epoch of a loader, [N, ...]; None where it gives more or fewer than it said
    (other rows may come in the next), or they are no one tensor."""
    with seeded(0):  # a shuffle draws from torch's generator, which threads share
        blocks = [x.to(data.x.device) for x, _ in data.batches()]
    if sum(map(len, blocks)) != data.size or any(form(b) != form(data.x) for b in blocks):
        return None
    joined: Input = cat(blocks)
    return joined
