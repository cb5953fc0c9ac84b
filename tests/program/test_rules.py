"""Each rule of the table against its operator for one member after the other, wherever the members
are; vmap is no reference for all (its embedding gives a padding row a gradient)."""

import functools
import itertools
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, fx, nn

from stochens.program import operators, rules
from stochens.program.stacker import Stacker, Value

aten = torch.ops.aten
M, B = 3, 2


class Normal(tuple[int, ...]):
    """The shape of one member's tensor of normal numbers."""


def n(*shape: int) -> Normal:
    return Normal(shape)


class Positive(Normal):
    """Likewise of positive ones, without a gradient."""


class Index(tuple[int, ...]):
    """The shape of a tensor of whole numbers below 5."""


def made(shape: Any) -> Tensor:
    """For all members, [M, *shape]."""
    if isinstance(shape, Index):
        return torch.randint(5, (M, *shape))
    numbers = torch.randn((M, *shape), dtype=torch.float64)
    return numbers.square() + 0.1 if isinstance(shape, Positive) else numbers


# An operator and its arguments, shapes in place of tensors. "channels": the first may be there.
LAYERS: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (aten.linear.default, [n(4, 5), n(6, 5), n(6)], {}),
    (aten.linear.default, [n(2, 4, 5), n(6, 5)], {}),
    (aten.linear.default, [n(5), n(6, 5), n(6)], {}),
    (aten.addmm.default, [n(6), n(4, 5), n(5, 6)], {}),
    (aten.addmm.default, [n(6), n(4, 5), n(5, 6)], {"alpha": 2}),
    (aten.mm.default, [n(4, 5), n(5, 6)], {}),
    (aten.bmm.default, [n(2, 4, 5), n(2, 5, 6)], {}),
    (aten.matmul.default, [n(2, 4, 5), n(5, 6)], {}),
    (aten.matmul.default, [n(4, 5), n(2, 5, 6)], {}),
    (aten.matmul.default, [n(4, 5), n(5)], {}),
    (aten.conv1d.default, [n(B, 4, 7), n(6, 2, 3), n(6), [2], [1], [1], 2], {}),
    (aten.conv2d.default, [n(B, 4, 6, 6), n(6, 4, 3, 3), n(6), [1, 1], [1, 1]], {}),
    (aten.conv2d.default, [n(B, 4, 6, 6), n(6, 4, 3, 3), None, [2, 2], [1, 1]], {}),
    (aten.conv2d.default, [n(B, 4, 6, 8), n(6, 4, 2, 4), n(6), [2, 4]], {}),  # patches
    (aten.conv2d.default, [n(B, 4, 6, 5), n(6, 4, 1, 1), n(6)], {}),  # single positions
    (aten.conv2d.default, [n(B, 4, 6, 5), n(6, 4, 1, 1), None, [2, 3]], {}),
    (aten.conv1d.default, [n(B, 4, 7), n(6, 4, 1), n(6), [3]], {}),
    (aten.conv2d.default, [n(4, 6, 6), n(6, 4, 3, 3), n(6)], {}),  # no batch
    (aten.conv2d.padding, [n(B, 4, 6, 6), n(6, 4, 3, 3), n(6), [1, 1], "same"], {}),
    (aten.conv3d.default, [n(B, 2, 4, 4, 4), n(3, 2, 2, 2, 2), n(3)], {}),
    (aten.conv_transpose1d.default, [n(B, 4, 5), n(4, 3, 3), n(6), [2], [1], [1], 2], {}),
    (aten.conv_transpose2d.input, [n(B, 4, 3, 3), n(4, 5, 2, 2), n(5), [2, 2]], {}),
    (aten.conv_transpose3d.input, [n(B, 2, 3, 3, 3), n(2, 3, 2, 2, 2), None, [2, 2, 2]], {}),
    (aten.layer_norm.default, [n(4, 5, 6), [5, 6], n(5, 6), n(5, 6)], {}),
    (aten.layer_norm.default, [n(4, 6), [6], n(6)], {}),
    (aten.layer_norm.default, [n(4, 6), [6]], {}),
    (aten.rms_norm.default, [n(4, 6), [6], n(6), 1e-5], {}),
    (aten.group_norm.default, [n(B, 4, 3, 3), 2, n(4), n(4)], {}),
    (aten.group_norm.default, [n(B, 4, 5), 2], {}),
    (
        aten.batch_norm.default,
        [n(B, 4, 3), n(4), n(4), Positive((4,)), Positive((4,)), False, 0.1, 1e-5, False],
        {},
    ),
    (aten.scaled_dot_product_attention.default, [n(B, 2, 4, 3)] * 3, {}),
    (aten.scaled_dot_product_attention.default, [n(B, 2, 4, 3)] * 3 + [n(4, 4)], {}),
    (aten.scaled_dot_product_attention.default, [n(B, 2, 4, 3)] * 3 + [n(B, 1, 1, 4)], {}),
    (
        aten.scaled_dot_product_attention.default,
        [n(B, 2, 4, 3)] * 3 + [None, 0.0, True],
        {"scale": 0.3},
    ),
    (aten.scaled_dot_product_attention.default, [n(2, 4, 3)] * 3, {}),
    (aten.embedding.default, [n(5, 4), Index((B, 3))], {}),
    (aten.embedding.default, [n(5, 4), Index((B, 3)), 1], {}),
    (aten.max_pool2d.default, [n(B, 4, 6, 6), [2, 2]], {}),
    (aten.avg_pool1d.default, [n(B, 4, 6), [2]], {}),
    (aten.adaptive_avg_pool2d.default, [n(B, 4, 6, 6), [2, 3]], {}),
    (aten.adaptive_avg_pool2d.default, [n(4, 6, 6), [2, 3]], {}),
    (aten.pixel_shuffle.default, [n(B, 4, 3, 3), 2], {}),
    (aten.einsum.default, ["bi,ij->bj", [n(B, 4), n(4, 5)]], {}),
]
SHAPES: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (aten.sum.dim_IntList, [n(B, 4, 3), [1]], {}),
    (aten.sum.dim_IntList, [n(B, 4, 3), [2], True], {}),
    (aten.sum.default, [n(B, 4, 3)], {}),
    (aten.mean.dim, [n(B, 4, 3, 3), [2, 3]], {}),
    (aten.mean.dim, [n(B, 4, 3, 3), [-1], True], {}),
    (aten.mean.dim, [n(B, 4, 3), None], {}),
    (aten.var.correction, [n(B, 4, 3), [0]], {"correction": 1}),
    (aten.amax.default, [n(B, 4, 3), [-2]], {}),
    (aten.max.dim, [n(B, 4, 3), 1], {}),
    (aten.logsumexp.default, [n(B, 4, 3), [0]], {}),
    (aten.softmax.int, [n(B, 4, 3), 1], {}),
    (aten.log_softmax.int, [n(B, 4), -1], {}),
    (aten.cumsum.default, [n(B, 4, 3), 0], {}),
    (aten.linalg_vector_norm.default, [n(B, 4), 2, [1]], {}),
    (aten.glu.default, [n(B, 4, 4)], {}),
    (aten.unsqueeze.default, [n(B, 4), 0], {}),
    (aten.unsqueeze.default, [n(B, 4), -1], {}),
    (aten.unsqueeze.default, [n(), 0], {}),
    (aten.squeeze.dim, [n(B, 1, 3), 1], {}),
    (aten.squeeze.default, [n(B, 1, 3)], {}),
    (aten.select.int, [n(B, 4, 3), 1, 2], {}),
    (aten.slice.Tensor, [n(B, 4, 3), 1, 1, 3], {}),
    (aten.slice.Tensor, [n(B, 4, 3)], {}),
    (aten.unflatten.int, [n(B, 4, 3), 1, [2, 2]], {}),
    (aten.unbind.int, [n(B, 4, 3), 1], {}),
    (aten.split.Tensor, [n(B, 4, 3), 2, 1], {}),
    (aten.chunk.default, [n(B, 4, 3), 2, -2], {}),
    (aten.flip.default, [n(B, 4, 3), [0, 2]], {}),
    (aten.roll.default, [n(B, 4, 3), [1], [1]], {}),
    (aten.roll.default, [n(B, 4, 3), [1]], {}),
    (aten.transpose.int, [n(B, 4, 3), 0, -1], {}),
    (aten.movedim.int, [n(B, 4, 3), 0, 2], {}),
    (aten.flatten.using_ints, [n(B, 4, 3), 1], {}),
    (aten.flatten.using_ints, [n(B, 4, 3)], {}),
    (aten.permute.default, [n(B, 4, 3), [2, 0, -2]], {}),
    (aten.view.default, [n(B, 4, 3), [B, -1]], {}),
    (aten.reshape.default, [n(B, 4, 3), [-1, 2]], {}),
    (aten.expand.default, [n(4, 1), [B, -1, 3]], {}),
    (aten.repeat.default, [n(4, 1), [B, 1, 3]], {}),
    (aten.cat.default, [[n(B, 4), n(B, 2)], 1], {}),
    (aten.cat.default, [[n(B, 4), n(0), n(B, 2)], -1], {}),
    (aten.cat.default, [[n(0), n(3)]], {}),
    (aten.stack.default, [[n(B, 4), n(B, 4)]], {}),
    (aten.pad.default, [n(B, 4, 3), [1, 1]], {}),
    (aten.pad.default, [n(B, 4, 3), [1, 1], "reflect"], {}),
    (aten.slice_scatter.default, [n(B, 4, 3), n(B, 2, 3), 1, 1, 3], {}),
    (aten.slice_scatter.default, [n(B, 4, 3), n(B, 4, 3), 0, 0, 2**63 - 1], {}),
    (aten.select_scatter.default, [n(B, 4, 3), n(B, 3), 1, 2], {}),
    (aten.fill.Tensor, [n(B, 4, 3), n()], {}),
    (aten.fill.Scalar, [n(B, 4, 3), 2.5], {}),
    (aten.tril.default, [n(4, 4)], {}),
    (aten.to.dtype, [n(B, 4, 3), torch.float64], {}),
    (aten.clone.default, [n(B, 4, 3)], {}),
    (aten.index_select.default, [n(B, 5, 3), 1, Index((2,))], {}),
    (aten.gather.default, [n(5, 4), 0, Index((2, 4))], {}),
    (aten.argmax.default, [n(B, 4), 1], {}),
    (aten.new_zeros.default, [n(B, 4), [2, 2]], {}),
]
POINTWISE: list[tuple[Any, list[Any], dict[str, Any]]] = [
    (aten.relu.default, [n(B, 4, 3, 3)], {}),
    (aten.gelu.default, [n(B, 4, 3)], {"approximate": "tanh"}),
    (aten.add.Tensor, [n(B, 4, 3), n(B, 4, 3)], {"alpha": 2}),
    (aten.mul.Tensor, [n(B, 4, 3), n(4, 1)], {}),
    (aten.mul.Tensor, [n(B, 4, 3), n()], {}),
    (aten.mul.Tensor, [n(3), n(B, 4, 3)], {}),
    (aten.mul.Tensor, [n(B, 4, 3), n(B, 1, 3)], {}),
    (aten.mul.Tensor, [n(B, 4, 3), n(1, 4, 1)], {}),
    (aten.mul.Tensor, [n(B, 1, 3), n(B, 4, 3)], {}),
    (aten.add.Scalar, [n(B, 4, 3), 2.5], {}),
    (aten.clamp.default, [n(B, 4, 3), -0.5, 0.5], {}),
    (aten.lt.Scalar, [n(B, 4, 3), 0.2], {}),
    (aten.pow.Tensor_Scalar, [n(B, 4), 2], {}),
    (aten.addcmul.default, [n(4), n(B, 4), n(4)], {}),
]
CASES = [*LAYERS, *SHAPES, *POINTWISE]


