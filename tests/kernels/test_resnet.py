"""All members of a ResNet20FRN through the kernels: which networks, and what they compute."""

import statistics
import types
from typing import Any

import pytest
import torch
from tests.kernels import emulated
from torch import nn

import stochens
from stochens import DropConnect, Dropout, Gaussian, NPDropout, Regular, methods, objective
from stochens.kernels import conv, mlp, resnet
from stochens.likelihoods import Categorical
from stochens.members import builder, forward, forward_each, init
from stochens.networks import FRN, ResidualBlock, ResNet20FRN, SmallResNetFRN
from stochens.program import resnet_fusion
from stochens.program.data_term import InMemory, Way, data_term
from stochens.program.draw_weights import draw_all_weights
from stochens.program.fusions import fused_nll, fused_outputs
from stochens.program.graph import graph_of
from stochens.program.program import Noise
from stochens.randomness.seeds import seeded

GPU = conv.available()
DEVICE = "cuda" if GPU else "cpu"


def resnet_of(net: nn.Module, size: int = 32) -> Any:
    colours = next(m for m in net.modules() if hasattr(m, "in_channels")).in_channels
    return resnet_fusion.resnet_of(graph_of(net), (colours, size, size))


def nll_by_kernel(*on: Any) -> Any:
    found = fused_nll(*on)
    assert found is not None
    return found[1]


def taken(net: nn.Module) -> bool:
    return resnet_of(net) is not None


def test_plain_and_dropout_networks_are_taken():
    assert taken(ResNet20FRN())
    assert taken(ResNet20FRN(classes=100))
    net = stochens.stochastic(ResNet20FRN(), Dropout(0.2, rates={"blocks.0.*": 0.4, "conv": 0}))
    rates = {s.names[0].removesuffix(".weight"): s.rate for s in resnet_of(net).steps}
    assert len(rates) == 21
    assert rates["blocks.0.conv1"] == 0.4
    assert rates["blocks.8.conv2"] == rates["blocks.3.conv_short"] == 0.2
    assert rates["conv"] == 0


def test_noise_on_weights_is_drawn_before_the_kernels_run():
    for method in (DropConnect(0.1), NPDropout(node="channel")):
        assert taken(stochens.stochastic(ResNet20FRN(), method))


def test_everything_else_is_left_to_vmap():
    hooked = ResNet20FRN()
    hooked.blocks[3].register_forward_hook(lambda *_: None)
    assert not taken(hooked)
    assert not taken(SmallResNetFRN())
    both = [DropConnect(0.1), Gaussian(0.1)]
    for method in (Dropout(0.2, node="channel"), NPDropout(), Gaussian(0.1), both):
        assert not taken(stochens.stochastic(ResNet20FRN(), method))
    with_head = stochens.stochastic(ResNet20FRN(), Dropout(0.2, rates={"head": 0.2}))
    assert not taken(with_head)


def exchanged(change) -> nn.Module:
    net = ResNet20FRN()
    change(net)
    return net


class Relu(ResidualBlock):
    def forward(self, x):
        return super().forward(x).relu()


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "change",
    [
        lambda net: setattr(net, "norm", FRN(16, eps=1e-2)),
        lambda net: setattr(net, "conv", nn.Conv2d(3, 16, 3, padding=1, padding_mode="circular")),
        lambda net: setattr(net, "conv", nn.Conv2d(6, 16, 3, padding=1)),  # images have 4 at most
        lambda net: setattr(net.blocks[4], "conv1", nn.Conv2d(32, 32, 3, padding=2, dilation=2)),
        lambda net: setattr(net.blocks[4], "conv1", nn.Conv2d(32, 32, 3, padding=1, groups=2)),
        lambda net: net.blocks.__setitem__(1, net.blocks[0]),  # one block, called twice
        lambda net: net.blocks.__setitem__(1, Relu(16, 16)),
        lambda net: net.blocks.append(nn.Tanh()),
        lambda net: setattr(net, "head", Doubled(64, 10)),
        lambda net: setattr(net, "head", nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 10))),
        lambda net: setattr(net, "forward", lambda x: x.mean((2, 3))),
        lambda net: setattr(net.norm, "forward", lambda x: x),
        lambda net: net.conv.register_forward_hook(lambda *_: None),  # stays inside the noise
    ],
)
def test_networks_with_other_parts_are_left_to_vmap(change):
    net = exchanged(change)
    assert not taken(net)
    assert not taken(stochens.stochastic(net, Dropout(0.2)))


