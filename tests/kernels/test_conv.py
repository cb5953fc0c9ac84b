"""The convolution kernels against their plain torch twin, forwards and every gradient.

On a GPU the kernels themselves; elsewhere the very same source on an emulated GPU, which finds
wrong results but no races: see emulated.py.
"""

import pytest
import torch
from tests.kernels import conv_reference, emulated, one_layer
from tests.kernels.conv_reference import fragments, image_fragments

from stochens.kernels import conv, mlp
from stochens.kernels.conv import Noise, Norm
from stochens.kernels.conv_plan import TUNED, LaunchPlan, Layer, plan_for, share

GPU = conv.available()
DEVICE = "cuda" if GPU else "cpu"
NAMES = ("x", "weight", "bias", "gamma", "beta", "tau", "residual")
# bf16 has 8 bits: one rounding is 2^-9 = 0.002 at most, and a gradient passes three of them
ROUNDING = 6e-3


@pytest.fixture(autouse=True)
def kernels(monkeypatch):
    torch.manual_seed(0)
    if GPU:
        return
    if not mlp.available():
        pytest.skip("neither a Hopper GPU nor a C++ compiler here")
    monkeypatch.setattr(conv, "kernel", emulated.kernel)


def call(inputs, outputs, height, width, stride=1, kernel=3, *, members=2, batch=3, tau=None):
    """Random arguments of `conv_frn_silu` that bf16 holds exactly, on [M, B, C, H, W]."""

    def draw(*shape):
        return torch.randn(*shape, device=DEVICE).bfloat16().double()

    norm = [draw(members, outputs) for _ in range(3)]
    if tau is not None:
        norm[2] = torch.full_like(norm[2], tau)
    layer = Layer(inputs, outputs, height, width, stride, kernel)
    return {
        "x": draw(members, batch, inputs, height, width),
        "weight": draw(members, outputs, inputs, kernel, kernel),
        "bias": draw(members, outputs),
        **dict(zip(("gamma", "beta", "tau"), norm, strict=True)),
        "residual": draw(members, batch, outputs, *layer.out),
    }


def noise(rate, members=2, seed=123456789012345, layer=3):
    ids = torch.arange(5, 5 + members, dtype=torch.int32, device=DEVICE)
    return Noise(rate, torch.tensor([seed], device=DEVICE), ids, layer)


def expected(tensors, dy, **options):
    own = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    y = conv_reference.conv_frn_silu(**own, **options)
    gradients = torch.autograd.grad(y, list(own.values()), dy)
    return {"y": y.detach(), **dict(zip(own, gradients, strict=True))}


def computed(tensors, dy, *, gradient_in_x=True, **options):
    own = {name: t.float() for name, t in tensors.items()}
    own["x"] = conv.quads(own["x"]) if own["x"].shape[2] < 16 else conv.blocked(own["x"])
    if "residual" in own:
        own["residual"] = conv.blocked(own["residual"])
    for name, t in own.items():
        t.requires_grad_(name != "x" or gradient_in_x)
    y = one_layer.conv_frn_silu(**own, **options)
    wanted = {name: t for name, t in own.items() if t.requires_grad}
    gradients = torch.autograd.grad(y, list(wanted.values()), conv.blocked(dy))
    found = {"y": y.detach(), **dict(zip(wanted, gradients, strict=True))}
    return {n: conv.unblocked(t) if n in ("y", "x", "residual") else t for n, t in found.items()}


def assert_equal(found, known, rounding=ROUNDING):
    for name, t in found.items():
        error, size = float((t.double() - known[name]).norm()), float(known[name].norm())
        assert error <= rounding * size, f"{name}: {error:.1e} of {size:.1e}"  # NaN fails too


SHAPES = [
    (16, 16, 8, 8),
    (16, 16, 32, 32),
    (32, 32, 16, 16),
    (64, 64, 8, 8),
    (16, 32, 16, 16, 2),
    (16, 32, 16, 16, 2, 1),
    (32, 32, 7, 9),  # odd, and wider than a pair of images
    (32, 16, 11, 19, 2),
    (16, 32, 9, 5, 2),
    (48, 16, 5, 20, 1, 1),
    (16, 32, 9, 13, 2, 1),
    *(tuple(layer) for layer in dict.fromkeys(layer for _, layer in TUNED)),
]


