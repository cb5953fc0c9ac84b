"""Whether chains are as warm as they should be: identities on draws that are made by hand, and
`sgmcmc` on linear regressions whose posterior is known.

python -m tests.samplers.test_chain_heat    # the table of docs/samplers.md, in four minutes
"""

import math
from typing import Any

import pytest
import torch
from tests.samplers.truth import LINEAR, Linear

import stochens
from stochens.samplers.chain_heat import Heat, find, heat_in_words, measured, parts

SIZES = {"weight": 6, "bias": 2}


def draws(*, heat: float = 1.0, chains: int = 4, n: int = 200, beta: float = 0.9) -> Heat:
    """Independent ones of a Gaussian of precision a, in steps of s; c is 0.3 off its mean."""
    generator = torch.Generator().manual_seed(1)
    a, s = torch.linspace(0.5, 50, 8, dtype=torch.float64), torch.tensor(0.1, dtype=torch.float64)
    kept = []
    v = torch.nn.functional.one_hot(torch.tensor([7] * chains), 8).double()
    for _ in range(n):
        e = torch.randn(2, chains, 8, generator=generator, dtype=torch.float64) * math.sqrt(heat)
        q, p = e[0] / a.sqrt(), e[1] * math.sqrt(2 / (1 + beta))
        kept.append(measured((q - 0.3) / s, s * a * q, p, v, beta, list(SIZES.values())))
    return Heat(*(torch.stack(each, 1) for each in zip(*kept, strict=True)))


def in_words(*heat: Any, **options: Any) -> str:
    said = heat_in_words(*heat, **options)
    assert said is not None
    return said


def test_parts_are_sums_over_each_parameter():
    values = torch.arange(16.0).view(2, 8)
    expected = torch.stack([values[:, :6].sum(1), values[:, 6:].sum(1)], 1).double()
    assert torch.equal(parts(values, [6, 2]), expected)


@pytest.mark.parametrize("heat", [1.0, 1.5, 0.6])
def test_virial_and_temperature_are_the_heat_of_each_part(heat):
    """Five standard errors: sqrt(2 / n) of each coordinate's square, and the virial has c's part
    beside it, whose variance is a c^2 = 4.5 at most."""
    found = draws(heat=heat)
    size = torch.tensor([6.0, 2.0, 1.0])
    for values, extra in ((found.temperature, 0.0), (found.virial, 4.5)):
        error = heat * ((2 + extra) / (800 * size)).sqrt()
        assert bool(((values.mean((0, 1)) - heat).abs() < 5 * error).all())


@pytest.mark.parametrize(("heat", "off"), [(1.0, False), (1.04, False), (1.4, True), (0.6, True)])
def test_what_is_off_is_found(heat, off):
    found = find(draws(heat=heat).temperature, SIZES)
    assert found.off is off
    assert not off or found.value == pytest.approx(heat, rel=0.1)


def test_a_single_hot_parameter_is_named():
    heat = draws()
    heat.temperature[:, :, 1] *= 1.6
    said = in_words(heat, SIZES, lr=0.01, mini_batches=True)
    assert "in 'bias', where 1 is right" in said
    assert "the noise of mini-batches heats them. Try a larger batch_size, or lr=0.001" in said
    heat = draws()
    heat.temperature[:, :, 2] *= 1.6
    said = in_words(heat, SIZES, lr=0.01, mini_batches=False)
    assert "in its stiffest direction" in said
    assert "the steps are too large. Try lr=" in said


def test_cold_chains_are_told_of():
    said = in_words(draws(heat=0.6), SIZES, lr=0.01, mini_batches=True)
    assert "these chains are too cold: their temperature is 0.5" in said  # 0.589
    assert "variances are too small by about as much; too much was taken off" in said


def test_chains_that_did_not_arrive_are_told_by_their_virial():
    heat = draws()
    heat.virial[...] *= 0.5
    assert "have not arrived" in in_words(heat, SIZES, lr=0.01, mini_batches=True)
    assert heat_in_words(draws(), SIZES, lr=0.01, mini_batches=True) is None


def test_what_cannot_be_judged():
    """Few draws, and chains that are no numbers any more, which are told of elsewhere."""
    assert find(draws(n=19).temperature, SIZES) is None
    heat = draws(heat=1.0)
    heat.temperature[1, 50:] = math.nan
    assert find(heat.temperature, SIZES) == find(heat.temperature[[0, 2, 3]], SIZES)
    heat.temperature[:, -1] = math.inf
    assert find(heat.temperature, SIZES) is None


def test_one_parameter_alone_has_its_name():
    found = find(draws(heat=2.0).temperature[..., [0, 2]], {"weight": 6})
    assert found.off
    assert found.place in (" in 'weight'", " in its stiffest direction", "")


# -- the audit's linear regressions ----------------------------------------------------------------

