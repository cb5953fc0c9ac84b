"""Networks of several inputs, each with a twin that takes one tensor and computes the same."""

import dataclasses
from collections import UserDict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

N = 30


@dataclasses.dataclass
class Pair:
    a: Tensor
    b: Tensor
    note: Tensor | None = None


class Tied(NamedTuple):
    a: Tensor
    b: Tensor


class Encoding(UserDict):  # type: ignore[type-arg]
    """A Mapping that is no dict, as transformers' BatchEncoding."""


class Twin(nn.Module):
    """x [B, 5] is a [B, 2] beside b [B, 3]. `scale` stands in no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 4), nn.Linear(3, 4)
        self.scale = nn.Parameter(torch.empty(4))
        self.head = nn.Linear(4, 2)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.scale)

    def together(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(a) + self.right(b)) * self.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.together(x[..., :2], x[..., 2:])


class TwoArguments(Twin):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:  # type: ignore[override]
        return self.together(a, b)


class OneDictionary(Twin):
    def forward(self, batch: dict[str, Any]) -> Tensor:  # type: ignore[override]
        return self.together(batch["a"], batch["b"])


class OneTuple(Twin):
    def forward(self, pair: Any) -> Tensor:
        return self.together(*pair)


class OneDataclass(Twin):
    def forward(self, pair: Pair) -> Tensor:  # type: ignore[override]
        assert pair.note is None
        return self.together(pair.a, pair.b)


class OneNamedTuple(Twin):
    def forward(self, pair: Tied, more: Any = None) -> Tensor:  # type: ignore[override]
        assert more is None
        return self.together(pair.a, pair.b)


class Backwards(Twin):
    def forward(self, b: Tensor, a: Tensor) -> Tensor:  # type: ignore[override]
        return self.together(a, b)


class Nested(Twin):
    def forward(self, pair: Any, more: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return self.together(pair[0], more["b"])


def parts() -> tuple[Tensor, Tensor, Tensor]:
    """a [N, 2], b [N, 3] and y [N]."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator, dtype=torch.get_default_dtype())
    return x[:, :2], x[:, 2:], (x[:, 0] * x[:, 2] > 0).long()


FORMS: dict[str, tuple[type[nn.Module], Any]] = {
    "tuple": (TwoArguments, lambda a, b: (a, b)),
    "list": (TwoArguments, lambda a, b: [a, b]),
    "dict": (TwoArguments, lambda a, b: {"b": b, "a": a}),
    "mapping": (TwoArguments, lambda a, b: Encoding(a=a, b=b)),
    "a whole dict": (OneDictionary, lambda a, b: {"a": a, "b": b}),
    "a whole tuple": (OneTuple, lambda a, b: (a, b)),
    "a named tuple": (OneNamedTuple, Tied),
    "its names": (Backwards, Tied),
    "dataclass": (OneDataclass, Pair),
    "nested": (Nested, lambda a, b: {"pair": (a,), "more": {"b": b}}),
}


class Attending(nn.Module):
    """Tokens [B, T] with a mask [B, T] of those that count, as a small transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.query, self.key = nn.Linear(8, 8), nn.Linear(8, 8)
        self.classifier = nn.Linear(8, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        h = self.embed(tokens)  # [B, T, 8]
        scores = self.query(h) @ self.key(h).transpose(-1, -2) / 8**0.5  # [B, T, T]
        scores = scores.masked_fill(mask.unsqueeze(-2) == 0, -1e9)
        h = scores.softmax(-1) @ h
        count = mask.sum(-1, keepdim=True).clamp_min(1)
        return {"hidden": h, "logits": self.classifier((h * mask.unsqueeze(-1)).sum(-2) / count)}


def sentences(lengths: Any) -> list[dict[str, Any]]:
    """One dictionary for each length, of T tokens, T ones and a label."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for t in lengths:
        tokens = torch.randint(1, 20, (t,), generator=generator)
        rows.append({"tokens": tokens, "mask": torch.ones(t), "label": int(tokens[0]) % 3})
    return rows


def padded(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    """A collate function: all as long as the longest."""
    pad = nn.utils.rnn.pad_sequence
    return {
        "tokens": pad([row["tokens"] for row in rows], batch_first=True),
        "mask": pad([row["mask"] for row in rows], batch_first=True),
        "label": torch.tensor([row["label"] for row in rows]),
    }
