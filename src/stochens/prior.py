"""`Prior`: what is believed of the parameters before the data, by layer.

A parameter's prior is N(mean, 1 / precision), element by element. `resolve` says what that is for
each parameter of one network, which is all that the objective and the samplers need.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens.checks import positive
from stochens.errors import InputError, did_you_mean, outside
from stochens.members import Params, trainable
from stochens.methods.base import (
    ATTENTION,
    LOG_VARIANCE,
    LOOKUP,
    NORM,
    RECURRENT,
    StochasticLayer,
    of_likelihood,
)
from stochens.private_names import Convolution

MEANS = ("zero", "start")
SCALES = ("isotropic", "fan-in")


@dataclasses.dataclass(frozen=True, eq=False)
class Prior:
    """theta ~ N(mean, 1 / (precision * f)),  f = 1, or the fan-in of a weight.

    precision: lambda.
    mean: "zero"; "start", around where the member begins (for a network that is trained already);
        or tensors by parameter name, each of the parameter's shape, or [members, ...] in `fit`.
    scale: "isotropic" for f = 1; "fan-in" for f = the numbers that a weight's output is a sum of,
        so that outputs have the variance of inputs / precision at any width: in_features of a
        Linear, in_channels / groups * kernel positions of a convolution. Biases, norms,
        embeddings (a lookup is a sum of one) and all else of fewer than two axes have f = 1. So
        have weights of other modules, which a warning names.
    layers: patterns of parameters or layers ("head*") to a Prior of their own, or to a precision
        with mean and scale as here. The first match counts; one that matches nothing is refused.

    Where a method drops a node, its component there is N(0, sigma^2), and a mean other than zero
    counts in the KL for that component too. Both sets of np-dropout have one prior, with the mean
    of the first set's start where mean="start". A learned sigma has none of its own.

    >>> Prior(2.0, scale="fan-in", layers={"head*": 0.1}).of("head.weight", "head").precision
    0.1
    >>> Prior(5.0).plain, Prior(mean="start").plain
    (True, False)
    """

    precision: float = 1.0
    mean: str | Params = "zero"
    scale: str = "isotropic"
    layers: Mapping[str, "Prior | float"] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        positive(precision=self.precision)
        if isinstance(self.mean, str):
            if self.mean not in MEANS:
                hint = did_you_mean(self.mean, MEANS)
                raise InputError(
                    "a prior's mean must be 'zero', 'start' or tensors by parameter name, got "
                    f"{self.mean!r}{hint}"
                )
        elif not isinstance(self.mean, Mapping) or not all(
            isinstance(t, Tensor) for t in self.mean.values()
        ):
            raise InputError(
                "a prior's mean must be 'zero', 'start' or tensors by parameter name, such as "
                f"net.state_dict(), got {type(self.mean).__name__}"
            )
        if self.scale not in SCALES:
            hint = did_you_mean(str(self.scale), SCALES)
            raise InputError(
                f"a prior's scale must be 'isotropic' or 'fan-in', got {self.scale!r}{hint}"
            )
        if not isinstance(self.layers, Mapping):
            raise InputError(
                "a prior's layers must be a dict of patterns, such as {'head*': 0.1}, got "
                f"{self.layers!r}"
            )
        for pattern, own in self.layers.items():
            if isinstance(own, Prior):
                if own.layers:
                    raise InputError(
                        f"the prior of {pattern!r} has layers of its own; put all patterns into "
                        "one dict, the first match counts"
                    )
            else:
                positive(**{f"the precision of {pattern!r}": own})

    @property
    def plain(self) -> bool:
        """Whether it is N(0, 1 / precision) for all parameters."""
        return self.mean == "zero" and self.scale == "isotropic" and not self.layers

    @property
    def needs_start(self) -> bool:
        """Whether some mean is where members begin."""
        return any(isinstance(each.mean, str) and each.mean == "start" for each in self._all())

    @property
    def has_means(self) -> bool:
        """Whether some mean is made of tensors that were given."""
        return any(not isinstance(each.mean, str) for each in self._all())

    def given_means(self) -> Params:
        """The tensors that were given, those of a pattern's own prior under "pattern/name"."""
        own = {} if isinstance(self.mean, str) else dict(self.mean)
        for pattern, each in self.layers.items():
            if isinstance(each, Prior) and not isinstance(each.mean, str):
                own |= {f"{pattern}/{name}": t for name, t in each.mean.items()}
        return own

    def _all(self) -> Iterator["Prior"]:
        yield self
        yield from (own for own in self.layers.values() if isinstance(own, Prior))

    def of(self, parameter: str, layer: str) -> "Prior":
        """That of one parameter, by its name and its layer's."""
        for pattern, own in self.layers.items():
            if fnmatchcase(parameter, pattern) or fnmatchcase(layer, pattern):
                if isinstance(own, Prior):
                    return own
                return dataclasses.replace(self, precision=own, layers={})
        return self

    def description(self) -> dict[str, Any]:
        """As JSON can hold it; means that are tensors are kept beside it."""
        return {
            "precision": float(self.precision),
            "mean": self.mean if isinstance(self.mean, str) else "given",
            "scale": self.scale,
            "layers": {
                pattern: own.description() if isinstance(own, Prior) else float(own)
                for pattern, own in self.layers.items()
            },
        }

    @classmethod
    def read(cls, about: dict[str, Any], means: Params) -> "Prior":
        """From what `description` gave, and the tensors beside it."""
        return cls(
            precision=about["precision"],
            mean=means if about["mean"] == "given" else about["mean"],
            scale=about["scale"],
            layers={
                pattern: cls.read(own, means) if isinstance(own, dict) else own
                for pattern, own in about["layers"].items()
            },
        )


