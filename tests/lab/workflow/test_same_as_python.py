"""The commands end where the Python API ends, bit for bit, whatever the file."""

import csv
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from tests.lab.workflow.conftest import CLASSES, table

import stochens

SMALL = ("--members", 3, "--epochs", 3, "--batch-size", 16, "--seed", 5)
OPTIONS = {"members": 3, "epochs": 3, "batch_size": 16, "seed": 5}


def nets():
    import trees_nets

    return trees_nets


def read_csv(path):
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return {name: [row[name] for row in rows] for name in rows[0]}


def floats(column):
    return torch.tensor(np.array(column, dtype=np.float32))


def check_classes(columns, p, classes, level=0.95):
    """Columns of texts or numbers against a Predictive."""
    at = torch.tensor([(1 - level) / 2, (1 + level) / 2])
    low, high = p.probs.quantile(at, 0)
    for k, name in enumerate(classes):
        assert torch.equal(floats(columns[f"prob_{name}"]), p.mean[:, k])
        assert torch.equal(floats(columns[f"low_{name}"]), low[:, k])
        assert torch.equal(floats(columns[f"high_{name}"]), high[:, k])
    assert torch.equal(floats(columns["entropy"]), p.entropy)
    assert torch.equal(floats(columns["mutual_information"]), p.mutual_information)
    assert list(map(str, columns["label"])) == [str(classes[k]) for k in p.labels]


@pytest.mark.parametrize("method", ["np-dropout", "multiswa"])
def test_csv_with_names_as_labels(typed, here, tmp_path, method):
    run = tmp_path / "run"
    words = ("--target", "kind", "--method", method, *SMALL)
    net = ("--model", "trees_nets:make_net")
    said = typed("fit", *net, "--data", "train.csv", *words, "--out", run)
    assert said.code == 0, said.err
    (x, y), (xt, _) = table(60, 0), table(25, 1)
    if method == "multiswa":
        posterior = stochens.multiswa(nets().make_net, (x, y), **OPTIONS)
    else:
        posterior = stochens.fit(nets().make_net, (x, y), method=method, **OPTIONS)
    p = posterior.predict(xt)
    for name in ("p.csv", "p.parquet", "p.npz"):
        out = tmp_path / name
        said = typed("predict", run, "test.csv", *net, "-o", out)
        assert said.code == 0, said.err
    check_classes(read_csv(tmp_path / "p.csv"), p, CLASSES)
    check_classes(pq.read_table(tmp_path / "p.parquet").to_pydict(), p, CLASSES)
    arrays = np.load(tmp_path / "p.npz")
    assert np.array_equal(arrays["prob"], p.mean.numpy())
    assert arrays["label"].tolist() == [CLASSES[k] for k in p.labels]
    assert arrays["classes"].tolist() == CLASSES


def test_a_run_is_a_saved_posterior(typed, here, tmp_path):
    run = tmp_path / "run"
    words = ("--model", "trees_nets:make_net", "--data", "train.npz", "--rate", 0.2, *SMALL)
    assert typed("fit", *words, "--out", run).code == 0
    x, y = table(60, 0)
    method = stochens.Dropout(0.2)
    ours = stochens.fit(nets().make_net, (x, y), method=method, **OPTIONS)
    theirs = stochens.load(run / "posterior", nets().make_net)
    assert all(torch.equal(theirs.params[name], p) for name, p in ours.params.items())


@pytest.mark.parametrize("method", ["gaussian", "multiswa"])
def test_skip_and_prior_are_those_of_python(typed, here, tmp_path, method):
    run = tmp_path / "run"
    words = ("--model", "trees_nets:make_net", "--data", "train.npz", "--method", method, *SMALL)
    own = ("--skip", "0", "--prior-precision", 3, "--prior-scale", "fan-in")
    assert typed("fit", *words, *own, "--out", run).code == 0
    prior = stochens.Prior(3.0, scale="fan-in")
    rule = (stochens.Regular if method == "multiswa" else stochens.Gaussian)(skip="0")
    train = stochens.multiswa if method == "multiswa" else stochens.fit
    ours = train(nets().make_net, table(60, 0), method=rule, prior=prior, **OPTIONS)
    theirs = stochens.load(run / "posterior", nets().make_net)
    assert all(torch.equal(theirs.params[name], p) for name, p in ours.params.items())
    assert theirs.recipe.methods == (rule,)
    assert theirs.prior.description() == prior.description()


