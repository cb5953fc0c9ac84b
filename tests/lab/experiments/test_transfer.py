"""From a trained network to posteriors, with a tiny one that is trained here."""

import dataclasses
import json

import pytest
import torch
from tests.lab.data.image_files import pixels, write_parquet
from torch import nn

from stochens import InputError, freeze_batchnorm
from stochens_lab.experiments import transfer, transfer_config
from stochens_lab.experiments.transfer_rows import Trained, list_rows, to_pixels
from stochens_lab.report import finish
from stochens_lab.report.run_folder import SavedRun

TRAIN, TEST = 40, 20
SMALL = {"members": 2, "epochs": 1, "batch_size": 10, "held_out": 10, "resamples": 5}
pytestmark = [
    pytest.mark.filterwarnings("ignore::stochens.training.advice.TrainingAdvice"),
    pytest.mark.xdist_group("transfer"),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Labels that an image's brightness tells, so that there is something to learn."""
    folder = tmp_path_factory.mktemp("data")
    for split, n in (("train", TRAIN), ("test", TEST)):
        y = [k % 4 for k in range(n)]
        x = pixels(n) // 4 + 48 * torch.tensor(y, dtype=torch.uint8).numpy()[:, None, None, None]
        file = folder / "cifar100" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, x, {"fine_label": y, "coarse_label": [0] * n})
    write_parquet(
        folder / "svhn" / "test-00000-of-00001.parquet",
        pixels(TEST, 1),
        {"label": [0] * TEST},
        image="image",
    )
    return folder


@pytest.fixture(scope="module")
def trained():
    """A small network with batch norm, trained on other images."""
    torch.manual_seed(0)
    features = nn.Sequential(
        *(nn.AvgPool2d(8), nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()),
        *(nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU()),
        nn.Flatten(),
    )
    net = nn.Sequential()
    net.add_module("features", features)
    net.add_module("head", nn.Linear(32, 100))
    x = to_pixels(torch.from_numpy(pixels(32, 2)))
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), torch.arange(32) % 4).backward()
        optimizer.step()
    return Trained(freeze_batchnorm(net), ("features.5",))


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STOCHENS_CACHE", str(tmp_path / "cache"))


def configured(data, out, **changes):
    config = transfer_config.configure(data, data / "none", out=out, device="cpu")
    return dataclasses.replace(config, **(SMALL | changes))


def test_every_row_is_measured_with_what_it_costs(data, trained, tmp_path, capsys):
    config = configured(data, tmp_path / "run")
    build = lambda config, classes: trained  # noqa: E731
    run = SavedRun(transfer.run(config, build=build))
    assert run.about["complete"]
    rows = run.metrics["cifar100"]
    assert list(rows) == list(list_rows(trained.late))
    for row in rows.values():
        assert set(row["test"]) == {"accuracy", "NLL", "ECE"}
        assert set(row["svhn"]) == {"OOD AUROC"}
        assert set(row["cost"]) == {"training", "prediction", "stored"}
    told = run.training["cifar100"]
    assert told["one network"]["members"] == 1
    assert told["full"]["held-out NLL"] == told["one network"]["held-out NLL"]
    for row in told.values():
        tried = row["held-out NLL"]
        assert row["rate"] == float(min(tried, key=tried.get))

    def stored(name):
        return rows[name]["cost"]["stored"]["value"]

    own = sum(p.numel() for p in trained.net.parameters())
    assert stored("full") - stored("one network") == pytest.approx(4 * own / 1e6)
    head = sum(p.numel() for p in trained.net.head.parameters())
    assert stored("last layer + bootstrap") - stored("one network") == pytest.approx(4 * head / 1e6)

    list(finish.finish_run(run.path, finish_console()))
    table = (run.path / "tables.md").read_text()
    assert "| LoRA in last blocks | " in table
    assert "training (s), cost" in table
    assert (run.path / "figures" / "costs-cifar100.png").stat().st_size > 1000
    assert "last layer + Gaussian" in (run.path / "report.html").read_text()
    assert "accuracy" in capsys.readouterr().out


def finish_console():
    from rich.console import Console

    return Console(width=100)


def test_rows_that_are_done_are_not_run_again(data, trained, tmp_path, monkeypatch):
    build = lambda config, classes: trained  # noqa: E731
    out = tmp_path / "run"
    first = ("last layer + bootstrap",)
    transfer.run(configured(data, out, rows=first), build=build)
    before = json.loads((out / "metrics.json").read_text())["cifar100"]
    trainings = []
    fit = transfer.fit

    def counted(*args, **options):
        trainings.append(options["members"])
        return fit(*args, **options)

    monkeypatch.setattr(transfer, "fit", counted)
    config = transfer_config.reconfigure(out, rows=(*first, "last layer + Gaussian"))
    noted: list[str] = []
    transfer.run(config, resume=True, build=build, note=noted.append)
    after = json.loads((out / "metrics.json").read_text())["cifar100"]
    assert trainings == [2]  # its rate is that of the row which is there
    assert after[first[0]] == before[first[0]]
    assert set(after) == {"last layer + bootstrap", "last layer + Gaussian"}
    assert noted[0] == "last layer + bootstrap is done"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": ("lora",)}, "unknown row 'lora'"),
        ({"held_out": 40}, "held_out = 40 leaves no image to train on"),
        ({"images": 50}, "images = 50, but there are 40"),
    ],
)
def test_slips_are_refused_before_anything_is_trained(data, trained, tmp_path, changes, message):
    config = configured(data, tmp_path / "run", **changes)
    with pytest.raises(InputError, match=message):
        transfer.run(config, build=lambda config, classes: trained)
    assert not (tmp_path / "run").exists()


def test_what_is_not_given_is_asked_for(data):
    with pytest.raises(InputError, match="--data DIR"):
        transfer_config.configure()
    with pytest.raises(InputError, match=r"--weights FILE\.safetensors"):
        transfer_config.configure(data)
