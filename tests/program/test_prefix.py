"""A frozen backbone is computed once, and nothing changes by that but the time."""

import dataclasses
import logging
from typing import Any

import pytest
import torch
from tests.long import crossed, long_but
from tests.program import counting
from tests.program.counting import counted
from tests.tolerance import close, trained
from torch import Tensor, nn

import stochens
from stochens.members import trainable
from stochens.methods import stochastic
from stochens.posterior import streaming
from stochens.program import features
from stochens.program.features import OnHost, features_of, keep_features, mapped
from stochens.program.prefix import split
from stochens.program.program import Noise, build
from stochens.samplers import problem as sampler_problem
from stochens.training import ensemble

N, MEMBERS = 60, 10


class Backbone(nn.Module):
    """x [B, 2] -> [B, 30], with dropout of its own."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.one, self.drop, self.two = nn.Linear(2, 40), nn.Dropout(rate), nn.Linear(40, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.drop(self.one(counted(x)).tanh())).tanh()


class Net(nn.Module):
    def __init__(self, backbone: nn.Module | None = None, width: int = 30) -> None:
        super().__init__()
        self.backbone = (backbone or Backbone()).requires_grad_(False)
        self.mid, self.head = nn.Linear(width, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.mid(self.backbone(x)).tanh())


@pytest.fixture(autouse=True)
def fresh_count() -> None:
    torch.manual_seed(0)
    counting.begin()


def data(n: int = N) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def fit(net: nn.Module, given: Any, **options: Any) -> stochens.Posterior:
    usual = {"members": 3, "epochs": 2, "batch_size": 16, "lr": 0.01, "seed": 1}
    return stochens.fit(net, given, **(usual | options))


def whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the whole network is run each time."""
    for place in (ensemble, sampler_problem):
        monkeypatch.setattr(place, "keep_features", lambda *a, **k: None)
    monkeypatch.setattr(streaming, "_behind_frozen", lambda net, x, *_: (net, x))


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_passes_that_a_cut_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of predictions: members that run at once have one pass for each draw."""
    posterior, (x, _) = fit(Net(), data(), method=stochens.Dropout(0.2), members=4), data()
    told: list[int] = []

    def noted(net: nn.Module, x: Tensor, *given: Any) -> tuple[nn.Module, Tensor]:
        told.append(given[-1])
        return net, x

    monkeypatch.setattr(streaming, "_behind_frozen", noted)
    posterior.predict(x)  # by all members at once: a single pass
    posterior.predict(x, draws=3)
    dataclasses.replace(posterior, engine="loop").predict(x, draws=3)
    rows, members = 4, 2  # at a time
    monkeypatch.setattr("stochens.posterior.pieces.plan", lambda *_, **__: (rows, members))
    posterior.predict(x, draws=3)
    assert told == [3, 12, 6]


def same(one: stochens.Posterior, other: stochens.Posterior) -> None:
    assert one.params.keys() == other.params.keys()
    for name, p in one.params.items():
        # at most 20 steps on at most 300 rows
        within = trained(torch.float64, steps=20, rows=300)
        torch.testing.assert_close(p, other.params[name], **within)


# -- what must hold -------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_ten_members_need_one_pass_of_the_backbone_for_all_epochs() -> None:
    given = data(1000)
    net = Net()
    fit(net, given, members=MEMBERS, epochs=1)
    assert counting.passes(given[0]) <= 1.1
    counting.begin()
    fit(net, given, members=MEMBERS, epochs=5)
    assert counting.passes(given[0]) <= 1.1


@pytest.mark.filterwarnings("ignore")
def test_prediction_needs_one_pass_for_all_members_and_draws() -> None:
    posterior = fit(Net(), data(), members=MEMBERS, method="dropout")
    x = data(1000)[0]
    counting.begin()
    posterior.predict(x, draws=7)
    assert counting.passes(x) <= 1.1


def test_the_backbone_is_in_memory_once() -> None:
    net = stochastic(Net(), "dropout").train()
    cut = split(net, data()[0][:4])
    assert cut is not None
    here = {p.data_ptr() for p in net.parameters()}
    held = [*cut.prefix.buffers(), *cut.rest.buffers(), *cut.rest.parameters()]
    assert held
    assert all(t.data_ptr() in here for t in held)
    posterior = fit(Net(), data(), members=MEMBERS)
    assert not any(name.startswith("backbone") for name in posterior.params)


# -- it changes nothing ---------------------------------------------------------------------------

METHODS: Any = [
    "regular",
    "dropout",
    "dropconnect",
    "np-dropout",
    "gaussian",
    [stochens.Dropout(0.2), stochens.Gaussian(0.1, learn=True)],
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("method", "engine"), crossed(METHODS, ["auto", "loop"], each=1), ids=str)
def test_members_and_predictions_are_the_same(
    method: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, x = Net(), data(N + 1)[0]  # a last batch of one row
    run = stochens.Run(engine=engine)
    ours = fit(net, data(N + 1), method=method, batch_size=20, run=run)
    probs = {n: ours.predict(x, draws=3, noise=n, batch_size=25).probs for n in ("fresh", "shared")}
    whole(monkeypatch)
    theirs = fit(net, data(N + 1), method=method, batch_size=20, run=run)
    same(ours, theirs)
    for noise, p in probs.items():
        expected = ours.predict(x, draws=3, noise=noise, batch_size=25).probs
        # four layers of sums of at most 50 products, and softmax
        within = close(torch.float64, terms=50, depth=4, condition=10)
        torch.testing.assert_close(p, expected, **within)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("sampler", long_but({"langevin"}, ["nuts", "sgmcmc", "langevin"]))
def test_chains_are_the_same(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {
        "nuts": {"samples": 3, "warmup": 5},
        "sgmcmc": {"samples": 3, "batch_size": 16},
        "langevin": {"steps": 20},
    }[sampler]
    if sampler != "langevin":
        options["chains"] = 2
    run = stochens.Run(precision="float64")
    draw = getattr(stochens, sampler)
    net = Net()
    ours = draw(net, data(), seed=1, run=run, **options)
    tried = 100  # rows: some passes of a few of them, and predictions for diagnostics
    assert counting.seen <= 2 * ((2 if sampler == "langevin" else 1) * N + tried)
    whole(monkeypatch)
    same(ours, draw(net, data(), seed=1, run=run, **options))


@pytest.mark.parametrize(
    ("method", "dtype"), crossed(METHODS, [torch.bfloat16, torch.float64], each=1), ids=str
)
def test_the_rest_runs_in_another_precision(method: Any, dtype: torch.dtype) -> None:
    """As programs on a GPU do, in bfloat16."""
    net, (x, _) = stochastic(Net(), method).train(), data()
    cut = split(net, x[:4])
    assert cut is not None
    params = {name: p.detach().expand(2, *p.shape).clone() for name, p in trainable(net).items()}
    kept = cut.features(x)
    ids = torch.tensor([0, 1])
    noise = Noise(ids, ids[:1])
    ours = build(cut.rest, kept, dtype=dtype)(params, kept, noise)
    theirs = build(net, x)(params, x, noise)
    assert (ours - theirs).norm() < (0.05 if dtype == torch.bfloat16 else 1e-5) * theirs.norm()


class Skips(nn.Module):
    """Features of two sizes, and a number of examples in its own arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.deep = nn.Linear(2, 20), nn.Linear(20, 20)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = self.wide(counted(x)).relu()
        return wide, self.deep(wide).relu().view(x.shape[0], 4, 5)


class SkipNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Skips().requires_grad_(False)
        self.up, self.head = nn.Linear(5, 5), nn.Linear(20, 3)

    def forward(self, x: Tensor) -> Tensor:
        wide, deep = self.encoder(x)
        return self.head(self.up(deep).reshape(x.shape[0], -1) * wide)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("float64")
def test_several_features_are_kept_together(monkeypatch: pytest.MonkeyPatch) -> None:
    net, given = SkipNet(), data(1000)
    ours = fit(net, given, members=MEMBERS, batch_size=300)
    assert counting.passes(given[0]) <= 1.1
    whole(monkeypatch)
    same(ours, fit(net, given, members=MEMBERS, batch_size=300))


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(self.embed(x)).mean(1)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("float64")
def test_tokens_in_eval_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """A frozen module in eval mode stays in it, as a pre-trained network comes."""
    x = torch.randint(11, (N, 6))
    net = Net(Words(), width=8).eval()
    ours = fit(net, (x, x[:, 0] % 3))
    template = stochastic(net, "dropout").eval()
    assert keep_features(template, x, x[:4], engine="vmap") is not None
    whole(monkeypatch)
    same(ours, fit(net, (x, x[:, 0] % 3)))


# -- where it is not done -------------------------------------------------------------------------


def test_a_frozen_part_with_dropout_that_is_on_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    net = stochastic(Net(Backbone(0.5)), "regular").train()
    with caplog.at_level(logging.INFO, "stochens"):
        assert split(net, data()[0][:4]) is None
    assert "draws noise of its own (dropout)" in caplog.text
    assert "net.eval() before fit" in caplog.text
    assert split(net.eval(), data()[0][:4]) is not None


