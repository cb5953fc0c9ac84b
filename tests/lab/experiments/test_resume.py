"""A run that was stopped and gone on with ends like one that was not."""

import dataclasses
import json
import re
import shutil
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from tests.lab.experiments.test_digits import SMALL as DIGITS
from tests.lab.experiments.test_toy import SMALL as TOY
from tests.tolerance import rounding
from typer.testing import CliRunner

from stochens import InputError
from stochens_lab.cli import app
from stochens_lab.experiments import digits, toy, toy_config
from stochens_lab.report.run_folder import SavedRun


def stops_at(word: str):
    def note(text: str) -> None:
        if word in text:
            raise KeyboardInterrupt

    return note


# Effective sample sizes are sums of at most 40 outputs of an FFT of 64 numbers (6 levels), squared
# and taken back; how threads share the FFT changes its rounding. tau may cancel to a tenth.
FFT = rounding(torch.float64, terms=40, depth=13, condition=10.0)


def alike(one: Any, other: Any) -> None:
    """The same keys and words, and the same numbers but for the rounding of an FFT."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for name in one:
            alike(one[name], other[name])
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=FFT, nan_ok=True)
    else:
        assert one == other


def same(one: SavedRun, other: SavedRun) -> None:
    assert one.metrics == other.metrics
    assert one.training == other.training
    alike(one.sampler, other.sampler)
    assert one.arrays.keys() == other.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(array, other.arrays[name])
    assert set(one.about["timings"]) == set(other.about["timings"])
    assert one.about["complete"]
    assert other.about["complete"]


@pytest.fixture(autouse=True)
def quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.long
def test_toy(tmp_path):
    """Stopped again and again, in the reference, between methods and inside the curve."""
    small = TOY | {"sets": ("a",), "draws": 2, "seeds": 1}
    whole = toy.run(toy_config.configure("quick", out=tmp_path / "whole", **small))
    cut = tmp_path / "cut"
    config = toy_config.configure("quick", out=cut, **small)
    for k, word in enumerate(["draw 1: NUTS", "MultiSWA", "SE3, 20 steps", "regular, early"]):
        with pytest.raises(KeyboardInterrupt):
            toy.run(config, resume=k > 0, note=stops_at(word))
        assert not SavedRun(cut).about["complete"]
        assert toy_config.reconfigure(cut) == config
    toy.run(config, resume=True)
    same(SavedRun(cut), SavedRun(whole))
    toy.run(config, resume=True, note=stops_at("set a"))  # nothing is left to do
    assert SavedRun(cut).about["complete"]
    assert not (cut / "checkpoints").exists()
    assert sorted(p.name for p in cut.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_digits(tmp_path):
    whole = digits.run(digits.configure("quick", out=tmp_path / "whole", **DIGITS))
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        digits.run(digits.configure("quick", out=cut, **DIGITS), note=stops_at("SE2"))
    digits.run(digits.reconfigure(cut), resume=True)
    same(SavedRun(cut), SavedRun(whole))


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """Runs that were stopped before they did anything."""
    out = tmp_path_factory.mktemp("runs")
    with pytest.raises(KeyboardInterrupt):
        toy.run(toy_config.configure("quick", out=out / "toy", **TOY), note=stops_at("NUTS"))
    with pytest.raises(KeyboardInterrupt):
        digits.run(digits.configure("quick", out=out / "digits", **DIGITS), note=stops_at("HMC"))
    return out


@pytest.mark.parametrize(
    ("command", "option", "said"),
    [
        ("toy", ["--preset", "paper"], "preset = 'quick', which cannot be changed to 'paper'"),
        ("toy", ["--sets", "b"], r"sets = .* which cannot be changed to \('b',\)"),
        ("toy", ["--members", "77"], "members = .* which cannot be changed to 77"),
        ("toy", ["--method", "SE3"], r"only = \(\), which cannot be changed to \('SE3',\)"),
        ("toy", ["--draws", "7"], "draws = .* which cannot be changed to 7"),
        ("toy", ["--seeds", "7"], "seeds = 1, which cannot be changed to 7"),
        ("toy", ["--seed", "5"], "seed = 0, which cannot be changed to 5"),
        ("toy", ["--jobs", "2"], "jobs = 1, which cannot be changed to 2"),
        ("toy", ["--out", "elsewhere"], "leave --out elsewhere away"),
        ("digits", ["--preset", "paper"], "preset = 'quick', which cannot be changed to 'paper'"),
        ("digits", ["--members", "77"], "members = .* which cannot be changed to 77"),
        ("digits", ["--seed", "5"], "seed = 0, which cannot be changed to 5"),
        ("digits", ["--out", "elsewhere"], "leave --out elsewhere away"),
        ("cifar", ["--out", "elsewhere"], "leave --out elsewhere away"),
    ],
)
def test_options_that_differ_from_the_runs_own_are_refused(stopped, command, option, said):
    told = CliRunner().invoke(app, [command, "--resume", str(stopped / command), *option])
    assert isinstance(told.exception, InputError), told.output
    assert re.search(said, str(told.exception))


def test_options_that_are_the_runs_own_or_harmless_are_taken(stopped):
    config = toy_config.reconfigure(
        stopped / "toy", seed=0, preset="quick", device="cpu", members=None
    )
    assert config == dataclasses.replace(toy_config.reconfigure(stopped / "toy"), device="cpu")
    other_config = digits.reconfigure(stopped / "digits", seed=0, device="cpu")
    assert other_config == dataclasses.replace(digits.reconfigure(stopped / "digits"), device="cpu")
    about = json.loads((stopped / "toy" / "run.json").read_text())
    about["config"]["jobs"] = 3
    other = stopped / "other"
    shutil.copytree(stopped / "toy", other, ignore=shutil.ignore_patterns("SHA256SUMS"))
    (other / "run.json").write_text(json.dumps(about))
    assert toy_config.reconfigure(other, jobs=2).jobs == 2
    with pytest.raises(InputError, match="jobs = 3, which cannot be changed to 1"):
        toy_config.reconfigure(other, jobs=1)


def test_a_run_of_something_else_is_refused(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        toy.run(toy_config.configure("quick", out=out, **TOY), note=stops_at("NUTS"))
    with pytest.raises(InputError, match="no run of stochens digits, but of 'toy'"):
        digits.reconfigure(out)
    with pytest.raises(InputError, match="is no saved folder"):
        toy_config.reconfigure(tmp_path / "nowhere")
