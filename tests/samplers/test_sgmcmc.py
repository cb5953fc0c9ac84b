"""Stochastic-gradient MCMC against Gaussians whose moments are known, with their step's error too.

The posterior of a linear regression with fixed noise is Gaussian. With orthogonal columns each
weight d is on its own: precision a_d = |x_d|^2 / noise^2 + lambda, mean mu_d.
"""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.long import crossed
from tests.running import gather
from torch import Tensor, nn

import stochens
from stochens import InputError
from stochens.program import data_term
from stochens.samplers import sgmcmc_steps
from stochens.samplers.gradients import Gradient, batches, data_term_for
from stochens.samplers.problem import SamplerRequest, prepare
from stochens.samplers.sgmcmc import sgmcmc
from stochens.samplers.sgmcmc_plan import Cycle

N, NOISE, PRECISION = 20, 0.5, 2.0


def linear() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [N, 3], y [N], and of the posterior the precisions (3, 6 and 18) and the means, [3]."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(N, 4, generator=generator, dtype=torch.float64)
    x = torch.linalg.qr(noise[:, :3])[0] * torch.tensor([0.5, 1.0, 2.0])
    y = x @ torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64) + NOISE * noise[:, 3]
    a = x.square().sum(0) / NOISE**2 + PRECISION
    return x, y, a, x.T @ y / NOISE**2 / a


def draws_of(chains: int, at: Tensor | float = 0.0, **options) -> Tensor:
    """Draws of the linear posterior in float64, [chains, samples, 3]."""
    x, y, _, _ = linear()
    start = {"0.weight": torch.zeros(chains, 1, 3, dtype=torch.float64) + at}
    posterior = sgmcmc(
        nn.Sequential(nn.Linear(3, 1, bias=False)),
        (x, y),
        chains=chains,
        likelihood=stochens.Homoscedastic(NOISE),
        prior=PRECISION,
        start=start,
        device="cpu",
        **gather(precision="float64", **options),
    )
    return posterior.params["0.weight"].view(chains, -1, 3)


def check_moments(draws: Tensor, mean: Tensor, variance: Tensor, *, bias: float = 0.0) -> None:
    """Five standard errors, sqrt(var / n) of a mean and var sqrt(2 / n) of a variance, where n are
    draws far enough apart to count as independent. `bias` is a share of the variance."""
    flat = ((draws - mean) / variance.sqrt()).flatten(0, 1)  # [n, 3]
    n = len(flat)
    assert float(flat.mean(0).abs().max()) < 5 / math.sqrt(n)
    assert float((flat.square().mean(0) - 1).abs().max()) < 5 * math.sqrt(2 / n) + bias


# The target ---------------------------------------------------------------------------------------

# kind, preconditioner, lr, burn-in, thin: small steps, and draws at least two correlation times
# apart. The largest share lr a / (2 (1 + beta) N m) by which the variance is known to be too wide
# is that of a = 18: 0.018 for sgld, 0.019 for sghmc, and 0.018 or less with N m near sqrt(a).
SMALL_STEPS = [
    pytest.param("sgld", None, 0.04, 600, 300, marks=pytest.mark.long),
    ("sghmc", None, 0.08, 200, 80),
    pytest.param("csghmc", None, 0.08, 100, 100, marks=pytest.mark.long),
    ("sgld", "rmsprop", 0.01, 500, 200),
    pytest.param("sghmc", "rmsprop", 0.02, 200, 80, marks=pytest.mark.long),
    ("csghmc", "rmsprop", 0.02, 150, 100),
]


@pytest.mark.parametrize(("kind", "preconditioner", "lr", "burn_in", "thin"), SMALL_STEPS)
def test_a_gaussian_posterior_at_temperature_one(kind, preconditioner, lr, burn_in, thin):
    _, _, a, mu = linear()
    options = {"kind": kind, "preconditioner": preconditioner, "burn_in": burn_in, "thin": thin}
    if kind == "csghmc":
        options["cycles"] = 1
    draws = draws_of(1500, lr=lr, samples=2, **options)
    check_moments(draws, mu, 1 / a, bias=0.02)


# The discretised chain ----------------------------------------------------------------------------


