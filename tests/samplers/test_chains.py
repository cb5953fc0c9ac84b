"""Draws of chains are a Posterior like any other, and their chains are not forgotten."""

import functools
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens import InputError, metrics
from stochens.comparison import own_noise
from stochens.samplers import engines


@pytest.fixture(scope="module")
def data():
    return stochens.toy_set("b", n=60)


@pytest.fixture(scope="module")
def run(data):
    return stochens.nuts(nn.Linear(2, 2), data, chains=3, samples=40, warmup=80)


def test_members_are_the_draws_chain_after_chain(run, data):
    assert len(run) == 120
    assert "120 draws of 3 NUTS chains" in repr(run)
    x, _ = data
    p = run.predict(x)
    assert p.probs.shape == (120, 60, 2)
    for k in range(3):
        own = run.chain(k)
        assert torch.equal(own.params["weight"], run.params["weight"][40 * k : 40 * k + 40])
        assert own.chains is None
        # sums of float32 in another order
        torch.testing.assert_close(own.predict(x).mean, p.chains[k].mean)
        torch.testing.assert_close(own.predict(x).aleatoric, p.chains[k].aleatoric)
    torch.testing.assert_close(torch.stack([c.mean for c in p.chains]).mean(0), p.mean)
    with pytest.raises(InputError, match="3 chains"):
        run.chain(3)


def test_chains_that_do_not_fit_the_blocks_of_prediction(run, data, monkeypatch):
    whole = run.predict(data[0])
    monkeypatch.setattr(stochens.posterior.streaming, "ACTIVATIONS", 60 * 7 * 8)  # seven members
    blocks = run.predict(data[0], batch_size=60)
    torch.testing.assert_close(whole.mean, blocks.mean)
    for a, b in zip(whole.chains, blocks.chains, strict=True):
        torch.testing.assert_close(a.mean, b.mean)


def test_the_noise_of_the_reference_stands_in_every_comparison(run, data):
    x, y = data
    p = run.predict(x)
    fitted = stochens.fit(nn.Linear(2, 2), data, method="regular", members=4, epochs=2).predict(x)
    rows = stochens.compare({"SE1": fitted, "NUTS": p}, y, reference="NUTS", show=False).rows
    assert list(rows) == ["SE1", "NUTS", "NUTS, its own noise"]
    noise = rows["NUTS, its own noise"]
    assert set(noise) == {"agreement", "total variation", "entropy error", "MI error"}
    assert noise == own_noise(p, resamples=300)
    # three chains: each in turn counts (1 + sqrt 2) / 3, the others (1 - 1 / sqrt 2) / 3
    each = torch.stack([chain.mean.double() for chain in p.chains])
    weights = torch.full((3, 3), (1 - 0.5**0.5) / 3, dtype=torch.float64)
    weights.fill_diagonal_((1 + 2**0.5) / 3)
    means = torch.einsum("hk,kbc->hbc", weights, each)
    expected = sum(metrics.total_variation(m, p.mean) for m in means) / 3
    assert noise["total variation"].value == pytest.approx(
        expected, rel=1e-4
    )  # float32 probabilities
    assert (
        noise["total variation"].low
        < noise["total variation"].value
        < noise["total variation"].high
    )


def test_one_chain_does_not_tell_its_noise(data):
    one = stochens.nuts(nn.Linear(2, 2), data, chains=1, samples=20, warmup=50).predict(data[0])
    assert one.chains == ()
    rows = stochens.compare({"NUTS": one}, data[1], reference="NUTS", show=False).rows
    assert list(rows) == ["NUTS"]


class Interrupting:
    """An engine that presses Ctrl-C after so many calls."""

    def __init__(self, inner, calls):
        self.inner, self.calls = inner, calls

    def state(self):
        return self.inner.state()

    def advance(self, iterations):
        self.calls -= 1
        if self.calls < 0:
            raise KeyboardInterrupt
        self.inner.advance(20)


def interrupted(monkeypatch, calls):
    choose = engines.choose
    monkeypatch.setattr(
        stochens.samplers.sampling, "choose", lambda *a: Interrupting(choose(*a), calls)
    )


@pytest.mark.parametrize(("sampler", "calls"), [(stochens.nuts, 20), (stochens.hmc, 9)])
def test_an_interrupted_run_keeps_its_draws_and_goes_on(sampler, calls, data, monkeypatch):
    options = {"chains": 2, "samples": 20, "warmup": 10, "engine": "vmap", "step_size": 0.3}
    long = sampler(nn.Linear(2, 2), data, **gather(**options))
    with monkeypatch.context() as patch:
        interrupted(patch, calls)
        with pytest.warns(UserWarning, match="of 20 draws of each chain, which are kept"):
            part = sampler(nn.Linear(2, 2), data, **gather(**options))
    made = len(part) // 2
    assert 0 < made < 20
    torch.testing.assert_close(part.chain(1).params["bias"], long.chain(1).params["bias"][:made])
    whole = sampler(nn.Linear(2, 2), data, resume=part, **gather(**options))
    assert torch.equal(whole.params["weight"], long.params["weight"])
    for name, t in long.chains.stats.items():
        assert torch.equal(whole.chains.stats[name], t), name


