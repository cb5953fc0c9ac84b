"""`fit(validation=...)`: what is written down, who stops, and with which state."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import gather
from tests.tolerance import close
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, Data, Gaussian, Homoscedastic, InputError, Natural, Optimizer, Validation
from stochens.data import source
from stochens.posterior.history import History, Recorder
from stochens.run.progress import Bar
from stochens.training.loop import _lost
from stochens.training.validation import held_out

NO_STEP = 1e-30  # a rate at which nothing moves
EPOCHS = 7


def points(n: int, seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(seed)).double()
    return x, (x[:, 0] * x[:, 1] > 0).long()


TRAIN, HELD = points(30, 0), points(9, 1)


def fit(**options: Any) -> stochens.Posterior:
    """At a constant rate, so that the first epochs of a long training are those of a short one."""
    torch.manual_seed(0)
    usual: dict[str, Any] = {
        "method": "dropout",
        "members": 4,
        "epochs": EPOCHS,
        "batch_size": 8,
        "lr": 0.3,
        "optimizer": Optimizer(schedule="constant"),
    }
    return stochens.fit(MLP(2, 6, 2).double(), TRAIN, **gather(**usual | options))


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], p) for name, p in other.items())


@pytest.fixture(scope="module")
def watched() -> stochens.Posterior:
    """Written down only."""
    return fit(validation=HELD)


# -- what is written down -------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["regular", "last-layer"])  # the whole network, or its end
def test_it_is_the_nll_of_each_member(method: str) -> None:
    posterior = fit(method=method, validation=HELD)
    x, y = HELD
    for k in range(4):
        net = MLP(2, 6, 2).double()
        net.load_state_dict(posterior.member(k))
        within = close(torch.float32, terms=1)  # which a history is kept in
        torch.testing.assert_close(
            posterior.history.validation[-1, k],
            F.cross_entropy(net(x), y).detach().float(),
            **within,
        )
    assert posterior.history.kept.tolist() == [EPOCHS - 1] * 4


def test_it_changes_nothing_of_the_training(watched: stochens.Posterior) -> None:
    plain = fit()
    assert same(watched.params, plain.params)
    assert torch.equal(watched.history.loss, plain.history.loss)
    assert plain.history.validation.shape == (0, 4)
    for epochs in (1, 3):
        short = fit(epochs=epochs, validation=HELD).history.validation
        assert torch.equal(short, watched.history.validation[:epochs])


def test_the_noise_is_the_same_in_every_epoch_and_another_for_each_member() -> None:
    with pytest.warns(UserWarning, match="ended with the same parameters"):
        posterior = fit(method=stochens.Dropout(0.5), lr=NO_STEP, start="module", validation=HELD)
    still = posterior.history.validation
    assert torch.equal(still, still[:1].expand_as(still))
    assert len(still[0].unique()) == 4


def test_it_is_expected_under_the_noise() -> None:
    """y = (w + s n_w) x + (b + s n_b): with a noise of 1 the NLL is 1/2 (r^2 + s^2 (x^2 + 1)) +
    1/2 log 2 pi, where r = y - w x - b, and each draw has a variance that is known by sampling."""
    x = torch.linspace(-1, 1, 5).double()[:, None]
    y, s, draws = 0.5 * x, 0.3, 400
    posterior = stochens.fit(
        nn.Linear(1, 1).double(),
        (x, y),
        method=Gaussian(s),
        likelihood=Homoscedastic(1.0),
        members=3,
        epochs=1,
        lr=NO_STEP,
        validation=Validation((x, y), draws=draws),
    )
    w, b = posterior.params["weight"].flatten(1), posterior.params["bias"].flatten(1)  # [M, 1]
    r = y.T - w * x.T - b  # [M, 5]
    expected = 0.5 * (r.square() + s**2 * (x.T.square() + 1)).mean(1)
    expected += 0.5 * torch.tensor(2 * torch.pi).log()
    # of one draw: r^2 / 2 with r normal has a standard deviation below r s + s^2 (x^2 + 1)
    deviation = (r.abs() * s * 1.5 + s**2 * 2).mean(1)
    error = (posterior.history.validation[0].double() - expected).abs()
    assert (error < 5 * deviation / draws**0.5).all()


def test_a_log_and_the_progress_show_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the mean over members that still learn; the bar says how many do not."""
    monkeypatch.setattr(Bar, "wants_note", True)
    seen: list[dict[str, float]] = []
    notes: list[str] = []

    def show(done: int, total: int, note: str | None) -> None:
        notes.extend([note] if note else [])

    posterior = fit(
        validation=Validation(HELD, patience=1),
        log=lambda _, values: seen.append(values),
        progress=show,
    )
    means = posterior.history.validation.double().nanmean(1)[: len(seen)]
    assert [v["validation"] for v in seen] == pytest.approx(means.tolist(), rel=1e-6)
    losses = posterior.history.loss.double().nanmean(1)[: len(seen)]
    assert [v["loss"] for v in seen] == pytest.approx(losses.tolist(), rel=1e-5)
    for e, note in enumerate(notes):
        gone = int(posterior.history.loss[e + 1].isnan().sum()) if e + 1 < EPOCHS else None
        assert f"validation {means[e]:.4g}" in note
        assert gone is None or (f", {gone} stopped" in note) is (gone > 0)


