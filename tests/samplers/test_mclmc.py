"""`mclmc`: one step against a plain loop, densities in closed form, and what it says of itself."""

import math

import pytest
import torch
from tests.long import long_but
from tests.samplers.density import Density, bits, classes, curve, small_net
from tests.samplers.going_on import quiet, same
from tests.samplers.mclmc_density import keys, sample
from tests.samplers.truth import Linear
from tests.tolerance import close
from torch import nn

import stochens
from stochens import InputError, Run
from stochens.posterior.chains import Chains
from stochens.samplers import mclmc_run, mclmc_steps
from stochens.samplers.chain_arrival import arrival_troubles, measure_arrival
from stochens.samplers.diagnostics import RHAT_LIMIT, SamplingWarning
from stochens.samplers.mclmc_plan import Schedule
from stochens.samplers.mixing import mixing

RIGHT = 0.05  # of a standard deviation


# -- one step -------------------------------------------------------------------------------------


def turned(u: list[float], g: list[float], h: float) -> tuple[list[float], float]:
    """The equations of mclmc_steps.py as they stand there, in cosh and sinh."""
    size = math.sqrt(sum(x * x for x in g))
    e, delta = [-x / size for x in g], h * size / (len(g) - 1)
    along = sum(a * b for a, b in zip(e, u, strict=True))
    r = math.cosh(delta) + along * math.sinh(delta)
    push = math.sinh(delta) + along * (math.cosh(delta) - 1)
    new = [(a + b * push) / r for a, b in zip(u, e, strict=True)]
    return new, (len(g) - 1) * math.log(r)


