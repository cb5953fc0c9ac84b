"""method="auto": trials on a part of the data, a choice with reasons, a normal posterior."""

import dataclasses
import json
import math
import signal

import pytest
import torch
from tests.running import gather
from tests.tolerance import rounding
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import Auto, Dropout, Failed, Gaussian, InputError, Replicas, metrics
from stochens.data import source
from stochens.methods.dropout import DropoutLayer
from stochens.posterior.predictive import GaussianPredictive, Predictive
from stochens.posterior.trials import Trial, Trials
from stochens.run.checkpoints import alone_in
from stochens.training import work
from stochens.training.auto import _error, _rows, _split, choice, label
from stochens.training.loop import train
from stochens.training.outcomes import Outcome

pytestmark = pytest.mark.xdist_group("trials")  # one process makes the posterior that they share
SMALL = Auto(candidates=["regular", Dropout(0.1), Dropout(0.9)], members=4, draws=4)


@pytest.fixture(scope="module")
def data():
    return stochens.toy_set("b", n=120)


def fit(data, method=SMALL, **options):
    settings = {"members": 3, "epochs": 200, "lr": 0.02, "batch_size": None} | options
    return stochens.fit(stochens.MLP(2, 10, 2), data, method=method, **gather(**settings))


@pytest.fixture(scope="module")
def posterior(data):
    return fit(data)


def test_the_result_is_a_normal_posterior_that_remembers(data, posterior, tmp_path):
    trials = posterior.trials
    assert [row.label for row in trials.rows] == ["regular", "dropout 0.1", "dropout 0.9"]
    assert trials.chosen in ("regular", "dropout 0.1"), "nine of ten nodes dropped is far worse"
    assert trials.by_held_out()[-1].label == "dropout 0.9"
    assert trials.chosen in trials.reason
    assert label(posterior.recipe.methods) == trials.chosen
    assert posterior.data_size == 120, "trained on all of the data"
    plain = fit(
        data, method=trials.chosen.split()[0] if trials.chosen == "regular" else Dropout(0.1)
    )
    for name, p in plain.params.items():
        assert torch.equal(p, posterior.params[name])
    posterior.save(tmp_path / "kept")
    kept = stochens.load(tmp_path / "kept", stochens.MLP(2, 10, 2))
    assert kept.trials == trials
    json.dumps(trials.description())


def test_one_seed_gives_the_same_trials(data, posterior):
    assert fit(data).trials == posterior.trials
    assert fit(data, seed=1).trials != posterior.trials


def test_the_table_shows_both_with_their_fluctuation(posterior):
    text = str(posterior.trials)
    for row in posterior.trials.rows:
        assert f"{row.kl:.1f} ± {row.kl_error:.1f}" in text
        assert f"{row.kl_fluctuation:.1f}" in text
        assert f"{row.held_out:.4f} ± {row.held_out_error:.4f}" in text
    assert "<-" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert repr(posterior.trials) == f"Trials(3 candidates, chosen {posterior.trials.chosen!r})"


def test_a_trial_is_what_one_would_measure_by_hand(data, posterior):
    """The last trial again, by `fit` and `metrics` alone."""
    from stochens.randomness.seeds import TRIALS, derive

    part, held, _ = _split(source(data), 0.2, 0)
    assert (part.size, held.size) == (96, 24)
    rows = {tuple(row) for row in part.x.tolist()} & {tuple(row) for row in held.x.tolist()}
    assert not rows, "no example is in both"
    trained = stochens.fit(
        stochens.MLP(2, 10, 2),
        (part.x, part.y),
        method=Dropout(0.9),
        members=4,
        epochs=50,
        lr=0.02,
        batch_size=None,
        seed=derive(0, TRIALS),
    )
    trial = posterior.trials.rows[2]
    within = rounding(torch.float32, terms=4)  # means over four members
    assert trial.kl == pytest.approx(float(trained.history.loss[-1].mean()), rel=within)
    assert trial.stochasticity == pytest.approx(trained.kl().stochasticity)
    probs = trained.predict(held.x, draws=4).mean
    # float32 probs of 16 draws, their mean and its logarithm
    within = rounding(torch.float32, terms=16, depth=2)
    assert trial.held_out == pytest.approx(-metrics.nll(probs, held.y), rel=within)


