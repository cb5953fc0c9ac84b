"""The toy experiment, small: every file and every row that it promises."""

import warnings

import pytest
import torch

import stochens
from stochens import InputError
from stochens.methods.np_dropout import set_distance
from stochens_lab.experiments import toy, toy_config
from stochens_lab.experiments.rows import ENSEMBLES
from stochens_lab.report.run_folder import SavedRun

SMALL = {
    "points": 40,
    "members": 3,
    "steps": 40,
    "prior_steps": 20,
    "langevin_steps": 30,
    "mclmc_steps": 30,
    "curve": (10, 20),
    "samples": 20,
    "warmup": 20,
    "chains": 2,
    "test_points": 30,
}
pytestmark = pytest.mark.xdist_group("toy run")  # one process, and so one run, for all of them


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "toy"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        toy.run(toy_config.configure("quick", sets=("a", "c"), draws=2, seeds=2, out=out, **SMALL))
    return SavedRun(out)


def test_every_row_has_every_metric_in_both_domains(run):
    rows = [
        *ENSEMBLES,
        "regular, Q",
        "SE3, Q",
        "gaussian, Q",
        "regular, early",
        *toy_config.NATURALS,
        "mclmc",
        "langevin",
    ]
    rows += [toy.NOISE, toy.AS_MANY]
    for set_name in ("a", "c"):
        assert set(run.metrics[set_name]) == set(rows)
        for row in run.metrics[set_name].values():
            for domain in ("in", "out"):
                for metric in ("agreement", "variance", "entropy error", "MI error"):
                    found = row[domain][metric]
                    assert found["low"] <= found["value"] <= found["high"]
    assert run.about["complete"]
    assert run.about["config"]["draws"] == 2


def test_training_tells_the_terms_and_the_fluctuation(run):
    for method, about in run.training["a"].items():
        assert set(about["kl"]) == {"constant", "l2", "ensembling", "stochasticity", "repulsive"}
        if method in ("langevin", "mclmc"):  # minimises nothing
            continue
        assert about["loss_sd"] >= 0
        assert len(about["course"]["step"]) == len(about["course"]["loss"]), method
    curve = run.training["a"]["SE3"]["curve"]["in"]
    assert curve["step"] == [10, 20, 40]
    assert run.training["a"]["SE3"]["set distance"]["step"] == [10, 20, 40]


def test_the_sampler_is_told_of(run):
    assert run.sampler["a"]["chains"] == 2
    assert "rhat" in run.sampler["a"]["predictions"]


def test_maps_of_the_reference_and_of_every_method(run):
    for method in (toy.REFERENCE, "SE3", "regular, early"):
        for place in ("map-in", "map-out"):
            assert run.arrays[f"a/{method}/{place}/entropy"].shape == (toy.MAP_STEPS**2,)
    assert run.arrays["a/points/train"].shape == (40, 2)


def test_bad_input_comes_before_any_work(tmp_path):
    with pytest.raises(InputError, match="did you mean 'quick'"):
        toy_config.configure("quik")
    with pytest.raises(InputError, match="the toy sets are"):
        toy.run(toy_config.configure("quick", sets=("a", "z"), out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(InputError, match="not empty"):
        toy.run(toy_config.configure("quick", out=tmp_path))


def test_a_stopped_run_can_be_read(tmp_path):
    def stop(text):
        if "SE1" in text:
            raise KeyboardInterrupt

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(KeyboardInterrupt):
            toy.run(toy_config.configure("quick", out=tmp_path / "run", **SMALL), note=stop)
    left = SavedRun(tmp_path / "run")
    assert not left.about["complete"]
    assert set(left.metrics["a"]) == {toy.NOISE, toy.AS_MANY, "regular", "MultiSWA"}


def test_the_distance_of_two_sets_by_hand():
    net = stochens.MLP(2, 4, 3, 2)
    x, y = stochens.toy_set("a", n=20)
    posterior = stochens.fit(net, (x, y), method="np-dropout", members=2, epochs=1)
    expected = []
    for k in range(2):
        apart = size = 0.0
        for layer in ("0", "2"):
            one = posterior.params[f"{layer}.weight"][k]
            two = posterior.params[f"{layer}.weight_2"][k]
            apart += sum(float(torch.linalg.norm(a - b)) for a, b in zip(one, two, strict=True))
            size += sum(float(torch.linalg.norm(a)) for a in one)
        expected.append(apart / size)
    assert set_distance(posterior.params) == pytest.approx(sum(expected) / 2, rel=1e-5)


def test_some_rows_only(tmp_path):
    with pytest.raises(InputError, match="no method 'SE9' in this preset"):
        toy.run(toy_config.configure("quick", only=("SE9",), out=tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    few = toy_config.configure("quick", only=("regular", "langevin"), **SMALL)
    assert [row.name for row in toy_config.list_trainings(few, "a")] == ["regular", "langevin"]


@pytest.mark.long  # tests/faults/test_workers.py has two sets side by side and one after the other
def test_sets_side_by_side_are_the_same_run(run, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        options = SMALL | {"draws": 1, "curve": (), "out": tmp_path / "toy"}
        asked = options | {"sets": ("a", "c"), "only": ("SE3",)}
        two = toy.run(toy_config.configure("quick", jobs=2, **asked))
        one = toy.run(toy_config.configure("quick", **asked | {"out": tmp_path / "alone"}))
    assert SavedRun(two).metrics == SavedRun(one).metrics
    assert list(SavedRun(two).metrics) == ["a", "c"]
    assert set(SavedRun(two).about["timings"]) == set(SavedRun(one).about["timings"])
    assert SavedRun(two).arrays.keys() == SavedRun(one).arrays.keys()
    assert not (two / "parts").exists()
