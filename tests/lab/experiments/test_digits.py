"""The digits experiment, small: every file and every row that it promises."""

import warnings

import pytest
import torch

from stochens import InputError
from stochens.members import builder, forward, init
from stochens.networks import SmallResNetFRN
from stochens_lab.experiments import digits
from stochens_lab.report.run_folder import SavedRun

SMALL = {
    "images": 30,
    "channels": 2,
    "members": 2,
    "steps": 3,
    "langevin_steps": 3,
    "mclmc_steps": 3,
    "chains": 2,
    "samples": 4,
    "warmup": 3,
    "trajectory": 0.05,
    "leapfrogs": 3,
    "resamples": 5,
}
CLOSENESS = {"agreement", "variance", "entropy error", "MI error"}
OWN = {"accuracy", "NLL", "Brier", "ECE", "AURC", "entropy", "MI"}
pytestmark = pytest.mark.xdist_group("digits run")  # one process, and so one run, for all of them


def quietly(**options):
    note = options.pop("note", lambda text: None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # chains as short as these are warned of
        return digits.run(digits.configure("quick", **{**SMALL, **options}), note=note)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return SavedRun(quietly(out=tmp_path_factory.mktemp("runs") / "digits"))


def test_every_method_is_measured_in_every_domain(run):
    rows = run.metrics["digits"]
    assert set(rows) == {*digits.TRAININGS, digits.REFERENCE, digits.NOISE_ROW}
    for method in digits.TRAININGS:
        for domain in digits.LABELLED:
            assert set(rows[method][domain]) == OWN | CLOSENESS
        assert set(rows[method]["photographs"]) == CLOSENESS | {"OOD AUROC"}
    for domain in digits.LABELLED:
        assert set(rows[digits.REFERENCE][domain]) == OWN
        assert set(rows[digits.NOISE_ROW][domain]) == CLOSENESS
    assert set(rows[digits.REFERENCE]["photographs"]) == {"OOD AUROC"}
    assert set(rows["SE3"]["noisy"]["variance"]) == {"value", "low", "high"}


def test_metrics_are_those_of_the_predictions_kept(run):
    for method in ("regular", digits.REFERENCE):
        mean = torch.from_numpy(run.arrays[f"digits/{method}/rotated/mean"])  # [B, C]
        labels = torch.from_numpy(run.arrays["digits/points/labels-rotated"])
        share = float((mean.argmax(1) == labels).double().mean())
        assert run.metrics["digits"][method]["rotated"]["accuracy"]["value"] == share


def test_the_run_tells_of_training_sampler_and_time(run):
    assert run.about["complete"]
    assert run.about["config"]["images"] == 30
    assert set(run.about["timings"]) == {f"digits/{m}" for m in (*digits.TRAININGS, "HMC")}
    assert set(run.training["digits"]) == set(digits.TRAININGS)
    for method, about in run.training["digits"].items():
        minimised = set() if method in ("langevin", "mclmc") else {"loss", "loss_sd", "course"}
        assert set(about) == {"steps", "start", "kl", *minimised}
    assert run.sampler["digits"]["sampler"] == "hmc"
    assert run.sampler["digits"]["chains"] == 2
    assert run.sampler["digits"]["draws"] == 4


def test_bad_input_comes_before_any_work(tmp_path):
    def never(text):
        raise AssertionError("work began")

    with pytest.raises(InputError, match="did you mean 'quick'"):
        digits.configure("quik")
    with pytest.raises(InputError, match="images must be 1 to 1257"):
        quietly(images=2000, out=tmp_path / "new", note=never)
    assert not (tmp_path / "new").exists()
    (tmp_path / "letter").write_text("dear")
    with pytest.raises(InputError, match="not empty"):
        quietly(out=tmp_path, note=never)


def test_a_stopped_run_can_be_read(tmp_path, monkeypatch):
    def stop(*_, **options):
        raise KeyboardInterrupt

    monkeypatch.setitem(digits.TRAININGS, "MultiSWA", stop)
    with pytest.raises(KeyboardInterrupt):
        quietly(out=tmp_path / "run")
    left = SavedRun(tmp_path / "run")
    assert not left.about["complete"]
    assert set(left.metrics["digits"]) == {digits.REFERENCE, digits.NOISE_ROW, "regular"}
    assert "digits/regular/photographs/mi" in left.arrays


def test_resizing_changes_the_size_and_not_the_function(float64):
    net = SmallResNetFRN(channels=3)
    params = init(builder(net), members=range(2), seed=0)
    x = torch.rand(4, 1, 8, 8)
    large = digits.resize_channels(params, sd=2.0)
    # FRN's eps is 1e-6 of the mean squares here
    torch.testing.assert_close(
        forward(net, large, x), forward(net, params, x), rtol=1e-3, atol=1e-3
    )
    weight, bias = (large[f"blocks.0.conv1.{part}"] for part in ("weight", "bias"))
    squares = weight.square().sum((2, 3, 4)) + bias.square()  # [M, C]
    torch.testing.assert_close(squares, torch.full_like(squares, 28 * 4.0))
