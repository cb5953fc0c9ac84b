"""posterior.report: from data in any form to a page, or one sentence and nothing written."""

import dataclasses
import sys

import pytest
import torch
from tests.long import long_but
from tests.page_parser import Page
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stochens
from stochens import InputError
from stochens.inputs import pick_rows, targets
from stochens.posterior.chains import Chains
from stochens.posterior.history import History
from stochens.report.text import format_number

X, Y = stochens.toy_set("a", n=30)
FEW = {"resamples": 3}
OPTIONS = {"ood": X + 9, "title": "Moons", "resamples": 5}


@pytest.fixture(scope="module")
def posterior():
    torch.manual_seed(0)
    return stochens.Posterior.of([nn.Linear(2, 2) for _ in range(3)], example=X[:1])


@pytest.fixture(scope="module")
def written(posterior, tmp_path_factory):
    out = tmp_path_factory.mktemp("report") / "new" / "report.html"
    assert posterior.report(X, Y, out=out, **OPTIONS) == out
    return out


@pytest.fixture
def out(tmp_path):
    return tmp_path / "new" / "report.html"


def test_the_page_has_the_numbers_of_compare(posterior, written):
    page = Page(written.read_text())
    rows = stochens.compare(
        {"p": posterior.predict(X)},
        Y,
        ood={"p": posterior.predict(X + 9)},
        resamples=5,
        show=False,
    ).rows["p"]
    assert page.numbers[: len(rows)] == [interval.value for interval in rows.values()]
    for interval in rows.values():
        if interval.low < interval.high:
            assert f"{format_number(interval.low)} to {format_number(interval.high)}" in page.text
    for word in ("Moons", "Posterior(3 members, regular, N not known)", "member 2", "OOD AUROC"):
        assert word in page.text
    assert "Training" not in page.text, "it was never trained here"
    assert [file.name for file in written.parent.iterdir()] == [written.name]


@pytest.mark.parametrize("kind", ["flat", "dense", "several labels", "numbers"])
def test_the_page_says_where_the_interval_of_an_ece_is_no_bootstrap_interval(kind, out):
    """For every kind that has an ECE, and in its own words."""
    y = {"flat": Y, "dense": torch.stack([Y, Y], 1), "several labels": torch.stack([Y, Y], 1)}
    likelihood = {"several labels": "multilabel", "numbers": stochens.Homoscedastic(0.1)}.get(
        kind, "categorical"
    )
    net: nn.Module = nn.Linear(2, 2)
    if kind == "dense":
        net = nn.Sequential(nn.Linear(2, 4), nn.Unflatten(1, (2, 2)))  # [B, T, C]
    alone = stochens.Posterior.of([net], example=X[:1], likelihood=likelihood)
    alone.report(X, y.get(kind, X), out=out, **FEW)
    said = "That of ECE allows for what chance adds to it" in Page(out.read_text()).text
    assert said == (kind != "numbers")


def test_a_member_alone_has_the_measures_of_its_network(posterior, written):
    numbers = Page(written.read_text()).numbers
    for k in range(3):
        p = posterior.take([k]).predict(X)
        for measure in (stochens.metrics.accuracy, stochens.metrics.nll):
            wanted = measure(p.mean, Y)
            assert any(value == pytest.approx(wanted, rel=1e-5) for value in numbers)


class Rows(Dataset[dict[str, Tensor]]):
    def __len__(self):
        return len(X)

    def __getitem__(self, k):
        return {"x": X[k], "labels": Y[k]}


GIVEN = {
    "a pair": (X, Y),
    "a Dataset": TensorDataset(X, Y),
    "a DataLoader": DataLoader(TensorDataset(X, Y), batch_size=7),
    "a Data": stochens.Data((X, Y)),
    "a dictionary": {"x": X, "labels": Y},
    "Data by name": stochens.Data({"x": X, "kind": Y}, target="kind"),
    "rows of dictionaries": Rows(),
}


@pytest.mark.parametrize("name", GIVEN)
def test_y_is_found_in_the_data(name):
    assert torch.equal(targets(GIVEN[name]), Y)


@pytest.mark.parametrize("name", ["a Dataset", "a DataLoader", "a Data", "a dictionary"])
def test_examples_are_found_in_the_data(name):
    rows = [29, 3, 14]
    for k, one in zip(rows, pick_rows(GIVEN[name], rows), strict=True):
        found = one if isinstance(one, torch.Tensor) else one.named()["x"]
        assert torch.equal(found, X[k : k + 1])


@pytest.mark.parametrize("name", long_but(["a DataLoader"], ["a DataLoader", "a pair", "a Data"]))
def test_the_page_is_the_same_however_the_data_come(posterior, written, out, name):
    posterior.report(GIVEN[name], out=out, **OPTIONS)
    assert out.read_text() == written.read_text()