ALL, NONE = (0.3, True, True), (0.0, False, False)  # rate, silu, residual


@pytest.mark.parametrize(
    ("shape", "rate", "silu", "residual"),
    [
        *((shape, *ALL) for shape in SHAPES[::5]),
        *((shape, *NONE) for shape in SHAPES[5:7]),
        *(
            pytest.param(shape, *ALL, marks=pytest.mark.long)
            for k, shape in enumerate(SHAPES)
            if k % 5
        ),
    ],
)
def test_the_kernels_compute_what_the_twin_does(shape, rate, silu, residual):
    """Without its threshold, which makes a jump of the last bit of z: that has its own test."""
    tensors = call(*shape, tau=-1e3)
    dy = torch.randn_like(tensors["residual"]).bfloat16().double()
    if not residual:
        del tensors["residual"]
    stride = shape[4] if len(shape) > 4 else 1
    options = {"stride": stride, "silu": silu, "noise": noise(rate)}
    assert_equal(computed(tensors, dy, **options), expected(tensors, dy, **options))


def test_a_plan_is_only_a_way_to_share_the_work_out(monkeypatch):
    """Every way computes the same, to the last bit but for the order of sums."""
    layer = Layer(32, 32, 10, 8)
    tensors = call(*layer[:4], batch=5, tau=-1e3)
    dy = torch.randn_like(tensors["residual"]).bfloat16().double()
    known = expected(tensors, dy, noise=noise(0.3))
    for plan in (LaunchPlan(2, 1, 1, 1), LaunchPlan(8, 2, 1, 2)):
        monkeypatch.setattr(conv, "plan_for", lambda *_, plan=plan: plan)
        assert_equal(computed(tensors, dy, noise=noise(0.3)), known)


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_the_threshold_passes_the_gradient_on_to_tau(rate):
    """beta = tau = 0, as FRN starts: whether z > 0 survives rounding, and dropped z are ties."""
    tensors = call(16, 16, 10, 12, tau=0.0)
    tensors["beta"].zero_()
    dy = torch.randn_like(tensors["residual"]).bfloat16().double()
    known = expected(tensors, dy, noise=noise(rate))
    assert float(known["tau"].norm()) > 1
    assert_equal(computed(tensors, dy, noise=noise(rate)), known)


