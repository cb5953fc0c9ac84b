"""What the outputs of a network mean: p(y | x, theta)."""

import abc
import dataclasses
import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from stochens.errors import InputError, check_known

LOG_2_PI = math.log(2 * math.pi)
LOG_VARIANCE = "log_variance"


class Likelihood(abc.ABC):
    name: ClassVar[str]

    @abc.abstractmethod
    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """-log p(y | x, theta), the mean over examples: [..., B, C], [..., B, ...] -> [...].

        weights [..., B]: the mean of weights * nll, for weights whose mean over all data is 1.
        """

    @abc.abstractmethod
    def check_targets(self, y: Tensor) -> Tensor:
        """The targets as `nll` wants them, or an InputError that names what is wrong."""

    @abc.abstractmethod
    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        """Whether the network's outputs [B, C] fit all the targets."""

    def prepare(self, net: nn.Module, y: Tensor) -> nn.Module:
        """The network with whatever parameters the likelihood adds to it."""
        return net

    def options(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload, no-any-return]


def _wide(outputs: Tensor) -> Tensor:
    """bf16 is too coarse for logarithms."""
    return outputs.float() if outputs.dtype.itemsize < 4 else outputs


def _mean(nll: Tensor, weights: Tensor | None) -> Tensor:
    """(1/B) sum_b w_b nll_b: [..., B] -> [...]. Not divided by the batch's own sum of weights,
    which would be biased: a batch of light rows would count as much as one of heavy rows."""
    return (nll if weights is None else weights * nll).mean(-1)


