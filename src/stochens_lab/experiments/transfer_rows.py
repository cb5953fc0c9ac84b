"""The trained network of `stochens transfer`, and the ways from it to a posterior."""

import dataclasses
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from stochens.conversions import freeze_batchnorm
from stochens.errors import InputError
from stochens.methods import Gaussian, LastLayer, LoRA
from stochens.prior import Prior
from stochens.randomness.seeds import seeded

MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, which torchvision takes
RANK = 8
SIGMA = 0.02  # of the last layer's weights


class Trained(NamedTuple):
    """A network to begin with."""

    net: nn.Module  # pixels [B, 3, 32, 32] -> [B, classes]; its output layer, `head`, is new
    late: tuple[str, ...]  # patterns of its last blocks


def mobilenet(weights: Path, classes: int, *, side: int, seed: int) -> Trained:
    """torchvision's MobileNetV2 with these weights, behind images that it enlarges itself. Its
    batch norms are frozen, and it has a new output layer."""
    try:
        from torchvision.models import mobilenet_v2
    except ImportError:
        raise InputError("stochens transfer needs torchvision: pip install torchvision") from None
    try:
        state = load_file(weights)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{weights} cannot be read: {error}") from None
    with seeded(seed):
        whole = mobilenet_v2(weights=None)
        head = nn.Linear(whole.last_channel, classes)
    own = {n.removeprefix("features."): t for n, t in state.items() if n.startswith("features.")}
    try:
        whole.features.load_state_dict(own)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{weights} has no weights of MobileNetV2's features: {first}") from None
    parts: dict[str, nn.Module] = {
        "enlarge": nn.Upsample(size=(side, side), mode="bilinear"),
        "features": whole.features,
        "pool": nn.AdaptiveAvgPool2d(1),
        "flat": nn.Flatten(),
        "head": head,
    }
    net = freeze_batchnorm(nn.Sequential(OrderedDict(parts)))
    return Trained(net, tuple(f"features.{k}*" for k in range(14, 19)))  # from its last stride on


def to_pixels(x: Tensor) -> Tensor:
    """Bytes [N, 3, 32, 32] as floats, normalised as ImageNet's images.

    >>> to_pixels(torch.full((1, 3, 2, 2), 255, dtype=torch.uint8))[0, :, 0, 0]
    tensor([2.2489, 2.4286, 2.6400])
    """
    mean, sd = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, SD))
    return x.float().div_(255).sub_(mean).div_(sd)


@dataclasses.dataclass(frozen=True)
class Row:
    """A way from the trained network to a posterior."""

    options: Mapping[str, Any]  # of `fit`
    rates: tuple[float, ...]  # first rates of Adam, of which the held-out images choose one
    times: int = 1  # epochs, for each one that a whole network is trained
    members: int | None = None  # None: as many as the run has
    rate_of: str | None = None  # the row whose rate it takes


def list_rows(late: tuple[str, ...]) -> dict[str, Row]:
    """What costs little comes first."""
    near: dict[str, Any] = {"start": "module", "prior": Prior(mean="start")}
    whole = {"method": "regular", **near}
    some, more = (3e-4, 1e-3), (1e-3, 3e-3)
    head: dict[str, Any] = {"method": LastLayer(), "bootstrap": True}
    noisy = {"method": [LastLayer(), Gaussian(SIGMA)]}
    return {
        "one network": Row(whole, some, members=1),
        "last layer + bootstrap": Row(head, more, times=4),
        "last layer + Gaussian": Row(noisy, more, times=4, rate_of="last layer + bootstrap"),
        "last blocks": Row({"method": LastLayer(layers=(*late, "head")), **near}, some, times=2),
        "LoRA in last blocks": Row({"method": LoRA(RANK, layers=late)}, more, times=2),
        "full": Row(whole, some, rate_of="one network"),
        "LoRA": Row({"method": LoRA(RANK)}, more, rate_of="LoRA in last blocks"),
    }
