"""A network is recognised by what it computes: near misses never are, and whatever is gives the
same outputs and gradients by its kernel as by vmap."""

import random
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.tolerance import close, trained
from torch import nn
from torch.nn import functional as F

import stochens
from stochens.kernels import mlp
from stochens.likelihoods import Categorical
from stochens.members import forward_each
from stochens.methods.dropout import DropoutLayer
from stochens.program import fusions
from stochens.program.fusions import fused_nll, fused_outputs
from stochens.program.graph import graph_of
from stochens.program.mlp_fusion import chain
from stochens.program.program import Noise

needs_compiler = pytest.mark.skipif(not mlp.available(), reason="no C++ compiler here")


class Net(nn.Module):
    """4 numbers, or 2 by 2 of them, to 3, by a body that a test supplies."""

    calls: Any

    def __init__(self, body=None, **parts):
        super().__init__()
        self.one, self.two = nn.Linear(4, 5), nn.Linear(5, 3)
        self.act = nn.ReLU()
        self.body = body
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.body(self, x)


class Own(nn.Module):
    """Weights by other names, and torch's functions."""

    def __init__(self):
        super().__init__()
        self.u, self.v = nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3, 5))
        self.shift = nn.Parameter(torch.randn(3))

    def forward(self, x):
        return F.linear(torch.tanh(F.linear(x, self.u)), self.v, self.shift)


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)])

    def forward(self, x):
        if not isinstance(x, torch.Tensor):
            raise TypeError
        for layer in self.layers[:-1]:
            x = F.silu(layer(x))
        return self.layers[-1](x)


ROWS, IMAGES = torch.randn(7, 4), torch.randn(7, 1, 2, 2)
SAME = {
    "relu as a module": (lambda: Net(lambda n, x: n.two(n.act(n.one(x)))), ROWS),
    "torch.relu": (lambda: Net(lambda n, x: n.two(torch.relu(n.one(x)))), ROWS),
    "F.relu": (lambda: Net(lambda n, x: n.two(F.relu(n.one(x)))), ROWS),
    "in place": (lambda: Net(lambda n, x: n.two(F.relu(n.one(x), inplace=True))), ROWS),
    "relu_": (lambda: Net(lambda n, x: n.two(n.one(x).relu_())), ROWS),
    "method": (lambda: Net(lambda n, x: n.two(n.one(x).tanh())), ROWS),
    "F.tanh": (lambda: Net(lambda n, x: n.two(F.tanh(n.one(x)))), ROWS),
    "silu": (lambda: Net(lambda n, x: n.two(F.silu(n.one(x)))), ROWS),
    "after the last": (lambda: Net(lambda n, x: n.two(n.one(x).relu()).tanh()), ROWS),
    "no activation": (lambda: Net(lambda n, x: n.two(n.one(x))), ROWS),
    "flatten": (lambda: Net(lambda n, x: n.two(n.one(x.flatten(1)).relu())), IMAGES),
    "torch.flatten": (lambda: Net(lambda n, x: n.two(n.one(torch.flatten(x, 1)))), IMAGES),
    "view": (lambda: Net(lambda n, x: n.two(n.one(x.view(x.size(0), -1)).relu())), IMAGES),
    "by shape": (lambda: Net(lambda n, x: n.two(n.one(x.reshape(x.shape[0], 4)))), IMAGES),
    "view(-1, n)": (lambda: Net(lambda n, x: n.two(n.one(x.view(-1, 4)))), IMAGES),
    "by name": (lambda: Net(lambda n, x: n.two(input=F.relu(input=n.one(input=x)))), ROWS),
    "own parameters": (Own, ROWS),
    "a list": (Listed, ROWS),
    "inside another": (lambda: nn.Sequential(nn.Flatten(), Listed()), IMAGES),
}


