"""Products under vmap: no copy of the weights for each position, and the numbers of a loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from stochens import products
from stochens.likelihoods import Categorical
from stochens.members import Params, builder, forward, forward_each, init, trainable
from stochens.methods import Dropout, stochastic
from stochens.objective import mean_nll
from stochens.randomness.noise import member_noise

M, B, T, W = 3, 4, 10, 24  # T positions would make ten copies of the weights
HEADS, FORWARD, OUT = 2, 32, 72  # OUT: queries, keys and values side by side, or a layer as wide
BF16 = 2.0**-8  # bfloat16's rounding, relative


class Net(nn.Module):
    """A function of x [B, T, W] and a layer."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], layer: nn.Module) -> None:
        super().__init__()
        self.run, self.layer = run, layer

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self.layer, x).flatten(1)


def attention(run: Callable[[Any, Tensor], Tensor], **options: Any) -> Callable[[], nn.Module]:
    return lambda: Net(run, nn.MultiheadAttention(W, HEADS, **options))


def encoder(*, batch_first: bool, norm_first: bool = False) -> Callable[[], nn.Module]:
    def run(layer: Any, x: Tensor) -> Tensor:
        return layer(x) if batch_first else layer(x.transpose(0, 1)).transpose(0, 1)

    options: Any = {"batch_first": batch_first, "norm_first": norm_first}
    return lambda: Net(run, nn.TransformerEncoderLayer(W, HEADS, FORWARD, 0.0, **options))


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(W, OUT))

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)


