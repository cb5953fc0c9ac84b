"""What the networks themselves return, before a likelihood or a temperature changes it."""

import dataclasses
from typing import Any, ClassVar

from torch import Tensor

from stochens.likelihoods import Gaussians, Likelihood
from stochens.posterior.posterior import Posterior


@dataclasses.dataclass(frozen=True)
class _Outputs(Likelihood):
    """Outputs as they are: the means of Gaussians, of whose noise nothing is said."""

    name: ClassVar[str] = "outputs"

    def distribution(self, outputs: Tensor) -> Gaussians:
        return Gaussians(outputs, outputs[..., :0])

    def nll(self, outputs: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def check_targets(self, y: Tensor) -> Tensor:
        raise NotImplementedError

    def check_outputs(self, outputs: Tensor, y: Tensor) -> None:
        raise NotImplementedError


def outputs_of(posterior: Posterior, x: Any, **options: Any) -> Tensor:
    """Every draw's outputs [S, B, C], those that `posterior.predict(x, **options)` is made of: of
    classes the logits, at temperature 1.

    >>> import torch
    >>> from torch import nn
    >>> posterior = Posterior.of([nn.Linear(2, 3) for _ in range(5)])
    >>> outputs_of(posterior, torch.zeros(4, 2)).shape
    torch.Size([5, 4, 3])
    """
    plain = dataclasses.replace(posterior, likelihood=_Outputs(), calibration=None)
    p: Any = plain.predict(x, **options | {"keep_draws": True})
    outputs: Tensor = p.components()[0]
    return outputs
