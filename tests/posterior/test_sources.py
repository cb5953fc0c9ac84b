"""Every source of a posterior through one contract. The table is in sources.py."""

import inspect
import typing
from pathlib import Path

import pytest
import torch
from tests.long import long_but
from tests.posterior.sources import (
    IDS,
    SOURCES,
    assert_same,
    data_of,
    make,
    network_of,
    parts,
    press_ctrl_c,
    whole,
)
from tests.tolerance import close
from torch import Tensor

import stochens
from stochens.members import device_of, size
from stochens.methods import METHODS
from stochens.samplers.sgmcmc import KINDS

# at most 12 steps or 100 leapfrogs on 24 rows; training and trajectories make an error grow
WITHIN = close(torch.float64, terms=24, depth=100, condition=1e3)
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def group(name: str) -> pytest.MarkDecorator:
    """Tests of one row run in one process, which makes its posterior once; those over Ray in that
    of tests/test_cluster.py."""
    return pytest.mark.xdist_group("ray" if name.endswith("Ray") else name)


@pytest.fixture(params=[pytest.param(name, marks=group(name)) for name in SOURCES])
def name(request: pytest.FixtureRequest) -> str:
    if request.param.endswith("Ray"):
        request.getfixturevalue("ray_cluster")
    return str(request.param)


def needs(name: str, ability: str) -> None:
    """Skip where the table says why it cannot."""
    if (reason := SOURCES[name].lacks.get(ability)) is not None:
        pytest.skip(f"{name}: {reason}")


# -- the table ------------------------------------------------------------------------------------


def test_everything_that_returns_a_posterior_has_a_row() -> None:
    returning = {
        function
        for function in stochens.__all__
        if inspect.isfunction(f := getattr(stochens, function))
        and typing.get_type_hints(f).get("return") is stochens.Posterior
    }
    assert returning == {name.split()[0] for name in SOURCES}
    assert {f"fit {method}" for method in METHODS} <= set(SOURCES)
    assert {f"sgmcmc {kind}" for kind in KINDS} <= set(SOURCES)


# -- what it is -----------------------------------------------------------------------------------


def test_its_size_and_how_it_shows_itself(name: str) -> None:
    source, posterior = SOURCES[name], whole(name)
    assert len(posterior) == size(posterior.params) == source.draws * len(IDS)
    assert len(posterior.members) == len(posterior)
    assert (posterior.data_size, posterior.seed) == (24, 0)
    assert not posterior.net.training
    if source.ids == "chains":
        sampler = posterior.chains.sampler.upper()
        assert repr(posterior) == f"Posterior(12 draws of 3 {sampler} chains, N = 24)"
        assert {t.shape for t in posterior.chains.stats.values()} == {(3, 4)}
    else:
        method = " + ".join(method.name for method in posterior.recipe.methods)
        assert repr(posterior) == f"Posterior(3 members, {method}, N = 24)"
        assert posterior.members == IDS


def test_predictions_have_their_shapes(name: str) -> None:
    source, posterior = SOURCES[name], whole(name)
    x, _ = data_of(source)
    p, S = posterior.predict(x[:5], draws=2), 2 * len(posterior)
    assert p.mean.shape == (5, source.outputs)
    draws = p.probs if source.outputs == 2 else p.draw_means
    assert draws.shape == (S, 5, source.outputs)
    torch.testing.assert_close(draws.mean(0), p.mean)
    one = posterior.predict(x[:5])
    if source.ids == "chains":
        assert [chain.mean.shape for chain in one.chains] == [(5, 2)] * 3
    light = posterior.predict(x[:5], draws=2, keep_draws=False)
    torch.testing.assert_close(light.mean, p.mean)


def test_one_seed_of_a_prediction_repeats_and_two_differ(name: str) -> None:
    posterior = whole(name)
    x, _ = data_of(SOURCES[name])
    one, again, other = (posterior.predict(x, draws=2, seed=seed) for seed in (1, 1, 2))
    assert_same(again, one)
    noisy = "noise" not in SOURCES[name].lacks
    assert torch.equal(one.mean, other.mean) is not noisy


def test_draws_of_a_member_differ(name: str) -> None:
    needs(name, "noise")
    posterior, M = whole(name), len(whole(name))
    p = posterior.predict(data_of(SOURCES[name])[0], draws=6)
    draws = p.probs if SOURCES[name].outputs == 2 else p.draw_means
    for k in range(M):  # two of few nodes are the same now and then: once in 16 for four nodes
        assert not all(torch.equal(draws[k], draws[j * M + k]) for j in range(1, 6))


def test_some_of_its_members_are_a_posterior(name: str) -> None:
    posterior = whole(name)
    some = posterior.take([2, 0])
    assert some.members == (posterior.members[2], posterior.members[0])
    for field, value in parts(some.params).items():
        assert torch.equal(value, parts(posterior.params)[field][[2, 0]])
    if posterior.low_rank is not None:
        for field, value in parts(some.low_rank).items():
            assert torch.equal(value, parts(posterior.low_rank)[field][[2, 0]])
    if posterior.history is not None:
        for field, value in parts(some.history).items():
            expected = parts(posterior.history)[field][..., [2, 0]]
            assert torch.equal(value.nan_to_num(-1), expected.nan_to_num(-1)), field
    assert some.chains is None
    assert_same(posterior.take(slice(0, 2)), posterior.take([0, 1]))