STEPS = [("sgld", 0.0), ("sghmc", 0.9), ("sghmc", 0.5)]


@pytest.mark.parametrize(("step", "temperature"), crossed(STEPS, [1.0, 0.5], each=1))
def test_variance_of_large_steps_by_its_closed_form(step, temperature):
    """T / (a (1 - lr a / (2 (1 + beta) N))): up to 1.8 times the target's for steps this large."""
    kind, beta = step
    _, _, a, mu = linear()
    lr = 0.05 * N
    options = {"lr": lr, "momentum": beta, "temperature": temperature, "burn_in": 200}
    draws = draws_of(1000, kind=kind, thin=40, samples=6, **options)
    check_moments(draws, mu, temperature / (a * (1 - lr * a / (2 * (1 + beta) * N))))


@pytest.mark.parametrize(
    ("kind", "beta"), [("sgld", 0.0), pytest.param("sghmc", 0.9, marks=pytest.mark.long)]
)
def test_a_preconditioner_is_held_and_its_variance_known(kind, beta, monkeypatch):
    """The closed form of each chain and weight, with the s that it learned. One that went on
    learning would be 10 to 20 % too wide for sgld here."""
    _, _, a, mu = linear()
    scales: list[Tensor] = []
    real = sgmcmc_steps.step_scale

    def step_scale(*arguments, **how):
        scales.append(real(*arguments, **how))
        return scales[-1]

    monkeypatch.setattr(sgmcmc_steps, "step_scale", step_scale)
    options = {"kind": kind, "burn_in": 200, "thin": 60, "samples": 6, "lr": 0.04}
    draws = draws_of(1000, preconditioner="rmsprop", **options)
    assert not torch.equal(scales[198], scales[199])
    assert torch.equal(scales[199], scales[-1])
    s = scales[-1].unsqueeze(1)  # [chains, 1, 3]
    check_moments(draws, mu, 1 / (a * (1 - s.square() * a / (2 * (1 + beta)))))


def test_moments_of_a_cycle_by_their_recursion():
    """(q, p) of each weight is a linear system driven by noise: its moments, step by step."""
    _, _, a, mu = linear()
    lr, burn_in, thin, length, one = 0.02 * N, 30, 5, 60, torch.ones(3, dtype=torch.float64)
    mean = torch.stack([-mu, 0 * one], 1)  # of (q - mu, p), [3, 2]
    cov = torch.zeros(3, 2, 2, dtype=torch.float64)
    means, variances = [], []
    for step in range(2 * length):
        k = step % length
        s = math.sqrt(lr / 2 * (1 + math.cos(math.pi * k / length)) / N)
        rows = [1 - s * s * a, 0.9 * s * one, -s * a, 0.9 * one]
        system = torch.stack(rows, 1).view(3, 2, 2)
        kick = math.sqrt(2 * 0.1 * (k >= burn_in)) * torch.tensor([s, 1.0], dtype=torch.float64)
        mean = (system @ mean.unsqueeze(2)).squeeze(2)
        cov = system @ cov @ system.mT + kick.outer(kick)
        if k >= burn_in and (k - burn_in) % thin == thin - 1:
            means.append(mean[:, 0] + mu)
            variances.append(cov[:, 0, 0])
    options = {"kind": "csghmc", "lr": lr, "burn_in": burn_in, "thin": thin, "cycles": 2}
    draws = draws_of(4000, samples=12, **options)  # [4000, 12, 3]
    for j in range(12):  # one draw of each chain: independent
        check_moments(draws[:, j : j + 1], means[j], variances[j])


@settings(max_examples=6)
@given(st.floats(0.01, 10), st.floats(0, 0.95), st.booleans())
def test_noise_scales_with_the_root_of_the_temperature(temperature, beta, cyclical):
    """On a Gaussian the chain is linear in its noise: q_T - q_0 = sqrt(T) (q_1 - q_0), exactly."""
    kind = "csghmc" if cyclical else "sghmc"
    options = {"kind": kind, "momentum": beta, "lr": 0.2, "burn_in": 5, "thin": 3, "samples": 4}
    still, warm, hot = (draws_of(2, temperature=t, **options) for t in (0.0, 1.0, temperature))
    torch.testing.assert_close(hot - still, math.sqrt(temperature) * (warm - still))