@dataclasses.dataclass(frozen=True)
class Categorical(Likelihood):
    """p(y | x) = softmax(outputs)_y: outputs [..., B, C] are logits, y [..., B] integers.

    >>> float(Categorical().nll(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0])))
    0.6931...
    """

    name: ClassVar[str] = "categorical"

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        logp = _wide(outputs).log_softmax(-1)
        return _mean(-logp.gather(-1, y.unsqueeze(-1)).squeeze(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        if y.dim() == 2 and y.shape[1] == 1:
            raise InputError(f"labels must be [N], got {tuple(y.shape)}; use y.squeeze(1)")
        if y.dim() != 1:
            hint = "; one-hot? use y.argmax(1)" if y.dim() == 2 else ""
            raise InputError(f"labels must be [N], got {tuple(y.shape)}{hint}")
        if y.is_floating_point() or y.is_complex():
            raise InputError(
                f"labels must be integers, got {y.dtype}; use y.long(), or likelihood='gaussian' "
                "for regression"
            )
        return y.long()

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if outputs.dim() != 2:
            raise InputError(f"the network must return logits [B, C], got {tuple(outputs.shape)}")
        classes = outputs.shape[1]
        low, high = int(y.min()), int(y.max())
        if low < 0 or high >= classes:
            wrong = low if low < 0 else high
            if classes == 1:
                raise InputError(
                    f"label {wrong} is out of range: the network has one output, and two classes "
                    "need two (logits, one for each class)"
                )
            raise InputError(
                f"label {wrong} is out of range: the network has {classes} outputs, so labels must "
                f"be 0 to {classes - 1}"
            )


class Gaussian(Likelihood):
    """What the two regression likelihoods share: targets [N, D], mean and variance per output."""

    @abc.abstractmethod
    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance of y, each [..., B, D]."""

    @abc.abstractmethod
    def width(self, targets: int) -> int:
        """How many outputs the user's network needs for D targets."""

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """1/2 sum_d [(y_d - mean_d)^2 / var_d + log var_d + log 2 pi]"""
        mean, variance = self.moments(_wide(outputs))
        terms = (y - mean).square() / variance + variance.log() + LOG_2_PI
        return _mean(0.5 * terms.sum(-1), weights)

    def check_targets(self, y: Tensor) -> Tensor:
        y = y.unsqueeze(1) if y.dim() == 1 else y
        if y.dim() != 2:
            raise InputError(f"regression targets must be [N] or [N, D], got {tuple(y.shape)}")
        if y.is_complex():
            raise InputError("regression targets must be real; give real and imaginary part as two")
        if not y.is_floating_point():
            y = y.to(torch.get_default_dtype())
        if not bool(y.isfinite().all()):
            row = int((~y.isfinite()).any(1).nonzero()[0])
            raise InputError(f"regression targets must be finite; row {row} is {y[row].tolist()}")
        return y

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        want = self.width(y.shape[1])
        if outputs.dim() != 2 or outputs.shape[1] != want:
            raise InputError(
                f"for targets [N, {y.shape[1]}] the likelihood {self.name!r} needs a network with "
                f"outputs [B, {want}], got {tuple(outputs.shape)}"
            )


@dataclasses.dataclass(frozen=True)
class Homoscedastic(Gaussian):
    """y ~ N(f(x), noise^2), one noise for all x: outputs [..., B, D].

    `noise` is fixed where it is given. Otherwise each member learns log noise^2 for each target, as
    a parameter `log_variance` under the same prior as the weights.

    >>> outputs, y = torch.zeros(4, 1), torch.zeros(4, 1)  # [B, D]
    >>> float(Homoscedastic(noise=1.0).nll(outputs, y))  # log(2 pi) / 2
    0.9189...
    """

    noise: float | None = None
    name: ClassVar[str] = "gaussian"

    def __post_init__(self) -> None:
        if self.noise is not None and not 0 < self.noise < math.inf:
            raise InputError(f"noise must be a positive number or None, got {self.noise!r}")

    def prepare(self, net: nn.Module, y: Tensor) -> nn.Module:
        done = _append_log_variance in net._forward_hooks.values()
        if self.noise is None and not done:
            if hasattr(net, LOG_VARIANCE):
                raise InputError(
                    "the network has a log_variance of its own, and likelihood='gaussian' adds one "
                    "under that name; rename it, or use 'heteroscedastic'"
                )
            dtype = next((p.dtype for p in net.parameters()), y.dtype)
            net.register_parameter(LOG_VARIANCE, nn.Parameter(torch.zeros(y.shape[1], dtype=dtype)))
            net.register_forward_hook(_append_log_variance)
        return net

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        if self.noise is None:
            return Heteroscedastic().moments(outputs)
        return outputs, torch.full_like(outputs, self.noise**2)

    def width(self, targets: int) -> int:
        return targets

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        if self.noise is None and outputs.dim() == 2:
            outputs = outputs[:, : -y.shape[1]]  # what the user's network gave, before `prepare`
        super().check_outputs(outputs, y)


def learned_noise(likelihood: Likelihood) -> str | None:
    """The name of the parameter that the likelihood adds to a network to learn its noise.

    >>> learned_noise(Homoscedastic()), learned_noise(Homoscedastic(0.1))
    ('log_variance', None)
    """
    learned = isinstance(likelihood, Homoscedastic) and likelihood.noise is None
    return LOG_VARIANCE if learned else None


def _append_log_variance(net: nn.Module, _: Any, mean: Any) -> Any:
    if not isinstance(mean, Tensor) or mean.dim() != 2:
        return mean  # which is refused, by its shape
    log_variance: Tensor = net.log_variance  # type: ignore[assignment]
    return torch.cat([mean, log_variance.expand(mean.shape[0], -1)], -1)


@dataclasses.dataclass(frozen=True)
class Heteroscedastic(Gaussian):
    """y ~ N(f(x), noise(x)^2): outputs [..., B, 2 D] are the D means, then the D log noise^2.

    >>> mean, variance = Heteroscedastic().moments(torch.zeros(4, 2))  # [B, 2 D]
    >>> mean.shape, float(variance[0, 0])
    (torch.Size([4, 1]), 1.0)
    """

    name: ClassVar[str] = "heteroscedastic"

    def moments(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = outputs.chunk(2, dim=-1)
        return mean, log_variance.exp()

    def width(self, targets: int) -> int:
        return 2 * targets


LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind for kind in (Categorical, Homoscedastic, Heteroscedastic)
}


def resolve(likelihood: str | Likelihood) -> Likelihood:
    """A likelihood by name or by object.

    >>> resolve("gaussian")
    Homoscedastic(noise=None)
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    check_known("likelihood", likelihood, LIKELIHOODS)
    return LIKELIHOODS[likelihood]()
