"""The comparison table: its numbers are the metrics', its words are readable."""

import dataclasses

import pytest
import torch

import stochens
from stochens import GaussianPredictive, InputError, Predictive, metrics
from stochens.figures.style import save_figure
from stochens_lab.report.figures.courses import draw_uncertainty


def predictive(seed: int, classes: int = 3, sharp: float = 1.0) -> Predictive:
    generator = torch.Generator().manual_seed(seed)
    return Predictive.of((sharp * torch.randn(4, 50, classes, generator=generator)).softmax(-1))


Y = torch.arange(50) % 3


def test_every_number_is_its_metric():
    a, b = predictive(0), predictive(1)
    out = predictive(2, sharp=0.1)
    rows = stochens.compare(
        {"a": a, "HMC": b}, Y, reference="HMC", ood={"a": out}, show=False, resamples=50
    ).rows
    assert rows["a"]["accuracy"].value == metrics.accuracy(a.mean, Y)
    assert rows["a"]["NLL"].value == metrics.nll(a.mean, Y)
    assert rows["a"]["agreement"].value == metrics.agreement(a.mean, b.mean)
    assert rows["a"]["total variation"].value == metrics.total_variation(a.mean, b.mean)
    assert rows["a"]["entropy error"].value == metrics.entropy_error(a.mean, b.mean)
    # float32 draws summed in another order
    expected = metrics.mi_error(a.probs, b.probs)
    assert rows["a"]["MI error"].value == pytest.approx(expected, rel=1e-4)
    assert rows["a"]["OOD AUROC"].value == metrics.ood_auroc(a.mean, out.mean)
    assert rows["HMC"]["agreement"].value == 1
    assert rows["HMC"]["total variation"].value == 0
    by_mi = metrics.ood_auroc_mi(a.mutual_information, out.mutual_information)
    assert rows["a"]["OOD AUROC (MI)"].value == by_mi
    assert "OOD AUROC" not in rows["HMC"]
    for row in rows.values():
        assert all(i.low <= i.high for i in row.values())


def test_the_table_is_printed_and_fits(capsys):
    stochens.compare({"mine": predictive(0), "other": predictive(1)}, Y, resamples=20)
    lines = capsys.readouterr().out.splitlines()
    assert any("mine" in line and "other" in line for line in lines)
    assert any(line.split()[:1] == ["accuracy"] for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("methods", [1, 3, 6])
def test_nothing_is_cut_off_at_80_columns(methods, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    hmc = dataclasses.replace(predictive(9), chains=(predictive(7), predictive(8)))
    rows = {f"method {k}, from the prior": predictive(k) for k in range(methods)} | {"HMC": hmc}
    ood = {name: predictive(20) for name in rows}
    found = stochens.compare(rows, Y, reference="HMC", ood=ood, resamples=20)
    text = capsys.readouterr().out
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    for name, row in found.rows.items():
        for interval in row.values():
            assert f"({interval.low:.3f}, {interval.high:.3f})" in text
        assert all(word in text for word in name.split())
    assert str(found) + "\n" == text
    assert repr(found) == f"Comparison({methods + 2} methods, 13 metrics)"


def test_one_network_alone_has_no_mutual_information():
    alone, other = Predictive.of(predictive(0).probs[:1]), Predictive.of(predictive(1).probs[:1])
    row = stochens.compare({"p": alone}, Y, ood={"p": other}, show=False, resamples=20).rows["p"]
    assert "OOD AUROC" in row
    assert "OOD AUROC (MI)" not in row


def test_regression_rows():
    means = torch.zeros(5, 50, 1)
    p = GaussianPredictive.of(means, torch.ones_like(means))
    y = torch.linspace(-3, 3, 50)
    row = stochens.compare({"p": p}, y, show=False, resamples=20).rows["p"]
    assert row["RMSE"].value == pytest.approx(float(y.square().mean().sqrt()), rel=1e-6)
    assert row["95 % coverage"].value == pytest.approx(float((y.abs() < 1.96).float().mean()))
    assert row["95 % width"].value == pytest.approx(2 * 1.959964, rel=1e-5)


def test_bad_calls():
    with pytest.raises(InputError, match="nothing to compare"):
        stochens.compare({}, Y)
    with pytest.raises(InputError, match="'HCM' is not among the predictions; did you mean 'HMC'"):
        stochens.compare({"HMC": predictive(0)}, Y, reference="HCM")
    with pytest.raises(InputError, match="labels must be"):
        stochens.compare({"a": predictive(0)}, Y[:-1], show=False)


def test_the_figure_is_a_picture(tmp_path):
    both = {"a": predictive(0), "b": predictive(1)}
    figure = draw_uncertainty(both, both, Y, here="here", there="there")
    save_figure(figure, tmp_path / "new" / "figure.png")
    assert (tmp_path / "new" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert [len(ax.lines) for ax in figure.axes] == [0, 3, 2]


def test_only_predictions_can_be_compared():
    with pytest.raises(InputError, match="predictions must be a dict of names"):
        stochens.compare(predictive(0), Y)
    posterior = stochens.fit(stochens.MLP(2, 4, 3), (torch.randn(50, 2), Y), members=2, epochs=1)
    for given in ({"a": posterior}, {"a": predictive(0).probs}):
        with pytest.raises(InputError, match=r"'a' must be what posterior.predict\(x\) gives"):
            stochens.compare(given, Y)
