"""Recognises the networks that the MLP kernel can run, and hands them to it."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from stochens.kernels import mlp
from stochens.kernels.changed import changed
from stochens.kernels.draw_weights import draw_weights
from stochens.likelihoods import Categorical, Heteroscedastic, Homoscedastic, Likelihood
from stochens.members import Params, size
from stochens.methods import StochasticLayer
from stochens.methods.gaussian import GaussianLayer
from stochens.private_names import parts_of
from stochens.randomness.seeds import NOISE, derive

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.Tanh: "tanh",
    nn.SiLU: "silu",
    nn.Identity: "identity",
}
WIDEST = 128  # beyond it the BLAS behind vmap is as fast or faster (measured at width 100 and 256)


class ChainLayer(NamedTuple):
    """One layer of the chain, and the function after it."""

    prefix: str
    layer: nn.Module
    activation: str


def fused_nll(
    net: nn.Module,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    members: Sequence[int],
    seed: int,
) -> Callable[[Params, Any, int | Tensor], Tensor] | None:
    """A function (params, rows [M, B] or None, step) -> mean NLL [M], or None where none fits."""
    steps = chain(net)
    code = likelihood_for(likelihood)
    if steps is None or code is None or not _runs_here(steps, x):
        return None
    x = x.flatten(1).contiguous()
    ids = torch.tensor(members, dtype=torch.int64)

    def nll(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        return mlp.nll(
            *_weights(steps, params),
            x,
            y,
            index=rows,
            likelihood=code,
            members=ids,
            seed=derive(seed, NOISE, int(step)),
            **_noise(steps, params),
        )

    return nll


def fused_forward(net: nn.Module, params: Params, x: Tensor, *, seed: int) -> Tensor | None:
    """One draw of every member's outputs, x [B, ...] -> [M, B, C], or None where none fits.

    Noise on weights comes from where randomness/noise.py says, noise on outputs from `seed`.
    """
    steps = chain(net)
    if steps is None or not _runs_here(steps, x):
        return None
    return mlp.outputs(
        *_weights(steps, params),
        x.flatten(1).contiguous(),
        members=torch.arange(size(params)),
        seed=seed,
        **_noise(steps, params),
    )


def fused_takes(net: nn.Module, likelihood: Likelihood | None, x: Tensor) -> bool:
    """Whether the kernel runs this network on inputs like x [B, ...]: `fused_nll` where a
    likelihood is given, else `fused_forward`."""
    steps = chain(net)
    known = likelihood is None or likelihood_for(likelihood) is not None
    return steps is not None and known and _runs_here(steps, x)


def _runs_here(steps: list[ChainLayer], x: Tensor) -> bool:
    """Whether the kernel takes these inputs: float rows of the right width, on the CPU."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return False
    width = steps[0].layer.get_parameter("weight").shape[1]
    return x[0].numel() == width and mlp.available()  # else a Linear over the last of several axes


def chain(net: nn.Module) -> list[ChainLayer] | None:
    """The network as linear layers with an activation after each, or None if it is not that."""
    steps: list[ChainLayer] = []
    modules = _in_order(net, "")
    if modules is None:
        return None
    for name, module in modules:
        if isinstance(module, nn.Flatten) and not steps and module.start_dim == 1:
            continue  # the kernel takes rows, however they were shaped
        if type(module) in ACTIVATIONS and steps and steps[-1].activation == "identity":
            steps[-1] = steps[-1]._replace(activation=ACTIVATIONS[type(module)])
        elif _is_linear(module):
            steps.append(ChainLayer(f"{name}." if name else "", module, "identity"))
        else:
            return None
    shapes = [s.layer.get_parameter("weight").shape for s in steps]
    if not steps or max(max(shape) for shape in shapes) > WIDEST:
        return None
    own = {f"{s.prefix}{name}" for s in steps for name, _ in s.layer.named_parameters()}
    return steps if own == {name for name, _ in net.named_parameters()} else None  # none is tied


def _in_order(net: nn.Module, prefix: str) -> list[tuple[str, nn.Module]] | None:
    """The parts of nested nn.Sequential modules, in the order they are called."""
    if changed(net):
        return None
    if _is_linear(net):
        return [("", net)]
    if not isinstance(net, nn.Sequential) or type(net).forward is not nn.Sequential.forward:
        return None
    found: list[tuple[str, nn.Module]] = []
    for name, module in parts_of(net).items():  # named_children has a shared activation once
        if module is None or changed(module):
            return None
        if isinstance(module, nn.Sequential):
            inside = _in_order(module, f"{prefix}{name}.")
            if inside is None:
                return None
            found += inside
        else:
            found.append((prefix + name, module))
    return found


def _is_linear(module: nn.Module) -> bool:
    """Whether the kernel knows it, and all of it is trained: frozen parts are not stacked."""
    if not all(p.requires_grad for p in module.parameters()):
        return False
    if isinstance(module, StochasticLayer):
        return module.fusable and type(module.plain) is nn.Linear
    return type(module) is nn.Linear


def _weights(steps: list[ChainLayer], params: Params) -> tuple[list[Tensor], list[Tensor | None]]:
    """The weights and biases of one pass, [M, ...]: omega, or a draw where weights are noisy."""
    thetas = [_theta(step, params) for step in steps]
    return [theta["weight"] for theta in thetas], [theta.get("bias") for theta in thetas]


def _theta(step: ChainLayer, params: Params) -> Params:
    layer = _around_weights(step.layer)
    names = layer.names if isinstance(layer, StochasticLayer) else ["weight", "bias"]
    omega = {n: params[step.prefix + n] for n in names if step.prefix + n in params}
    return draw_weights(layer, omega)


def _around_weights(layer: nn.Module) -> nn.Module:
    """The layer below Gaussian noise, which the kernel adds to the outputs by itself."""
    return layer.inner if isinstance(layer, GaussianLayer) else layer


class Noise(TypedDict):
    activation: list[str]
    dropout: list[float]
    variances: list[mlp.Variance | None]


def _noise(steps: list[ChainLayer], params: Params) -> Noise:
    """What the kernel does to the outputs of each layer."""
    return Noise(
        activation=[s.activation for s in steps],
        dropout=[getattr(_around_weights(s.layer), "output_rate", 0.0) for s in steps],
        variances=[_variance(s, params) for s in steps],
    )


def _variance(step: ChainLayer, params: Params) -> mlp.Variance | None:
    if not isinstance(step.layer, GaussianLayer):
        return None
    own = {n.removeprefix(step.prefix): p for n, p in params.items() if n.startswith(step.prefix)}
    variances = {name: s.square() for name, s in step.layer.stacked_sigmas(own).items()}
    return variances["weight"], variances.get("bias")


def likelihood_for(likelihood: Likelihood) -> mlp.Likelihood | None:
    """As the kernel names it, or None where it has none."""
    # not isinstance: a subclass may have an nll of its own
    if type(likelihood) is Categorical:
        return "categorical"
    if type(likelihood) is Homoscedastic and likelihood.noise is not None:
        return ("gaussian", likelihood.noise)
    return "gaussian-heteroscedastic" if type(likelihood) is Heteroscedastic else None