def flat(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(len(q)).double(), torch.zeros_like(q)


def test_a_step_to_infinity_is_none():
    """Where nothing slopes it makes no error in the energy, and its direction stays finite."""
    at = mclmc_steps.initial(torch.ones(1, 2), torch.ones(1, 2), 1.0, flat)
    at = at._replace(scale=at.scale * 1e38, size=at.size * 0 + 10, length=at.length * 0 + 10)
    new, error = mclmc_steps.move_members(at, torch.zeros(1, 2), flat)
    assert bool(error.isnan())
    assert torch.equal(new.q, at.q)
    assert new.failed.tolist() == [1]
    torch.testing.assert_close(new.u, -at.u)


@pytest.mark.parametrize(("warmup", "learns"), [(100, False), (10_000, True)])
def test_a_few_steps_say_nothing_of_variances(warmup, learns):
    plan = Schedule(0, warmup, 10, 1, 1e-3, False, 1.0)
    at = mclmc_steps.initial(torch.ones(1, 2), torch.ones(1, 2), 1.0, flat)
    at = at._replace(square=at.square + 8, seen=at.seen + 2)
    assert (mclmc_run._learned(plan, at) is at) is not learns


def test_a_step_is_its_equations():
    """On U = sum_i (a_i q_i^2 / 2 + q_i^4 / 4), one chain at a time in Python's own numbers."""
    a, M, h, L = [1.0, 4.0, 0.3], 2, 0.3, 1.7
    density = Density(lambda q: (0.5 * torch.tensor(a, dtype=q.dtype) * q**2 + q**4 / 4).sum(1))
    generator = torch.Generator().manual_seed(0)
    q, n = (torch.randn(M, 3, generator=generator, dtype=torch.float64) for _ in range(2))
    scale = torch.tensor([[0.5, 1.0, 2.0], [1.0, 1.0, 1.0]], dtype=torch.float64)
    at = mclmc_steps.initial(q, n, 1.0, density)
    at = at._replace(scale=scale, size=at.size * 0 + h, length=at.length * 0 + L)
    key = keys(M)
    new = mclmc_run.plain_mover(key, density)(at, 7, 1, None, False)
    for m in range(M):
        s = scale[m].tolist()
        here, u = q[m].tolist(), at.u[m].tolist()

        def slope(here: list[float], s: list[float] = s) -> list[float]:
            return [k * (c * x + x**3) for k, c, x in zip(s, a, here, strict=True)]

        def energy(here: list[float]) -> float:
            return sum(0.5 * c * x * x + x**4 / 4 for c, x in zip(a, here, strict=True))

        before, kinetic = energy(here), 0.0
        for share in (mclmc_steps.TURN, 1 - 2 * mclmc_steps.TURN, mclmc_steps.TURN):
            u, change = turned(u, slope(here), share * h)
            kinetic += change
            if share != mclmc_steps.TURN or here == q[m].tolist():
                here = [x + 0.5 * h * k * v for x, k, v in zip(here, s, u, strict=True)]
        radius = [
            math.sqrt(-2 * math.log(((bits(int(key[m]), 7, 0, i) >> 12) + 0.5) * 2.0**-52))
            for i in range(3)
        ]
        angle = [((bits(int(key[m]), 7, 0, i + 3) >> 12) + 0.5) * 2.0**-52 for i in range(3)]
        nu = math.sqrt(math.expm1(2 * h / L) / 3)
        u = [
            v + nu * r * math.cos(2 * math.pi * t) for v, r, t in zip(u, radius, angle, strict=True)
        ]
        length = math.sqrt(sum(v * v for v in u))
        within = close(torch.float64, terms=3, depth=20, condition=10)
        assert new.q[m].tolist() == pytest.approx(here, rel=within["rtol"])
        assert new.u[m].tolist() == pytest.approx([v / length for v in u], rel=within["rtol"])
        error = energy(here) - before + kinetic
        assert float(new.errors[m]) == pytest.approx(error**2, rel=1e-9)


def test_an_error_falls_like_the_cube_of_the_step():
    """So that its square falls like h^6, which is what h is learned by."""
    density = Density(lambda q: (0.5 * q**2 + q**4 / 4).sum(1))
    q = torch.randn(200, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    at = mclmc_steps.initial(q, q.flip(0), 1.0, density)
    errors = [
        mclmc_steps.flow(at._replace(size=at.size * 0 + h), density)[1].square().mean().sqrt()
        for h in (0.02, 0.01)
    ]
    assert float(errors[0] / errors[1]) == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [("categorical", 2), (stochens.Homoscedastic(0.3), 1), ("heteroscedastic", 2)],
    ids=["classes", "one-noise", "heteroscedastic"],
)
@pytest.mark.parametrize("target", [None, 0.9], ids=["plain", "trials"])
@quiet
def test_the_kernel_takes_the_same_steps_as_torch(likelihood, outputs, target, monkeypatch):
    """12 steps of each kind: a difference of rounding grows in them by about a thousand. Trials
    are of one to four steps here, so that some of them end."""

    def two_steps(plan, state, rows):
        return state._replace(length=2 * state.size)

    monkeypatch.setattr(mclmc_run, "_with_length", two_steps)
    net = small_net(nn.Tanh, outputs, bias=outputs == 2).double()
    data = classes() if likelihood == "categorical" else curve()
    options = {"members": 2, "draws_per_member": 4, "thin": 1, "warmup": 8, "training": 2}
    options |= {"target_accept": target}
    run = stochens.mclmc(net, data, likelihood=likelihood, **options)
    used = []
    monkeypatch.setattr(mclmc_run, "_compiled", lambda *_: used.append(1))
    twin = stochens.mclmc(net, data, likelihood=likelihood, **options)
    assert used
    if target is not None:
        assert int(twin.chains.state["trial ended"].min()) > 1
    within = close(torch.float64, terms=37, depth=6 * 14, condition=1e3)
    for name, t in twin.chains.state.items():
        if t.isfinite().all():
            scale = float(t.abs().max()) if t.numel() else 1.0
            bound = {"rtol": within["rtol"], "atol": within["atol"] * scale}
            torch.testing.assert_close(run.chains.state[name], t, **bound)


# -- densities that are known ----------------------------------------------------------------------


@pytest.mark.parametrize("precondition", long_but([True], [True, False]))
def test_an_anisotropic_gaussian_has_its_standard_deviations(precondition):
    """From 0.3 to 3 in 20 directions. 20 members of 60 draws are worth 600 or more, so that each
    standard deviation is known to 2.9 %; 10 % allow for the steps' bias of 1 % and three of those,
    and 2 % likewise for the mean of 20. Without a preconditioner, the widest needs more steps."""
    sd = torch.logspace(-0.5, 0.5, 20, dtype=torch.float64)
    density = Density(lambda q: 0.5 * (q / sd).square().sum(1))
    start = torch.randn(20, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    options = {"warmup": 300, "samples": 60} if precondition else {"samples": 200, "thin": 20}
    draws, stats = sample(density, start, precondition=precondition, **options)
    found = (draws / sd).square().mean((0, 1)).sqrt()
    assert float(found.mean()) == pytest.approx(1, abs=0.02)
    assert float((found - 1).abs().max()) < 0.1
    assert float(stats["error"].mean()) < 3e-3
    assert float(stats["virial"].mean()) == pytest.approx(1, abs=RIGHT)


def test_the_stiffest_direction_is_found_and_its_virial_is_one():
    """Of a rotated Gaussian whose scales end in 0.1; 4,000 exact draws, and the variance of
    z^2 is 2: five standard errors."""
    generator = torch.Generator().manual_seed(0)
    turn = torch.linalg.qr(torch.randn(6, 6, generator=generator, dtype=torch.float64)).Q
    sd = torch.tensor([0.1, 0.5, 1.0, 1.0, 1.0, 2.0], dtype=torch.float64)
    density = Density(lambda q: 0.5 * ((q @ turn) / sd).square().sum(1))
    z = torch.randn(4000, 6, generator=generator, dtype=torch.float64)
    at = mclmc_steps.initial((z * sd) @ turn.T, z, 1.0, density)
    v = mclmc_steps.stiffest(at, z.flip(0), density)
    assert float((v @ turn[:, 0]).abs().min()) > 0.999
    mean = float(mclmc_steps.virial_along(at, v).mean())
    assert mean == pytest.approx(1, abs=5 * math.sqrt(2 / 4000))


# -- what it says of itself ------------------------------------------------------------------------


def test_members_that_have_not_arrived_are_told_of():
    x, y = Linear(400, 0.1).data()
    options = {"warmup": 60, "training": 0, "thin": 1, "draws_per_member": 60}
    like = stochens.Homoscedastic(0.1)
    with pytest.warns(SamplingWarning) as caught:
        posterior = stochens.mclmc(
            nn.Linear(4, 1), (x, y), likelihood=like, start="prior", prior=0.01, **options
        )
    assert len(posterior) == 600
    assert any("log density is still rising" in str(w.message) for w in caught)


def test_a_funnel_is_called_one():
    """log sd = q_0 of the others: no length of step fits its neck and its mouth."""
    density = Density(
        lambda q: (
            0.5 * (q[:, 0] / 3) ** 2
            + 0.5 * (q[:, 1:] * torch.exp(-q[:, :1])).square().sum(1)
            + 9 * q[:, 0]
        )
    )
    start = torch.randn(10, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    draws, stats = sample(density, start, precondition=True, warmup=300, samples=30, thin=3)
    chains = Chains(
        sampler="mclmc", count=10, stats=stats, state={}, settings={"energy_variance": 1e-3}
    )
    said = arrival_troubles(measure_arrival(chains, draws))
    assert said or float(mixing(draws[..., :1]).rhat.max()) > RHAT_LIMIT


def test_its_numbers_are_in_diagnose(data):
    posterior = stochens.mclmc(nn.Linear(2, 2), data, warmup=500, training=50)
    found = stochens.diagnose(posterior, data[0])
    assert found.arrival is not None
    assert found.arrival.energy_variance < 3e-3
    assert found.arrival.virial[0] == pytest.approx(1, abs=0.1)
    assert found.troubles == []
    assert "virial" in str(found)


@pytest.fixture
def data():
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


# -- runs ------------------------------------------------------------------------------------------

SHORT = {"members": 3, "warmup": 120, "training": 5, "thin": 3}


@quiet
def test_more_draws_are_those_of_one_long_run(data):
    net = nn.Linear(2, 2)
    whole = stochens.mclmc(net, data, draws_per_member=8, **SHORT)
    part = stochens.mclmc(net, data, draws_per_member=5, **SHORT)
    same(stochens.mclmc(net, data, draws_per_member=8, resume=part, **SHORT), whole)


@quiet
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_a_member_alone_is_the_member_together(data, engine):
    net, run = nn.Linear(2, 2).double(), Run(engine=engine)
    data = data[0].double(), data[1]
    own = SHORT | {"warmup": 12, "draws_per_member": 4, "run": run}
    together = stochens.mclmc(net, data, **own)
    alone = stochens.mclmc(net, data, **own | {"members": [1]})
    for name, p in alone.params.items():
        assert torch.equal(p, together.params[name][4:8]), name


@quiet
def test_a_prior_of_each_layer_is_the_one_that_is_sampled():
    """sd(weight) is that of its own prior where the data say nothing."""
    x, y = torch.zeros(5, 3), torch.zeros(5)
    posterior = stochens.mclmc(
        nn.Linear(3, 1, bias=False),
        (x, y),
        prior=stochens.Prior(scale="fan-in"),
        likelihood=stochens.Homoscedastic(1.0),
        warmup=200,
        training=0,
        draws_per_member=60,
        thin=2,
    )
    sd = float(posterior.params["weight"].double().square().mean().sqrt())
    # 1800 numbers, of which 600 or more are independent: 2.9 %
    assert sd == pytest.approx(3**-0.5, rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"training": -1}, "training must be a whole number"),
        ({"warmup": 0}, "warmup"),
        ({"energy_variance": 0.0}, "energy_variance"),
        ({"run": Run(precision="bf16")}, "bfloat16"),
        ({"batch_size": 20}, "mclmc uses all of the data in each step"),
        ({"sample_weight": [1.0] * 40}, "samplers count every row once"),
    ],
)
def test_what_cannot_be_is_refused(data, options, words):
    with pytest.raises(InputError, match=words):
        stochens.mclmc(nn.Linear(2, 2), data, **options)


def test_one_parameter_is_refused():
    x = torch.ones(5, 1)
    with pytest.raises(InputError, match="at least 2 parameters"):
        stochens.mclmc(
            nn.Linear(1, 1, bias=False), (x, x[:, 0]), likelihood=stochens.Homoscedastic(1.0)
        )