def flat(arguments: Any) -> list[Any]:
    """The shapes among them, in order."""
    if isinstance(arguments, (Normal, Index)):
        return [arguments]
    if isinstance(arguments, list):
        return [shape for value in arguments for shape in flat(value)]
    return []


def filled(arguments: Any, values: Any) -> Any:
    """The same with the next value in place of each shape."""
    if isinstance(arguments, (Normal, Index)):
        return next(values)
    if isinstance(arguments, list):
        return [filled(value, values) for value in arguments]
    return arguments


def by_rule(target: Any, args: list[Any], kwargs: Any, tensors: list[Tensor], where: Any) -> Any:
    s, values, given = Stacker(), [], []
    for k, (t, place) in enumerate(zip(tensors, where, strict=True)):
        one = t if place == "shared" else t[0]
        values.append(Value(s.graph.placeholder(f"t{k}"), place, one))
        given.append(operators.into_channels(t) if place == "channels" else t)
    s.members = s.graph.placeholder("members")
    made = rules.apply(s, target, tuple(filled(args, iter(values))), kwargs, tensors[0])
    many = isinstance(target(*filled(args, iter(one_of(tensors, where))), **kwargs), (list, tuple))
    s.graph.output(made.node if many else s.stacked(made))
    return fx.GraphModule(nn.Module(), s.graph)(*given, M)