# -- who stops, and with which state --------------------------------------------------------------


def test_one_that_stops_changes_no_other_bit_for_bit(watched: stochens.Posterior) -> None:
    """Each member is what it is in a training that ends with its best epoch."""
    patience = 1
    posterior = fit(validation=Validation(HELD, patience=patience))
    free, seen = watched.history.validation, posterior.history.validation
    lasts = set()
    for k in range(4):
        best, last = 0, EPOCHS - 1
        for epoch in range(EPOCHS):  # the rule, said again
            if free[epoch, k] < free[best, k]:
                best = epoch
            elif epoch - best >= patience:
                last = epoch
                break
        assert int(posterior.history.kept[k]) == best
        assert torch.equal(seen[: last + 1, k], free[: last + 1, k])
        assert seen[last + 1 :, k].isnan().all()
        assert posterior.history.loss[last + 1 :, k].isnan().all()
        short = fit(epochs=best + 1)
        for name, p in short.params.items():
            assert torch.equal(posterior.params[name][k], p[k])
        lasts.add(last)
    assert len(lasts) > 1, "the test needs members that stop at different times"


def test_the_best_state_without_a_stop(watched: stochens.Posterior) -> None:
    posterior = fit(validation=Validation(HELD, best=True))
    assert torch.equal(posterior.history.validation, watched.history.validation)
    assert torch.equal(posterior.history.kept, watched.history.validation.argmin(0))
    assert torch.equal(posterior.history.loss, watched.history.loss)


@pytest.mark.filterwarnings("ignore:natural gradients have not arrived")
def test_gaussian_members_have_the_sigmas_of_their_best_epoch() -> None:
    natural = Natural(memory=20.0, schedule="constant", warmup=0.0, sigma=0.1)
    options = {"method": "regular", "optimizer": natural, "lr": 0.3}
    chosen = fit(validation=Validation(HELD, best=True), **options)
    for k in range(4):
        short = fit(epochs=int(chosen.history.kept[k]) + 1, **options).take([k])
        mine = chosen.take([k])
        assert same(mine.params, short.params)
        assert same(mine.low_rank.variance, short.low_rank.variance)
    assert len(chosen.history.kept.unique()) > 1


def test_where_all_have_stopped_nothing_more_is_computed() -> None:
    epochs: list[int] = []
    with pytest.warns(UserWarning, match="ended with the same parameters"):
        posterior = fit(
            lr=NO_STEP,
            start="module",
            epochs=50,
            validation=Validation(HELD, patience=3),
            log=lambda epoch, _: epochs.append(epoch),
        )
    assert epochs == [0, 1, 2, 3]
    assert posterior.history.loss.shape == (50, 4)
    assert posterior.history.loss[4:].isnan().all()
    assert posterior.history.kept.tolist() == [0] * 4


def test_a_member_that_diverges_after_its_stop_is_not_lost() -> None:
    recorder = Recorder(3, torch.device("cpu"))
    recorder.lost_at.copy_(torch.tensor([5, 50, -1]))
    lost = _lost((7, 8, 9), {"w": torch.zeros(3, 1)}, recorder, until=torch.tensor([10, 20, 20]))
    assert set(lost) == {7}


def test_a_checkpoint_knows_its_validation(tmp_path: Path) -> None:
    options = {"checkpoint": tmp_path / "run", "epochs": 1}
    fit(validation=HELD, **options)
    for other in (None, points(9, 2), Validation(HELD, patience=1)):
        with pytest.raises(InputError, match="is of another run: validation was"):
            fit(validation=other, **options)
    fit(validation=HELD, **options)


# -- the data -------------------------------------------------------------------------------------


def test_a_share_of_the_rows() -> None:
    x = torch.arange(20.0)[:, None]
    given = source((x, torch.zeros(20, dtype=torch.long)))
    rest, held = held_out(given, Validation(0.25), 3)
    assert (rest.size, held.size) == (15, 5)
    assert sorted([*rest.x.flatten().tolist(), *held.x.flatten().tolist()]) == list(range(20))
    again, other = (held_out(given, Validation(0.25), seed)[1].x for seed in (3, 4))
    assert torch.equal(held.x, again)
    assert not torch.equal(held.x, other)