@pytest.mark.long
def test_inputs_of_several_tensors(tmp_path):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(2, 2)

        def forward(self, a, b):
            return self.head(torch.cat([a, b], 1))

    data = {"a": X[:, :1], "b": X[:, 1:], "labels": Y}
    net = stochens.fit(Net(), data, method="regular", members=2, epochs=2)
    out = net.report(data, out=tmp_path / "report.html", **FEW)
    page = Page(out.read_text())
    accuracy = stochens.metrics.accuracy(net.predict(data).mean, Y)
    assert page.numbers[0] == accuracy
    assert "Training" in page.text


def test_chains_stand_in_the_place_of_members(posterior, out):
    four = stochens.Posterior.of([nn.Linear(2, 2) for _ in range(4)], example=X[:1])
    chains = Chains(sampler="nuts", count=2, stats={}, state={}, settings={"chains": 2})
    nll = torch.rand(3, 4)
    history = History.of({"nll": nll, "nll_sd": nll, "loss": nll, "loss_sd": nll})
    four = dataclasses.replace(four, chains=chains, history=history)
    four.report(X, Y, out=out, **FEW)
    page = Page(out.read_text())
    second = four.chain(1).predict(X)
    assert any(v == pytest.approx(stochens.metrics.nll(second.mean, Y)) for v in page.numbers)
    assert "chain 1" in page.text
    assert "Chains" in page.text
    assert "member 0" not in page.text
    assert "NLL of a data point" in page.text


def test_what_cannot_be_written_is_said_before_any_work(posterior, tmp_path):
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    bad = {
        "there.html": r"there.html exists; pass overwrite=True",
        "folder.html": "is a folder; name a file in it",
        "page.pdf": "a report is one .html file, got 'page.pdf'",
    }
    for name, said in bad.items():
        with pytest.raises(InputError, match=said):
            posterior.report(None, out=tmp_path / name)
    with pytest.raises(InputError, match=r"cannot write .*page.html: .*file is no folder"):
        posterior.report(None, out=tmp_path / "file" / "page.html")
    assert (tmp_path / "there.html").read_text() == "mine"


def test_bad_input_is_one_sentence_and_nothing_is_written(posterior, out):
    bad = [
        ({"x": X}, "y is not given, and x, a Tensor, does not hold it; give y"),
        ({"x": X, "y": Y[:-1]}, "x has 30 rows, and y 29; they must be the same"),
        ({"x": X, "y": Y + 5}, "labels must"),
        ({"x": X, "y": ["a"] * 30}, "y holds no numbers"),
        ({"x": X[:, :1], "y": Y}, "the network fails on x"),
        ({"x": X, "y": Y, "names": ["a"]}, "names must be 2, one for each class, .* got 1"),
        ({"x": X, "y": Y, "draws": 0}, "draws"),
        ({"x": X, "y": Y, "resamples": 0}, "resamples"),
        ({"x": DataLoader(TensorDataset(X, Y), shuffle=True)}, "shuffle=False"),
        ({"x": {"x": X}}, "the data has no target"),
        ({"x": X[:0], "y": Y[:0]}, "empty"),
    ]
    for given, said in bad:
        with pytest.raises(InputError, match=said):
            posterior.report(**given, out=out)
    assert not out.parent.exists()


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_without_the_extra_one_sentence_says_what_to_install(posterior, out, monkeypatch, package):
    ours = ("stochens.report", "stochens.figures.style")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"need {package}: pip install 'stochens\[report\]'"):
        posterior.report(X, Y, out=out)
    assert not out.exists()


def test_draws_that_do_not_fit_are_named(posterior, out, monkeypatch):
    """Classes do without them; numbers cannot be measured."""
    monkeypatch.setattr("stochens.posterior.reporting.KEPT", 0)
    monkeypatch.setattr("stochens.posterior.predictive.DRAWS_BUDGET", 0)
    out.parent.mkdir()
    out.write_text("mine")
    posterior.report(X, Y, out=out, overwrite=True, **FEW)
    assert "Members" not in Page(out.read_text()).text
    like = stochens.Homoscedastic(0.5)
    numbers = stochens.Posterior.of([nn.Linear(2, 1)] * 2, likelihood=like, example=X[:1])
    with pytest.raises(InputError, match=r"draws of 30 examples do not fit .* give fewer examples"):
        numbers.report(X, Y.float(), out=out, overwrite=True)


def test_each_column_has_a_name_or_none_has(tmp_path):
    """The columns beyond the names would be missing on the page, without a word."""
    x, y = stochens.toy_set("a", n=12)
    posterior = stochens.fit(stochens.MLP(2, 3, 2), (x, y), members=2, epochs=1, device="cpu")
    with pytest.raises(InputError, match="features must be 2, one for each column of x, got 1"):
        posterior.report(x, y, features=["a"], out=tmp_path / "report.html")
    assert not list(tmp_path.iterdir())
