"""`nuts` gone on with, from memory and from disk, and what is not gone on with."""

import pytest
import torch
from tests.long import long_but
from tests.running import gather
from tests.samplers import density
from tests.samplers.going_on import quiet, same
from tests.tolerance import close
from torch import nn

import stochens
from stochens import InputError
from stochens.likelihoods import Homoscedastic
from stochens.samplers.engines import PlainRunner


@quiet
@pytest.mark.parametrize("engine", long_but({"auto"}, ["auto", "vmap"]))
def test_going_on_is_one_long_run(engine):
    """Half of the draws and then the rest, in memory: the bits of an uninterrupted run; and what
    was gone on with is as it was."""
    options = {"chains": 3, "warmup": 50, "max_depth": 3, "engine": engine, "seed": 4}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    whole = stochens.nuts(net, data, samples=8, **gather(**options))
    half = stochens.nuts(net, data, samples=4, **gather(**options))
    kept = {name: t.clone() for name, t in half.chains.state.items()}
    same(stochens.nuts(net, data, samples=8, resume=half, **gather(**options)), whole)
    for name, t in kept.items():
        assert torch.equal(half.chains.state[name], t), f"{name} of the run gone on with has moved"
    same(stochens.nuts(net, data, samples=8, resume=half, **gather(**options)), whole)
    draws = whole.params["0.weight"].view(3, 8, 5, 3)
    assert torch.equal(draws[:, :4], half.params["0.weight"].view(3, 4, 5, 3))


@quiet
def test_going_on_from_disk(tmp_path):
    options = {"chains": 2, "warmup": 30, "max_depth": 3}
    net, data = density.small_net(nn.ReLU, 2), density.classes()
    data = data[0].float(), data[1]
    whole = stochens.nuts(net, data, samples=8, **gather(**options))
    first = stochens.nuts(net, data, samples=3, **gather(checkpoint=tmp_path / "run", **options))
    same(
        stochens.nuts(net, data, samples=8, **gather(checkpoint=tmp_path / "run", **options)), whole
    )
    first.save(tmp_path / "saved")
    loaded = stochens.load(tmp_path / "saved", net)
    same(stochens.nuts(net, data, samples=8, resume=loaded, **gather(**options)), whole)
    with pytest.raises(InputError, match="seed"):
        stochens.nuts(
            net, data, samples=9, seed=1, **gather(checkpoint=tmp_path / "run", **options)
        )


@quiet
@pytest.mark.parametrize("phase", ["warm-up", "draws"])
def test_an_interrupted_run_goes_on(phase, tmp_path, monkeypatch):
    """Ctrl-C in the middle of some trajectory, where chains are at different transitions."""
    options = {"chains": 3, "warmup": 20, "max_depth": 3, "engine": "vmap", "samples": 8}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    whole = stochens.nuts(net, data, **gather(**options))
    advance = PlainRunner.advance
    least = 12 if phase == "warm-up" else 25

    def interrupted(self, iterations):
        advance(self, 1)
        state = self.state()
        if int(state.transition.min()) >= least and bool((state.leaf % 4 == 3).any()):
            raise KeyboardInterrupt

    options["checkpoint"] = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(PlainRunner, "advance", interrupted)
        if phase == "warm-up":
            with pytest.raises(KeyboardInterrupt, match="warm-up"):
                stochens.nuts(net, data, **gather(**options))
        else:
            part = stochens.nuts(net, data, **gather(**options))
            assert 1 <= len(part) // 3 < 8
            assert int(part.chains.state["leaf"].max()) >= 3
    if phase == "draws":
        same(
            stochens.nuts(net, data, resume=part, **gather(**{**options, "checkpoint": None})),
            whole,
        )
    same(stochens.nuts(net, data, **gather(**options)), whole)


@quiet
def test_engines_may_change_hands():
    """A run begun by one engine is gone on with by another: the same first draws after it."""
    options = {"chains": 2, "warmup": 20, "max_depth": 3}
    net, data = density.small_net(nn.Tanh, 2).double(), density.classes()
    half = stochens.nuts(net, data, samples=2, **gather(engine="vmap", **options))
    a = stochens.nuts(net, data, samples=4, resume=half, **gather(engine="auto", **options))
    half = stochens.nuts(net, data, samples=2, **gather(engine="vmap", **options))
    b = stochens.nuts(net, data, samples=4, resume=half, **gather(engine="vmap", **options))
    # two transitions of at most 7 leapfrogs, forth and back through three layers, 37 examples
    within = close(torch.float64, terms=37, depth=2 * 7 * 6, condition=1e3)
    for name, p in a.params.items():
        torch.testing.assert_close(p, b.params[name], **within)


def _other(**change):
    x, y = density.classes()
    base = {"net": density.small_net(nn.Tanh, 2).double(), "data": (x, y)}
    return {**base, "chains": 2, "warmup": 10, "samples": 3, "max_depth": 2, **change}


OTHERS = {
    "data": {"data": (density.classes()[0] + 1e-9, density.classes()[1])},
    "labels": {"data": (density.classes()[0], 1 - density.classes()[1])},
    "seed": {"seed": 1},
    "chains": {"chains": 3},
    "warmup": {"warmup": 11},
    "max_depth": {"max_depth": 3},
    "target_accept": {"target_accept": 0.9},
    "prior": {"prior": 2.0},
    "dtype": {"precision": "float32"},
    "fewer samples": {"samples": 2},
    "a wider network": {
        "net": nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 2)).double()
    },
    "other activations": {"net": density.small_net(nn.ReLU, 2).double()},
}


@pytest.fixture
def short_run():
    return stochens.nuts(**gather(**_other()))


@quiet
@pytest.mark.parametrize("what", OTHERS)
def test_another_run_is_not_gone_on_with(what, short_run):
    with pytest.raises(InputError):
        stochens.nuts(**gather(**_other(resume=short_run, engine="vmap", **OTHERS[what])))


@quiet
def test_another_likelihood_is_not_gone_on_with():
    x, y = density.curve()
    net = density.small_net(nn.Tanh, 1).double()
    options = {"chains": 2, "warmup": 10, "samples": 3, "max_depth": 2}
    first = stochens.nuts(net, (x, y), likelihood=Homoscedastic(noise=0.3), **gather(**options))
    with pytest.raises(InputError):
        stochens.nuts(
            net, (x, y), likelihood=Homoscedastic(noise=3.0), resume=first, **gather(**options)
        )


def test_only_a_sampler_s_run_is_gone_on_with(xor):
    trained = stochens.fit(nn.Linear(2, 2), xor, method="regular", members=2, epochs=1)
    with pytest.raises(InputError, match="chains"):
        stochens.nuts(nn.Linear(2, 2), xor, resume=trained)
