"""Networks of convolution + FRN (+ residual) (+ SiLU), a global mean and a linear head, on a Hopper
GPU: by the convolution kernels, in bfloat16."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.kernels import conv, resnet
from stochens.kernels.conv_plan import QUAD, Layer, plan_for
from stochens.kernels.resnet import ConvNorm, ResNet
from stochens.likelihoods import Likelihood
from stochens.members import Params
from stochens.methods.dropconnect import DropConnectLayer
from stochens.methods.dropout import DropoutLayer
from stochens.methods.np_dropout import NPDropoutLayer
from stochens.program.draw_weights import draw_all_weights
from stochens.program.nodes import Graph, Node, Unknown, refuse
from stochens.program.program import Noise
from stochens.randomness.noise import draw_numbers
from stochens.randomness.seeds import noise_seed

log = logging.getLogger("stochens")

EPS = 1e-6  # of FRN, as conv_forward.cu has it


def takes(graph: Graph, likelihood: Likelihood | None, x: Tensor) -> bool:
    """Whether the kernels run this network on images like x [B, C, H, W]."""
    return _resnet_for(graph, x) is not None


def nll(
    graph: Graph,
    likelihood: Likelihood,
    x: Tensor,  # [N, C, H, W]
    y: Tensor,  # [N, ...]
    members: Sequence[int],
    seed: int,
) -> Callable[[Params, Any, int | Tensor], Tensor] | None:
    """A function (params, rows [M, B] or None, step) -> mean NLL [M], or None where none fits.

    The step chooses the noise; inside a CUDA graph it is a tensor [1] that the replays change.
    """
    net = _resnet_for(graph, x)
    if net is None or not _compiled(net.steps, x.device, backward=True):
        return None
    images = conv.quads(x[None])[0]  # [N, H, W, 4]: made once, gathered at each step
    ids = torch.tensor(members, dtype=torch.int32, device=x.device)
    first = torch.tensor([noise_seed(seed)], device=x.device)

    def nll(params: Params, rows: Tensor | None, step: int | Tensor) -> Tensor:
        everything = rows is None
        batch = images.expand(len(ids), *images.shape) if everything else images[rows]
        theta, sites = _draw(graph, net, params)
        batch, seed = batch.contiguous(), first + step
        outputs = resnet.run(net, theta, batch, seed=seed, members=ids, sites=sites)
        return likelihood.nll(outputs, y.expand(len(ids), *y.shape) if everything else y[rows])

    return nll


def outputs(
    graph: Graph, x: Tensor, dtype: torch.dtype
) -> Callable[[Params, Tensor, Noise], Tensor] | None:
    """A function (params, x [B, C, H, W], whose noise) -> one draw of every member's outputs,
    [M, B, C].

    dtype: of the members' parameters. Noise on weights comes from where randomness/noise.py says,
    dropout from the seed.
    """
    net = _resnet_for(graph, x) if dtype == torch.float32 else None
    if net is None or not _compiled(net.steps, x.device, backward=False):
        return None

    def outputs(params: Params, x: Tensor, noise: Noise) -> Tensor:
        own = {"seed": noise.seed[:1], "members": noise.members.int()}
        theta, sites = _draw(graph, net, params)
        return resnet.run(net, theta, conv.quads(x[None]), sites=sites, **own)

    return outputs


def _draw(graph: Graph, net: ResNet, params: Params) -> tuple[Params, list[int]]:
    """The parameters of one pass, drawn where weights are noisy, and the number of the draw that
    each step makes: in the order in which the network draws."""
    number, theta, sites = draw_numbers(), params, {}
    for node in graph.noisy:
        theta = draw_all_weights([node], theta)
        if node.layer is not None and node.layer.output_rate > 0:
            sites[node.names[0]] = number()
    return theta, [sites.get(step.names[0], 0) for step in net.steps]


def _resnet_for(graph: Graph, x: Tensor) -> ResNet | None:
    if x.dim() != 4 or not _runs_here(x):
        return None
    return resnet_of(graph, tuple(x.shape[1:]))


def _runs_here(x: Tensor) -> bool:
    return x.is_cuda and conv.available(x.device)


@functools.cache
def _compiled(steps: tuple[ConvNorm, ...], device: torch.device, *, backward: bool) -> bool:
    """Whether the steps could be compiled; where not, vmap does the work."""
    try:
        resnet.compile_steps(steps, device, backward=backward)
    except torch.OutOfMemoryError:
        raise  # fewer members may fit
    except (RuntimeError, AttributeError) as error:  # of NVRTC; of a torch that is another
        log.warning("convolutions run by vmap, which is slower: %s", error)
        return False
    return True


# Recognition --------------------------------------------------------------------------------------


def resnet_of(graph: Graph | None, image: tuple[int, ...]) -> ResNet | None:
    """The network's convolutions in order, for images (C, H, W); None where it is another network
    or the kernels have no plan for its shapes."""
    if graph is None or graph.dtypes != {torch.float32}:
        return None
    try:
        return _Match(graph, image).resnet()
    except Unknown:
        return None


class _Match:
    """Makes steps of the nodes, one after the other, or refuses."""

    def __init__(self, graph: Graph, image: tuple[int, ...]) -> None:
        self.graph = graph
        self.steps: list[ConvNorm] = []
        # activations by number; 0 is the image
        self.numbers: dict[Node, int] = {graph.nodes[0]: 0}
        self.shapes: list[tuple[int, ...]] = [image]  # (channels, height, width)

    def resnet(self) -> ResNet:
        *body, pool, head = self._without_flatten()
        for node in body[1:]:
            self._take(node)
        last = self.numbers.get(pool.inputs[0])
        if pool.kind != "pool" or head.kind != "linear" or head.inputs != (pool,):
            refuse()
        if not self.steps or last != len(self.steps) or len(self._uses(pool.inputs[0])) != 1:
            refuse()  # gradients begin at the last activation
        _check_noise(head)
        weight, bias = head.names
        if weight is None or self.graph.shapes[weight][1] != self.shapes[-1][0]:
            refuse()
        return ResNet(tuple(self.steps), (weight, bias))

    def _without_flatten(self) -> list[Node]:
        """The nodes; where the mean is [B, C, 1, 1], what makes [B, C] of it is left out."""
        *body, pool, flat, head = self.graph.nodes
        if flat.kind != "flatten":
            if flat.kind == "pool" and flat.options == (True,):
                refuse()  # the head would see an axis of length 1
            return [*body, pool, flat, head]
        if pool.kind != "pool" or flat.inputs != (pool,) or head.inputs != (flat,):
            refuse()
        channels = flat.options[0]
        if channels is not None and channels != self.graph.shapes[str(head.names[0])][1]:
            refuse()
        return [*body, pool, dataclasses.replace(head, inputs=(pool,))]

    def _take(self, node: Node) -> None:
        """One node of the body: what it ends becomes a step."""
        if node.kind == "conv" and self._only_use(node).kind == "frn":
            return  # goes with its FRN
        if node.kind == "frn":
            if not self._goes_on(node):
                self._add(node, node, residual=None, silu=False)
        elif node.kind == "add":
            if self._only_use(node).kind != "silu":
                refuse()
        elif node.kind == "silu":
            (inner,) = node.inputs
            if inner.kind == "frn" and len(self._uses(inner)) == 1:
                self._add(node, inner, residual=None, silu=True)
            elif inner.kind == "add":
                main, residual = self._main_and_residual(inner)
                self._add(node, main, residual=residual, silu=True)
            else:
                refuse()
        else:
            refuse()

    def _goes_on(self, frn: Node) -> bool:
        """Whether SiLU or a sum that follows is computed in the same step."""
        uses = self._uses(frn)
        if len(uses) != 1:
            return False
        return uses[0].kind == "silu" or (
            uses[0].kind == "add" and self._main_and_residual(uses[0])[0] is frn
        )

    def _main_and_residual(self, add: Node) -> tuple[Node, Node]:
        """FRN(conv(...)) that ends in this sum, and what is added to it, which is there before."""
        one, two = add.inputs
        able = [n for n in (one, two) if n.kind == "frn" and len(self._uses(n)) == 1]
        if not able:
            refuse()
        main = max(able, key=self.graph.nodes.index)
        return main, two if main is one else one

    def _add(self, end: Node, frn: Node, *, residual: Node | None, silu: bool) -> None:
        (convolution,) = frn.inputs
        if convolution.kind != "conv" or frn.options != (EPS,):
            refuse()
        (source,) = convolution.inputs
        if source not in self.numbers or (residual is not None and residual not in self.numbers):
            refuse()
        number = self.numbers[source]
        channels, height, width = self.shapes[number]
        weight = self.graph.shapes[str(convolution.names[0])]
        stride, padding = convolution.options
        outputs, inputs, kernel, other = weight
        if inputs != channels or kernel != other or padding != kernel // 2:
            refuse()
        if number == 0 and inputs > QUAD:
            refuse()
        layer = Layer(QUAD if number == 0 else inputs, outputs, height, width, stride, kernel)
        if not all(plan_for(layer, name) for name in conv.KERNELS):
            refuse()
        shape = (outputs, *layer.out)
        added = None if residual is None else self.numbers[residual]
        if added is not None and (added == 0 or self.shapes[added] != shape):
            refuse()  # torch would broadcast
        for node in (convolution, frn):
            _check_noise(node)
        named = (*convolution.names, *frn.names)
        names = tuple(name for name in named if name is not None)
        if len(names) != len(named) or self.graph.shapes[names[2]] != (outputs,):
            refuse()
        rate = 0.0 if convolution.layer is None else convolution.layer.output_rate
        self.steps.append(ConvNorm(names, layer, rate, number, added, silu))  # type: ignore[arg-type]
        self.numbers[end] = len(self.steps)
        self.shapes.append(shape)

    def _uses(self, node: Node) -> list[Node]:
        return self.graph.uses(node)

    def _only_use(self, node: Node) -> Node:
        uses = self._uses(node)
        return uses[0] if len(uses) == 1 else refuse()


def _check_noise(node: Node) -> None:
    """Refuses unless its noise is dropout of each position of a convolution, or on weights alone
    and so drawn before the kernels run."""
    layer = node.layer
    if isinstance(layer, DropoutLayer):
        if node.kind != "conv" or layer.by_channel or layer.inner is not layer.plain:
            refuse()
    elif isinstance(layer, NPDropoutLayer):
        if layer.by_position:
            refuse()
    elif layer is not None and not isinstance(layer, DropConnectLayer):
        refuse()
