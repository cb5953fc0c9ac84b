"""bfloat16 under vmap. On a CPU that has CUDA's rules; tests/test_cuda.py has the GPU's own."""

import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.methods.test_conformance import NETWORKS, inputs_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import stochens
from stochens.likelihoods import Categorical
from stochens.members import forward, forward_each, trainable
from stochens.objective import mean_nll
from stochens.randomness.seeds import seeded

M = 2
BF16 = 2.0**-8  # bfloat16's rounding, relative; a few of them add up in two or three layers
LAYERS = 8


class Function(nn.Module):
    """A function between two layers, the first of which gives bfloat16 under autocast."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.one, self.two = nn.Linear(6, 6, bias=False), nn.Linear(18, 2, bias=False)
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.function(self, self.one(x)).flatten(1))


def norm(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Function(lambda net, y: net.norm(y), norm=layer())


def frozen(layer: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    """With its weights shared by all members."""
    return lambda: Function(lambda net, y: net.norm(y), norm=layer().requires_grad_(False))


def calls(function: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Function(lambda net, y: function(y))


def attention(**options: Any) -> Callable[[], nn.Module]:
    own = functools.partial(nn.MultiheadAttention, 6, 2, batch_first=True)
    return lambda: Function(lambda net, y: net.own(y, y, y, **options)[0], own=own())


def sdpa(y: Tensor, **options: Any) -> Tensor:
    y = y.unsqueeze(1)
    return F.scaled_dot_product_attention(y, y, y, **options).squeeze(1)


def fixed_statistics(y: Tensor) -> Tensor:
    one = torch.ones(3, device=y.device)
    return F.batch_norm(y, 0 * one, one, one, 0 * one)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: nn.LayerNorm(6),
    "group": lambda: nn.GroupNorm(3, 3),
    "rms": lambda: nn.RMSNorm(6),
    "instance": lambda: nn.InstanceNorm1d(3, affine=True),
}
EXTRA: dict[str, Callable[[], nn.Module]] = {
    **{f"{name}-norm": norm(layer) for name, layer in NORMS.items()},
    **{f"frozen-{name}-norm": frozen(layer) for name, layer in NORMS.items()},
    "batch-norm": calls(fixed_statistics),
    "attention-with-weights": attention(),
    "attention-without-weights": attention(need_weights=False),
    "sdpa": calls(sdpa),
    "sdpa-causal": calls(functools.partial(sdpa, is_causal=True)),
    "sdpa-mask": calls(lambda y: sdpa(y, attn_mask=torch.zeros(3, 3, device=y.device))),
    "softmax": calls(lambda y: y.softmax(-1)),
    "log-softmax": calls(lambda y: F.log_softmax(y, -1)),
    "prelu": lambda: Function(lambda net, y: net.own(y), own=nn.PReLU()),
    "cdist": calls(lambda y: torch.cdist(y, y + 1) @ y),
    "bilinear": lambda: Function(lambda net, y: net.own(y, y), own=nn.Bilinear(6, 6, 6)),
    "transformer-layer": norm(lambda: nn.TransformerEncoderLayer(6, 2, 8, 0.0, batch_first=True)),
}
CASES = {
    **{name: row.build for name, row in NETWORKS.items() if "vmap" in row.engines},
    **EXTRA,
}


@pytest.fixture(autouse=True)
def rules_of_cuda() -> Iterator[None]:
    """Softmax is of float32 under autocast, as it is on CUDA, and not on a CPU."""

    def softmax(x: Tensor, dim: int, dtype: Any = None) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.softmax(x, dim, dtype=dtype or torch.float32)

    with torch.library._scoped_library("aten", "IMPL") as rules:
        rules.impl("softmax.int", softmax, "AutocastCPU")
        yield


class RefusesMixed(TorchDispatchMode):
    """What CUDA refuses, and a CPU lets pass: "expected input and grad types to match"."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._softmax_backward_data.default:
            grad, output, _, dtype = args
            assert grad.dtype == output.dtype == dtype
        return func(*args, **(kwargs or {}))


