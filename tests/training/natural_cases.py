"""Linear models whose best mean-field Gaussian is known, for natural gradients to find.

Of a linear model the outputs are Gaussian under q = N(m, sigma^2), so that the bound

    -ELBO = E_q[sum of NLL] / kl_weight + KL(q || prior)

is a closed form or an integral in one to three dimensions, and its minimum is found in float64.
Each case says what `fit` gets, and what that integral is.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.polynomial.hermite_e import hermegauss
from torch import Tensor, nn
from torch.nn.functional import softplus

from stochens import Data, DropConnect, Homoscedastic, Prior
from stochens.likelihoods import Laplace, Multilabel, NegativeBinomial, Ordinal, StudentT

Expected = Callable[[Tensor, Tensor], Tensor]  # m, sigma [M, D] -> E_q of the summed NLL, [M]


class Problem(NamedTuple):
    net: nn.Module
    data: Any
    options: dict[str, Any]  # of fit
    batch: int | None
    rows: int
    nll: Expected
    precision: Tensor  # [D], of the prior of what is learned
    mean: Tensor  # [D]
    weight: float = 1.0  # of the KL

    def bound(self, m: Tensor, sigma: Tensor) -> Tensor:
        """-ELBO of N(m, sigma^2) up to a constant, [M]."""
        squares = (m - self.mean).square() + sigma.square()
        of_one = self.precision * squares - 2 * sigma.log() - 1 - self.precision.log()
        return self.nll(m, sigma) / self.weight + 0.5 * of_one.sum(-1)

    def best(self, m: Tensor, sigma: Tensor) -> Tensor:
        """Its minimum in float64: the least of a search from zero and one from the best of these,
        [M, D]."""
        found = self.bound(m, sigma).argmin()
        m = torch.stack([torch.zeros(m.shape[1]), m[found]]).requires_grad_()
        log_sigma = torch.full_like(m, -2.0).requires_grad_()
        search = torch.optim.LBFGS(
            [m, log_sigma], max_iter=400, history_size=50, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            search.zero_grad()
            loss = self.bound(m, log_sigma.exp()).sum()
            loss.backward()
            return loss

        for _ in range(10):
            search.step(closure)
            assert m.grad is not None
            at = self.bound(m, log_sigma.exp()).detach()
            slope = (m.grad * log_sigma.exp()).abs().amax(1)  # nats a sigma
            if slope[at.argmin()] < 1e-2:  # which is 1e-4 nats off where the curvature is 1
                break
        assert slope[at.argmin()] < 1e-2, slope
        return at.min()


def nodes(many: int, dimensions: int = 1) -> tuple[Tensor, Tensor]:
    """Of standard Gaussians: points [K, dimensions] and their shares [K]."""
    points, weights = (torch.tensor(part) for part in hermegauss(many))
    grid = torch.tensor(list(itertools.product(points.tolist(), repeat=dimensions)))
    shares = torch.tensor(
        list(itertools.product((weights / weights.sum()).tolist(), repeat=dimensions))
    )
    return grid, shares.prod(1)


def of_logit(rows: Tensor, term: Callable[[Tensor], Tensor], many: int = 50) -> Expected:
    """One output w . row: term takes z [M, N, K] to the NLL there."""
    points, shares = nodes(many)

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        mean, variance = m @ rows.T, sigma.square() @ rows.square().T  # [M, N]
        z = mean[..., None] + variance.sqrt()[..., None] * points[:, 0]
        return (term(z) * shares).sum((-1, -2))

    return expected


def of_outputs(rows: Tensor, outputs: int, term: Callable[[Tensor], Tensor], many: int) -> Expected:
    """Several outputs of one nn.Linear, independent of each other under q: z [M, N, outputs, K]."""
    points, shares = nodes(many, outputs)
    d = rows.shape[1] - 1

    def each(p: Tensor) -> Tensor:
        """[M, D] as nn.Linear has them -> [M, outputs, d + 1]."""
        return torch.cat(
            [p[:, : d * outputs].unflatten(1, (outputs, d)), p[:, d * outputs :, None]], 2
        )

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        mean = torch.einsum("mod,nd->mno", each(m), rows)
        sd = torch.einsum("mod,nd->mno", each(sigma).square(), rows.square()).sqrt()
        z = mean[..., None] + sd[..., None] * points.T
        return (term(z) * shares).sum((-1, -2))

    return expected


def with_ones(x: Tensor) -> Tensor:
    return torch.cat([x, torch.ones(len(x), 1)], 1)


def flat(d: int, precision: float) -> tuple[Tensor, Tensor]:
    return torch.full((d,), precision), torch.zeros(d)


def mixed(n: int, d: int) -> Tensor:
    return torch.randn(n, d) @ (torch.eye(d) + 0.5 * torch.randn(d, d))


# The cases. Numbers were written down before any of them had run. ---------------------------------


def student_t() -> Problem:
    """A tenth of the rows are far off."""
    n, d = 120, 6
    x = mixed(n, d)
    y = x @ torch.randn(d) + 0.5 * torch.randn(n) + 5.0 * torch.randn(n) * (torch.rand(n) < 0.1)

    def term(z: Tensor) -> Tensor:
        return 2.0 * (1 + ((y[:, None] - z) / 0.5).square() / 3.0).log()

    options = {"likelihood": StudentT(df=3.0, scale=0.5), "prior": 0.1}
    expected = of_logit(with_ones(x), term, 80)
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, None, n, expected, *flat(d + 1, 0.1))


class Beside(nn.Module):
    """A linear output, and a number that is known."""

    def __init__(self, d: int, known: float) -> None:
        super().__init__()
        self.linear = nn.Linear(d, 1)
        self.known = known

    def forward(self, x: Tensor) -> Tensor:
        out = self.linear(x)
        return torch.cat([out, torch.full_like(out, self.known)], -1)


def negative_binomial() -> Problem:
    n, d, r = 150, 5, 0.7
    x = mixed(n, d)
    rate = (x @ torch.randn(d) / math.sqrt(d)).clamp(max=3).exp()
    y = torch.poisson(rate * torch.distributions.Gamma(r, r).sample((n,)).double())

    def term(z: Tensor) -> Tensor:
        logit = z - math.log(r)
        return r * softplus(logit) + y[:, None] * softplus(-logit)

    options = {"likelihood": NegativeBinomial(), "prior": 2.0}
    net, expected = Beside(d, math.log(r)), of_logit(with_ones(x), term)
    return Problem(net, (x, y[:, None]), options, 30, n, expected, *flat(d + 1, 2.0))


def laplace() -> Problem:
    """No curvature but at one point of each row."""
    n, d, scale = 80, 3, 0.2
    x = mixed(n, d)
    rows, y = (
        with_ones(x),
        x @ torch.randn(d) + torch.distributions.Laplace(0.0, scale).sample((n,)),
    )

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        off, sd = y - m @ rows.T, (sigma.square() @ rows.square().T).sqrt()
        half = (off / sd).square() / 2
        absolute = sd * math.sqrt(2 / math.pi) * (-half).exp() + off * torch.erf(off / sd / 2**0.5)
        return absolute.sum(-1) / scale

    options = {"likelihood": Laplace(scale=scale), "prior": 1.0}
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, None, n, expected, *flat(d + 1, 1.0))


def squares(rows: Tensor, y: Tensor, noise: float) -> Expected:
    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        off, variance = y - m @ rows.T, sigma.square() @ rows.square().T
        return (off.square() + variance).sum(-1) / (2 * noise**2)

    return expected


def collinear() -> Problem:
    """Columns that differ by 3 % of their size."""
    n, d, noise = 100, 6, 0.5
    x = torch.randn(n, 1) + 0.03 * torch.randn(n, d)
    y = x @ torch.randn(d) + noise * torch.randn(n)
    options = {"likelihood": Homoscedastic(noise), "prior": 0.1}
    expected = squares(with_ones(x), y, noise)
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, None, n, expected, *flat(d + 1, 0.1))


def many_scales() -> Problem:
    """Columns of sizes 0.01 to 100."""
    n, d, noise = 100, 5, 0.5
    x = torch.randn(n, d) * torch.logspace(-2, 2, d)
    y = x @ (torch.randn(d) / torch.logspace(-2, 2, d)) + noise * torch.randn(n)
    options = {"likelihood": Homoscedastic(noise), "prior": 1.0}
    expected = squares(with_ones(x), y, noise)
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, 25, n, expected, *flat(d + 1, 1.0))


def rare_classes() -> Problem:
    n, d = 300, 4
    x = mixed(n, d)
    logits = x @ torch.randn(d, 3) + torch.tensor([4.0, 0.0, -1.0])
    y = torch.distributions.Categorical(logits=logits).sample()

    def term(z: Tensor) -> Tensor:  # [M, N, 3, K]
        own = z.gather(2, y.view(1, -1, 1, 1).expand(len(z), -1, 1, z.shape[-1])).squeeze(2)
        return z.logsumexp(2) - own

    expected = of_outputs(with_ones(x), 3, term, 8)
    return Problem(nn.Linear(d, 3), (x, y), {}, 50, n, expected, *flat(3 * (d + 1), 1.0))


def ordinal() -> Problem:
    n, d = 150, 4
    x = mixed(n, d)
    cuts = torch.tensor([-1.0, 1.5])
    y = (2 * x @ torch.randn(d) / math.sqrt(d) + torch.randn(n)).unsqueeze(1).gt(cuts).sum(1)

    def term(z: Tensor) -> Tensor:  # [M, N, 2, K], moved to the likelihood's own layout
        logits = z.movedim(2, -1)
        first, gap = logits[..., 0], logits[..., 1]
        second = first + softplus(gap)
        low, high = softplus(-first), softplus(second)
        middle = softplus(-second) + softplus(first) + softplus(-gap)
        which = y[:, None]
        return torch.where(which == 0, low, torch.where(which == 2, high, middle))

    options = {"likelihood": Ordinal(), "prior": 0.5}
    expected = of_outputs(with_ones(x), 2, term, 20)
    return Problem(nn.Linear(d, 2), (x, y), options, None, n, expected, *flat(2 * (d + 1), 0.5))


def yes_or_no(y: Tensor) -> Callable[[Tensor], Tensor]:
    return lambda z: softplus(z) - y[:, None] * z


def separable() -> Problem:
    """Classes without errors, under a wide prior with a mean, and a narrow one of the bias."""
    n, d = 60, 3
    x = mixed(n, d)
    y = (x @ torch.randn(d) > 0).double()
    centre = torch.tensor([1.0, -1.0, 2.0, 0.5])
    mean = {"weight": centre[None, :3], "bias": centre[3:]}
    options = {"likelihood": "binary", "prior": Prior(0.01, mean=mean, layers={"bias": 25.0})}
    precision = torch.tensor([0.01, 0.01, 0.01, 25.0])
    expected = of_logit(with_ones(x), yes_or_no(y), 80)
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, None, n, expected, precision, centre)


def more_parameters() -> Problem:
    """Than rows, in batches of five."""
    n, d = 25, 60
    x = torch.randn(n, d)
    y = (torch.rand(n) < torch.sigmoid(x @ torch.randn(d))).double()
    expected = of_logit(with_ones(x), yes_or_no(y))
    net, options = nn.Linear(d, 1), {"likelihood": "binary"}
    return Problem(net, (x, y[:, None]), options, 5, n, expected, *flat(d + 1, 1.0))


def dropped() -> Problem:
    """DropConnect on all of the weights: the mean over the 64 masks."""
    n, d, p = 100, 5, 0.3
    x = mixed(n, d)
    y = (torch.rand(n) < torch.sigmoid(x @ torch.randn(d))).double()
    masks = torch.tensor(list(itertools.product([0.0, 1.0], repeat=d + 1)))
    odds = (masks * (1 - p) + (1 - masks) * p).prod(1)
    inner = of_logit(with_ones(x), yes_or_no(y), 30)

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        each = [
            o * inner(m * k / (1 - p), sigma * k / (1 - p) + 1e-9)
            for o, k in zip(odds, masks, strict=True)
        ]
        return torch.stack(each).sum(0)

    options = {"likelihood": "binary", "method": DropConnect(p, layers="*")}
    prior = flat(d + 1, 1 - p)  # what dropping leaves of the L2
    return Problem(
        nn.Sequential(nn.Linear(d, 1)), (x, y[:, None]), options, None, n, expected, *prior
    )


def cold_counts() -> Problem:
    """kl_weight = 0.1, and a prior around 0.5."""
    n, d = 100, 4
    x = 0.7 * mixed(n, d)
    y = torch.poisson((x @ torch.randn(d) / math.sqrt(d)).clamp(max=3).exp())
    rows = with_ones(x)

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        mean, variance = m @ rows.T, sigma.square() @ rows.square().T
        return ((mean + variance / 2).exp() - y * mean).sum(-1)

    mean = {"weight": torch.full((1, d), 0.5), "bias": torch.full((1,), 0.5)}
    options = {"likelihood": "poisson", "prior": Prior(4.0, mean=mean), "kl_weight": 0.1}
    of_prior = torch.full((d + 1,), 4.0), torch.full((d + 1,), 0.5)
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, None, n, expected, *of_prior, 0.1)


def learned_noise() -> Problem:
    """log noise^2 = v is a parameter: E exp(-v) = exp(-m + sigma^2 / 2)."""
    n, d = 150, 4
    x = mixed(n, d)
    y = x @ torch.randn(d) + 0.3 * torch.randn(n)
    rows = with_ones(x)

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        v, w = (m[:, -1], sigma[:, -1]), (m[:, :-1], sigma[:, :-1])  # the last is log_variance
        sums = 2 * squares(rows, y, 1.0)(*w)
        return 0.5 * (n * v[0] + (-v[0] + v[1].square() / 2).exp() * sums)

    options = {"likelihood": "gaussian"}
    return Problem(nn.Linear(d, 1), (x, y[:, None]), options, 32, n, expected, *flat(d + 2, 1.0))


def labels() -> Problem:
    """Three labels, of which half are missing; kl_weight = 3."""
    n, d = 120, 3
    x = mixed(n, d)
    y = (torch.rand(n, 3) < torch.sigmoid(2 * x @ torch.randn(d, 3))).double()
    there = torch.rand(n, 3) < 0.5

    def expected(m: Tensor, sigma: Tensor) -> Tensor:
        total = torch.zeros(len(m))
        for k in range(3):
            own = torch.tensor([*range(k * d, k * d + d), 3 * d + k])
            part = there[:, k]
            inner = of_logit(with_ones(x)[part], yes_or_no(y[part, k]))
            total = total + inner(m[:, own], sigma[:, own])
        return total

    options = {"likelihood": Multilabel(missing="mask"), "kl_weight": 3.0}
    given = x, y.where(there, math.nan)
    return Problem(nn.Linear(d, 3), given, options, 40, n, expected, *flat(3 * (d + 1), 1.0), 3.0)


def weighted() -> Problem:
    """Rows that count between 0 and 3."""
    n, d = 90, 4
    x = mixed(n, d)
    y = (torch.rand(n) < torch.sigmoid(x @ torch.randn(d))).double()
    counts = 3 * torch.rand(n)
    each = yes_or_no(y)
    expected = of_logit(with_ones(x), lambda z: counts[:, None] * each(z))
    options, data = {"likelihood": "binary", "prior": 0.3}, Data((x, y[:, None]), weights=counts)
    return Problem(nn.Linear(d, 1), data, options, 30, n, expected, *flat(d + 1, 0.3))


KINDS: dict[str, Callable[[], Problem]] = {
    "student-t": student_t,
    "negative binomial": negative_binomial,
    "laplace": laplace,
    "collinear": collinear,
    "many scales": many_scales,
    "rare classes": rare_classes,
    "ordinal": ordinal,
    "separable": separable,
    "more parameters than rows": more_parameters,
    "dropconnect": dropped,
    "cold counts": cold_counts,
    "learned noise": learned_noise,
    "labels": labels,
    "weighted rows": weighted,
}
