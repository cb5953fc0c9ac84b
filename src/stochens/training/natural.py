"""Gaussian members by natural gradients: the variational online Newton method (IVON, Shen et al.
2024), for all members at once.

Each parameter of each member has a Gaussian N(m, sigma^2), whatever the network does with it:
dropout, DropConnect and the others go on as they are, on a draw of the parameters. With N data
points, delta = prior precision / N and v = 1 / (N sigma^2), a step is

    theta = m + sigma eps,   g = grad of the mean NLL at theta
    h = (g - G / (1 - b1^(t - 1))) eps / sigma
    v <- v (1 + a + a^2 / 2),   a = (1 - b2) (h + delta - v) / v
    G <- b1 G + (1 - b1) g
    m <- m - rate (G / (1 - b1^t) + delta (m - mu)) / v

in which |a| is at most `MOST`, and m moves by at most the rate times |m - mu|, or times the
standard deviation of its prior where that is more.

A step on fewer rows than the others counts s (shares.py), and that before it s'. With T, the sum
of these, in the place of t, a is multiplied by s, and

    G <- b1^s' G + (1 - b1) s g
    m <- m - rate ((1 - b1^s) / (1 - b1) G / (1 - b1^T) + s delta (m - mu)) / v

What a gradient puts into G leaves it again: each step takes the part 1 - b1^s of what is there. So
each row moves m by as much as every other one, whatever batch it is in and whichever follow it.
A mean gradient that forgets b1^s of itself would not do: one row in a step of its own after 128
rows together would count 5 % less than each of them.

By Stein's identity h is an estimate of the curvature of the mean NLL, so that sigma comes to rest
at 1 / sqrt(N curvature + prior precision). v stays positive whatever h is. The authors have
h = g eps / sigma. The mean gradient G of the steps before knows nothing of eps, so that h has the
same expectation without it, and far less noise: far from the optimum g is nearly all mean, and by
g^2 / v^2 of such noise v would grow until nothing moves. The last bound is ours too: where the loss
is flat, v is hardly more than delta, and a gradient that v has not met yet would throw m out of all
that the prior knows, from where it goes on to infinity. With it, at the usual rate, |m - mu| grows
by a tenth in a step, and v can grow by a fifth.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.kernels import natural as kernel
from stochens.kernels.noise import words
from stochens.members import Params
from stochens.posterior.low_rank import LowRankGaussian
from stochens.randomness.noise import normal_numbers
from stochens.randomness.seeds import NATURAL, derive
from stochens.training.schedules import CURVATURE, Natural
from stochens.training.side_by_side import SideBySide

MOST = 0.2  # that a step changes of log v, which is far more than it should near the optimum
PROBE = 0.01  # of a parameter's size: the step that measures a curvature
PROBES = 8  # of the network's own noise: a set that half of them take is in one of 256 in none
LAST = 1 << 40  # numbers of draws that no training reaches
IN_CACHE = 1 << 16  # of them on a CPU
AT_ONCE = 1 << 24  # normal numbers that are made together: some 500 MB for a moment


# the mean NLL of each member, [M], as program/data_term.py has it
Term = Callable[[Params, Any, int | Tensor], Tensor]


class NaturalGradient(torch.optim.Optimizer):
    """The steps above, on stacked parameters [M, ...]; sigma is kept as its logarithm.

    A pass over the data is at `draw(step)`, and `step()` takes the gradient that the pass has left
    there. All parameters lie side by side in one vector, so that a step is some twenty operations
    however many layers there are; those that are given become views of it. The operations are in
    place: new memory of that size costs a CPU ten times what is computed in it.
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
        self.layout = SideBySide(params)
        self._m = torch.cat([p.detach().flatten() for p in params.values()])  # [M D]
        for p, part in zip(params.values(), self.layout.named(self._m).values(), strict=True):
            p.data = part
        super().__init__(
            [{"params": [self._m], "factor": 1.0, "l2": 0.0, "share": 1.0}], {"lr": lr}
        )
        self.defaults["weight_decay"] = 0.0
        self.examples, self._momentum = examples, options.momentum
        self._forgets = options.forgets(steps)
        deltas = {name: slopes[name] / examples for name in params}
        self._delta = self.layout.for_all(deltas, self._m)
        self._wide = (self._delta * examples).rsqrt()  # the prior's; infinite where there is none
        self._mu = None if not means else self.layout.vector(means, self._m)
        first = {name: _first_sigma(options, examples, delta) for name, delta in deltas.items()}
        log_sigma = torch.zeros_like(self._m) + self.layout.for_all(first, self._m).log()
        self.state[self._m] = {
            "mean_gradient": torch.zeros_like(self._m),
            "log_sigma": log_sigma,
            "counted": self._m.new_zeros(2),  # the sum of the shares, and the last one
        }
        self._centred = centred
        self._begins_anywhere = options.sigma is None
        self._members = torch.tensor(members, device=self._m.device)
        self._piece = max(1, AT_ONCE // self.layout.members)
        self._first = torch.tensor([derive(seed, NATURAL)], device=self._m.device)
        self._number: int | Tensor = 0
        # sigma eps and theta of the last draw; then room for what a step computes
        self._moved, self._theta, *self._room = (torch.empty_like(self._m) for _ in range(4))
        self._numbers: dict[float, Tensor] = {}  # of the kernel, for each share of a step
        self._terms: Tensor | None = None  # of the KL, [M, D], where the kernel has just made them

    @torch.no_grad()
    def draw(self, step: int | Tensor) -> Params:
        """theta = m + sigma eps of every member, [M, ...], by (seed, member, step). The next draw
        is written to the same memory."""
        self._number, self._terms = step, None
        if isinstance(step, Tensor) and self._by_kernel():
            self._terms = self._room[0].view(self.layout.members, -1)
            numbers = self._kernel_numbers(1.0)
            kernel.draw(self._vectors(), step, self._theta.detach(), self._terms, numbers=numbers)
        else:
            self.normal(step, out=self._moved)
            self._moved.mul_(torch.exp(self._log_sigma, out=self._room[0]))
            torch.add(self._m, self._moved, out=self._theta.detach())
        self._theta.grad = None
        self._theta.requires_grad_()
        with torch.enable_grad():
            return self.layout.named(self._theta)

    def _by_kernel(self) -> bool:
        """In a recording alone, where the rate and the step's number are tensors."""
        rate = self.param_groups[0]["lr"]
        return self._centred and isinstance(rate, Tensor) and kernel.available(self._m)

    def _vectors(self) -> kernel.Vectors:
        return kernel.Vectors(
            *(self._m, self._log_sigma, self._delta, self.layout.order),
            *(self._members, self._first, self._piece),
        )

    def _kernel_numbers(self, share: float) -> Tensor:
        if share not in self._numbers:
            numbers = [self.examples, self._forgets, self._momentum, share, MOST]
            numbers.append(self._leaving(share))
            self._numbers[share] = torch.tensor(numbers, device=self._m.device)
        return self._numbers[share]

    def _leaving(self, share: float) -> float:
        """(1 - b1^s) / (1 - b1)"""
        stays: float = self._momentum**share
        return (1 - stays) / (1 - self._momentum)

    def theta(self) -> Tensor:
        """The last draw, [M D], with the gradient that a pass has left there."""
        return self._theta

    @torch.no_grad()
    def look(self, number: int) -> Params:
        """A draw that no step has, and that no step knows of."""
        moved = self.sigma().mul_(self.normal(LAST + 1 + number))
        return self.layout.named(moved.add_(self._m))

    def normal(self, step: int | Tensor, out: Tensor | None = None) -> Tensor:
        """eps, [M D]; the same for a member in any company."""
        length, each = self.layout.width, self._piece
        pieces = []
        for k, first in enumerate(range(0, length, each)):
            shape = (min(each, length - first),)
            drawn = words(self._members, self._first + step, k, shape)  # [M, D]
            pieces.append(_in_pieces(drawn, self._m.dtype))
        together = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        return self.layout.laid_out(together, out=out)

    @property
    def mean(self) -> Tensor:
        """m, [M D]."""
        return self._m

    @property
    def _log_sigma(self) -> Tensor:
        found: Tensor = self.state[self._m]["log_sigma"]
        return found

    def sigma(self) -> Tensor:
        """[M D], the caller's to change."""
        return self._log_sigma.exp()

    def from_prior(self, m: Tensor) -> Tensor:
        """m - mu"""
        return m if self._mu is None else m - self._mu

    def of_prior(self, m: Tensor) -> Tensor:
        """delta (m - mu), the gradient of the KL over N."""
        return self._delta * self.from_prior(m)

    def prior_bend(self) -> Tensor:
        """delta, its curvature: one number or [M D]."""
        return self._delta

    def begin(self, term: Term, batch: Any) -> None:
        """Sigma at the curvature that the mean NLL has at the start, where that is more than usual.

        Of each parameter tensor of each member it is |g(m + d) - g(m)| / |d| for a small step d at
        random: where it is 400 a sigma for 0.1 would be 60 times too wide, and the first step far
        too long. It is the root of the mean square over some draws of the network's own noise: a
        set of parameters that is dropped has no curvature then, and its members would diverge."""
        if not self._begins_anywhere:
            return
        lay, eps = self.layout, self.normal(0)
        size = PROBE * lay.by_tensor(self._m.square()).mean(1, keepdim=True).sqrt()  # [M, 1]
        d = eps * lay.spread(size.clamp_min(PROBE).expand(-1, len(lay.sizes)))
        changes = torch.zeros_like(d)
        for number in range(LAST, LAST + PROBES):
            here, there = (self.gradient(term, batch, m, number) for m in (self._m, self._m + d))
            changes += (there - here).square() / PROBES
        squares = lay.by_tensor(changes) / lay.by_tensor(d.square())  # [M, tensors]
        curvature = squares.sqrt().nan_to_num(0.0).clamp_min(CURVATURE)
        v = lay.spread(curvature) + self._delta
        self._log_sigma.copy_(-0.5 * (self.examples * v).log())

    def gradient(self, term: Term, batch: Any, theta: Tensor, number: int) -> Tensor:
        """Of the mean NLL at theta [M D], with the network's own noise by that number."""
        theta = theta.detach().requires_grad_()
        (g,) = torch.autograd.grad(term(self.layout.named(theta), batch, number).sum(), theta)
        return g

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """`share`: what the step counts; its gradient has been multiplied by it."""
        group, n, delta = self.param_groups[0], self.examples, self._delta
        share, log_sigma = group["share"], self._log_sigma
        mean: Tensor = self.state[self._m]["mean_gradient"]
        counted: Tensor = self.state[self._m]["counted"]
        variance, a = self._room
        g = self._theta.grad
        assert g is not None
        if self._terms is not None:  # the draw was the kernel's
            numbers, self._terms = self._kernel_numbers(share), None
            on, number, rate = self._vectors(), self._number, group["lr"]
            assert isinstance(number, Tensor)
            kernel.step(on, number, counted, mean, g.contiguous(), self._mu, rate, numbers=numbers)
            self._count(counted, share)
            return
        before: float | Tensor
        last: float | Tensor
        # a GPU is not waited for
        before, last = counted.unbind() if counted.is_cuda else counted.tolist()
        if share != 1:
            g.div_(share)

        # a = s (1 - b2) (N ((g - G / (1 - b1^(T - s))) sigma eps + delta sigma^2) - 1)
        torch.mul(log_sigma, 2, out=variance).exp_()
        forget: float | Tensor = self._forgets * share
        if self._centred:
            seen = 1 - self._momentum**before
            some = (seen > 0) * 1.0  # the first step has no G to compare with
            forget = forget * some
            torch.mul(mean, -1 / (seen + (1 - some)), out=a).add_(g).mul_(self._moved)
        else:
            torch.mul(g, self._moved, out=a)
        a.addcmul_(variance, delta).mul_(n * forget).sub_(forget).clamp_(-MOST, MOST)

        # v <- v (1 + a + a^2 / 2);  G <- b1^s' G + (1 - b1) s g
        mean.mul_(self._momentum**last).add_(g, alpha=(1 - self._momentum) * share)
        a.addcmul_(a, a, value=0.5)
        log_sigma.sub_(torch.log1p(a, out=g), alpha=0.5)
        variance.div_(a.add_(1))

        # m <- m - rate N sigma^2 (... G / (1 - b1^T) + s delta (m - mu)), and not farther; a short
        # step is as free as a whole one, or what its few rows say would be cut off before it counts
        now = 1 - self._momentum ** (before + share)
        slope = torch.mul(mean, self._leaving(share) / now, out=a)
        slope.addcmul_(self._m, delta, value=share)
        if self._mu is not None:
            slope.addcmul_(self._mu, delta, value=-share)
        slope.mul_(variance).mul_(n)
        farthest = torch.abs(self.from_prior(self._m), out=variance).clamp_min_(self._wide)
        farthest.mul_(max(1.0, share))
        torch.minimum(slope, farthest, out=slope)
        torch.maximum(slope, farthest.neg_(), out=slope)
        self._m.sub_(slope.mul_(group["lr"]))
        self._count(counted, share)

    def _count(self, counted: Tensor, share: float) -> None:
        counted[0].add_(share)
        counted[1].fill_(share)

    @torch.no_grad()
    def kl_of_sigma(self) -> Tensor:
        """1/2 sum (lambda sigma^2 - log sigma^2 - 1 - log lambda) of each member: [M]."""
        if self._terms is not None:
            return 0.5 * self._terms.sum(1)
        log_sigma, precision = self._log_sigma, self._delta * self.examples
        terms = (2 * log_sigma).exp_().mul_(precision).sub_(2 * log_sigma + 1 + precision.log())
        return 0.5 * self.layout.by_member(terms).sum(1)

    def gaussian(self) -> LowRankGaussian:
        """What has been learned: N(m, sigma^2), a Gaussian without columns."""
        variance = self.layout.named((2 * self._log_sigma).exp())
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


def _in_pieces(drawn: Tensor, dtype: torch.dtype) -> Tensor:
    """`normal_numbers`, on a CPU so many at a time that what is between stays in its cache."""
    if drawn.device.type != "cpu" or drawn.numel() <= IN_CACHE:
        return normal_numbers(drawn, dtype)
    found = torch.empty(drawn.shape, dtype=dtype)
    parts = (t.view(-1).split(IN_CACHE) for t in (found, drawn))
    for own, some in zip(*parts, strict=True):
        own.copy_(normal_numbers(some, dtype))
    return found


def drawn_term(term: Term, optimizer: NaturalGradient) -> Term:
    """The mean NLL of each member at a draw of its parameters, and not at their means."""
    return lambda _, batch, step: term(optimizer.draw(step), batch, step)
