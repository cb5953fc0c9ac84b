"""Chains of small linear layers and activations, on a CPU: by the MLP kernel."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from stochens.kernels import mlp, nuts
from stochens.likelihoods import Likelihood
from stochens.members import Params
from stochens.methods.gaussian import GaussianLayer
from stochens.program.draw_weights import draw_weights
from stochens.program.nodes import Graph, Node
from stochens.program.program import Noise as Whose
from stochens.randomness.noise import draw_numbers
from stochens.randomness.seeds import noise_seed

ACTIVATIONS = ("relu", "tanh", "silu")
WIDEST = 128  # beyond it the BLAS behind vmap is as fast or faster (measured at width 100 and 256)


class ChainLayer(NamedTuple):
    """One linear layer, and the function after it."""

    node: Node
    activation: str


class Chain(NamedTuple):
    layers: tuple[ChainLayer, ...]
    width: int  # of a row
    flattens: bool  # whether examples may have any shape

    def takes(self, x: Tensor) -> bool:
        """Whether the network sees rows of the right width in x [B, ...]; else it may be a Linear
        over the last of several axes."""
        rows = x.dim() == 2 or (self.flattens and x.dim() > 2)
        return rows and x.shape[1:].numel() == self.width


def chain(graph: Graph | None) -> Chain | None:
    """The network as linear layers with an activation after each, or None if it is not that."""
    if graph is None:
        return None
    layers: list[ChainLayer] = []
    widths: list[int] = []  # that a view into rows asks for
    before, *rest = graph.nodes
    flattens = False
    for node in rest:
        if node.inputs != (before,):
            return None  # it branches
        if node.kind == "flatten" and not layers:
            flattens = True
            widths += [n for n in node.options if n is not None]
        elif node.kind in ACTIVATIONS and layers and layers[-1].activation == "identity":
            layers[-1] = layers[-1]._replace(activation=node.kind)
        elif node.kind == "linear":
            layers.append(ChainLayer(node, "identity"))
        else:
            return None
        before = node
    shapes = [graph.shapes[str(layer.node.names[0])] for layer in layers]
    if not layers or max(max(shape) for shape in shapes) > WIDEST:
        return None
    width = shapes[0][1]
    return Chain(tuple(layers), width, flattens) if set(widths) <= {width} else None


def takes(graph: Graph, likelihood: Likelihood | None, x: Tensor) -> bool:
    """Whether the kernel runs this network on inputs like x [B, ...]; likelihood: None for its
    outputs alone."""
    return _chain_for(graph, likelihood, x) is not None


def nll(
    graph: Graph,
    likelihood: Likelihood,
    x: Tensor,
    y: Tensor,
    members: Sequence[int],
    seed: int,
) -> Callable[[Params, Any, int | Tensor], Tensor] | None:
    """A function (params, rows [M, B] or None, step) -> mean NLL [M], or None where none fits."""
    found, code = _chain_for(graph, likelihood, x), likelihood.kernel()
    if found is None or code is None:
        return None
    layers = found.layers
    x = x.flatten(1).contiguous()
    ids, first = torch.tensor(members, dtype=torch.int64), noise_seed(seed)

    def nll(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        drawn = _draw(layers, params)
        return mlp.nll(
            drawn.weights,
            drawn.biases,
            x,
            y,
            index=rows,
            likelihood=code,
            members=ids,
            seed=first + int(step),
            sites=drawn.sites,
            **_noise(layers, params),
        )

    return nll


def outputs(
    graph: Graph, x: Tensor, dtype: torch.dtype
) -> Callable[[Params, Tensor, Whose], Tensor] | None:
    """A function (params, x [B, ...], whose noise) -> one draw of every member's outputs [M, B, C].

    dtype: of the members' parameters. Noise on weights comes from where randomness/noise.py says,
    noise on outputs from the seed.
    """
    found = _chain_for(graph, None, x)
    if found is None or dtype != x.dtype:
        return None
    layers = found.layers

    def outputs(params: Params, x: Tensor, noise: Whose) -> Tensor:
        drawn = _draw(layers, params)
        return mlp.outputs(
            drawn.weights,
            drawn.biases,
            x.flatten(1).contiguous(),
            members=noise.members,
            seed=int(noise.seed[0]),
            sites=drawn.sites,
            **_noise(layers, params),
        )

    return outputs


def flat_layers(
    graph: Graph | None, x: Tensor, shapes: Mapping[str, torch.Size]
) -> nuts.Layers | None:
    """Where the layers of a chain without noise lie in parameters of these shapes, one after the
    other in a flat vector; None where it is no chain, or they are not its parameters."""
    found = chain(graph)
    if found is None or graph is None or graph.noisy or not found.takes(x):
        return None
    if {name: torch.Size(shape) for name, shape in shapes.items()} != graph.shapes:
        return None
    ends = itertools.accumulate(shape.numel() for shape in shapes.values())
    offsets = dict(zip(shapes, [0, *ends], strict=False))
    named = [layer.node.names for layer in found.layers]
    codes = list(mlp.ACTIVATIONS)
    return nuts.Layers(
        widths=(found.width, *(graph.shapes[str(weight)][0] for weight, _ in named)),
        activation=tuple(codes.index(layer.activation) for layer in found.layers),
        weight_at=tuple(offsets[str(weight)] for weight, _ in named),
        bias_at=tuple(-1 if bias is None else offsets[bias] for _, bias in named),
    )


def _chain_for(graph: Graph, likelihood: Likelihood | None, x: Tensor) -> Chain | None:
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return None
    if likelihood is not None and likelihood.kernel() is None:
        return None
    found = chain(graph)
    return found if found is not None and found.takes(x) and mlp.available() else None


class Drawn(NamedTuple):
    """Of one pass: weights and biases [M, ...], which are omega or a draw where weights are noisy,
    and the numbers of the draws that the kernel makes."""

    weights: list[Tensor]
    biases: list[Tensor | None]
    sites: list[int]


def _draw(layers: Sequence[ChainLayer], params: Params) -> Drawn:
    """Layer by layer, as the network draws: its weights, a mask, Gaussian noise."""
    number = draw_numbers()
    drawn, masks, normals = Drawn([], [], []), [], []
    for layer in layers:
        theta = _theta(layer.node, params)
        drawn.weights.append(theta["weight"])
        drawn.biases.append(theta.get("bias"))
        masks.append(number() if _rate(layer.node) > 0 else 0)
        normals.append(number() if isinstance(layer.node.layer, GaussianLayer) else 0)
    return drawn._replace(sites=masks + normals)


def _theta(node: Node, params: Params) -> Params:
    if node.layer is None:
        named = zip(("weight", "bias"), node.names, strict=True)
        return {part: params[name] for part, name in named if name is not None}
    layer = _around_weights(node.layer)
    names = getattr(layer, "names", ["weight", "bias"])
    omega = {n: params[node.prefix + n] for n in names if node.prefix + n in params}
    return draw_weights(layer, omega)


def _around_weights(layer: nn.Module) -> nn.Module:
    """The layer below Gaussian noise, which the kernel adds to the outputs by itself."""
    return layer.inner if isinstance(layer, GaussianLayer) else layer


class Noise(TypedDict):
    activation: list[str]
    dropout: list[float]
    variances: list[mlp.Variance | None]


def _noise(layers: Sequence[ChainLayer], params: Params) -> Noise:
    """What the kernel does to the outputs of each layer."""
    return Noise(
        activation=[layer.activation for layer in layers],
        dropout=[_rate(layer.node) for layer in layers],
        variances=[_variance(layer.node, params) for layer in layers],
    )


def _rate(node: Node) -> float:
    return 0.0 if node.layer is None else getattr(_around_weights(node.layer), "output_rate", 0.0)


def _variance(node: Node, params: Params) -> mlp.Variance | None:
    if not isinstance(node.layer, GaussianLayer):
        return None
    own = {n.removeprefix(node.prefix): p for n, p in params.items() if n.startswith(node.prefix)}
    variances = {name: s.square() for name, s in node.layer.stacked_sigmas(own).items()}
    return variances["weight"], variances.get("bias")
