"""The program of every network with every method: it is vmap, and it is the loop."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.long import crossed, long_but
from tests.methods.test_conformance import ADAPTERS, METHODS, NETWORKS, B, Case, M, case_of, wide
from tests.tolerance import close
from torch import Tensor, nn

from stochens.kernels.noise import words
from stochens.members import Params, forward, forward_each
from stochens.methods import stochastic
from stochens.program.apart import Apart
from stochens.program.noise import by_kernel, plain
from stochens.program.program import Noise, build, cast
from stochens.program.trace import Untraceable
from stochens.randomness.noise import hashed_words, member_noise

IDS, SEED = torch.tensor([3, 8]), torch.tensor([11])
NOISE = Noise(IDS, SEED)


def results(call: Callable[[Params], Tensor], params: Params) -> list[Tensor]:
    """Outputs and gradients of every parameter."""
    own = {name: p.clone().requires_grad_() for name, p in params.items()}
    outputs = call(own)
    grads = torch.autograd.grad(outputs.square().sum(), list(own.values()), allow_unused=True)
    return [outputs.detach(), *(torch.zeros(()) if g is None else g for g in grads)]


def assert_same(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        # some ten layers of sums of at most 100 terms, whose gradients may be a thousand times 1
        scale = max(1.0, float(b.abs().max()))
        torch.testing.assert_close(a, b, **close(torch.float64, terms=100, depth=20, scale=scale))


CASES = [*crossed([*NETWORKS], [*METHODS], each=1), *crossed([*NETWORKS], [*ADAPTERS], each=1)]


@pytest.mark.parametrize(("network", "method"), CASES)
def test_program_is_vmap_is_loop(network: str, method: str) -> None:
    case: Case = wide(case_of(network, method))
    program = build(case.net, case.x)
    each = torch.stack([case.x, case.x.flip(0)])
    ours = results(lambda p: program(p, case.x, NOISE), case.params)
    ours_each = results(lambda p: program.each(p, each, NOISE), case.params)
    for engine in case.row.engines:

        def shared(p: Params, engine: Any = engine) -> Tensor:
            with member_noise(IDS, SEED, words):
                return forward(case.net, p, case.x, engine=engine)

        def own(p: Params, engine: Any = engine) -> Tensor:
            with member_noise(IDS, SEED, words):
                return forward_each(case.net, p, each, engine=engine)

        assert_same(ours, results(shared, case.params))
        assert_same(ours_each, results(own, case.params))
    second = {name: p[1] for name, p in case.params.items()}
    one = program.one(second, case.x, Noise(IDS[1], SEED))
    assert_same([one], [ours[0][1]])


def test_any_batch_serves() -> None:
    case = wide(case_of("transformer", "dropout"))
    program = build(case.net, case.x)
    for count in (1, 2, B + 3):
        x = torch.randn(count, *case.row.x, dtype=torch.float64)
        with member_noise(IDS, SEED):
            expected = forward(case.net, case.params, x)
        assert_same([program(case.params, x, NOISE)], [expected])


class Pads(nn.Module):
    """The first four words of an example, and zeros where it has fewer: what a trace for one length
    says of another is wrong without a word."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        first = x[:, :4]
        return self.layer(nn.functional.pad(first, (0, 4 - first.shape[1])))


def test_examples_of_another_length_are_traced_again() -> None:
    net = Pads().double()
    params = {name: torch.stack([p.detach()] * M) for name, p in net.named_parameters()}
    program = build(net, torch.randn(4, 3, dtype=torch.float64))
    for length in (3, 6, 2, 4):
        x = torch.randn(5, length, dtype=torch.float64)
        torch.testing.assert_close(program(params, x), forward(net, params, x))


class BatchMatters(nn.Module):
    """A layer whose outputs are multiplied by a number that depends on how many examples come."""

    def __init__(self, factor: Callable[[int], float]) -> None:
        super().__init__()
        self.layer, self.factor = nn.Linear(3, 2), factor

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.factor(len(x))


@pytest.mark.parametrize(
    "factor",
    [
        lambda b: 1.0 / float(b),
        lambda b: 2.0 if b < 5 else 3.0,
        lambda b: 2.0 if b % 2 == 0 else 3.0,
        lambda b: 2.0 if b == 1 else 3.0,
    ],
)
def test_a_network_that_looks_at_its_batch_is_traced_for_each(factor: Any) -> None:
    net = BatchMatters(factor).double()
    params = {name: torch.stack([p.detach()] * M) for name, p in net.named_parameters()}
    program = build(net, torch.randn(4, 3, dtype=torch.float64))
    for count in (4, 6, 1, 2, 5, 9):
        x = torch.randn(count, 3, dtype=torch.float64)
        torch.testing.assert_close(program(params, x), forward(net, params, x))


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if (x > 0).all() else self.layer(-x)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.layer(x), x


