"""The KL divergence of a stochastic ensemble from the prior (equations 4, 5 and 8).

q is a uniform mixture over K members, each a product over nodes of small mixtures of Gaussians.
Every layer states its mixtures; all the terms below are functions of those.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params, flatten, forward, forward_each, size
from stochens.methods import Mixture, stochastic_layers
from stochens.prior import Centred
from stochens.trees import Input

SIGMA = 2.0**-23  # "machine precision" sigma: the spacing of float32 numbers at 1
BLOCK = 1 << 24  # elements of a pairwise block of the repulsive bound, 64 MiB in float32


class KL(NamedTuple):
    """KL(q || prior) for the whole ensemble, term by term, in nats."""

    constant: float
    l2: float
    ensembling: float
    stochasticity: float
    repulsive: float  # an upper bound

    @property
    def total(self) -> float:
        return sum(self)


class Outputs(Protocol):
    """Whatever runs all members: a program (stochens.program)."""

    def __call__(self, params: Params, x: Input, noise: Any) -> Tensor:
        """x [B, ...] of all members -> [M, B, C]."""

    def each(self, params: Params, x: Input, noise: Any) -> Tensor:
        """x [M, B, ...] -> [M, B, C]."""


class MeanNLL(Protocol):
    """Of each member on its rows, [M]; `noise` is what `Outputs` takes."""

    def __call__(
        self, params: Params, x: Input, y: Tensor, rows: Tensor | None, noise: Any = None
    ) -> Tensor: ...


def mean_nll(
    net: nn.Module,
    likelihood: Likelihood,
    *,
    engine: Engine,
    bf16: bool = False,
    compiled: bool = False,
    check: bool = False,
    weights: Tensor | None = None,
    program: Outputs | None = None,
) -> MeanNLL:
    """A function (params, x [N, ...], y [N, ...], rows [M, B]) -> mean NLL of each member on its
    rows, [M]; rows None: on all of the data.

    bf16: the network alone, on CUDA. compiled: by torch.compile. check: targets come unseen, and
    are held against the outputs each time. weights [N]: of each row, of mean 1. program: what runs
    the members, in the precision that it has; None: the engine.
    """

    def nll(outputs: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        if weights is None:  # a likelihood of the user's own need not know of weights
            return likelihood.nll(outputs, y)
        return likelihood.nll(outputs, y, weights if rows is None else weights[rows])

    def run(params: Params, x: Any, rows: Tensor | None, noise: Any) -> Tensor:
        if program is not None:
            return (
                program(params, x, noise) if rows is None else program.each(params, x[rows], noise)
            )
        with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
            if rows is None:
                return forward(net, params, x, engine=engine)  # [M, N, C]
            return forward_each(net, params, x[rows], engine=engine)  # [M, B, C]

    def mean(params: Params, x: Input, y: Tensor, rows: Tensor | None, noise: Any = None) -> Tensor:
        outputs = run(params, x, rows, noise)
        if rows is not None:
            return nll(outputs, y[rows], rows)
        if check:
            likelihood.check_outputs(outputs[0], y)
        return nll(outputs, y.expand(size(params), *y.shape), None)

    compiled_mean: MeanNLL = torch.compile(mean, dynamic=False) if compiled else mean
    return compiled_mean


def mixtures(net: nn.Module, params: Params) -> list[Mixture]:
    """Every layer's mixture; parameters without noise are one node with one component."""
    layers = stochastic_layers(net)
    found: list[Mixture] = []
    owned: set[str] = set()
    for path, layer in layers.items():
        prefix = f"{path}." if path else ""
        omega = {n: params[prefix + n] for n in layer.owned() if prefix + n in params}
        owned |= {prefix + name for name in omega}
        found += layer.mixtures(omega) if omega else []
    rest = [p.reshape(len(p), 1, -1) for name, p in params.items() if name not in owned]
    return [*found, *(Mixture((1.0,), (block,)) for block in rest)]


class NodePrior(NamedTuple):
    """N(mean, 1 / precision) for each number of a Mixture, laid out as that has them."""

    precision: Tensor  # [1, N, D]
    mean: Tensor | None  # [1 or M, N, D]; None: 0


# of all parameters, N(0, 1 / precision); or one for each mixture
PriorOf = float | Sequence[NodePrior]


