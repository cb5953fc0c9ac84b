"""LoRA: every member is a small adapter on one network that all share (Hu et al., 2021).

    y = W x + b + (alpha / rank) B A x,   A [rank, in],  B [out, rank]

W and b are the network's own, frozen and held once. A and B are a member's: two linear layers, so
that other methods put noise on them as on any layer.
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from stochens.errors import InputError, Unsuited, did_you_mean
from stochens.members import Params, copy_network
from stochens.methods.base import Method, Mixture, StochasticLayer, check_rate, zeros_like
from stochens.methods.freezing import exchange, freeze_but, switch_off_fast_path
from stochens.methods.lora_attention import PROJECTIONS, LoRAAttention, has_one_matrix
from stochens.methods.lora_conv import LoRAConvLayer, is_convolution, scaled
from stochens.methods.nodes import by_node
from stochens.methods.patterns import matches
from stochens.private_names import hooks_of, pre_hooks_of
from stochens.randomness.noise import bernoulli

# Last names of the projections to queries and values, and of those that make both at once: what
# peft adapts where it knows a network. Elsewhere all linear layers but the output are adapted: its
# "all-linear".
TARGETS = (
    *("q", "v", "query", "value", "q_proj", "v_proj", "q_lin", "v_lin", "query_proj", "value_proj"),
    *("c_attn", "qkv", "qkv_proj", "query_key_value", "Wqkv"),
)


class _Zeroed(nn.Linear):
    """B, which begins at 0: members begin at the network that they share."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)