class Centred(NamedTuple):
    """The prior of each parameter of one network: N(mean, 1 / precision)."""

    precision: dict[str, float]  # of all parameters but learned sigmas
    mean: Params  # [1, ...] for all members or [M, ...]; where it is not here, 0

    @property
    def differs(self) -> bool:
        """Whether members have priors of their own."""
        return any(len(mean) > 1 for mean in self.mean.values())

    def to(self, like: Params) -> "Centred":
        """With means of the device and dtype of these parameters."""
        return self._replace(mean={name: t.to(like[name]) for name, t in self.mean.items()})


def resolve(
    prior: Prior, net: nn.Module, begun: Params, *, rows: Sequence[int], members: int
) -> Centred:
    """The prior of each trainable parameter of a network, which may be stochastic.

    begun: where the members `rows`, of so many `members`, begin, [len(rows), ...]; it is needed
    for means that are "start" only.
    """
    mean: Params = {}
    for name, place in _places(net).items():
        own = prior.of(place.name, place.layer)
        if isinstance(own.mean, str):
            found = begun[place.name].detach() if own.mean == "start" else None
        else:
            found = _given(own.mean, place, rows, members)
        if found is not None:
            mean[name] = _shared(found)
    return Centred(precisions(prior, net), mean)


def precisions(prior: Prior, net: nn.Module) -> dict[str, float]:
    """lambda f of each trainable parameter, by name."""
    places = _places(net)
    _refuse_unmatched(prior.layers, list(places.values()))
    found: dict[str, float] = {}
    for name, place in places.items():
        own = prior.of(place.name, place.layer)
        f = place.fan_in or 1 if own.scale == "fan-in" else 1
        found[name] = float(own.precision) * f
    return found


def warn_unknown_fan_in(prior: Prior, net: nn.Module) -> None:
    """Of weights whose prior has a scale that may not be the one that was meant."""
    unknown = [
        f"{place.name!r} {tuple(place.shape)}"
        for name, place in _places(net).items()
        if place.fan_in is None
        and name == place.name
        and prior.of(place.name, place.layer).scale == "fan-in"
    ]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        warnings.warn(
            f"the fan-in of {', '.join(unknown[:5])}{more} is not known, since the module that "
            "holds it is none of torch's layers, so that its prior has variance 1 / precision. Say "
            f"what it is by layers={{{unknown[0].split(' (')[0]}: stochens.Prior(...)}}",
            stacklevel=outside(),
        )


def as_prior(prior: float | Prior) -> Prior:
    """What a user gave as prior; a number is a precision.

    >>> as_prior(5.0).precision
    5.0
    """
    if isinstance(prior, Prior):
        return prior
    number: Any = prior
    if not isinstance(number, Real):
        raise InputError(f"prior must be a precision or a stochens.Prior, got {number!r}")
    positive(prior=number)
    return Prior(prior)


def weights_of(net: nn.Module) -> list[str]:
    """The names of the parameters that are weights: no learned sigma, and no noise level."""
    places = _places(net)
    return [n for n, place in places.items() if place.name.rpartition(".")[2] != LOG_VARIANCE]


