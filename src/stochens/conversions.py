"""Ways out for layers that cannot be a member of an ensemble as they are.

Each function returns a converted copy and leaves the network it was given alone.
"""

import copy
from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.networks import FRN
from stochens.private_names import BatchNorm, hooks_of, parts_of, pre_hooks_of

# By exact type: a subclass may do more, as timm's BatchNormAct2d does, which applies an activation
CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by statistics that no longer change; weight and bias stay trainable.

    y = (x - mean) / sqrt(var + eps) * weight + bias,   x [B, C, *positions]
    """

    mean: Tensor
    var: Tensor

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise InputError("this batch norm has track_running_stats=False: nothing to freeze")
        self.eps = norm.eps
        self.register_buffer("mean", norm.running_mean.clone())
        self.register_buffer("var", norm.running_var.clone())
        self.weight: nn.Parameter | None = norm.weight  # None when affine=False, as in the original
        self.bias: nn.Parameter | None = norm.bias

    @property
    def trained(self) -> bool:
        """Whether its statistics are other than those it was built with."""
        return bool((self.mean != 0).any() or (self.var != 1).any())

    def reset_parameters(self) -> None:
        if self.weight is not None and self.bias is not None:
            nn.init.ones_(self.weight)
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        shape = (-1, *[1] * (x.dim() - 2))
        y = (x - self.mean.view(shape)) * torch.rsqrt(self.var.view(shape) + self.eps)
        if self.weight is None or self.bias is None:
            return y
        return y * self.weight.view(shape) + self.bias.view(shape)


class AlwaysDropout(nn.Module):
    """The network's own dropout, on at test time too: Monte Carlo dropout (Gal, 2016)."""

    def __init__(self, own: nn.Module, apply: Callable[..., Tensor]) -> None:
        super().__init__()
        self.p = float(own.p)  # type: ignore[arg-type]
        self.apply_dropout = apply

    def forward(self, x: Tensor) -> Tensor:
        return self.apply_dropout(x, p=self.p, training=True)

    def extra_repr(self) -> str:
        return f"p={self.p}"


OWN_DROPOUT: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Dropout: F.dropout,
    nn.Dropout1d: F.dropout1d,
    nn.Dropout2d: F.dropout2d,
    nn.Dropout3d: F.dropout3d,
    nn.AlphaDropout: F.alpha_dropout,
    nn.FeatureAlphaDropout: F.feature_alpha_dropout,
}


def freeze_batchnorm(net: nn.Module) -> nn.Module:
    """A copy whose batch norms use their running statistics for ever.

    For a trained network, whose statistics mean something; `x` and outputs keep their shapes.
    `fit(..., start="module")` begins at its weights.

    >>> any(isinstance(m, BatchNorm) for m in freeze_batchnorm(nn.BatchNorm2d(3)).modules())
    False
    """
    _refuse_unknown(net)
    return _replace(net, lambda m: FrozenBatchNorm(m) if isinstance(m, BatchNorm) else None)


def replace_batchnorm(
    net: nn.Module, by: Literal["frn", "group"] = "frn", *, groups: int = 8
) -> nn.Module:
    """A copy whose batch norms are FRN, or GroupNorm with at most `groups` groups.

    FRN needs positions (images, sequences), which a BatchNorm1d may not have: it becomes GroupNorm
    of one group either way, which is layer normalisation. Of several groups each would have few
    numbers, and a group of one or two is only a constant or a sign.

    >>> replace_batchnorm(nn.BatchNorm2d(3))
    FRN(3, eps=1e-06)
    """
    if by not in ("frn", "group"):
        raise InputError(f"by must be 'frn' or 'group', got {by!r}")
    _refuse_unknown(net)

    def convert(module: nn.Module) -> nn.Module | None:
        if not isinstance(module, BatchNorm):
            return None
        channels = module.num_features
        like = next(net.parameters(), torch.empty(0))  # its device and dtype
        if isinstance(module, nn.BatchNorm1d):
            return nn.GroupNorm(1, channels).to(like)
        if by == "frn":
            return FRN(channels).to(like)
        fitting = next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
        return nn.GroupNorm(fitting, channels).to(like)

    return _replace(net, convert)


def keep_dropout(net: nn.Module) -> nn.Module:
    """A copy whose own nn.Dropout layers stay on at test time, so that members are stochastic.

    >>> keep_dropout(nn.Dropout(0.2)).eval()
    AlwaysDropout(p=0.2)
    """

    def convert(module: nn.Module) -> nn.Module | None:
        dropout = OWN_DROPOUT.get(type(module))
        return AlwaysDropout(module, dropout) if dropout else None

    return _replace(net, convert)


def _refuse_unknown(net: nn.Module) -> None:
    """Refuse batch norms of which more than the normalisation would be lost."""
    for path, module in net.named_modules():
        name = repr(path) if path else "the network itself"
        if not isinstance(module, BatchNorm):
            continue
        if isinstance(module, nn.modules.lazy.LazyModuleMixin):
            raise InputError(f"{name} is lazy and has no shape yet; call the network once first")
        if type(module) not in CONVERTED:
            raise InputError(
                f"{name} is a {type(module).__module__}.{type(module).__name__}, a batch norm that "
                "may do more than normalise, such as apply an activation, which would be lost. Use "
                "a plain nn.BatchNorm instead, and a layer of its own for whatever else it does"
            )
        if hooks_of(module) or pre_hooks_of(module) or "forward" in vars(module):
            raise InputError(
                f"{name} is a {type(module).__name__} with hooks or a forward of its own (such as "
                "weight normalisation adds), which would be lost; remove them first"
            )


def _replace(net: nn.Module, convert: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    net = copy.deepcopy(net)
    converted = {module: new for module in net.modules() if (new := convert(module)) is not None}
    for parent in list(net.modules()):
        for name, child in list(parts_of(parent).items()):  # a shared module has several parents
            if child in converted:
                parts_of(parent)[name] = converted[child]
    return converted.get(net, net)