# What a step is -----------------------------------------------------------------------------------


@pytest.mark.parametrize("preconditioner", [None, "rmsprop"])
def test_no_temperature_descends_to_the_mode(preconditioner):
    _, _, _, mu = linear()
    options = {"burn_in": 800, "samples": 1, "thin": 400, "temperature": 0.0}
    draws = draws_of(1, lr=0.05, preconditioner=preconditioner, **options)
    torch.testing.assert_close(draws[0, 0], mu, rtol=1e-6, atol=1e-6)


def test_lr_is_that_of_sgd_on_the_loss_of_fit(xor):
    """Without noise: torch's SGD with momentum on nll + lambda / 2 |theta|^2 / N."""
    x, y = xor
    net = stochens.MLP(2, 5, 2).double()
    params = [p.detach().clone().requires_grad_() for p in net.parameters()]
    start = {name: p.detach().unsqueeze(0) for name, p in net.named_parameters()}
    names = list(start)
    optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.8)
    for _ in range(20):
        outputs = torch.func.functional_call(net, dict(zip(names, params, strict=True)), x.double())
        loss = nn.functional.cross_entropy(outputs, y)
        loss = loss + 1.5 / 2 * sum(p.square().sum() for p in params) / len(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    options = {"burn_in": 0, "thin": 20, "samples": 1, "temperature": 0.0, "precision": "float64"}
    posterior = sgmcmc(
        net,
        xor,
        chains=1,
        start=start,
        lr=0.1,
        momentum=0.8,
        prior=1.5,
        **gather(**options),
    )
    for name, p in zip(names, params, strict=True):
        torch.testing.assert_close(posterior.params[name][0].cpu(), p.detach())


@given(
    st.integers(0, 30), st.integers(1, 5), st.integers(1, 6), st.integers(1, 4), st.floats(0.01, 1)
)
def test_the_cyclical_schedule(burn_in, thin, each, cycles, lr):
    plan = Cycle(lr, 0.9, 0.7, None, burn_in, thin, each * cycles, cycles, False)
    length = burn_in + each * thin
    moments = [plan.at(step) for step in range(plan.steps)]
    assert len(moments) == cycles * length
    assert sum(m.draws for m in moments) == each * cycles
    assert moments[-1].draws  # no step is wasted
    for step, now in enumerate(moments):
        k = step % length
        assert now.lr == pytest.approx(lr * math.cos(math.pi * k / (2 * length)) ** 2)
        assert now.temperature == (0.0 if k < burn_in else 0.7)
        assert not (now.draws and k < burn_in)
        assert not now.adapts


def test_a_preconditioned_cycle_ends_its_exploration_with_noise():
    plan = Cycle(0.1, 0.9, 1.0, "rmsprop", burn_in=250, thin=1, samples=10, cycles=1, cools=False)
    assert [plan.at(k).temperature for k in (0, 149, 150, 249, 250)] == [0.0, 0.0, 1.0, 1.0, 1.0]
    assert [plan.at(k).adapts for k in (0, 249, 250)] == [True, True, False]


# The variance of gradients as preconditioner ------------------------------------------------------


def test_fisher_goes_by_rmsprop_first_and_is_held_after_half_of_the_burn_in():
    plan = Cycle(0.1, 0.9, 1.0, "fisher", burn_in=400, thin=1, samples=10, cycles=None, cools=True)
    steps = (0, 149, 150, 199, 200, 400, 409)
    assert [plan.at(k).by_fisher for k in steps] == [False, False, True, True, True, True, True]
    assert [plan.at(k).adapts for k in steps] == [True, True, True, True, False, False, False]
    assert [plan.at(k).lr for k in steps] == [1e-3, 1e-3, *[0.1] * 5]
    assert plan.windows == ((50, 150), (200, 300))


def test_fisher_is_the_variance_of_one_examples_gradient():
    """Of the NLL: x_i (x_i . w - y_i) / noise^2 over rows drawn with replacement, averaged over the
    posterior of w. An average over a hundred steps is known to sqrt(2 / 199) in each of 400 chains;
    five of these, and 5 % for chains that step through the posterior and were not there at first.
    """
    x, y, a, mu = linear()
    start = {"weight": mu.expand(400, 1, 3)}
    posterior = sgmcmc(
        nn.Linear(3, 1, bias=False),
        (x, y),
        likelihood=stochens.Homoscedastic(NOISE),
        prior=PRECISION,
        start=start,
        **gather(
            chains=400, samples=1, burn_in=1200, batch_size=5, lr=1e-3,
            preconditioner="fisher", precision="float64", device="cpu",
        ),
    )  # fmt: skip
    assert posterior.chains is not None
    state = posterior.chains.state
    V = (state["spread"] / state["counts"][0]).mean(0)  # [3]
    generator = torch.Generator().manual_seed(1)
    w = mu + torch.randn(4000, 3, generator=generator, dtype=torch.float64) / a.sqrt()
    each = x * ((w @ x.T) - y).unsqueeze(2) / NOISE**2  # [4000, N, 3]
    exact = each.var(1, correction=0).mean(0)
    error = 5 * math.sqrt(2 / 199 / 400) + 0.05
    assert float((V / exact - 1).abs().max()) < error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": None}, "full batches have none: give a batch_size below 60"),
        ({"batch_size": 60}, "or use mclmc"),
        ({"burn_in": 399}, "a burn_in of at least 400 steps, got 399"),
        ({"kind": "csghmc"}, "use kind='sghmc'"),
    ],
)
def test_what_fisher_cannot_be_measured_from_is_refused(xor, options, words):
    options = {"burn_in": 400, "samples": 4, "batch_size": 10, **options}
    with pytest.raises(InputError, match=words):
        sgmcmc(stochens.MLP(2, 4, 2), xor, preconditioner="fisher", **options)


