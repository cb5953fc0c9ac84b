"""The steps of microcanonical Langevin dynamics on flat positions q [M, D], each member by itself.

A member moves at speed 1 in the coordinates z = q / scale, in the direction u, |u| = 1. With
g = dU/dz, e = -g / |g| and delta = h |g| / (D - 1), the gradient turns u (Robnik et al., 2023)

    u <- (u + e (sinh delta + (e.u) (cosh delta - 1))) / r,   r = cosh delta + (e.u) sinh delta

and the energy  U + (D - 1) log |p|,  which the exact motion keeps, changes by (D - 1) log r. A step
turns, moves by half, turns, moves by half and turns, with shares of h that leave the least error
(McLachlan, 1995): two gradients. After it, noise turns u so far that it is forgotten over the
length L (Robnik and Seljak, 2024):

    u <- (u + nu n) / |u + nu n|,   nu^2 = (exp(2 h / L) - 1) / D,   n ~ N(0, 1)

Time averages along the exact motion are those of exp(-U). What the steps get wrong shows in the
energy: its squared error a step and a dimension, v, is what the size of the steps is tuned to.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

TURN = 0.1931833275037836  # McLachlan 1995: the share of h in the first and the last turn
LARGE = 1000.0  # nats of error: such a step is no step, and the member stays where it was
FORGET = 1 - 2 / 101  # of what the size of steps is learned from, at each of them
TRUST = 1.5  # how far, as a power of h, an error may be from the wanted one and still count much
SHRINK = 0.8  # of a step that failed: the most that is tried after it
FIRST, SECOND, TINY = 0.9, 0.999, 1e-8  # Adam's own
LOOKS = 20  # of the power method, a gradient each, at the stiffest direction
REACH = 0.1  # of a step's share in one direction: how far apart the gradients of a look are

Slope = Callable[[Tensor], tuple[Tensor, Tensor]]  # q [M, D] -> U [M] float64, dU/dq [M, D]


class State(NamedTuple):
    """All members after a step."""

    q: Tensor  # [M, D]
    u: Tensor  # [M, D], of length 1
    g: Tensor  # [M, D], dU/dq
    energy: Tensor  # [M], float64, U
    scale: Tensor  # [M, D]
    mean: Tensor  # [M, D], of q while it is watched; of g while it descends
    square: Tensor  # [M, D], the sum of squares about it; of g likewise
    seen: Tensor  # [M], float64, what that mean weighs
    size: Tensor  # [M], float64, h, and the others below too
    most: Tensor  # [M], the largest h that is allowed
    ratio: Tensor  # [M], the running sum of weights times  (error / wanted)^2 / h^6
    weight: Tensor  # [M], that of weights
    length: Tensor  # [M], L
    errors: Tensor  # [M], the sum of squared errors since the last draw
    failed: Tensor  # [M], how many steps failed since then


def initial(q: Tensor, n: Tensor, sigma: float, slope: Slope) -> State:
    """At q [M, D], in the random direction n; sigma is the prior's standard deviation."""
    M, D = q.shape
    energy, g = slope(q)
    zero = torch.zeros(M, dtype=torch.float64, device=q.device)
    length = zero + sigma * math.sqrt(D)
    return State(
        q=q,
        u=unit(n),
        g=g,
        energy=energy,
        scale=torch.ones_like(q),
        mean=torch.zeros_like(q),
        square=torch.zeros_like(q),
        seen=zero,
        size=1e-3 * length,
        most=zero + torch.inf,
        ratio=zero.clone(),
        weight=zero.clone(),
        length=length,
        errors=zero.clone(),
        failed=zero.clone(),
    )


def unit(v: Tensor) -> Tensor:
    """Each row [M, D] at length 1."""
    length: Tensor = torch.linalg.vector_norm(v, dim=1, keepdim=True)
    return v / length


# One step -----------------------------------------------------------------------------------------


