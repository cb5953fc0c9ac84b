"""Training steps for all members at once by the networks of `stacked_networks.py`, or with each
member on its own CUDA stream, and the check that these networks are the loop over members."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from models import TINY
from stacked_layers import Tensors, distance, on_streams
from stacked_networks import Forward, Params, forwards
from ways import Case, Ready


def mean_loss(logits: Tensor, y: Tensor) -> Tensor:
    """Of logits [M, B, C]: the mean over a batch, summed over members."""
    losses = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="none")
    return losses.view(y.shape).mean(1).sum()


def check_networks() -> int:
    """Every stacked network against one member at a time, in float64; the number of them."""
    count = 0
    for name, network in TINY.items():
        nets = [network.build().double() for _ in range(3)]
        for net in nets:  # norms start at 1 and 0, and biases may: no member may look like another
            for p in net.parameters():
                p.data += 0.1 * torch.randn_like(p)
        params = {
            key: torch.stack([dict(net.named_parameters())[key].detach() for net in nets])
            for key, _ in nets[0].named_parameters()
        }
        x, y = network.data(12, torch.device("cpu"))
        x = (x if network.words else x.double()).unflatten(0, (3, 4))
        y = y.unflatten(0, (3, 4))

        def results_of(forward: Forward, params: Params = params, x: Tensor = x) -> Tensors:
            own = {key: p.clone().requires_grad_() for key, p in params.items()}
            logits = forward(own, x)
            return [
                logits.detach(),
                *torch.autograd.grad(logits.square().sum(), list(own.values())),
            ]

        def loop(own: Params, x: Tensor, net: torch.nn.Module = nets[0]) -> Tensor:
            each = ({key: p[k] for key, p in own.items()} for k in range(3))
            return torch.stack([functional_call(net, p, (x[k],)) for k, p in enumerate(each)])

        expected = results_of(loop)
        for form, forward in forwards(network).items():
            off = distance(results_of(forward), expected)
            assert off < 1e-10, f"{name}, {form}: {off} from the loop"  # as EXACT, times the depth
            count += 1
    return count


def stacked_params(case: Case) -> Params:
    """Members that differ a little: to draw each anew takes long on the CPU."""
    one = {name: p.detach().to(case.device) for name, p in case.network.build().named_parameters()}

    def many(p: Tensor) -> Tensor:
        own = p.expand(case.members, *p.shape)
        return own + 0.01 * torch.randn_like(own, memory_format=torch.contiguous_format)

    return {name: many(p).requires_grad_() for name, p in one.items()}


def stacked(
    case: Case, forward: Forward, *, compiled: bool, cast: bool = True, mode: str | None = None
) -> Ready:
    """All members in one program: bf16 copies of float32 parameters, fused Adam with L2.

    cast: False leaves the type of numbers to `forward`. mode: of torch.compile."""
    params = stacked_params(case)
    kind = torch.bfloat16 if case.cuda and cast else torch.float32
    x, y = case.data()
    x = x if case.network.words else x.to(kind)
    optimizer = case.adam(list(params.values()))

    def loss_of(params: Params, x: Tensor, y: Tensor) -> Tensor:
        return mean_loss(forward({name: p.to(kind) for name, p in params.items()}, x), y)

    function = torch.compile(loss_of, dynamic=False, mode=mode) if compiled else loss_of

    def step() -> None:
        rows = torch.randint(case.points, (case.members, case.batch), device=case.device)
        function(params, x[rows], y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Ready(step, case.members * case.batch)


def on_side_streams(
    case: Case, members: int | None = None, *, compiled: bool, forward: Forward | None = None
) -> Ready:
    """Each member's own step on a side stream, and one Adam for all of them at the end.

    forward: one member's outputs; None: the network itself, under autocast."""
    members = members or case.members
    network, device = case.network, case.device
    net = network.build().to(device)
    x, y = case.data()
    if network.image:
        x = x.permute(0, 2, 3, 1).contiguous()

    own: list[Params] = [{} for _ in range(members)]
    for name, p in stacked_params(case._replace(members=members)).items():
        for k in range(members):
            one = p[k].detach().clone()
            if network.image and one.dim() == 4:
                one = one.contiguous(memory_format=torch.channels_last)
            own[k][name] = one.requires_grad_()
    optimizer = case.adam([p for member in own for p in member.values()])

    def loss_of(params: Params, x: Tensor, y: Tensor) -> Tensor:
        images = x.permute(0, 3, 1, 2) if network.image else x
        if forward is not None:
            return F.cross_entropy(forward(params, images).float(), y)
        with torch.autocast(device.type, torch.bfloat16, enabled=case.cuda):
            outputs: Tensor = functional_call(net, params, (images,))
        return F.cross_entropy(outputs.float(), y)

    function = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> None:
        rows = torch.randint(case.points, (members, case.batch), device=device)

        def one(k: int) -> Tensor:
            loss = function(own[k], x[rows[k]], y[rows[k]])
            grads = torch.autograd.grad(loss, list(own[k].values()))
            for p, grad in zip(own[k].values(), grads, strict=True):
                same = grad.stride() == p.stride()  # which fused Adam asks for
                p.grad = grad if same else torch.empty_like(p).copy_(grad)
            return loss.detach()

        on_streams(one, members, at_most=members)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return Ready(step, members * case.batch)


def optimiser_alone(case: Case) -> Ready:
    params = stacked_params(case)
    for p in params.values():
        p.grad = 1e-3 * torch.randn_like(p)
    return Ready(case.adam(list(params.values())).step, case.members * case.batch)


def ways_of(name: str, case: Case) -> dict[str, Callable[[], Ready]]:
    """Every way to train this network, by name; the first is the peer."""
    if name == "lstm":  # torch.compile leaves an LSTM as it is
        ways: dict[str, Callable[[], Ready]] = {
            "one at a time, eager": partial(on_side_streams, case, 1, compiled=False),
            "members on streams, eager": partial(on_side_streams, case, compiled=False),
        }
    else:
        ways = {
            "one at a time, compiled": partial(on_side_streams, case, 1, compiled=True),
            "members on streams, compiled": partial(on_side_streams, case, compiled=True),
        }
    for form, forward in forwards(case.network).items():
        if form != "streams":  # torch.compile knows no side streams
            ways[f"{form}, compiled"] = partial(stacked, case, forward, compiled=True)
        ways[f"{form}, eager"] = partial(stacked, case, forward, compiled=False)
    return {**ways, "optimiser alone": partial(optimiser_alone, case)}
