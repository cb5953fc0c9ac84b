"""`fit(callbacks=...)`: what they see, when they are called, and what becomes of their errors."""

import dataclasses
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import gather

import stochens
from stochens import MLP, Callback, Failed, InputError, View
from stochens.training.callbacks import _Logger

DATA = stochens.toy_set("a", n=30)
EPOCHS, PER_EPOCH = 5, 3


def fit(**options: Any) -> stochens.Posterior:
    torch.manual_seed(0)
    usual: dict[str, Any] = {"members": 3, "epochs": EPOCHS, "batch_size": 10, "lr": 0.1}
    return stochens.fit(MLP(2, 4, 2), DATA, **gather(**usual | options))


class Seen(Callback):
    """All views, by event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, View]] = []

    def begin(self, view: View) -> None:
        self.events.append(("begin", view))

    def epoch(self, view: View) -> None:
        self.events.append(("epoch", view))

    def end(self, view: View) -> None:
        self.events.append(("end", view))


def same(one: stochens.Posterior, other: stochens.Posterior) -> bool:
    return all(torch.equal(other.params[name], p) for name, p in one.params.items())


def test_when_they_are_called_and_what_they_see() -> None:
    seen = Seen()
    posterior = fit(callbacks=[seen], validation=0.2)
    assert [event for event, _ in seen.events] == ["begin", *["epoch"] * EPOCHS, "end"]
    first, *epochs, end = (view for _, view in seen.events)
    assert (first.epoch, first.step, first.loss, first.validation) == (0, 0, None, None)
    assert (end.epoch, end.step, end.epochs) == (EPOCHS, end.steps, EPOCHS)
    for e, view in enumerate(epochs):
        assert view.members == (0, 1, 2)
        assert (view.epoch, view.step, view.steps) == (e + 1, 3 * (e + 1), 3 * EPOCHS)
        assert torch.equal(view.loss, posterior.history.loss[e])
        assert torch.equal(view.nll, posterior.history.nll[e])
        torch.testing.assert_close(view.validation.float(), posterior.history.validation[e])
        assert not view.stopped.any()
    assert repr(epochs[1]) == "View(epoch 2 of 5, 3 members)"
    # half a cosine, at the last step of the second epoch: 5 of 15, cos(pi / 3) = 1 / 2
    assert epochs[1].lr == pytest.approx(0.1 * 0.5 * (1 + 0.5))


@pytest.mark.parametrize("optimizer", ["adam", "natural"])
@pytest.mark.filterwarnings("ignore:natural gradients have not arrived")
def test_params_and_predictions_are_of_now_and_change_nothing(optimizer: str) -> None:
    taken: list[Any] = []

    def look(view: View) -> None:
        params = view.params()
        taken.append((params, view.predict(DATA[0], draws=2, seed=3)))
        for p in view.params().values():
            p.fill_(7.0)  # a copy
        torch.rand(3)  # of torch's own generator

    options = {"optimizer": optimizer, "method": "regular"}
    posterior = fit(callbacks=look, **options)
    assert same(posterior, fit(**options))
    params, predicted = taken[-1]
    assert all(torch.equal(params[name], p) for name, p in posterior.params.items())
    assert torch.equal(predicted.mean, posterior.predict(DATA[0], draws=2, seed=3).mean)
    assert not torch.equal(taken[0][0]["0.weight"], params["0.weight"])


def test_a_view_cannot_be_changed() -> None:
    seen = Seen()
    fit(callbacks=seen, epochs=1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        seen.events[0][1].epoch = 3  # type: ignore[misc]


def test_a_stop_ends_all_members_and_later_blocks_too() -> None:
    constant = {"schedule": "constant"}
    options = {"callbacks": lambda view: view.stop() if view.epoch == 2 else None, **constant}
    posterior = fit(**options)
    assert same(posterior, fit(epochs=2, **constant))
    assert posterior.history.loss[:2].isfinite().all()
    assert posterior.history.loss[2:].isnan().all()
    assert posterior.history.kept.tolist() == [1, 1, 1]
    seen = Seen()
    in_blocks = fit(**options | {"callbacks": [seen, options["callbacks"]]}, chunk=1)
    torch.testing.assert_close(in_blocks.history.loss, posterior.history.loss, equal_nan=True)
    assert [view.members for event, view in seen.events if event == "begin"] == [(0,), (1,), (2,)]
    assert max(view.epoch for _, view in seen.events) == 2


def test_a_stop_before_the_first_epoch_leaves_one() -> None:
    class AtOnce(Callback):
        def begin(self, view: View) -> None:
            view.stop()

    assert fit(callbacks=AtOnce()).history.kept.tolist() == [0, 0, 0]


def test_a_stop_is_kept_in_a_checkpoint(tmp_path: Path) -> None:
    """A training that is stopped in its first block, and interrupted in its second, goes on."""
    options: dict[str, Any] = {"chunk": 2, "checkpoint": tmp_path / "run"}

    def early(view: View) -> None:
        if view.members == (0, 1) and view.epoch == 2:
            view.stop()
        if view.members == (2,):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(callbacks=early, **options)
    assert fit(**options).history.kept.tolist() == [1, 1, 1]


def test_an_error_ends_the_training_and_nothing_is_lost(tmp_path: Path) -> None:
    whole = fit()

    def broken(view: View) -> None:
        if view.epoch == 3:
            raise ZeroDivisionError("by zero")

    said = r"broken failed at 'epoch' after 3 of 5 epochs: ZeroDivisionError: by zero$"
    with pytest.raises(Failed, match=said):
        fit(callbacks=broken)
    options = {"checkpoint": tmp_path / "run"}
    with pytest.raises(Failed, match=r"is kept in .*run: the same call goes on"):
        fit(callbacks=broken, **options)
    seen = Seen()
    assert same(fit(callbacks=seen, **options), whole)
    assert [(event, view.epoch) for event, view in seen.events] == [
        *(("begin", 3), ("epoch", 4), ("epoch", 5), ("end", 5))
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (3, "callbacks must be functions of a View or of class stochens.Callback, got 3"),
        ("tensorboard", "callbacks must be functions"),
        (Seen, r"got the class Seen; write Seen\(\)"),
    ],
)
def test_what_is_no_callback_is_refused(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit(callbacks=given)


def test_callbacks_are_for_one_machine() -> None:
    with pytest.raises(InputError, match="callbacks are for one machine"):
        fit(callbacks=print, engine="ray")


# -- loggers --------------------------------------------------------------------------------------


class Flow(types.ModuleType):
    """Stands for mlflow and wandb, which are not installed for tests."""

    def __init__(self) -> None:
        super().__init__("flow")
        self.seen: list[tuple[int, dict[str, float]]] = []
        self.began: list[str] = []

    def active_run(self) -> None:
        return None

    def set_experiment(self, name: str) -> None:
        self.began.append(name)

    def start_run(self) -> None:
        pass

    def log_metrics(self, values: dict[str, float], step: int) -> None:
        self.seen.append((step, values))

    def init(self, project: str) -> "Flow":
        self.began.append(project)
        return self

    def log(self, values: dict[str, float], step: int) -> None:
        self.seen.append((step, values))


@pytest.mark.parametrize(
    ("name", "logger"), [("mlflow", stochens.MLflow("mine")), ("wandb", stochens.WandB("mine"))]
)
def test_loggers_have_every_epoch(
    name: str, logger: Callback, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = Flow()
    monkeypatch.setitem(sys.modules, name, flow)
    posterior = fit(callbacks=logger, validation=0.2)
    assert flow.began == ["mine"]
    assert [step for step, _ in flow.seen] == list(range(EPOCHS))
    for e, values in flow.seen:
        assert set(values) == {"loss", "nll", "validation", "lr", "stopped"}
        assert values["loss"] == pytest.approx(float(posterior.history.loss[e].mean()))
        assert values["validation"] == pytest.approx(
            float(posterior.history.validation[e].mean()), rel=1e-6
        )


def test_tensorboard_has_every_epoch(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    posterior = fit(callbacks=stochens.TensorBoard(str(tmp_path)), chunk=2)
    read = events.EventAccumulator(str(tmp_path))
    read.Reload()
    for tag, rows in (("members 0 to 1/loss", [0, 1]), ("members 2 to 2/loss", [2])):
        found = [event.value for event in read.Scalars(tag)]
        expected = posterior.history.loss[:, rows].mean(1)
        torch.testing.assert_close(torch.tensor(found), expected)


@pytest.mark.parametrize(
    ("module", "logger", "said"),
    [
        ("torch.utils.tensorboard", stochens.TensorBoard(), "pip install tensorboard"),
        ("wandb", stochens.WandB(), "Biases is not installed: pip install wandb"),
        ("mlflow", stochens.MLflow(), "MLflow is not installed: pip install mlflow"),
    ],
)
def test_a_missing_package_is_said_before_any_work(
    module: str, logger: _Logger, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InputError, match=said):
        fit(callbacks=logger, checkpoint=tmp_path / "run")
    assert not (tmp_path / "run").exists()