def test_one_row_to_train_on_and_one_to_validate_on_are_enough() -> None:
    given = source((torch.arange(2.0)[:, None], torch.zeros(2, dtype=torch.long)))
    rest, held = held_out(given, Validation(0.5), 3)
    assert (rest.size, held.size) == (1, 1)


def test_weights_of_a_share() -> None:
    """A row counts as its weight says, beside the other rows of its part, and the sums of the
    weights add up."""
    weights = torch.arange(1.0, 21.0)
    x = torch.arange(1.0, 21.0)[:, None]
    given = source(Data((x, torch.zeros(20, dtype=torch.long)), weights=weights))
    parts = held_out(given, Validation(0.25), 0)
    assert sum(part.examples for part in parts) == pytest.approx(210.0)
    for part in parts:
        assert part.examples == pytest.approx(float(part.x.sum()))
        own: Any = part.x
        expected = (own * len(own) / own.sum()).flatten()
        torch.testing.assert_close(part.weights, expected)


def test_data_of_any_kind(watched: stochens.Posterior) -> None:
    x, y = HELD
    rows = TensorDataset(x, y)
    for data in (rows, DataLoader(rows, batch_size=4), Data(HELD)):
        seen = fit(validation=data).history.validation
        torch.testing.assert_close(seen, watched.history.validation, **close(torch.float32))
    heavy = fit(method="regular", validation=Data(HELD, weights=[2.0] + [1.0] * 8))
    twice = x[:1], y[:1]
    more = tuple(torch.cat(both) for both in zip(HELD, twice, strict=True))
    torch.testing.assert_close(
        heavy.history.validation,
        fit(method="regular", validation=more).history.validation,
        **close(torch.float32, terms=10),
    )


def test_data_by_name() -> None:
    """y is called in it as in the data to train on."""
    named, held = ({"a": x, "kind": y} for x, y in (TRAIN, HELD))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = MLP(2, 6, 2).double()

        def forward(self, a: Tensor) -> Tensor:
            return self.body(a)

    options = {"members": 2, "epochs": 1, "validation": held}
    posterior = stochens.fit(Net, Data(named, target="kind"), **options)
    assert posterior.history.validation.shape == (1, 2)


def test_training_by_a_loader_is_validated() -> None:
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=8)
    torch.manual_seed(0)
    net, options = MLP(2, 6, 2).double(), {"members": 2, "epochs": 3}
    posterior = stochens.fit(net, loader, validation=Validation(HELD, best=True), **options)
    assert torch.equal(posterior.history.kept, posterior.history.validation.argmin(0))
    with pytest.raises(InputError, match="takes rows of one data set in memory"):
        stochens.fit(net, loader, validation=0.2, **options)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (1.5, r"a share of the rows in \(0, 1\), got 1.5"),
        (0, r"a share of the rows in \(0, 1\), got 0"),
        (0.001, "of 30 rows would be 0; it needs at least 1"),
        (0.999, "of 30 rows would be 30"),
        ("half", "data must be"),
        ((HELD[0], HELD[1] + 1), "label 2 is out of range"),
        ((HELD[0][:, :1], HELD[1]), "the network fails on the validation data"),
        ((HELD[0], HELD[1][:3]), "x and y must have the same length"),
        (stochens.Replicas([HELD, HELD]), "validation needs one data set for all members"),
    ],
)
def test_bad_data_get_one_clear_error(validation: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(validation=validation)


def test_bad_options_get_one_clear_error() -> None:
    with pytest.raises(InputError, match="patience must be a whole number"):
        Validation(0.1, patience=0)
    with pytest.raises(InputError, match="draws must be a whole number"):
        Validation(0.1, draws=0)
    with pytest.raises(InputError, match="Validation in Validation"):
        Validation(Validation(0.1))
    with pytest.raises(InputError, match="Validation needs data"):
        Validation(None)


# -- what is kept ---------------------------------------------------------------------------------


def test_histories_of_before_are_read() -> None:
    old = {name: torch.zeros(5, 3) for name in History._fields[:4]}
    history = History.of(old)
    assert history.validation.shape == (0, 3)
    assert history.kept.tolist() == [4, 4, 4]
    assert history.take([0, 2]).kept.tolist() == [4, 4]


def test_members_with_and_without_validation_join_without_their_history() -> None:
    one, other = fit(members=[0], validation=HELD), fit(members=[1])
    assert stochens.join([one, other]).history is None
    two = fit(members=[1], validation=HELD)
    assert stochens.join([one, two]).history.validation.shape == (EPOCHS, 2)


def test_options_are_read_alone() -> None:
    chosen = Validation(HELD, patience=3)
    assert dataclasses.replace(chosen, best=True).chooses
    assert chosen.chooses
    assert not Validation(HELD).chooses
