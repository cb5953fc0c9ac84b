"""Any network as a function of one input with one output tensor: how it is called, and what of its
outputs counts."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from stochens.errors import InputError, outside
from stochens.members import plain_attention
from stochens.private_names import lend_all, reset_of
from stochens.randomness.seeds import seeded
from stochens.trees import Input, InputTree, read_tree

Output = str | int | Callable[[Any], Tensor]  # a name, a place, or a function of the outputs


class Adapter(nn.Module):
    """f(x) = pick(net(*x)) or pick(net(**x)), with the parameters of `net` by their own names.

    x is one tensor or an InputTree. A dictionary becomes keyword arguments, a tuple or list becomes
    positional ones, a dataclass one argument; where the network's forward takes one argument, it is
    given the dictionary or tuple itself. A NamedTuple goes by its names where forward has them.

    >>> net = nn.Bilinear(2, 3, 1)
    >>> adapter = Adapter(net, None)
    >>> adapter(InputTree((torch.zeros(5, 2), torch.zeros(5, 3)))).shape
    torch.Size([5, 1])
    >>> [name for name, _ in adapter.named_parameters()]
    ['weight', 'bias']
    """

    def __init__(self, net: nn.Module, output: Output | None) -> None:
        super().__init__()
        # A tuple, so that torch does not register it as a child. Names that no network has: its own
        # parts go by their names here, and many have an `output`.
        self._stochens_net = (net,)
        self._stochens_output = output
        lend_all(net, self)
        self.training = net.training

    def forward(self, x: Any) -> Tensor:
        tree = x if isinstance(x, (Tensor, InputTree)) else InputTree(read_tree(x, _as_it_is))
        given = tree.tree if isinstance(tree, InputTree) else tree
        (net,) = self._stochens_net
        args, kwargs = arguments(net, given)
        return pick(net(*args, **kwargs), self._stochens_output)

    def reset_parameters(self) -> None:
        """Initialise what the network holds itself again; its parts are reset by themselves."""
        if (reset := reset_of(self._stochens_net[0])) is not None:
            reset()

    def train(self, mode: bool = True) -> Self:
        self._stochens_net[0].training = mode
        return super().train(mode)

    def extra_repr(self) -> str:
        output = self._stochens_output
        named = type(self._stochens_net[0]).__name__
        return named if output is None else f"{named}, {told(output)}"


def _as_it_is(value: Any, name: str) -> Any:
    return value


def arguments(net: nn.Module, tree: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """How the network's forward takes these inputs.

    >>> arguments(nn.Bilinear(2, 2, 1), {"input2": 2, "input1": 1})
    ((), {'input2': 2, 'input1': 1})
    >>> arguments(nn.Linear(2, 1), {"image": 1})
    ((1,), {})
    """
    takes = inspect.signature(net.forward)
    args, kwargs = _arguments(takes, tree)
    without = {**kwargs, CACHE: False}
    if CACHE in takes.parameters and CACHE not in kwargs and _binds(takes, *args, **without):
        return args, without
    return args, kwargs


# What a transformer of Hugging Face's keeps for the next token. Here no call is the next one's.
CACHE = "use_cache"


def _arguments(takes: inspect.Signature, tree: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(tree, dict):
        if _binds(takes, **tree):
            return (), tree
        _refuse_names(takes, list(tree))
        return (next(iter(tree.values())) if len(tree) == 1 else tree,), {}
    if hasattr(tree, "_fields"):  # a NamedTuple goes by its names, or is one argument
        if set(tree._fields) <= takes.parameters.keys() and _binds(takes, **tree._asdict()):
            return (), tree._asdict()
        if _binds(takes, tree):
            return (tree,), {}
    if isinstance(tree, (tuple, list)):
        if _binds(takes, *tree):
            return tuple(tree), {}
        if not _binds(takes, tree):
            raise InputError(
                f"x has {len(tree)} parts, and the network's forward takes {takes}; give as many "
                "as it takes, or a dictionary by its names"
            )
    return (tree,), {}


def _binds(takes: inspect.Signature, *args: Any, **kwargs: Any) -> bool:
    try:
        takes.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _refuse_names(takes: inspect.Signature, names: list[str]) -> None:
    """Inputs by names of which the network's forward has some, but not all."""
    known = [
        p.name for p in takes.parameters.values() if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    needed = [n for n in known if takes.parameters[n].default is inspect.Parameter.empty]
    if not set(names) & set(known) and _binds(takes, None):
        return  # it takes the dictionary itself
    for name in names:
        if name not in known:
            raise InputError(
                f"the network's forward takes no {name!r}, which is among the inputs "
                f"{', '.join(names)}; it takes {', '.join(known)}. Leave it out of the data"
            )
    missing = next((n for n in needed if n not in names), needed)
    raise InputError(
        f"the network's forward needs {missing!r}, which is not among the inputs {', '.join(names)}"
    )


def pick(outputs: Any, output: Output | None) -> Tensor:
    """The tensor that counts, of whatever a network returns; without `output` its `logits`.

    >>> pick({"logits": torch.zeros(2, 3), "hidden": None}, None).shape
    torch.Size([2, 3])
    """
    found = outputs
    if callable(output):
        found = output(outputs)
    elif output is not None:
        found = _part(outputs, output)
    elif not isinstance(outputs, Tensor):
        found = _part(outputs, "logits", default=outputs)
    if isinstance(found, Tensor):
        return found
    if output is None:
        raise InputError(
            f"the network must return one tensor, got {type(outputs).__name__}{_parts(outputs)}. "
            "Say which of its outputs counts: output='name', output=0, or "
            "output=lambda out: out.name[:, 0]"
        )
    raise InputError(f"{told(output)} gives no tensor, but {type(found).__name__}")


def _part(outputs: Any, output: str | int, **default: Any) -> Any:
    try:
        if isinstance(output, str) and not isinstance(outputs, Mapping):
            return getattr(outputs, output)
        return outputs[output]
    except (AttributeError, KeyError, IndexError, TypeError):
        if default:
            return default["default"]
        raise InputError(
            f"output={output!r}, but the network returns {type(outputs).__name__}{_parts(outputs)}"
        ) from None


def _parts(outputs: Any) -> str:
    if isinstance(outputs, Tensor):
        return f" {tuple(outputs.shape)}; leave output out"
    if isinstance(outputs, Mapping):
        return f" of {', '.join(map(str, outputs))}"
    return f" of {len(outputs)}" if isinstance(outputs, (tuple, list)) else ""


def told(output: Output) -> str:
    """In words that are the same in the next run: a function by its name."""
    name = getattr(output, "__qualname__", repr(output)) if callable(output) else repr(output)
    return f"output={name}"


@dataclasses.dataclass(frozen=True)
class Calling:
    """How a network is called, where that is not net(x) with one tensor for one tensor."""

    output: Output | None = None  # what of its outputs counts
    target: str | None = None  # what y is called among the data

    def adapt(self, net: nn.Module) -> nn.Module:
        """The network as a function of x."""
        return Adapter(net, self.output)

    def description(self) -> dict[str, Any]:
        """As JSON can hold it."""
        if callable(self.output):
            return {"function": told(self.output), "target": self.target}
        return dataclasses.asdict(self)

    @classmethod
    def read(
        cls, about: dict[str, Any] | None, given: Output | None, path: Any
    ) -> "Calling | None":
        """From what `description` gave, and the function where it is one."""
        if about is None:
            if given is not None:
                raise InputError(f"{path} was made without output; leave it out")
            return None
        if "function" not in about:
            if given not in (None, about["output"]):
                raise InputError(f"{path} was made with {told(about['output'])}, not {given!r}")
            return cls(about["output"], about["target"])
        if not callable(given):
            raise InputError(
                f"{path} was made with a function that picks the output, {about['function']}; "
                "pass it: load(..., output=...)"
            )
        return cls(given, about["target"])


def calling_for(
    net: nn.Module, few: Input, output: Output | None, target: str | None
) -> Calling | None:
    """What the network needs to be a function of inputs like few [B, ...]; None for nothing."""
    if isinstance(few, InputTree) or output is not None or not _returns_tensor(net, few):
        calling = Calling(output, target)
        if isinstance(few, InputTree):
            _warn_ignored(calling.adapt(net), few)
        return calling
    return None


def _warn_ignored(net: nn.Module, few: InputTree) -> None:
    """Of entries that the network takes as some of its **kwargs and does nothing with: a mask whose
    name is misspelt would be one, and nobody would notice."""
    plain = net._stochens_net[0] if isinstance(net, Adapter) else None
    takes = {} if plain is None else inspect.signature(plain.forward).parameters
    if not isinstance(few.tree, dict) or not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return
    names = [name for name, t in few.tree.items() if name not in takes and isinstance(t, Tensor)]
    for name in names:
        t = few.tree[name]
        others = (InputTree({**few.tree, name: other(t)}) for other in OTHERS)
        outputs = [_outputs(net, x) for x in (few, few, *others)]
        if any(made is None for made in outputs):
            return  # who calls it next says why
        if all(torch.equal(outputs[0], made) for made in outputs[1:]):
            warnings.warn(
                f"the network's outputs do not depend on {name!r}, which its forward has no "
                "parameter for and takes as one of its **kwargs. Is the name right? If it is, "
                "leave it out of the data",
                stacklevel=outside(),
            )


OTHERS = (torch.zeros_like, torch.ones_like)  # what an input is replaced by, to see what it does


def _outputs(net: nn.Module, few: Input) -> Any:
    """In evaluation; None where the network fails."""
    training = net.training
    try:
        with torch.no_grad(), plain_attention(), seeded(0, few.device):
            return net.eval()(few.clone())
    except Exception:  # whatever the user's own code raises
        return None
    finally:
        net.train(training)


def _returns_tensor(net: nn.Module, few: Tensor) -> bool:
    """Whether it does; a network that fails is said to, since the next who calls it says why."""
    outputs = _outputs(net, few)
    return outputs is None or isinstance(outputs, Tensor)
