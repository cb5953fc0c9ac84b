"""Members that are adapters, or a last layer, on one network that all share."""

import copy
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.long import long_but
from tests.methods.test_conformance import Conv1D
from tests.tolerance import close, trained
from torch import Tensor, nn

import stochens
from stochens import Dropout, Gaussian, InputError, LastLayer, LoRA, NPDropout
from stochens.members import shared_by_all, trainable
from stochens.methods import lora_layers, stochastic, stochastic_layers
from stochens.program.choice import Workload, distance_to_members
from stochens.program.program import build

N, C = 60, 3
NO_STEP = 1e-30  # a rate that moves nothing: members are where they began
# At most 27 terms (a convolution), and at most eight layers: attention has its projection, scores,
# softmax, sum and projection; then an adapter, a head and softmax. Sums of both signs cancel.
SAME = close(torch.float64, terms=27, depth=8, condition=1e3)
pytestmark = pytest.mark.filterwarnings("ignore::stochens.training.advice.TrainingAdvice")


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def mlp(width: int = 16) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, C)
    )


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 2, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()


def fit(net: Any, method: Any, **options: Any) -> stochens.Posterior:
    usual = {"members": 3, "epochs": 3, "batch_size": 20, "lr": 0.02, "seed": 1}
    return stochens.fit(net, options.pop("data", data()), method=method, **(usual | options))