def product(run: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: Net(
        lambda layer, x: run(x.transpose(0, 1), layer.weight).transpose(0, 1), Weight()
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "attention": attention(lambda a, x: a(x, x, x)[0], batch_first=True),
    "attention, T first": attention(lambda a, x: a(*[x.transpose(0, 1)] * 3)[0].transpose(0, 1)),
    "attention, across": attention(lambda a, x: a(x, x[:, ::2], x[:, ::2])[0], batch_first=True),
    "attention, three inputs": attention(
        lambda a, x: a(x, x + 1, x - 1, need_weights=False)[0], batch_first=True
    ),
    "attention, keys apart": attention(
        lambda a, x: a(x, x[..., :5], x[..., :6])[0], batch_first=True, kdim=5, vdim=6
    ),
    "encoder": encoder(batch_first=True),
    "encoder, norms first": encoder(batch_first=True, norm_first=True),
    "encoder, T first": encoder(batch_first=False),
    "mixer": lambda: Net(lambda layer, x: layer(x.transpose(1, 2)), nn.Linear(T, W)),
    "mixer, no bias": lambda: Net(
        lambda layer, x: layer(x.transpose(1, 2)), nn.Linear(T, W, bias=False)
    ),
    "T first": lambda: Net(
        lambda layer, x: layer(x.transpose(0, 1)).transpose(0, 1), nn.Linear(W, OUT)
    ),
    "four axes": lambda: Net(
        lambda layer, x: layer(x.unflatten(1, (2, -1)).transpose(1, 2)), nn.Linear(W, OUT)
    ),
    "matmul": product(torch.matmul),
    "@": product(lambda x, w: x @ w),
    "@ a vector": product(lambda x, w: x @ w[:, 0]),
}


def case(name: str) -> tuple[nn.Module, Params]:
    torch.manual_seed(0)
    net = NETWORKS[name]()
    return net, init(builder(net), members=range(M), seed=0)


class Largest(TorchDispatchMode):
    """How many numbers the largest tensor has that was made inside."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else [out]:
            if isinstance(t, Tensor):  # a view has the memory of what it shows
                self.numbers = max(self.numbers, t.untyped_storage().nbytes() // t.itemsize)
        return out


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_no_weights_are_copied_for_each_position(name: str, own_rows: bool) -> None:
    net, params = case(name)
    x = torch.randn((M, B, T, W) if own_rows else (B, T, W))
    leaves = [p.requires_grad_() for p in params.values()]
    run = forward_each if own_rows else forward
    with Largest() as seen:
        torch.autograd.grad(run(net, params, x).square().sum(), leaves)
    # of all members: the widest layer's outputs, its weights, and attention's own [B, heads, T, T]
    widest = max(B * T * OUT, B * HEADS * T * T, *(p[0].numel() for p in leaves))
    assert seen.numbers <= M * widest


def test_that_is_what_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch alone makes the copy. Where it no longer does, `products.py` can go."""
    monkeypatch.setattr(products, "OF", {})
    net, params = case("attention")
    with Largest() as seen:
        forward(net, params, torch.randn(B, T, W))
    assert seen.numbers == M * T * W * OUT


@pytest.mark.parametrize("own_rows", [False, True])
@pytest.mark.parametrize("name", NETWORKS)
def test_members_are_those_of_a_loop(name: str, own_rows: bool, float64: None) -> None:
    """Values and gradients, of inputs too."""
    net, params = case(name)
    x = torch.randn((M, B, T, W) if own_rows else (B, T, W)).requires_grad_()
    leaves = [x, *(p.requires_grad_() for p in params.values())]
    run = forward_each if own_rows else forward
    ours, theirs = (run(net, params, x, engine=engine) for engine in ("vmap", "loop"))
    # ten layers of sums; in a gradient over all rows
    within = close(torch.float64, terms=M * B * T * FORWARD, depth=2 * 10, scale=100.0)
    torch.testing.assert_close(ours, theirs, **within)
    along = torch.randn_like(theirs)
    pairs = (torch.autograd.grad(y, leaves, along) for y in (ours, theirs))
    for a, b in zip(*pairs, strict=True):
        torch.testing.assert_close(a, b, **within)


@pytest.mark.parametrize("name", ["attention", "encoder", "encoder, T first", "mixer"])
def test_with_noise_too(name: str, float64: None) -> None:
    plain, params = case(name)
    net = stochastic(plain, Dropout(0.3), output="(none)")  # every layer has noise
    assert set(trainable(net)) == set(params)
    x = torch.randn(B, T, W)

    def outputs(engine: Any) -> Tensor:
        with member_noise(torch.arange(M), torch.tensor([5])):
            return forward(net, params, x, engine=engine)

    with Largest() as seen:
        ours = outputs("vmap")
    assert seen.numbers <= M * max(B * T * OUT, W * OUT)
    within = close(torch.float64, terms=B * T * FORWARD, depth=10, scale=100.0)
    torch.testing.assert_close(ours, outputs("loop"), **within)
    assert not torch.equal(ours, forward(plain, params, x))


@pytest.mark.parametrize("name", NETWORKS)
def test_in_bf16_too(name: str) -> None:
    net, params = case(name)
    x = torch.randn(B, T, W)
    wide = forward(net, params, x, engine="loop")
    with torch.autocast("cpu", torch.bfloat16), Largest() as seen:
        ours = forward(net, params, x)
    assert (ours - wide).norm() < 8 * BF16 * wide.norm()  # eight roundings on the way
    widest = max(B * T * OUT, B * HEADS * T * T, *(p[0].numel() for p in params.values()))
    assert seen.numbers <= M * widest


def test_queries_that_are_keys_stay_it() -> None:
    """Or there would be three products where one serves."""
    net, params = case("attention")
    seen: list[Any] = []

    class Counted(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    with Counted():
        forward(net, params, torch.randn(B, T, W))
    assert seen.count(torch.ops.aten.bmm.default) == 4  # inputs, q k', attention, outputs


@pytest.mark.filterwarnings("ignore")  # what torch.compile says of torch itself
@pytest.mark.skipif(torch.__version__ < "2.11", reason="torch.compile of vmap")
@pytest.mark.parametrize("name", ["encoder", "T first"])
def test_a_compiled_step_has_it_too(name: str) -> None:
    net, params = case(name)
    y, rows = torch.zeros(B, dtype=torch.int64), torch.arange(B).expand(M, B)
    step = mean_nll(net, Categorical(), engine="vmap")
    compiled = torch.compile(step, backend="eager", dynamic=False)
    x = torch.randn(B, T, W)
    with Largest() as seen:
        found = compiled(params, x, y, rows)
    assert seen.numbers <= M * max(B * T * OUT, B * HEADS * T * T, W * OUT)
    within = close(torch.float32, terms=FORWARD, depth=10)
    torch.testing.assert_close(found, step(params, x, y, rows), **within)


def test_a_network_of_rows_alone_is_soon_without_the_mode() -> None:
    net = nn.Sequential(nn.Linear(W, 5), nn.Tanh(), nn.Linear(5, 2))
    params = init(builder(net), members=range(M), seed=0)
    rows, positions = torch.randn(B, W), torch.randn(B, T, W)
    for x, without in ((rows, False), (rows, True), (positions, False), (positions, False)):
        assert (products.in_order(net, [x]) is products._nothing) == without
        forward(net, params, x)
