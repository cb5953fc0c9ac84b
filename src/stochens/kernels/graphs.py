"""Work on a GPU recorded once as a CUDA graph, and replayed without Python in between."""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

WARM_UP = 3  # runs before a recording, so that libraries have made what they make once


def record_graph(work: Callable[[], object], *, pool: Any = None) -> torch.cuda.CUDAGraph:
    """`work` as a graph on the current device. It has run a few times then: undo what that did."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP):
            work()
        with _no_waiting():
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        work()
    return graph


class Replayed:
    """A function of tensors that changes nothing else, recorded for inputs of these shapes.

    Its results are overwritten by the next call.
    """

    def __init__(self, function: Callable[..., tuple[Tensor, ...]], *inputs: Tensor) -> None:
        self._inputs = [t.detach().clone() for t in inputs]
        self._results: tuple[Tensor, ...] = ()

        def work() -> None:
            self._results = function(*self._inputs)

        self._device = inputs[0].device
        with torch.cuda.device(self._device):
            self._graph = record_graph(work)

    def __call__(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        with torch.cuda.device(self._device):
            self._graph.replay()
        return self._results


@contextlib.contextmanager
def _no_waiting() -> Iterator[None]:
    """Inside, an operation that waits for the GPU is an error, as it would be in a recording."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
