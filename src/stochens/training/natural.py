"""Gaussian members by natural gradients: the variational online Newton method (IVON, Shen et al.
2024), for all members at once.

Each parameter of each member has a Gaussian N(m, sigma^2), whatever the network does with it:
dropout, DropConnect and the others go on as they are, on a draw of the parameters. With N data
points, delta = prior precision / N and v = 1 / (N sigma^2), a step is

    theta = m + sigma eps,   g = grad of the mean NLL at theta
    h = (g - G / (1 - b1^(t - 1))) eps / sigma
    v <- v (1 + a + a^2 / 2),   a = (1 - b2) (h + delta - v) / v
    G <- b1 G + (1 - b1) g
    m <- m - rate (G / (1 - b1^t) + delta (m - mu)) / v        (|a| is at most `MOST`)

By Stein's identity h is an estimate of the curvature of the mean NLL, so that sigma comes to rest
at 1 / sqrt(N curvature + prior precision). v stays positive whatever h is. The authors have
h = g eps / sigma. The mean gradient G of the steps before knows nothing of eps, so that h has the
same expectation without it, and far less noise: far from the optimum g is nearly all mean, and by
g^2 / v^2 of such noise v would grow until nothing moves.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError, TrainingAdvice, outside
from stochens.kernels.noise import words
from stochens.members import Params
from stochens.posterior.low_rank import LowRankGaussian
from stochens.randomness.noise import normal_numbers
from stochens.randomness.seeds import NATURAL, derive
from stochens.training.schedules import CURVATURE, Natural

MOST = 0.2  # that a step changes of log v, which is far more than it should near the optimum
PROBE = 0.01  # of a parameter's size: the step that measures a curvature
LAST = 1 << 40  # numbers of draws that no training reaches
SURE = 5.0
NEWTON = 6  # steps of conjugate gradients towards the optimum, at the end
BENDS = 4  # batches whose curvature they take
ASIDE = 0.1  # sigmas that a curvature is measured over
TINY = 1e-30
FAR = 1.0  # sigmas from the optimum that a training may leave
AT_ONCE = 1 << 24  # normal numbers that are made together: some 500 MB for a moment


# the mean NLL of each member, [M], as program/data_term.py has it
Term = Callable[[Params, Any, int | Tensor], Tensor]
Weighed = tuple[float, Any]  # a batch, and what it counts beside the others


class Looked(NamedTuple):
    number: int  # of its draw
    share: float
    batch: Any


class NaturalGradient(torch.optim.Optimizer):
    """The steps above, on stacked parameters [M, ...]; sigma is kept as its logarithm.

    A pass over the data is at `draw(step)`, and `step()` takes the gradient that the pass has left
    there. All parameters lie side by side in one vector, so that a step is a dozen operations
    however many layers there are; those that are given become views of it.
    """

    def __init__(
        self,
        params: Params,
        options: Natural,
        *,
        lr: float,
        examples: float,  # N, over the weight of the KL
        slopes: dict[str, float],  # of the L2: the precision of each parameter's prior
        means: Params | None,  # mu, [1 or M, ...], where it is not 0
        steps: int,
        members: tuple[int, ...],
        seed: int,
        centred: bool = True,  # False: h = g eps / sigma, as the authors have it
    ) -> None:
        self._shapes = {name: p.shape for name, p in params.items()}
        self._sizes = [p.numel() for p in params.values()]
        self._m = torch.cat([p.detach().flatten() for p in params.values()])  # [M D]
        for p, part in zip(params.values(), self._m.split(self._sizes), strict=True):
            p.data = part.view(p.shape)
        super().__init__(
            [{"params": [self._m], "factor": 1.0, "l2": 0.0, "share": 1.0}], {"lr": lr}
        )
        self.defaults["weight_decay"] = 0.0
        self._examples, self._momentum = examples, options.momentum
        self._forgets = options.forgets(steps)
        deltas = {name: slopes[name] / examples for name in params}
        self._delta = self._per_parameter(deltas)
        self._mu = None if not means else self._laid_out(means)
        first = {name: _first_sigma(options, examples, delta) for name, delta in deltas.items()}
        log_sigma = torch.zeros_like(self._m) + self._per_parameter(first).log()
        self.state[self._m] = {"mean_gradient": torch.zeros_like(self._m), "log_sigma": log_sigma}
        self._centred = centred
        self._begins_anywhere = options.sigma is None
        self._members = torch.tensor(members, device=self._m.device)
        self._first = torch.tensor([derive(seed, NATURAL)], device=self._m.device)
        self._order = self._places()
        self._by_member = self._order.argsort()
        self._number: int | Tensor = 0
        self._moved = self._theta = self._m  # sigma eps and theta of the last draw

    def _per_parameter(self, numbers: dict[str, float]) -> Tensor:
        """One number where all are the same, else [M D]."""
        each = self._m.new_tensor(list(numbers.values()))
        if bool((each == each[0]).all()):
            return each[0]
        return each.repeat_interleave(torch.tensor(self._sizes, device=each.device))

    def _laid_out(self, means: Params) -> Tensor:
        parts = (
            means[name].to(self._m).expand(shape) if name in means else self._m.new_zeros(shape)
            for name, shape in self._shapes.items()
        )
        return torch.cat([part.flatten() for part in parts])

    def _places(self) -> Tensor:
        """Of each number of the vector its place among members side by side, [M, D]."""
        many = len(self._members)
        own = torch.arange(len(self._m), device=self._m.device).view(many, -1)
        sizes = [size // many for size in self._sizes]
        return torch.cat([part.flatten() for part in own.split(sizes, dim=1)])

    @torch.no_grad()
    def draw(self, step: int | Tensor) -> Params:
        """theta = m + sigma eps of every member, [M, ...], by (seed, member, step)."""
        self._number = step
        self._moved = self.state[self._m]["log_sigma"].exp().mul_(self._normal(step))
        self._theta = (self._m + self._moved).requires_grad_()
        with torch.enable_grad():
            return self._named(self._theta)

    @torch.no_grad()
    def look(self, number: int) -> Params:
        """A draw that no step has, and that no step knows of."""
        moved = self.state[self._m]["log_sigma"].exp() * self._normal(LAST + 1 + number)
        return self._named(self._m + moved)

    def _normal(self, step: int | Tensor) -> Tensor:
        """eps, [M D]; the same for a member in any company."""
        many = len(self._members)
        length = len(self._m) // many
        each = max(1, AT_ONCE // many)
        pieces = []
        for k, first in enumerate(range(0, length, each)):
            shape = (min(each, length - first),)
            drawn = words(self._members, self._first + step, k, shape)  # [M, D]
            pieces.append(normal_numbers(drawn, self._m.dtype))
        return torch.cat(pieces, dim=1).view(-1)[self._order]

    def begin(self, term: Term, batch: Any) -> None:
        """Sigma at the curvature that the mean NLL has at the start, where that is more than usual.

        Of each parameter tensor of each member it is |g(m + d) - g(m)| / |d| for a small step d at
        random: where it is 400 a sigma for 0.1 would be 60 times too wide, and the first step far
        too long."""
        if not self._begins_anywhere:
            return
        eps = self._normal(0)
        size = PROBE * self._by_tensor(self._m.square()).mean(1, keepdim=True).sqrt()  # [M, 1]
        sizes = size.clamp_min(PROBE).expand(-1, len(self._sizes))
        d = eps * self._spread(sizes)
        change = self._gradient(term, batch, self._m + d) - self._gradient(term, batch, self._m)
        squares = self._by_tensor(change.square()) / self._by_tensor(d.square())  # [M, tensors]
        curvature = squares.sqrt().nan_to_num(0.0).clamp_min(CURVATURE)
        v = self._spread(curvature) + self._delta
        self.state[self._m]["log_sigma"].copy_(-0.5 * (self._examples * v).log())

    def distance_left(self, term: Term, batches: Sequence[Weighed], *, whole: bool) -> Tensor:
        """How many sigmas the means are from the optimum at least, [M]: the root of

            max over w of  (w . z)^2 / (w . A w D),   z = sigma N (g + delta (m - mu))

        with A the curvature in units of sigma. Half its square is what the bound on the evidence
        could still gain for each parameter, in nats. w is A^-1 z of some steps of conjugate
        gradients: along a valley z is small, and the optimum far.

        z is found twice, at draws of its own: once for w, once for its product with w, from which
        `SURE` standard errors are taken off. The batches are `whole` where they are all of the
        data: then draws alone differ, and else batches too, of which either z has a half. Each
        batch comes with what it counts."""
        numbered = [Looked(number, *one) for number, one in enumerate(batches)]
        own = numbered if whole else numbered[::2]
        others = [one._replace(number=one.number + len(batches)) for one in own]
        others = others if whole else numbered[1::2]
        way = self._newton_step(term, own)
        values, twins = (self._along(term, part, way) for part in (others, own))  # [batches, M]
        shares = values.new_tensor([one.share for one in others])
        shares = (shares / shares.sum())[:, None]
        product = (shares * values).sum(0)
        off = (values - twins) / math.sqrt(2) if whole else values - product
        noise = (shares * off).square().sum(0).sqrt()  # its standard error
        sure = product - SURE * noise
        bent = self._bent(term, others, way, self._slope(term, others))
        curvature = self._of_members(way * bent)
        unit = self._of_members(way.square())  # what it is where sigma fits, if it cannot be seen
        size = torch.where(curvature > 0, curvature, unit).clamp_min(TINY).sqrt()
        found = torch.where(size.isfinite() & sure.isfinite(), sure.clamp_min(0) / size, math.inf)
        lost = ~self._of_members(self._m).isfinite()  # which the loop sees, and tells of
        return torch.where(lost, 0.0, found)

    def _along(self, term: Term, batches: Sequence[Looked], way: Tensor) -> Tensor:
        """w . z / D at each batch, [batches, M]."""
        return torch.stack([self._of_members(way * self._slope(term, [one])) for one in batches])

    def _slope(self, term: Term, batches: Sequence[Looked], away: float | Tensor = 0.0) -> Tensor:
        """z at m + sigma * away, the mean over batches with a draw for each by its number."""
        sigma: Tensor = self.state[self._m]["log_sigma"].exp()
        m = self._m + sigma * away
        of_prior = self._delta * (m if self._mu is None else m - self._mu)
        total = torch.zeros_like(m)
        for number, share, batch in batches:
            theta = m + sigma * self._normal(LAST - number)
            total += share * self._gradient(term, batch, theta, LAST - number)
        counted = sum(one.share for one in batches)
        return sigma * self._examples * (total / counted + of_prior)

    def _newton_step(self, term: Term, batches: Sequence[Looked]) -> Tensor:
        """A^-1 z of each member, nearly, [M D]; A is of a few batches. A member stops where the
        curvature along its direction is not positive; z itself, where that is at once."""
        few = batches[:BENDS]
        at, left = self._slope(term, few), self._slope(term, batches)
        first = left
        along, way = left, torch.zeros_like(left)
        square = self._of_members(left.square())
        for _ in range(NEWTON):
            bent = self._bent(term, few, along, at)
            curvature = self._of_members(along * bent)
            rate = torch.where(curvature > 0, square / curvature.clamp_min(TINY), 0.0)
            way = way + self._to_numbers(rate) * along
            left = left - self._to_numbers(rate) * bent
            before, square = square, self._of_members(left.square())
            along = left + self._to_numbers((rate > 0) * square / before.clamp_min(TINY)) * along
        went = self._to_numbers(self._of_members(way.square()))
        return torch.where(went > 0, way, first)

    def _bent(self, term: Term, batches: Sequence[Looked], along: Tensor, at: Tensor) -> Tensor:
        """A `along`, by the slope a little aside; `at` is the slope here."""
        size = self._of_members(along.square()).sqrt().clamp_min(TINY)  # [M]
        step = self._to_numbers(ASIDE / size)
        return (self._slope(term, batches, step * along) - at) / step

    def _of_members(self, numbers: Tensor) -> Tensor:
        """Means over each member's: [M D] -> [M]."""
        return numbers[self._by_member].view(len(self._members), -1).mean(1)

    def _to_numbers(self, of_members: Tensor) -> Tensor:
        """One number of each member for all of its parameters: [M] -> [M D]."""
        return self._spread(of_members[:, None].expand(-1, len(self._sizes)))

    def _gradient(self, term: Term, batch: Any, theta: Tensor, number: int = 0) -> Tensor:
        theta = theta.detach().requires_grad_()
        (g,) = torch.autograd.grad(term(self._named(theta), batch, number).sum(), theta)
        return g

    def _by_tensor(self, numbers: Tensor) -> Tensor:
        """Means over each parameter tensor of each member: [M D] -> [M, tensors]."""
        many = len(self._members)
        return torch.stack([p.view(many, -1).mean(1) for p in numbers.split(self._sizes)], 1)

    def _spread(self, of_tensors: Tensor) -> Tensor:
        """The inverse: [M, tensors] -> [M D]."""
        many = len(self._members)
        each = (
            column[:, None].expand(-1, size // many).flatten()
            for column, size in zip(of_tensors.unbind(1), self._sizes, strict=True)
        )
        return torch.cat(list(each))

    def _named(self, theta: Tensor) -> Params:
        parts, shapes = theta.split(self._sizes), self._shapes.items()
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes, strict=True)}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """`share`: what the step counts; its gradient has been multiplied by it."""
        group, n, delta = self.param_groups[0], self._examples, self._delta
        share, log_sigma = group["share"], self.state[self._m]["log_sigma"]
        mean: Tensor = self.state[self._m]["mean_gradient"]
        assert self._theta.grad is not None
        g = self._theta.grad / share

        # a = (1 - b2) (N ((g - G) sigma eps + delta sigma^2) - 1)
        off: Tensor = g
        weight: float | Tensor = 1.0
        if self._centred:
            seen = 1 - self._momentum**self._number
            weight = (seen > 0) * 1.0  # the first step has no G to compare with
            off = g - mean / (seen + (1 - weight))
        a = (2 * log_sigma).exp_().mul_(delta).addcmul_(off, self._moved).mul_(n).sub_(1)
        a.mul_(weight).mul_(self._forgets * share).clamp_(-MOST, MOST)
        mean.lerp_(g, 1 - self._momentum)
        log_sigma.sub_(torch.addcmul(a, a, a, value=0.5).log1p_(), alpha=0.5)

        # m -= rate N sigma^2 (G / (1 - b1^t) + delta (m - mu))
        away = self._m if self._mu is None else self._m - self._mu
        slope = (mean / (1 - self._momentum ** (self._number + 1))).addcmul_(away, delta)
        slope.mul_((2 * log_sigma).exp_()).mul_(n * share).mul_(group["lr"])
        self._m.sub_(slope)

    @torch.no_grad()
    def kl_of_sigma(self) -> Tensor:
        """1/2 sum (lambda sigma^2 - log sigma^2 - 1 - log lambda) of each member: [M]."""
        log_sigma, precision = self.state[self._m]["log_sigma"], self._delta * self._examples
        terms = (2 * log_sigma).exp_().mul_(precision).sub_(2 * log_sigma + 1 + precision.log())
        found: Tensor = 0.5 * terms[self._by_member].view(len(self._members), -1).sum(1)
        return found

    def gaussian(self) -> LowRankGaussian:
        """What has been learned: N(m, sigma^2), a Gaussian without columns."""
        variance = self._named((2 * self.state[self._m]["log_sigma"]).exp())
        columns = {name: v.new_zeros(len(v), 0, *v.shape[1:]) for name, v in variance.items()}
        return LowRankGaussian(variance, columns)


def _first_sigma(options: Natural, examples: float, delta: float) -> float:
    """1 / sqrt(N (h + delta)), or what is asked for, which a prior must bear."""
    if options.sigma is None:
        return 1 / math.sqrt(examples * (CURVATURE + delta))
    widest = math.inf if delta <= 0 else 1 / math.sqrt(examples * delta)
    if options.sigma > widest:
        raise InputError(
            f"sigma = {options.sigma:g} is wider than the prior of some parameters, whose standard "
            f"deviation is {widest:.3g}; begin with less"
        )
    return options.sigma


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


def drawn_term(term: Term, optimizer: NaturalGradient) -> Term:
    """The mean NLL of each member at a draw of its parameters, and not at their means."""
    return lambda _, batch, step: term(optimizer.draw(step), batch, step)
