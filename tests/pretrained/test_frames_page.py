"""Members that Lightning and Hugging Face's Trainer have trained: docs/frames.md, run as it stands
there, and the callback."""

import contextlib
import doctest
import importlib
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import InputError, Posterior
from stochens.errors import TrainingAdvice

PAGE = (Path(__file__).parents[2] / "docs" / "frames.md").read_text()
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-6}  # float32, in another order
X, Y = stochens.toy_set("a", n=20)


def snippets(heading: str) -> list[str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```py\n(.*?)^```", section, re.DOTALL | re.MULTILINE)


def run(heading: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs: few workers, no GPU, no validation
        for code in snippets(heading):
            exec(compile(code, heading, "exec"), names)
    return names


@pytest.fixture
def lightning(monkeypatch, tmp_path) -> Any:
    monkeypatch.chdir(tmp_path)
    return pytest.importorskip("lightning", reason="needs stochens[lightning]")


# -- Lightning -------------------------------------------------------------------------------------


def test_the_page_on_lightning(lightning):
    names = run("Lightning")
    x, nets, members = names["x"], names["nets"], names["members"]
    assert len(members) == len(nets) == 3
    # by hand: each network's own softmax
    known = torch.stack([net(x).softmax(-1) for net in members.networks]).detach()
    torch.testing.assert_close(names["p"].probs, known, **CLOSE)
    # Lightning's own checkpoints, of the end of the last epoch, hold the same
    assert torch.equal(names["again"].predict(x).probs, names["p"].probs)
    assert names["p"].mutual_information.max() > 0


def test_the_doctest_of_the_callback(lightning):
    import stochens.lightning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = doctest.testmod(stochens.lightning, optionflags=doctest.ELLIPSIS)
    assert found.attempted > 5
    assert found.failed == 0


def modules(lightning: Any) -> Any:
    class Mine(lightning.LightningModule):  # type: ignore[misc]
        """Called as a whole, with what such modules often have: a metric, hyperparameters."""

        def __init__(self, width: int = 4) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.net = nn.Sequential(nn.Linear(2, width), nn.Tanh(), nn.Linear(width, 2))
            self.accuracy = pytest.importorskip("torchmetrics").Accuracy("binary")

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)

        def training_step(self, batch: Any, number: int) -> Tensor:
            x, y = batch
            outputs = self(x)
            self.accuracy(outputs.argmax(-1), y)
            self.log("accuracy", self.accuracy)
            return nn.functional.cross_entropy(outputs, y)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Mine


def fit(lightning: Any, module: Any, callbacks: Any, **options: Any) -> None:
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    settings = quiet | {"max_epochs": 2, "enable_model_summary": False, "accelerator": "cpu"}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module="lightning")
        warnings.filterwarnings("error", category=TrainingAdvice)
        trainer = lightning.Trainer(callbacks=callbacks, **(settings | options))
        trainer.fit(module, DataLoader(TensorDataset(X, Y), batch_size=10))


def _first_weight(members: Any) -> Tensor:
    return members.networks[0][0].weight


def test_a_module_as_a_whole(lightning, tmp_path):
    from stochens.lightning import Members

    mine, members = modules(lightning), Members()
    for seed in range(2):
        torch.manual_seed(seed)
        fit(lightning, mine(), [members])
    posterior = members.posterior(example=X, likelihood="categorical")
    known = torch.stack([net(X).softmax(-1) for net in members.networks]).detach()
    torch.testing.assert_close(posterior.predict(X).probs, known, **CLOSE)
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", mine())
    assert torch.equal(again.predict(X).probs, posterior.predict(X).probs)


def test_which_runs_are_members(lightning):
    from stochens.lightning import Members

    mine, members = modules(lightning), Members("net")
    with pytest.raises(InputError, match="no run has ended with this callback"):
        members.posterior()
    module = mine()
    fit(lightning, module, [members], fast_dev_run=True)
    assert len(members) == 0
    fit(lightning, module, [members])
    first = _first_weight(members).clone()
    fit(lightning, module, [members])  # it goes on: no second member on the same way
    assert len(members) == 1
    assert not torch.equal(first, _first_weight(members))
    assert torch.equal(module.net[0].weight, _first_weight(members))

    class Fails(mine):  # type: ignore[valid-type, misc]
        def on_train_epoch_end(self) -> None:
            raise KeyError("on purpose")

    with pytest.raises(KeyError):
        fit(lightning, Fails(), [members])
    assert len(members) == 1
    with pytest.raises(InputError, match=r"'network'\): Mine has no such part; it has 'ne"):
        fit(lightning, mine(), [Members("network")])


def test_two_runs_of_one_seed_are_told(lightning):
    from stochens.lightning import Members

    mine, members = modules(lightning), Members()
    with contextlib.ExitStack() as held:
        for k in range(2):
            torch.manual_seed(0)
            if k:
                held.enter_context(
                    pytest.raises(TrainingAdvice, match="members 0 and 1 have the same weights")
                )
            fit(lightning, mine(), [members])


def test_averaged_weights_are_taken_whatever_the_order_of_callbacks(lightning):
    from lightning.pytorch.callbacks import StochasticWeightAveraging

    from stochens.lightning import Members

    module, members = modules(lightning)(), Members("net")
    average = StochasticWeightAveraging(0.05, swa_epoch_start=1)
    fit(lightning, module, [members, average], max_epochs=4)
    assert torch.equal(module.net[0].weight, _first_weight(members))


def test_networks_that_compute_something_else_are_refused(lightning):
    from stochens.lightning import Members

    mine, members = modules(lightning), Members("net")
    fit(lightning, mine(4), [members])
    fit(lightning, mine(5), [members])
    with pytest.raises(InputError, match="same parameters and shapes"):
        members.posterior()


def test_without_lightning_it_says_what_to_install(monkeypatch):
    for name in ("lightning", "lightning.pytorch"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "stochens.lightning", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'stochens\[lightning\]'"):
        importlib.import_module("stochens.lightning")


# -- Hugging Face ----------------------------------------------------------------------------------


def test_the_page_on_hugging_face(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="needs stochens[pretrained]")
    pytest.importorskip("accelerate", reason="Trainer needs it")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    names = run("Hugging Face's Trainer")
    nets, batch, p = names["nets"], names["batch"], names["p"]
    with torch.no_grad():
        known = torch.stack([net.eval()(**batch).logits.softmax(-1) for net in nets])
    torch.testing.assert_close(p.probs, known, **CLOSE)
    torch.testing.assert_close(names["again"].predict(batch).probs, p.probs, **CLOSE)
    assert isinstance(names["posterior"], Posterior)
    assert p.mutual_information.max() > 0, "the runs have led to different networks"
