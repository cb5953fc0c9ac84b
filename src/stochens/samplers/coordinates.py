"""Coordinates in which the prior is N(0, 1 / precision) for all parameters, whatever it is.

    theta = mean + scale w,   scale_d = sqrt(precision / precision_d)

so that  sum_d precision_d / 2 (theta_d - mean_d)^2 = precision / 2 |w|^2,  and a gradient with
respect to w is scale times that with respect to theta. NUTS, HMC and Langevin dynamics move w: a
trajectory's length, a mass and a step are in standard deviations of each parameter's own prior.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from stochens.members import Params, flatten
from stochens.prior import Centred


class Coordinates(NamedTuple):
    """Of flat parameters, each [D]; None: 0, and 1."""

    mean: Tensor | None = None
    scale: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether w is theta."""
        return self.mean is None and self.scale is None

    def theta(self, w: Tensor) -> Tensor:
        """mean + scale w, [..., D]."""
        scaled = w if self.scale is None else self.scale * w
        return scaled if self.mean is None else self.mean + scaled

    def w(self, theta: Tensor) -> Tensor:
        """(theta - mean) / scale, [..., D]."""
        moved = theta if self.mean is None else theta - self.mean
        return moved if self.scale is None else moved / self.scale

    def slope(self, by_theta: Tensor) -> Tensor:
        """d/dw of what has this d/dtheta, [..., D]."""
        return by_theta if self.scale is None else self.scale * by_theta

    def precision(self, precision: float) -> float | Tensor:
        """That of each theta_d, where w has this one."""
        return precision if self.scale is None else precision / self.scale.square()

    def energy(self, theta: Tensor, precision: float) -> Tensor:
        """precision / 2 |w|^2, [...], in float64."""
        own = Coordinates(*(None if t is None else t.double() for t in self))
        return 0.5 * precision * own.w(theta.double()).square().sum(-1)

    def to(self, device: torch.device) -> "Coordinates":
        return Coordinates(*(None if t is None else t.to(device) for t in self))


THETA = Coordinates()  # w is theta itself


def coordinates_for(prior: float | Centred, params: Params, precision: float) -> Coordinates:
    """For parameters [M, ...] in their order, and w of this precision."""
    if not isinstance(prior, Centred):
        return THETA
    one = {name: p[:1] for name, p in params.items()}
    scale = mean = None
    if any(each != precision for each in prior.precision.values()):
        each = {
            n: torch.full_like(p, (precision / prior.precision[n]) ** 0.5) for n, p in one.items()
        }
        scale = flatten(each)[0]
    if prior.mean:
        each = {
            n: prior.mean[n].to(p) if n in prior.mean else torch.zeros_like(p)
            for n, p in one.items()
        }
        mean = flatten(each)[0]
    return Coordinates(mean, scale)
