"""Gaussian members by natural gradients, against the exact fixed point of a linear model, a plain
loop in float64 and the authors' own package."""

import math
import warnings
from typing import Any

import pytest
import torch
from tests.long import long_but
from tests.tolerance import close
from tests.training.natural_line import NOISE, N, exact, hold, noisy_line
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import Natural, Prior
from stochens.errors import InputError
from stochens.likelihoods import Homoscedastic
from stochens.randomness.noise import hashed_words, normal_numbers
from stochens.randomness.seeds import NATURAL, derive
from stochens.training.arrival import _surely
from stochens.training.natural import MOST, NaturalGradient


@pytest.fixture
def line(float64) -> tuple[Tensor, Tensor]:
    return noisy_line()


def fitted(x: Any, y: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
    """Mean and sigma of (weight, bias) for each member, [M, 3]."""
    given: dict[str, Any] = {"epochs": 1200, "batch_size": None, "members": 48}
    given |= {"likelihood": Homoscedastic(NOISE)}
    given |= {"optimizer": "natural", **options}
    data = x if y is None else (x, y)
    posterior = stochens.fit(nn.Linear(2, 1), data, method="regular", **given)
    assert posterior.low_rank is not None
    variance = posterior.low_rank.variance
    return (
        torch.cat([posterior.params["weight"].flatten(1), posterior.params["bias"]], 1),
        torch.cat([variance["weight"].flatten(1), variance["bias"]], 1).sqrt(),
    )


PRIORS = {
    "default": (1.0, torch.ones(3), torch.zeros(3)),
    "precision": (30.0, torch.full((3,), 30.0), torch.zeros(3)),
    "mean and layers": (
        Prior(
            2.0,
            mean={"weight": torch.tensor([[1.0, -1.0]]), "bias": torch.tensor([0.5])},
            layers={"bias": 50.0},
        ),
        torch.tensor([2.0, 2.0, 50.0]),
        torch.tensor([1.0, -1.0, 0.5]),
    ),
}


@pytest.mark.parametrize("prior", long_but({"mean and layers"}, PRIORS))
def test_the_fixed_point_of_a_linear_model(line, prior):
    given, precision, mean = PRIORS[prior]
    hold(
        *fitted(*line, prior=given), *exact(*line, precision=precision.double(), mean=mean.double())
    )


@pytest.mark.parametrize(
    ("noise", "scale", "precision"),
    [(0.05, 1.0, 1.0), (0.5, 100.0, 1.0), (0.5, 0.01, 1.0), (0.5, 1.0, 0.01), (0.5, 1.0, 100.0)],
)
def test_at_scales_far_from_one(float64, noise, scale, precision):
    """Up to thousands of sigmas from the optimum at the start, and curvatures up to 4e4. The
    constants of natural.py were settled on these; test_natural_held_out.py has others."""
    x = scale * torch.randn(N, 2)
    y = (x @ torch.tensor([1.0, -2.0]) / scale + noise * torch.randn(N))[:, None]
    m, sigma = fitted(x, y, likelihood=Homoscedastic(noise), prior=precision, epochs=600)
    rows = torch.cat([x, torch.ones(N, 1)], 1)
    total = rows.T @ rows / noise**2 + precision * torch.eye(3)
    hold(m, sigma, torch.linalg.solve(total, rows.T @ y[:, 0] / noise**2), total)


def test_a_training_that_has_not_arrived_says_so(line):
    with pytest.warns(stochens.errors.TrainingAdvice, match="have not arrived: .* 3 of 3 members"):
        fitted(*line, members=3, epochs=100, lr=1e-4)


def test_what_is_gained_at_least():
    """Two draws of each of four batches, of which the last counts half: the weighted mean less
    three standard errors, and, for a long tail, of what is cut off at 10 or 1."""
    shares = torch.tensor([2.0, 2.0, 2.0, 1.0])[:, None] / 7
    gain = torch.tensor([[1.0, 5e8], [2.0, 30.0], [3.0, 40.0], [10.0, 50.0]])
    even, short = _surely(gain, gain, shares, whole=True), _surely(gain, gain, shares, whole=False)
    assert even.tolist() == pytest.approx([22 / 7, (1e9 + 140 + 50) / 7])
    each = gain[:, 0] - 22 / 7
    usual = 22 / 7 - 3 * float((shares[:, 0] * each).square().sum().sqrt())
    assert short.tolist() == pytest.approx([max(usual, 1.0), 10.0])
    nothing = _surely(torch.full((4, 1), -torch.inf), gain[:, :1], shares, whole=False)
    assert not nothing > 0


def test_draws_of_a_long_tail_are_told(float64):
    """Counts of mean exp(z), where z has a standard deviation of 10 under the first sigma: its mean
    is e^50 times its median, so that one draw is all of a mean over draws and of its error."""
    x = torch.randn(100, 4)
    y = torch.poisson(torch.ones(100, 1))
    too_wide = Natural(sigma=5.0, memory=1e9)
    options = {"likelihood": "poisson", "prior": 1e-4, "members": 8, "epochs": 1, "lr": 1e-9}
    with pytest.warns(stochens.errors.TrainingAdvice, match="have not arrived: .* 8 of 8 members"):
        stochens.fit(nn.Linear(4, 1), (x, y), method="regular", optimizer=too_wide, **options)


@pytest.mark.parametrize("scale", long_but({100.0}, [1.0, 100.0]))
def test_a_network_does_not_run_away(xor, scale):
    """Under a wide prior a first gradient is far more than the curvature that is known of: without
    a bound on a step all members diverge."""
    net = nn.Sequential(nn.Linear(2, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 2))
    data = scale * xor[0], xor[1]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        posterior = stochens.fit(
            net, data, method="np-dropout", optimizer="natural", members=8, epochs=300, prior=0.1
        )
    assert not [one for one in seen if "diverged" in str(one.message)]
    largest = max(float(p.abs().max()) for p in posterior.params.values())
    assert largest < 100 * 0.1**-0.5


def test_what_lies_far_from_the_prior_is_found(line):
    """The optimum is 200 standard deviations of the prior away, and a step is at most a tenth of
    the way that has been gone."""
    x, y = line
    total = 100.0 * torch.ones(3).double()
    hold(*fitted(x, 40 * y, prior=100.0), *exact(x, 40 * y, precision=total, mean=0 * total))


def test_what_the_prior_alone_asks_for_counts(line):
    """No row knows the second weight, so that only the prior can say that 30 is far off; the others
    are where the rows want them."""
    x, y = line[0] * torch.tensor([1.0, 0.0]), line[1]
    slope, bias = torch.linalg.lstsq(torch.cat([x[:, :1], torch.ones(N, 1)], 1), y).solution
    far = {"weight": torch.stack([slope, torch.tensor([30.0])], 1), "bias": bias}
    with pytest.warns(stochens.errors.TrainingAdvice, match="have not arrived"):
        fitted(x, y, members=3, epochs=100, lr=1e-4, start=stochens.Start(far, jitter=1e-3))


def test_each_member_has_a_prior_of_its_own(line):
    mean = torch.randn(48, 3)
    prior = Prior(20.0, mean={"weight": mean[:, None, :2], "bias": mean[:, 2:]})
    precision = torch.full((3,), 20.0)
    hold(*fitted(*line, prior=prior, epochs=600), *exact(*line, precision=precision, mean=mean))


def test_a_temperature_of_likelihood_and_prior(line):
    """(likelihood * prior)^(1 / T) has the same mean, and T times the variance."""
    precision = torch.full((3,), 3.0)
    mean, total = exact(*line, precision=precision, mean=torch.zeros(3))
    hold(*fitted(*line, kl_weight=0.2, prior=3.0 / 0.2, epochs=600), mean, total / 0.2)


def test_the_weight_of_the_kl(line):
    truth = exact(*line, precision=torch.ones(3).double(), mean=torch.zeros(3), weight=4.0)
    hold(*fitted(*line, kl_weight=4.0), *truth)


def test_mini_batches_with_a_short_one(line):
    """60 rows in batches of 16: the last has 12, and counts by its rows."""
    truth = exact(*line, precision=torch.ones(3).double(), mean=torch.zeros(3).double())
    hold(*fitted(*line, batch_size=16, epochs=300), *truth)


def one_row_more() -> tuple[Tensor, Tensor]:
    """129 rows, of which the last is 2.5 standard deviations of the noise off."""
    x, noise = torch.randn(129, 2), NOISE * torch.randn(129)
    noise[-1] = 2.5 * NOISE
    return x, (x @ torch.tensor([1.0, -2.0]) + 0.3 + noise)[:, None]


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_one_row_after_128_counts_as_much_as_each_of_them(float64, momentum):
    """A loader in a fixed order. As a whole step, the row brought means 4 to 13 sigmas off."""
    data = one_row_more()
    truth = exact(*data, precision=torch.ones(3), mean=torch.zeros(3))
    loader = DataLoader(TensorDataset(*data), batch_size=128)
    options = {"epochs": 400, "optimizer": Natural(momentum=momentum), "batch_size": 128}
    hold(*fitted(loader, **options), *truth)


@pytest.mark.filterwarnings("ignore:natural gradients have not arrived")  # of some sigmas
def test_the_example_that_was_wrong(float64):
    """100 once and 0 else, whose mean by the prior is 100 / 130: it came out as 47."""
    x, y = torch.zeros(129, 1), torch.zeros(129, 1)
    y[-1] = 100.0
    loader = DataLoader(TensorDataset(x, y), batch_size=128)
    options = {"method": "regular", "optimizer": "natural", "members": 48, "epochs": 400}
    posterior = stochens.fit(nn.Linear(1, 1), loader, likelihood=Homoscedastic(1.0), **options)
    found = posterior.params["bias"]
    assert abs(float(found.mean()) - 100 / 130) < 5 * float(found.std()) / math.sqrt(48)
    assert found.std() < 0.5  # the row is a hundred standard deviations off, and sigmas are noisy


def test_each_batch_as_a_whole_one_is_no_place_to_arrive(float64):
    """The mean of two batches' own best places, where the training went that was wrong. The check
    found nothing better there, since it chose among places as if each batch were whole."""
    (x, y), ones = one_row_more(), torch.ones(3)
    halves = [(x[:-1], y[:-1]), (x[-1:], y[-1:])]
    rows = [torch.cat([part, torch.ones(len(part), 1)], 1) for part, _ in halves]
    a, b = (
        sum(one / len(r) for one, r in zip(each, rows, strict=True))
        for each in (
            [r.T @ r for r in rows],
            [r.T @ part for r, (_, part) in zip(rows, halves, strict=True)],
        )
    )
    place = torch.linalg.solve(a + 2 / 129 * NOISE**2 * ones.diag(), b)[:, 0]
    start = {"weight": place[None, None, :2].expand(3, 1, 2), "bias": place[None, 2:].expand(3, 1)}
    loader = DataLoader(TensorDataset(x, y), batch_size=128)
    with pytest.warns(stochens.errors.TrainingAdvice, match="arrived: .* 3 of 3 members"):
        fitted(
            loader,
            members=3,
            epochs=100,
            lr=1e-9,
            batch_size=128,
            optimizer=Natural(sigma=NOISE / math.sqrt(129), memory=1e9),
            start=stochens.Start(start, jitter=1e-3),
        )


def test_a_step_counts_by_its_share(float64):
    """One number, m = 1 and sigma = 0.1, with a mean NLL of 3 theta and half a step."""
    n, delta, lr, share, forget = 8, 0.25, 0.3, 0.5, 0.1
    m = {"w": torch.ones(1, 1)}
    given = {"lr": lr, "examples": n, "slopes": {"w": n * delta}, "means": None, "steps": 5}
    options = Natural(sigma=0.1, memory=1 / forget)
    made = NaturalGradient(m, options, members=(0,), seed=0, centred=False, **given)
    made.param_groups[0]["share"] = share
    theta = made.draw(0)["w"]
    away = float(theta.detach()) - 1
    (share * 3 * theta).sum().backward()
    made.step()
    a = forget * share * (n * (3 * away + delta * 0.01) - 1)
    assert abs(a) < MOST
    variance = 0.01 / (1 + a + a**2 / 2)
    assert float(made.gaussian().variance["w"]) == pytest.approx(variance, rel=1e-12)
    assert float(m["w"]) == pytest.approx(1 - lr * share * n * variance * (3 + delta), rel=1e-12)


@pytest.mark.parametrize(("momentum", "cut"), [(0.9, False), (0.0, False), (0.9, True)])
def test_steps_of_any_shares_are_the_plain_loop(float64, momentum, cut):
    """What a gradient says is poured into a bucket, by the share of its step, and each step takes a
    part of what is there: b^s of it stays."""
    n, delta, lr, forget, shares = 8, 0.25, 0.3, 0.1, [1.0, 0.01, 0.25, 2.5, 1.0]
    want = 30.0 if cut else 0.5
    m, v = 1.0, 1 / (n * 0.1**2)
    params = {"w": torch.ones(1, 1)}
    given = {"lr": lr, "examples": n, "slopes": {"w": n * delta}, "means": None, "steps": 5}
    options = Natural(sigma=0.1, memory=1 / forget, momentum=momentum)
    made = NaturalGradient(params, options, members=(0,), seed=0, **given)
    bucket = total = last = 0.0
    was_cut = False
    for t, share in enumerate(shares):
        made.param_groups[0]["share"] = share
        theta = made.draw(t)["w"]
        (share * 1.5 * (theta - want).square()).sum().backward()
        made.step()
        eps = float(own_draws({"w": theta}, [0], 0, t)["w"])
        sigma = (n * v) ** -0.5
        g = 3 * (m + sigma * eps - want)
        if t > 0:
            h = (g - (1 - momentum) * bucket / (1 - momentum**total)) * eps / sigma
            a = max(-MOST, min(MOST, share * forget * (h + delta - v) / v))
            v *= 1 + a + a**2 / 2
        bucket = momentum**last * bucket + share * g
        total, last = total + share, share
        taken = (1 - momentum**share) * bucket / (1 - momentum**total)
        step = (taken + share * delta * m) / v
        most = max(abs(m), (n * delta) ** -0.5) * max(1.0, share)
        was_cut |= abs(step) > most
        m -= lr * max(-most, min(most, step))
        tolerance = close(torch.float64, terms=10, depth=3 * (t + 1), condition=100)
        torch.testing.assert_close(float(params["w"]), m, **tolerance)
        torch.testing.assert_close(float(made.gaussian().variance["w"]), 1 / (n * v), **tolerance)
    assert was_cut == cut


@pytest.mark.filterwarnings("ignore:natural gradients have not arrived")
@pytest.mark.parametrize("stop", [1, 3, 5])  # inside an epoch of three steps, and at its end
def test_a_training_that_goes_on_knows_what_has_been_counted(line, tmp_path, monkeypatch, stop):
    """60 rows in batches of 26: the third has 8, and the step after it forgets by its share."""
    options = {"members": 2, "epochs": 3, "batch_size": 26}
    whole = fitted(*line, **options)
    run, step = stochens.Run(checkpoint=tmp_path, every=0.0), NaturalGradient.step
    left = stop

    def stopping(self: NaturalGradient) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        step(self)

    monkeypatch.setattr(NaturalGradient, "step", stopping)
    with pytest.raises(KeyboardInterrupt):
        fitted(*line, run=run, **options)
    left = 9
    again = fitted(*line, run=run, **options)
    assert left == stop  # the others were not done again
    assert all(torch.equal(a, b) for a, b in zip(again, whole, strict=True))


def own_draws(params, members, seed, step):
    """eps of each member by definition: one stream for all of its parameters, in their order."""
    count = sum(p[0].numel() for p in params.values())
    first = torch.tensor([derive(seed, NATURAL)]) + step
    eps = normal_numbers(hashed_words(torch.tensor(members), first, 0, (count,)), torch.float64)
    sizes = [p[0].numel() for p in params.values()]
    parts = eps.split(sizes, dim=1)
    return {n: part.reshape(p.shape) for part, (n, p) in zip(parts, params.items(), strict=True)}


@pytest.mark.parametrize(
    ("precision", "wide", "steps", "cut"), [(2.0, 0.2, 12, False), (0.01, 5.0, 2, True)]
)
def test_it_is_the_plain_loop(float64, xor, precision, wide, steps, cut):
    """The equations of natural.py, word for word, one member at a time. Under the wide prior
    some steps are cut off; a step there magnifies an error of the gradient by N sigma^2, so that
    there are two."""
    x, y = xor[0].double(), xor[1]
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    lr, members, was_cut = 0.3, (3, 8), False
    options = Natural(sigma=wide, memory=20.0, schedule="constant", warmup=0.0)
    done = {"members": members, "epochs": steps, "batch_size": None, "lr": lr, "seed": 4}
    done |= {"prior": precision}
    posterior = stochens.fit(net, (x, y), method="regular", optimizer=options, **done)
    begun = stochens.fit(net, (x, y), method="regular", **{**done, "epochs": 1, "lr": 1e-300})
    n, delta, forget = len(x), precision / len(x), 1 / 20.0
    for row, member in enumerate(members):
        m = {name: p[row].clone() for name, p in begun.params.items()}
        v = {name: torch.full_like(p, 1 / (n * wide**2)) for name, p in m.items()}
        mean = {name: torch.zeros_like(p) for name, p in m.items()}
        for t in range(steps):
            eps = own_draws({k: p[None] for k, p in m.items()}, [member], 4, t)
            sigma = {k: (n * v[k]) ** -0.5 for k in m}
            theta = {k: (m[k] + sigma[k] * eps[k][0]).requires_grad_() for k in m}
            loss = nn.functional.cross_entropy(functional_call(net, theta, (x,)), y)
            gradient = dict(zip(m, torch.autograd.grad(loss, list(theta.values())), strict=True))
            for k, g in gradient.items():
                if t > 0:
                    h = (g - mean[k] / (1 - 0.9**t)) * eps[k][0] / sigma[k]
                    a = (forget * (h + delta - v[k]) / v[k]).clamp(-MOST, MOST)
                    v[k] = v[k] * (1 + a + a**2 / 2)
                mean[k] = 0.9 * mean[k] + 0.1 * g
                step = (mean[k] / (1 - 0.9 ** (t + 1)) + delta * m[k]) / v[k]
                most = m[k].abs().clamp_min(precision**-0.5)
                was_cut |= bool((step.abs() > most).any())
                m[k] = m[k] - lr * step.clamp(-most, most)
        growth = max(100.0, n * wide**2)
        tolerance = close(torch.float64, terms=60, depth=3 * steps, condition=growth)
        for k in m:
            torch.testing.assert_close(posterior.params[k][row], m[k], **tolerance)
            found = posterior.low_rank.variance[k][row]
            torch.testing.assert_close(found, 1 / (n * v[k]), **tolerance)
    assert was_cut == cut


def test_it_is_the_authors_optimiser(float64, xor, monkeypatch):
    ivon = pytest.importorskip("ivon", reason="needs the authors' package: pip install ivon-opt")
    x, y = xor[0].double(), xor[1]
    net = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 2))
    n, precision, curvature = len(x), 2.0, 0.3
    first = {name: p.detach()[None].clone() for name, p in net.named_parameters()}
    ours = {name: p.clone() for name, p in first.items()}
    delta = precision / n
    sigma = (n * (curvature + delta)) ** -0.5
    mine = NaturalGradient(
        ours,
        Natural(sigma=sigma, memory=100.0),
        lr=0.2,
        examples=n,
        slopes=dict.fromkeys(ours, precision),
        means=None,
        steps=10,
        members=(5,),
        seed=1,
        centred=False,
    )
    theirs = ivon.IVON(
        net.parameters(), lr=0.2, ess=n, hess_init=curvature, beta2=0.99, weight_decay=delta,
        rescale_lr=False,
    )  # fmt: skip
    for t in range(10):
        theta = mine.draw(t)
        nn.functional.cross_entropy(
            functional_call(net, {k: p[0] for k, p in theta.items()}, (x,)), y
        ).backward()
        mine.step()
        eps = torch.cat([e.flatten() for e in own_draws(first, [5], 1, t).values()])
        monkeypatch.setattr(torch, "randn", lambda *a, eps=eps, **k: eps)
        with theirs.sampled_params(train=True):
            theirs.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
        monkeypatch.undo()
        theirs.step()
    tolerance = close(torch.float64, terms=60, depth=30, condition=100)
    for name, p in net.named_parameters():
        torch.testing.assert_close(ours[name][0], p.detach(), **tolerance)
    variance = torch.cat([v.flatten() for v in mine.gaussian().variance.values()])
    hess = theirs.param_groups[0]["hess"]
    torch.testing.assert_close(variance, 1 / (n * (hess + delta)), **tolerance)