def case(name: str) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    with seeded(0):
        net = CASES[name]()
        params = {n: p.detach().expand(M, *p.shape).clone() for n, p in trainable(net).items()}
        params = {n: p + 0.1 * torch.randn_like(p) for n, p in params.items()}
        x = inputs_of(NETWORKS[name]) if name in NETWORKS else torch.randn(4, 3, 6)
    return net, params, x


def gradients(net: nn.Module, params: dict[str, Tensor], x: Tensor, engine: Any) -> Any:
    own = {n: p.clone().requires_grad_() for n, p in params.items()}
    outputs = forward_each(net, own, x.expand(M, *x.shape), engine=engine)
    with RefusesMixed():
        found = torch.autograd.grad(outputs.square().sum(), list(own.values()))
    return outputs.detach(), dict(zip(own, found, strict=True))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # vmap has no rule for bilinear
@pytest.mark.parametrize("name", CASES)
def test_a_step_in_bf16_is_the_step_to_rounding(name: str) -> None:
    net, params, x = case(name)
    wide, known = gradients(net, params, x, "loop")
    with torch.autocast("cpu", torch.bfloat16):
        outputs, found = gradients(net, params, x, "vmap")
    assert outputs.dtype == torch.float32
    assert (outputs - wide).norm() < LAYERS * BF16 * wide.norm()
    # the gradient of all parameters as one: of some it is 0, and has nothing but rounding
    slopes = [torch.cat([g.flatten() for g in part.values()]) for part in (found, known)]
    assert all(found[n].dtype == torch.float32 for n in params)
    assert (slopes[0] - slopes[1]).norm() < LAYERS * BF16 * slopes[1].norm()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):  # in prediction, x is shared
        again = forward(net, params, x)
    assert (again - wide).norm() < LAYERS * BF16 * wide.norm()


def test_a_loop_has_the_same_types() -> None:
    net, params, x = case("transformer")
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = gradients(net, params, x, "loop")
    assert outputs.dtype == torch.float32


def test_without_autocast_nothing_is_cast() -> None:
    for dtype in (torch.float64, torch.bfloat16):
        net, params, x = case("transformer")
        outputs = forward(net.to(dtype), {n: p.to(dtype) for n, p in params.items()}, x.to(dtype))
        assert outputs.dtype == dtype


@pytest.mark.skipif(torch.__version__ < "2.11", reason="torch.compile of vmap")
def test_a_compiled_step_has_the_casts() -> None:
    net, params, x = case("sdpa")
    y, rows = torch.zeros(4, dtype=torch.int64), torch.arange(4).expand(M, 4)
    step = mean_nll(net, Categorical(), engine="vmap", bf16=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(step, backend="eager", dynamic=False)
        found = compiled(params, x, y, rows)
    torch.testing.assert_close(found, step(params, x, y, rows), rtol=LAYERS * BF16, atol=0)


def test_the_loss_is_not_in_bf16() -> None:
    """A likelihood of the user's own has float32 outputs, and no autocast: F.binary_cross_entropy
    is one of the losses that CUDA's autocast refuses."""
    seen = []

    class Own(Categorical):
        def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
            seen.append((outputs.dtype, torch.is_autocast_enabled("cpu")))
            return super().nll(outputs, y, weights)

    net, params, x = case("sdpa")  # whose last layer has no bias, and so gives bfloat16
    y = torch.zeros(4, dtype=torch.int64)
    for engine in ("vmap", "loop"):
        step = mean_nll(net, Own(), engine=engine, bf16=True)
        step(params, x, y, torch.arange(4).expand(M, 4))
        step(params, x, y, None)
    assert seen == [(torch.float32, False)] * 4


def test_bf16_is_still_refused_on_a_cpu() -> None:
    with pytest.raises(stochens.InputError, match="precision='bf16' is for CUDA"):
        stochens.fit(
            nn.Linear(2, 2),
            (torch.zeros(4, 2), torch.arange(4) % 2),
            run=stochens.Run(precision="bf16"),
        )