class _Place(NamedTuple):
    """A parameter of the plain network."""

    name: str
    layer: str  # the name of the module that holds it
    shape: torch.Size
    fan_in: int | None  # None: not known


def _places(net: nn.Module) -> dict[str, _Place]:
    """Where each trainable parameter stands, by name; of a method's second set, where the first
    does. What a method adds otherwise (log sigma) is left out."""
    names = {id(p): name for name, p in trainable(net).items()}
    found: dict[str, _Place] = {}
    inside: set[str] = set()  # names that a stochastic layer has taken
    for path, module in net.named_modules():
        prefix = f"{path}." if path else ""
        if isinstance(module, StochasticLayer):
            own = [(n, p, module.base_of.get(n), module.plain) for n, p in module.owned().items()]
            noise = [n for n, _ in module.named_parameters() if of_likelihood(module.plain, n)]
            own += [(n, module.get_parameter(n), n, module.plain) for n in noise]
            inside |= {prefix + n for n, *_ in own}
        else:
            held = module.named_parameters(recurse=False)
            own = [(n, p, n, module) for n, p in held if prefix + n not in inside]
        for _, p, base, plain in own:
            if base is None or id(p) not in names:
                continue
            parent, _, last = base.rpartition(".")
            fan_in = _fan_in(plain.get_submodule(parent), last, p)
            before = found.get(names[id(p)])
            if before is not None:  # tied: the narrowest prior of its places
                known = [f for f in (before.fan_in, fan_in) if f is not None]
                found[names[id(p)]] = before._replace(fan_in=max(known, default=None))
                continue
            layer = (prefix + parent).rstrip(".")
            found[names[id(p)]] = _Place(prefix + base, layer, p.shape, fan_in)
    return {name: found[name] for name in names.values() if name in found}


def _fan_in(module: nn.Module, name: str, p: Tensor) -> int | None:
    """How many numbers an output is a sum of by this parameter; None: not known."""
    if p.dim() < 2 or isinstance(module, (*LOOKUP, nn.EmbeddingBag, *NORM)):
        return 1
    if isinstance(module, Convolution):
        if module.transposed:  # [in, out / groups, *kernel]; where strides leave gaps, fewer
            return len(p) // module.groups * math.prod(p.shape[2:])
        return math.prod(p.shape[1:])
    if isinstance(module, (nn.Linear, nn.Bilinear)):
        return math.prod(p.shape[1:])
    if isinstance(module, (*ATTENTION, *RECURRENT, nn.RNNCellBase)):
        return 1 if name in ("bias_k", "bias_v") else p.shape[1]
    if type(module).__name__ == "Conv1D" and hasattr(module, "nf"):  # of transformers: [in, out]
        return len(p)
    return None


def _refuse_unmatched(layers: Mapping[str, Any], places: list[_Place]) -> None:
    for pattern in layers:
        if not any(fnmatchcase(p.name, pattern) or fnmatchcase(p.layer, pattern) for p in places):
            names = list(dict.fromkeys(p.name for p in places))
            raise InputError(
                f"the prior's pattern {pattern!r} matches no parameter"
                f"{did_you_mean(pattern, names)}; they are {', '.join(names)}"
            )


def _given(mean: Params, place: _Place, rows: Sequence[int], members: int) -> Tensor | None:
    """What was given for one parameter, [1, ...] or [len(rows), ...]."""
    shape = tuple(place.shape)
    if place.name not in mean:
        if place.name.rpartition(".")[2] == LOG_VARIANCE:
            return None  # the likelihood's, of which a network's own tensors know nothing
        raise InputError(
            f"the prior's mean has no {place.name!r}; to have it around zero, say so by "
            f"layers={{{place.name!r}: stochens.Prior(...)}}"
        )
    t = mean[place.name].detach()
    if not bool(t.isfinite().all()):
        raise InputError(f"the prior's mean of {place.name!r} is not finite")
    if tuple(t.shape) == shape:
        return t.unsqueeze(0)
    if tuple(t.shape) == (members, *shape):
        return t[list(rows)]
    if tuple(t.shape) == (1, *shape):
        return t
    raise InputError(
        f"the prior's mean of {place.name!r} must be {shape}, or {(members, *shape)} for each of "
        f"{members} members, got {tuple(t.shape)}"
    )


def _shared(t: Tensor) -> Tensor:
    """[M, ...] as [1, ...] where all members have the same, in memory of its own."""
    same = len(t) > 1 and bool((t == t[:1]).all())
    return (t[:1] if same else t).clone()
