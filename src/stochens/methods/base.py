"""What a method is: a rule that swaps the layers of any network for stochastic ones.

A network with noisy layers is again a plain nn.Module whose parameters are omega, named as in the
plain network. So a stochastic ensemble is a deep ensemble of stochastic networks, and training,
averaging, prediction and saving never mention a method.
"""

import abc
import dataclasses
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple, Self

from torch import Tensor, nn
from torch.func import functional_call

from stochens.errors import InputError
from stochens.members import Params
from stochens.methods.nodes import by_node
from stochens.methods.patterns import first_match, matches
from stochens.networks import FRN
from stochens.private_names import (
    Convolution,
    TransposedLinear,
    apply_to_tensors,
    buffers_of,
    check_apply,
    hooks_of,
    parameters_of,
    parts_of,
    unsaved_buffers_of,
)

# theta enters linearly; transposed ones included
LINEAR = (nn.Linear, Convolution, TransposedLinear)
LOOKUP = (nn.Embedding,)
ATTENTION = (nn.MultiheadAttention,)
RECURRENT = (nn.RNNBase,)
LOG_VARIANCE = "log_variance"  # what likelihoods.Homoscedastic adds to the network
NORM = (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, FRN)


class Mixture(NamedTuple):
    """A layer's q, node by node: theta_n ~ sum_i weights_i N(means_i,n, sigma^2) (equation 7).

    Every term of the KL follows from it, so a method states its family here and nowhere else.
    """

    weights: tuple[float, ...]  # p_i, summing to 1
    means: tuple[Tensor, ...]  # omega_i, each [M, N, D]: members, nodes, parameters of a node
    sigma: Tensor | None = None  # [M, N, D]; None: machine precision


