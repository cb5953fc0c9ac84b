"""How many members of each case are right, and of how many that are not `fit` tells.

python -m tests.training.natural_judged [KIND ...]   # all of them: some ten minutes of one core
"""

import re
import sys
import warnings
from typing import NamedTuple

import torch
from tests.training.natural_cases import KINDS
from torch import Tensor

import stochens
from stochens.errors import TrainingAdvice
from stochens.training.arrival import FAR

MEMBERS = 8  # a warning names ten
SEEDS, STEPS = (0, 1, 2), (80, 800)


class Judged(NamedTuple):
    left: Tensor  # [M], sqrt(2 gap / D): how many sigmas each member is from the optimum
    told: Tensor  # [M], whether fit names it
    gap: Tensor  # [M], nats

    def counts(self) -> dict[str, int]:
        wrong = self.left > FAR
        kinds = {
            "right": ~wrong & ~self.told,
            "wrong and told": wrong & self.told,
            "wrong and silent": wrong & ~self.told,
            "right and told": ~wrong & self.told,
        }
        return {name: int(those.sum()) for name, those in kinds.items()}


def judge(kind: str, seed: int, steps: int) -> Judged:
    """In float64, which is to be torch's default."""
    torch.manual_seed(100 + seed)
    problem = KINDS[kind]()
    per_epoch = 1 if problem.batch is None else -(-problem.rows // problem.batch)
    options = {"method": "regular", "batch_size": problem.batch, **problem.options}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always", TrainingAdvice)
        posterior = stochens.fit(
            problem.net,
            problem.data,
            optimizer="natural",
            members=MEMBERS,
            epochs=max(1, round(steps / per_epoch)),
            seed=seed,
            **options,
        )
    assert posterior.low_rank is not None
    variance = posterior.low_rank.variance
    m = torch.cat([p.flatten(1) for p in posterior.params.values()], 1)
    sigma = torch.cat([variance[name].flatten(1) for name in posterior.params], 1).sqrt()
    gap = problem.bound(m, sigma) - problem.best(m, sigma)
    named = {
        int(k)
        for one in seen
        if (match := re.search(r"have not arrived.*members \(([\d, ]+)\)", str(one.message)))
        for k in match[1].split(", ")
    }
    told = torch.tensor([k in named for k in posterior.members])
    return Judged((2 * gap / m.shape[1]).clamp_min(0).sqrt(), told, gap)


def main() -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for kind in sys.argv[1:] or KINDS:
        for steps in STEPS:
            every = [judge(kind, seed, steps) for seed in SEEDS]
            counts = [one.counts() for one in every]
            sums = {name: sum(count[name] for count in counts) for name in counts[0]}
            silent = torch.cat([one.left[(one.left > FAR) & ~one.told] for one in every]).tolist()
            print(f"| {kind} | {steps} |", " | ".join(map(str, sums.values())), "|", end=" ")
            print(f"{max(silent):.1f} |" if silent else "|", flush=True)


if __name__ == "__main__":
    main()