# N, noise, rows of a batch: each was silently 3 to 33 times too wide at its defaults once
BATCHES = {
    "N400": (Linear(400, noise=0.3), 20),
    "N1000": (Linear(1000, noise=0.2), 100),
    "N900": (Linear(900, noise=0.25), 30),
    "N1500": (Linear(1500), 20),
    "N50000": (LINEAR["N50000"], 20),
    **{
        name: (LINEAR[name], 20)
        for name in (
            "small-noise",
            "larger-inputs",
            "small-inputs",
            "narrow-prior",
            "narrow-prior-small-inputs",
            "N20000-large-inputs-wide-prior",
            "inputs-of-all-scales",
            "one-stiff-direction",
        )
    },
}
WAYS = {
    "sghmc": {},
    "rmsprop": {"preconditioner": "rmsprop"},
    "sgld": {"kind": "sgld"},
    "fisher": {"preconditioner": "fisher"},
    "given": {"lr": 0.01},
}
KEPT = {"N1000-rmsprop", "inputs-of-all-scales-fisher"}
RIGHT = {
    *("N400-rmsprop", "N1000-rmsprop", "N900-sghmc", "N1500-sghmc", "small-noise-rmsprop"),
    *(f"{name}-fisher" for name in ("N400", "N1000", "N900", "N1500", "inputs-of-all-scales")),
    *(f"{name}-fisher" for name in ("small-noise", "larger-inputs", "small-inputs")),
}
ROWS = [(name, way) for name in BATCHES for way in WAYS]


@pytest.mark.parametrize(
    ("name", "way"),
    [
        pytest.param(
            *row, id="-".join(row), marks=() if "-".join(row) in KEPT else pytest.mark.long
        )
        for row in ROWS
    ],
)
def test_mini_batches_are_right_or_told_of(name, way):
    """Standard deviations within 5 %, beside the chance of as many draws as R-hat is content with,
    100 a chain: 5 / sqrt(800), and the largest of some; or a warning."""
    problem, batch = BATCHES[name]
    said = problem.sample(stochens.sgmcmc, batch_size=batch, samples=500, **WAYS[way])
    if f"{name}-{way}" in RIGHT:  # of these only that more draws are wanted may be said
        assert not [words for words in said.warnings if "these chains" in words]
    elif said.warnings:
        return
    ratios = problem.ratios(said.posterior)
    assert float((ratios - 1).abs().max()) < 0.05 + 4 / math.sqrt(800)


@pytest.mark.long
@pytest.mark.parametrize("name", ["wide-prior", "N1500"])
def test_full_batches_that_are_right_have_nothing_to_say(name):
    said = LINEAR[name].sample(stochens.sgmcmc, samples=500)
    assert not said.warnings
    assert float((LINEAR[name].ratios(said.posterior) - 1).abs().max()) < 0.05 + 4 / math.sqrt(800)


@pytest.mark.long
def test_full_batch_steps_that_are_too_large_are_told_of():
    """With a noise of 0.1 and lr = 0.01 variances are 1.3 to 1.5 times too large."""
    said = LINEAR["small-noise"].sample(stochens.sgmcmc, samples=500, lr=0.01)
    assert any("the steps are too large" in words for words in said.warnings)


@pytest.mark.long
def test_full_batch_steps_that_are_too_large_are_made_smaller():
    problem = LINEAR["small-noise"]
    said = problem.sample(stochens.sgmcmc, samples=500)
    assert not said.warnings
    assert float((problem.ratios(said.posterior) - 1).abs().max()) < 0.05 + 4 / math.sqrt(800)
    assert float(said.posterior.chains.stats["step"].max()) < 0.01


def test_more_noise_than_friction_takes_is_told_of():
    problem = LINEAR["one-stiff-direction"]
    options = {"preconditioner": "fisher", "batch_size": 20, "samples": 100}
    said = problem.sample(stochens.sgmcmc, lr=0.3, **options)
    assert said.posterior is not None
    heat = said.posterior.chains.state["temperature"][..., -1].mean()
    assert float(heat) > 1.5
    assert any("their temperature is" in words for words in said.warnings)


def test_diagnose_has_the_numbers():
    problem = Linear(100)
    said = problem.sample(stochens.sgmcmc, samples=60, batch_size=5, lr=0.02)
    found = stochens.diagnose(said.posterior, problem.data()[0])
    assert found.temperature.off
    assert f"temperature {found.temperature}, virial {found.virial}" in str(found)
    assert any("these chains are too hot" in words for words in found.troubles)
    cold = problem.sample(stochens.sgmcmc, samples=60, temperature=0.0)
    assert stochens.diagnose(cold.posterior, problem.data()[0]).temperature is None


if __name__ == "__main__":
    for name, way in ROWS:
        problem, batch = BATCHES[name]
        said = problem.sample(stochens.sgmcmc, batch_size=batch, samples=500, **WAYS[way])
        assert said.posterior is not None
        low, high = (float(r) for r in problem.ratios(said.posterior).aminmax())
        print(f"{name:32} {way:8} {low:.2f} to {high:.2f}  {said.warnings or 'nothing to say'}")