def test_stopped_in_the_warm_up_it_is_said_what_would_have_kept_it(data, monkeypatch):
    interrupted(monkeypatch, 2)
    with pytest.raises(KeyboardInterrupt, match="checkpoint=FOLDER"):
        stochens.nuts(nn.Linear(2, 2), data, chains=2, samples=20, warmup=60)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sampler", ["nuts", "hmc", "sgmcmc"])
def test_of_two_runs_to_go_on_with_none_is_left_out_silently(data, tmp_path, sampler):
    sample, net = getattr(stochens, sampler), nn.Linear(2, 2)
    options: dict[str, Any] = {"chains": 2}
    options["burn_in" if sampler == "sgmcmc" else "warmup"] = 10
    long = sample(net, data, samples=9, **options)
    few = sample(net, data, samples=3, **options)
    options["run"] = stochens.Run(checkpoint=tmp_path / "run")
    more = sample(net, data, samples=6, resume=few, **options)  # a new folder keeps what follows
    assert torch.equal(more.chains.stats["likelihood"], long.chains.stats["likelihood"][:, :6])
    with pytest.raises(InputError, match=r"run holds a run, and resume is a run too: .* leave"):
        sample(net, data, samples=9, resume=few, **options)
    whole = sample(net, data, samples=9, **options)
    assert torch.equal(whole.params["weight"], long.params["weight"])


def test_a_folder_of_something_else_is_not_written_over(data, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="not empty"):
        stochens.nuts(
            nn.Linear(2, 2), data, samples=2, warmup=2, run=stochens.Run(checkpoint=tmp_path)
        )
    assert (tmp_path / "letter.txt").read_text() == "dear"


def test_sgmcmc_goes_on_too(data, monkeypatch):
    options = {"chains": 2, "samples": 20, "burn_in": 10, "thin": 2, "batch_size": 7}
    long = stochens.sgmcmc(nn.Linear(2, 2), data, **gather(**options))
    few = stochens.sgmcmc(nn.Linear(2, 2), data, **gather(**{**options, "samples": 9}))
    more = stochens.sgmcmc(nn.Linear(2, 2), data, resume=few, **gather(**options))
    assert torch.equal(more.params["weight"], long.params["weight"])
    assert torch.equal(more.chains.stats["likelihood"], long.chains.stats["likelihood"])

    from stochens.samplers import sgmcmc_steps

    step, calls = sgmcmc_steps._step, iter(range(30))

    def stopping(*arguments, **mini):
        if next(calls) == 25:
            raise KeyboardInterrupt
        return step(*arguments, **mini)

    with monkeypatch.context() as patch:
        patch.setattr(sgmcmc_steps, "_step", stopping)
        with pytest.warns(UserWarning, match="stopped after 7 of 20"):
            part = stochens.sgmcmc(nn.Linear(2, 2), data, **gather(**options))
    whole = stochens.sgmcmc(nn.Linear(2, 2), data, resume=part, **gather(**options))
    assert torch.equal(whole.params["weight"], long.params["weight"])
    with pytest.raises(InputError, match="resume is of another run: lr"):
        stochens.sgmcmc(nn.Linear(2, 2), data, resume=part, lr=0.5, **gather(**options))
    run = stochens.hmc(nn.Linear(2, 2), data, chains=2, samples=2, warmup=2)
    with pytest.raises(InputError, match="no chains of its kind"):
        stochens.sgmcmc(nn.Linear(2, 2), data, resume=run, **gather(**options))


@pytest.mark.parametrize("stopped", [50, 150, 350])  # before and after it turns, and when held
def test_a_variance_of_gradients_is_kept_on_disk(data, stopped, monkeypatch, tmp_path):
    options: dict[str, Any] = {"chains": 2, "samples": 3, "burn_in": 400, "thin": 2}
    options |= {"batch_size": 7, "preconditioner": "fisher"}
    long = stochens.sgmcmc(nn.Linear(2, 2), data, **gather(**options))

    from stochens.samplers import sgmcmc_steps

    step, calls = sgmcmc_steps._step, iter(range(stopped + 1))

    def stopping(*arguments, **mini):
        if next(calls) == stopped:
            raise KeyboardInterrupt
        return step(*arguments, **mini)

    options["run"] = stochens.Run(checkpoint=tmp_path, every=0)
    with monkeypatch.context() as patch:
        patch.setattr(sgmcmc_steps, "_step", stopping)
        with pytest.raises(KeyboardInterrupt):
            stochens.sgmcmc(nn.Linear(2, 2), data, **options)
    whole = stochens.sgmcmc(nn.Linear(2, 2), data, **options)
    assert torch.equal(whole.params["weight"], long.params["weight"])