class StochasticLayer(nn.Module, abc.ABC):
    """A layer with noise, around a plain layer or around another stochastic layer.

    It owns the layer's parameters and buffers under their own names; the layer itself is kept out
    of torch's sight and only lends its forward pass. Subclasses override `draw` (noise on weights,
    shared by the batch), `perturb` (noise on outputs, fresh for each example), `output` or
    `forward`.
    """

    needs_second_set: ClassVar[bool] = False
    last: ClassVar[bool] = False  # nothing may be wrapped around it
    noise_on_weights: ClassVar[bool] = False  # whether `draw` draws, once for a whole batch
    # Whether `draw`, `output_rate` and a sigma are all its noise, so that a kernel can apply it
    fusable: bool = False
    masks_inputs: ClassVar[bool] = False  # whether noise is on what goes in
    output_rate: float = 0.0  # the drop rate of outputs

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        check_apply()
        self._inner = (layer,)  # a tuple, so that torch does not register it as a child
        self._own()
        self.names = list(self.lent())
        # Those of the plain layer that have noise: what is frozen has none, unless the layer is
        # frozen as a whole, which no method takes unasked.
        self.noisy = self.trained() or self.plain_names()
        # omega's mean parameters -> the plain layer's parameter that each one is a value of
        self.base_of: dict[str, str] = (
            dict(layer.base_of)
            if isinstance(layer, StochasticLayer)
            else {name: name for name in self.names}
        )

    def lent(self) -> dict[str, nn.Parameter]:
        """The inner layer's parameters, by name, that are omega here."""
        return dict(self.inner.named_parameters())

    def plain_names(self) -> list[str]:
        """Likewise the names of the plain layer's."""
        return [name for name, _ in self.plain.named_parameters()]

    def trained(self) -> list[str]:
        """Likewise of the weights among them that are not frozen."""
        layer, names = self.plain, self.plain_names()
        return [
            n for n in names if layer.get_parameter(n).requires_grad and not of_likelihood(layer, n)
        ]

    def owned(self) -> dict[str, nn.Parameter]:
        """The weights of omega, and what a method adds to them."""
        return {n: p for n, p in self.named_parameters() if not of_likelihood(self.plain, n)}

    def _own(self) -> None:
        """Register what the inner layer has, the same tensors."""
        for name, p in self.inner.named_parameters():
            register(self, name, p)
        kept = self.inner.state_dict(keep_vars=True)
        for name, buffer in self.inner.named_buffers():
            register_buffer(self, name, buffer, persistent=name in kept)

    @property
    def inner(self) -> nn.Module:
        return self._inner[0]

    @property
    def plain(self) -> nn.Module:
        """The layer without any noise."""
        return self.inner.plain if isinstance(self.inner, StochasticLayer) else self.inner

    def omega(self) -> Params:
        """The mean parameters as they are now (functional_call may have swapped them)."""
        return {name: attrgetter(name)(self) for name in self.names}

    def draw(self, omega: Params) -> Params:
        """theta ~ q(theta; omega), one draw of the inner layer's parameters, for one member."""
        return omega

    def perturb(self, y: Tensor) -> Tensor:
        """One draw of the layer's output, given the output of its parameters."""
        return y

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.output(self.draw(self.omega()), args, kwargs)

    def output(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One draw of the layer's output, given a draw of its parameters."""
        y = self.run_inner(theta, args, kwargs)
        if isinstance(y, tuple):  # attention and recurrent layers return more than their output
            return (self.perturb(y[0]), *y[1:])
        return self.perturb(y)

    def run_inner(self, theta: Params, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The inner layer's output by parameters theta and the buffers that torch sees here, which
        may be others than the inner layer's own (torch.export swaps them)."""
        buffers = dict(self.named_buffers())
        return functional_call(self.inner, {**buffers, **theta}, args, kwargs)

    @abc.abstractmethod
    def mixtures(self, omega: Params) -> list[Mixture]:
        """The layer's family, from its stacked parameters [M, ...]."""

    def nodes(self, values: Params) -> list[Tensor]:
        """Stacked values of the plain layer's parameters as blocks [M, N, D], one for each of the
        `mixtures`, in their order."""
        if isinstance(self.inner, StochasticLayer):
            return self.inner.nodes(values)
        return by_node(self.plain, values)

    def start(self, first: Params, second: Params) -> Params:
        """omega's starting values [M, ...], from two initialisations of the plain layer.

        Most methods need only the first; `needs_second_set` says who needs both.
        """
        if isinstance(self.inner, StochasticLayer):
            return self.inner.start(first, second)
        return dict(first)

    def shared_by_batch(self) -> bool:
        """Whether the examples of a batch see the same draw."""
        inner = isinstance(self.inner, StochasticLayer) and self.inner.shared_by_batch()
        return self.noise_on_weights or inner

    def inner_mixtures(self, omega: Params) -> list[Mixture]:
        """The inner layer's family: what it says itself, or a single component around omega."""
        if isinstance(self.inner, StochasticLayer):
            return self.inner.mixtures(omega)
        return [Mixture((1.0,), (block,)) for block in by_node(self.inner, omega)]

    # The inner layer follows its owner's mode and device, though torch does not see it.
    def train(self, mode: bool = True) -> Self:
        self.inner.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        apply_to_tensors(self.inner, fn, recurse)
        self._own()
        lent = dict(self.inner.named_parameters())
        for name, p in self.named_parameters():
            if name not in lent:
                p.data = fn(p.data)
        return self

    def __getattr__(self, name: str) -> Any:
        """`in_features`, `batch_first`, ...: what other modules read off the plain layer."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            inner = self.__dict__.get("_inner")
            if inner is None or name.startswith("__"):
                raise
            return getattr(inner[0], name)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.noise_repr()}{self.inner!r})"

    def noise_repr(self) -> str:
        return ""

    def noise_words(self) -> str:
        """Its own noise in a few words, without that of the layer inside, for `describe`."""
        return f"{type(self).__name__}({self.noise_repr().removesuffix(', ')})"


def of_likelihood(module: nn.Module, name: str) -> bool:
    """Whether a likelihood has added it, with a hook: a noise level, and no weight."""
    return name == LOG_VARIANCE and bool(hooks_of(module))


def register(module: nn.Module, path: str, p: nn.Parameter) -> None:
    """Register a parameter under a dotted name, e.g. attention's "out_proj.weight"."""
    owner, name = owner_of(module, path)
    parameters_of(owner)[name] = p


def register_buffer(module: nn.Module, path: str, buffer: Tensor, *, persistent: bool) -> None:
    """Likewise a buffer, e.g. "parametrizations.weight.0._u"."""
    owner, name = owner_of(module, path)
    buffers_of(owner)[name] = buffer
    if not persistent:
        unsaved_buffers_of(owner).add(name)


def owner_of(module: nn.Module, path: str) -> tuple[nn.Module, str]:
    """The module that holds the last name of a dotted one; it is made where it is not there."""
    *parents, name = path.split(".")
    for parent in parents:
        # not add_module or register_parameter, which would trip over our __getattr__
        module = parts_of(module).setdefault(parent, nn.Module())  # type: ignore[assignment]
    return module, name


def beside(p: Tensor, start: Tensor) -> nn.Parameter:
    """A parameter that goes with p, starting at `start`; frozen where p is frozen."""
    return nn.Parameter(start.detach().clone(), requires_grad=p.requires_grad)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method(abc.ABC):
    """A rule for which layers become stochastic, and how. Options are its fields.

    `skip`: name patterns of layers that stay as they are ("head", "encoder.*").
    `layers`: name patterns of the only layers that it takes, the output layer and frozen ones too
    where they match; empty: all that it can.
    """

    skip: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()

    name: ClassVar[str]
    applies_to: ClassVar[tuple[type[nn.Module], ...]]
    output_hint: ClassVar[str] = ""  # how to put noise on the output layer
    goes_on_noise: ClassVar[bool] = False  # whether it may wrap a layer that is stochastic already
    everywhere: ClassVar[bool] = False  # whether it reaches the parameters of any other module too
    freezes: ClassVar[bool] = False  # whether members own a part of the network, by `adapt`
    begins_at_module: ClassVar[bool] = False  # whether what they own of the network begins as it is

    def __post_init__(self) -> None:
        for field in ("skip", "layers"):
            given: object = getattr(self, field)  # a plain string, or a list from JSON
            patterns = (given,) if isinstance(given, str) else tuple(getattr(self, field))
            object.__setattr__(self, field, patterns)

    def adapt(self, net: nn.Module, *, output: str | None) -> nn.Module:
        """The network with what this method adds to it and freezes, before any noise; once more is
        no more. It may change the network, which is a copy."""
        return net

    @abc.abstractmethod
    def wrap(self, layer: nn.Module, path: str) -> nn.Module:
        """The stochastic layer in place of `layer`, or `layer` itself where the noise is nil."""

    def wrap_own(self, module: nn.Module, path: str) -> nn.Module:
        """Likewise where only the parameters that the module holds itself are meant."""
        return module

    def patterns(self) -> tuple[str, ...]:
        """Name patterns in the options beside `skip`; each must match a layer it applies to."""
        return ()

    def asks_for(self, path: str) -> bool:
        """Whether the options name this layer, so that it gets noise though it is frozen."""
        return False

    def declines(self, path: str) -> bool:
        """Whether the options say that this layer gets no noise."""
        return matches(self.skip, path) or (bool(self.layers) and not self.names(path))

    def names(self, path: str) -> bool:
        """Whether `layers` names it."""
        return matches(self.layers, path)

    def takes_output(self, path: str) -> bool:
        """Whether the output layer, which is at `path`, gets noise too."""
        return False

    def options(self) -> dict[str, Any]:
        """The fields, as JSON can hold them; `layers` where there are any, as in older files."""
        found = dataclasses.asdict(self)
        return found if self.layers else {k: v for k, v in found.items() if k != "layers"}


@dataclasses.dataclass(frozen=True)
class Rated(Method):
    """A method with a drop rate: `p`, or by name pattern in `rates`, where the first match counts.

    A layer named in `rates` is noisy even if it is the output layer.
    """

    output_hint: ClassVar[str] = " unless it is named in rates or layers"

    p: float = 0.1
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate(self.p)
        for pattern, p in self.rates.items():
            check_rate(p, f" of {pattern!r}")

    def rate(self, path: str) -> float:
        return first_match(self.rates, path, self.p)

    def patterns(self) -> tuple[str, ...]:
        return tuple(self.rates)

    def takes_output(self, path: str) -> bool:
        return self.asks_for(path)

    def asks_for(self, path: str) -> bool:
        return first_match(self.rates, path, None) is not None

    def declines(self, path: str) -> bool:
        return super().declines(path) or self.rate(path) == 0


def check_rate(p: float, where: str = "") -> None:
    if not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise InputError(f"drop rate{where} must be in [0, 1), got {p!r}")


def check_node(node: str) -> None:
    if node not in ("position", "channel"):
        raise InputError(f"node must be 'position' or 'channel', got {node!r}")


def zeros_like(omega: Tensor) -> Tensor:
    """omega2 = 0, without its memory."""
    return omega.new_zeros(()).expand_as(omega)
