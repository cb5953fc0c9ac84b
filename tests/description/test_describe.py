"""The table of layers: what it says is what `fit` then does."""

import functools
import warnings
from typing import Any

import pytest
import torch
from tests.long import long_but
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import (
    DropConnect,
    Dropout,
    Gaussian,
    InputError,
    NPDropout,
    Run,
    describe,
    keep_dropout,
)
from stochens.description.layers import ITSELF, LayerRow
from stochens.description.table import alike_together
from stochens.methods import stochastic_layers
from stochens.methods.partial import PartialNoiseWarning, without_noise
from stochens.networks import ResNet20FRN


class Everything(nn.Module):
    """A table, attention, a matrix of its own, a norm, a block used twice, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.mix = nn.Parameter(torch.randn(4, 4) / 2)
        self.norm = nn.LayerNorm(4)
        self.block = nn.Linear(4, 4)
        self.again = self.block
        self.fixed = nn.Linear(4, 4).requires_grad_(False)
        nn.init.eye_(self.fixed.weight)  # the same in all members
        nn.init.zeros_(self.fixed.bias)
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("unsaved", torch.ones(2), persistent=False)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        h = self.attention(h, h, h)[0]
        h = self.norm(torch.einsum("bti,ij->btj", h, self.mix))
        return self.head(self.fixed(self.again(self.block(h).tanh())).mean(1) * self.scale)


TOKENS = torch.arange(15).view(5, 3) % 7
METHODS: list[Any] = ["regular", "dropout", "dropconnect", "np-dropout", "gaussian"]
METHODS += [Gaussian(0.1, learn=True), [Dropout(0.2), Gaussian(0.05)], NPDropout(output=True)]


def by_path(description: stochens.Description) -> dict[str, LayerRow]:
    return {row.path: row for row in description.rows}


def fitted(net: Any, x: Tensor, method: Any, **options: Any) -> stochens.Posterior:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PartialNoiseWarning)
        data = (x, torch.arange(len(x)) % 2)
        return stochens.fit(net, data, method=method, members=3, epochs=1, **options)


@functools.cache
def of_everything(index: int) -> stochens.Posterior:
    """By METHODS[index], trained once for the tests of this file."""
    return fitted(Everything, TOKENS, METHODS[index])


@pytest.mark.xdist_group("describe")
@pytest.mark.parametrize("index", long_but({0, 3, 6}, range(len(METHODS))))
def test_it_counts_what_a_posterior_holds(index: int) -> None:
    told = describe(Everything, METHODS[index], TOKENS, members=3)
    posterior = of_everything(index)
    held = sum(p.numel() * p.element_size() for p in posterior.params.values())
    fixed = 4 * (4 * 4 + 4 + 4 + 2)  # the frozen layer and two buffers, in float32
    assert told.shared_bytes == fixed
    assert told.total_bytes == held + fixed
    assert sum(row.parameters for row in told.rows) == held // 4 // 3
    after = posterior.summary()
    assert after.rows == told.rows
    assert after.total_bytes == told.total_bytes


@pytest.mark.xdist_group("describe")
@pytest.mark.parametrize("index", long_but({3, 6}, range(1, len(METHODS))))
def test_it_names_what_the_warning_names(index: int) -> None:
    told = describe(Everything, METHODS[index], TOKENS)
    posterior = of_everything(index)
    recipe = posterior.recipe
    named = without_noise(posterior.net, recipe.methods, TOKENS, output=recipe.output)
    unknown, uncalled, frozen = named.values()
    assert list(told.unreached) == unknown
    assert not uncalled
    silent = {
        name if row.path == ITSELF else f"{row.path}.{name}"
        for row in told.rows
        for name in row.without_noise
    }
    assert {*unknown, *frozen} <= silent
    noisy = {
        f"{path}.{name}" if path else name
        for path, layer in stochastic_layers(posterior.net).items()
        for name in layer.noisy
    }
    assert not noisy & silent


def test_each_layer_in_words() -> None:
    rows = by_path(describe(Everything, Dropout(0.2), TOKENS))
    said = {path: (row.kind, row.noise, row.notes) for path, row in rows.items()}
    dropout = "dropout 0.2 on outputs"
    assert said == {
        ITSELF: ("Everything", "none: out of reach of dropout", "mix"),
        "table": ("Embedding", dropout, ""),
        "attention": ("MultiheadAttention", dropout, ""),
        "norm": ("LayerNorm", "none: normalisation", ""),
        "block": ("Linear", dropout, "also again"),
        "fixed": ("Linear", "none: frozen", "frozen"),
        "head": ("Linear", "none: output layer", "tied: weight is table.weight"),
    }
    assert rows["head"].parameters == 7  # the weight is counted where it stands first
    assert rows[ITSELF].without_noise == ("mix",)


@pytest.mark.parametrize(
    ("method", "words"),
    [
        (Dropout(0.3, node="channel"), "dropout 0.3 on channels"),
        (DropConnect(0.05), "dropconnect 0.05 on weights"),
        (NPDropout(), "np-dropout: two sets, chosen by position"),
        (NPDropout(node="channel"), "np-dropout: two sets, chosen by node"),
        (Gaussian(0.1), "gaussian 0.1 on weights"),
        (Gaussian(0.1, learn=True), "gaussian learned, from 0.1 on weights"),
        (["dropout", Gaussian(0.1)], "dropout 0.1 on outputs + gaussian 0.1 on weights"),
        ("regular", "none"),
        (Dropout(skip="0"), "none: left out by the options"),
        (Dropout(rates={"0": 0.0}), "none: left out by the options"),
    ],
)
def test_noise_in_words(method: Any, words: str) -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Conv2d(2, 2, 3), nn.Flatten(), nn.Linear(32, 2))
    assert describe(net, method).rows[0].noise == words


def test_a_part_that_is_frozen_is_named() -> None:
    net = stochens.MLP(2, 4, 2)
    net[0].bias.requires_grad_(False)
    row = describe(net, "gaussian").rows[0]
    assert (row.parameters, row.frozen, row.bytes) == (8, 4, 32)
    assert (row.without_noise, row.notes) == (("bias",), "frozen: bias")
    assert describe(net, "dropout").rows[0].without_noise == ()  # its output is dropped


class Reads(nn.Module):
    """The first layer is read, and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.read = nn.Linear(3, 2), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.read.weight.T).tanh())