def one_of(tensors: list[Tensor], where: Any, k: int = 0) -> list[Tensor]:
    return [t if place == "shared" else t[k] for t, place in zip(tensors, where, strict=True)]


def places(args: list[Any]) -> list[tuple[str, ...]]:
    """Every choice of where members are: at least one tensor has them."""
    shapes = flat(args)
    whole = list(itertools.product(["front", "shared"], repeat=len(shapes)))[:-1]
    if len(shapes[0]) >= 3:
        whole += [("channels", *rest[1:]) for rest in whole if rest[0] == "front"]
    return whole


def name_of(case: Any) -> str:
    return f"{case[0]}-{'-'.join(map(str, flat(case[1])))}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_a_rule_is_its_operator_for_each_member(case: Any) -> None:
    target, args, kwargs = case
    torch.manual_seed(0)
    for where in places(args):
        tensors = [made(shape) for shape in flat(args)]
        tensors = [
            t[0] if place == "shared" else t for t, place in zip(tensors, where, strict=True)
        ]
        own = [
            t.clone().requires_grad_(t.is_floating_point() and not isinstance(shape, Positive))
            for t, shape in zip(tensors, flat(args), strict=True)
        ]

        def call(*one: Tensor) -> Any:
            return target(*filled(args, iter(one)), **kwargs)

        each = [call(*(one_of(own, where, k))) for k in range(M)]
        several = isinstance(each[0], (list, tuple))
        expected = list(map(torch.stack, zip(*each, strict=True))) if several else torch.stack(each)
        got = by_rule(target, args, kwargs, own, where)
        compare(got, expected, own, f"{target} {where}")


