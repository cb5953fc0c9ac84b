"""One noise: whatever runs a training, (seed, member, step, site) draws the same."""

import pytest
import torch
from tests.tolerance import close, trained
from torch import nn
from torch.nn import functional as F

import stochens
from stochens import DropConnect, Dropout, Gaussian, NPDropout
from stochens.kernels import mlp
from stochens.likelihoods import Categorical
from stochens.members import builder, init
from stochens.methods import start, stochastic
from stochens.program import fusions
from stochens.program.data_term import InMemory, Way, data_term
from stochens.program.program import Noise, build
from stochens.randomness.seeds import noise_seed

needs_compiler = pytest.mark.skipif(not mlp.available(), reason="no C++ compiler here")
IDS, SEED = (7, 2, 9), 3


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(5, 3)  # not in the order in which they are called
        self.first, self.middle = nn.Linear(4, 6), nn.Linear(6, 5, bias=False)

    def forward(self, x):
        return self.last(F.silu(self.middle(self.first(x).tanh())))


METHODS = {
    "regular": [stochens.Regular()],
    "dropout": [Dropout(0.3, rates={"middle": 0.1, "last": 0.5})],
    "dropconnect": [DropConnect(0.3)],
    "np-dropout": [NPDropout()],
    "gaussian": [Gaussian(0.2)],
    "gaussian, learned": [Gaussian(0.2, learn=True)],
    "dropout and gaussian": [Dropout(0.3), Gaussian(0.2)],
    "dropconnect and gaussian": [DropConnect(0.3), Gaussian(0.2, learn=True)],
    "np-dropout and gaussian": [NPDropout(), Gaussian(0.2)],
    "some layers": [Dropout(0.3, layers=["middle"]), Gaussian(0.1, layers=["first"])],
}


@needs_compiler
@pytest.mark.parametrize("name", METHODS)
def test_loss_and_gradients_are_the_same_by_kernel_program_vmap_and_loop(float64, name):
    torch.manual_seed(0)
    net = stochastic(Plain(), METHODS[name])
    one, two = (init(builder(Plain), members=IDS, seed=s) for s in (0, 1))
    params = start(net, one, two)
    x, y = torch.randn(12, 4), torch.arange(12) % 3
    rows = torch.randint(0, 12, (3, 150))  # more than one tile of the kernel
    program = build(net, x)
    first = torch.tensor([noise_seed(SEED)])

    def by_program(params, rows, step):
        noise = Noise(torch.tensor(IDS), first + step)
        return Categorical().nll(program.each(params, x[rows], noise), y[rows])

    def term(**way):
        return data_term(net, Categorical(), InMemory(x, y), IDS, SEED, Way(**way)).of

    assert fusions.fused_by(net, Categorical(), x) is fusions.MLP
    ways = {
        "kernel": term(engine="vmap"),
        "vmap": term(engine="vmap", fast=False),
        "loop": term(engine="loop", fast=False),
        "program": by_program,
    }
    for step in (0, 41):
        found = {}
        for way, nll in ways.items():
            own = {n: p.clone().requires_grad_() for n, p in params.items()}
            loss = nll(own, rows, step)
            (loss * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
            found[way] = [loss.detach(), *(p.grad for p in own.values())]
        # forwards and backwards through three layers, sums over 150 rows; Gaussian noise divides
        # by its standard deviation
        within = close(torch.float64, terms=150, depth=6, scale=100.0)
        for way in ("kernel", "loop", "program"):
            for got, want in zip(found[way], found["vmap"], strict=True):
                torch.testing.assert_close(got, want, **within)


@needs_compiler
@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout", "gaussian"])
def test_a_training_is_the_same_by_every_engine(float64, method):
    x, y = stochens.toy_set("a", n=40)
    options = {"method": method, "members": 3, "epochs": 4, "batch_size": 20, "device": "cpu"}
    losses = [
        stochens.fit(
            stochens.MLP(2, 6, 2, activation=nn.Tanh),  # no kinks that rounding could cross
            (x.double(), y),
            lr=0.01,
            run=stochens.Run(engine=engine),
            **options,
        ).history.loss
        for engine in ("fused", "vmap", "loop")
    ]
    within = trained(torch.float64, steps=8, rows=20)
    for other in losses[1:]:
        torch.testing.assert_close(losses[0], other, **within)


@needs_compiler
@pytest.mark.parametrize("name", METHODS)
def test_predictions_are_the_same_by_kernel_and_vmap(float64, name, monkeypatch):
    x, y = torch.randn(40, 4), torch.arange(40) % 3
    options = {"members": 3, "epochs": 1, "lr": 0.01, "device": "cpu", "seed": 2}
    posterior = stochens.fit(Plain, (x.double(), y), method=METHODS[name], **options)
    found = []
    for kernels in (fusions.FUSIONS, ()):
        monkeypatch.setattr(fusions, "FUSIONS", kernels)
        found.append(posterior.predict(x.double(), draws=2, seed=5, keep_draws=True).probs)
    torch.testing.assert_close(*found, **close(torch.float64, terms=6, depth=3, scale=10.0))
