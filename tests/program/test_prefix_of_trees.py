"""A frozen backbone of several inputs is computed once, and nothing changes but the time."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.inputs.networks import Attending, padded, sentences
from tests.inputs.test_export_trees import needs_scan
from tests.long import crossed, long_but
from tests.program import counting
from tests.program.counting import counted
from tests.program.test_prefix import METHODS, whole
from tests.program.test_program import IDS, SEED, assert_same, results
from tests.tolerance import close, trained
from torch import Tensor, nn
from torch.utils.data import DataLoader

import stochens
from stochens.adapter import Adapter
from stochens.files.mapped import is_mapped
from stochens.kernels.noise import words
from stochens.members import forward, trainable
from stochens.methods import stochastic
from stochens.posterior import streaming
from stochens.program import features, loader_term
from stochens.program.features import OnHost, features_of, keep_features
from stochens.program.prefix import split
from stochens.program.program import Noise, build
from stochens.randomness.noise import member_noise
from stochens.trees import InputTree, leaves_of

pytestmark = [
    pytest.mark.filterwarnings("ignore::stochens.methods.partial.PartialNoiseWarning"),
    pytest.mark.usefixtures("float64"),
]
N, T, MEMBERS = 60, 6, 10


class LastIsOwn(Attending):
    """All but the classifier is frozen: one vector is the features of a sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.requires_grad_(False)
        self.classifier.requires_grad_(True)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return super().forward(counted(tokens), mask)


