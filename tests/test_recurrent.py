"""Recurrent layers under vmap and in programs, against one member after the other."""

from typing import Any, NamedTuple

import pytest
import torch
from tests.long import long_but
from tests.tolerance import close
from torch import Tensor, nn

import stochens
from stochens.members import Params, forward, forward_each, init
from stochens.program.choice import flops
from stochens.program.program import build

M, B, T, INPUTS, HIDDEN = 3, 4, 5, 3, 2


class Case(NamedTuple):
    layer: Any
    options: dict[str, Any]


def case(layer: Any, **options: Any) -> Case:
    return Case(layer, options)


CASES = {
    "lstm": case(nn.LSTM),
    "lstm, T first": case(nn.LSTM, batch_first=False),
    "lstm, both ways, deep": case(nn.LSTM, num_layers=2, bidirectional=True),
    "lstm, no biases": case(nn.LSTM, bias=False),
    "gru": case(nn.GRU),
    "gru, both ways, deep": case(nn.GRU, num_layers=2, bidirectional=True),
    "gru, no biases, T first": case(nn.GRU, bias=False, batch_first=False),
    "tanh": case(nn.RNN),
    "relu, both ways, deep": case(nn.RNN, nonlinearity="relu", num_layers=2, bidirectional=True),
    "projections": case(nn.LSTM, proj_size=1),
}
FEW = ("lstm", "lstm, both ways, deep", "gru, both ways, deep", "relu, both ways, deep")


class Net(nn.Module):
    """Outputs and last states both count: x [B, T, I] -> [B, ...]. `begin`: states, or zeros."""

    def __init__(self, layer: nn.Module, begin: Any = None) -> None:
        super().__init__()
        self.layer, self.begin = layer, begin

    def forward(self, x: Tensor) -> Tensor:
        first = bool(self.layer.batch_first)
        y, ends = self.layer(x if first else x.transpose(0, 1), self.begin)
        ends = ends if isinstance(ends, tuple) else (ends,)
        rows = y.flatten(1) if first else y.transpose(0, 1).flatten(1)
        return torch.cat([rows, *(e.transpose(0, 1).flatten(1) for e in ends)], 1)


def network(name: str, *, states: bool = False) -> Net:
    layer, options = CASES[name]
    torch.manual_seed(0)
    made = layer(INPUTS, HIDDEN, **{"batch_first": True, **options}).double()
    begin: Any = None
    if states:
        several = made.num_layers * (2 if made.bidirectional else 1)
        begin = torch.randn(several, B, made.proj_size or HIDDEN, dtype=torch.float64)
        if layer is nn.LSTM:
            begin = (begin, torch.randn(several, B, HIDDEN, dtype=torch.float64))
    return Net(made, begin)


def members_of(net: nn.Module) -> Params:
    return {
        name: torch.randn(M, *p.shape, dtype=p.dtype, requires_grad=True)
        for name, p in net.named_parameters()
    }


def assert_same(ours: Tensor, theirs: Tensor, leaves: list[Tensor]) -> None:
    """Values and gradients. Sums have at most B T = 20 terms in a position, of weights near 1."""
    within = close(theirs.dtype, terms=B * T * HIDDEN, depth=2 * T, scale=100.0)
    torch.testing.assert_close(ours, theirs, **within)
    along = torch.randn_like(theirs)
    pairs = (torch.autograd.grad(y, leaves, along) for y in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, **within)


@pytest.mark.parametrize("name", long_but(FEW, CASES))
@pytest.mark.parametrize("states", [False, True])
@pytest.mark.parametrize("own_rows", [False, True])
def test_vmap_runs_it_as_torch_runs_each_member(name: str, states: bool, own_rows: bool) -> None:
    net = network(name, states=states)
    params = members_of(net)
    shape = (M, B, T, INPUTS) if own_rows else (B, T, INPUTS)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    run = forward_each if own_rows else forward
    ours, theirs = (run(net, params, x, engine=engine) for engine in ("vmap", "loop"))
    assert_same(ours, theirs, [x, *params.values()])


