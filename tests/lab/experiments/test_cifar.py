"""The CIFAR experiment on a few small images: blocks, resuming, every measure."""

import dataclasses
import json
import shutil
import warnings

import numpy as np
import pytest
import torch
from tests.lab.data.image_files import CIFAR10, pixels, write_parquet
from tests.running import gather

import stochens
from stochens import InputError, load, metrics
from stochens.files.storage import CHECKSUMS
from stochens.metrics import Interval
from stochens.networks import ResNet20FRN, SmallResNetFRN
from stochens.samplers import sgmcmc
from stochens_lab.experiments import cifar, cifar_config, cifar_rows
from stochens_lab.experiments.cifar_measures import (
    average_corrupted,
    trace_inferences,
    trace_members,
)
from stochens_lab.experiments.cifar_rows import train_block
from stochens_lab.report import finish
from stochens_lab.report.run_folder import SavedRun

TRAIN, TEST = 12, 20
SMALL = {"members": 2, "epochs": 1, "batch_size": 6, "images": 12, "resamples": 5, "block": 1}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    names = {"label": CIFAR10}
    for split, n in (("train", TRAIN), ("test", TEST)):
        y = [k % 10 for k in range(n)]
        file = folder / "cifar10" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, pixels(n), {"label": y}, names=names)
    write_parquet(
        folder / "svhn" / "test-00000-of-00001.parquet",
        pixels(TEST, 1),
        {"label": [0] * TEST},
        image="image",
    )
    return folder


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("STOCHENS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module", autouse=True)
def small_network():
    """Blocks, folders and rows are those of any network; the first test is of the real one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cifar, "ResNet20FRN", small)
        yield


def small(classes):
    return SmallResNetFRN(channels=4, inputs=3, classes=classes)


def configured(data, out, **changes):
    return dataclasses.replace(cifar_config.configure(data, out=out, **SMALL), **changes)


def test_a_run_has_its_row_measured_everywhere(data, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "ResNet20FRN", ResNet20FRN)
    monkeypatch.setattr(cifar, "CORRUPTIONS", ("brightness", "contrast"))
    config = configured(data, tmp_path / "run", corruptions=True, inferences=True)
    run = SavedRun(cifar.run(config))
    row = run.metrics["cifar10"]["SE1 0.1"]
    assert {"accuracy", "NLL", "ECE", "entropy", "MI"} <= set(row["test"])
    assert set(row["svhn"]) == {"OOD AUROC"}
    corrupted = [d for d in row if d.startswith(("brightness", "contrast"))]
    assert len(corrupted) == 10
    mean = np.mean([row[d]["NLL"]["value"] for d in corrupted])
    assert row["corrupted"]["NLL"]["value"] == pytest.approx(mean)
    told = run.training["cifar10"]["SE1 0.1"]
    assert told["members curve"]["members"] == [1, 2]
    assert told["inferences curve"]["draws"] == [1, 4, 16]
    for at, count in ((1, 4), (2, 16)):
        more = run.metrics["cifar10"][f"SE1 0.1, {count} inferences"]["test"]
        assert more["NLL"]["value"] == pytest.approx(told["inferences curve"]["NLL"][at])
    whole = run.metrics["cifar10"]["SE1 0.1"]["test"]["NLL"]["value"]
    assert told["members curve"]["NLL"][-1] == pytest.approx(whole)
    assert run.about["complete"]
    assert "HMC" not in run.metrics["cifar10"]  # there is no reference
    assert "cifar10/SE1 0.1: predictions of corrupted images" in run.about["timings"]
    block = load(run.path / "members" / "0001-0001", ResNet20FRN)
    assert block.members == (1,)


def test_the_reference_has_its_own_row_and_distances(data, tmp_path, monkeypatch):
    y = torch.arange(TEST) % 10
    probs = torch.full((TEST, 10), 0.01)
    probs[torch.arange(TEST), y] = 0.91
    monkeypatch.setattr(cifar, "load_hmc_reference", lambda path, labels: probs)
    run = SavedRun(cifar.run(configured(data, tmp_path / "run", method="regular")))
    mean = torch.from_numpy(run.arrays["cifar10/regular/test/mean"])
    found = run.metrics["cifar10"]["regular"]["test"]["variance"]["value"]
    assert found == pytest.approx(float(metrics.total_variation(mean, probs)))
    assert run.metrics["cifar10"]["HMC"]["test"]["accuracy"]["value"] == 1.0
    assert "MI" not in run.metrics["cifar10"]["HMC"]["test"]
    assert "agreement" in run.training["cifar10"]["regular"]["members curve"]


@pytest.mark.long
def test_runs_side_by_side_have_claims_epochs_and_one_file_of_numbers(data, tmp_path, monkeypatch):
    """What a real run writes is what the report reads."""
    y = torch.arange(TEST) % 10
    probs = torch.full((TEST, 10), 0.01)
    probs[torch.arange(TEST), y] = 0.91
    monkeypatch.setattr(cifar, "load_hmc_reference", lambda path, labels: probs)
    rows = ({"method": "regular"}, {"images": 6}, {"images": None}, {"epochs": 2, "images": None})
    paths = [
        cifar.run(configured(data, tmp_path / f"row{i}", **changes))
        for i, changes in enumerate(rows)
    ]
    page = finish.write_page(paths, tmp_path / "all")
    list(finish.write_companions(paths, page, figures=True))
    found = json.loads((tmp_path / "all" / "metrics.json").read_text())
    names = ["SE1 0.1, 2 epochs", "SE1 0.1, 1 epoch, 50,000 images", "SE1 0.1, 1 epoch, 6 images"]
    assert set(found) == {"HMC", "regular", *names}
    assert found["regular"]["run"]["members"] == 2
    assert set(found["regular"]["auroc"]) == {"svhn"}
    assert found["regular"]["ece"]["low"] <= found["regular"]["ece"]["value"]
    text = page.read_text()
    for said in (
        "SE1 0.1 is closer to HMC than regular",
        "Epochs of training against distance to HMC",
        "by definition",
    ):
        assert said in text
    assert (tmp_path / "all" / "figures" / "epochs.png").exists()


def test_a_misaligned_reference_stops_the_run_before_it_begins(data, tmp_path, monkeypatch):
    probs = torch.eye(10)[(torch.arange(TEST) + 1) % 10]
    monkeypatch.setattr(cifar, "load_hmc_reference", lambda path, labels: probs)
    with pytest.raises(InputError, match="misaligned"):
        cifar.run(configured(data, tmp_path / "run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore::stochens.samplers.diagnostics.SamplingWarning")  # few steps
@pytest.mark.parametrize("method", ["multiswa", "np-dropout", "dropconnect", "csghmc", "langevin"])
def test_other_methods_make_a_row_too(data, tmp_path, method):
    run = SavedRun(cifar.run(configured(data, tmp_path / "run", method=method, members=3, block=2)))
    (row,) = run.metrics["cifar10"]
    assert run.about["complete"]
    names = {"np-dropout": "SE3", "multiswa": "MultiSWA", "dropconnect": "SE2 0.1"}
    assert row == (names | {"csghmc": "cSGHMC", "langevin": "langevin"})[method]


@pytest.mark.filterwarnings("ignore::stochens.samplers.diagnostics.SamplingWarning")  # few steps
def test_chains_go_on_from_trained_members_or_given_ones(data, tmp_path, monkeypatch):
    monkeypatch.setattr(sgmcmc, "LEAST_BURN_IN", 2)
    options = {"method": "sghmc", "members": 6, "batch_size": 4}
    own = SavedRun(cifar.run(configured(data, tmp_path / "own", epochs=5, **options)))
    (row,) = own.metrics["cifar10"]
    assert row == "SGHMC"
    cifar.run(configured(data, tmp_path / "start", method="regular", members=6))
    given = {**options, "start": tmp_path / "start", "epochs": 4}
    assert SavedRun(cifar.run(configured(data, tmp_path / "given", **given))).about["complete"]


def test_a_step_size_is_langevins(data, tmp_path):
    for changes, said in (
        ({"method": "regular", "step_size": 1e-3}, "step_size is langevin's; regular has lr"),
        ({"method": "langevin", "step_size": 0.0}, "step_size must be a positive number"),
    ):
        with pytest.raises(InputError, match=said):
            cifar.run(configured(data, tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_with_the_blocks_that_are_missing(data, tmp_path):
    out = tmp_path / "run"
    stopped = configured(data, out, members=3, minutes=0)  # the first block is always made
    assert not SavedRun(cifar.run(stopped)).about["complete"]
    assert [p.name for p in (out / "members").iterdir()] == ["0000-0000"]
    before = (out / "members" / "0000-0000" / "tensors.safetensors").stat().st_mtime_ns
    config = cifar_config.reconfigure(out, minutes=1000.0)
    said: list[str] = []
    run = SavedRun(cifar.run(config, resume=True, note=said.append))
    assert run.about["complete"]
    assert before == (out / "members" / "0000-0000" / "tensors.safetensors").stat().st_mtime_ns
    assert "SE1 0.1: members 0000-0000 are there" in said
    whole = SavedRun(cifar.run(configured(data, tmp_path / "whole", members=3)))
    np.testing.assert_allclose(
        run.arrays["cifar10/SE1 0.1/test/mean"], whole.arrays["cifar10/SE1 0.1/test/mean"]
    )
    (out / "members" / ".0003-0003.77.part").mkdir()  # by a process that was killed
    more = SavedRun(cifar.run(cifar_config.reconfigure(out, members=4), resume=True))
    assert more.training["cifar10"]["SE1 0.1"]["members curve"]["members"][-1] == 4


@pytest.fixture(scope="module")
def regular(data, tmp_path_factory):
    """A run of two members to begin others with."""
    out = tmp_path_factory.mktemp("regular") / "run"
    return cifar.run(configured(data, out, method="regular"))


def stopped_in_member_1(options, block):
    """As block_of, but the last block is trained and not saved: its checkpoint is all there is."""
    posterior = train_block(options, block)
    if 1 in block.ids:
        raise KeyboardInterrupt
    return posterior


def test_what_a_run_began_with_is_needed_no_more_when_it_goes_on(
    data, regular, tmp_path, monkeypatch
):
    start, out = tmp_path / "start", tmp_path / "run"
    shutil.copytree(regular, start)
    config = configured(data, out, method="multiswa", start=start)
    with monkeypatch.context() as patch:
        patch.setattr(cifar, "train_block", stopped_in_member_1)
        with pytest.raises(KeyboardInterrupt):
            cifar.run(config)
    shutil.rmtree(start)
    assert SavedRun(cifar.run(cifar_config.reconfigure(out), resume=True)).about["complete"]
    other = configured(data, tmp_path / "whole", method="multiswa", start=regular)
    one, whole = SavedRun(out), SavedRun(cifar.run(other))
    mean = "cifar10/MultiSWA/test/mean"
    np.testing.assert_array_equal(one.arrays[mean], whole.arrays[mean])
    cifar.run(cifar_config.reconfigure(out, inferences=True), resume=True)  # no member is missing
    with pytest.raises(InputError, match="there are no members of a run"):
        cifar.run(cifar_config.reconfigure(out, members=3), resume=True)


def test_a_start_that_will_not_do_is_refused_before_anything_is_written(data, regular, tmp_path):
    for changes, said in (
        ({"method": "multiswa", "members": 3}, "has no member 2 to begin with"),
        ({"method": "np-dropout"}, "is of regular, without the .* that np-dropout has"),
        ({"method": "regular", "start": tmp_path / "nowhere"}, "there are no members of a run"),
        ({"method": "regular", "start": data}, "there are no members of a run"),
        ({"method": "csghmc"}, "csghmc begins with draws of its own"),
        ({"method": "langevin"}, "langevin begins with draws of its own"),
    ):
        with pytest.raises(InputError, match=said):
            cifar.run(configured(data, tmp_path / "run", **{"start": regular} | changes))
        assert not (tmp_path / "run").exists()


def test_more_members_are_added_to_a_block_that_had_all(data, tmp_path):
    out = tmp_path / "run"
    cifar.run(configured(data, out, members=2, block=None))
    run = SavedRun(cifar.run(cifar_config.reconfigure(out, members=3), resume=True))
    names = sorted(p.name for p in (out / "members").iterdir())
    assert names == ["0000-0001", "0002-0002"]
    assert run.training["cifar10"]["SE1 0.1"]["members curve"]["members"][-1] == 3


def test_what_would_change_the_members_cannot_be_resumed(data, tmp_path):
    out = tmp_path / "run"
    cifar.run(configured(data, out, members=1))
    with pytest.raises(InputError, match=r"has lr = 0.1, which cannot be changed to 0.2"):
        cifar_config.reconfigure(out, lr=0.2)
    about = json.loads((out / "run.json").read_text())
    (out / CHECKSUMS).unlink()
    (out / "run.json").write_text(json.dumps(about | {"experiment": "toy"}))
    with pytest.raises(InputError, match="no run of stochens cifar"):
        cifar_config.reconfigure(out)


def test_bad_input_is_one_error_before_any_work(data, tmp_path):
    for changes, said in (
        ({"method": "drop"}, "method must be one of"),
        ({"name": "cifar11"}, "name must be one of"),
        ({"images": 13}, "there are 12 to train on"),
        ({"members": 0}, "members must be at least 1"),
    ):
        with pytest.raises(InputError, match=said):
            cifar.run(configured(data, tmp_path / "run", **changes))
    with pytest.raises(InputError, match="--data DIR"):
        cifar_config.configure(None)
    assert not (tmp_path / "run").exists()


# Measures -----------------------------------------------------------------------------------------


def test_curves_are_those_of_smaller_ensembles():
    g = torch.Generator().manual_seed(0)
    probs = torch.randn(12, 30, 4, generator=g).softmax(-1)  # 3 inferences of 4 members
    y = torch.randint(4, (30,), generator=g)
    curve = trace_members(probs, 4, y, None, (1, 2, 9))
    assert curve["members"] == [1, 2, 4]
    pairs = [metrics.nll(probs[a : a + 2].mean(0), y) for a in (0, 2)]
    assert curve["NLL"][1] == pytest.approx(float(sum(pairs)) / 2)
    more = trace_inferences(probs, 4, y, probs[0], (1, 2, 3, 4))
    assert more["draws"] == [1, 2, 3]
    assert more["variance"][1] == pytest.approx(
        float(metrics.total_variation(probs[:8].mean(0), probs[0]))
    )


def test_the_mean_over_corruptions_takes_corruptions_as_the_unit():
    value = lambda v: {"NLL": Interval(v, v, v)}  # noqa: E731
    found = {("fog", 1): value(1.0), ("fog", 2): value(3.0), ("frost", 1): value(4.0)}
    mean = average_corrupted(found)["NLL"]
    assert mean.value == pytest.approx(3.0)
    assert (mean.low, mean.high) == (2.0, 4.0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schedule": "cosin"}, "unknown schedule 'cosin'"),
        ({"rate": 1.5}, "1.5"),
        ({"lr": -1.0}, "lr must be a positive number"),
        ({"prior_precision": 0.0}, "prior_precision"),
        ({"minutes": -1.0}, "minutes"),
    ],
)
def test_a_wrong_option_leaves_no_folder(data, tmp_path, change, said):
    with pytest.raises(InputError, match=said):
        cifar.run(configured(data, tmp_path / "run", **change))
    assert not (tmp_path / "run").exists()


def test_a_block_that_was_begun_goes_on_as_it_was_cut(data, tmp_path, monkeypatch):
    """Though by now other blocks would be cut."""
    config = configured(data, tmp_path / "run", block=None, epochs=3)

    def stop(epoch, values):
        if epoch == 1:
            raise KeyboardInterrupt

    def stopped(*args, **options):
        return stochens.fit(*args, **gather(log=stop, every=0, **options))

    with monkeypatch.context() as patched:
        patched.setattr(cifar_rows, "fit", stopped)
        with pytest.raises(KeyboardInterrupt):
            cifar.run(config)
    notes: list[str] = []
    epochs: list[int] = []

    def watched(*args, **options):
        return stochens.fit(*args, **gather(log=lambda epoch, _: epochs.append(epoch), **options))

    monkeypatch.setattr(cifar_rows, "fit", watched)
    cifar.run(cifar_config.reconfigure(config.out, members=3), resume=True, note=notes.append)
    assert epochs == [1, 2, 0, 1, 2]  # the first epoch of members 0 and 1 is not done again
    assert [note for note in notes if "epochs" in note] == [
        "SE1 0.1: members 0 to 1, 3 epochs",
        "SE1 0.1: members 2 to 2, 3 epochs",
    ]


def test_an_infinite_loss_does_not_lose_a_run(data, tmp_path):
    config = configured(data, tmp_path / "run", method="regular", lr=10.0, epochs=6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = cifar.run(config)
    row = SavedRun(path).metrics["cifar10"]["regular"]["test"]
    assert row["NLL"]["value"] is None
    finish.write_page([path], tmp_path / "page.html")
