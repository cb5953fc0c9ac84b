"""Products under vmap: x [..., I] with the weights [I, O] of each member.

torch makes one product of such an x where its positions lie in order. Where they do not, as in
`nn.MultiheadAttention(batch_first=True)` or after `x.transpose(1, 2)`, it takes a product for each
position with a view of the weights, and of that view vmap makes a copy: [M, T, I, O], where one
copy of x is enough. A layer of 256 x 768 weights for 4 x 128 positions took 130 ms, and 4 ms so.

A mode costs some 3 us for each function that the network calls. So networks whose products have
rows alone, x [B, I], are without it from their second call on.
"""

import contextlib
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Function -> how many of its first arguments are x. Attention hands its own to `linear`, where no
# mode sees them any more: a function in Python runs without the mode that was asked about it.
OF = {"linear": 1, "matmul": 1, "__matmul__": 1, "multi_head_attention_forward": 3}

Form = tuple[int, ...]
_rows_alone: weakref.WeakKeyDictionary[nn.Module, set[Form]] = weakref.WeakKeyDictionary()


def in_order(net: nn.Module, tensors: Sequence[Tensor]) -> contextlib.AbstractContextManager[Any]:
    """Inside, what this network multiplies by weights lies in order. tensors: its inputs."""
    if torch.compiler.is_compiling():
        return _InOrder()
    form = tuple(t.dim() for t in tensors)
    return _nothing if form in _rows_alone.get(net, ()) else _noted(net, form)


_nothing = contextlib.nullcontext()


@contextlib.contextmanager
def _noted(net: nn.Module, form: Form) -> Iterator[None]:
    with _InOrder() as mode:
        yield
    if not mode.has_positions:
        _rows_alone.setdefault(net, set()).add(form)


class _InOrder(TorchFunctionMode):
    has_positions = False  # whether there was a product with more than rows

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        several = OF.get(getattr(func, "__name__", ""), 0)
        if several and _over_positions(args, several):
            self.has_positions = True
            args = (*_each_in_order(args[:several]), *args[several:])
        return func(*args, **(kwargs or {}))


def _over_positions(args: tuple[Any, ...], several: int) -> bool:
    """Whether each x has more than rows, and one x alone is multiplied by a matrix or vector."""
    tensors = args[: max(several, 2)]
    if len(tensors) < 2 or not all(isinstance(t, Tensor) for t in tensors):
        return False
    return all(t.dim() > 2 for t in args[:several]) and (several > 1 or args[1].dim() <= 2)


def _each_in_order(tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Those that are one tensor stay one: of queries that are keys, attention makes one product."""
    made: list[Tensor] = []
    for t in tensors:
        same = [new for new, old in zip(made, tensors, strict=False) if old is t]
        made.append(same[0] if same else t.contiguous())
    return made