def row(name, kl, held_out, gap, gap_error=0.01):
    return Trial(name, kl, 1.0, 1.0, 0.0, held_out, 0.1, gap, gap_error)


ROWS = [
    row("a", 50.0, -0.30, 0.0, 0.0),
    row("b", 40.0, -0.305, 0.005),  # within one standard error of a
    row("c", 10.0, -0.50, 0.2),
    row("d", None, -0.302, 0.002),  # within it too, without a rank by KL loss
]


@pytest.mark.parametrize(("by", "chosen"), [("kl", "c"), ("held-out", "a"), ("both", "b")])
def test_the_rules(by, chosen):
    found, reason = choice(ROWS, by)
    assert found == chosen
    assert reason.startswith(f"{chosen}: the ")


def test_the_rules_where_they_have_little_to_go_by():
    assert choice([ROWS[0], ROWS[2]], "both")[0] == "a"
    assert choice([unranked(ROWS[0]), ROWS[3]], "both")[0] == "a"
    with pytest.raises(InputError, match="no candidate has a rank by KL loss"):
        choice([ROWS[3]], "kl")
    trials = Trials(tuple(ROWS), "a", "why")
    assert [r.label for r in trials.by_kl()] == ["c", "b", "a"]
    assert [r.label for r in trials.by_held_out()] == ["a", "d", "b", "c"]


@pytest.mark.parametrize("by", ["kl", "held-out", "both"])
def test_a_candidate_without_numbers_loses_wherever_it_stands(by):
    lost = row("lost", math.nan, math.nan, math.nan, math.nan)
    for rows in ([lost, *ROWS], [*ROWS, lost], [ROWS[0], lost, *ROWS[1:]]):
        assert choice(rows, by)[0] == choice(ROWS, by)[0]
        trials = Trials(tuple(rows), "a", "why")
        assert trials.by_kl()[-1] is lost
        assert trials.by_held_out()[-1] is lost


def test_gaps_are_to_the_best_that_is_a_number():
    weights = torch.full((4,), 0.25, dtype=torch.float64)
    one = torch.zeros(2, dtype=torch.float64)
    found = {
        name: Outcome(torch.full((4,), value), one, one, one[0], torch.tensor(True))
        for name, value in {"lost": math.nan, "a": -1.0, "b": -0.5}.items()
    }
    gaps = {trial.label: trial.gap for trial in _rows(found, weights)}
    assert gaps["a"] == 0.5
    assert gaps["b"] == 0.0


def unranked(trial):
    return trial._replace(kl=None)


def test_the_standard_error_is_the_textbooks():
    values = torch.tensor([1.0, 2.0, 4.0, 7.0], dtype=torch.float64)
    equal = torch.full((4,), 0.25, dtype=torch.float64)
    assert _error(values, equal) == pytest.approx(float(values.std() / 2))


def test_a_finite_sigma_has_no_rank_by_kl(data):
    posterior = fit(data, Auto(candidates=["regular", Gaussian(0.1)], members=2), epochs=4)
    assert posterior.trials.rows[1].kl is None
    assert [row.label for row in posterior.trials.by_kl()] == ["regular"]


def test_weights_count_in_the_trials(data):
    y = data[1]
    weighted = fit(stochens.Data(data, weights=1.0 + y), epochs=8)
    assert weighted.trials != fit(data, epochs=8).trials
    assert weighted.trials == fit(stochens.Data(data, weights=1.0 + y), epochs=8).trials


def test_regression(data):
    x = data[0]
    posterior = stochens.fit(
        stochens.MLP(2, 8, 1), (x, x[:, :1].sin()), method=SMALL, epochs=8, likelihood="gaussian"
    )
    assert len(posterior.trials.rows) == 3