class Centred(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x - x.mean(0))


def test_features_that_depend_on_the_batch_are_not_kept(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stochens"):
        assert split(Net(Centred()), torch.zeros(4, 2)) is None
    assert "depend on the others" in caplog.text


class Counts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).view(len(x), 30)


def test_a_network_for_one_number_of_examples(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stochens"):
        assert split(Net(Counts()), data()[0][:4]) is None
    assert "x.shape[0] leaves it free" in caplog.text


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 30)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if bool((x > 100).any()) else self.layer(x).tanh()


@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_traced_runs_as_ever(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "stochens"):
        fit(Net(Branches()), data(), run=stochens.Run(engine="loop"))
    assert "the frozen part is computed in each step: it cannot be cut off" in caplog.text


@pytest.mark.parametrize("frozen", ["nothing", "the end"])
def test_little_is_not_worth_it(frozen: str) -> None:
    net = Net()
    net.requires_grad_(True)
    if frozen == "the end":
        net.head.requires_grad_(False)
    assert split(net, data()[0][:4]) is None
    assert trainable(net)


# -- where features are kept ----------------------------------------------------------------------


def test_a_file_where_memory_is_short(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "ACTIVATIONS", 0)  # two rows at a time
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(features.tempfile, "tempdir", None)
    made: list[Tensor] = []

    def noted(*shape_and_type: Any) -> Tensor:
        made.append(mapped(*shape_and_type))
        return made[-1]

    monkeypatch.setattr(features, "mapped", noted)
    net, (x, _) = stochastic(Net(), "dropout").train(), data()
    plenty = keep_features(net, x, x[:4], engine="vmap")
    monkeypatch.setattr(features, "free_bytes", lambda device: 100)
    kept = keep_features(net, x, x[:4], engine="vmap")
    assert plenty is not None
    assert kept is not None
    assert len(made) == 1
    assert isinstance(kept.x, Tensor)
    assert isinstance(plenty.x, Tensor)
    assert torch.equal(kept.x, plenty.x)
    assert not list(tmp_path.iterdir())


def test_no_room_at_all_is_told_of(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "ACTIVATIONS", 0)
    monkeypatch.setattr(features, "free_bytes", lambda device: 0)
    monkeypatch.setattr(features, "DISK_SHARE", 0.0)
    x = data()[0]
    assert keep_features(Net(), x, x[:4], engine="vmap") is None
    assert "there is room neither in memory" in caplog.text


def test_rows_come_from_the_host() -> None:
    cut = split(Net(), data()[0][:4])
    assert cut is not None
    x = data()[0]
    here = features_of(cut, x, 7, x.device)
    assert isinstance(here, Tensor)
    host = OnHost(here, torch.device("cpu"))
    rows = torch.tensor([[3, 1], [0, 5]])
    assert torch.equal(host[rows], here[rows])
    assert torch.equal(host[:4], here[:4])
    assert len(host) == N
