"""Each member by itself, for networks of large convolutions or recurrent layers with weights of
each member's own: on a side stream of the GPU, or on a CPU one after the other.

One member's convolution of 64 channels or more keeps the fast kernels of cuDNN or oneDNN busy, and
the grouped one of all members does not reach their speed. Side by side on streams, members fill
each other's gaps.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from stochens.members import Params, size
from stochens.program.program import Noise, Program
from stochens.trees import Input, leaves_of, of_each_member

MOST = 16  # streams; more members take turns

_streams: dict[torch.device, list[torch.cuda.Stream]] = {}


class Apart:
    """The outputs of a program. Gradients go back on the streams that the members had."""

    def __init__(self, program: Program, *, compiled: bool = False) -> None:
        self.program = program
        self._one: Callable[[Params, Input, Noise | None], Tensor] = program.one
        self.compiled = compiled
        if compiled:
            self._one = torch.compile(program.one, dynamic=False)

    def __call__(self, params: Params, x: Input, noise: Noise | None = None) -> Tensor:
        """params [M, ...], x [B, ...] of all members -> [M, B, C]."""
        return self._run(params, [x] * size(params), noise)

    def each(self, params: Params, x: Input, noise: Noise | None = None) -> Tensor:
        """Likewise where each member has inputs of its own, x [M, B, ...]."""
        return self._run(params, of_each_member(x), noise)

    def _run(self, params: Params, x: Sequence[Input], noise: Noise | None) -> Tensor:
        # unbind: its gradient is one stack, that of p[k] would be M tensors of all members; that of
        # one member is no copy
        own = {
            name: p.unbind() if len(p := params[name]) > 1 else [p.squeeze(0)]
            for name in self.program.names
        }
        whose = None if noise is None else noise.members.unbind()
        held = [*leaves_of(x[0]), *(params[name] for name in self.program.names), *(noise or ())]

        def one(k: int) -> Tensor:
            mine = None if noise is None or whose is None else Noise(whose[k], noise.seed)
            return self._one({name: p[k] for name, p in own.items()}, x[k], mine)

        return torch.stack(side_by_side(one, len(x), x[0].device, held))


def side_by_side(
    one: Callable[[int], Tensor], count: int, device: torch.device, held: Sequence[Tensor] = ()
) -> list[Tensor]:
    """one(k) for each k, each on a side stream, all done when the current stream goes on; in turn
    where there are no streams. held: what was made on the current stream and is read on the others,
    in the backward pass too: its memory must not be used again before they are done."""
    if device.type != "cuda":
        return [one(k) for k in range(count)]
    pool = _streams.setdefault(device, [])
    while len(pool) < min(count, MOST):
        pool.append(torch.cuda.Stream(device))
    now, used = torch.cuda.current_stream(device), pool[: min(count, MOST)]
    outputs = []
    for stream in used:
        stream.wait_stream(now)
        for t in held:
            t.record_stream(stream)
    for k in range(count):
        with torch.cuda.stream(used[k % len(used)]):
            outputs.append(one(k))
    for stream in used:
        now.wait_stream(stream)
    for output in outputs:
        output.record_stream(now)  # its memory is not used again before the current stream is done
    return outputs
