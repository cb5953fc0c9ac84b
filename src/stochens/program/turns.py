"""Members that take turns on a CPU: each goes forward and back before the next one begins.

So the activations of one member are in memory at a time, and its gradients go into its rows of the
gradients of all members as soon as they are there. That memory may be the same in every step: the
system would need longer to give new pages than a step needs to fill them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from stochens.members import Params
from stochens.objective import MeanNLL
from stochens.program.program import Noise
from stochens.trees import Input

# the number of the member whose turn it is, its parameters [1, ...] -> its loss [1]
One = Callable[[int, Params], Tensor]


def in_turns(term: MeanNLL, names: Sequence[str], *, reuse: bool) -> MeanNLL:
    """The same mean NLL of each member, [M], one member at a time.

    names: of the parameters that it depends on. reuse: whether gradients may be in the memory that
    those of the last call were in.
    """
    held: dict[str, Tensor] | None = {} if reuse else None

    def mean(
        params: Params, x: Input, y: Tensor, rows: Tensor | None, noise: Noise | None = None
    ) -> Tensor:
        def one(k: int, own: Params) -> Tensor:
            mine = None if rows is None else rows[k : k + 1]
            drawn = None if noise is None else Noise(noise.members[k : k + 1], noise.seed)
            return term(own, x, y, mine, drawn)

        made: Tensor = _Turns.apply(one, held, names, *(params[name] for name in names))  # type: ignore[no-untyped-call]
        return made

    return mean


class _Turns(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, one: One, held: dict[str, Tensor] | None, names: Sequence[str], *params: Tensor
    ) -> Tensor:
        held = {} if held is None else held
        losses: list[Tensor] = []
        used: set[str] = set()

        def keep(name: str, like: Tensor, k: int) -> Callable[[Tensor], None]:
            def hook(leaf: Tensor) -> None:  # at once, so that the next layer has its memory
                assert leaf.grad is not None
                used.add(name)
                _room(held, name, like)[k : k + 1] = leaf.grad
                leaf.grad = None

            return hook

        for k in range(len(params[0])):
            own = {n: p.detach()[k : k + 1] for n, p in zip(names, params, strict=True)}
            if any(ctx.needs_input_grad):
                for (name, leaf), p in zip(own.items(), params, strict=True):
                    leaf.requires_grad_().register_post_accumulate_grad_hook(keep(name, p, k))
                with torch.enable_grad():
                    loss = one(k, own)
                    loss.sum().backward(inputs=list(own.values()))
            else:
                loss = one(k, own)
            losses.append(loss.detach())
        ctx.grads = [held[name] if name in used else None for name in names]
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.grads is None:
            raise RuntimeError("gradients of members in turns cannot be taken a second time")
        grads, ctx.grads = ctx.grads, None  # they are changed in place
        for k, factor in enumerate(slope.tolist()):
            if factor != 1:
                for grad in grads:
                    _ = grad is not None and grad[k].mul_(factor)
        # other objects of the same memory, or autograd would copy what is held here too
        return (None, None, None, *(None if g is None else g.detach() for g in grads))


def _room(held: dict[str, Tensor], name: str, p: Tensor) -> Tensor:
    if name not in held:
        held[name] = torch.empty_like(p, memory_format=torch.contiguous_format)
    return held[name]