class LoRALayer(nn.Module):
    """W x + b + (alpha / rank) B A x in the place of a linear layer, with its names for W and b.

    `transposed`: whether W is [in, out], as in Hugging Face's Conv1D.
    """

    def __init__(self, layer: nn.Module, rank: int, alpha: float, rate: float) -> None:
        super().__init__()
        self.transposed = not isinstance(layer, nn.Linear)
        weight = layer.get_parameter("weight")
        sizes = weight.shape if self.transposed else weight.shape[::-1]
        self.in_features, self.out_features = (int(n) for n in sizes)
        self.rank, self.scale = rank, alpha / rank
        self.weight = weight
        self.bias: nn.Parameter | None = layer.bias  # type: ignore[assignment]
        like = {"device": weight.device, "dtype": weight.dtype}
        self.lora_A: nn.Module = nn.Linear(self.in_features, rank, bias=False, **like)
        self.lora_B = _Zeroed(rank, self.out_features, bias=False, **like)
        if rate > 0:
            self.lora_A = InputDropoutLayer(self.lora_A, rate)
        self.nf, self.nx = self.out_features, self.in_features  # Conv1D's names for them

    def forward(self, input: Tensor) -> Tensor:
        weight = self.weight.mT if self.transposed else self.weight
        adapted: Tensor = self.lora_B(scaled(self.lora_A(input), self.scale))
        return F.linear(input, weight, self.bias) + adapted

    def merged(self, weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """W + (alpha / rank) B A, of one member, as the plain layer has it."""
        change = self.scale * (b @ a)
        return weight + (change.mT if self.transposed else change)

    def begin(self) -> None:
        """A anew from torch's generator, B at 0."""
        a = self.lora_A.plain if isinstance(self.lora_A, StochasticLayer) else self.lora_A
        for part in (a, self.lora_B):
            part.reset_parameters()  # type: ignore[operator]

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, rank={self.rank}, scale={self.scale:g}"


class InputDropoutLayer(StochasticLayer):
    """y = layer(x * z / (1 - p)),  z ~ Bernoulli(1 - p) for each example and input: peft's
    lora_dropout, on in prediction too."""

    masks_inputs = True

    def __init__(self, layer: nn.Module, p: float) -> None:
        super().__init__(layer)
        self.p = p

    def output(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x, *rest = args
        z = bernoulli(1 - self.p, x.shape, x, fresh=True)
        return super().output(theta, (x * z / (1 - self.p), *rest), kwargs)

    def nodes(self, values: Params) -> list[Tensor]:
        """What leaves one input together: the columns of A, [M, in, rank]."""
        return [block.mT for block in by_node(self.plain, values)]

    def mixtures(self, omega: Params) -> list[Mixture]:
        """(1 - p) N(A_n, sigma^2) + p N(0, sigma^2) for each column n of A."""
        weights = (1 - self.p, self.p)
        return [Mixture(weights, (block, zeros_like(block))) for block in self.nodes(omega)]

    def noise_repr(self) -> str:
        return f"p={self.p}, "


@dataclasses.dataclass(frozen=True)
class LoRA(Method):
    """Every member is an adapter of low rank on the network given: W x + (alpha / rank) B A x.

    The network's own weights are frozen, held once, and where all members begin: A is drawn for
    each member as nn.Linear draws its weights, and B is 0. So members predict alike at first, and
    part in training. Defaults are those of peft 0.21.

    layers: patterns of the layers with adapters, by name ("encoder.*.query") or by its end
        ("query"): nn.Linear, Hugging Face's Conv1D, nn.MultiheadAttention, and convolutions without
        groups. If empty, queries and values of attention where they have one of the usual names, or
        nn.MultiheadAttention; else every linear layer but the output; and where the output is the
        only one, every convolution without groups.
    dropout: the rate at which inputs of A are dropped, in training and prediction (lora_dropout);
        of linear layers alone.
    head: whether the output layer, from where it is, is each member's own too (modules_to_save).

    Other methods go on the adapters and the output layer: [LoRA(8), Gaussian(0.01)] has noise on A,
    B and the output; [LoRA(8), Dropout(0.1)] drops outputs of A and B. The prior N(0, 1 / lambda)
    is on A, B and the output layer, and the KL counts them as parameters without noise unless such
    a method is there; what is frozen has no prior.

    >>> net = nn.Sequential(nn.Linear(2, 50), nn.Tanh(), nn.Linear(50, 50), nn.Tanh(),
    ...                     nn.Linear(50, 2))
    >>> from stochens.methods import stochastic
    >>> [n for n, p in stochastic(net, LoRA(4, head=False)).named_parameters() if p.requires_grad]
    ['0.lora_A.weight', '0.lora_B.weight', '2.lora_A.weight', '2.lora_B.weight']
    """

    rank: int = 8
    alpha: float = 8.0
    dropout: float = 0.0
    head: bool = True

    name: ClassVar[str] = "lora"
    applies_to: ClassVar[tuple[type[nn.Module], ...]] = ()
    freezes: ClassVar[bool] = True
    begins_at_module: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise InputError(f"rank must be a whole number from 1 on, got {self.rank!r}")
        if not isinstance(self.alpha, (int, float)) or not 0 < self.alpha < math.inf:
            raise InputError(f"alpha must be a positive number, got {self.alpha!r}")
        check_rate(self.dropout, " of adapters' inputs")

    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        return layer

    def adapt(self, net: nn.Module, *, output: str | None) -> nn.Module:
        """In place, but for the network itself where it is one of the layers."""
        if found := dict(lora_layers(net)):  # it is adapted already
            self._refuse_other(found)
            return net
        chosen = self._chosen(net, output)
        head = () if output is None or not self.head else (output,)
        freeze_but(net, head)
        swapped = {layer: self._adapter(layer, path) for path, layer in chosen.items()}
        switch_off_fast_path(net)
        return exchange(net, swapped)

    def _adapter(self, layer: nn.Module, path: str) -> nn.Module:
        attention = isinstance(layer, nn.MultiheadAttention)
        if not attention and not is_convolution(layer):
            return LoRALayer(layer, self.rank, self.alpha, self.dropout)
        if self.dropout > 0:
            kind = "nn.MultiheadAttention" if attention else "convolutions"
            raise Unsuited(
                f"lora has no dropout of inputs for {kind}, which {path!r} is; give dropout=0, or "
                "layers= without it"
            )
        if isinstance(layer, nn.MultiheadAttention):
            return LoRAAttention(layer, self.rank, self.alpha)
        return LoRAConvLayer(layer, self.rank, self.alpha)

    def _refuse_other(self, found: dict[str, "Adapted"]) -> None:
        for path, layer in found.items():
            if (layer.rank, layer.scale) != (self.rank, self.alpha / self.rank):
                raise Unsuited(
                    f"{path!r} has an adapter of rank {layer.rank} and scale {layer.scale:g} "
                    f"already; give the network without, or LoRA once"
                )

    def _chosen(self, net: nn.Module, output: str | None) -> dict[str, nn.Module]:
        """The layers that get an adapter, by name."""
        able = {path: layer for path, layer in adaptable(net) if not matches(self.skip, path)}
        if self.layers:
            for pattern in self.layers:
                if not any(_names(pattern, path) for path in able):
                    self._refuse_pattern(pattern, net, list(able))
            return {p: x for p, x in able.items() if any(_names(one, p) for one in self.layers)}
        able.pop(output or "", None)
        able = {p: x for p, x in able.items() if not is_convolution(x)} or able
        usual = {
            path: layer
            for path, layer in able.items()
            if path.rpartition(".")[2] in TARGETS or isinstance(layer, nn.MultiheadAttention)
        }
        if not able:
            raise Unsuited(
                "lora found no linear layer to adapt beside the output layer "
                f"{output!r}, and no convolution; LastLayer() trains that one alone"
            )
        return usual or able

    @staticmethod
    def _refuse_pattern(pattern: str, net: nn.Module, able: list[str]) -> None:
        whole = [path for path, _ in net.named_modules() if _names(pattern, path)]
        kinds = sorted({type(net.get_submodule(path)).__name__ for path in whole})
        said = f"; what it matches is {', '.join(kinds)}, which lora cannot adapt" if kinds else ""
        raise Unsuited(
            f"pattern {pattern!r} matches no linear layer{did_you_mean(pattern, able)}{said}; the "
            f"layers that lora can adapt are {', '.join(able) or '(none)'}"
        )

    def params_of(self, net: nn.Module, adapters: Any, *, output: str | None = None) -> Params:
        """Adapters that peft has trained, for `fit(net, data, method=self, start=...)`: Params
        [M, ...] of M state dicts, or of one.

        net: the network without adapters; output: the name of its output layer, if it is not the
        last one registered. What an adapter has no numbers for, such as the output layer where peft
        left it alone, begins as in net.

        >>> net = nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))
        >>> state = {"base_model.model.0.lora_A.weight": torch.ones(3, 2),
        ...          "base_model.model.0.lora_B.weight": torch.ones(5, 3)}
        >>> LoRA(3).params_of(net, [state, state])["0.lora_A.weight"].shape
        torch.Size([2, 3, 2])
        """
        holders = [p for p, m in net.named_modules() if any(True for _ in m.parameters(False))]
        last = output if output is not None else next(reversed(holders), None)
        template = self.adapt(copy_network(net), output=last)
        own = {n: p.detach() for n, p in template.named_parameters() if p.requires_grad}
        states = [adapters] if isinstance(adapters, Mapping) else list(adapters)
        members = [_read_peft(state, own) for state in states]
        return {name: torch.stack([one[name] for one in members]).to(own[name]) for name in own}


def _read_peft(state: Mapping[str, Tensor], own: Params) -> Params:
    """One member's parameters, by our names, from peft's."""
    found: Params = {}
    for key, value in state.items():
        if ".base_layer.out_proj.lora_" in key:
            raise InputError(
                f"{key!r} is of nn.MultiheadAttention's output, whose adapter peft (0.21) counts "
                "twice when it predicts. To get its predictions, give the adapter with "
                "lora_B.weight of such layers times 2 and '.base_layer' taken out of their names"
            )
        # the adapter's own name, "default", stands in some of them
        name = re.sub(r"\.modules_to_save\.[^.]+\.", ".", key.removeprefix("base_model.model."))
        name = re.sub(r"\.(lora_[AB])\.[^.]+\.weight$", r".\1.weight", name)
        ends = [one for one in own if one.endswith(f".{name}")]  # of a network inside another
        name = ends[0] if name not in own and len(ends) == 1 else name
        if name not in own:
            known = ", ".join(n for n in own if n.endswith("lora_A.weight"))
            raise InputError(
                f"the adapter's {key!r} has no place here: layers= must name the layers that peft "
                f"adapted (its target_modules). Ours are {known}"
            )
        if value.shape != own[name].shape:
            raise InputError(
                f"the adapter's {key!r} is {tuple(value.shape)}, and {tuple(own[name].shape)} is "
                "wanted; rank= must be peft's r"
            )
        found[name] = value.detach().cpu()
    missing = [name for name in own if ".lora_" in f".{name}" and name not in found]
    if missing:
        raise InputError(f"the adapter has nothing for {', '.join(missing[:4])}; see layers=")
    return {name: found.get(name, p.cpu()) for name, p in own.items()}


def _names(pattern: str, path: str) -> bool:
    return matches((pattern, f"*.{pattern}"), path)


Adapted = LoRALayer | LoRAAttention | LoRAConvLayer


def lora_layers(net: nn.Module) -> Iterator[tuple[str, Adapted]]:
    """Those that the network has, by name."""
    for path, layer in net.named_modules():
        if isinstance(layer, Adapted):
            yield path, layer


def adaptable(net: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers and convolutions that are called, and are nothing more than that; each once."""
    inside = {  # called by nobody: attention reads its weights
        part
        for module in net.modules()
        if isinstance(module, nn.MultiheadAttention)
        for part in module.modules()
        if part is not module
    }
    for path, module in net.named_modules():
        linear = isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward
        plain = {n for n, _ in module.named_parameters()} <= {"weight", "bias"}
        extra = hooks_of(module) or pre_hooks_of(module)
        able = linear or is_conv1d(module) or is_convolution(module)
        if able and plain and not extra and module not in inside:
            yield path, module
        if has_one_matrix(module) and not extra:
            yield path, module


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is Hugging Face's linear layer with W [in, out], which GPT-2 has."""
    own = dict(module.named_parameters(recurse=False))
    shaped = own.keys() == {"weight", "bias"} and own["weight"].dim() == 2
    return (
        type(module).__name__ == "Conv1D"
        and shaped
        and own["bias"].shape == own["weight"].shape[1:]
    )


def begin_adapters(net: nn.Module) -> None:
    """Every adapter anew, in place; all else stays."""
    for _, layer in lora_layers(net):
        layer.begin()


def merge_adapters(net: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state of one member without adapters: W + (alpha / rank) B A in the place of W."""
    merged = dict(state)
    for path, layer in net.named_modules(remove_duplicate=False):
        if not isinstance(layer, Adapted):
            continue
        own = PROJECTIONS if isinstance(layer, LoRAAttention) else {"": "weight"}
        for inside, name in own.items():
            prefix = f"{path}." if path else ""
            a, b = (merged.pop(f"{prefix}{inside}lora_{part}.weight") for part in "AB")
            merged[prefix + name] = layer.merged(merged[prefix + name], a, b)
    return merged
