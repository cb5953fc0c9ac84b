"""What a sampler leaves beside its draws: how each transition went, and how to go on."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

COMMON = ("counts",)  # what a sampler's state has once for all chains; the rest is [chains, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chains:
    """Of a posterior whose members are the draws of several chains, one chain after the other.

    `stats` are [chains, draws] after the warm-up: likelihood and prior energies, energy, accept,
    step, depth, leapfrogs and diverged, as far as the sampler has them. `state` is the whole state
    of the sampler, by name; `settings` are those that going on must share.
    """

    sampler: str
    count: int
    stats: dict[str, Tensor]
    state: dict[str, Tensor]
    settings: dict[str, Any]

    @property
    def ids(self) -> list[int]:
        """Which they are, of all chains of the seed; the inverse of `count_or_list`."""
        chains: int | list[int] = self.settings["chains"]
        return list(range(chains)) if isinstance(chains, int) else chains

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"chains.stats": self.stats, "chains.state": self.state}

    def description(self) -> dict[str, Any]:
        return {"sampler": self.sampler, "count": self.count, "settings": self.settings}

    @classmethod
    def read(
        cls, kinds: dict[str, dict[str, Tensor]], about: dict[str, Any] | None
    ) -> "Chains | None":
        """From what `tensors` and `description` gave."""
        if about is None:
            return None
        return cls(
            sampler=about["sampler"],
            count=about["count"],
            settings=about["settings"],
            stats=kinds.get("chains.stats", {}),
            state=kinds.get("chains.state", {}),
        )

    @classmethod
    def join(cls, parts: "Sequence[Chains]") -> "Chains":
        """Chains that ran apart, one part after the other."""
        first, count = parts[0], sum(part.count for part in parts)
        ids = [chain for part in parts for chain in part.ids]

        def together(kind: Callable[[Chains], dict[str, Tensor]]) -> dict[str, Tensor]:
            return {
                name: t if name in COMMON else torch.cat([kind(part)[name] for part in parts])
                for name, t in kind(first).items()
            }

        return cls(
            sampler=first.sampler,
            count=count,
            stats=together(lambda part: part.stats),
            state=together(lambda part: part.state),
            settings={**first.settings, "chains": count_or_list(ids)},
        )


def count_or_list(ids: Sequence[int]) -> int | list[int]:
    """Chains as one would ask for them: how many, where they are the first, or else which.

    >>> count_or_list([0, 1, 2]), count_or_list([7, 8])
    (3, [7, 8])
    """
    return len(ids) if list(ids) == list(range(len(ids))) else list(ids)