def node_priors(net: nn.Module, prior: Centred, params: Params) -> list[NodePrior]:
    """The prior laid out as `mixtures` lays out parameters [M, ...] like these.

    A layer lays parameters out as the means of its first component, which are omega itself, so it
    does so with whatever stands in omega's place.
    """
    _refuse_other_means(net, params)
    first = {name: p[:1].detach() for name, p in params.items()}
    precision = {n: torch.full_like(p, prior.precision.get(n, 1.0)) for n, p in first.items()}
    precisions = [part.means[0] for part in mixtures(net, precision)]
    if not prior.mean:
        return [NodePrior(each, None) for each in precisions]
    rows = max(map(len, prior.mean.values()))
    mean = {
        name: prior.mean.get(name, torch.zeros_like(p)).to(p).expand(rows, *p.shape[1:])
        for name, p in first.items()
    }
    means = [part.means[0] for part in mixtures(net, mean)]
    return [NodePrior(a, b) for a, b in zip(precisions, means, strict=True)]


def _refuse_other_means(net: nn.Module, params: Params) -> None:
    """A method of one's own may lay something else than omega out first. (Ours do not.)"""
    for path, layer in stochastic_layers(net).items():
        if type(layer).__module__.startswith("stochens."):
            continue
        prefix, at, total = f"{path}." if path else "", 1, 0
        numbered: Params = {}
        for n in layer.owned():
            if (p := params.get(prefix + n)) is not None:
                ids = torch.arange(at, at + p[0].numel(), dtype=torch.float64, device=p.device)
                numbered[n] = ids.view(1, *p.shape[1:])
                at += p[0].numel()
        seen = [part.means[0].flatten() for part in layer.mixtures(numbered)] if numbered else []
        total = sum(map(len, seen))
        found = set(torch.cat(seen).tolist()) if seen else set()
        if len(found) < total or not found <= set(map(float, range(1, at))):
            raise InputError(
                f"{type(layer).__name__} of {path!r} has another first component than omega in its "
                "mixtures, so that a prior with a mean, a scale or layers cannot be laid out as it "
                "lays out parameters; let mixtures begin with omega, or give a precision alone"
            )


def l2(parts: list[Mixture], prior: PriorOf) -> Tensor:
    """1/2 sum_n sum_i p_i sum_d lambda_d (omega_i,n,d - mu_n,d)^2, for each member: [M]."""
    if isinstance(prior, (int, float)):
        return (
            0.5
            * prior
            * _sum(
                p * mean.square().sum((1, 2))
                for part in parts
                for p, mean in zip(part.weights, part.means, strict=True)
            )
        )
    return 0.5 * _sum(
        p * (own.precision * _from(mean, own.mean).square()).sum((1, 2))
        for part, own in zip(parts, prior, strict=True)
        for p, mean in zip(part.weights, part.means, strict=True)
    )


def _from(omega: Tensor, mean: Tensor | None) -> Tensor:
    return omega if mean is None else omega - mean


def constant(parts: list[Mixture], prior: PriorOf, sigma: float = SIGMA) -> Tensor:
    """1/2 sum_d (lambda_d sigma_d^2 - log sigma_d^2 - 1 - log lambda_d), for each member: [M].

    Constant where sigma is; a force on sigma where a method learns it.
    """

    def terms(part: Mixture, precision: Tensor | float) -> Tensor:
        s = part.sigma if part.sigma is not None else torch.full_like(part.means[0], sigma)
        log = precision.log() if isinstance(precision, Tensor) else math.log(precision)
        return (precision * s.square() - 2 * s.log() - 1 - log).sum((1, 2))

    if isinstance(prior, (int, float)):
        return 0.5 * _sum(terms(part, prior) for part in parts)
    return 0.5 * _sum(terms(part, own.precision) for part, own in zip(parts, prior, strict=True))


def sigma_terms(variance: Params, precision: dict[str, float]) -> Tensor:
    """Likewise of Gaussians over the parameters themselves, with variances [M, ...]: [M]."""
    terms = (
        (precision[name] * v - v.log() - 1 - math.log(precision[name])).flatten(1).sum(1)
        for name, each in variance.items()
        for v in (each.double(),)
    )
    return 0.5 * _sum(terms)


def stochasticity(parts: list[Mixture]) -> float:
    """sum_n sum_i p_i log p_i: what noise takes off the KL, the same for every member."""
    return sum(
        part.means[0].shape[1] * sum(p * math.log(p) for p in part.weights if p > 0)
        for part in parts
    )


