"""ResNets of one's own, of FRN blocks: which ones the kernels take, and what they compute."""

import statistics
from typing import Any

import pytest
import torch
from tests.kernels import emulated
from torch import nn
from torch.nn import functional as F

import stochens
from stochens import Dropout
from stochens.kernels import conv, mlp, resnet
from stochens.members import forward_each
from stochens.networks import FRN
from stochens.program.graph import graph_of
from stochens.program.resnet_fusion import resnet_of

GPU = conv.available()
DEVICE = "cuda" if GPU else "cpu"


def layers(**convolutions: tuple[int, ...]) -> dict[str, Any]:
    """A convolution and an FRN for each name, of (inputs, outputs, stride, kernel)."""
    made: dict[str, Any] = {}
    for name, shape in convolutions.items():
        inputs, outputs, stride, kernel = (*shape, *(1, 3)[len(shape) - 2 :])
        made[f"c_{name}"] = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2)
        made[f"f_{name}"] = FRN(outputs)
    return made


class Mine(nn.Module):
    """Written as others write: sums in place, pooling by a module, a head without bias."""

    act: Any
    c_stem: Any
    c_a: Any
    c_b: Any
    c_own: Any
    c_d: Any
    c_e: Any
    c_short: Any
    f_stem: Any
    f_a: Any
    f_b: Any
    f_own: Any
    f_d: Any
    f_e: Any
    f_short: Any

    def __init__(self, change=None):
        super().__init__()
        parts = layers(stem=(3, 16), a=(16, 16), b=(16, 16), own=(16, 16))
        parts |= layers(d=(16, 32, 2), e=(32, 32), short=(16, 32, 2, 1))
        for name, part in parts.items():
            setattr(self, name, part)
        self.act, self.pool = nn.SiLU(inplace=True), nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(32, 5, bias=False)
        if change is not None:
            change(self)

    def forward(self, x):
        h = self.act(self.f_stem(self.c_stem(x)))
        out = self.act(self.f_a(self.c_a(h)))
        out = self.f_b(self.c_b(out))
        out += h
        h = self.act(out)
        h = F.silu(h + self.f_own(self.c_own(h)))  # what is convolved is what is added
        inner = F.silu(self.f_d(self.c_d(h)))
        end = self.f_e(self.c_e(inner))
        h = F.silu(torch.add(end, self.f_short(self.c_short(h))))  # the shortcut comes last
        return self.head(torch.flatten(self.pool(h), 1))


class Other(Mine):
    """The body is a test's."""

    def __init__(self, body, **parts):
        super().__init__()
        self.body = body
        kept = {"c_stem", "f_stem", "head"}
        for name in [name for name, _ in self.named_children() if name not in kept]:
            delattr(self, name)
        self.head = nn.Linear(16, 5)
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x):
        return self.body(self, x)


def taken(net, size=8):
    found = resnet_of(graph_of(net), (3, size, size))
    return found is not None


def stem(n, x):
    return F.silu(n.f_stem(n.c_stem(x)))


def test_ones_own_networks_are_taken():
    assert taken(Mine())
    net = stochens.stochastic(Mine(), Dropout(0.2))
    rates = [step.rate for step in resnet_of(graph_of(net), (3, 8, 8)).steps]
    assert rates == [0.2] * 7
    assert taken(Other(lambda n, x: n.head(stem(n, x).mean((2, 3)))))
    assert taken(Other(lambda n, x: n.head(stem(n, x).mean([-2, -1], keepdim=True).flatten(1))))
    assert taken(Other(lambda n, x: n.head(n.f_stem(n.c_stem(x)).mean((2, 3)))))


@pytest.mark.skipif(not GPU and not mlp.available(), reason="neither a Hopper GPU nor a compiler")
def test_outputs_and_gradients_are_those_of_vmap(monkeypatch):
    """As for ResNet20FRN: thresholds far away, since they turn rounding into other gradients."""
    if not GPU:
        monkeypatch.setattr(conv, "kernel", emulated.kernel)
    torch.manual_seed(0)
    net = Mine().to(DEVICE)
    params = {
        name: torch.stack([p, p + 0.1 * torch.randn_like(p)]).detach() - 100 * ("tau" in name)
        for name, p in net.named_parameters()
    }
    # 16 by 16, as for ResNet20FRN: most of these kernels are compiled for its test too
    x, dy = torch.randn(2, 1, 3, 16, 16, device=DEVICE), torch.randn(2, 1, 5, device=DEVICE)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    found: list[dict[str, Any]] = []
    for way in ("kernels", "vmap"):
        own = {name: p.clone().requires_grad_() for name, p in params.items()}
        if way == "kernels":
            match = resnet_of(graph_of(net), (3, 16, 16))
            outputs = resnet.run(match, own, conv.quads(x), seed=seed)
        else:
            outputs = forward_each(net, own, x)
        outputs.backward(dy)
        found.append({"outputs": outputs.detach(), **{n: p.grad for n, p in own.items()}})
    errors = {
        name: float((found[0][name] - known).norm() / known.norm())
        for name, known in found[1].items()
        if "tau" not in name
    }
    # bf16's 0.002, layer upon layer; a gradient that is lost would be an error of its own size
    assert errors.pop("outputs") < 0.01
    assert statistics.median(errors.values()) < 0.03
    assert max(errors.values()) < 0.1