@needs_compiler
@pytest.mark.parametrize("name", SAME)
def test_the_kernel_gives_what_vmap_gives(float64, name):
    make, x = SAME[name]
    torch.manual_seed(0)
    net, x, y = make().double(), x.double(), torch.arange(7) % 3
    params = {n: torch.stack([p, p + torch.randn_like(p)]).detach() for n, p in own(net).items()}
    rows = torch.tensor([[0, 5, 2], [6, 6, 1]])
    found = fused_nll(net, Categorical(), x, y, (0, 1), 0)
    assert found is not None
    assert found[0] is fusions.MLP
    gradients = []
    for nll in (
        lambda p: found[1](p, rows, 0),
        lambda p: Categorical().nll(forward_each(net, p, x[rows]), y[rows]),
    ):
        mine = {n: p.clone().requires_grad_() for n, p in params.items()}
        loss = nll(mine)
        (loss * torch.tensor([1.0, 2.0])).sum().backward()
        gradients.append([loss.detach(), *(p.grad for p in mine.values())])
    for one, two in zip(*gradients, strict=True):
        # forwards and backwards through three layers, sums over 6 inputs or 3 rows
        torch.testing.assert_close(one, two, **close(torch.float64, terms=6, depth=6, scale=10.0))


def own(net):
    return dict(net.named_parameters())


class Counts(Net):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return self.two(self.one(x))


class Catches(Net):
    def forward(self, x):
        try:
            x = x * 2
        except Exception:
            x = x + 0
        return self.two(self.one(x))


def buffered(net):
    net.register_buffer("shift", torch.ones(4))
    return net


def hooked(register, where="one"):
    net = Net(lambda n, x: n.two(n.one(x)))
    getattr(getattr(net, where) if where else net, register)(lambda *_: None)
    return net


def frozen(net):
    net.one.bias.requires_grad_(False)
    return net


def tied():
    net = Net(lambda n, x: n.two(n.three(n.one(x))), three=nn.Linear(5, 5))
    net.four = nn.Linear(5, 5)
    net.four.weight = net.get_parameter("three.weight")
    net.body = lambda n, x: n.two(n.four(n.three(n.one(x))))
    return net


def normalised():
    net = Net(lambda n, x: n.two(n.one(x)))
    nn.utils.parametrizations.weight_norm(net.one)
    return net


class Scaled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Doubles(DropoutLayer):
    """Inherits that a kernel can apply its noise, and has another."""

    def perturb(self, y):
        return 2 * super().perturb(y)


def twice(n, x):
    h = n.one(x)
    return n.two(F.relu(h, inplace=True) + h)


