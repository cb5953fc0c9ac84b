"""Recurrent layers under vmap, which has no rule for them: nn.LSTM, nn.GRU and nn.RNN.

Each member's layer is called by itself, and the rest of the network runs for all members at once.
Torch's own layer is hard to beat on a CPU: a scan over the positions, each for all members, took
1.6 times as long for 8 members of 256 units and 0.8 times for 50 of 32. (On a GPU the network's
program gives each member a stream.)
"""

import contextlib
import warnings
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

KINDS = {"lstm", "gru", "rnn_tanh", "rnn_relu"}


def under_vmap(names: Iterable[str]) -> contextlib.AbstractContextManager[Any]:
    """Inside, vmap runs the recurrent layers of a network whose parameters have these names. A
    layer may stand inside one that adds noise, so it is its weights that tell."""
    if any(name.endswith("weight_hh_l0") for name in names):
        return _Looped()
    return contextlib.nullcontext()


class _Looped(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.data_ptr and _is_batched(args[0]):
            # A layer on a GPU asks whether its weights lie apart, to move them into one piece.
            # Those of all members lie nowhere; with the same answer for each it leaves them.
            return 0
        if getattr(func, "__name__", "") not in KINDS or len(args) != 9 or kwargs:
            return func(*args, **(kwargs or {}))
        try:
            return _as_it_is(func, args)
        except RuntimeError:  # vmap has no rule; or something else is wrong, which comes up again
            x, states, weights, *rest = args
            several = isinstance(states, (list, tuple))
            if not several:
                states = [states]
            if not all(isinstance(t, Tensor) for t in (x, *states, *weights)):
                raise  # of a packed sequence

            def one(x: Tensor, *given: Tensor) -> Any:
                own = list(given[: len(states)])
                with warnings.catch_warnings():
                    # A member's weights are apart, and cuDNN copies them: that is as it must be.
                    warnings.filterwarnings("ignore", "RNN module weights are not part")
                    return func(x, own if several else own[0], list(given[len(states) :]), *rest)

            return _Layer.apply(one, x, *states, *weights)  # type: ignore[no-untyped-call]


def _as_it_is(func: Any, args: tuple[Any, ...]) -> Any:
    """Not by cuDNN: it would look for the memory of batched weights."""
    x, weights = args[0], args[2] if isinstance(args[2], (list, tuple)) else ()
    if x.is_cuda and any(map(_is_batched, (x, *weights))):
        raise RuntimeError("vmap has no rule for a recurrent layer on a GPU")
    return func(*args)


def _is_batched(value: Any) -> bool:
    """Whether vmap maps over it: a tensor of all members lies nowhere."""
    if not isinstance(value, Tensor):
        return False
    try:
        value.data_ptr()
    except RuntimeError:
        return True
    return False


class _Layer(torch.autograd.Function):
    """one(x, *states, *weights), whose members vmap maps over: the rule is all there is to it."""

    @staticmethod
    def forward(one: Any, *given: Tensor) -> Any:
        raise RuntimeError("this is for vmap alone")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None: ...

    @staticmethod
    def vmap(info: Any, axes: tuple[Any, ...], one: Any, *given: Tensor) -> Any:
        several = [
            [t] * info.batch_size if axis is None else t.unbind(axis)
            for t, axis in zip(given, axes[1:], strict=True)
        ]
        made = zip(*(one(*own) for own in zip(*several, strict=True)), strict=True)
        stacked = tuple(map(torch.stack, made))
        return stacked, (0,) * len(stacked)