def test_a_member_is_a_plain_network(name: str) -> None:
    """Its state dict loads; without noise the network's outputs are that draw's prediction."""
    source, posterior = SOURCES[name], whole(name)
    x, _ = data_of(source)
    plain, draws = network_of(source), posterior.predict(x).mean.new_empty(0)
    if "noise" in source.lacks:
        draws = posterior.predict(x).probs
    for k in range(len(posterior)):
        plain.load_state_dict(posterior.member(k))  # strict: exactly its own names
        if len(draws):
            torch.testing.assert_close(plain(x).softmax(-1).detach(), draws[k], **WITHIN)


# -- save, load, devices --------------------------------------------------------------------------


def test_saved_and_loaded_it_is_the_same(name: str, tmp_path: Path) -> None:
    source, posterior = SOURCES[name], whole(name)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", network_of(source))
    assert_same(again, posterior)
    assert list(again.params) == list(posterior.params)
    assert repr(again) == repr(posterior)
    assert again.kl() == posterior.kl()
    x, _ = data_of(source)
    assert_same(*(p.predict(x, draws=2, seed=5) for p in (again, posterior)))


@pytest.mark.parametrize("device", DEVICES)
def test_it_moves_to_a_device_and_back(name: str, device: str, tmp_path: Path) -> None:
    source, posterior = SOURCES[name], whole(name)
    there = posterior.to(device)
    moved = [there.params, dict(there.net.named_parameters())]
    moved += list(there.low_rank or ())
    for tensors in moved:
        assert device_of(tensors).type == device
    assert device_of(posterior.params).type == "cpu"  # this one stays where it is
    assert_same(there.to("cpu"), posterior)
    x, _ = data_of(source)
    mean: Tensor = there.predict(x).mean
    assert mean.device.type == "cpu"  # where predictions of any size have room
    if device == "cpu" or "noise" in source.lacks:
        torch.testing.assert_close(mean.cpu(), posterior.predict(x).mean, **WITHIN)
    there.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", network_of(source), device=device)
    assert device_of(again.params).type == device
    assert_same(again.to("cpu"), posterior)


@pytest.mark.parametrize("device", DEVICES)
def test_it_is_made_on_a_device(name: str, device: str) -> None:
    needs(name, "device")
    posterior = make(name, device=device)
    assert device_of(posterior.params).type == device
    if device == "cpu":
        assert_same(posterior, whole(name))
    assert posterior.predict(data_of(SOURCES[name])[0]).mean.isfinite().all()


# -- members, chains and seeds --------------------------------------------------------------------


def test_one_seed_repeats_and_two_differ(name: str) -> None:
    posterior = whole(name)
    assert_same(make(name), posterior)
    other = make(name, seed=1)
    for field, p in posterior.params.items():
        same = (other.params[field] == p).flatten(1).all(1)
        assert not same.any(), f"{field} of a member is that of another seed"
        assert len(p.flatten(1).unique(dim=0)) == len(p), f"{field} is alike in two members"


@pytest.mark.parametrize("k", long_but({2}, [0, 2]))
def test_one_alone_is_the_same_as_among_others(name: str, k: int) -> None:
    needs(name, "alone")
    source, together, alone = SOURCES[name], whole(name), make(name, [k])
    if source.ids == "members":
        assert_same(alone, together.take([k]), **WITHIN)
        return
    assert_same(alone.params, together.chain(k).params, **WITHIN)
    for field, values in alone.chains.stats.items():
        torch.testing.assert_close(values[0], together.chains.stats[field][k], **WITHIN)


def test_two_halves_joined_are_the_whole(name: str) -> None:
    needs(name, "join")
    halves = [make(name, ids) for ids in (IDS[:2], IDS[2:])]
    assert_same(stochens.join(halves), whole(name), **WITHIN)


def test_block_after_block_they_are_the_same(name: str) -> None:
    needs(name, "chunk")
    assert_same(make(name, chunk=2), whole(name), **WITHIN)


# -- going on -------------------------------------------------------------------------------------


def test_a_checkpoint_changes_nothing(name: str, tmp_path: Path) -> None:
    """Kept in a folder a run is the same, and so is what is found there when it is done."""
    needs(name, "checkpoint")
    for _ in range(2):
        assert_same(make(name, checkpoint=tmp_path / "run"), whole(name))


@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
def test_stopped_it_goes_on_to_the_same_end(
    name: str, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(name, "stop")
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, SOURCES[name].stops[late])
        with pytest.raises(KeyboardInterrupt, match="the same call goes on"):
            make(name, checkpoint=tmp_path / "run")
    assert_same(make(name, checkpoint=tmp_path / "run"), whole(name))


def test_the_draws_so_far_are_gone_on_with(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs(name, "resume")
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, SOURCES[name].stops[1])
        part = make(name)
    assert 0 < len(part) < len(whole(name))
    assert_same(make(name, resume=part), whole(name))