def test_parquet_by_column_name_scaled_with_whole_labels(typed, here, tmp_path):
    run = tmp_path / "run"
    said = typed(
        *("fit", "--model", "trees_nets:make_net", "--data", "train.parquet", "--normalise"),
        *("--feature", "a", "--feature", "b", "--feature", "c", "--feature", "d"),
        *("--method", "regular", *SMALL, "--out", run),
    )
    assert said.code == 0, said.err
    x, y = (part.copy() for part in table(60, 0))
    xt, _ = table(25, 1)
    x, xt = x[:, ::-1], xt[:, ::-1]  # in the file d is the first number, and so on
    x, xt = x[:, [0, 2, 1, 3]], xt[:, [0, 2, 1, 3]]
    mean, sd = torch.tensor(x.copy()).mean(0), torch.tensor(x.copy()).var(0, correction=0).sqrt()
    scaled = ((torch.tensor(x.copy()) - mean) / sd).float()
    p = stochens.fit(nets().make_net, (scaled, y), method="regular", **OPTIONS).predict(
        ((torch.tensor(xt.copy()) - mean) / sd).float()
    )
    out = tmp_path / "p.parquet"
    assert typed("predict", run, "test.parquet", "--same-model", "-o", out).code == 0
    columns = pq.read_table(out).to_pydict()
    check_classes(columns, p, [3, 7, 11])
    assert set(columns["label"]) <= {3, 7, 11}  # numbers, as they were


def test_regression_in_its_own_units(typed, here, tmp_path):
    run = tmp_path / "run"
    words = ("--model", "trees_nets:real", "--data", "train-real.npz", "--likelihood", "gaussian")
    said = typed("fit", *words, "--normalise", *SMALL, "--out", run)
    assert said.code == 0, said.err
    x, xt = (torch.tensor(table(*size)[0]).float().double() for size in ((60, 0), (25, 1)))
    y, yt = (torch.tensor(table(*size)[0][:, :1]) * 100 + 500 for size in ((60, 0), (25, 1)))

    def scale(t):
        return t.mean(0), t.var(0, correction=0).sqrt()

    (mx, sx), (my, sy) = scale(x), scale(y)
    posterior = stochens.fit(
        nets().real,
        (((x - mx) / sx).float(), ((y - my) / sy).float()),
        likelihood="gaussian",
        **OPTIONS,
    )
    p = posterior.predict(((xt - mx) / sx).float())
    means, variances = p.components()
    whole = stochens.GaussianPredictive(
        p.mean.double() * sy + my,
        p.aleatoric.double() * sy**2,
        p.epistemic.double() * sy**2,
        means.double() * sy + my,
        variances.double() * sy**2,
    )
    low, high = whole.interval(0.9)
    out = tmp_path / "p.csv"
    said = typed("predict", run, "test-real.npz", "--same-model", "-o", out, "--level", 0.9)
    assert said.code == 0, said.err
    columns = read_csv(out)
    for name, wanted in (
        ("mean", whole.mean),
        ("std", whole.std),
        ("low", low),
        ("high", high),
        ("epistemic_std", whole.epistemic.sqrt()),
        ("aleatoric_std", whole.aleatoric.sqrt()),
    ):
        found = torch.tensor([float(number) for number in columns[name]], dtype=torch.float64)
        assert torch.equal(found, wanted[:, 0]), name
    said = typed("evaluate", run, "test-real.npz", "--same-model", "--json")
    row = stochens.compare({"p": whole}, yt, show=False).rows["p"]
    found = json.loads(said.out)["metrics"]
    intervals = {f"95 % {what}" for what in ("coverage", "width", "interval score")}
    assert set(found) == {"RMSE", "NLL", "CRPS"} | intervals
    for name, interval in row.items():
        assert found[name] == interval._asdict(), name