def repulsive_bound(parts: list[Mixture], sigma: float = SIGMA) -> Tensor:
    """RF <= (1/K) sum_{k,k'} prod_n S_n(k, k') - 1, a scalar, with

    S_n(k, k') = sum_{i,j} sqrt(p_i p_j) exp(-||omega_i,n,k - omega_j,n,k'||^2 / (8 sigma^2)).

    It follows from log(1 + x) <= sqrt(x); the exponential is the overlap integral of the square
    roots of two Gaussians, which is how unequal sigmas enter too. Computed in log space.
    """
    log_overlap = _sum(block for part in parts for block in _log_overlaps(part, sigma))  # [K, K]
    k = len(log_overlap)
    diagonal = log_overlap.diagonal()
    off = log_overlap.masked_fill(
        torch.eye(k, dtype=torch.bool, device=log_overlap.device), -math.inf
    )
    return (torch.expm1(diagonal).sum() + off.exp().sum()) / k  # the -1 sits in expm1, exactly


def _log_overlaps(part: Mixture, sigma: float) -> Iterator[Tensor]:
    """sum_n log S_n(k, k') over blocks of nodes, each [K, K]."""
    k, nodes, dim = part.means[0].shape
    step = max(1, BLOCK // (k * k * (dim if part.sigma is not None else 1)))
    for first in range(0, nodes, step):
        block = slice(first, first + step)
        pairs = [
            0.5 * math.log(p * q)
            + _log_affinity(a[:, block], b[:, block], _cut(part.sigma, block), sigma)
            for p, a in zip(part.weights, part.means, strict=True)
            for q, b in zip(part.weights, part.means, strict=True)
            if p > 0 and q > 0
        ]
        yield torch.stack(pairs).logsumexp(0).sum(0)  # [pairs, N, K, K] -> [K, K]


def _cut(sigma: Tensor | None, block: slice) -> Tensor | None:
    return None if sigma is None else sigma[:, block]


def _log_affinity(a: Tensor, b: Tensor, s: Tensor | None, sigma: float) -> Tensor:
    """log of the integral of sqrt(N(a_k, s_k^2) N(b_k', s_k'^2)): [K, N, D] -> [N, K, K]."""
    if s is None:
        a, b = a.transpose(0, 1).contiguous(), b.transpose(0, 1).contiguous()  # [N, K, D]
        # The plain form of cdist: the fast one cancels, and 8 sigma^2 may be tiny.
        distance = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
        return -distance.square() / (8 * sigma**2)
    squares = s.square()
    total = squares.unsqueeze(1) + squares.unsqueeze(0)  # [K, K, N, D]
    log_norm = 0.5 * (2 * s.unsqueeze(1) * s.unsqueeze(0) / total).log()
    gap = (a.unsqueeze(1) - b.unsqueeze(0)).square() / (4 * total)
    return (log_norm - gap).sum(-1).movedim(-1, 0)


def penalty(net: nn.Module, params: Params, prior: float | Centred) -> Tensor:
    """The part of the KL that training moves, without repulsion, for each member: [M].

    L2, and the terms of sigma in the layers where it is learned or finite.
    """
    own = prior if isinstance(prior, (int, float)) else node_priors(net, prior, params)
    return _penalty(mixtures(net, params), own)


def _penalty(parts: list[Mixture], prior: PriorOf) -> Tensor:
    finite = [k for k, part in enumerate(parts) if part.sigma is not None]
    if not finite:
        return l2(parts, prior)
    of_finite = prior if isinstance(prior, (int, float)) else [prior[k] for k in finite]
    return l2(parts, prior) + constant([parts[k] for k in finite], of_finite)


class Penalty(NamedTuple):
    """`penalty` of one network, as training needs it."""

    of: Callable[[Params], Tensor]  # of parameters [M, ...]: [M]
    # Where no sigma is finite the penalty is sum_i slope_i ||p_i - mu_i||^2 / 2 + constant, so that
    # its gradient is slope_i (p_i - mu_i): an optimiser's weight decay, which costs nothing, and a
    # constant. None: autograd has to find it.
    slopes: dict[str, float] | None
    means: Params | None = None  # mu_i, [1 or M, ...], where it is not 0


def penalty_for(net: nn.Module, params: Params, prior: float | Centred) -> Penalty:
    """`penalty` of this network for parameters [M, ...] like these."""
    own: PriorOf
    if isinstance(prior, (int, float)):
        own, means = prior, Params()
    else:
        prior = prior.to(params)
        own, means = node_priors(net, prior, params), prior.mean

    def by_autograd(params: Params) -> Tensor:
        return _penalty(mixtures(net, params), own)

    ones = {name: torch.ones_like(p[:1]).requires_grad_() for name, p in params.items()}
    parts = mixtures(net, ones)
    if any(part.sigma is not None for part in parts):
        return Penalty(by_autograd, None)
    at_zero = own if isinstance(own, (int, float)) else [each._replace(mean=None) for each in own]
    found = torch.autograd.grad(l2(parts, at_zero).sum(), list(ones.values()))
    slopes = {name: float(slope.flatten()[0]) for name, slope in zip(ones, found, strict=True)}
    if any(not bool((s == slopes[name]).all()) for name, s in zip(ones, found, strict=True)):
        return Penalty(by_autograd, None)
    rest: Tensor | float = 0.0
    if means and not isinstance(own, (int, float)):
        if not _is_centred(net, own, ones, slopes, means):
            return Penalty(by_autograd, None)
        rows = max(map(len, means.values()))
        at_mean = {
            name: means.get(name, torch.zeros_like(p)).expand(rows, *p.shape[1:])
            for name, p in ones.items()
        }
        with torch.no_grad():
            rest = l2(mixtures(net, at_mean), own)  # [1 or M], of the components that are dropped
    if sum(p.numel() for p in params.values()) > ALONE_FROM:
        return Penalty(
            lambda params: 0.5 * _weighted_squares(params, slopes, means) + rest, slopes, means
        )
    weights = 0.5 * torch.cat([slope.flatten() for slope in found])  # [D]

    def squares(params: Params) -> Tensor:
        each = {name: _from(params[name], means.get(name)) for name in slopes}
        return (weights * flatten(each).square()).sum(1) + rest  # [M, D] -> [M]

    return Penalty(squares, slopes, means)


def _is_centred(
    net: nn.Module,
    own: Sequence[NodePrior],
    ones: Params,
    slopes: dict[str, float],
    means: Params,
) -> bool:
    """Whether the gradient is slope (p - mu), which it need not be by a method of one's own."""
    one = [each._replace(mean=None if each.mean is None else each.mean[:1]) for each in own]
    found = torch.autograd.grad(l2(mixtures(net, ones), one).sum(), list(ones.values()))
    for (name, p), g in zip(ones.items(), found, strict=True):
        away = _from(p.detach(), means[name][:1] if name in means else None)
        size = slopes[name] * (1 + float((away - p.detach()).abs().max()))
        if not bool(((g - slopes[name] * away).abs() <= 1e-4 * size).all()):
            return False
    return True


# Numbers from which on parameters are squared one by one. Fewer are copied side by side first: that
# is one operation for all of them, where a deep network has hundreds. Of a large network those
# that are below SMALL numbers of a member are: biases and norms are most of its parameters.
ALONE_FROM = 1 << 20
SMALL = 1 << 14


def _weighted_squares(params: Params, slopes: dict[str, float], means: Params) -> Tensor:
    """sum_i slope_i ||p_i - mu_i||^2 of each member, [M]."""
    away = {name: _from(params[name], means.get(name)).flatten(1) for name in slopes}
    terms = []
    small: dict[float, list[Tensor]] = {}
    for name, each in away.items():
        if each.shape[1] < SMALL:
            small.setdefault(slopes[name], []).append(each)
        else:
            terms.append(slopes[name] * torch.linalg.vector_norm(each, dim=1).square())
    for slope, those in small.items():
        terms.append(slope * torch.linalg.vector_norm(torch.cat(those, 1), dim=1).square())
    return torch.stack(terms).sum(0)


def kl(
    net: nn.Module,
    params: Params,
    prior: float | Centred,
    *,
    sigma: float = SIGMA,
    variance: Params | None = None,
) -> KL:
    """Every term of the ensemble's KL to the prior, N(0, 1 / prior) where it is a number, in
    float64.

    variance: of a Gaussian around each parameter, [M, ...], as natural gradients learn it. It is of
    omega, and so is the prior that it is held against: the one with the L2 of the method.

    Where each member has a prior of its own, it is the KL of (member, theta): the mean over members
    of KL(q_k || prior_k). What mixing the members takes off is 0 then, as is the repulsive term.
    """
    with torch.no_grad():
        doubled = {name: p.detach().double() for name, p in params.items()}
        parts, apart = mixtures(net, doubled), False
        own: PriorOf
        if isinstance(prior, (int, float)):
            own = prior
        else:
            own, apart = node_priors(net, prior.to(doubled), doubled), prior.differs
        finite = constant(parts, own, sigma)
        if variance is not None:
            with torch.enable_grad():
                slopes = penalty_for(net, doubled, prior).slopes
            assert slopes is not None  # such a network is refused before training
            finite = sigma_terms(variance, slopes)
        return KL(
            constant=float(finite.mean()),
            l2=float(l2(parts, own).mean()),
            ensembling=0.0 if apart else -math.log(size(params)),
            stochasticity=stochasticity(parts),
            repulsive=0.0 if apart else float(repulsive_bound(parts, sigma)),
        )


def _sum(terms: Iterator[Tensor]) -> Tensor:
    total = next(terms)
    for term in terms:
        total = total + term
    return total
