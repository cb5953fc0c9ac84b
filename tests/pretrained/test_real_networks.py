"""Networks as torchvision and timm build them, trained (as far as a norm can tell) and tiny."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.tolerance import rounding
from tests.torchvision_on_cpu import let_torchvision_import
from torch import Tensor, nn

import stochens
from stochens.conversions import FrozenBatchNorm
from stochens.members import trainable
from stochens.methods.partial import PartialNoiseWarning
from stochens.private_names import BatchNorm
from stochens.program.choice import Workload, distance_to_members
from stochens.program.program import build
from stochens.randomness.seeds import seeded

CLASSES = 3
CONDITION = 1e3  # by which one layer's rounding may grow on its way through the others


@pytest.fixture(scope="module")
def torchvision() -> Any:
    let_torchvision_import()
    return pytest.importorskip(
        "torchvision.models", reason="needs torchvision: pip install 'stochens[pretrained]'"
    )


@pytest.fixture(scope="module")
def timm() -> Any:
    let_torchvision_import()
    return pytest.importorskip("timm", reason="needs timm: pip install 'stochens[pretrained]'")


# -- torchvision's ---------------------------------------------------------------------------------


def tv_resnet(models: Any) -> nn.Module:
    return models.resnet.ResNet(models.resnet.BasicBlock, [1, 1, 1, 1], num_classes=CLASSES)


def tv_mobilenet_v2(models: Any) -> nn.Module:
    blocks = [[1, 16, 1, 1], [6, 24, 1, 2]]  # expansion, channels, how many, stride
    return models.MobileNetV2(CLASSES, 0.25, inverted_residual_setting=blocks, dropout=0.0)


def tv_mobilenet_v3(models: Any) -> nn.Module:
    block = partial(models.mobilenetv3.InvertedResidualConfig, width_mult=1.0)
    blocks = [block(8, 3, 16, 8, True, "RE", 1, 1), block(8, 5, 24, 16, True, "HS", 2, 1)]
    return models.MobileNetV3(blocks, 32, num_classes=CLASSES, dropout=0.0)


def tv_efficientnet(models: Any) -> nn.Module:
    module = models.efficientnet
    blocks = [module.FusedMBConvConfig(1, 3, 1, 8, 8, 1), module.MBConvConfig(2, 3, 2, 8, 16, 2)]
    options = {"dropout": 0.0, "stochastic_depth_prob": 0.0, "last_channel": 32}
    return module.EfficientNet(blocks, num_classes=CLASSES, **options)


def tv_convnext(models: Any) -> nn.Module:
    block = models.convnext.CNBlockConfig
    return models.ConvNeXt([block(8, 16, 1), block(16, None, 1)], num_classes=CLASSES)


def tv_vit(models: Any) -> nn.Module:
    net = models.VisionTransformer(16, 8, 2, 2, 16, 32, num_classes=CLASSES)
    nn.init.normal_(net.heads.head.weight)  # torchvision begins with zeros
    return net


TORCHVISION = [tv_resnet, tv_mobilenet_v2, tv_mobilenet_v3, tv_efficientnet, tv_convnext, tv_vit]


# -- timm's ----------------------------------------------------------------------------------------


def timm_resnet(timm: Any) -> nn.Module:
    resnet, options = timm.models.resnet, {"channels": (8, 8, 16, 16), "stem_width": 8}
    return resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), num_classes=CLASSES, **options)


def timm_mobilenet(timm: Any) -> nn.Module:
    """MobileNetV3, and MobileNetV2's blocks; all norms have their activation inside."""
    blocks = timm.models._efficientnet_builder.decode_arch_def(
        [["ds_r1_k3_s1_e1_c8_se0.25_nre"], ["ir_r2_k3_s2_e3_c16"]]
    )
    options = {"stem_size": 8, "num_features": 32, "act_layer": nn.Hardswish}
    return timm.models.mobilenetv3.MobileNetV3(blocks, num_classes=CLASSES, **options)