@pytest.mark.parametrize(("unit", "zero"), [(1.0, 1e8), (1e-24, 0.0), (1e24, 0.0)])
def test_units_far_from_one(typed, here, tmp_path, unit, zero):
    """Where float32 has no digits left for the spread, or none for its square."""
    x, y = np.load(here / "train-real.npz").values()
    y = (y - y.mean()) / y.std()
    said = {}
    for name, target in (("plain", y), ("far", y * unit + zero)):
        data, run, out = (tmp_path / f"{name}{end}" for end in (".npz", "", "-said.csv"))
        np.savez(data, x=x, y=target)
        words = ("--model", "trees_nets:real", "--data", data, "--likelihood", "gaussian")
        assert typed("fit", *words, "--normalise", *SMALL, "--out", run).code == 0
        assert typed("predict", run, data, "--same-model", "-o", out).code == 0
        columns = {name: np.array(texts, float) for name, texts in read_csv(out).items()}
        found = json.loads(typed("evaluate", run, data, "--same-model", "--json").out)["metrics"]
        said[name] = columns, {measure: row["value"] for measure, row in found.items()}
    (plain, good), (far, measured) = said["plain"], said["far"]
    # the same but for rounding of the standardised targets, in float32
    for name, values in plain.items():
        shift = zero if name in ("mean", "low", "high") else 0
        np.testing.assert_allclose((far[name] - shift) / unit, values, rtol=1e-5, atol=1e-6)
    assert measured["95 % coverage"] == good["95 % coverage"]
    assert measured["95 % width"] / unit == pytest.approx(good["95 % width"], rel=1e-5)
    assert measured["RMSE"] / unit == pytest.approx(good["RMSE"], rel=1e-5)
    assert measured["NLL"] - np.log(unit) == pytest.approx(good["NLL"], abs=1e-4)


def test_two_targets(typed, here, tmp_path):
    run, out = tmp_path / "run", tmp_path / "p.csv"
    words = ("--model", "trees_nets:pair", "--data", "train-pair.npz", "--likelihood", "gaussian")
    said = typed("fit", *words, "--normalise", "--validation", 0.2, *SMALL, "--out", run)
    assert said.code == 0, said.err
    assert "RMSE" in said.out
    assert typed("predict", run, "test-pair.npz", "--same-model", "-o", out).code == 0
    assert {"mean_0", "mean_1", "low_0", "high_1"} <= set(read_csv(out))


def test_folders_of_images(typed, here, tmp_path):
    run = tmp_path / "run"
    words = ("--model", "trees_nets:grey", "--data", "train-images", "--method", "dropout", *SMALL)
    said = typed("fit", *words, "--normalise", "--out", run)
    assert said.code == 0, said.err

    def images(folder):
        files = sorted((here / folder).glob("*/*.png"))
        x = np.stack([np.asarray(Image.open(file)) for file in files])[:, None]
        return files, torch.tensor(x).float() / 255, [CLASSES.index(f.parent.name) for f in files]

    _, x, y = images("train-images")
    files, xt, yt = images("test-images")
    mean, sd = x.double().mean((0, 2, 3)), x.double().var((0, 2, 3), correction=0).sqrt()
    posterior = stochens.fit(
        nets().grey, (((x.double() - mean) / sd).float(), y), method="dropout", **OPTIONS
    )
    p = posterior.predict(((xt.double() - mean) / sd).float())
    out = tmp_path / "p.csv"
    assert typed("predict", run, "test-images", "--same-model", "-o", out).code == 0
    columns = read_csv(out)
    check_classes(columns, p, CLASSES)
    assert columns["file"] == [str(file.relative_to(here / "test-images")) for file in files]
    found = json.loads(typed("evaluate", run, "test-images", "--same-model", "--json").out)
    wanted = stochens.compare({"p": p}, torch.tensor(yt), show=False).rows["p"]
    assert found["metrics"] == {name: interval._asdict() for name, interval in wanted.items()}
    alone = typed("predict", run, f"test-images/{CLASSES[0]}", "--same-model", "--json")
    assert len(json.loads(alone.out)) == sum(k == 0 for k in yt)  # images without labels
