"""Whether natural gradients have arrived: how far N(m, sigma^2) of each member is from its optimum.

A training that is too short, or whose rate is too small, leaves sigmas that mean little, and
nothing in its loss need show it. What is measured, at draws that no step has seen, is what the
bound on the evidence could still gain.
"""

import itertools
import math
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import TrainingAdvice, outside
from stochens.training.natural import LAST, NaturalGradient, Term

SURE = 3.0  # standard errors that are taken off
CAPS = (math.inf, 1e6, 1e4, 100.0, 10.0, 1.0)  # nats a parameter that one draw may gain, in turn
NEWTON = 6  # steps of conjugate gradients towards the optimum
BENDS = 4  # batches whose curvature they take
ASIDE = 0.1  # sigmas of each parameter that a curvature is measured over, or one of them all
TINY = 1e-30
LENGTHS = (1 / 64, 1 / 16, 1 / 4, 1.0, 4.0)  # of the way that are tried
HOME = (0.5, 1.0)  # of the way to the prior's mean
WIDTHS = (0.1, 10.0)  # of sigma^2, that are tried at most
NARROWER = (0.5, 0.1)  # of all sigmas: where draws have a long tail, their curvatures say little
FAR = 1.0  # sigmas from the optimum that a training may leave
LEAST, MOST, SHARE = 16, 256, 0.01  # batches that are looked at: a share of the steps
DRAWS = 16  # at least

Weighed = tuple[float, Any]  # a batch, and what it counts beside the others


def how_many(steps: int) -> int:
    """Batches that tell whether a training of so many steps has arrived. Each is passed some eight
    times, so that the look is a tenth of the training, or some hundred passes.

    >>> how_many(100), how_many(10_000), how_many(10**6)
    (16, 100, 256)
    """
    return min(MOST, max(LEAST, round(SHARE * steps)))


class Looked(NamedTuple):
    number: int  # of its draw
    share: float
    batch: Any


class Place(NamedTuple):
    m: Tensor  # [M D]
    sigma: Tensor