def test_its_kl_is_that_of_gaussians(xor):
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    posterior = stochens.fit(
        net, xor, method="regular", optimizer="natural", members=3, epochs=5, prior=3.0
    )
    q = [
        torch.distributions.Normal(p.double(), posterior.low_rank.variance[n].double().sqrt())
        for n, p in posterior.params.items()
    ]
    prior = torch.distributions.Normal(0.0, torch.tensor(3.0).double() ** -0.5)
    each = sum(torch.distributions.kl_divergence(one, prior).flatten(1).sum(1) for one in q)
    kl = posterior.kl()
    assert kl.l2 + kl.constant == pytest.approx(float(each.mean()), rel=1e-9)
    assert kl.ensembling == -math.log(3)


@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout"])
def test_it_goes_with_other_methods(xor, method):
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    posterior = stochens.fit(
        net, xor, method=method, optimizer="natural", members=4, epochs=60, batch_size=20
    )
    assert posterior.history.loss[-1].mean() < posterior.history.loss[0].mean() - 10
    assert set(posterior.low_rank.variance) == set(posterior.params)
    two = posterior.predict(xor[0], draws=2).probs.view(2, 4, 60, 2)
    assert not torch.equal(two[0], two[1])
    assert torch.isfinite(torch.tensor(posterior.kl().total))


