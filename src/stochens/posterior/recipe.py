"""How a stochastic network was made, so that loading can make it again, and for which inputs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.methods import METHODS, Method


def describe_fully(part: Method | Likelihood) -> dict[str, Any]:
    """By its name and options, as JSON can hold them."""
    return {"name": part.name, "options": part.options()}


Part = TypeVar("Part", Method, Likelihood)


def describe_part(part: Part, known: Mapping[str, type[Part]]) -> dict[str, Any]:
    """The same for a file, with its class where that is the user's own and none of the `known`."""
    own = type(part)
    try:
        about: dict[str, Any] = json.loads(json.dumps(describe_fully(part)))
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{own.__qualname__} cannot be saved: {error}. It needs a name, and options() that "
            "JSON can hold, as a dataclass of plain fields has them"
        ) from error
    return about if known.get(part.name) is own else about | {"class": own.__qualname__}


def rebuild_part(
    then: dict[str, Any], given: Part | None, known: Mapping[str, type[Part]], what: str, path: Any
) -> Part:
    """That of which `kept` gave `then`; who made their own must give it."""
    if given is None and then["name"] in known and "class" not in then:
        return known[then["name"]](**then["options"])
    if given is None:
        raise InputError(
            f"{path} was made with a {what} of your own, {then.get('class', then['name'])}; "
            f"give it: stochens.load(path, net, {what}=...)"
        )
    now = describe_part(given, known)
    for key, value in then.items():
        if now.get(key) != value:
            raise InputError(
                f"{path} was made with another {what}: its {key} is {value!r} there, and "
                f"{now.get(key)!r} of the one given"
            )
    return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """What `stochastic` was given beside the plain network."""

    methods: tuple[Method, ...]
    skip: tuple[str, ...] = ()
    output: str | None = None

    def description(self) -> dict[str, Any]:
        """As JSON can hold it."""
        methods = [describe_part(method, METHODS) for method in self.methods]
        return {"methods": methods, "skip": list(self.skip), "output": self.output}

    @classmethod
    def read(cls, about: dict[str, Any], given: Sequence[Method] | None, path: Any) -> "Recipe":
        """From what `description` gave, and the methods where they are the user's own."""
        then = about["methods"]
        now: Sequence[Method | None] = [None] * len(then) if given is None else given
        if len(now) != len(then):
            raise InputError(f"{path} was made with {len(then)} methods, not {len(now)}")
        pairs = zip(then, now, strict=True)
        return cls(
            methods=tuple(rebuild_part(a, b, METHODS, "method", path) for a, b in pairs),
            skip=tuple(about["skip"]),
            output=about["output"],
        )


class Inputs(NamedTuple):
    """What one example of the training data was."""

    shape: tuple[int, ...]
    dtype: str  # torch's name, e.g. "float32"

    @classmethod
    def of(cls, x: Tensor) -> "Inputs":
        """From a batch, [B, ...]."""
        return cls(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))

    @classmethod
    def read(cls, about: dict[str, Any] | None) -> "Inputs | None":
        """From what `_asdict` gave."""
        return None if about is None else cls(tuple(about["shape"]), str(about["dtype"]))

    def example(self) -> Tensor:
        """Zeros, [1, ...]."""
        return torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))
