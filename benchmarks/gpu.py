"""Training speed of ResNet-20-FRN ensembles on one GPU, every way in one run.

    python benchmarks/gpu.py [--quick] [--members 1 10 25 50 100] [--batch 64] [--json FILE]

A step is: gather the batches, SE1's forward pass (dropout at 0.3 on the convolutions), the loss,
the backward pass and SGD with Nesterov momentum. "loop" is the paper's way, one member at a time in
eager float32, and the same for any number of members. The number that counts is member-images per
second: members x batch / seconds of a step.
"""

import argparse
import importlib.metadata
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

import stochens
from stochens.kernels import conv, resnet
from stochens.members import Params
from stochens.networks import ResNet20FRN
from stochens.program.graph import graph_of
from stochens.program.resnet_fusion import resnet_of

RATE = 0.3
POINTS = 4096  # images on the GPU, of which batches are drawn
DECAY = 5.0 / 40960  # prior precision / images, as in the paper
SGD: dict[str, Any] = {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": DECAY}
Step = Callable[[], object]


def network() -> nn.Module:
    return stochens.stochastic(ResNet20FRN(), stochens.Dropout(RATE)).cuda()


def plain_network() -> nn.Module:
    """The same by torch's own dropout: what others would write, without our layers' cost."""
    net = ResNet20FRN().cuda()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, y: F.dropout(y, RATE))
    return net


def data() -> tuple[Tensor, Tensor]:
    x = torch.randn(POINTS, 3, 32, 32, device="cuda")
    return x, torch.randint(0, 10, (POINTS,), device="cuda")


def rows(members: int, batch: int) -> Tensor:
    return torch.randint(0, POINTS, (members, batch), device="cuda")


def stacked(net: nn.Module, members: int) -> Params:
    return {
        name: (p.detach().expand(members, *p.shape) * torch.rand(1, device="cuda")).requires_grad_()
        for name, p in net.named_parameters()
    }


def nll(outputs: Tensor, y: Tensor) -> Tensor:
    """Summed over members: each has its own gradient, whole."""
    losses = F.cross_entropy(outputs.float().flatten(0, 1), y.flatten(), reduction="none")
    return losses.view(y.shape).mean(1).sum()


# -- the ways -------------------------------------------------------------------------------------