def test_thresholds_elsewhere_differ_in_the_elements_that_rounding_moves():
    tensors = call(16, 16, 16, 16, batch=4)
    dy = torch.randn_like(tensors["residual"]).bfloat16().double()
    known = expected(tensors, dy, noise=noise(0.2))
    # a share of 2^-9 of the elements is so near to tau: the root of that, and some
    assert_equal(computed(tensors, dy, noise=noise(0.2)), known, rounding=0.1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_member_that_is_no_number_stays_none(value):
    """The threshold of FRN must not make one of it: training looks for losses that are none."""
    tensors = call(16, 16, 8, 8)
    tensors["weight"][1, 3] = value
    dy = torch.ones_like(tensors["residual"])
    found, known = (way(tensors, dy, noise=noise(0.3)) for way in (computed, expected))
    assert known["y"][1, :, 3].isnan().all()
    assert torch.equal(found["y"].isnan(), known["y"].isnan())
    assert not found["weight"][0].isnan().any()
    assert found["weight"][1, 3].isnan().all()


@pytest.mark.parametrize("shape", [(3, 16, 32, 32), (3, 32, 6, 33), (1, 16, 9, 7)])
def test_a_first_layer_takes_images_of_few_channels(shape):
    tensors = call(*shape, tau=-1e3)
    if shape[0] == 3:  # all members have the same images
        tensors["x"] = tensors["x"][:1]
    dy = torch.randn_like(tensors["residual"]).bfloat16().double()
    options = {"noise": noise(0.25)}
    found = computed(tensors, dy, gradient_in_x=False, **options)
    assert_equal(found, expected(tensors, dy, **options))


@pytest.mark.parametrize("shape", [(16, 16, 8, 8), (32, 16, 11, 19, 2), (16, 32, 9, 5, 2, 1)])
def test_gradients_that_meet_are_added_inside_the_kernel(shape):
    """Two layers have the same input: the second adds to the gradient of the first, in place."""
    layer, tensors = Layer(*shape), {n: t.float() for n, t in call(*shape).items()}
    norm = Norm(*(tensors[name] for name in ("gamma", "beta", "tau")))
    forwards, backwards = conv.pack(layer, tensors["weight"], dx=True)
    given = (layer, conv.blocked(tensors["x"]), forwards, tensors["bias"], norm, None, noise(0.3))
    y, kept = conv.forward(*given, silu=True, keep=True)
    back = (layer, torch.randn_like(y), kept, None, backwards, norm, noise(0.3))
    sums = conv.Sums([layer], y).norms[0]
    _, _, alone = conv.backward(*back, silu=True, sums=sums)
    first = torch.randn_like(alone)
    _, _, both = conv.backward(*back, silu=True, sums=sums, dx=first.clone())
    assert_equal({"x": both}, {"x": first.double() + alone.double()})


def test_noise_depends_on_the_member_and_the_seed_alone():
    tensors = call(16, 16, 8, 8, members=3)
    tensors = {name: t[:1].expand_as(t) for name, t in tensors.items()}  # the same member thrice
    dy = torch.zeros_like(tensors["residual"])
    y = computed(tensors, dy, noise=noise(0.5, members=3))["y"]
    assert not torch.equal(y[0], y[1])
    last = {name: t[2:] for name, t in tensors.items()}
    alone = noise(0.5, members=3)._replace(members=noise(0.5, members=3).members[2:])
    assert torch.equal(computed(last, dy[2:], noise=alone)["y"][0], y[2])
    other = computed(tensors, dy, noise=noise(0.5, members=3, seed=7))["y"]
    assert not torch.equal(y, other)
    assert not torch.equal(y, computed(tensors, dy, noise=noise(0.5, members=3, layer=4))["y"])


def test_a_share_of_the_rate_is_dropped():
    kept = conv_reference.keep_mask(torch.Size((2, 8, 16, 32, 32)), noise(0.3))
    n = kept.numel()
    assert abs(float(kept.float().mean()) - 0.7) < 5 * (0.21 / n) ** 0.5
    neighbours = (kept[..., 1:] & kept[..., :-1]).float().mean()
    assert abs(float(neighbours) - 0.49) < 5 * (0.25 / n) ** 0.5


@pytest.mark.parametrize(
    "layer",
    [Layer(16, 24, 8, 8), Layer(8, 16, 8, 8), Layer(16, 16, 8, 8, 3), Layer(16, 16, 8, 8, 1, 5)],
)
def test_other_layers_are_left_to_torch(layer):
    assert plan_for(layer) is None


def test_layouts_come_back():
    x = torch.randn(2, 3, 32, 5, 7).bfloat16()
    assert torch.equal(conv.unblocked(conv.blocked(x)), x)
    assert conv.blocked(x).shape == (2, 3, 2, 5, 7, 16)
    assert torch.equal(conv.quads(x[:, :, :3])[..., :3].movedim(-1, -3), x[:, :, :3])


@pytest.mark.parametrize("shape", [(16, 32, 3), (48, 16, 1), (3, 16, 3), (4, 32, 3)])
def test_weights_are_packed_as_torch_would(shape):
    inputs, outputs, kernel = shape
    weight = torch.randn(2, outputs, inputs, kernel, kernel, device=DEVICE)
    image = inputs < 16
    layer = Layer(4 if image else inputs, outputs, 8, 8, 1, kernel)
    forwards, backwards = conv.pack(layer, weight, dx=not image)
    known = image_fragments(weight) if image else fragments(weight)
    assert torch.equal(forwards.flatten(), known.flatten())
    if backwards is not None:
        assert torch.equal(backwards.flatten(), fragments(weight.transpose(1, 2)).flatten())


@pytest.mark.parametrize(
    ("members", "sets", "slots", "blocks"),
    [(50, 64, 132, 5), (1, 64, 132, 64), (132, 64, 132, 1)],
)
def test_blocks_fill_the_device_in_few_rounds(members, sets, slots, blocks):
    assert share(members, sets, slots) == blocks


def test_no_gradient_in_images():
    tensors = call(3, 16, 8, 8)
    with pytest.raises(ValueError, match="no gradient in x"):
        computed(tensors, torch.zeros_like(tensors["residual"]), noise=noise(0.1))