def test_a_candidate_that_cannot_be_is_left_out(data):
    one_layer = nn.Linear(2, 2)  # only its output layer, which dropout leaves alone
    posterior = stochens.fit(one_layer, data, method=SMALL, members=2, epochs=4)
    assert posterior.trials.chosen == "regular"
    assert set(posterior.trials.skipped) == {"dropout 0.1", "dropout 0.9"}
    with pytest.raises(InputError, match="found no layer"):
        stochens.fit(one_layer, data, method=Auto(candidates=["dropout"]), members=2, epochs=4)


def test_a_candidate_that_diverges_is_left_out(data, monkeypatch):
    def diverging(*args):
        start = args[1]
        if any(isinstance(layer, DropoutLayer) for layer in args[0].net.modules()):
            start = {name: p * math.nan for name, p in start.items()}
        return train(args[0], start, *args[2:])

    monkeypatch.setattr(work, "train", diverging)
    method = Auto(candidates=["regular", "dropout"], members=2)
    trials = fit(data, method, epochs=4).trials
    assert trials.chosen == "regular"
    assert "all 2 members diverged" in trials.skipped["dropout 0.1"]
    with pytest.raises(Failed, match="all 2 members diverged"):
        fit(data, Auto(candidates=["dropout"], members=2), epochs=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "luck"}, "by must be one of held-out, kl, both"),
        ({"held_out": 1.0}, "held_out must be a share"),
        ({"candidates": []}, "candidates must be a list"),
        ({"candidates": "dropout"}, "candidates must be a list"),
        ({"candidates": ["dropout", Dropout(0.1)]}, "stands there twice"),
        ({"candidates": ["dropuot"]}, "did you mean 'dropout'"),
        ({"members": 0}, "members must be a whole number"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Auto(**options)


def test_what_auto_cannot_do_is_refused(data, posterior):
    with pytest.raises(InputError, match="not a DataLoader"):
        fit(DataLoader(TensorDataset(*data)), "auto")
    with pytest.raises(InputError, match="not Replicas"):
        fit(Replicas([data, data]), "auto")
    with pytest.raises(InputError, match="would hold 1 of 3 examples out"):
        fit((data[0][:3], data[1][:3]), Auto(held_out=0.3))
    with pytest.raises(InputError, match="needs a start by name: Params fit one method"):
        fit(data, "auto", start=posterior.params)
    with pytest.raises(InputError, match="members must be at least 1"):
        fit(data, "auto", members=0)


def test_log_prob_is_minus_the_metric():
    generator = torch.Generator().manual_seed(0)
    probs = torch.rand(5, 7, 3, generator=generator).softmax(-1)
    y = torch.arange(7) % 3
    p = Predictive.of(probs)
    within = rounding(torch.float32, terms=7, depth=3)  # means over 5 draws and 7 rows, a logarithm
    assert float(-p.log_prob(y).mean()) == pytest.approx(metrics.nll(p.mean, y), rel=within)
    means = torch.randn(5, 7, 2, generator=generator)
    variances = torch.rand(5, 7, 2, generator=generator) + 0.1
    target = torch.randn(7, 2, generator=generator)
    got = float(-GaussianPredictive.of(means, variances).log_prob(target).mean())
    assert got == pytest.approx(metrics.gaussian_nll(means, variances, target), rel=within)
    sure = Predictive.of(torch.tensor([[[1.0, 0.0]]]))
    assert sure.log_prob(torch.tensor([1])).isfinite().all()
    with pytest.raises(InputError, match="labels must be integers"):
        p.log_prob(y[:3])
    with pytest.raises(InputError, match="targets must be"):
        GaussianPredictive.of(means, variances).log_prob(target[:3])


def test_the_estimator_takes_it_too(data):
    model = stochens.StochasticEnsembleClassifier(
        method=dataclasses.replace(SMALL, members=2), members=2, epochs=8, random_state=0
    )
    assert model.fit(*(t.numpy() for t in data)).posterior_.trials is not None


class Stopped:
    """In the place of the loop: counts trainings, and ends one of them after its first step."""

    def __init__(self, monkeypatch, at=None):
        self.at, self.found = at, []
        monkeypatch.setattr(work, "train", self)

    def __call__(self, *args):
        if len(self.found) == self.at:
            signal.raise_signal(signal.SIGINT)  # which waits for the end of a step
        self.found.append(args[-1].keep.found)  # what the keeper has of it
        return train(*args)


@pytest.mark.parametrize("at", [0, 1, 2, 3])  # the last is the training itself
def test_trials_are_part_of_a_checkpoint(data, posterior, at, tmp_path, monkeypatch):
    Stopped(monkeypatch, at)
    with pytest.raises(KeyboardInterrupt):
        fit(data, run=stochens.Run(checkpoint=tmp_path / "kept"))
    left = Stopped(monkeypatch)
    resumed = fit(data, run=stochens.Run(checkpoint=tmp_path / "kept"))
    assert len(left.found) == 4 - at, "those that had ended are not trained again"
    assert left.found[0] is not None, "the one that was stopped goes on"
    assert resumed.trials == posterior.trials
    for name, p in posterior.params.items():
        assert torch.equal(p, resumed.params[name])
    again = Stopped(monkeypatch)
    assert fit(data, run=stochens.Run(checkpoint=tmp_path / "kept")).trials == posterior.trials
    assert len(again.found) == 1, "the training itself, which is found whole"
    assert not list(tmp_path.glob("kept/trial-*")), "nothing is left of trainings that have ended"


def test_kept_trials_of_another_run_are_refused(data, tmp_path):
    fit(data, epochs=4, run=stochens.Run(checkpoint=tmp_path / "kept"))
    for changed in ({"epochs": 8}, {"lr": 0.5}, {"seed": 1}, {"kl_weight": 0.5}):
        with pytest.raises(InputError, match="trials is of another run"):
            fit(data, **{"epochs": 4} | changed, run=stochens.Run(checkpoint=tmp_path / "kept"))
    with pytest.raises(InputError, match="the data differ"):
        fit((2 * data[0], data[1]), epochs=4, run=stochens.Run(checkpoint=tmp_path / "kept"))
    for candidates in (["regular"], SMALL.candidates[::-1]):
        other = dataclasses.replace(SMALL, candidates=candidates)
        with pytest.raises(InputError, match="candidates was"):
            fit(data, other, epochs=4, run=stochens.Run(checkpoint=tmp_path / "kept"))


def test_who_was_left_out_is_tried_again_by_the_same_call(data, tmp_path):
    one_layer = nn.Linear(2, 2)
    options = {"method": SMALL, "members": 2, "epochs": 4, "checkpoint": tmp_path / "kept"}
    first = stochens.fit(one_layer, data, **gather(**options))
    assert stochens.fit(one_layer, data, **gather(**options)).trials == first.trials
    assert not list(tmp_path.glob("kept/trial-*"))
    by_vmap_alone = nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2))
    options["checkpoint"] = tmp_path / "other"
    with pytest.raises(InputError, match="engine='fused'"):
        stochens.fit(by_vmap_alone, data, **gather(engine="fused", **options))
    assert len(stochens.fit(by_vmap_alone, data, **gather(**options)).trials.rows) == 3


def test_a_url_is_for_many_machines(data):
    with pytest.raises(InputError, match="= memory://kept is a URL, which is for engine='ray'"):
        fit(data, run=stochens.Run(checkpoint="memory://kept"))


def test_a_folder_that_is_no_checkpoint_does_not_count_against_a_method(data, tmp_path):
    """An error that says nothing of the candidate ends the trials: no choice is made without it."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/letter.txt").write_text("dear")
    with pytest.raises(InputError, match="is not empty, and holds no checkpoints"):
        fit(data, run=stochens.Run(checkpoint=tmp_path / "kept"))
    with alone_in(tmp_path / "other/trial-001"):
        (tmp_path / "other/.lock").touch()
        with pytest.raises(InputError, match="another process"):
            fit(data, epochs=4, run=stochens.Run(checkpoint=tmp_path / "other"))