class WithoutGradient(nn.Module):
    """Angles without gradients and without autocast, as rotary places are made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(3, 2), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            angles = self.scale(x)
            with torch.autocast(x.device.type, enabled=False):
                sin, cos = angles.sin(), angles.cos()
            halved = 0.5 * sin
        return self.layer(self.scale(x) * halved) + cos[:, :2]


class WithAutocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16):
            y = self.layer(x)
        return y.float()


@pytest.mark.parametrize(
    ("net", "said"), [(Branching(), "data-dependent"), (Two(), "more than one tensor")]
)
def test_what_cannot_be_traced_says_why(net: nn.Module, said: str) -> None:
    with pytest.raises(Untraceable, match=said):
        build(net, torch.randn(4, 3))


def test_a_block_without_gradients() -> None:
    net = WithoutGradient().double()
    params = {name: torch.randn(M, *p.shape).double() for name, p in net.named_parameters()}
    x = torch.randn(4, 3, dtype=torch.float64)
    program = build(net, x)
    ours = results(lambda p: program(p, x), params)
    assert_same(ours, results(lambda p: forward(net, p, x, engine="loop"), params))


def test_a_block_in_another_precision_is_refused() -> None:
    with pytest.raises(Untraceable, match="graph of its own"):
        build(WithAutocast(), torch.randn(4, 3))


class InPlace(nn.Module):
    """Changes what it has made, and part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.act = nn.ReLU(inplace=True)
        self.register_buffer("shift", torch.arange(4.0))

    def forward(self, x: Tensor) -> Tensor:
        y = 2 * self.act(self.layer(x))
        y += self.shift
        y[:, 1] = 0
        return y


def test_changes_in_place_and_buffers() -> None:
    net = InPlace().double()
    params = {name: torch.randn(M, *p.shape).double() for name, p in net.named_parameters()}
    x = torch.randn(4, 3, dtype=torch.float64)
    program = build(net, x)
    ours = results(lambda p: program(p, x), params)
    assert_same(ours, results(lambda p: forward(net, p, x, engine="loop"), params))


def test_the_networks_own_dropout_draws_for_each_member() -> None:
    net = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5))
    params = {name: torch.stack([p.detach()] * M) for name, p in net.named_parameters()}
    x = torch.randn(4, 3)
    outputs = build(net.train(), x)(params, x)
    assert not torch.equal(outputs[0], outputs[1])
    outputs = build(net.eval(), x)(params, x)
    assert torch.equal(outputs[0], outputs[1])


def test_a_program_in_bfloat16_gives_what_its_parameters_are() -> None:
    case = case_of("transformer", "gaussian")
    outputs = build(case.net, case.x, dtype=torch.bfloat16)(case.params, case.x, NOISE)
    assert outputs.dtype == torch.float32
    expected = build(case.net, case.x)(case.params, case.x, NOISE)
    within = close(torch.bfloat16, terms=4, depth=10)
    torch.testing.assert_close(outputs, expected, **within)


@pytest.mark.parametrize("backend", long_but({"aot_eager"}, ["aot_eager", "inductor"]))
def test_compiled_is_eager(backend: str) -> None:
    """Noise too: inside torch.compile it comes from a formula, elsewhere from a kernel."""
    net = stochastic(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)), "dropout")
    params = {name: torch.randn(M, *p.shape) for name, p in net.named_parameters()}
    x = torch.randn(4, 3)
    program = build(net, x)
    compiled = torch.compile(program, dynamic=False, fullgraph=True, backend=backend)
    within = close(torch.float32, terms=10, depth=4)
    torch.testing.assert_close(compiled(params, x, NOISE), program(params, x, NOISE), **within)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4)])
def test_the_three_ways_to_draw_words_agree(shape: tuple[int, ...]) -> None:
    for site in (0, 7):
        expected = hashed_words(IDS, SEED, site, shape)
        assert torch.equal(by_kernel(IDS, SEED, site, list(shape)), expected)
        assert torch.equal(plain(IDS, SEED, site, shape), expected)
        assert torch.equal(plain(IDS[1], SEED, site, shape), expected[1])


def test_fresh_noise_differs_from_pass_to_pass() -> None:
    case = case_of("linear", "dropout")
    program = build(case.net, case.x)
    first, second = (program(case.params, case.x) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("network", ["conv2d", "transformer"])
def test_one_member_a_stream_is_the_same(network: str) -> None:
    case = wide(case_of(network, "dropout"))
    program = build(case.net, case.x)
    streams = Apart(program)
    each = torch.stack([case.x, case.x.flip(0)])
    for ours, theirs in [
        (lambda p: streams(p, case.x, NOISE), lambda p: program(p, case.x, NOISE)),
        (lambda p: streams.each(p, each, NOISE), lambda p: program.each(p, each, NOISE)),
    ]:
        assert_same(results(ours, case.params), results(theirs, case.params))
    assert streams(case.params, case.x).shape == program(case.params, case.x).shape


def test_a_cast_gradient_lies_as_its_parameter_does() -> None:
    """So that an optimiser needs no copy of it."""
    weight = torch.randn(2, 5, 3, requires_grad=True)
    x = torch.randn(2, 4, 3).bfloat16()
    y = torch.bmm(x, cast(weight, torch.bfloat16).mT)
    (grad,) = torch.autograd.grad(y.float().square().sum(), weight)
    assert grad.dtype == torch.float32
    assert grad.stride() == weight.stride()
    dy = (2 * y.detach().float()).bfloat16()
    torch.testing.assert_close(grad, torch.bmm(dy.mT, x).float())
