"""The network of `stochens transfer`, and the lines of docs/pretrained.md that lead there."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.torchvision_on_cpu import let_torchvision_import
from torch import nn

import stochens
from stochens import InputError, LoRA
from stochens.methods import lora_layers, stochastic
from stochens_lab.experiments.transfer_rows import list_rows, mobilenet, to_pixels

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"


@pytest.fixture(scope="module")
def torchvision() -> Any:
    let_torchvision_import()
    return pytest.importorskip(
        "torchvision", reason="needs torchvision: pip install 'stochens[pretrained]'"
    )


def test_it_is_torchvisions_with_these_weights(torchvision: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.mobilenet_v2(weights=None)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if it were trained
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    ours = mobilenet(tmp_path / "weights.safetensors", 7, side=48, seed=0)
    x = to_pixels(torch.randint(256, (2, 3, 32, 32), dtype=torch.uint8))
    large = nn.functional.interpolate(x, (48, 48), mode="bilinear")
    features = theirs.eval().features(large).mean((2, 3))
    wanted = ours.net.get_submodule("head")(features)
    with torch.no_grad():
        # 53 layers in another order of operations, float32
        torch.testing.assert_close(ours.net(x), wanted, rtol=1e-3, atol=1e-4)
    for name, row in list_rows(ours.late).items():
        stochastic(ours.net, row.options["method"], output="head")  # its patterns match
        assert row.rate_of in (None, *list_rows(ours.late)), name
    adapted = [path for path, _ in lora_layers(stochastic(ours.net, LoRA(8, layers=ours.late)))]
    assert adapted[0] == "features.14.conv.0.0"
    assert adapted[-1] == "features.18.0"
    assert len(adapted) == 9  # depthwise convolutions have none


def test_other_files_are_refused(torchvision: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        mobilenet(tmp_path / "none.safetensors", 7, side=48, seed=0)
    save_file({"features.0.weight": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="no weights of MobileNetV2's features"):
        mobilenet(tmp_path / "other.safetensors", 7, side=48, seed=0)


@pytest.mark.filterwarnings("ignore::stochens.training.advice.TrainingAdvice")
def test_the_lines_of_the_page(torchvision: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a MobileNetV2 of two blocks, since the page's is to be downloaded."""

    def small(weights: str) -> nn.Module:
        assert weights == "DEFAULT"
        blocks = [[1, 16, 1, 1], [6, 24, 1, 2]]
        net: nn.Module = torchvision.models.MobileNetV2(
            width_mult=0.25, inverted_residual_setting=blocks
        )
        return net

    monkeypatch.setattr(torchvision.models, "mobilenet_v2", small)
    found = re.search(r"^## From ImageNet.*?```py\n(.*?)```", PAGE.read_text(), re.M | re.S)
    assert found is not None
    x, y = torch.randn(8, 3, 32, 32), torch.arange(8)
    names: dict[str, Any] = {"x": x, "y": y, "x_test": x, "y_test": y}
    exec(compile(found[1], "page", "exec"), names)
    assert isinstance(names["posterior"], stochens.Posterior)
    assert names["p"].mean.shape == (8, 100)