def test_inputs_tell_which_layer_makes_the_outputs_and_which_is_never_called() -> None:
    without, told = describe(Reads, "gaussian"), describe(Reads, "gaussian", torch.randn(4, 2))
    assert by_path(without)["read"].noise == "gaussian 0.05 on weights"
    row = by_path(told)["read"]
    assert row.noise == "none: never called, others read its parameters"
    assert told.unreached == ("read.weight", "read.bias")
    called = by_path(describe(Reads, DropConnect(rates={"read": 0.1}), torch.randn(4, 2)))
    assert called["head"].noise == "none: output layer"  # though `read` was registered last


class OwnList(nn.Module):
    """Parameters in a list that no module holds which is called."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = nn.ModuleList([nn.ParameterList([torch.randn(2)])])
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.lists[0]
        return self.head(x * inner[0])


def test_parameters_that_no_called_module_holds_have_a_row() -> None:
    told = describe(OwnList, "gaussian", torch.randn(4, 2))
    assert told.unreached == ("lists.0.0",)
    assert sum(row.parameters for row in told.rows) == 8


# -- what runs it ----------------------------------------------------------------------------------


class Branches(nn.Module):
    """On the values of x, which vmap cannot do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x if (x > 1e9).all() else 2 * x)


def test_what_runs_it() -> None:
    x = torch.randn(5, 2)
    mlp, wide = stochens.MLP(2, 5, 2), stochens.MLP(2, 300, 2)
    assert describe(mlp, "dropout").runs == "not known without x, some inputs"
    # one of them, as there is a compiler here or none
    kernel = describe(mlp, "dropout", x, device="cpu").runs
    assert kernel == "the MLP kernel" or kernel.startswith("vmap; its program")
    runs = describe(wide, "dropout", x, device="cpu").runs
    # 3 passes of 2 (2 x 300 + 300 x 2) operations each, and 1e11 for a program
    assert runs == "vmap; its program where members x rows x epochs are 1.4e+07 or more"
    runs = describe(Branches, "gaussian", x, device="cpu").runs
    assert runs.startswith("a loop, member after member, since vmap cannot run it (")
    assert runs.endswith("; it has no program")
    learned = describe(mlp, "gaussian", x, likelihood="gaussian", device="cpu")
    assert learned.runs.startswith("vmap")  # the kernel knows a given noise only
    assert learned.rows[-1].path == "log_variance"
    given = stochens.Homoscedastic(noise=0.1)
    assert describe(mlp, "gaussian", x, likelihood=given, device="cpu").runs == kernel


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_runs_it_on_a_gpu() -> None:
    x = torch.randn(4, 3, 32, 32)
    assert describe(ResNet20FRN(10), "dropout", x).runs == "the ResNet kernel, in bfloat16"
    small = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(3600, 2))
    assert describe(small, "dropout", x).runs == "its program, in bfloat16"
    assert describe(small.double(), "dropout", x.double()).runs == "its program"


def test_it_says_what_fit_does() -> None:
    """On a CPU: a loop where fit warns of one, else vmap, and a program for much work."""
    x = torch.randn(6, 2)
    with pytest.warns(UserWarning, match="members run one after the other"):
        posterior = fitted(Branches, x, "gaussian", batch_size=3, device="cpu")
    assert posterior.engine == "loop"
    assert posterior.summary().runs.startswith("a loop")
    plain = fitted(stochens.MLP(2, 300, 2), x, "gaussian", device="cpu", run=Run(engine="vmap"))
    # 2 (2 x 300 + 300 x 2) operations for a row, and as many again for the variance of its noise
    many = "its program, if it has one, where draws x members x rows are 2.1e+07 or more"
    assert plain.summary().runs == f"vmap; {many}"


