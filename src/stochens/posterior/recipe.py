"""How a stochastic network was made, so that loading can make it again, and for which inputs."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from stochens.adapter import Calling, Output
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.methods import METHODS, LastLayer, Method
from stochens.trees import Input, InputTree


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
    output: str | None = None
    calling: Calling | None = None  # where the network is not net(x), one tensor for one

    def description(self) -> dict[str, Any]:
        """As JSON can hold it."""
        methods = [describe_part(method, METHODS) for method in self.methods]
        about = {"methods": methods, "skip": [], "output": self.output}
        return about if self.calling is None else about | {"calling": self.calling.description()}

    @classmethod
    def read(
        cls,
        about: dict[str, Any],
        given: Sequence[Method] | None,
        path: Any,
        output: Output | None = None,
    ) -> "Recipe":
        """From what `description` gave, and methods and output where they are the user's own."""
        then = about["methods"]
        now: Sequence[Method | None] = [None] * len(then) if given is None else given
        if len(now) != len(then):
            raise InputError(f"{path} was made with {len(then)} methods, not {len(now)}")
        pairs = zip(then, now, strict=True)
        methods = (rebuild_part(a, b, METHODS, "method", path) for a, b in pairs)
        return cls(
            methods=tuple(_skipping(m, tuple(about["skip"])) for m in methods),
            output=about["output"],
            calling=Calling.read(about.get("calling"), output, path),
        )


def _skipping(method: Method, also: tuple[str, ...]) -> Method:
    """With what a folder of before skips for all methods together, which was about noise alone."""
    if not also or isinstance(method, LastLayer):
        return method
    return dataclasses.replace(method, skip=(*method.skip, *also))


class Inputs(NamedTuple):
    """What one example of the training data was."""

    shape: tuple[int, ...]
    dtype: str  # torch's name, e.g. "float32"
    tree: Any = None  # of an InputTree its containers, as JSON can hold them; shape is () then

    @classmethod
    def of(cls, x: Input) -> "Inputs":
        """From a batch, [B, ...].

        >>> Inputs.of(InputTree({"ids": torch.zeros(5, 7, dtype=torch.long)})).tree
        {'dict': {'ids': {'shape': [7], 'dtype': 'int64'}}}
        """
        if isinstance(x, Tensor):
            return cls(tuple(x.shape[1:]), _name(x.dtype))
        return cls((), "", _described(x.tree))

    @classmethod
    def read(cls, about: dict[str, Any] | None) -> "Inputs | None":
        """From what `_asdict` gave."""
        if about is None:
            return None
        return cls(tuple(about["shape"]), str(about["dtype"]), about.get("tree"))

    def example(self) -> Any:
        """Zeros, [1, ...], and ones in masks; None where the containers are of the user's own
        class."""
        if self.tree is None:
            return torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))
        try:
            return InputTree(_zeros(self.tree, ""))
        except KeyError:
            return None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _described(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return {"shape": list(tree.shape[1:]), "dtype": _name(tree.dtype)}
    if isinstance(tree, dict):
        return {"dict": {name: _described(part) for name, part in tree.items()}}
    if isinstance(tree, (tuple, list)) and not hasattr(tree, "_fields"):
        return {"list" if isinstance(tree, list) else "tuple": [_described(part) for part in tree]}
    return None if tree is None else {"class": type(tree).__qualname__}  # of the user's own


def _zeros(about: Any, name: str) -> Any:
    if about is None:
        return None
    if "dict" in about:
        return {own: _zeros(part, own) for own, part in about["dict"].items()}
    for kind in (tuple, list):
        if kind.__name__ in about:
            return kind(_zeros(part, name) for part in about[kind.__name__])
    zeros = torch.zeros(1, *about["shape"], dtype=getattr(torch, about["dtype"]))
    # Where all positions are masked there is nothing to attend to, and outputs are no numbers.
    return torch.ones_like(zeros) if zeros.dtype == torch.bool or "mask" in name else zeros