def timm_efficientnet(timm: Any) -> nn.Module:
    return timm.create_model("test_efficientnet", num_classes=CLASSES)


def timm_efficientnet_lite0(timm: Any) -> nn.Module:
    """Narrow and short. `freeze_batchnorm` dropped the ReLU6 inside its norms once, and its outputs
    were 5e3 away."""
    make = timm.models.efficientnet._gen_efficientnet_lite  # the name takes no sizes
    sizes = {"channel_multiplier": 0.1, "depth_multiplier": 0.3}
    return make("efficientnet_lite0", num_classes=CLASSES, **sizes)


def timm_convnext(timm: Any) -> nn.Module:
    sizes = {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "patch_size": 1}
    return timm.models.convnext.ConvNeXt(num_classes=CLASSES, **sizes)


def timm_vit(timm: Any) -> nn.Module:
    sizes = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2}
    options = {"init_values": 0.1, "num_classes": CLASSES}
    return timm.models.vision_transformer.VisionTransformer(**sizes, **options)


TIMM = [
    timm_resnet,
    timm_mobilenet,
    timm_efficientnet,
    timm_efficientnet_lite0,
    timm_convnext,
    timm_vit,
]


# -- what each of them must do ---------------------------------------------------------------------


@pytest.fixture(scope="module", params=[*TORCHVISION, *TIMM], ids=lambda make: make.__name__)
def trained(request: pytest.FixtureRequest) -> nn.Module:
    """In float64 and evaluation mode, with statistics and affine maps other than a new norm's."""
    make: Callable[[Any], nn.Module] = request.param
    library = request.getfixturevalue("timm" if make in TIMM else "torchvision")
    with seeded(0):
        net = make(library).double()
        for module in net.modules():
            if isinstance(module, BatchNorm):
                module.weight.data.normal_(1.0, 0.2)
                module.bias.data.normal_(0.0, 0.2)
        for _ in range(3):
            net(2 * images() + 1)
    return net.eval()


def images() -> Tensor:
    return torch.randn(8, 3, 16, 16, dtype=torch.float64)


@pytest.fixture
def data() -> tuple[Tensor, Tensor]:
    with seeded(1):
        return images(), torch.arange(8) % CLASSES


def allowed(net: nn.Module) -> float:
    """The error model: sums of as many products as the widest weight has, one for each layer."""
    widest = max(p[0].numel() for p in net.parameters() if p.dim() > 1)
    depth = len(list(net.modules()))
    return rounding(torch.float64, terms=widest, depth=depth, condition=CONDITION)


def test_frozen_norms_compute_what_the_trained_network_does(trained: Any, data: Any) -> None:
    frozen = stochens.freeze_batchnorm(trained)
    norms = [m for m in trained.modules() if isinstance(m, BatchNorm)]
    assert sum(isinstance(m, FrozenBatchNorm) for m in frozen.modules()) == len(norms)
    for name, p in frozen.named_parameters():
        assert torch.equal(p, trained.get_parameter(name))
    with torch.no_grad():
        known = trained(data[0])
        for mode in (False, True):
            off = (frozen.train(mode)(data[0]) - known).norm() / known.norm()
            assert off <= allowed(trained)


@pytest.mark.parametrize("by", ["frn", "group"])
def test_norms_can_be_replaced(trained: Any, data: Any, by: Any) -> None:
    if not any(isinstance(m, BatchNorm) for m in trained.modules()):
        pytest.skip("this network has no batch norm")
    # Of so few channels at a single position each of 8 groups would be one number, which is a
    # constant: its gradient is rounding, and on some CPUs 0.
    replaced = stochens.replace_batchnorm(trained, by, groups=2)
    outputs = replaced(data[0])
    assert outputs.isfinite().all()
    outputs.square().sum().backward()
    for name, p in replaced.named_parameters():  # nothing is cut off from the outputs
        assert p.grad is not None, name
        assert name.endswith("tau") or p.grad.any(), name


