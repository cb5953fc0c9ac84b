"""What was found out about a network, kept for as long as the network is what it was."""

import weakref
from collections.abc import Hashable, Iterator
from typing import Any

from torch import nn

MOST = 16  # networks of which something is known; the oldest goes


class Look:
    """Everything that the modules of a network hold, by identity: parts, tensors, hooks, options.

    It does not see into lists and objects of the user's own, nor what tensors hold.

    >>> net = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> look = Look(net)
    >>> before, net[1] = look.holds(), nn.Tanh()
    >>> before, look.holds()
    (True, False)
    """

    def __init__(self, net: nn.Module) -> None:
        held = [own for module in _modules(net, set()) for own in _held(module)]
        self._empty = [own for own in held if not own]
        self._filled = [(own, _named(own)) for own in held if own]
        self._kept = [tuple(own.values()) for own in held]  # so that no other gets their place
        self._params = list(net.parameters())
        self._trained = [p.requires_grad for p in self._params]

    def holds(self) -> bool:
        """Whether all of it is as it was."""
        return (
            not any(self._empty)
            and all(_named(own) == then for own, then in self._filled)
            and [p.requires_grad for p in self._params] == self._trained
        )


def _named(own: dict[Any, Any]) -> tuple[list[Any], list[int]]:
    return list(own), list(map(id, own.values()))


def _held(module: nn.Module) -> Iterator[dict[Any, Any]]:
    """Its attributes, and each dictionary among them: parameters, parts, hooks."""
    yield vars(module)
    yield from (value for value in vars(module).values() if isinstance(value, dict))


def _modules(module: nn.Module, seen: set[int]) -> Iterator[nn.Module]:
    """Those that torch sees, and those in tuples, which stochastic layers keep out of its sight."""
    if id(module) in seen:
        return
    seen.add(id(module))
    yield module
    for own in _held(module):
        for value in own.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                if isinstance(part, nn.Module):
                    yield from _modules(part, seen)


_findings: weakref.WeakKeyDictionary[nn.Module, tuple[Look, dict[Hashable, Any]]]
_findings = weakref.WeakKeyDictionary()


def findings(net: nn.Module) -> dict[Hashable, Any]:
    """A dictionary for what is found out about a network; empty again when the network is another.

    Call it inside `seeded` or `alone`: members' tensors are in a network that another thread runs.

    >>> net = nn.Linear(2, 3)
    >>> findings(net)["known"] = True
    >>> "known" in findings(net), "known" in findings(net.requires_grad_(False))
    (True, False)
    """
    entry = _findings.get(net)
    if entry is None or not entry[0].holds():
        _findings.pop(net, None)
        # A network that one of its own parts holds would stay for ever: not more than so many do.
        while len(_findings) >= MOST and (oldest := next(_findings.keys(), None)) is not None:
            _findings.pop(oldest, None)
        entry = _findings[net] = Look(net), {}
    return entry[1]
