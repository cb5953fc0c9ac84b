"""What is known of a network is forgotten as soon as the network is another."""

import gc
import weakref
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import nn

import stochens
from stochens import Dropout, InputError, Posterior
from stochens.methods import stochastic
from stochens.program import fusions, known
from stochens.program.known import Look, findings
from stochens.trees import InputTree

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def replace_a_part(net):
    net[1] = nn.ReLU()


def swap_parts(net):
    net[0], net[1] = net[1], net[0]


CHANGES = {
    "a part": replace_a_part,
    "their order": swap_parts,
    "an option": lambda net: setattr(net[1], "slope", 0.1),
    "its mode": lambda net: net.train(not net.training),
    "a parameter": lambda net: setattr(net[0], "weight", nn.Parameter(torch.zeros(5, 3))),
    "frozen": lambda net: net[0].weight.requires_grad_(False),
    "a buffer": lambda net: net.register_buffer("scale", torch.ones(1)),
    "a hook": lambda net: net[0].register_forward_hook(lambda *_: None),
    "its forward": lambda net: setattr(net, "forward", lambda x: x),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change):
    net = network()
    look = Look(net)
    assert look.holds()
    CHANGES[change](net)
    assert not look.holds()


def test_a_change_inside_of_a_stochastic_layer_is_seen():
    plain = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2, 2))
    net: Any = stochastic(plain, Dropout(0.1))
    look = Look(net)
    net[0].inner.stride = (2, 2)
    assert not look.holds()


def test_to_run_a_network_changes_nothing():
    posterior = stochens.fit(network(), (X, torch.arange(4) % 2), members=2, epochs=1)
    look = Look(posterior.net.eval())
    posterior.predict(X)
    assert look.holds()


def test_a_network_that_is_gone_is_forgotten():
    net = network()
    findings(net)["known"] = True
    gone = weakref.ref(net)
    del net
    gc.collect()
    assert gone() is None


def test_not_more_than_so_many_are_kept():
    nets = [network() for _ in range(known.MOST + 3)]
    for net in nets:
        findings(net)["known"] = True
    assert "known" in findings(nets[-1])
    assert "known" not in findings(nets[0])


@pytest.mark.parametrize("change", ["a part", "a hook", "its forward"])
def test_predictions_follow_the_network(change):
    """By the kernel first; what comes then is what the changed network says."""
    nets = [network() for _ in range(3)]
    posterior = Posterior.of(nets, example=X)
    before = posterior.predict(X)
    changes = {
        "a part": replace_a_part,
        "a hook": lambda net: net[0].register_forward_hook(lambda _m, _x, y: 2 * y),
        "its forward": lambda net: setattr(net[1], "forward", torch.sin),
    }
    for net in (posterior.net, *nets):
        changes[change](net)
    known_probs = torch.stack([net(X).softmax(-1) for net in nets]).detach()
    found = posterior.predict(X)
    # layers of 3 and 5 terms, an activation and softmax; logits' terms add up to less than 1
    within = close(torch.float32, terms=5, depth=4)
    torch.testing.assert_close(found.probs, known_probs, **within)
    assert not torch.allclose(found.probs, before.probs)


def test_a_network_is_looked_at_once(monkeypatch):
    looks, certain = [], fusions.certain_graph

    def counted(net):
        looks.append(net)
        return certain(net)

    monkeypatch.setattr(fusions, "certain_graph", counted)
    posterior = stochens.fit(network(), (X, torch.arange(4) % 2), members=2, epochs=1)
    again = [posterior.predict(X[:1]).probs for _ in range(3)]
    assert len(looks) == 1
    assert torch.equal(again[0], again[1])
    assert torch.equal(again[0], again[2])


def test_whole_numbers_are_tried_every_time():
    """One of them may be out of the range that an embedding has."""
    nets = [nn.Sequential(nn.Embedding(5, 2), nn.Flatten()) for _ in range(2)]
    posterior = Posterior.of(nets, example=torch.zeros(1, 3, dtype=torch.long))
    posterior.predict(torch.tensor([[0, 1, 4]]))
    with pytest.raises(InputError, match="the network fails on x"):
        posterior.predict(torch.tensor([[0, 1, 5]]))


def test_other_shapes_and_types_are_refused_after_good_ones():
    posterior = stochens.fit(network(), (X, torch.arange(4) % 2), members=2, epochs=1)
    posterior.predict(X)
    for wrong in (X[:, :2], X.double(), InputTree({"x": X})):
        with pytest.raises(InputError):
            posterior.predict(wrong)
