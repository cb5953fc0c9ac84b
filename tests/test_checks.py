"""What is refused or warned of before training."""

import re
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import stochens
from stochens import FRN, InputError, keep_dropout
from stochens.checks import (
    SilentNoiseWarning,
    check_network,
    own_dropout,
    probe,
    probe_outputs,
)

BATCH_NORMS = [
    nn.BatchNorm1d(4),
    nn.BatchNorm2d(4),
    nn.BatchNorm3d(4),
    nn.SyncBatchNorm(4),
    nn.LazyBatchNorm2d(),
    nn.BatchNorm2d(4, affine=False, track_running_stats=False),
]


@pytest.mark.parametrize("norm", BATCH_NORMS, ids=lambda norm: type(norm).__name__)
def test_batchnorm_is_refused_by_name_with_both_ways_out(norm: nn.Module) -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), norm), nn.Linear(4, 2))
    with pytest.raises(InputError) as caught:
        check_network(net)
    for part in ("'1.1'", type(norm).__name__, "freeze_batchnorm(net)", "replace_batchnorm(net"):
        assert part in str(caught.value)


def test_batchnorm_alone_is_named_too() -> None:
    with pytest.raises(InputError, match="the network itself is a BatchNorm1d"):
        check_network(nn.BatchNorm1d(4))


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (nn.Sequential(nn.InstanceNorm2d(3, track_running_stats=True)), "'0' is a InstanceNorm2d"),
        (nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(4)), "'1' is lazy and has no shape yet"),
        (nn.LazyConv2d(4, 3), "the network itself is lazy"),
        (nn.DataParallel(nn.Linear(2, 2)), "is a DataParallel, .* give the network inside it"),
        (nn.Sequential(nn.Embedding(5, 3, sparse=True)), "'0' has sparse=True"),
        (nn.ReLU(), "no trainable parameter"),
        (nn.Linear(2, 2).requires_grad_(False), "no trainable parameter"),
    ],
)
def test_what_else_is_refused(net: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_network(net)
    with pytest.raises(InputError, match=message):
        stochens.fit(net, (torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64)), members=1)


class Complex(nn.Module):
    def __init__(self, *, frozen: bool = False) -> None:
        super().__init__()
        start = torch.full((2, 3), 1 + 1j)
        self.mix = nn.Parameter(start, requires_grad=not frozen)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x.to(self.mix.dtype) @ self.mix).abs())


@pytest.mark.parametrize("train", [stochens.fit, stochens.langevin, stochens.nuts, stochens.sgmcmc])
def test_complex_weights_are_refused_before_training(train: Any) -> None:
    data = torch.randn(8, 2), torch.arange(8) % 2
    with pytest.raises(InputError, match=r"parameter 'mix' is complex \(torch\.complex64\)"):
        train(Complex, data)
    with pytest.raises(InputError, match=r"parameter '0\.mix' is complex"):
        train(lambda: nn.Sequential(Complex()), data)


def test_complex_numbers_that_are_not_trained_are_fine() -> None:
    data = torch.randn(8, 2), torch.arange(8) % 2
    net = lambda: Complex(frozen=True)  # noqa: E731
    posterior = stochens.fit(net, data, method="regular", members=2, epochs=1)
    assert posterior.predict(data[0]).mean.isfinite().all()


@pytest.mark.parametrize(
    "normalised", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm]
)
@pytest.mark.parametrize("engine", ["auto", "loop"])
def test_spectral_normalisation_is_refused(normalised: Any, engine: str) -> None:
    """Of a small matrix it has converged at once, so that the buffer looks as if it never moved."""

    def make() -> nn.Module:
        layer = nn.Linear(2, 2)
        nn.init.eye_(layer.weight)
        return nn.Sequential(normalised(layer), nn.Linear(2, 2))

    data = torch.randn(8, 2), torch.arange(8) % 2
    with pytest.raises(InputError, match="has spectral normalisation, which keeps state"):
        stochens.fit(make, data, members=2, epochs=1, run=stochens.Run(engine=engine))