def compare(got: Any, expected: Any, own: list[Tensor], what: str) -> None:
    pairs = [(got, expected)] if isinstance(got, Tensor) else list(zip(got, expected, strict=True))
    for ours, theirs in pairs:
        check = functools.partial(torch.testing.assert_close, msg=lambda m: f"{what}: {m}")
        check(ours, theirs, **close(torch.float64, terms=200, depth=3, scale=10.0))
        if not theirs.requires_grad:
            continue
        leaves = [t for t in own if t.requires_grad]
        weights = torch.linspace(-1, 1, theirs.numel(), dtype=theirs.dtype).view(theirs.shape)
        grads = [
            torch.autograd.grad((y * weights).sum(), leaves, allow_unused=True, retain_graph=True)
            for y in (ours, theirs)
        ]
        for a, b in zip(*grads, strict=True):
            zero = torch.zeros(())
            a, b = (zero if a is None else a), (zero if b is None else b)
            both = torch.broadcast_tensors(a.double(), b.double())
            check(*both, **close(torch.float64, terms=200, depth=3, scale=10.0))


def test_every_rule_has_a_case() -> None:
    covered = {target.name().split(".")[0].removeprefix("aten::") for target, *_ in CASES}
    twins = {  # of which another one with the same rule is tested, or a network
        *(
            "lstm",
            "gru",
            "rnn_tanh",
            "rnn_relu",
            "stochens::noise_mask",
            "stochens::noise_normal",
            "sym_size",
        ),
        *("dropout", "rand", "randn", "randint", "new_ones", "new_full", "new_empty"),
        *("contiguous", "alias", "detach", "lift_fresh_copy", "lift_fresh", "triu", "type_as"),
        *("_to_copy", "zeros_like", "constant_pad_nd", "concat", "_unsafe_view", "unfold"),
        *("narrow", "tensor_split", "split_with_sizes", "topk", "sort", "cumprod", "_softmax"),
        *("_log_softmax", "pixel_unshuffle", "channel_shuffle"),
    }
    pools = set(rules.convolution.POOLS)
    reductions = set(rules.shapes.REDUCTIONS)
    known = {name.removeprefix("aten::") for name in rules.RULES}
    assert known - covered - twins - pools - reductions == set()


def test_each_member_has_random_numbers_of_its_own() -> None:
    for target, args in [
        (aten.rand.default, [[4]]),
        (aten.dropout.default, [n(40), 0.5, True]),
        (aten.bernoulli.p, [n(40), 0.5]),
    ]:
        tensors = [torch.ones(40, dtype=torch.float64) for _ in flat(args)]
        got = by_rule(target, args, {}, tensors or [torch.ones(1)], ["shared"])
        assert got.shape[0] == M
        assert not torch.equal(got[0], got[1])