@pytest.mark.parametrize("name", ["lstm", "gru, both ways, deep"])
def test_a_layer_on_a_gpu_leaves_batched_weights_where_they_are(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would move its weights into one piece of memory, and asks first where they lie."""
    asked = []

    def as_on_a_gpu(layer: nn.RNNBase) -> None:
        places = {p.data_ptr() for p in layer._flat_weights if p is not None}
        asked.append(len(places) == len(layer._flat_weights))

    net = network(name)
    params, x = members_of(net), torch.randn(B, T, INPUTS, dtype=torch.float64)
    monkeypatch.setattr(nn.RNNBase, "flatten_parameters", as_on_a_gpu)
    ours = forward(net, params, x)
    assert asked
    assert not any(asked[:-1])  # at the end it has its own weights again, which lie apart
    assert_same(ours, forward(net, params, x, engine="loop"), [*params.values()])


@pytest.mark.parametrize("name", long_but(FEW, CASES))
def test_a_program_does_so_too(name: str) -> None:
    net = network(name)
    params, x = members_of(net), torch.randn(B, T, INPUTS, dtype=torch.float64)
    program = build(net, x)
    assert_same(program(params, x), forward(net, params, x, engine="loop"), [*params.values()])


def test_a_frozen_layer_and_inputs_of_all_members_are_torchs_own_business() -> None:
    """Nothing is mapped over in the layer: vmap needs no rule for it."""

    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.GRU(INPUTS, HIDDEN, batch_first=True).requires_grad_(False)
            self.head = nn.Linear(HIDDEN, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x)[0][:, -1])

    net = Frozen()
    params = init(stochens.members.builder(net), members=range(M), seed=0)
    x = torch.randn(B, T, INPUTS)
    torch.testing.assert_close(
        forward(net, params, x),
        forward(net, params, x, engine="loop"),
        **close(torch.float32, terms=HIDDEN, depth=T),
    )


def test_dropout_between_layers_is_each_members_own() -> None:
    """Members that are alike draw differently, and a chance repeats with its seed."""
    net = Net(nn.LSTM(INPUTS, 8, num_layers=2, dropout=0.5, batch_first=True)).train()
    params = {n: p.detach().expand(M, *p.shape) for n, p in net.named_parameters()}
    x = torch.randn(B, T, INPUTS)

    def outputs(seed: int) -> Tensor:
        torch.manual_seed(seed)
        return forward(net, params, x)

    one, again = outputs(0), outputs(0)
    assert torch.equal(one, again)
    assert not torch.equal(one[0], one[1])
    net.eval()
    alike = outputs(0)
    assert torch.equal(alike[0], alike[1])


def test_what_is_wrong_with_a_layer_is_said_as_ever() -> None:
    net = network("lstm")
    wrong = {n: p[..., :1] for n, p in members_of(net).items()}
    with pytest.raises(RuntimeError):
        forward(net, wrong, torch.randn(B, T, INPUTS, dtype=torch.float64))


def test_members_of_a_training_run_together(float64: None) -> None:
    """No warning of a loop; the members are those of the loop."""

    class Classifier(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.LSTM(2, 4, batch_first=True)
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(x)[0][:, -1])

    x = torch.randn(12, 3, 2)
    y = (x.sum((1, 2)) > 0).long()
    common: dict[str, Any] = {"method": "regular", "members": 3, "epochs": 4, "batch_size": 5}
    ours = stochens.fit(Classifier(), (x, y), **common, optimizer="sgd")
    loop = stochens.Run(engine="loop")
    theirs = stochens.fit(Classifier(), (x, y), **common, optimizer="sgd", run=loop)
    assert (ours.engine, theirs.engine) == ("vmap", "loop")
    # 12 steps, each a sum over 5 rows of 3 positions
    within = close(torch.float64, terms=5 * 3 * 4, depth=12 * 6, scale=10.0)
    for name, p in ours.params.items():
        torch.testing.assert_close(p, theirs.params[name], **within)


@pytest.mark.parametrize(("layer", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
def test_its_operations_are_counted(layer: Any, gates: int) -> None:
    """Those of products: 2 T (I + H) gates H of each example."""

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer(INPUTS, HIDDEN, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)[0][:, -1]

    counted = flops(First(), torch.randn(B, T, INPUTS))
    assert counted == B * 2 * T * (INPUTS + HIDDEN) * gates * HIDDEN
