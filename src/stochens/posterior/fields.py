"""What a posterior is made of, below everything that saves, sends and predicts with it."""

import copy
import dataclasses
from typing import Self

import torch
from torch import nn

from stochens.likelihoods import Likelihood
from stochens.members import Engine, Params, move, size
from stochens.posterior.chains import Chains
from stochens.posterior.history import History
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.recipe import Inputs, Recipe
from stochens.posterior.temperature import Calibration
from stochens.posterior.trials import Trials
from stochens.prior import Prior


@dataclasses.dataclass(frozen=True, kw_only=True)
class PosteriorFields:
    """Stacked parameters, the network they belong to, and where they come from."""

    net: nn.Module
    params: Params
    likelihood: Likelihood
    recipe: Recipe
    members: tuple[int, ...]
    data_size: float  # how many examples the likelihood is of: N, or the sum of their weights
    prior_precision: float = 1.0
    prior: Prior | None = None  # None: N(0, 1 / prior_precision)
    # of it, [1, ...] for all members or [M, ...], by parameter; where it is not here, 0
    prior_mean: Params = dataclasses.field(default_factory=dict)
    seed: int = 0
    history: History | None = None
    low_rank: LowRankGaussian | None = None
    engine: Engine = "vmap"
    chains: Chains | None = None  # of a sampler: the members are its draws, chain after chain
    trials: Trials | None = None  # of method="auto": what led to the method
    sample_weight: str | None = None  # a digest of the weights; None: all examples counted the same
    inputs: Inputs | None = None  # None: of a folder that was written before they were kept
    calibration: Calibration | None = None  # the temperature of all its predictions; None: 1

    def __len__(self) -> int:
        return size(self.params)

    def to(self, device: torch.device | str) -> Self:
        """The same posterior on another device; this one stays where it is."""
        low_rank = self.low_rank and self.low_rank.each(lambda part: move(part, device))
        net = copy.deepcopy(self.net).to(device)  # a module moves in place
        return dataclasses.replace(
            self,
            net=net,
            params=move(self.params, device),
            prior_mean=move(self.prior_mean, device),
            low_rank=low_rank,
        )