def turn(u: Tensor, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """u after a time h [M] in the field g [M, D], and (D - 1) log r [M], float64.

    Both are written in exp(-delta), which cannot overflow.
    """
    dims = u.shape[1] - 1
    size = torch.linalg.vector_norm(g, dim=1, keepdim=True)  # [M, 1]
    e = -g / size.clamp_min(torch.finfo(g.dtype).tiny)
    along = (e * u).sum(1, keepdim=True)
    delta = h.to(u).unsqueeze(1) * size / dims
    zeta = torch.exp(-delta)
    turned = unit(e * (1 - zeta) * (1 + zeta + along * (1 - zeta)) + 2 * zeta * u)
    # log r = delta + log((1 + e.u + (1 - e.u) zeta^2) / 2)
    cosine, delta = along.double().clamp(-1, 1), delta.double()
    inside = 0.5 * (1 + cosine + (1 - cosine) * torch.exp(-2 * delta))
    return turned, (dims * (delta + inside.log())).squeeze(1)


def flow(at: State, slope: Slope) -> tuple[State, Tensor]:
    """One step without its noise, and the error [M] that it makes in the energy."""
    h = at.size
    half = (0.5 * h).to(at.q).unsqueeze(1) * at.scale  # [M, D]
    u, first = turn(at.u, at.scale * at.g, TURN * h)
    q = at.q + half * u
    _, g = slope(q)
    u, second = turn(u, at.scale * g, (1 - 2 * TURN) * h)
    q = q + half * u
    energy, g = slope(q)
    u, third = turn(u, at.scale * g, TURN * h)
    error = energy - at.energy + first + second + third
    return at._replace(q=q, u=u, g=g, energy=energy), error


def noisy(at: State, n: Tensor) -> State:
    """u <- (u + nu n) / |u + nu n|"""
    nu = (torch.expm1(2 * at.size / at.length) / at.q.shape[1]).sqrt()
    return at._replace(u=unit(at.u + nu.to(at.u).unsqueeze(1) * n))


def move_members(at: State, n: Tensor, slope: Slope) -> tuple[State, Tensor]:
    """A whole step, and its error in the energy [M]: NaN where it failed, and the member stayed
    where it was but for its direction, which is turned back."""
    new, error = flow(at, slope)
    fine = error.abs() < LARGE  # NaN: no
    fine &= new.q.isfinite().all(1) & new.g.isfinite().all(1) & new.u.isfinite().all(1)
    back = at._replace(u=-at.u)
    after = State(*(pick(fine, b, a) for a, b in zip(back, new, strict=True)))
    after = after._replace(
        errors=at.errors + torch.where(fine, error.square(), 0.0), failed=at.failed + ~fine
    )
    return noisy(after, n), torch.where(fine, error, torch.nan)


def pick(rows: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """one [M, ...] in the rows [M] that are named, other elsewhere."""
    return other if one is other else torch.where(rows.view(-1, *[1] * (one.dim() - 1)), one, other)


def descend(at: State, step: int, rate: float, slope: Slope) -> State:
    """One step of Adam on U (Kingma and Ba, 2015), whose averages are in mean and square."""
    mean = FIRST * at.mean + (1 - FIRST) * at.g
    square = SECOND * at.square + (1 - SECOND) * at.g.square()
    size = (square / (1 - SECOND ** (step + 1))).sqrt() + TINY
    q = at.q - rate / (1 - FIRST ** (step + 1)) * mean / size
    energy, g = slope(q)
    return at._replace(q=q, g=g, energy=energy, mean=mean, square=square)


# What is learned ----------------------------------------------------------------------------------


def rounding(at: State) -> Tensor:
    """The variance that rounding leaves in a difference of energies, [M], float64."""
    return (0.5 * torch.finfo(at.q.dtype).eps * at.energy).square()


def adapt_size(at: State, before: State, error: Tensor, wanted: float) -> State:
    """h at which the squared error of a step is D v, v = `wanted`: it grows like h^6.

    A running average of  (error^2 / (D v)) / h^6,  in which errors that are far from the wanted one
    count less, since that law holds near it (Robnik et al., 2023). No step is made smaller for an
    error that is one of rounding.
    """
    h, failed = before.size, error.isnan()
    xi = error.square() / (wanted * at.q.shape[1] + 2 * rounding(before)) + 1e-8
    weight = torch.exp(-0.5 * (xi.log() / (6 * TRUST)).square())
    weight = torch.where(failed, 0.0, weight)
    ratio = FORGET * at.ratio + torch.where(failed, 0.0, weight * xi) / h.pow(6)
    total = FORGET * at.weight + weight
    most = torch.where(failed, SHRINK * h, at.most)
    size = torch.where(total > 0, (ratio / total).pow(-1 / 6), h)
    return at._replace(size=torch.minimum(size, most), most=most, ratio=ratio, weight=total)


def watch(at: State) -> State:
    """One more position in mean and square, weighed by the time it stands for (West, 1979)."""
    seen = at.seen + at.size
    share = (at.size / seen).to(at.q).unsqueeze(1)
    away = at.q - at.mean
    mean = at.mean + share * away
    weight = at.size.to(at.q).unsqueeze(1)
    return at._replace(seen=seen, mean=mean, square=at.square + weight * away * (at.q - mean))


def forget(at: State) -> State:
    """Nothing watched yet."""
    zero = torch.zeros_like(at.q)
    return at._replace(mean=zero, square=zero.clone(), seen=torch.zeros_like(at.seen))


def variances(at: State) -> Tensor:
    """Of q while it was watched, [M, D], float64."""
    return at.square.double() / at.seen.unsqueeze(1)


def precondition(at: State, variance: Tensor) -> State:
    """scale = sqrt(variance), with a floor at a thousandth of the largest, and L and h to match.

    In these coordinates all directions are of size 1, so that L = sqrt(D). h keeps the typical
    length of a step in q, and is learned again.
    """
    floor = 1e-6 * variance.amax(1, keepdim=True)
    scale = torch.maximum(variance, floor).sqrt()
    length = torch.full_like(at.length, math.sqrt(at.q.shape[1]))
    shrink = (scale.square().mean(1) / at.scale.double().square().mean(1)).sqrt()
    zero = torch.zeros_like(at.ratio)
    return at._replace(
        scale=scale.to(at.q),
        size=at.size / shrink,
        most=torch.full_like(at.most, torch.inf),
        ratio=zero,
        weight=zero.clone(),
        length=length,
    )


def stiffest(at: State, n: Tensor, slope: Slope) -> Tensor:
    """The direction v [M, D] in which U is most curved, in the coordinates of the steps.

    The power method, v <- A v / |A v|,  A v by the difference of two gradients. n [M, D] is where
    it begins.
    """
    reach = (REACH * at.size / math.sqrt(at.q.shape[1])).to(at.q).unsqueeze(1)
    v = unit(n)
    for _ in range(LOOKS):
        change = at.scale * (slope(at.q + reach * at.scale * v)[1] - at.g)
        length = torch.linalg.vector_norm(change, dim=1, keepdim=True)
        v = torch.where(length.isfinite() & (length > 0), change / length, v)
    return v


def virial_along(at: State, v: Tensor) -> Tensor:
    """(z - c) . v  dU/dz . v, [M], float64: 1 on average, for any fixed c and v."""
    away = ((at.q - at.mean).double() / at.scale * v).sum(1)
    return away * (at.scale.double() * at.g * v).sum(1)