class _Look:
    """Gradients and values at draws of the check. Each batch has a draw of its own, and its mirror
    image: the two noises cancel but for what of the NLL is not quadratic."""

    def __init__(self, optimizer: NaturalGradient, term: Term) -> None:
        self.optimizer, self.term, self.lay = optimizer, term, optimizer.layout
        self.here = Place(optimizer.mean, optimizer.sigma())

    def draws(self, one: Looked, at: Place) -> tuple[Tensor, Tensor, Tensor]:
        eps = self.optimizer.normal(LAST - one.number)
        moved = at.sigma * eps
        return eps, at.m + moved, at.m - moved

    def slope(self, batches: Sequence[Looked], away: float | Tensor = 0.0) -> tuple[Tensor, Tensor]:
        """z = sigma N (g + delta (m - mu)) at m + sigma * away, the mean over batches, and the
        curvature in units of sigma: sigma eps / 2 times the difference of the mirror images."""
        sigma, n = self.here.sigma, self.optimizer.examples
        at = self.here._replace(m=self.here.m + sigma * away)
        total, bends = torch.zeros_like(sigma), torch.zeros_like(sigma)
        for one in batches:
            eps, *both = self.draws(one, at)
            there, mirrored = (
                self.optimizer.gradient(self.term, one.batch, theta, LAST - one.number)
                for theta in both
            )
            total.add_(there + mirrored, alpha=0.5 * one.share)
            bends.add_((there - mirrored).mul_(eps), alpha=0.5 * one.share)
        counted = sum(one.share for one in batches)
        of_prior = self.optimizer.of_prior(at.m)
        bend = sigma * self.optimizer.prior_bend()
        return n * sigma * (total / counted + of_prior), n * sigma * (bends / counted + bend)

    def bent(self, batches: Sequence[Looked], along: Tensor, at: Tensor) -> Tensor:
        """A `along` with A the curvature in units of sigma, by the slope a little aside; `at` is
        the slope here."""
        size = self.lay.of_members(along.square()).sqrt().clamp_min(TINY)  # [M]
        step = self.lay.to_numbers(max(ASIDE, self.lay.width**-0.5) / size)
        return (self.slope(batches, step * along)[0] - at) / step

    def newton_step(self, few: Sequence[Looked], at: Tensor, left: Tensor) -> Tensor:
        """A^-1 z of each member, nearly, [M D]: z is `left`, A of a few batches, whose z is `at`. A
        member stops where the curvature along its direction is not positive; z itself, where that
        is at once."""
        first, lay = left, self.lay
        along, way = left, torch.zeros_like(left)
        square = lay.of_members(left.square())
        for _ in range(NEWTON):
            bent = self.bent(few, along, at)
            curvature = lay.of_members(along * bent)
            rate = torch.where(curvature > 0, square / curvature.clamp_min(TINY), 0.0)
            way = way + lay.to_numbers(rate) * along
            left = left - lay.to_numbers(rate) * bent
            before, square = square, lay.of_members(left.square())
            along = left + lay.to_numbers((rate > 0) * square / before.clamp_min(TINY)) * along
        went = lay.to_numbers(lay.of_members(way.square()))
        return torch.where(went > 0, way, first)

    def values(self, one: Looked, at: Place) -> Tensor:
        """N times the mean NLL, and the KL, over D: [M]."""
        _, *both = self.draws(one, at)
        named = (self.lay.named(theta) for theta in both)
        nll = [self.term(theta, one.batch, LAST - one.number) for theta in named]
        n, d = self.optimizer.examples, self.lay.width
        prior = self.optimizer.of_prior(at.m) * self.optimizer.from_prior(at.m)
        spread = at.sigma.square() * self.optimizer.prior_bend()
        kl = self.lay.of_members(0.5 * n * (prior + spread) - at.sigma.log())
        return 0.5 * n / d * (nll[0] + nll[1]) + kl

    def gains(self, batches: Sequence[Looked], places: Iterable[Place]) -> Iterator[Tensor]:
        """What the bound gains by each place, batch by batch, in nats a parameter: [batches, M]."""
        here = [self.values(one, self.here) for one in batches]
        for to in places:
            yield torch.stack(
                [a - self.values(one, to) for one, a in zip(batches, here, strict=True)]
            )

    def propose(self, batches: Sequence[Looked]) -> tuple[Place, Place]:
        """Better places of each member: the best of some along its way, and with other sigmas."""
        few, rest, lay = batches[:BENDS], batches[BENDS:], self.lay
        at, bend = self.slope(few)
        left = at
        if rest:
            part = sum(one.share for one in few) / sum(one.share for one in batches)
            z, more = self.slope(rest)
            left = part * at + (1 - part) * z
            bend = part * bend + (1 - part) * more
        # sigma^2 over what the curvature asks for: of each number, or the mean of each tensor. One
        # number's is half noise, so that half of its logarithm is taken off.
        ratio, ratios = bend.clamp(*WIDTHS), lay.by_tensor(bend).clamp(*WIDTHS)
        fits = (self.here.sigma * lay.spread(ratios) ** -0.5, self.here.sigma * ratio**-0.25)
        sigma = self.here.sigma
        ways = (self.newton_step(few, at, left), left)
        steps = [length * sigma * way for way, length in itertools.product(ways, LENGTHS)]
        # of one that has run away neither way is any good
        home = [length * self.optimizer.from_prior(self.here.m) for length in HOME]
        there = self.best_of(
            few, [self.here, *(Place(self.here.m - step, sigma) for step in (*steps, *home))]
        )
        means = (self.here.m, there.m)
        widths = [*fits, *(share * sigma for share in NARROWER)]
        others = [Place(m, width) for width, m in itertools.product(widths, means)]
        return there, self.best_of(few, [there, *others])

    def best_of(self, few: Sequence[Looked], places: list[Place]) -> Place:
        """Of each member, the one that gains most over batches that count by their shares."""
        best, most = places[0], torch.full((self.lay.members,), -torch.inf)
        most, shares = most.to(self.here.m), self.here.m.new_tensor([one.share for one in few])
        shares = (shares / shares.sum())[:, None]
        for place, gain in zip(places, self.gains(few, places), strict=True):
            gained = (shares * gain).sum(0)
            better = gained > most  # not where it is no number
            most = torch.where(better, gained, most)
            of_all = self.lay.to_numbers(better.to(most)) > 0
            best = Place(*(torch.where(of_all, a, b) for a, b in zip(place, best, strict=True)))
        return best