def test_fewer_colours_and_other_classes_are_taken():
    grey = exchanged(lambda net: setattr(net, "conv", nn.Conv2d(1, 16, 3, padding=1)))
    assert taken(grey)
    assert taken(exchanged(lambda net: setattr(net, "head", nn.Linear(64, 3))))
    assert taken(exchanged(lambda net: net.blocks.append(nn.Identity())))


@pytest.mark.parametrize("what", ["frozen", "tied", "double"])
def test_parameters_that_the_kernels_cannot_stack_are_left_to_vmap(what):
    net = ResNet20FRN()
    if what == "frozen":
        net.conv.weight.requires_grad_(False)
    elif what == "tied":
        net.blocks[1].conv1.weight = net.blocks[0].conv1.weight
    else:
        net.double()
    assert not taken(net)


@pytest.mark.parametrize(
    ("major", "shared", "takes"),
    [(9, 227 << 10, True), (10, 227 << 10, True), (12, 99 << 10, False), (8, 163 << 10, False)],
    ids=["H200", "B200", "RTX 5090", "A100"],
)
def test_devices_without_the_shared_memory_are_left_to_vmap(major, shared, takes, monkeypatch):
    about = types.SimpleNamespace(major=major, minor=0, shared_memory_per_block_optin=shared)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device=None: about)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, 0))
    monkeypatch.setattr(torch.cuda, "_compile_kernel", None, raising=False)
    assert conv.available() is takes
    monkeypatch.setenv("STOCHENS_KERNELS", "off")
    assert not conv.available()


def test_kernels_that_cannot_be_compiled_are_left_to_vmap(monkeypatch, caplog):
    def fails(*_):
        raise RuntimeError("NVRTC: unknown architecture")

    monkeypatch.setattr(conv, "kernel", fails)
    steps = resnet_of(ResNet20FRN(), 20).steps  # no other test has them compiled
    assert not resnet_fusion._compiled(steps, torch.device(DEVICE), backward=True)
    assert "run by vmap, which is slower: NVRTC" in caplog.text


def test_the_cpu_is_left_to_vmap():
    params = init(builder(ResNet20FRN), members=range(1), seed=0)
    assert fused_outputs(ResNet20FRN(), params, torch.zeros(1, 3, 32, 32)) is None


@pytest.mark.parametrize(
    "method", [Regular(), DropConnect(0.2), NPDropout(node="channel")], ids=lambda m: m.name
)
def test_outputs_and_gradients_are_those_of_vmap(method, monkeypatch):
    """Without FRN's thresholds: those turn the rounding of bf16 into other gradients altogether.

    On them a change of 0.1% in x changes float32 gradients by 7%; the kernels have their own tests.
    """
    if not GPU and not mlp.available():
        pytest.skip("neither a Hopper GPU nor a C++ compiler here")
    if not GPU:
        monkeypatch.setattr(conv, "kernel", emulated.kernel)
    torch.manual_seed(0)
    plain = ResNet20FRN(classes=5).to(DEVICE)
    net = stochens.stochastic(plain, method).to(DEVICE)
    first, second = (
        init(builder(lambda: ResNet20FRN(classes=5)), members=range(2), seed=s) for s in (0, 1)
    )
    params = methods.start(net, first, second)
    params = {n: p - 100 if "tau" in n else p for n, p in params.items()}
    params = {n: p.to(DEVICE) for n, p in params.items()}
    x, dy = torch.randn(2, 1, 3, 16, 16, device=DEVICE), torch.randn(2, 1, 5, device=DEVICE)
    found: list[dict[str, Any]] = []
    for way in ("kernels", "vmap"):
        own = {name: p.clone().requires_grad_() for name, p in params.items()}
        with seeded(0, DEVICE):
            theta = draw_all_weights(graph_of(net).noisy, own)
        if way == "vmap":
            outputs = forward_each(plain, theta, x)
        else:
            found_in = resnet_of(net, 16)
            if GPU:
                resnet.compile_steps(found_in.steps, x.device, backward=True)
            seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
            outputs = resnet.run(found_in, theta, conv.quads(x), seed=seed)
        outputs.backward(dy)
        found.append({"outputs": outputs.detach(), **{n: p.grad for n, p in own.items()}})
    errors = {
        name: float((found[0][name] - known).norm() / known.norm())
        for name, known in found[1].items()
        if "tau" not in name  # exactly zero
    }
    # bf16's 0.002, layer upon layer
    assert errors.pop("outputs") < 0.01
    assert statistics.median(errors.values()) < 0.06
    assert max(errors.values()) < 0.15
    assert all(not found[0][name].any() for name in found[0] if "tau" in name)


