"""Text against HMC, small and on made-up reviews: what is read, refused and measured."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from stochens import InputError
from stochens.networks import CNNLSTM
from stochens.samplers import sgmcmc
from stochens_lab.data.imdb import load_reviews
from stochens_lab.experiments import imdb, imdb_config
from stochens_lab.experiments.imdb_rows import FORGET, ROWS, network, parameters, prior_of
from stochens_lab.report.finish import finish_run
from stochens_lab.report.run_folder import SavedRun

SMALL = {"members": 2, "epochs": 2, "batch_size": 20, "draws": 2, "reviews": 40, "resamples": 20}


def made_up(train=60, test=imdb.CHOOSING + 40, words=12):
    """A review is positive where word 3 stands in it; the reference knows most of them."""
    random = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in (("train", train), ("test", test)):
        y = random.integers(0, 2, count).astype(np.uint8)
        x = random.integers(4, 20, (count, words)).astype(np.uint16)
        x[y == 1, -2] = 3
        arrays |= {f"x_{part}": x, f"y_{part}": y}
    sure = np.where(np.arange(test) % 10 == 0, 0.4, 0.9)
    arrays["hmc_probs"] = np.where(arrays["y_test"] == 1, [1 - sure, sure], [sure, 1 - sure]).T
    arrays["hmc_probs"] = arrays["hmc_probs"].astype(np.float32)
    return arrays


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("reviews")
    np.savez(path / "imdb.npz", **made_up())
    return path


def small_network():
    return CNNLSTM(words=20, width=6, channels=4, hidden=5)


def test_reviews_are_read_from_the_folder_or_the_file(folder):
    reviews = load_reviews(folder)
    assert reviews.x.shape == (60, 12)
    assert reviews.x.dtype == reviews.y.dtype == torch.int64
    assert reviews.hmc.shape == (imdb.CHOOSING + 40, 2)
    assert load_reviews(folder / "imdb.npz").hmc.equal(reviews.hmc)


def _without(name):
    return lambda arrays: arrays.pop(name)


def _changed(name, change):
    def apply(arrays):
        arrays[name] = change(arrays[name])

    return apply


HOSTILE = {
    "absent": (_without("hmc_probs"), "has no hmc_probs"),
    "objects": (_changed("y_train", lambda y: y.astype(object)), "no array of numbers"),
    "fractions": (_changed("x_train", lambda x: x / 2), "whole numbers"),
    "a word too many": (_changed("x_test", lambda x: x + 20_000), "not 0 to 19999"),
    "below 0": (_changed("x_test", lambda x: x.astype(np.int32) - 9), "not 0 to 19999"),
    "other lengths": (_changed("x_test", lambda x: x[:, :9]), "of 12 words and of 9"),
    "a third label": (_changed("y_train", lambda y: y + 1), "0 or 1"),
    "labels too few": (_changed("y_test", lambda y: y[1:]), "one for each"),
    "three classes": (_changed("hmc_probs", lambda p: np.c_[p, p[:, :1]]), "hmc_probs must be"),
    "not numbers": (_changed("hmc_probs", lambda p: np.where(p > 0.8, np.nan, p)), "distribution"),
    "sums": (_changed("hmc_probs", lambda p: 2 * p), "row 0 of hmc_probs is no distribution"),
    "misaligned": (_changed("hmc_probs", lambda p: np.roll(p, 1, 0)), "misaligned"),
}


@pytest.mark.parametrize("fault", HOSTILE)
def test_hostile_files_are_refused(tmp_path, fault):
    change, said = HOSTILE[fault]
    arrays = made_up(test=1000)
    change(arrays)
    np.savez(tmp_path / "imdb.npz", **arrays)
    with pytest.raises(InputError, match=said):
        load_reviews(tmp_path)


def test_a_file_that_is_none_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no imdb\.npz"):
        load_reviews(tmp_path)
    (tmp_path / "imdb.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(InputError, match="damaged"):
        load_reviews(tmp_path)


def test_the_network_is_that_of_the_reference():
    """Sizes by hand; and a plain loop over gates, with the 1 that the reference adds to f."""
    sizes = (20_000 * 128, 128 * 64 * 5 + 64, 4 * 128 * (64 + 128 + 2), 128 * 2 + 2)
    assert parameters(network()) == sum(sizes)
    torch.manual_seed(0)
    net = small_network().double()
    x = torch.randint(20, (3, 21))
    with torch.no_grad():
        net.lstm.bias_hh_l0.normal_().add_(net.forget_bias())
        words = net.embedding(x)
        windows = words.unfold(1, 5, 1)  # [B, 17, width, 5]
        every = torch.einsum("btwk,cwk->btc", windows, net.conv.weight) + net.conv.bias
        parts = every.relu()[:, :16].reshape(3, 4, 4, -1).amax(2)  # 17 positions: one is left over
        own = dict(net.lstm.named_parameters())
        less = own["bias_hh_l0"] - net.forget_bias()  # what a prior around 0 would be of
        h = c = torch.zeros(3, 5, dtype=torch.float64)
        for t in range(4):
            both = parts[:, t] @ own["weight_ih_l0"].T + h @ own["weight_hh_l0"].T
            i, f, g, o = (both + own["bias_ih_l0"] + less).chunk(4, 1)
            c = (f + 1).sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        torch.testing.assert_close(net(x), net.head(h))  # in float64
    with pytest.raises(ValueError, match="T >= 8"):
        net(x[:, :7])


def test_the_prior_is_around_the_reference_s_forget_gate():
    prior = prior_of(40.0, small_network())
    assert prior.given_means()[f"{FORGET}/{FORGET}"].tolist() == [0] * 5 + [1] * 5 + [0] * 10
    assert prior.of("lstm.bias_ih_l0", "lstm").mean == "zero"
    assert prior.of(FORGET, "lstm").precision == prior.of("head.weight", "head").precision == 40


@pytest.mark.filterwarnings("ignore")  # trainings this short are not to be trusted
def test_every_row_is_measured_and_a_run_goes_on(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sgmcmc, "LEAST_BURN_IN", 1)
    out = tmp_path / "run"
    config = imdb_config.configure(folder, out=out, rows=("regular",), **SMALL)
    imdb.run(config, build=small_network)
    before = json.dumps(SavedRun(out).metrics["imdb"]["regular"])
    again = imdb_config.reconfigure(out, rows=tuple(ROWS))
    notes: list[str] = []
    run = SavedRun(imdb.run(again, resume=True, build=small_network, note=notes.append))
    assert "regular is done" in notes
    assert json.dumps(run.metrics["imdb"]["regular"]) == before
    assert set(run.metrics["imdb"]) == {"HMC", *ROWS, *(f"{row}, tempered" for row in ROWS)}
    starts = {row: run.training["imdb"][row]["start"] for row in ROWS}
    warm = {"MultiSWA, HMC's prior", "SGHMC", "SGHMC, fisher"}
    assert {row for row in ROWS if starts[row] == "trained"} == warm
    told = run.training["imdb"]["SE1"]["temperature"]
    assert told["examples"] == 20  # those of the training set that were not trained on
    assert told["nll"] <= told["nll_before"]
    wanted = {"accuracy", "NLL", "ECE", "entropy", "agreement", "variance"}
    for row in ROWS:
        found = run.metrics["imdb"][row]["test"]
        assert wanted <= set(found)
        assert found["variance"]["low"] <= found["variance"]["value"] <= found["variance"]["high"]
    assert run.arrays["imdb/regular/test/mean"].shape == (40, 2)  # not the 5,000 for choosing
    reference = load_reviews(folder).hmc[imdb.CHOOSING :]
    distance = np.abs(run.arrays["imdb/SE1/test/mean"] - reference.numpy()).sum(1).mean() / 2
    assert run.metrics["imdb"]["SE1"]["test"]["variance"]["value"] == pytest.approx(distance, 1e-5)
    console = Console(record=True, width=100)
    list(finish_run(out, console))
    assert "SE1" in console.export_text()
    page = (out / "report.html").read_text()
    assert "SE1" in page
    assert "interval over the test points" in page
    assert "start at trained members" in page


def test_settings_are_chosen_on_other_reviews(folder):
    chosen = imdb.load(imdb_config.configure(folder, choosing=True, reviews=40))
    tested = imdb.load(imdb_config.configure(folder, reviews=40))
    reviews = load_reviews(folder)
    assert chosen.x.equal(reviews.x_test[: imdb.CHOOSING])
    assert tested.x.equal(reviews.x_test[imdb.CHOOSING :])
    assert tested.train[0].equal(reviews.x[:40])
    assert tested.held_out[0].equal(reviews.x[40:])


def test_what_cannot_be_is_refused_before_any_work(folder, tmp_path):
    with pytest.raises(InputError, match="--data"):
        imdb_config.configure()
    for changes, said in (
        ({"reviews": 61}, "there are 60 to train on"),
        ({"reviews": 40, "rows": ("regulr",)}, "did you mean 'regular'"),
        ({"reviews": 40, "members": 0}, "members must be at least 1"),
        ({"reviews": 40, "prior_precision": -1.0}, "prior_precision"),
    ):
        config = imdb_config.configure(folder, out=tmp_path / "none", **changes)
        with pytest.raises(InputError, match=said):
            imdb.run(config)
    np.savez(tmp_path / "imdb.npz", **made_up(test=1000))
    with pytest.raises(InputError, match="--choosing"):
        imdb.load(imdb_config.configure(tmp_path, reviews=40))
    assert not (tmp_path / "none").exists()


def test_the_published_file():
    """What the competition's predictions are known for."""
    path = Path(__file__).parents[3] / "shared" / "data" / "imdb" / "imdb.npz"
    if not path.is_file():
        pytest.skip(f"no real data: {path} is not there")
    reviews = load_reviews(path)
    assert reviews.x.shape == reviews.x_test.shape == (25_000, 100)
    right = (reviews.hmc.argmax(1) == reviews.y_test).double().mean()
    nll = -reviews.hmc.double().gather(1, reviews.y_test[:, None]).log().mean()
    assert round(100 * float(right), 2) == 87.56
    assert round(float(nll), 4) == 0.2950