MISSES = {
    "scaled": Net(lambda n, x: n.two(2 * n.one(x))),
    "residual": Net(lambda n, x: n.two(n.one(x)) + n.three(x), three=nn.Linear(4, 3)),
    "sum with itself": Net(lambda n, x: n.two(n.one(x) + n.one(x))),
    "in place, used twice": Net(twice),
    "two activations": Net(lambda n, x: n.two(n.one(x).relu().tanh())),
    "activation first": Net(lambda n, x: n.two(n.one(x.relu()))),
    "another activation": Net(lambda n, x: n.two(F.gelu(n.one(x)))),
    "leaky": Net(lambda n, x: n.two(F.leaky_relu(n.one(x)))),
    "softmax": Net(lambda n, x: n.two(n.one(x)).softmax(-1)),
    "transposed": Net(lambda n, x: n.two(n.one(x.T.T))),
    "branch on a value": Net(lambda n, x: n.two(n.one(x) if x.sum() > 0 else -n.one(x))),
    "branch on rows": Net(lambda n, x: n.two(n.one(x)) if len(x) > 3 else n.one(x)[:, :3]),
    "branch on shape[0]": Net(lambda n, x: n.two(n.one(x if x.shape[0] == 7 else -x))),
    "branch on size(0)": Net(lambda n, x: n.two(n.one(-x if x.size(0) < 7 else x))),
    "branch on the rest": Net(lambda n, x: n.two(n.one(x if x.shape[1] == 4 else -x))),
    "branch on a type": Net(lambda n, x: n.two(n.one(x if x.dtype == torch.float64 else -x))),
    "branch on an attribute": Net(lambda n, x: n.two(n.one(-x if hasattr(x, "data") else x))),
    "a constant": Net(lambda n, x: n.two(n.one(x) + torch.ones(5))),
    "noise": Net(lambda n, x: n.two(n.one(x) + torch.randn(5))),
    "noise like": Net(lambda n, x: n.two(n.one(x) + torch.randn_like(x))),
    "torch's coin": Net(lambda n, x: n.two(n.one(x)) if torch.rand(()) < 2 else n.one(x)),
    "Python's coin": Net(lambda n, x: n.two(n.one(x)) if random.random() < 2 else n.one(x)),
    "numpy's coin": Net(lambda n, x: n.two(n.one(x)) if np.random.rand() < 2 else n.one(x)),  # noqa: NPY002
    "dropout of torch": Net(lambda n, x: n.two(F.dropout(n.one(x), 0.5))),
    "keeps state": Counts(),
    "catches": Catches(),
    "a buffer": buffered(Net(lambda n, x: n.two(n.one(x + n.shift)))),
    "an idle buffer": buffered(Net(lambda n, x: n.two(n.one(x)))),
    "detached": Net(lambda n, x: n.two(n.one(x).detach())),
    "no gradient": Net(lambda n, x: n.two(n.one(x.requires_grad_(False)))),
    "weights changed": Net(lambda n, x: F.linear(n.one(x), n.two.weight.abs(), n.two.bias)),
    "weights transposed": Net(lambda n, x: n.one(x) @ n.two.weight.T + n.two.bias),
    "a weight twice": Net(lambda n, x: n.two(n.square(n.square(n.one(x)))), square=nn.Linear(5, 5)),
    "tied": tied(),
    "a layer left out": Net(lambda n, x: n.two(n.one(x)), three=nn.Linear(2, 2)),
    "work left out": Net(lambda n, x: (n.one(x).tanh(), n.two(n.one(x)))[1]),
    "two outputs": Net(lambda n, x: (n.two(n.one(x)), x)),
    "none": Net(lambda n, x: None),
    "the input": Net(lambda n, x: x),
    "frozen": frozen(Net(lambda n, x: n.two(n.one(x)))),
    "weight norm": normalised(),
    "a subclass": Net(lambda n, x: n.two(n.one(x)), one=Scaled(4, 5)),
    "flatten in the middle": Net(lambda n, x: n.two(n.one(x).flatten(0))),
    "flatten all": Net(lambda n, x: n.two(n.one(x.flatten()))),
    "view as others": Net(lambda n, x: n.two(n.one(x.view(4, -1)))),
    "view by another width": Net(lambda n, x: n.two(n.one(x.view(-1, 2)))),
    "hook": hooked("register_forward_hook"),
    "hook on the whole": hooked("register_forward_hook", ""),
    "hook before": hooked("register_forward_pre_hook"),
    "hook on gradients": hooked("register_full_backward_hook"),
    "hook before gradients": hooked("register_full_backward_pre_hook"),
    "inherited noise": nn.Sequential(Doubles(nn.Linear(4, 5), 0.2, "position"), nn.Linear(5, 3)),
    "other noise": stochens.stochastic(
        nn.Sequential(nn.Linear(4, 5), nn.PReLU(), nn.Linear(5, 3)), stochens.Gaussian(0.1)
    ),
}


@pytest.mark.parametrize("name", MISSES)
def test_a_near_miss_is_left_to_vmap(name):
    assert chain(graph_of(MISSES[name])) is None


@pytest.mark.parametrize(
    ("net", "x"),
    [
        (nn.Linear(4, 3), torch.zeros(7, 1, 4)),  # the axis stays
        (nn.Linear(4, 3), torch.zeros(7, 2, 4)),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), torch.zeros(7, 2, 4)),
        (Net(lambda n, x: n.two(n.one(x.view(-1, 4)))), torch.zeros(7, 2, 4)),  # 14 rows
        (nn.Linear(4, 3), torch.zeros(4)),
    ],
)
def test_inputs_of_another_shape_are_left_to_vmap(net, x):
    found = chain(graph_of(net))
    assert found is not None
    assert not found.takes(x)


def test_a_look_leaves_the_network_and_other_threads_alone():
    net = stochens.stochastic(stochens.MLP(4, 5, 3), stochens.Dropout(0.2))
    before = {name: (id(m), dict(vars(m))) for name, m in net.named_modules()}
    other = nn.Sequential(nn.Linear(4, 5), nn.ReLU())
    stands = torch.get_rng_state()
    stop, wrong = threading.Event(), []

    def others():
        while not stop.is_set():
            if not isinstance(other(torch.zeros(2, 4)).sum().item(), float):
                wrong.append(True)

    thread = threading.Thread(target=others)
    thread.start()
    try:
        assert all(graph_of(net) is not None for _ in range(50))
    finally:
        stop.set()
        thread.join()
    assert not wrong
    assert torch.equal(stands, torch.get_rng_state())
    for name, m in net.named_modules():
        assert (id(m), dict(vars(m))) == before[name]


