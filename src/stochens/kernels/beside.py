"""Work on a GPU that the current stream need not wait for at once, on a second stream beside it."""

from collections.abc import Callable
from typing import TypeVar

import torch

Made = TypeVar("Made")

_streams: dict[torch.device, torch.cuda.Stream] = {}


class Beside:
    """The stream beside the current one. Where there are no streams, work is done at once."""

    def __init__(self, device: torch.device) -> None:
        self._side: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._now = torch.cuda.current_stream(device)
            if device not in _streams:
                _streams[device] = torch.cuda.Stream(device)
            self._side = _streams[device]

    def start(self, work: Callable[[], Made]) -> tuple[Made, torch.cuda.Event | None]:
        """work(), after all that the current stream has been given, and what to `wait` for before
        its result is read, or memory that it reads is given back."""
        if self._side is None:
            return work(), None
        self._side.wait_stream(self._now)
        with torch.cuda.stream(self._side):
            return work(), self._side.record_event()

    def wait(self, done: torch.cuda.Event | None) -> None:
        """The current stream goes on after that."""
        if done is not None:
            self._now.wait_event(done)