def test_a_token_that_the_embedding_has_not_is_found_before_training() -> None:
    """It stands in the last row, which no one tries."""
    net = nn.Sequential(nn.Embedding(5, 3), nn.Flatten(), nn.Linear(6, 2))
    x, y = torch.arange(40).view(20, 2) % 5, torch.arange(20) % 2
    wrong = x.clone()
    for token in (5, -1):
        wrong[-1, 1] = token
        with pytest.raises(InputError, match=r"the network fails on x .*index out of range"):
            stochens.fit(net, (wrong, y), members=2, epochs=1)
    posterior = stochens.fit(net, (x, y), members=2, epochs=1)
    with pytest.raises(InputError, match=r"the network fails on x .*index out of range"):
        posterior.predict(wrong)


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Conv2d(1, 4, 3), nn.InstanceNorm2d(4, affine=True), FRN(4)),
        nn.Sequential(nn.Linear(2, 4), nn.LayerNorm(4), nn.Dropout(0.5)),
        nn.TransformerEncoderLayer(4, 2),
    ],
)
def test_fine_networks_pass(net: nn.Module) -> None:
    check_network(net)


# -- what a pass must leave alone ------------------------------------------------------------------


class Pass(nn.Module):
    """A network that does something else besides."""

    def __init__(self, before: Any) -> None:
        super().__init__()
        self.before, self.layer, self.head = before, nn.Linear(3, 4), nn.Linear(4, 2)
        self.register_buffer("seen", torch.zeros(3))
        self.recurrent = nn.GRU(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(self.before(self, x))))


def counts(net: Any, x: Tensor) -> Tensor:
    net.seen += x.detach().mean(0)
    return x


def counts_in_training(net: Any, x: Tensor) -> Tensor:
    if net.training:
        net.seen = 0.9 * net.seen + 0.1 * x.detach().mean(0)
    return x - net.seen


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (lambda net, x: x.mul_(0.5), "changes its input in place"),
        (lambda net, x: F.relu(x, inplace=True), "changes its input in place"),
        (lambda net, x: x.view(-1, 3).masked_fill_(x.isnan(), 0), "changes its input in place"),
        (lambda net, x: x - x.mean(0), "depends on the rows beside it"),
        (lambda net, x: x / x.std(0) if net.training else x, "depends on the rows beside it"),
        (lambda net, x: net.recurrent(x.unsqueeze(1))[0].squeeze(1), "depends on the rows beside"),
        (lambda net, x: x.softmax(0), "is a layer without batch_first=True"),
    ],
)
@pytest.mark.parametrize("train", [stochens.fit, stochens.langevin])
def test_what_a_pass_must_leave_alone(before: Any, message: str, train: Any) -> None:
    """Training would go on, on other data or with members that are no functions of x."""
    x, y = torch.randn(20, 3), torch.arange(20) % 2
    given = x.clone()
    with pytest.raises(InputError, match=f"(?i){message}"):
        train(lambda: Pass(before), (x, y), members=2)
    assert torch.equal(x, given)


