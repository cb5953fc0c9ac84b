"""Where rising functions cross 0, many at once: quantiles of distributions that know their cdf."""

from collections.abc import Callable

import torch
from torch import Tensor

STEPS = 120  # bisection alone would need 60 or so; each other step is at least as good in the end

Function = Callable[[Tensor], Tensor]


def first_whole(g: Function, low: Tensor, high: Tensor) -> Tensor:
    """The smallest whole number y with g(y) >= 0, for rising g with g(low) < 0 <= g(high), by
    bisection.

    >>> first_whole(lambda y: y - 2.5, torch.tensor([-7.2]), torch.tensor([9.5]))
    tensor([3.])
    """
    low, high = low.floor(), high.ceil()
    for _ in range(STEPS):
        if not bool((high - low > 1).any()):
            break
        middle = ((low + high) / 2).floor()
        up = g(middle) >= 0
        low, high = torch.where(up, low, middle), torch.where(up, middle, high)
    return high


def crossing(g: Function, low: Tensor, high: Tensor) -> Tensor:
    """y with g(y) = 0, for rising g with g(low) < 0 <= g(high), to the last bits: the method of
    Chandrupatla (1997), which takes inverse quadratic steps where they are safe and halves the
    bracket where not. At a jump it is the upper end.

    >>> root = crossing(lambda y: y**3 - 8, *torch.tensor([[0.0], [9.0]]).double())
    >>> round(root.item(), 12)
    2.0
    """
    kind = torch.finfo(low.dtype)
    a, b, c = high, low, high  # the last point, the other end of its bracket, and the one before
    fa, fb = g(high), g(low)
    fc, t = fa, torch.full_like(low, 0.5)
    done = ~((fa > 0) & (fb < 0))  # at the end already, or no number
    for _ in range(STEPS):
        if bool(done.all()):
            break
        x = a + t * (b - a)
        fx = g(x)
        same = (fx >= 0) == (fa >= 0)
        points = (torch.where(same, a, b), torch.where(same, b, a), x)
        values = (torch.where(same, fa, fb), torch.where(same, fb, fa), fx)
        c, b, a = (torch.where(done, *pair) for pair in zip((c, b, a), points, strict=True))
        fc, fb, fa = (torch.where(done, *pair) for pair in zip((fc, fb, fa), values, strict=True))
        nearest = 2 * kind.eps * torch.where(fa.abs() < fb.abs(), a, b).abs() + kind.tiny
        done = done | (fa == 0) | ((b - a).abs() <= 2 * nearest)
        xi, phi = (a - b) / (c - b), (fa - fb) / (fc - fb)
        safe = (phi.square() < xi) & ((1 - phi).square() < 1 - xi)
        first = fa / (fb - fa) * fc / (fb - fc)
        second = (c - a) / (b - a) * fa / (fc - fa) * fb / (fc - fb)
        least = (nearest / (b - a).abs()).clamp_max(0.5)
        t = torch.where(safe, first + second, 0.5).clamp(least, 1 - least)
    return torch.where(fa >= 0, a, b).where(fa == fa, high)