class MaskedLater(nn.Module):
    """A member's own layers stand before the mean over words, which needs the mask too. `unused` is
    an input that the network never looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Attending().requires_grad_(False)
        self.mid, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor, unused: Tensor | None = None) -> Any:
        counts = mask.unsqueeze(-1) > 0
        inside = self.mid(self.body(counted(tokens), mask)["hidden"]).tanh()
        mean = inside.masked_fill(~counts, 0.0).sum(-2) / counts.sum(-2)
        return {"logits": self.head(mean)}


NETS: Any = [LastIsOwn, MaskedLater]


@pytest.fixture(autouse=True)
def fresh_count() -> None:
    torch.manual_seed(0)
    counting.begin()


def data(n: int = N, *, unused: bool = False) -> dict[str, Tensor]:
    """Sentences of 2 to T words and a label, with the input first that nobody looks at."""
    lengths = [2 + k % (T - 1) for k in range(n - 1)] + [T]
    made = padded(sentences(lengths))
    made["mask"] = made["mask"].double()
    return {"unused": torch.zeros(n, 1)} | made if unused else made


def inputs(given: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in given.items() if name != "label"}


def fit(net: nn.Module, given: Any, **options: Any) -> stochens.Posterior:
    usual: dict[str, Any] = {"members": 3, "epochs": 2, "batch_size": 16, "lr": 0.01, "seed": 1}
    usual |= {"method": "gaussian"}  # which gives noise to output layers too
    return stochens.fit(net, given, **(usual | options))


def without_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    whole(monkeypatch)
    monkeypatch.setattr(loader_term, "has_frozen", lambda net: False)


def same(one: stochens.Posterior, other: stochens.Posterior, *, steps: int, rows: int = N) -> None:
    assert one.params.keys() == other.params.keys()
    for name, p in one.params.items():
        within = trained(torch.float64, steps=steps, rows=rows * T)
        torch.testing.assert_close(p, other.params[name], **within)


# -- how often it is computed ---------------------------------------------------------------------


@pytest.mark.parametrize("net", NETS)
def test_ten_members_need_one_pass_of_the_backbone_for_all_epochs(net: Any) -> None:
    given = data(1000)
    fit(net(), given, members=MEMBERS, epochs=3, batch_size=100)
    assert counting.passes(given["tokens"]) <= 1.1


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(("engine", "draws"), [("auto", 7), ("loop", 1)])
def test_prediction_needs_one_pass_for_all_members_and_draws(
    net: Any, engine: Any, draws: int
) -> None:
    run = stochens.Run(engine=engine)
    posterior = fit(net(), data(), members=MEMBERS, run=run)
    x = inputs(data(1000))
    counting.begin()
    posterior.predict(x, draws=draws)
    assert counting.passes(x["tokens"]) <= 1.1


def test_validation_needs_one_pass() -> None:
    given, held = data(), data(1000)
    fit(LastIsOwn(), given, members=MEMBERS, validation=held, epochs=3)
    assert counting.seen <= 1.1 * (given["tokens"].numel() + held["tokens"].numel())


@pytest.mark.parametrize("net", NETS)
def test_the_backbone_is_in_memory_once(net: Any) -> None:
    network, x = stochastic(Adapter(net(), "logits"), "gaussian").train(), InputTree(inputs(data()))
    cut = split(network, x[:4])
    assert cut is not None
    here = {p.data_ptr() for p in network.parameters()}
    held: list[Tensor] = [*cut.prefix.parameters(), *cut.rest.parameters()]
    held += [b for part in (cut.prefix, cut.rest) for b in part.buffers() if b.dim()]  # no -1e9
    assert held
    assert all(t.data_ptr() in here for t in held)
    posterior = fit(net(), data(), members=MEMBERS)
    frozen = {name for name, p in net().named_parameters() if not p.requires_grad}
    assert frozen.isdisjoint(posterior.params)


# -- it changes nothing ---------------------------------------------------------------------------


def cut_of(net: nn.Module, x: InputTree) -> Any:
    cut = split(net, x[:4])
    assert cut is not None
    return cut


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_outputs_and_gradients_are_those_of_the_whole(method: Any) -> None:
    net = stochastic(Adapter(MaskedLater(), "logits"), method).train()
    x = InputTree(inputs(data(unused=True)))
    cut = cut_of(net, x)
    kept = cut.features(x)
    assert {t.dtype for t in leaves_of(kept)} == {torch.float64, torch.bool}
    params = {n: p.detach() + 0.1 * torch.randn(2, *p.shape) for n, p in trainable(net).items()}

    def by(run: nn.Module, given: Any, engine: Any) -> list[Tensor]:
        def outputs(p: Any) -> Tensor:
            with member_noise(IDS, SEED, words):
                return forward(run, p, given, engine=engine)

        return results(outputs, params)

    expected = by(net, x, "loop")
    for engine in ("vmap", "loop"):
        assert_same(by(cut.rest, kept, engine), expected)
    program, noise = build(cut.rest, kept), Noise(IDS, SEED)
    assert_same(results(lambda p: program(p, kept, noise), params), expected)


@pytest.mark.parametrize(("method", "engine"), crossed(METHODS, ["auto", "loop"], each=1), ids=str)
def test_members_and_predictions_are_the_same(
    method: Any, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, run = data(N + 1, unused=True), stochens.Run(engine=engine)  # a last batch of one row
    options: Any = {"method": method, "batch_size": 20, "run": run}
    options["validation"] = data(20, unused=True)
    net, x = MaskedLater(), inputs(given)
    ours = fit(net, given, **options)
    probs = {n: ours.predict(x, draws=3, noise=n, batch_size=25).probs for n in ("fresh", "shared")}
    without_cut(monkeypatch)
    theirs = fit(net, given, **options)
    same(ours, theirs, steps=8, rows=20)
    within = trained(torch.float64, steps=8, rows=20 * T)
    assert ours.history.validation is not None
    torch.testing.assert_close(ours.history.validation, theirs.history.validation, **within)
    for noise, p in probs.items():
        expected = ours.predict(x, draws=3, noise=noise, batch_size=25).probs
        torch.testing.assert_close(p, expected, **close(torch.float64, terms=100, depth=20))


SAMPLERS: dict[str, dict[str, Any]] = {
    "nuts": {"chains": 2, "samples": 3, "warmup": 5},
    "hmc": {"chains": 2, "samples": 3, "warmup": 5, "trajectory": 0.5},
    "sgmcmc": {"chains": 2, "samples": 3, "batch_size": 16},
    "langevin": {"members": 2, "steps": 20},
    "mclmc": {"members": 2, "draws_per_member": 2, "thin": 2, "warmup": 20, "training": 10},
}


@pytest.mark.parametrize("sampler", long_but({"nuts", "sgmcmc"}, SAMPLERS))
def test_chains_are_the_same(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    draw, net, given = getattr(stochens, sampler), MaskedLater(), data()
    run = stochens.Run(precision="float64")
    ours = draw(net, given, seed=1, run=run, **SAMPLERS[sampler])
    tried = 100  # rows: some passes of a few of them, and predictions for diagnostics
    assert counting.seen <= T * (N + tried)
    without_cut(monkeypatch)
    same(ours, draw(net, given, seed=1, run=run, **SAMPLERS[sampler]), steps=100)


class Adds(MaskedLater):
    """A mask of 0 and -infinity, which is added to what members compute."""

    def forward(self, tokens: Tensor, mask: Tensor, unused: Tensor | None = None) -> Any:
        added = torch.zeros_like(mask).masked_fill(mask == 0, -torch.inf)
        hidden = self.body(counted(tokens), mask)["hidden"]
        inside = self.mid(hidden).tanh()
        share = (inside.sum(-1) + added).softmax(-1).unsqueeze(-1)
        return {"logits": self.head((share * inside).sum(-2))}


def test_a_mask_of_minus_infinity(monkeypatch: pytest.MonkeyPatch) -> None:
    net, given = Adds(), data()
    x = InputTree(inputs(given))
    assert any(
        bool(t.isneginf().any()) for t in leaves_of(cut_of(Adapter(net, "logits"), x).features(x))
    )
    ours = fit(net, given)
    without_cut(monkeypatch)
    same(ours, fit(net, given), steps=8)


@needs_scan
def test_an_exported_file_has_the_frozen_part(tmp_path: Path) -> None:
    net, given = Attending().requires_grad_(False), data()
    net.classifier.requires_grad_(True)
    posterior = fit(net, given)
    posterior.export(tmp_path / "one.pt2")
    x = inputs(given)
    module = torch.export.load(tmp_path / "one.pt2").module()
    wanted = posterior.predict(x, noise="shared").mean
    got = module(x, posterior.noise_inputs(x))[0]
    torch.testing.assert_close(got, wanted, **close(torch.float64, terms=100, depth=20))


# -- batches of different lengths -----------------------------------------------------------------


def of_many_lengths(n: int) -> Any:
    """Batches of 10 sentences, each as long as its longest."""
    rows = sentences([2 + (k // 10) % 4 for k in range(n)])
    return DataLoader(rows, batch_size=10, collate_fn=padded)


@pytest.mark.parametrize("engine", ["auto", "loop"])
@pytest.mark.parametrize("forms", ["all", "the first"])
def test_a_loader_of_many_lengths(engine: Any, forms: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, members have the features of those lengths that are worth a trace."""
    if forms == "all":
        monkeypatch.setattr(loader_term, "traces_worth", lambda *_, **__: 4)
    loader = of_many_lengths(400)
    options: Any = {"run": stochens.Run(engine=engine), "batch_size": None, "members": MEMBERS}
    net = MaskedLater()
    ours = fit(net, loader, **options)
    epochs = 2 * sum(batch["tokens"].numel() for batch in loader)
    if engine == "auto" or forms == "all":
        assert counting.seen <= 1.1 * epochs + 1000  # words: some passes of a few rows
    without_cut(monkeypatch)
    same(ours, fit(net, loader, **options), steps=80, rows=10)