def loop(members: int, batch: int) -> Step:
    """One step of one member; `main` counts it as one."""
    net, (x, y) = plain_network(), data()
    optimizer = torch.optim.SGD(net.parameters(), **SGD)
    own = rows(1, batch)

    def step() -> None:
        loss = nll(net(x[own[0]])[None], y[own])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def vmapped(members: int, batch: int, *, compiled: bool = False) -> Step:
    net, (x, y) = plain_network(), data()
    params, own = stacked(net, members), rows(members, batch)
    optimizer = torch.optim.SGD(params.values(), fused=True, **SGD)

    def loss_of(params: Params, x: Tensor, y: Tensor) -> Tensor:
        def one(member: Params, x: Tensor) -> Tensor:
            outputs: Tensor = functional_call(net, member, (x,))
            return outputs

        with torch.autocast("cuda", torch.bfloat16):
            outputs = vmap(one, randomness="different")(params, x)
        return nll(outputs, y)

    function = torch.compile(loss_of) if compiled else loss_of

    def step() -> None:
        function(params, x[own], y[own]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def vmap_and_compile(members: int, batch: int) -> Step:
    return vmapped(members, batch, compiled=True)


def ours(members: int, batch: int) -> Step:
    """The kernels, the whole step in one CUDA graph."""
    net, (x, y) = network(), data()
    params, own = stacked(net, members), rows(members, batch)
    optimizer = torch.optim.SGD(params.values(), fused=True, **SGD)
    found = resnet_of(graph_of(net), (3, 32, 32))
    assert found is not None
    assert conv.available()
    resnet.compile_steps(found.steps, x.device, backward=True)
    images, seed = conv.quads(x), torch.zeros(1, dtype=torch.int64, device="cuda")

    def step() -> None:
        outputs = resnet.run(found, params, images[own], seed=seed)
        nll(outputs, y[own]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seed.add_(1)

    return graph(step)


def ours_forward(members: int, batch: int) -> Step:
    """Prediction alone: all members on the same images."""
    net, (x, _) = network(), data()
    params = {name: p.detach() for name, p in stacked(net, members).items()}
    found = resnet_of(graph_of(net), (3, 32, 32))
    assert found is not None
    resnet.compile_steps(found.steps, x.device, backward=False)
    images, seed = conv.quads(x[:batch])[None], torch.zeros(1, dtype=torch.int64, device="cuda")
    return graph(lambda: resnet.run(found, params, images, seed=seed))


def graph(step: Step) -> Step:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        step()

    def replay(_: Step = step) -> None:  # which holds the tensors that the graph reads
        captured.replay()

    return replay


def jax_vmap(members: int, batch: int) -> Step:
    """The same network and step in JAX: jit of vmap, bf16 with float32 parameters."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the card is shared with torch
    import jax
    import jax.numpy as jnp

    net = ResNet20FRN()
    names = [name for name, _ in net.named_parameters()]
    params = {
        name: jnp.tile(jnp.asarray(p.detach().numpy())[None], (members, *[1] * p.dim()))
        for name, p in net.named_parameters()
    }
    x = jnp.zeros((members, batch, 32, 32, 3), jnp.bfloat16) + 0.5
    y = jnp.zeros((members, batch), jnp.int32)

    def block(p: Any, key: Any, path: str, norm: str, h: Any, stride: int = 1) -> Any:
        weight = p[f"{path}.weight"].astype(jnp.bfloat16)
        h = jax.lax.conv_general_dilated(
            h, weight, (stride, stride), "SAME", dimension_numbers=("NHWC", "OIHW", "NHWC")
        )
        h = h.astype(jnp.float32) + p[f"{path}.bias"]
        h = h * jax.random.bernoulli(key, 1 - RATE, h.shape) / (1 - RATE)
        h = h * jax.lax.rsqrt((h**2).mean((1, 2), keepdims=True) + 1e-6)
        h = jnp.maximum(h * p[f"{norm}.weight"] + p[f"{norm}.bias"], p[f"{norm}.tau"])
        return h.astype(jnp.bfloat16)

    def loss_of(p: Any, key: Any, x: Any, y: Any) -> Any:
        keys = iter(jax.random.split(key, 32))
        h = jax.nn.silu(block(p, next(keys), "conv", "norm", x))
        for k in range(9):
            at, stride = f"blocks.{k}.", 2 if k in (3, 6) else 1
            inner = jax.nn.silu(block(p, next(keys), at + "conv1", at + "norm1", h, stride))
            short = h
            if f"{at}conv_short.weight" in names:
                short = block(p, next(keys), at + "conv_short", at + "norm_short", h, stride)
            h = jax.nn.silu(short + block(p, next(keys), at + "conv2", at + "norm2", inner))
        pooled = h.astype(jnp.float32).mean((1, 2))
        logits = pooled @ p["head.weight"].T + p["head.bias"]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).mean()

    def update(params: Any, momentum: Any, key: Any) -> Any:
        keys = jax.random.split(key, members)
        grads = jax.vmap(jax.grad(loss_of))(params, keys, x, y)
        grads = jax.tree.map(lambda g, p: g + DECAY * p, grads, params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, g, m: p - 0.01 * (g + 0.9 * m), params, grads, momentum)
        return params, momentum

    compiled = jax.jit(update, donate_argnums=(0, 1))
    state = [params, jax.tree.map(jnp.zeros_like, params)]
    count = [0]

    def step() -> None:
        count[0] += 1
        state[:] = compiled(*state, jax.random.key(count[0]))
        jax.block_until_ready(state)  # type: ignore[no-untyped-call]

    return step


WAYS: dict[str, Callable[[int, int], Step]] = {
    "loop": loop,
    "vmap": vmapped,
    "vmap + compile": vmap_and_compile,
    "jax vmap": jax_vmap,
    "ours": ours,
    "ours, forward only": ours_forward,
}


# -- measuring ------------------------------------------------------------------------------------


def milliseconds(step: Step, *, repeats: int) -> list[float]:
    """Of one step, by device events (which a host-side wait inside the step cannot shorten)."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeats):
        begin.record()
        for _ in range(STEPS):
            step()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / STEPS)
    return times


STEPS = 5  # in each repeat


def ceilings() -> dict[str, float]:
    """What the device can do: a large copy (bytes read and written), a large bf16 product."""
    big = torch.randn(1 << 30, device="cuda")  # 4 GiB
    copy = statistics.median(milliseconds(lambda: big.clone(), repeats=3))
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    product = statistics.median(milliseconds(lambda: a @ a, repeats=3))
    return {
        "copy_tb_per_s": 2 * big.numel() * 4 / copy / 1e9,
        "bf16_tflop_per_s": 2 * 8192**3 / product / 1e9,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, nargs="*", default=[1, 10, 25, 50, 100])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--ways", nargs="*", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--quick", action="store_true", help="50 members, the loop and ours")
    parser.add_argument("--json", type=Path, help="gpu.json here, or with --quick none")
    args = parser.parse_args()
    file: Path | None = args.json or (None if args.quick else Path(__file__).parent / "gpu.json")
    members: list[int] = [50] if args.quick else args.members
    ways: list[str] = ["loop", "ours"] if args.quick else args.ways
    cases = []
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "jax": _version("jax"),
        "stochens": stochens.__version__,
        **ceilings(),
    }
    print(", ".join(f"{name} {value}" for name, value in about.items()), flush=True)
    print(f"{'':20} {'members':>8} {'ms a step':>10} {'member-images/s':>16}   spread", flush=True)
    for way in ways:
        for m in members[:1] if way == "loop" else members:
            many = 1 if way == "loop" else m
            torch.cuda.empty_cache()
            try:
                times = milliseconds(WAYS[way](many, args.batch), repeats=args.repeats)
            except (ImportError, RuntimeError) as error:  # no JAX, no memory
                print(f"{way:20} {many:8}   {type(error).__name__}: {str(error)[:80]}", flush=True)
                continue
            speeds = [many * args.batch / ms * 1e3 for ms in times]
            case = {
                "name": way,
                "members": many,
                "batch": args.batch,
                "member_images_per_s": round(statistics.median(speeds)),
                "spread": [round(min(speeds)), round(max(speeds))],
            }
            cases.append(case)
            print(
                f"{way:20} {many:8} {statistics.median(times):10.2f} "
                f"{case['member_images_per_s']:16,}   {min(speeds):,.0f} to {max(speeds):,.0f}",
                flush=True,
            )
            if file is not None:
                file.write_text(json.dumps({**about, "cases": cases}, indent=2) + "\n")


if __name__ == "__main__":
    main()