@pytest.mark.parametrize("sample", [stochens.sgmcmc, stochens.nuts, stochens.hmc])
def test_other_chains_are_not_gone_on_with(data, sample, tmp_path):
    options = {"samples": 4, **({} if sample is stochens.sgmcmc else {"warmup": 4})}
    net = nn.Linear(2, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws are troubled
        first, others = (sample(net, data, chains=ids, **options) for ids in (2, [7, 8]))
        with pytest.raises(InputError, match=r"chains was 2 there and is \[7, 8\] now"):
            sample(net, data, chains=[7, 8], resume=first, **options)
        with pytest.raises(InputError, match=r"chains was \[7, 8\] there and is 2 now"):
            sample(net, data, chains=2, resume=others, **options)
        others.save(tmp_path / "run")
        back = stochens.load(tmp_path / "run", net)
        more = [
            sample(net, data, chains=[7, 8], resume=run, **options | {"samples": 6})
            for run in (others, back)
        ]
    assert torch.equal(more[0].params["weight"], more[1].params["weight"])


def test_chains_that_do_not_belong_together_are_not_joined(data):
    sample = functools.partial(stochens.sgmcmc, nn.Linear(2, 2), data, samples=3, burn_in=2)
    first = sample(chains=[0])
    for options, message in (
        ({"lr": 0.5}, "chains differ in lr: 0.01 and 0.5"),
        ({"kind": "sgld"}, "chains differ in kind: 'sghmc' and 'sgld'"),
        ({"samples": 4}, "chains differ in draws of each chain: 3 and 4"),
        ({"chains": 2}, "a chain is in two of the posteriors"),
    ):
        with pytest.raises(InputError, match=message):
            stochens.join([first, sample(**{"chains": [1], **options})])


def test_a_seed_may_be_one_of_numpys(data, tmp_path):
    sample = functools.partial(stochens.sgmcmc, nn.Linear(2, 2), data, samples=2, burn_in=2)
    run = sample(seed=np.int64(3))
    assert torch.equal(run.params["weight"], sample(seed=3).params["weight"])
    run.save(tmp_path / "run")
    walk = functools.partial(stochens.langevin, nn.Linear(2, 2), data, members=2, steps=300)
    seeds = (np.int64(3), 3)
    one, two = (walk(seed=s, run=stochens.Run(checkpoint=tmp_path / "walk")) for s in seeds)
    assert torch.equal(one.params["weight"], two.params["weight"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few draws are troubled
        walk = functools.partial(stochens.nuts, nn.Linear(2, 2), data, samples=2, warmup=2)
        one, two = (walk(seed=seed) for seed in seeds)
    assert torch.equal(one.params["weight"], two.params["weight"])


def test_progress_tells_speed_divergences_and_leapfrogs(data, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stochens.nuts(nn.Linear(2, 2), data, samples=30, warmup=30, progress=True)
    shown = capsys.readouterr().err
    for part in ("nuts", "draws/s", "leapfrogs/draw", "diverged"):
        assert part in shown


class Branches(nn.Module):
    """On what it has computed: vmap cannot tell whether to go on, since members differ."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = self.body(x).tanh()
        if bool(inside.isnan().any()):
            raise ValueError("NaN inside")
        return self.head(inside)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        (stochens.nuts, {"chains": 2, "samples": 2, "warmup": 2}),
        (stochens.hmc, {"chains": 2, "samples": 2, "warmup": 2, "engine": "loop"}),
        (stochens.sgmcmc, {"chains": 2, "samples": 2, "burn_in": 2}),
        (stochens.langevin, {"members": 2, "steps": 2}),
    ],
)
def test_networks_that_vmap_cannot_run_go_in_a_loop(data, sampler, options):
    posterior = sampler(Branches, data, **gather(**options))
    assert posterior.engine == "loop"
    assert posterior.predict(data[0]).mean.shape == (60, 2)
    with pytest.raises(InputError, match="vmap cannot run this network"):
        sampler(Branches, data, **gather(**options | {"engine": "vmap"}))


def test_weights_that_a_pass_changes_are_refused():
    net = nn.Sequential(nn.Embedding(5, 3, max_norm=1.0), nn.Flatten(), nn.Linear(6, 2))
    data = torch.randint(0, 5, (20, 2)), torch.arange(20) % 2
    for sample in (stochens.nuts, stochens.langevin, stochens.sgmcmc):
        with pytest.raises(InputError, match="0 has max_norm, which changes its weights"):
            sample(net, data)
