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

# By exact type: a subclass may do more
CONVERTED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
# timm's, by name: batch normalisation, then what they hold as `drop`, then as `act`
WITH_ACTIVATION = ("timm.layers.norm_act.BatchNormAct2d", "timm.layers.norm_act.SyncBatchNormAct")
BELOW = 6.0  # standard deviations below the mean, where FRN's threshold starts for a trained norm


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by statistics that no longer change; weight and bias stay trainable.

    y = (x - mean) / sqrt(var + eps) * weight + bias,   x [B, C, *positions]

    `after`: what follows in the same module, as the activation in timm's BatchNormAct2d.
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
        after = _after(norm)
        self.after: nn.Module | None = nn.Sequential(*after) if after else None

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
        y = x - self.mean.view(shape)  # before it is scaled: in bfloat16 the order tells
        scale = torch.rsqrt(self.var + self.eps)  # [C]
        if self.weight is not None and self.bias is not None:
            y = torch.addcmul(self.bias.view(shape), y, (scale * self.weight).view(shape))
        else:
            y = y * scale.view(shape)
        z: Tensor = y if self.after is None else self.after(y)
        return z


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

    For a trained network, whose statistics mean something: the copy computes what net.eval() does,
    to rounding, in both modes. `x` and outputs keep their shapes; weights and biases stay trainable
    where they were. timm's BatchNormAct2d keeps its activation; other subclasses of torch's batch
    norms are refused. `fit(..., start="module")` begins at its weights.

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

    A trained norm hands on its affine map and its statistics. It computes  w (x - mean) / sd + b,
    and the new one divides by the moments of each example instead, so the two cannot agree at every
    x. The new weight and bias are those by which they do agree wherever an example has the moments
    that the running statistics state. FRN's threshold starts 6 standard deviations below the mean,
    where it hardly cuts anything. So `fit(..., start="module")` begins nearer to what was trained
    than with new norms, and needs training to be as good; fewer groups keep more. A norm as it was
    built becomes a new one as it is built. Parameters stay frozen where they were, and FRN's
    threshold with the bias.

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
        new: FRN | nn.GroupNorm
        if isinstance(module, nn.BatchNorm1d):
            new = nn.GroupNorm(1, channels)
        elif by == "frn":
            new = FRN(channels)
        else:
            fitting = next(g for g in range(min(groups, channels), 0, -1) if channels % g == 0)
            new = nn.GroupNorm(fitting, channels)
        new = new.to(like)
        _start_from(module, new)
        after = _after(module)
        return nn.Sequential(new, *after) if after else new

    return _replace(net, convert)


def _start_from(norm: BatchNorm, new: FRN | nn.GroupNorm) -> None:
    """Give `new` the affine map of a trained norm, changed so that both compute the same where an
    example's moments are those of the running statistics.

    w (x - m) / s + b = w' x / r + b'        with  w' = w r / s,  b' = b - w m / s  (FRN)
                      = w' (x - g) / r + b'  with  b' = b + w (g - m) / s  (GroupNorm)

    m, s: running mean and standard deviation; g, r: mean and standard deviation of a group of
    channels, or 0 and the root mean square of the channel (FRN). All [C].
    """
    count = norm.num_features
    w, b, mean, var = (
        torch.full((count,), built, dtype=torch.float64) if t is None else t.detach().cpu().double()
        for t, built in (
            *((norm.weight, 1.0), (norm.bias, 0.0)),
            *((norm.running_mean, 0.0), (norm.running_var, 1.0)),
        )
    )
    for name, of in (("weight", norm.weight), ("bias", norm.bias), ("tau", norm.bias)):
        p = getattr(new, name, None)
        if p is not None and of is not None:
            p.requires_grad_(of.requires_grad)
    measured = bool((mean != 0).any() or (var != 1).any())
    if not measured and bool((w == 1).all() and (b == 0).all()):
        return  # as it was built
    weight, bias = w, b
    if measured:
        groups = count if isinstance(new, FRN) else new.num_groups
        g, square = (
            t.view(groups, -1).mean(1, keepdim=True).expand(-1, count // groups).flatten()
            for t in (mean, var + mean.square())
        )
        g = torch.zeros_like(g) if isinstance(new, FRN) else g
        sd = (var + norm.eps).sqrt()
        weight = w * ((square - g.square()).clamp_min(0) + new.eps).sqrt() / sd
        bias = b + w * (g - mean) / sd
    new.weight.data.copy_(weight)
    new.bias.data.copy_(bias)
    if isinstance(new, FRN):  # below its values even where w = 0, or it would never learn
        new.tau.data.copy_(b - BELOW * w.abs().clamp_min(1))


def _after(norm: nn.Module) -> list[nn.Module]:
    """What a batch norm of timm does when it has normalised; none in torch's own."""
    if _name_of(norm) not in WITH_ACTIVATION:
        return []
    found = [getattr(norm, name, None) for name in ("drop", "act")]
    return [part for part in found if part is not None and type(part) is not nn.Identity]


def _name_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


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
        if type(module) not in CONVERTED and _name_of(module) not in WITH_ACTIVATION:
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