@torch.no_grad()
def distance_left(
    optimizer: NaturalGradient, term: Term, batches: Sequence[Weighed], *, whole: bool
) -> Tensor:
    """How many sigmas each member is from the optimum at least, [M]. Half its square is what the
    bound on the evidence gains for each parameter, in nats, at a better place that was found.

    That place is proposed by conjugate gradients (along a valley the slope is small, and the
    optimum far) and by the curvature that sigmas should have. What is gained there is measured at
    other draws, and `SURE` standard errors are taken off. The batches are `whole` where they are
    all of the data: then draws alone differ, and else batches too, of which either part has a half.
    Each batch comes with what it counts."""
    numbered = [Looked(number, *one) for number, one in enumerate(batches)]
    own, others = (numbered, numbered) if whole else (numbered[::2], numbered[1::2])
    look, lay = _Look(optimizer, term), optimizer.layout
    with torch.enable_grad():
        places = look.propose(own)
    first, twins = (
        look.gains([one._replace(number=one.number + k * len(batches)) for one in others], places)
        for k in (1, 2)
    )
    shares = optimizer.mean.new_tensor([one.share for one in others])[:, None]
    shares /= shares.sum()
    found = torch.zeros(lay.members).to(optimizer.mean)
    for gain, twin in zip(first, twins, strict=True):
        sure = _surely(gain, twin, shares, whole=whole)
        found = torch.where(sure > found, sure, found)  # not where it is no number
    # where the bound is no number; that of a member whose means are none the loop tells
    unseen = ~look.values(own[0], look.here).isfinite() & lay.of_members(optimizer.mean).isfinite()
    return torch.where(unseen, torch.inf, (2 * found).sqrt())


def _surely(gain: Tensor, twin: Tensor, shares: Tensor, *, whole: bool) -> Tensor:
    """What is gained on average at least, [M], from two draws of each batch [batches, M].

    Where draws have a long tail, as exp(f) of a Poisson regression has, one of them is nearly all
    of the mean and of its standard error, so that the mean says nothing however large it is. A mean
    of gains that are cut off above is below the mean, and may say more: the most of some is taken.
    """
    best = torch.full_like(gain[0], -torch.inf)
    for cap in CAPS:
        a, b = gain.clamp(max=cap), twin.clamp(max=cap)
        each = (a + b) / 2
        middle = (shares * each).sum(0)
        off = (a - b) / 2 if whole else each - middle
        sure = middle - SURE * (shares * off).square().sum(0).sqrt()
        best = torch.where(sure > best, sure, best)
    return best


def warn_far(left: Tensor, members: tuple[int, ...]) -> None:
    """Of members whose training has not come to the optimum: their sigmas mean little then."""
    far = [m for m, one in zip(members, left.tolist(), strict=True) if one > FAR]
    if far:
        told = ", ".join(map(str, far[:10])) + (" and others" if len(far) > 10 else "")
        middle = float(left[left > FAR].median())
        warnings.warn(
            f"natural gradients have not arrived: parameters of {len(far)} of {len(members)} "
            f"members ({told}) are {middle:.2g} sigmas from their optimum on average, where at "
            f"most {FAR:g} is good. Train for more epochs, or with another lr; or begin with a "
            "smaller sigma",
            TrainingAdvice,
            stacklevel=outside(),
        )