def test_describing_leaves_the_network_and_torchs_numbers_alone() -> None:
    net = Everything().train()
    state = {name: t.clone() for name, t in net.state_dict().items()}
    torch.manual_seed(3)
    before = torch.get_rng_state()
    for given in (net, Everything):
        describe(given, "gaussian", TOKENS)
    assert torch.equal(torch.get_rng_state(), before)
    assert net.training
    assert not any(layer._forward_hooks for layer in net.modules())
    for name, t in net.state_dict().items():
        assert torch.equal(t, state[name])
    assert type(net.block) is nn.Linear


# -- other posteriors ------------------------------------------------------------------------------


def test_swag_and_chains_are_named(xor: Any) -> None:
    options: dict[str, Any] = {"members": 2, "epochs": 30, "batch_size": 20}
    swag = stochens.multiswag(stochens.MLP(2, 3, 2), xor, rank=3, **options).summary()
    assert swag.method == "regular + SWAG, a Gaussian of rank 3 over all parameters"
    assert swag.other_bytes == 2 * 17 * 4 * (1 + 3)  # a variance and three columns, for each number
    net = stochens.MLP(2, 3, 2)
    draws = stochens.nuts(net, xor, chains=2, samples=4, warmup=5).summary()
    assert draws.method == "regular + draws of 2 NUTS chains"
    assert draws.members == 8


# -- as text ---------------------------------------------------------------------------------------


def test_dropout_of_the_network_itself_is_said() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.1), nn.Linear(3, 2))
    assert "own dropout, off in predictions: 1" in repr(describe(net, "regular"))
    assert "own dropout, kept on: 1" in repr(describe(keep_dropout(net), "regular"))
    attention = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)
    noisy = nn.Sequential(attention, nn.Linear(4, 2))
    assert describe(noisy, "dropout").dropout_off == ("0",)


def test_blocks_that_are_alike_are_one_row_of_the_text() -> None:
    def row(path: str, kind: str = "Linear") -> LayerRow:
        return LayerRow(path, kind, "none", 2, 0, 8, (), "", False)

    paths = ["in", "a.0.x", "a.0.y", "a.1.x", "a.1.y", "a.2.x", "a.4.x", "b.0", "b.1", "out"]
    rows = [row(path, "Conv2d" if path == "a.2.x" else "Linear") for path in paths]
    found = [(path, count) for path, _, count, _ in alike_together(rows)]
    assert found == [
        *(("in", 1), ("a.0-1.x", 2), ("a.0-1.y", 2), ("a.2.x", 1), ("a.4.x", 1)),
        *(("b.0-1", 2), ("out", 1)),
    ]


def test_the_text_adds_up() -> None:
    net = stochens.MLP(3, 4, 4, 4, 2)
    net[0].requires_grad_(False)
    text = repr(describe(net, "gaussian", members=10))
    lines = text.split("\n")
    assert lines[0].split()[2:6] == ["noise", "notes", "parameters", "frozen"]
    assert "bytes: 10 members x 200 B + 64 B shared = 2.1 kB" in lines
    short = repr(describe(stochens.MLP(2, 2), "gaussian")).split("\n")[0]
    assert short.split()[2:4] == ["noise", "parameters"]  # columns that say nothing are left out


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("net", "options", "message"),
    [
        (nn.BatchNorm1d(2), {}, "the network itself is a BatchNorm1d"),
        (lambda: 3, {}, "must return an nn.Module, got 3"),
        (stochens.MLP(2, 3, 2), {"members": 0}, "members must be a whole number, at least 1"),
        (stochens.MLP(2, 3, 2), {"x": torch.randn(4, 3)}, r"fails on x \(4, 3\)"),
        (stochens.MLP(2, 3, 2), {"skip": "0"}, r"every method now, such as .*Dropout\(skip='0'\)"),
        (stochens.MLP(2, 3, 2), {"likelihood": "gamma"}, "unknown likelihood 'gamma'"),
    ],
)
def test_what_fit_refuses_is_refused(net: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        describe(net, "dropout", **options)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(InputError, match="pattern 'nothing' matches no layer"):
        describe(stochens.MLP(2, 3, 2), Dropout(skip="nothing"))


def test_training_data_tell_what_their_inputs_tell() -> None:
    net, x, y = stochens.MLP(2, 3, 2), torch.randn(6, 2), torch.zeros(6).long()
    for data in ((x, y), TensorDataset(x, y), DataLoader(TensorDataset(x, y), batch_size=4)):
        told = describe(net, "dropout", stochens.Data(data))
        assert repr(told) == repr(describe(net, "dropout", x))
