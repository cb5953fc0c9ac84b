"""Convolutions, and pooling: what has positions."""

from typing import Any

from torch import fx

from stochens.program import operators
from stochens.program.rules.table import Made, is_same, rule
from stochens.program.stacker import Arguments, Stacker, Value, call, values_in


@rule("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def convolution(s: Stacker, target: Any, given: Arguments) -> Made:
    x, weight, bias = given["input"], given["weight"], given["bias"]
    if x.rank != weight.rank:  # one example without a batch axis
        return None
    rest = {n: given[n] for n in given if n not in ("input", "weight", "bias", "groups")}
    if weight.shared:  # the examples of all members are one batch, in one launch
        own = {"weight": weight.node, "bias": None, "groups": given["groups"], **rest}
        if bias is None or bias.shared:
            own["bias"] = bias and bias.node
            return s.emit(operators.with_batch, target, s.front(x), own), "front"
        if x.shared:
            y = s.emit(operators.called, target, x.node, own)
        else:
            y = s.emit(operators.with_batch, target, s.front(x), own)
        return s.emit(operators.shifted_channels, y, bias.node, x.rank), "front"
    kernels, biases = s.stacked(weight), bias and s.stacked(bias)
    if _steps_by_its_size(x, weight, given):
        return s.emit(operators.patches, s.stacked(x), kernels, biases), "front"
    if _of_single_positions(weight, given):
        steps = [int(k) for k in given["stride"]] * (1 if len(given["stride"]) > 1 else x.rank - 2)
        return s.emit(operators.pointwise, s.stacked(x), kernels, biases, steps), "front"
    transposed = "transpose" in target.name()
    groups: int | fx.Node
    if x.shared and given["groups"] == 1 and not transposed:  # one launch without groups
        values, groups = x.node, 1
    else:
        values = s.channels(x)
        groups = s.emit(_times, s.members, given["groups"])
    made = s.emit(operators.convolve, target, values, kernels, biases, groups, rest)
    return made, "channels"


def _times(a: int, b: int) -> int:
    return a * b


def _steps_by_its_size(x: Value, weight: Value, given: Arguments) -> bool:
    """Whether a convolution of images cuts them into patches, and x has its members in front."""
    kernel = list(weight.one.shape[2:])
    plain = given["groups"] == 1 and "output_padding" not in given and x.where != "channels"
    if len(kernel) != 2 or kernel == [1, 1] or not plain or isinstance(given["padding"], str):
        return False
    sizes = x.one.shape[2:]
    known = all(isinstance(size, int) for size in sizes)
    return (
        known
        and _both(given["stride"]) == kernel
        and _both(given["padding"]) == [0, 0]
        and _both(given["dilation"]) == [1, 1]
        and all(size % k == 0 for size, k in zip(sizes, kernel, strict=True))
    )


def _of_single_positions(weight: Value, given: Arguments) -> bool:
    plain = given["groups"] == 1 and "output_padding" not in given
    if not plain or isinstance(given["padding"], str) or any(k != 0 for k in given["padding"]):
        return False
    return all(is_same(k, 1) for k in weight.one.shape[2:])


def _both(numbers: Any) -> list[int]:
    return [int(k) for k in numbers] * (2 if len(numbers) == 1 else 1)


POOLS = [f"{kind}_pool{d}d" for kind in ("max", "avg") for d in (1, 2, 3)]
POOLS += [f"adaptive_{kind}" for kind in POOLS]


@rule(*POOLS, "pixel_shuffle", "pixel_unshuffle", "channel_shuffle")
def by_example(s: Stacker, target: Any, given: Arguments) -> Made:
    """Operators of [B, C, *positions] that have no parameters; pooling leaves channels alone."""
    (name, x), *rest = given.items()
    wanted = int(target.name()[-2]) + 2 if target.name()[-1] == "d" else 4
    if x.rank != wanted or len(values_in(given)) != 1:
        return None
    if x.where == "channels" and "pool" in target.name():
        return call(s, target, {**given, name: x.node}), "channels"
    return s.emit(operators.with_batch, target, s.front(x), dict(rest)), "front"