@settings(max_examples=15)
@given(st.integers(1, 60), st.integers(0, 1000))
def test_mini_batches_are_unbiased(batch_size, seed):
    """Over as many epochs as batches fill up, their plain mean is all of the data's gradient,
    exactly; and a random order makes every batch a random part of the data."""
    generator = torch.Generator().manual_seed(seed)
    data = (torch.randn(30, 2, generator=generator), torch.randint(2, (30,), generator=generator))
    net = stochens.MLP(2, 3, 2)
    run = stochens.Run(device="cpu", precision="float64")
    problem = prepare(SamplerRequest(net=net, data=data, members=3, seed=seed, run=run))
    q = torch.cat([p.flatten(1) for p in problem.start.values()], 1)
    gradient = Gradient(problem, data_term_for(problem, batch_size, 1).of)
    energy, g = gradient(q, None, 0)
    stream = batches(problem, batch_size)
    count = math.lcm(30, batch_size) // batch_size if batch_size < 30 else 1
    parts = [gradient(q, next(stream), 0) for _ in range(count)]
    mean_energy, mean_g = (sum(part) / count for part in zip(*parts, strict=True))
    torch.testing.assert_close(mean_energy, energy)
    torch.testing.assert_close(mean_g, g)


@pytest.mark.parametrize("batch_size", [None, 7])
def test_engines_agree(xor, batch_size):
    options = {"chains": 3, "samples": 4, "thin": 2, "burn_in": 10, "precision": "float64"}
    net = stochens.MLP(2, 4, 2)
    runs = [
        sgmcmc(
            net,
            xor,
            batch_size=batch_size,
            device="cpu",
            **gather(engine=engine, **options),
        ).params
        for engine in ("auto", "vmap", "loop")
    ]
    for other in runs[1:]:
        for name, p in runs[0].items():
            torch.testing.assert_close(other[name], p)


# Chains -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize(
    "options",
    [
        {"kind": "sgld"},
        {"preconditioner": "rmsprop"},
        {"preconditioner": "fisher", "burn_in": 400},
        {"kind": "csghmc", "cycles": 2},
    ],
)
def test_a_chain_is_the_same_in_any_company(xor, engine, options):
    options = {"samples": 4, "thin": 3, "burn_in": 9, "batch_size": 16, "device": "cpu", **options}
    net = stochens.MLP(2, 4, 2)
    two = sgmcmc(net, xor, chains=2, **gather(engine=engine, **options))
    five = sgmcmc(net, xor, chains=5, **gather(engine=engine, **options))
    for name, p in two.params.items():
        assert torch.equal(five.params[name][:8], p)
        assert len(p.flatten(1).unique(dim=0)) == 8  # and all draws differ
    assert torch.equal(five.chains.stats["likelihood"][:2], two.chains.stats["likelihood"])


