"""Whether float32 was enough: a sampler lives on differences of energies, and rounding eats them.

The energy U of N examples may be large where its differences are of order 1: targets that are far
from 0 do this. U has 24 bits in float32, so beyond 2^24 nats nothing of order 1 is left of it.
"""

import copy

import torch
from torch import Tensor

from stochens.members import Params, forward
from stochens.posterior.posterior import Posterior
from stochens.samplers.target import NetworkTarget
from stochens.trees import with_dtype

LIMIT = 0.2  # nats by which rounding may move the log density from one draw to another
DRAWS = 16  # that are looked at, evenly spaced over all chains


def rounding_trouble(posterior: Posterior, target: NetworkTarget) -> str | None:
    """What the energies that the sampler saw have lost, against the same in float64."""
    assert posterior.chains is not None
    dtype = next(iter(posterior.params.values())).dtype
    if dtype == torch.float64:
        return None
    seen = posterior.chains.stats["likelihood"].flatten()  # [S], float64 values of float32 sums
    some = torch.linspace(0, len(seen) - 1, min(DRAWS, len(seen))).round().long()
    seen = seen[some]
    lost = torch.finfo(dtype).eps * float(seen.abs().median())  # the spacing of such numbers
    params = {
        name: p[some.to(p.device)].to(target.x.device).double()
        for name, p in posterior.params.items()
    }
    exact = _energy(target, params)
    if exact is not None and len(seen) > 1:
        lost = max(lost, float((seen - exact).std()))  # what all draws share does no harm
    if not lost > LIMIT:
        return None
    far = f"The energies are about {float(seen.abs().median()):.2g}"
    if target.y.is_floating_point():
        far += f", and targets up to {float(target.y.abs().max()):.3g}"
    return (
        f"{str(dtype).removeprefix('torch.')} is too coarse here: rounding moves the log density "
        f"by {lost:.2g} from draw to draw, so that the draws may not be those of the posterior. "
        f"{far}. "
        "Give dtype=torch.float64, or bring the targets to mean 0 and standard deviation 1"
    )


def _energy(target: NetworkTarget, params: Params) -> Tensor | None:
    """N nll of draws in float64, [S]; None where the network cannot run in it."""
    net, rows = copy.deepcopy(target.net).double(), max(1, target.rows // 2)
    total = torch.zeros(len(next(iter(params.values()))), dtype=torch.float64)
    try:
        with torch.no_grad():
            for top in range(0, len(target.x), rows):
                x, y = (
                    with_dtype(t[top : top + rows], torch.float64) for t in (target.x, target.y)
                )
                outputs = forward(net, params, x, engine=target.engine)  # [S, B, C]
                nll = target.likelihood.nll(outputs, y.expand(len(total), *y.shape))
                total += len(x) * nll.cpu()
    except (RuntimeError, TypeError):  # it has float32 numbers of its own, say
        return None
    return total