def test_members_begin_at_the_trained_network(trained: Any, data: Any) -> None:
    """lr near 0: each member predicts what the network itself does."""
    frozen = stochens.freeze_batchnorm(trained)
    options: dict[str, Any] = {"members": 2, "epochs": 1, "batch_size": 4, "lr": 1e-14}
    posterior = stochens.fit(frozen, data, method="regular", start="module", **options)
    known = trained(data[0]).softmax(-1).detach()
    probs = posterior.predict(data[0]).probs
    moved = 2 * 1e-14 * sum(p.numel() for p in trained.parameters())  # by two steps of Adam
    torch.testing.assert_close(
        probs, known.expand_as(probs), rtol=0.0, atol=allowed(trained) + moved
    )


def test_fit_predict_save_load(trained: Any, data: Any, tmp_path: Any) -> None:
    frozen = stochens.freeze_batchnorm(trained)
    options: dict[str, Any] = {"members": 2, "epochs": 1, "batch_size": 4, "lr": 1e-3}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)  # gaussian reaches every parameter
        posterior = stochens.fit(frozen, data, method="gaussian", start="module", **options)
    predicted = posterior.predict(data[0])
    assert predicted.probs.shape == (2, 8, CLASSES)
    torch.testing.assert_close(predicted.mean.sum(-1), torch.ones(8, dtype=torch.float64))
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", frozen)
    for name, p in posterior.params.items():
        assert torch.equal(again.params[name], p)
        assert not torch.equal(p[0], p[1]), name  # each has learned by itself
    probs = again.predict(data[0]).probs
    torch.testing.assert_close(probs, predicted.probs, rtol=0.0, atol=allowed(trained))


def test_its_program_gives_what_vmap_gives(trained: Any, data: Any) -> None:
    net = stochens.stochastic(stochens.freeze_batchnorm(trained), "dropout").train()
    few = data[0][:4]
    program = build(net, few)
    assert program.names == list(trainable(net))
    for own_rows in (False, True):
        task = Workload(batch=4, examples=1.0, own_rows=own_rows)
        with seeded(2):
            off = distance_to_members(program, net, few, task)
        assert 0 < off <= allowed(trained)


# -- transformers' ---------------------------------------------------------------------------------


class Logits(nn.Module):
    """Of a model that returns more than its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x).logits


def test_gpt2_has_noise_in_every_layer_and_a_program() -> None:
    """Its linear layers are Conv1D, its embedding is tied, its cache begins with a tensor [0]."""
    reason = "needs transformers: pip install 'stochens[pretrained]'"
    transformers = pytest.importorskip("transformers", reason=reason)
    sizes = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 8, "vocab_size": 11}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    rates = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    with seeded(0):
        config = transformers.GPT2Config(**sizes, **ids, **rates)
        net = Logits(transformers.GPT2LMHeadModel(config)).double()
        x = torch.randint(1, 11, (3, 5))
    told = {row.path: row for row in stochens.describe(net, "dropconnect").rows}
    assert told["model.transformer.h.1.attn.c_attn"].kind == "Conv1D"
    assert told["model.transformer.h.1.attn.c_attn"].noise == "dropconnect 0.1 on weights"
    assert "weight is model.transformer.wte.weight" in told["model.lm_head"].notes
    for method in ("dropconnect", "gaussian"):
        assert not stochens.describe(net, method).unreached
    noisy = stochens.stochastic(net, "dropout").train()
    # Its code asks for a number of a tensor, which vmap cannot give: members one after the other.
    task = Workload(batch=3, examples=1.0, own_rows=False, engine="loop")
    with seeded(1):
        off = distance_to_members(build(noisy, x), noisy, x, task)
    assert 0 < off <= allowed(net)