def test_one_seed_repeats_and_another_differs(xor):
    options = {"chains": 2, "samples": 3, "thin": 2, "burn_in": 4, "batch_size": 16}
    start = stochens.fit(stochens.MLP(2, 4, 2), xor, method="regular", members=2, epochs=1)
    net = stochens.MLP(2, 4, 2)
    one, again, other = (
        sgmcmc(net, xor, start=start, seed=seed, **gather(**options)).params["0.weight"]
        for seed in (1, 1, 2)
    )
    assert torch.equal(one, again)
    assert not torch.equal(one, other)


def test_members_are_the_draws_of_chain_after_chain(xor):
    net = stochens.MLP(2, 4, 2)
    options = {"samples": 6, "thin": 2, "burn_in": 5, "cycles": 2, "prior": 3.0}
    posterior = sgmcmc(net, xor, kind="csghmc", chains=3, **gather(**options))
    assert len(posterior) == 18
    assert posterior.chains.count == 3
    stats = posterior.chains.stats
    assert {name: tuple(t.shape) for name, t in stats.items()} == {
        "likelihood": (3, 6),
        "prior": (3, 6),
        "step": (3, 6),
    }
    square = sum(p.double().square().flatten(1).sum(1) for p in posterior.params.values())
    torch.testing.assert_close(stats["prior"].flatten(), 1.5 * square.cpu())
    last = posterior.chain(2)
    assert torch.equal(last.params["0.weight"], posterior.params["0.weight"][12:])


def test_the_likelihood_recorded_is_that_of_the_step_that_led_to_the_draw(xor):
    """With thin = 1 and full batches: N nll of the draw before."""
    x, y = xor
    net = stochens.MLP(2, 4, 2)
    options = {"chains": 2, "samples": 5, "thin": 1, "burn_in": 0, "device": "cpu"}
    posterior = sgmcmc(net, xor, **gather(**options))
    probs = posterior.predict(x).probs.view(2, 5, 60, 2)
    nll = -probs.gather(3, y.expand(2, 5, 60).unsqueeze(3)).log().sum((2, 3))  # [2, 5]
    got = posterior.chains.stats["likelihood"]
    torch.testing.assert_close(got[:, 1:].float(), nll[:, :-1], rtol=1e-4, atol=1e-4)  # float32


def test_a_chain_that_diverges_is_named_and_harms_no_other():
    x = torch.linspace(-1, 1, 10).unsqueeze(1)
    net = stochens.MLP(1, 4, 4, 1, activation=nn.Identity)  # a ReLU would die, not diverge
    start = {
        name: torch.stack([p.detach(), torch.full_like(p, 30.0)])
        for name, p in net.named_parameters()
    }
    options = {"likelihood": stochens.Homoscedastic(0.5), "samples": 3, "thin": 5, "burn_in": 20}
    with pytest.warns(
        UserWarning, match=r"1 of 2 chains diverged \(chains \[1\]\), the first before"
    ):
        posterior = sgmcmc(net, (x, x), chains=2, start=start, device="cpu", **gather(**options))
    alone = {name: p[:1] for name, p in start.items()}
    one = sgmcmc(net, (x, x), chains=1, start=alone, device="cpu", **gather(**options))
    for name, p in one.params.items():
        assert torch.equal(posterior.chain(0).params[name], p)


def interrupted_at(call: int, monkeypatch) -> None:
    count = iter(range(1_000_000))
    real = Gradient.__call__

    def gradient(self, *arguments):
        if next(count) == call:
            raise KeyboardInterrupt
        return real(self, *arguments)

    monkeypatch.setattr(Gradient, "__call__", gradient)