@pytest.fixture
def here(monkeypatch):
    """The kernels, on a GPU or emulated."""
    if not GPU:
        if not mlp.available():
            pytest.skip("neither a Hopper GPU nor a C++ compiler here")
        monkeypatch.setattr(conv, "kernel", emulated.kernel)
        monkeypatch.setattr(resnet_fusion, "_runs_here", lambda x: True)
        monkeypatch.setattr(resnet_fusion, "_compiled", lambda *_, **__: True)


def small(members):
    """Images that make the emulated network quick, and members that saw no training."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 3, 8, 8, device=DEVICE), torch.tensor([0, 2, 1, 1, 0], device=DEVICE)
    params = init(builder(lambda: ResNet20FRN(classes=3)), members=members, seed=0)
    return x, y, {name: p.to(DEVICE) for name, p in params.items()}


@pytest.mark.parametrize(
    "rows", [pytest.param(None, marks=pytest.mark.long), [[4, 0, 0], [1, 3, 2]], [[2], [4]]]
)
def test_the_loss_is_that_of_vmap(rows, here):
    x, y, params = small(range(2))
    rows = None if rows is None else torch.tensor(rows, device=DEVICE)
    net = ResNet20FRN(classes=3).to(DEVICE)
    nll = nll_by_kernel(net, Categorical(), x, y, (0, 1), 0)
    known = objective.mean_nll(net, Categorical(), engine="vmap")(params, x, y, rows)
    torch.testing.assert_close(nll(params, rows, 0), known, rtol=0.03, atol=0)  # bf16, in 20 layers


@pytest.mark.long
def test_the_noise_of_a_loss_is_of_the_seed_the_member_and_the_step(here):
    x, y, params = small((3, 8))
    net = stochens.stochastic(ResNet20FRN(classes=3), Dropout(0.3)).to(DEVICE)

    def losses(step, members=(3, 8), seed=0):
        nll = nll_by_kernel(net, Categorical(), x, y, members, seed)
        return nll({n: p[-len(members) :] for n, p in params.items()}, None, step)

    first = losses(7)
    assert torch.equal(losses(torch.tensor([7], device=DEVICE)), first)  # as a graph has it
    # in a block of its own, where the head's products come in another order on a GPU
    torch.testing.assert_close(losses(7, members=(8,)), first[1:])
    for other in (losses(8), losses(7, seed=1), losses(7, members=(4, 9))):
        assert not (other == first).any()


def test_predictions_are_those_of_vmap(here):
    x, _, params = small(range(2))
    net = ResNet20FRN(classes=3).to(DEVICE)
    outputs = fused_outputs(net, params, x)
    noise = Noise(torch.arange(2, device=DEVICE), torch.tensor([0], device=DEVICE))
    assert outputs is not None
    with torch.no_grad():
        found, known, alone = (
            outputs(params, x, noise),
            forward(net, params, x),
            outputs(params, x[:1], noise),
        )
    assert (found - known).norm() < 0.02 * known.norm()  # bf16, in 20 layers
    torch.testing.assert_close(alone, found[:, :1])  # the head's products in another order


@pytest.mark.parametrize(
    "method", [Dropout(0.3), DropConnect(0.1), NPDropout(node="channel")], ids=lambda m: m.name
)
def test_the_noise_is_that_of_vmap(method, here):
    """Other draws would make another loss: those of two steps differ by far more than bf16 does."""
    x, y, _ = small(range(2))
    make = lambda: ResNet20FRN(classes=3)  # noqa: E731
    net = stochens.stochastic(make(), method).to(DEVICE)
    one, two = (init(builder(make), members=range(2), seed=s) for s in (0, 1))
    params = {n: p.to(DEVICE) for n, p in methods.start(net, one, two).items()}
    ways = (Way("vmap"), Way("vmap", fast=False))
    found, known = (
        data_term(net, Categorical(), InMemory(x, y), (5, 8), 3, way).of for way in ways
    )
    losses = []
    for step in (0, 7):
        want = known(params, None, step)
        # bf16, in 20 layers
        torch.testing.assert_close(found(params, None, step), want, rtol=0.03, atol=0)
        losses.append(want)
    assert float(((losses[0] - losses[1]) / losses[0]).abs().max()) > 0.03  # which would not pass


def test_every_weight_is_drawn_by_its_layer():
    net = stochens.stochastic(ResNet20FRN(), DropConnect(0.2))
    params = init(builder(ResNet20FRN), members=range(3), seed=0)
    theta = draw_all_weights(graph_of(net).noisy, params)
    assert set(theta) == set(params)
    assert theta["head.weight"] is params["head.weight"]  # the output layer has no noise
    w, drawn = params["blocks.4.conv1.weight"], theta["blocks.4.conv1.weight"]
    kept = drawn != 0
    assert torch.equal(drawn[kept], (w * kept / 0.8)[kept])
    # 3 x 9216 weights: 5 standard deviations of a share, which are 0.0024 each
    assert abs(float(kept.float().mean()) - 0.8) < 0.012
    assert not torch.equal(kept[0], kept[1])


@pytest.mark.skipif(not GPU, reason="no Hopper GPU here")
@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_a_training_run_learns_as_vmap_does(rate):
    """The same data and start: the losses agree within the spread of members."""
    torch.manual_seed(0)
    y = torch.randint(0, 2, (512,), device="cuda")
    x = torch.randn(512, 3, 32, 32, device="cuda")
    x[:, 0] += y.view(-1, 1, 1)  # easy: a class is brighter in one colour
    plain = ResNet20FRN(classes=2)
    net = (stochens.stochastic(plain, Dropout(rate)) if rate else plain).cuda()
    start = init(builder(lambda: ResNet20FRN(classes=2)), members=range(8), seed=0)
    losses: list[Any] = []
    for way in ("kernels", "vmap"):
        params = {n: p.cuda().requires_grad_() for n, p in start.items()}
        optimizer = torch.optim.SGD(params.values(), lr=0.02, momentum=0.9, nesterov=True)
        layers = resnet_of(net)
        for step in range(200):
            rows = torch.randint(0, 512, (8, 64), device="cuda")
            seed = torch.tensor([step], device="cuda")
            if way == "kernels":
                outputs = resnet.run(layers, params, conv.quads(x[rows]), seed=seed)
            else:
                outputs = forward_each(net, params, x[rows])
            loss = nn.functional.cross_entropy(
                outputs.flatten(0, 1), y[rows].flatten(), reduction="none"
            ).view(8, 64)
            loss.mean(1).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 0:
                losses.append([])
            losses[-1].append(loss.detach().mean(1))
    one, two = (torch.stack(own[-20:]).mean(0) for own in losses)  # [M]
    assert float(one.mean()) < 0.6  # it learnt: a coin's loss is 0.69
    assert abs(float(one.mean() - two.mean())) < 4 * float(((one.var() + two.var()) / 8).sqrt())