def test_predictions_of_many_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first length is cut, and others where that pays."""
    posterior, loader = fit(MaskedLater(), data()), of_many_lengths(40)
    expected = posterior.predict(loader, draws=4).probs
    cuts = [len(held.by_input) for held in streaming._cuts.values()]
    assert max(cuts) == 1
    monkeypatch.setattr(streaming, "ON_CPU_FROM", 0.0)
    ours = posterior.predict(loader, draws=4).probs
    assert max(len(held.by_input) for held in streaming._cuts.values()) == 4
    without_cut(monkeypatch)
    theirs = posterior.predict(loader, draws=4).probs
    for probs in (ours, expected):
        torch.testing.assert_close(probs, theirs, **close(torch.float64, terms=100, depth=20))


# -- where features are kept ----------------------------------------------------------------------


def test_a_file_for_each_of_them_where_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(features, "ACTIVATIONS", 0)  # two rows at a time
    net, x = stochastic(Adapter(MaskedLater(), "logits"), "dropout").train(), inputs(data())
    tree = InputTree(x)
    plenty = keep_features(net, tree, tree[:4], engine="vmap")
    monkeypatch.setattr(features, "free_bytes", lambda device: 100)
    kept = keep_features(net, tree, tree[:4], engine="vmap")
    assert plenty is not None
    assert kept is not None
    for ours, theirs in zip(leaves_of(kept.x), leaves_of(plenty.x), strict=True):
        assert is_mapped(ours)
        assert torch.equal(ours, theirs)


def test_rows_come_from_the_host() -> None:
    net, x = Adapter(MaskedLater(), "logits"), InputTree(inputs(data()))
    here = features_of(cut_of(net, x), x, 7, x.device)
    assert isinstance(here, InputTree)
    host, rows = OnHost(here, torch.device("cpu")), torch.tensor([[3, 1], [0, 5]])
    for at in (rows, slice(4)):
        for ours, theirs in zip(leaves_of(host[at]), leaves_of(here[at]), strict=True):
            assert torch.equal(ours, theirs)
    assert len(host) == N


def test_features_are_no_part_of_the_data() -> None:
    """A mask among them may be x itself."""
    net, x = Adapter(MaskedLater(), "logits"), InputTree(inputs(data()))
    kept = keep_features(net, x, x[:4], engine="vmap")
    assert kept is not None
    theirs = {t.untyped_storage().data_ptr() for t in leaves_of(x)}
    assert theirs.isdisjoint(t.untyped_storage().data_ptr() for t in leaves_of(kept.x))