@pytest.mark.parametrize("before", [counts, counts_in_training])
def test_state_that_members_would_share_is_refused(before: Any) -> None:
    data = torch.randn(20, 3), torch.arange(20) % 2
    with pytest.raises(InputError, match="changes the buffer 'seen', which all members share"):
        stochens.fit(lambda: Pass(before), data, members=2)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        (lambda net, x: x.repeat(2, 1), r"a row for each of its inputs, got \(8, 2\) for x \(4, 3"),
        (lambda net, x: x.no_such_thing, "network fails on x .* no attribute 'no_such_thing'"),
        (lambda net, x: dict[str, Any]()["key"], "network fails on x .*'key'"),
        (lambda net, x: [][0:1].pop(), "network fails on x .*pop from empty list"),
    ],
)
def test_whatever_a_network_raises_is_one_error(before: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        probe_outputs(Pass(before), torch.randn(4, 3))


def fills(net: Any, x: Tensor) -> Tensor:
    if not net.seen.any():
        net.seen.fill_(2.0)
    return x * net.seen


@pytest.mark.parametrize(
    "before",
    [
        fills,  # a cache, filled once
        lambda net, x: x.clone().mul_(0.5),
        lambda net, x: x + torch.randn_like(x),
        lambda net, x: net.recurrent(x.unsqueeze(0))[0].squeeze(0) * 0 + x,
    ],
)
def test_what_a_pass_may_do(before: Any) -> None:
    net = Pass(before)
    assert probe_outputs(net, torch.randn(4, 3)).shape == (4, 2)
    assert net.training


# -- dropout of the network's own -----------------------------------------------------------------


class Calls(nn.Module):
    """A layer and a function after it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, self.layer(x))


class Attends(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.into = nn.Linear(3, 4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.into(x).unsqueeze(1)
        return self.attention(y, y, y)[0].squeeze(1)


class Recurs(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 4, num_layers=2, dropout=dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


def sdpa(net: nn.Module, y: Tensor) -> Tensor:
    y = y.view(1, *y.shape)
    rate = 0.3 if net.training else 0.0
    return F.scaled_dot_product_attention(y, y, y, dropout_p=rate).squeeze(0)


def functional(rate: float) -> nn.Module:
    return Calls(lambda net, y: F.dropout(y, rate, training=net.training))


def layers(dropout: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Sequential(dropout, nn.Linear(4, 2)))


SILENT = [
    (layers(nn.Dropout(0.2)), "own dropout (1.0) is off"),
    (layers(nn.AlphaDropout(0.2)), "own dropout (1.0) is off"),
    (Attends(0.2), "own dropout (attention) is off"),
    (Recurs(0.2), "own dropout (lstm) is off"),
    (functional(0.25), "calls dropout as a function (rate 0.25)"),
    (Calls(lambda net, y: F.alpha_dropout(y, 0.4, net.training)), "as a function (rate 0.4)"),
    (Calls(lambda net, y: torch.dropout(y, 0.4, net.training)), "as a function (rate 0.4)"),
    (Calls(sdpa), "as a function (rate 0.3)"),
    (nn.Sequential(keep_dropout(layers(nn.Dropout(0.2))), nn.Dropout(0.1)), "dropout (1) is off"),
]


@pytest.mark.parametrize(("net", "message"), SILENT)
@pytest.mark.parametrize("training", [True, False])
def test_silent_dropout_is_warned_of(net: nn.Module, message: str, training: bool) -> None:
    net.train(training)
    with pytest.warns(SilentNoiseWarning, match=re.escape(message)):
        probe(net, torch.zeros(4, 3))
    assert net.training is training


CLEAN = [
    layers(nn.Identity()),
    layers(nn.Dropout(0.0)),
    keep_dropout(layers(nn.Dropout(0.2))),
    Attends(0.0),
    Recurs(0.0),
    functional(0.0),
    Calls(lambda net, y: F.dropout(y, 0.5)),  # on at test time as well
]


@pytest.mark.parametrize("net", CLEAN)
def test_no_warning_where_nothing_is_silent(net: nn.Module) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        probe(net, torch.zeros(4, 3))


def test_own_dropout_lists_every_layer() -> None:
    names = ["self_attn", "dropout", "dropout1", "dropout2"]
    assert own_dropout(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1)) == names
    assert own_dropout(nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0)) == []
    assert own_dropout(nn.Dropout(0.1)) == ["Dropout"]


@pytest.mark.parametrize("net", [net for net, _ in SILENT] + CLEAN)
@pytest.mark.filterwarnings("ignore::stochens.checks.SilentNoiseWarning")
def test_probe_leaves_the_random_state_and_returns_the_outputs(net: nn.Module) -> None:
    state = torch.get_rng_state()
    outputs = probe(net, torch.zeros(4, 3))
    assert torch.equal(torch.get_rng_state(), state)
    assert outputs.shape[0] == 4
    assert not outputs.requires_grad


def test_probe_restores_the_mode_after_an_error() -> None:
    net = layers(nn.Identity()).eval()
    with pytest.raises(RuntimeError):
        probe(net, torch.zeros(4, 5))
    assert not net.training


def test_a_network_that_returns_no_tensor_is_refused() -> None:
    with pytest.raises(InputError, match="must return one tensor, got tuple"):
        probe(nn.LSTM(3, 4), torch.zeros(4, 3))


@pytest.mark.parametrize("reentrant", [False, True])
def test_activations_that_are_computed_again_are_refused(reentrant):
    """In the backward pass the member's parameters are no longer in the network."""

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(2, 4), nn.Linear(4, 2)

        def forward(self, x):
            return self.head(checkpoint(self.body, x, use_reentrant=reentrant))

    data = torch.randn(8, 2), torch.arange(8) % 2
    for engine in ("auto", "loop"):
        with pytest.raises(InputError, match=r"uses torch\.utils\.checkpoint"):
            stochens.fit(Again, data, members=2, epochs=1, run=stochens.Run(engine=engine))
    assert checkpoint(torch.sin, torch.zeros(1), use_reentrant=reentrant) == 0  # as it was
