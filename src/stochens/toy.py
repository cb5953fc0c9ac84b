"""The toy problem: three sets of points in the plane, of falling separability.

The paper's own sets are not published. Ours are two half-moons inside [-1, 1]^2:

    t ~ U(0, pi);   class 0: u = (cos t, sin t);   class 1: u = (1 - cos t, 1/2 - sin t)
    x = ((u_1 - 1/2) / 2, u_2 - 1/4) + s * N(0, I),   drawn again until max |x_i| <= 1

The arcs leave corners and outside uncovered, where only the parameters can be unsure; s mixes the
classes along the boundary, where the data are.
"""

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError

SPREAD = {"a": 0.04, "b": 0.12, "c": 0.22}  # s: separable, touching, mixed
IN_DOMAIN, OUT_OF_DOMAIN = 1.0, 10.0  # half the side of the squares that test points come from


def toy_set(name: str, *, n: int = 400, draw: int = 0) -> tuple[Tensor, Tensor]:
    """Points x [n, 2] and classes y [n], half of each; `draw` makes another sample of the set.

    >>> x, y = toy_set("a")
    >>> x.shape, y.bincount().tolist(), bool(x.abs().max() <= 1)
    (torch.Size([400, 2]), [200, 200], True)
    """
    if name not in SPREAD:
        raise InputError(f"the toy sets are {', '.join(SPREAD)}, got {name!r}")
    if n < 2:
        raise InputError(f"a toy set needs at least 2 points, got n = {n}")
    rng = np.random.default_rng(1000 * draw + ord(name))
    y = np.arange(n) % 2
    x = np.full((n, 2), np.inf)
    while (outside := np.abs(x).max(1) > 1).any():
        k = y[outside]
        t = rng.uniform(0, np.pi, k.size)
        u = np.stack(
            [np.where(k, 1 - np.cos(t), np.cos(t)), np.where(k, 0.5, 0) + _sign(k) * np.sin(t)]
        )
        centre = np.stack([(u[0] - 0.5) / 2, u[1] - 0.25], 1)
        x[outside] = centre + SPREAD[name] * rng.standard_normal((k.size, 2))
    return torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)


def _sign(k: np.ndarray) -> np.ndarray:
    return np.where(k, -1.0, 1.0)


def uniform_points(n: int, *, half_side: float = IN_DOMAIN, seed: int = 0) -> Tensor:
    """Points spread evenly over [-half_side, half_side]^2, [n, 2]."""
    rng = np.random.default_rng(seed)
    return torch.as_tensor(rng.uniform(-half_side, half_side, (n, 2)), dtype=torch.float32)


def grid(half_side: float, *, steps: int = 101) -> Tensor:
    """A square grid of points, row by row from the bottom, [steps * steps, 2]."""
    line = torch.linspace(-half_side, half_side, steps)
    y, x = torch.meshgrid(line, line, indexing="ij")
    return torch.stack([x.flatten(), y.flatten()], 1)
