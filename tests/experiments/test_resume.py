"""A run that was stopped and gone on with ends like one that was not."""

import warnings

import numpy as np
import pytest
from tests.experiments.test_digits import SMALL as DIGITS
from tests.experiments.test_toy import SMALL as TOY

from stochens import InputError
from stochens.experiments import digits, toy
from stochens.report.run_folder import Run


def stops_at(word: str):
    def note(text: str) -> None:
        if word in text:
            raise KeyboardInterrupt

    return note


def same(one: Run, other: Run) -> None:
    assert one.metrics == other.metrics
    assert one.training == other.training
    assert one.sampler == other.sampler
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


@pytest.mark.parametrize("word", ["draw 1: NUTS", "MultiSWA", "regular, early", "SE3, 20 steps"])
def test_toy(word, tmp_path):
    small = TOY | {"sets": ("a",), "draws": 2, "seeds": 2}
    whole = toy.run(toy.configured("quick", out=tmp_path / "whole", **small))
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        toy.run(toy.configured("quick", out=cut, **small), note=stops_at(word))
    assert not Run(cut).about["complete"]
    config = toy.resumed(cut)
    assert config == toy.configured("quick", out=cut, **small)
    toy.run(config, resume=True)
    same(Run(cut), Run(whole))
    toy.run(config, resume=True, note=stops_at("set a"))  # nothing is left to do
    assert Run(cut).about["complete"]
    assert not (cut / "checkpoints").exists()
    assert sorted(p.name for p in cut.iterdir()) == sorted(p.name for p in whole.iterdir())


def test_digits(tmp_path):
    whole = digits.run(digits.configured("quick", out=tmp_path / "whole", **DIGITS))
    cut = tmp_path / "cut"
    with pytest.raises(KeyboardInterrupt):
        digits.run(digits.configured("quick", out=cut, **DIGITS), note=stops_at("SE2"))
    digits.run(digits.resumed(cut), resume=True)
    same(Run(cut), Run(whole))


def test_a_run_of_something_else_is_refused(tmp_path):
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        toy.run(toy.configured("quick", out=out, **TOY), note=stops_at("NUTS"))
    with pytest.raises(InputError, match="no run of stochens digits, but of 'toy'"):
        digits.resumed(out)
    with pytest.raises(InputError, match="is no saved folder"):
        toy.resumed(tmp_path / "nowhere")
