"""Pooled runs are the ensemble of all their members."""

import pytest
import torch
from tests.lab.report.cifar_sample import cifar_run
from tests.tolerance import close

from stochens import InputError, metrics
from stochens.metrics import Interval
from stochens.posterior.predictive import Predictive
from stochens_lab.experiments.cifar_pool import pool
from stochens_lab.report.cifar.rows import gather
from stochens_lab.report.run_folder import RunFolder, SavedRun
from stochens_lab.report.view import RunView

SET = "cifar10"


def test_the_mean_is_over_members_and_entropies_are_of_the_whole(tmp_path):
    one = cifar_run(tmp_path / "a", "SE1 0.2", members=30)
    other = cifar_run(tmp_path / "b", "SE1 0.1 natural", members=10, seed=1)
    run = SavedRun(pool([one.path, other.path], tmp_path / "out"))
    name = "SE1 0.2 + SE1 0.1 natural"
    found = run.predictive((SET, name, "test"))
    a, b = (
        r.predictive((SET, m, "test")) for r, m in zip((one, other), name.split(" + "), strict=True)
    )
    torch.testing.assert_close(
        found.mean, 0.75 * a.mean + 0.25 * b.mean, **close(torch.float32, terms=10)
    )
    noise = 0.75 * a.aleatoric + 0.25 * b.aleatoric
    torch.testing.assert_close(
        found.mutual_information, found.entropy - noise, **close(torch.float32, terms=10)
    )
    row = run.metrics[SET][name]["test"]
    hmc = torch.from_numpy(run.arrays[f"{SET}/HMC/test/mean"])
    assert row["variance"]["value"] == pytest.approx(metrics.total_variation(found.mean, hmc))
    assert "OOD AUROC" in run.metrics[SET][name]["svhn"]
    assert run.metrics[SET]["HMC"] == one.metrics[SET]["HMC"]
    view = RunView(run, "")
    assert view.config["members"] == 40
    assert view.config["epochs"] == 300
    assert "seed" not in view.config
    assert run.about["pooled"][1]["members"] == 10


def test_other_seeds_are_more_members_of_the_same_row(tmp_path):
    runs = [cifar_run(tmp_path / str(k), "SE1 0.2", seed=k) for k in range(3)]
    run = SavedRun(pool([one.path for one in runs], tmp_path / "out"))
    parts = [one.predictive((SET, "SE1 0.2", "test")) for one in runs]
    whole = Predictive.of(torch.stack([p.mean for p in parts]))
    found = run.predictive((SET, "SE1 0.2", "test"))
    torch.testing.assert_close(found.mean, whole.mean, **close(torch.float32, terms=10))
    torch.testing.assert_close(found.entropy, whole.entropy, **close(torch.float32, terms=10))


def test_what_is_no_larger_ensemble_is_refused(tmp_path):
    one = cifar_run(tmp_path / "a", "SE1 0.2")
    fewer = cifar_run(tmp_path / "b", "SE1 0.2", members=10)
    elsewhere = cifar_run(tmp_path / "c", "SE1 0.2", images=200, seed=1)
    others = cifar_run(tmp_path / "d", "SE1 0.2", set_name="cifar100", seed=1)
    moved = cifar_run(tmp_path / "f", "SE1 0.2", seed=2)
    with RunFolder.reopen(moved.path, config=moved.about["config"], device="cpu") as folder:
        folder.arrays[f"{SET}/HMC/test/mean"] = folder.arrays[f"{SET}/HMC/test/mean"][::-1].copy()
        folder.write(complete=True)
    toy = RunFolder(tmp_path / "e", experiment="toy", config={}, device="cpu")
    toy.write(complete=True)
    for runs, said in (
        ([one.path], "two or more"),
        ([one.path, fewer.path], "settings are the same"),
        ([one.path, elsewhere.path], "test images"),
        ([one.path, others.path], "is of cifar100"),
        ([one.path, moved.path], "another reference"),
        ([one.path, toy.path], "run of toy"),
    ):
        with pytest.raises(InputError, match=said):
            pool(runs, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_rows_of_more_inferences_stand_behind_their_members(tmp_path):
    cifar_run(tmp_path / "a", "SE1 0.2")
    fewer = cifar_run(tmp_path / "b", "SE1 0.2", members=25, seed=1)
    with RunFolder.reopen(fewer.path, config=fewer.about["config"], device="cpu") as folder:
        row = fewer.metrics[SET]["SE1 0.2"]["test"]
        folder.put_row((SET, "SE1 0.2, 16 inferences", "test"), {"NLL": Interval(**row["NLL"])})
        folder.write(complete=True)
    (rows,) = gather([RunView(SavedRun(tmp_path / name), name) for name in "ab"])
    own = ["SE1 0.2, 50 members", "SE1 0.2, 25 members"]
    assert [row.name for row in rows.methods] == [*own, f"{own[1]}, 16 inferences each"]
    assert [row.name for row in rows.distinct] == own
    assert rows.methods[2].settings["draws"] == 16
