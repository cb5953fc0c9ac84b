"""Training at some moment, as named tensors: enough to go on as if nothing had been.

Data orders and schedules are pure functions of the step, so that its number stands for them.
"""

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from stochens.members import Params, device_of, move
from stochens.posterior.history import Recorder

Named = dict[str, Tensor]


class Stateful(Protocol):
    def state(self) -> Named: ...

    def restore(self, state: Named) -> None: ...


class Held(NamedTuple):
    """Everything that the next step depends on, or that is asked for at the end."""

    params: Params
    optimizer: torch.optim.Optimizer
    recorder: Recorder
    collector: Stateful | None
    validator: Stateful | None
    callbacks: Stateful | None
    device: torch.device | None  # where training draws from torch's generator; None: it does not
    reader: Stateful | None = None  # of a stream


def take_snapshot(step: int, held: Held) -> Named:
    """All of it after so many steps."""
    params, optimizer, recorder, collector, validator, callbacks, device, reader = held
    parts: dict[str, Named] = {
        "params": {name: p.detach() for name, p in params.items()},
        "optimizer": _optimizer_state(optimizer),
        "recorder": recorder.state(),
        "random": {} if device is None else {"cpu": torch.get_rng_state()},
        "collector": {} if collector is None else collector.state(),
        "validator": {} if validator is None else validator.state(),
        "callbacks": {} if callbacks is None else callbacks.state(),
        "stream": {} if reader is None else reader.state(),
    }
    if device is not None and device.type == "cuda":
        parts["random"]["cuda"] = torch.cuda.get_rng_state(device)
    flat = {f"{part}/{name}": t for part, named in parts.items() for name, t in named.items()}
    return {"step": torch.tensor(step), **flat}


def restore_snapshot(named: Named, held: Held) -> int:
    """The inverse of `taken`, into parameters and an optimiser that have not moved yet; returns how
    many steps are done."""
    params, optimizer, recorder, collector, validator, callbacks, device, reader = held
    with torch.no_grad():
        for name, value in _part(named, "params").items():
            params[name].copy_(value)
    _restore_optimizer(optimizer, _part(named, "optimizer"))
    recorder.restore(_part(named, "recorder"))
    if collector is not None:
        state = _part(named, "collector")
        collector.restore(move(state, device_of(params)))
    if validator is not None:
        validator.restore(_part(named, "validator"))
    if callbacks is not None:
        callbacks.restore(_part(named, "callbacks"))
    if reader is not None:
        reader.restore(_part(named, "stream"))
    random = {} if device is None else _part(named, "random")
    if "cpu" in random:  # not where the work was begun without
        torch.set_rng_state(random["cpu"])
    if "cuda" in random and device is not None and device.type == "cuda":
        torch.cuda.set_rng_state(random["cuda"], device)
    return int(named["step"])


def _part(named: Named, part: str) -> Named:
    """Those of one part, under their own names."""
    prefix = f"{part}/"
    return {name[len(prefix) :]: t for name, t in named.items() if name.startswith(prefix)}


def _optimizer_state(optimizer: torch.optim.Optimizer) -> Named:
    """ "3/exp_avg": of the parameter number 3."""
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"{k}/{name}": value
        for k, values in state.items()
        for name, value in values.items()
        if isinstance(value, Tensor)
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, named: Named) -> None:
    state: dict[int, dict[str, Any]] = {}
    for key, value in named.items():
        k, name = key.split("/", 1)
        state.setdefault(int(k), {})[name] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