def test_ctrl_c_keeps_the_draws(xor, monkeypatch):
    options = {"chains": 2, "samples": 5, "thin": 4, "burn_in": 10}
    net = stochens.MLP(2, 4, 2)
    whole = sgmcmc(net, xor, **gather(**options))
    interrupted_at(19, monkeypatch)  # after 2 draws, in the midst of the third
    with pytest.warns(UserWarning, match="stopped after 2 of 5 draws"):
        part = sgmcmc(net, xor, **gather(**options))
    assert part.chains.stats["step"].shape == (2, 2)
    for k in range(2):
        for name, p in part.chain(k).params.items():
            assert torch.equal(p, whole.chain(k).params[name][:2])


def test_ctrl_c_in_the_burn_in(xor, monkeypatch):
    interrupted_at(9, monkeypatch)
    with pytest.raises(KeyboardInterrupt, match="before its first draw"):
        sgmcmc(stochens.MLP(2, 4, 2), xor, burn_in=10, samples=2)


# Bad input ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "sghcm"}, "unknown kind 'sghcm'; did you mean 'sghmc'"),
        ({"preconditioner": "rmspop"}, "got 'rmspop'; did you mean 'rmsprop'"),
        ({"preconditioner": "rmsprop", "burn_in": 0}, "learned in the burn-in"),
        ({"burn_in": -1}, "burn_in must be a whole number, at least 0, got -1"),
        ({"burn_in": 1.5}, "burn_in must be a whole number"),
        ({"chains": 0}, "chains must be a whole number"),
        ({"samples": 0}, "samples must be a whole number"),
        ({"thin": 0}, "thin must be a whole number"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": -0.1}, "lr must be a positive number"),
        ({"lr": math.inf}, "lr must be a positive number"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\), got 1.0"),
        ({"momentum": -0.1}, r"momentum must be in"),
        ({"kind": "sgld", "momentum": 0.9}, "'sgld' has no momentum, got 0.9"),
        ({"temperature": -1.0}, "temperature must not be negative"),
        ({"temperature": math.nan}, "temperature must not be negative"),
        ({"cycles": 2}, "cycles are for kind='csghmc'"),
        ({"kind": "csghmc", "cycles": 0}, "cycles must be a whole number"),
        ({"kind": "csghmc", "cycles": 3, "samples": 10}, "the nearest that can is 9"),
        ({"kind": "csghmc", "cycles": 30, "samples": 10}, "the nearest that can is 30"),
        ({"prior": 0.0}, "prior must be a positive number"),
        ({"start": "nowhere"}, "start must be"),
        ({"engine": "gpu"}, "engine must be"),
        ({"likelihood": "categoricl"}, "unknown likelihood"),
        ({"precision": "float16"}, "unknown precision"),
    ],
)
def test_bad_options(xor, options, message):
    with pytest.raises(InputError, match=message):
        sgmcmc(nn.Linear(2, 2), xor, **gather(**options))


def test_bad_networks_and_starts(xor):
    with pytest.raises(InputError, match="engine='fused' runs"):
        sgmcmc(nn.Sequential(nn.Linear(2, 2), nn.GELU()), xor, run=stochens.Run(engine="fused"))
    with pytest.raises(InputError, match="the network is stochastic"):
        sgmcmc(stochens.stochastic(stochens.MLP(2, 4, 2), "dropout"), xor)
    start = {"weight": torch.zeros(2, 2, 2), "bias": torch.zeros(2, 2)}
    start["bias"][1, 0] = math.inf
    with pytest.raises(InputError, match="chain 1 cannot start"):
        sgmcmc(nn.Linear(2, 2), xor, chains=2, start=start)


@pytest.mark.filterwarnings("ignore:2 draws of each chain")
@pytest.mark.parametrize(("engine", "fast"), [("auto", True), ("fused", True), ("vmap", False)])
def test_the_kernel_serves_unless_another_engine_is_asked_for(xor, monkeypatch, engine, fast):
    asked, kernel = [], data_term._kernel

    def told(*args):
        asked.append(args)
        return kernel(*args)

    monkeypatch.setattr(data_term, "_kernel", told)
    run = stochens.Run(engine=engine, device="cpu")
    sgmcmc(stochens.MLP(2, 4, 2), xor, chains=2, burn_in=2, samples=2, run=run)
    assert bool(asked) == fast