class Attention(nn.Module):
    """Patches, a token, attention of four linear layers, as in Hugging Face's ViT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.q_proj, self.k_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.v_proj, self.o_proj = nn.Linear(width, width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (
            layer(h).unflatten(-1, (4, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.o_proj(attended.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


class ViT(nn.Module):
    def __init__(self, width: int = 96, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))  # which nothing can reset
        self.blocks = nn.ModuleList(Attention(width) for _ in range(depth))
        self.head = nn.Linear(width, C)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(h.shape[0], -1, -1), h], dim=1)
        for block in self.blocks:
            h = block(h)
        return self.head(h[:, 0])


def size_of(tensors: Any) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)


# -- what it computes -----------------------------------------------------------------------------


@pytest.mark.parametrize("transposed", [False, True])
def test_a_layer_is_its_equation(transposed: bool) -> None:
    layer = (Conv1D(5, 4) if transposed else nn.Linear(4, 5)).double()
    net = stochastic(nn.Sequential(layer, nn.Linear(5, 2).double()), LoRA(3, alpha=6.0))
    ((path, adapted),) = lora_layers(net)
    a, b = (nn.init.normal_(adapted.get_parameter(f"lora_{part}.weight")) for part in "AB")
    x = torch.randn(7, 6, 4, dtype=torch.float64)
    expected = layer(x) + 6.0 / 3 * x @ a.T @ b.T
    assert path == "0"
    torch.testing.assert_close(adapted(x), expected, **SAME)


CONVOLUTIONS = [
    lambda: nn.Conv1d(3, 5, 3, padding=1),
    lambda: nn.Conv2d(3, 5, (3, 2), stride=2, padding=(2, 1), dilation=(2, 1), bias=False),
    lambda: nn.Conv2d(3, 5, 3, padding="same"),
    lambda: nn.Conv3d(3, 5, 2),
]


@pytest.mark.parametrize("make", CONVOLUTIONS)
def test_a_convolution_is_that_of_the_sum(make: Any) -> None:
    plain = make().double()
    net = stochastic(nn.ModuleList([plain, nn.Linear(8, 2)]), LoRA(2, alpha=3.0))
    ((path, adapted),) = lora_layers(net)
    assert path == "0"
    a, b = (nn.init.normal_(adapted.get_parameter(f"lora_{part}.weight")) for part in "AB")
    merged = copy.deepcopy(plain)
    merged.weight.data += 1.5 * torch.einsum("or...,ri...->oi...", b, a)
    x = torch.randn(2, 3, *[7] * (plain.weight.dim() - 2)).double()
    torch.testing.assert_close(adapted(x), merged(x), **SAME)
    weight = adapted.merged(plain.weight, a, b)
    torch.testing.assert_close(weight, merged.weight, **SAME)


def convolutions() -> nn.Sequential:
    """As in MobileNetV2: single positions, then each channel alone."""
    return nn.Sequential(
        *(nn.Conv2d(2, 6, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, groups=6), nn.Flatten()),
        nn.Linear(6 * 4, C),
    )


@pytest.mark.usefixtures("float64")
def test_members_with_adapters_of_convolutions(tmp_path: Path) -> None:
    """They begin at the network, part, are kept and merged; depthwise layers are left alone."""
    net, x = convolutions(), torch.randn(20, 2, 4, 4)
    given = (x, torch.arange(20) % C)
    assert adapted_by(net, LoRA()) == ["0"]
    begun = fit(net, LoRA(2), lr=NO_STEP, epochs=1, data=given)
    expected = net(x).softmax(-1).expand(3, -1, -1)
    torch.testing.assert_close(begun.predict(x).probs, expected, **SAME)
    posterior = fit(net, [LoRA(2), Gaussian(0.01)], data=given)
    posterior.save(tmp_path / "kept")
    again = stochens.load(tmp_path / "kept", net)
    assert torch.equal(again.predict(x, seed=1).probs, posterior.predict(x, seed=1).probs)
    moved = fit(net, LoRA(2), data=given)
    probs = moved.predict(x).probs
    assert (probs[0] - probs[1]).abs().max() > 1e-3
    net.load_state_dict(moved.member(1))
    torch.testing.assert_close(net(x).softmax(-1), probs[1], **SAME)


def test_their_program_is_vmap() -> None:
    """Frozen convolutions with members in the batch, adapters stacked."""
    net = stochastic(convolutions().double(), LoRA(2))
    few = torch.randn(4, 2, 4, 4).double()
    for own_rows in (True, False):
        task = Workload(batch=8, examples=1e9, own_rows=own_rows)
        assert distance_to_members(build(net, few), net, few, task) < SAME["rtol"]


def test_attention_is_that_of_the_sums() -> None:
    plain = nn.MultiheadAttention(8, 2, batch_first=True).double()
    nn.init.normal_(plain.in_proj_bias)
    net = stochastic(nn.ModuleList([plain, nn.Linear(8, 2)]), LoRA(2, alpha=3.0))
    merged = copy.deepcopy(plain)
    ((_, adapted),) = lora_layers(net)
    for prefix, weight in (("", merged.in_proj_weight), ("out_proj.", merged.out_proj.weight)):
        a, b = (
            nn.init.normal_(adapted.get_parameter(f"{prefix}lora_{part}.weight")) for part in "AB"
        )
        weight.data += 1.5 * b @ a
    x, hidden = torch.randn(3, 5, 8).double(), torch.rand(3, 5) > 0.7
    ours = adapted(x, x, x, key_padding_mask=hidden)
    theirs = merged(x, x, x, key_padding_mask=hidden)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, **SAME)
    assert adapted.batch_first
    assert adapted.num_heads == 2


@pytest.mark.usefixtures("float64")
def test_members_begin_at_the_network_with_adapters_of_their_own() -> None:
    net = mlp()
    x, _ = data()
    posterior = fit(net, LoRA(4), lr=NO_STEP, epochs=1)
    expected = net(x).softmax(1).detach()
    for probs in posterior.predict(x).probs:
        torch.testing.assert_close(probs, expected, **SAME)
    a = posterior.params["0.lora_A.weight"]  # [M, rank, in]
    assert not torch.equal(a[0], a[1])
    assert a.abs().max() <= 2**-0.5
    assert a.std() > 0.2
    assert posterior.params["2.lora_B.weight"].abs().max() <= 3 * NO_STEP  # as many steps
    moved = fit(net, LoRA(4), epochs=20).predict(x).probs
    assert (moved[0] - moved[1]).abs().max() > 0.01


@pytest.mark.usefixtures("float64")
def test_members_depend_on_their_number_and_the_seed_alone() -> None:
    net = mlp()
    both, second = fit(net, LoRA(4)), fit(net, LoRA(4), members=[1])
    for name, p in second.params.items():
        within = trained(torch.float64, steps=3 * N // 20, rows=20)
        torch.testing.assert_close(p[0], both.params[name][1], **within)


def test_the_users_network_stays_as_it_is() -> None:
    net = mlp()
    before = copy.deepcopy(net.state_dict())
    fit(net, LoRA(2))
    fit(net, LastLayer())
    assert all(torch.equal(before[name], t) for name, t in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())


# -- which layers ---------------------------------------------------------------------------------


def adapted_by(net: nn.Module, method: LoRA) -> list[str]:
    return [path for path, _ in lora_layers(stochastic(net, method))]


def test_the_usual_targets() -> None:
    vit = ViT(width=8, depth=2)
    ends = ["blocks.0.q_proj", "blocks.0.v_proj", "blocks.1.q_proj", "blocks.1.v_proj"]
    assert adapted_by(vit, LoRA()) == ends
    assert adapted_by(vit, LoRA(layers="blocks.1.q_proj")) == ["blocks.1.q_proj"]
    assert adapted_by(vit, LoRA(layers=["o_proj"])) == ["blocks.0.o_proj", "blocks.1.o_proj"]
    assert adapted_by(vit, LoRA(skip="blocks.0.*")) == ends[2:]
    assert adapted_by(vit, LoRA(layers="q_proj", skip="blocks.1.*")) == ends[:1]
    assert adapted_by(mlp(), LoRA()) == ["0", "2"]  # all but the output
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    assert adapted_by(nn.Sequential(block, nn.Linear(8, 2)), LoRA()) == ["0.self_attn"]
    names = [n for n, p in stochastic(vit, LoRA(head=False)).named_parameters() if p.requires_grad]
    assert all(".lora_" in name for name in names)


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def test_a_linear_layer_of_ones_own_is_not_taken_for_torchs() -> None:
    """W x + b is not what it computes, so that B A x would not be a change of W."""
    net = nn.Sequential(nn.Linear(2, 4), Doubled(4, 4), nn.Linear(4, 2))
    assert adapted_by(net, LoRA()) == ["0"]


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (lambda: LoRA(0), "rank must be a whole number from 1 on, got 0"),
        (lambda: LoRA(2.0), "rank must be a whole number"),
        (lambda: LoRA(alpha=0), "alpha must be a positive number, got 0"),
        (lambda: LoRA(dropout=1.0), "drop rate of adapters' inputs must be in"),
        (lambda: LoRA(layers="qury"), "pattern 'qury' matches no linear layer"),
        (lambda: LoRA(layers="1"), "what it matches is Tanh, which lora cannot adapt"),
        (lambda: [LoRA(2), LoRA(3)], "has an adapter of rank 2 and scale 4 already"),
        (lambda: LastLayer(layers="haed"), "pattern 'haed' matches no layer"),
        (lambda: LastLayer(layers="1"), "has no parameter to train"),
        (lambda: Dropout(layers="haed"), "pattern 'haed' matches no layer"),
        (lambda: [LastLayer(), Dropout()], "unless it is named in rates or layers"),
    ],
)
def test_slips_are_refused(method: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        stochastic(mlp(), method())


def test_a_network_without_a_layer_for_adapters() -> None:
    depthwise = nn.Conv2d(2, 2, 1, groups=2)
    with pytest.raises(InputError, match="LastLayer\\(\\) trains that one alone"):
        stochastic(nn.Sequential(depthwise, nn.Flatten(), nn.Linear(8, 2)), LoRA())
    with pytest.raises(InputError, match="no dropout of inputs for convolutions, which '0' is"):
        stochastic(convolutions(), LoRA(dropout=0.1))


# -- memory ---------------------------------------------------------------------------------------


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def assert_small(net: nn.Module, x: Tensor, folder: Path) -> None:
    """Ten members of rank 8 need less than 1.3 times the memory of one network."""
    given = (x, torch.randint(C, (len(x),)))
    posterior = fit(net, LoRA(rank=8), members=10, epochs=1, data=given)
    one = size_of([*net.parameters(), *net.buffers()])
    adapters = sum(p.numel() * p.element_size() for n, p in trainable(posterior.net).items())
    assert size_of(posterior.params.values()) == 10 * adapters  # base + members x adapters
    shared = size_of(shared_by_all(posterior.net).values())
    assert shared + size_of(posterior.params.values()) < 1.3 * one
    posterior.save(folder / "saved")
    assert folder_bytes(folder / "saved") < 1.3 * one
    again = stochens.load(folder / "saved", net)
    assert torch.equal(again.predict(x).probs, posterior.predict(x).probs)


def test_memory_of_ten_members(tmp_path: Path) -> None:
    assert_small(ViT(width=192, depth=6), torch.randn(8, 3, 8, 8), tmp_path)


def no_torchvision_registrations() -> None:
    name = "torchvision._meta_registrations"  # of a CUDA build, which fails without CUDA
    sys.modules.setdefault(name, types.ModuleType(name))


class Logits(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x).logits
        return logits


@pytest.mark.long
def test_memory_of_ten_members_of_a_vit_of_transformers(tmp_path: Path) -> None:
    no_torchvision_registrations()
    hub = pytest.importorskip("transformers", reason="a test dependency")
    config = hub.ViTConfig(
        hidden_size=192,
        num_hidden_layers=6,
        num_attention_heads=4,
        intermediate_size=768,
        image_size=16,
        patch_size=8,
        num_labels=C,
    )
    net = Logits(hub.ViTForImageClassification(config).eval())
    assert_small(net, torch.randn(8, 3, 16, 16), tmp_path)


# -- peft -----------------------------------------------------------------------------------------


@pytest.fixture
def peft() -> Any:
    no_torchvision_registrations()
    return pytest.importorskip("peft", reason="a test dependency")


def trained_by_peft(peft: Any, net: nn.Module, **options: Any) -> nn.Module:
    model: nn.Module = peft.get_peft_model(copy.deepcopy(net), peft.LoraConfig(**options))
    for p in model.parameters():
        if p.requires_grad:
            p.data += 0.3 * torch.randn_like(p)
    return model.eval()


class WithConv1D(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.c_attn, self.head = kind(6, 4), nn.Linear(6, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.c_attn(x).tanh())


class WithAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.attend(x, x, x, need_weights=False)[0].mean(1))


class WithConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(2, 5, 3, stride=2, padding=1), nn.Linear(20, C)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).tanh().flatten(1))


@pytest.mark.long  # peft takes seconds to import
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["linear", "conv1d", "attention", "convolution"])
@pytest.mark.parametrize("names", ["saved", "in memory"])
def test_adapters_of_peft(peft: Any, kind: str, names: str) -> None:
    if kind == "conv1d":
        hub = pytest.importorskip("transformers.pytorch_utils", reason="a test dependency")
        net, targets, x = WithConv1D(hub.Conv1D), ["c_attn"], torch.randn(9, 4)
    elif kind == "attention":
        net, targets, x = WithAttention(), ["attend"], torch.randn(9, 5, 8)  # type: ignore[assignment]
    elif kind == "convolution":
        net, targets, x = WithConvolution(), ["conv"], torch.randn(9, 2, 4, 4)  # type: ignore[assignment]
    else:
        net, targets, x = mlp(), ["0", "2"], torch.randn(9, 2)  # type: ignore[assignment]
    head = "4" if kind == "linear" else "head"
    options = {"r": 4, "lora_alpha": 12, "target_modules": targets, "modules_to_save": [head]}
    models = [trained_by_peft(peft, net, **options) for _ in range(2)]
    if names == "saved":
        states = [peft.get_peft_model_state_dict(model) for model in models]
    else:
        states = [
            {n: p for n, p in model.named_parameters() if p.requires_grad} for model in models
        ]
    method = LoRA(4, alpha=12, layers=tuple(targets))
    if kind == "attention":
        with pytest.raises(InputError, match="counts twice"):
            method.params_of(net, states, output=head)
        states = [
            {
                key.replace(".base_layer", ""): 2 * t if "out_proj.lora_B" in key else t
                for key, t in state.items()
            }
            for state in states
        ]
    params = method.params_of(net, states, output=head)
    posterior = fit(
        net, method, start=params, members=2, lr=NO_STEP, epochs=1, data=(x, torch.arange(9) % C)
    )
    expected = torch.stack([model(x).softmax(-1) for model in models]).detach()
    torch.testing.assert_close(posterior.predict(x).probs, expected, **SAME)


@pytest.mark.long
def test_defaults_are_those_of_peft(peft: Any) -> None:
    config, ours = peft.LoraConfig(target_modules=["0"]), LoRA()
    assert (ours.rank, ours.alpha, ours.dropout) == (
        config.r,
        config.lora_alpha,
        config.lora_dropout,
    )
    model = peft.get_peft_model(nn.Sequential(nn.Linear(400, 300)), config)
    a = model.base_model.model[0].lora_A.default.weight.detach()
    mine = stochastic(nn.Sequential(nn.Linear(400, 300), nn.Linear(300, 2)), ours)
    (_, layer), *_ = lora_layers(mine)
    assert layer.scale == model.base_model.model[0].scaling["default"]
    drawn = layer.get_parameter("lora_A.weight").detach()
    assert drawn.shape == a.shape
    # 3200 numbers from U(-b, b): their greatest is near b; 5 standard errors of their spread
    assert abs(float(drawn.abs().max() / a.abs().max()) - 1) < 0.01
    assert abs(float(drawn.std() / a.std()) - 1) < 5 * (1 / 3200) ** 0.5
    usual = peft.utils.constants.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    from stochens.methods.lora import TARGETS

    for kind in ("bert", "gpt2", "llama", "opt", "t5", "bloom", "deberta-v2", "mpt", "codegen"):
        assert set(usual[kind]) <= set(TARGETS), kind


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"base_model.model.9.lora_A.weight": torch.zeros(2, 2)}, "has no place here"),
        ({"base_model.model.0.lora_A.weight": torch.zeros(3, 2)}, r"rank= must be peft's r"),
        ({"base_model.model.0.lora_A.weight": torch.zeros(2, 2)}, "has nothing for 0.lora_B"),
    ],
)
def test_adapters_that_do_not_fit(state: dict[str, Tensor], message: str) -> None:
    with pytest.raises(InputError, match=message):
        LoRA(2).params_of(mlp(), state)


# -- everything else follows ----------------------------------------------------------------------

FOLLOWS: Any = [
    LoRA(2),
    LoRA(2, dropout=0.2),
    [LoRA(2), Dropout(0.1)],
    [LoRA(2), Gaussian(0.05)],
    [LoRA(2, dropout=0.1), Gaussian(0.05, learn=True)],
    LastLayer(),
    [LastLayer(), Dropout(0.2, layers="4")],
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("method", long_but([FOLLOWS[5]], FOLLOWS), ids=str)
def test_save_load_join_take_export(method: Any, tmp_path: Path) -> None:
    net, (x, _) = mlp(), data()
    posterior = fit(net, method, members=4)
    posterior.save(tmp_path / "saved")
    again = stochens.load(tmp_path / "saved", net)
    assert again.recipe == posterior.recipe
    assert torch.equal(again.predict(x, draws=2).probs, posterior.predict(x, draws=2).probs)
    assert again.kl() == posterior.kl()
    halves = stochens.join([posterior.take([0, 1]), posterior.take([2, 3])])
    wanted = posterior.predict(x, noise="shared").mean
    torch.testing.assert_close(halves.predict(x, noise="shared").mean, wanted, **SAME)
    noise = posterior.export(tmp_path / "model.pt2", seed=3)
    exported = torch.export.load(tmp_path / "model.pt2").module()
    probs, *_ = exported(x, noise)
    expected = posterior.predict(x, noise="shared", seed=3).mean
    torch.testing.assert_close(probs, expected, **SAME)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("net", [mlp, WithAttention, lambda: WithConv1D(Conv1D)])
def test_a_member_is_a_plain_network(net: Any) -> None:
    built = net()
    x = torch.randn(N, 2) if isinstance(built, nn.Sequential) else torch.randn(N, 4)
    x = torch.randn(N, 5, 8) if isinstance(built, WithAttention) else x
    posterior = fit(built, LoRA(2), epochs=10, data=(x, torch.arange(N) % C))
    plain = copy.deepcopy(built)
    for k, probs in enumerate(posterior.predict(x).probs):
        plain.load_state_dict(posterior.member(k))
        torch.testing.assert_close(plain(x).softmax(1).detach(), probs, **SAME)


def test_the_kl_is_of_the_adapters_and_the_output() -> None:
    posterior = fit(mlp(), LoRA(2), prior=3.0)
    squares = sum(p.double().square().sum() for p in posterior.params.values())
    assert posterior.kl().l2 == pytest.approx(float(1.5 * squares / len(posterior)))
    assert posterior.kl().stochasticity == 0
    noisy = fit(mlp(), LoRA(2, dropout=0.2))
    columns = 2 + 16  # inputs of the two adapters
    entropy = 0.2 * torch.tensor(0.2).log() + 0.8 * torch.tensor(0.8).log()
    assert noisy.kl().stochasticity == pytest.approx(float(columns * entropy), rel=1e-6)


def test_dropped_inputs_have_their_mean_and_variance() -> None:
    """A z x / (1 - p) has mean A x and variance p / (1 - p) sum_n A_n^2 x_n^2."""
    draws, p = 4000, 0.3
    net = stochastic(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 2)), LoRA(3, dropout=p)).double()
    (layer,) = stochastic_layers(net).values()
    x, a = torch.randn(5).double(), layer.get_parameter("weight").detach()
    y = layer(x.expand(draws, 5)).detach()
    variance = p / (1 - p) * (a * x).square().sum(1)
    assert ((y.mean(0) - a @ x).abs() < 5 * (variance / draws).sqrt()).all()
    assert (y.var(0) / variance - 1).abs().max() < 5 * (2 / draws) ** 0.5


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [LoRA(2), LastLayer()], ids=str)
def test_a_learned_noise_is_trained_too(method: Any, tmp_path: Path) -> None:
    x, _ = data()
    net = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))
    posterior = fit(net, method, likelihood="gaussian", data=(x, x[:, :1] + 0.1), epochs=5)
    posterior.save(tmp_path / "saved")
    again = stochens.load(tmp_path / "saved", net)
    assert again.params.keys() == posterior.params.keys()
    assert "log_variance" in again.params


def test_a_function_that_builds_the_network() -> None:
    posterior = fit(mlp, LoRA(2))
    assert set(shared_by_all(posterior.net)) >= {"0.weight", "2.weight"}
    vit = fit(ViT(width=8, depth=1), LoRA(2), data=(torch.randn(N, 3, 8, 8), torch.arange(N) % C))
    assert all("lora" in name or name.startswith("head") for name in vit.params)


# -- the last layer -------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore:members .* ended with the same")
def test_last_layers_are_members_of_their_own_on_one_network() -> None:
    net, (x, _) = mlp(), data()
    posterior = fit(net, LastLayer(), lr=NO_STEP, epochs=1)
    assert set(posterior.params) == {"4.weight", "4.bias"}
    features = nn.Sequential(*list(net)[:4])(x)
    for k, probs in enumerate(posterior.predict(x).probs):
        own = (posterior.params[name][k] for name in ("4.weight", "4.bias"))
        expected = nn.functional.linear(features, *own).softmax(1)
        torch.testing.assert_close(probs, expected.detach(), **SAME)
    w = posterior.params["4.weight"]
    assert not torch.equal(w[0], w[1])
    begun = fit(net, LastLayer(), start="module", lr=NO_STEP, epochs=1).params["4.weight"]
    assert torch.equal(begun, net.get_parameter("4.weight").detach().expand_as(begun))
    other = fit(net, LastLayer(layers=("2", "4")))
    assert set(other.params) == {"2.weight", "2.bias", "4.weight", "4.bias"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("method", [LastLayer(), LoRA(2)], ids=str)
def test_a_sampler_takes_what_members_own(method: Any) -> None:
    net = mlp()
    draws = stochens.nuts(
        stochastic(net, method), data(), chains=2, samples=3, warmup=5, max_depth=3
    )
    assert set(draws.params) == set(fit(net, method).params)
    shared = shared_by_all(draws.net)
    torch.testing.assert_close(shared["0.weight"], net.get_parameter("0.weight").detach())


def test_statistics_of_a_frozen_backbone_are_no_reason_to_refuse() -> None:
    net = nn.Sequential(nn.Linear(2, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, C))
    x, _ = data()
    net(5 * x + 1)
    frozen = stochens.freeze_batchnorm(net.eval())
    assert set(fit(frozen, LastLayer()).params) == {"3.weight", "3.bias"}
    with pytest.raises(InputError, match="statistics of trained weights"):
        fit(frozen, LastLayer(layers=("0", "3")))


# -- some layers alone ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "noisy"),
    [
        (Dropout(0.1, layers="4"), ["4"]),
        (Dropout(0.1, layers=["0", "4"], rates={"4": 0.3}), ["0", "4"]),
        (NPDropout(layers="[02]"), ["0", "2"]),
        (NPDropout(layers="4"), ["4"]),
        (Gaussian(0.1, layers="2"), ["2"]),
        (Gaussian(0.1, layers="*", skip="2"), ["0", "4"]),
    ],
    ids=str,
)
def test_only_layers_that_are_named(method: Any, noisy: list[str], tmp_path: Path) -> None:
    net = mlp()
    assert list(stochastic_layers(stochastic(net, method))) == noisy
    posterior = fit(net, method)  # no warning of what was not named
    posterior.save(tmp_path / "saved")
    assert stochens.load(tmp_path / "saved", net).recipe == posterior.recipe


def test_a_frozen_layer_has_noise_where_it_is_named() -> None:
    net = mlp()
    net[0].requires_grad_(False)
    assert list(stochastic_layers(stochastic(net, Dropout(0.1)))) == ["2"]
    assert list(stochastic_layers(stochastic(net, Dropout(0.1, layers="0")))) == ["0"]