MORE = layers(a=(16, 16), b=(16, 16))


@pytest.mark.parametrize(
    "body",
    [
        lambda n, x: n.head(F.relu(n.f_stem(n.c_stem(x))).mean((2, 3))),
        lambda n, x: n.head(F.silu(stem(n, x)).mean((2, 3))),
        lambda n, x: n.head(F.silu(n.c_stem(x)).mean((2, 3))) + 0 * n.f_stem.weight.sum(),
        lambda n, x: n.head(n.f_stem(F.silu(n.c_stem(x))).mean((2, 3))),
        lambda n, x: n.head((2 * stem(n, x)).mean((2, 3))),
        lambda n, x: n.head(stem(n, x).mean((1, 2))),
        lambda n, x: n.head(stem(n, x).mean((2,)).mean((2,))),
        lambda n, x: n.head(stem(n, x).amax((2, 3))),
        lambda n, x: n.head(F.adaptive_avg_pool2d(stem(n, x), 2).flatten(1)),
        lambda n, x: n.head(F.adaptive_avg_pool2d(stem(n, x), 1)),
        lambda n, x: n.head(stem(n, x).flatten(1)),
        lambda n, x: n.head(stem(n, x).mean((2, 3))).tanh(),
        lambda n, x: n.head(stem(n, x).mean((2, 3)).relu()),
        lambda n, x: n.head(stem(n, -x).mean((2, 3))),
        lambda n, x: n.head(stem(n, F.pad(x, (1, 0, 1, 0))).mean((2, 3))),
        lambda n, x: n.head(stem(n, x).mean((2, 3)).view(-1, 8)),
    ],
)
def test_a_near_miss_is_left_to_vmap(body):
    assert not taken(Other(body))


def silu_in_place_used_again(n, x):
    t = n.f_stem(n.c_stem(x))
    y = F.silu(t, inplace=True)
    return n.head(F.silu(n.f_a(n.c_a(y)) + t).mean((2, 3)))


def residual_changed_in_place(n, x):
    h = stem(n, x)
    t = n.f_a(n.c_a(h))
    h += t
    return n.head(F.silu(n.f_b(n.c_b(F.silu(h))) + h).mean((2, 3)))


def no_silu_after_the_sum(n, x):
    h = stem(n, x)
    return n.head((n.f_a(n.c_a(h)) + h).mean((2, 3)))


def sum_of_activations(n, x):
    h = stem(n, x)
    return n.head(F.silu(F.silu(n.f_a(n.c_a(h))) + h).mean((2, 3)))


def pooled_is_not_the_last(n, x):
    h = stem(n, x)
    F.silu(n.f_a(n.c_a(h)))
    return n.head(h.mean((2, 3)))


@pytest.mark.parametrize(
    ("body", "names"),
    [
        (silu_in_place_used_again, "a"),
        (residual_changed_in_place, "ab"),
        (no_silu_after_the_sum, "a"),
        (sum_of_activations, "a"),
        (pooled_is_not_the_last, "a"),
    ],
)
def test_near_misses_of_blocks_are_left_to_vmap(body, names):
    parts = {name: part for name, part in MORE.items() if name[-1] in names}
    assert not taken(Other(body, **parts))


@pytest.mark.parametrize(
    "change",
    [
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 3, padding=1, bias=False)),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 5, padding=2)),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, (3, 1), padding=(1, 0))),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 3, padding="same")),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 3, padding=1, padding_mode="reflect")),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 3, padding=1, groups=4)),
        lambda n: setattr(n, "c_a", nn.Conv2d(16, 16, 3, padding=2, dilation=2)),
        lambda n: setattr(n, "f_a", FRN(16, eps=1e-5)),
        lambda n: setattr(n, "f_a", nn.GroupNorm(4, 16)),
        lambda n: setattr(n, "act", nn.ReLU()),
        lambda n: setattr(n, "pool", nn.AdaptiveMaxPool2d(1)),
        lambda n: setattr(n.f_a, "tau", n.f_b.tau),
        lambda n: n.f_a.register_full_backward_hook(lambda *_: None),
        lambda n: n.half(),
    ],
)
def test_other_parts_are_left_to_vmap(change):
    assert not taken(Mine(change))


def test_shapes_without_a_plan_are_left_to_vmap():
    assert not taken(Other(lambda n, x: n.head(stem(n, x).mean((2, 3))), **layers(stem=(3, 8))))
    assert not taken(Mine(), size=400)