OPERATIONS = {
    "linear": lambda n, x: n.next()(x),
    "relu": lambda n, x: F.relu(x),
    "relu_": lambda n, x: x.relu_(),
    "tanh": lambda n, x: torch.tanh(x),
    "silu": lambda n, x: F.silu(x, inplace=True),
    "flatten": lambda n, x: x.flatten(1),
    "view": lambda n, x: x.view(x.shape[0], -1),
    "double": lambda n, x: x + x,
    "grow": lambda n, x: 2 * x,
    "skip": lambda n, x: n.next()(x) + x,
    "gelu": lambda n, x: F.gelu(x),
    "branch": lambda n, x: x if x.mean() > 0 else -x,
}


class Composed(nn.Module):
    layers: Any

    def __init__(self, names):
        super().__init__()
        self.names = names
        count = sum(name in ("linear", "skip") for name in names)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(count))

    def next(self):
        self.layers.at += 1
        return self.layers[self.layers.at - 1]

    def forward(self, x):
        object.__setattr__(self.layers, "at", 0)
        for name in self.names:
            x = OPERATIONS[name](self, x)
        return x


class Straight(Composed):
    """Without state: the number of a layer is that of its place."""

    def forward(self, x):
        layers = iter(self.layers)
        for name in self.names:
            asks = type("Asks", (), {"next": lambda _, own=layers: next(own)})()
            x = OPERATIONS[name](asks, x)
        return x


@needs_compiler
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    names=st.lists(st.sampled_from(["linear", *OPERATIONS]), min_size=1, max_size=6),
    seed=st.integers(0, 99),
)
def test_whatever_is_recognised_gives_what_the_network_gives(float64, names, seed):
    """Random compositions of operations that the kernel knows and of some that it does not."""
    torch.manual_seed(seed)
    net, x = Straight(names), torch.randn(5, 4)
    if not net.layers:
        return
    params = {n: p.detach()[None] for n, p in net.named_parameters()}
    graph = graph_of(net)
    found = None if graph is None else fusions.MLP.outputs(graph, x, torch.float64)
    pure = set(names) <= {"linear", "relu", "relu_", "tanh", "silu", "flatten", "view"}
    assert found is None or pure
    if found is not None:
        known = net(x.clone()).detach()
        within = close(torch.float64, terms=4, depth=len(names), scale=10.0)
        torch.testing.assert_close(
            found(params, x, Noise(torch.arange(1), torch.tensor([0])))[0], known, **within
        )


def test_networks_that_keep_their_place_are_left_to_vmap():
    assert graph_of(Composed(["linear", "relu", "linear"])) is None


@needs_compiler
def test_a_kernel_that_is_off_is_not_taken(monkeypatch, caplog):
    """Whatever a match may have missed, a few rows tell."""
    wrong = fusions.MLP._replace(
        outputs=lambda *on: (
            lambda params, x, noise: 1.1 * fusions.mlp_fusion.outputs(*on)(params, x, noise)
        )
    )
    monkeypatch.setattr(fusions, "FUSIONS", (wrong,))
    net, y = stochens.MLP(4, 5, 3), torch.arange(7) % 3
    params = {n: p.detach()[None] for n, p in net.named_parameters()}
    before = torch.get_rng_state()
    assert fused_nll(net, Categorical(), ROWS, y, (0,), 0) is None
    assert fused_outputs(net, params, ROWS) is None
    assert "do not run by the MLP kernel, which is off by 1.0e-01" in caplog.text
    assert torch.equal(before, torch.get_rng_state())


@needs_compiler
@pytest.mark.parametrize("method", ["regular", "dropout", "np-dropout"])
def test_ones_own_class_trains_by_the_kernel(float64, method):
    x, y = stochens.toy_set("a", n=40)
    net = lambda: Net(lambda n, x: n.two(F.relu(n.one(x))), one=nn.Linear(2, 5))  # noqa: E731
    options = {"method": method, "members": 2, "epochs": 5, "lr": 0.01, "device": "cpu"}
    fused, by_vmap = (
        stochens.fit(net, (x.double(), y), run=stochens.Run(engine=engine), **options)
        for engine in ("fused", "vmap")
    )
    assert stochens.describe(net, method, x.double(), device="cpu").runs == "the MLP kernel"
    if method == "regular":
        within = trained(torch.float64, steps=5, rows=40)
        torch.testing.assert_close(fused.history.loss, by_vmap.history.loss, **within)
