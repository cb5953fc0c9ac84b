"""The ways to train that `networks.py` compares: one member at a time, vmap, JAX, `fit`."""

import itertools
import math
import os
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

import stochens
from models import Network
from timing import OutOfTime, Row, Step, rate_row

RATE = 1e-3
JAX_STEPS = 20  # in one call


class Case(NamedTuple):
    """A network, how many members and examples, and where."""

    network: Network
    members: int
    batch: int
    points: int
    device: torch.device

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    def data(self) -> tuple[Tensor, Tensor]:
        return self.network.data(self.points, self.device)

    def adam(self, params: list[Tensor]) -> torch.optim.Adam:
        """With the gradient of the prior's L2, theta / N."""
        return torch.optim.Adam(
            params, lr=RATE, weight_decay=1 / self.points, fused=True, capturable=self.cuda
        )


class Ready(NamedTuple):
    """A step that can be timed."""

    step: Step
    examples: int  # member-examples in one step of training
    steps: int = 1  # of training, in one call
    recordable: bool = True


# -- one member at a time --------------------------------------------------------------------------


def one_member(case: Case, *, compiled: bool, times: int = 1) -> Ready:
    network, device, batch = case.network, case.device, case.batch * times
    net = network.build().to(device)
    x, y = case.data()
    if network.image:  # images lie as [N, H, W, C], and so do their batches
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        x = x.permute(0, 2, 3, 1).contiguous()
    optimizer = case.adam(list(net.parameters()))

    def loss_of(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=case.cuda):
            outputs: Tensor = net(x.permute(0, 3, 1, 2) if network.image else x)
        return F.cross_entropy(outputs.float(), y)

    function = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> None:
        rows = torch.randint(case.points, (batch,), device=device)
        function(x[rows], y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.backends.cudnn.benchmark = True
    return Ready(step, batch)


def loop(case: Case) -> Ready:
    return one_member(case, compiled=False)


def compiled_loop(case: Case) -> Ready:
    return one_member(case, compiled=True)


def batch_4(case: Case) -> Ready:
    return one_member(case, compiled=True, times=4)


def batch_10(case: Case) -> Ready:
    return one_member(case, compiled=True, times=10)


# -- all members at once, by others ----------------------------------------------------------------


def vmapped(case: Case, *, compiled: bool = True) -> Ready:
    device, net = case.device, case.network.build().to(case.device)
    x, y = case.data()
    params = {
        name: torch.stack([p.detach()] * case.members).requires_grad_()
        for name, p in net.named_parameters()
    }
    optimizer = case.adam(list(params.values()))

    def loss_of(params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        def one(member: dict[str, Tensor], x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(net, member, (x,))
            return outputs

        with torch.autocast(device.type, torch.bfloat16, enabled=case.cuda):
            outputs = vmap(one)(params, x)  # [M, B, C]
        losses = F.cross_entropy(outputs.float().flatten(0, 1), y.flatten(), reduction="none")
        return losses.view(y.shape).mean(1).sum()

    function = torch.compile(loss_of, dynamic=False) if compiled else loss_of

    def step() -> None:
        rows = torch.randint(case.points, (case.members, case.batch), device=device)
        function(params, x[rows], y[rows]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    torch.backends.cudnn.benchmark = True
    return Ready(step, case.members * case.batch)


def vmap_and_compile(case: Case) -> Ready:
    return vmapped(case)


def vmap_eager(case: Case) -> Ready:
    return vmapped(case, compiled=False)


def jax_vmap(case: Case) -> Ready:
    """jit of vmap, many steps in one call; chains of linear layers alone. bf16 on a GPU."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the card is shared with torch
    import jax
    import jax.numpy as jnp

    net = case.network.build()
    linear = [m for m in net.modules() if isinstance(m, nn.Linear)]
    if not isinstance(net, stochens.MLP):
        raise NotImplementedError("the JAX row is written for MLPs alone")
    kind = jnp.bfloat16 if case.cuda else jnp.float32

    def stacked(t: Tensor) -> Any:
        one = jnp.asarray(t.detach().numpy())[None]
        return jnp.tile(one, (case.members, *[1] * t.dim()))

    params = [(stacked(m.weight.T), stacked(m.bias)) for m in linear]
    x, y = (jnp.asarray(t.numpy()) for t in case.network.data(case.points, torch.device("cpu")))
    x = x.astype(kind)

    def loss_of(p: Any, x: Any, y: Any) -> Any:
        for k, (weight, bias) in enumerate(p):
            x = x @ weight.astype(kind) + bias.astype(kind)
            x = jnp.maximum(x, 0) if k + 1 < len(p) else x
        logits = jax.nn.log_softmax(x.astype(jnp.float32))
        return -jnp.take_along_axis(logits, y[:, None], 1).mean()

    def update(state: Any, _: Any) -> Any:
        p, m, v, t, key = state
        key, own = jax.random.split(key)
        rows = jax.random.randint(own, (case.members, case.batch), 0, case.points)
        g = jax.vmap(jax.grad(loss_of))(p, x[rows], y[rows])
        g = jax.tree.map(lambda g, p: g + p / case.points, g, p)
        t = t + 1
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)

        def moved(p: Any, m: Any, v: Any) -> Any:
            return p - RATE * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)

        return (jax.tree.map(moved, p, m, v), m, v, t, key), None

    def many(state: Any) -> Any:
        return jax.lax.scan(update, state, None, length=JAX_STEPS)[0]

    run = jax.jit(many, donate_argnums=(0,))
    zeros = jax.tree.map(jnp.zeros_like, params)
    again = jax.tree.map(jnp.zeros_like, params)
    held = [(params, zeros, again, jnp.zeros(()), jax.random.key(0))]

    def step() -> None:
        held[0] = run(held[0])
        jax.block_until_ready(held[0])  # type: ignore[no-untyped-call]

    return Ready(step, case.members * case.batch, JAX_STEPS, recordable=False)


# -- fit -------------------------------------------------------------------------------------------


class Enough(Exception):
    """`fit` has run for as long as it takes to know its rate."""


def fit_row(case: Case, run: stochens.Run, *, intervals: int, each: float) -> Row:
    """The rate between the ends of epochs; `intervals` = 0 stops where training has begun."""
    marks: list[tuple[float, int]] = []  # (clock, member-steps), the GPU waited for by the loss

    def show(done: int, total: int, note: str | None) -> None:
        if note is None or not note.startswith("loss"):  # the end of an epoch
            return
        marks.append((time.perf_counter(), done))
        long_enough = marks[-1][0] - marks[0][0] >= intervals * each
        if len(marks) > intervals and long_enough:
            raise Enough

    began = time.perf_counter()
    try:
        stochens.fit(
            case.network.build,
            case.network.data(case.points, torch.device("cpu")),
            method="regular",
            members=case.members,
            epochs=10**6,
            batch_size=case.batch,
            lr=RATE,
            device=case.device,
            progress=show,
            run=run,
        )
    except Enough:
        pass
    except OutOfTime:
        if len(marks) < 2:
            raise
    if intervals == 0:
        return {}
    gaps = [(t1 - t0, n1 - n0) for (t0, n0), (t1, n1) in itertools.pairwise(marks)]
    row = rate_row([case.members * t / n for t, n in gaps], case.members * case.batch)
    # an epoch is so many steps of each member that trains now: a gap is some epochs
    together = math.gcd(*(n for _, n in gaps)) // math.ceil(case.points / case.batch)
    return {**row, "setup_s": round(marks[0][0] - began, 2), "together_at_most": together}


Prepare = Callable[[Case], Ready]
OTHERS: dict[str, Prepare] = {
    "loop": loop,
    "compiled loop": compiled_loop,
    "4x batch": batch_4,
    "10x batch": batch_10,
    "vmap": vmap_eager,
    "vmap + compile": vmap_and_compile,
    "jax": jax_vmap,
}
FITS = {
    "fit": stochens.Run(),
    "fit, bf16": stochens.Run(precision="bf16"),
    "fit, compile": stochens.Run(engine="compile"),
    "fit, compile, bf16": stochens.Run(engine="compile", precision="bf16"),
}