def test_blocks_of_members_are_the_same(xor):
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    options = {"method": "dropout", "optimizer": "natural", "epochs": 4, "batch_size": 20}
    whole = stochens.fit(net, xor, members=5, **options)
    some = stochens.fit(net, xor, members=[1, 4], **options)
    for name, p in some.params.items():
        assert torch.equal(whole.params[name][[1, 4]], p)
        assert torch.equal(whole.low_rank.variance[name][[1, 4]], some.low_rank.variance[name])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "gaussian"}, "use another method than 'gaussian'"),
        ({"optimizer": Natural(sigma=2.0)}, "wider than the prior"),
        ({"kl_weight": 0.0}, "kl_weight above 0"),
    ],
)
def test_what_does_not_go_together_is_refused(xor, options, says):
    given = {"method": "regular", "optimizer": "natural", "members": 2, "epochs": 1}
    with pytest.raises(InputError, match=says):
        stochens.fit(nn.Linear(2, 2), xor, **{**given, **options})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"sigma": 0.0}, "sigma"),
        ({"momentum": 1.0}, "momentum"),
        ({"memory": 0.5}, "memory"),
        ({"warmup": -0.1}, "warmup"),
        ({"schedule": "step"}, "schedule"),
    ],
)
def test_options_out_of_range_are_refused(options, says):
    with pytest.raises(InputError, match=says):
        Natural(**options)


def test_averages_of_a_tail_are_for_plain_members(xor):
    with pytest.raises(InputError, match="averages of the tail"):
        stochens.multiswa(nn.Linear(2, 2), xor, members=2, epochs=2, optimizer="natural")
