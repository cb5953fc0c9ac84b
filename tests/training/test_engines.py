"""Which engine a network allows: what is tried before training is what training does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens.errors import Unsuited
from stochens.members import builder, init
from stochens.training.engines import choose_engine


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.body(x)))


class Branches(Plain):
    """Looks at the values of x, as Hugging Face's BERT does for its mask."""

    def forward(self, x: Tensor) -> Tensor:
        if (x == 0).all():
            x = x + 1
        return super().forward(x)


class BranchesInTraining(Plain):
    def forward(self, x: Tensor) -> Tensor:
        if self.training and x.abs().max() > 100:
            x = x / 100
        return super().forward(x)


@pytest.fixture
def data(float64: None) -> tuple[Tensor, Tensor]:
    x = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] > 0).long()


FIT = {"members": 3, "epochs": 2, "batch_size": 8, "lr": 0.01}
TRAINERS: dict[str, Any] = {
    **{
        name: lambda net, data, name=name: stochens.fit(net, data, method=name, **FIT)
        for name in ("regular", "dropout", "dropconnect", "np-dropout", "gaussian")
    },
    "multiswa": lambda net, data: stochens.multiswa(net, data, **FIT),
    "langevin": lambda net, data: stochens.langevin(net, data, members=3, steps=6, batch_size=8),
    "sgmcmc": lambda net, data: stochens.sgmcmc(
        net, data, chains=2, samples=2, burn_in=2, batch_size=8
    ),
    "replicas": lambda net, data: stochens.fit(
        net, stochens.Replicas([data, data]), method="regular", **FIT | {"batch_size": None}
    ),
}
ONE_BY_ONE = "members run one after the other"


def same_members(one: stochens.Posterior, other: stochens.Posterior) -> None:
    for name, p in other.params.items():
        # float64 sums in another order, over few steps
        torch.testing.assert_close(one.params[name], p, rtol=1e-9, atol=1e-12)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of too few steps
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_network_that_branches_on_x_is_trained_one_by_one(trainer: str, data: Any) -> None:
    """Each member has its own rows, and vmap cannot branch on them: the members are those that
    the same network without its branch has by vmap."""
    train = TRAINERS[trainer]
    with pytest.warns(UserWarning, match=ONE_BY_ONE):
        found = train(Branches, data)
    assert found.engine == "loop"
    same_members(found, train(Plain, data))


SHARED: dict[str, Any] = {
    "all rows": lambda net, data: stochens.fit(
        net, data, method="dropout", **FIT | {"batch_size": None}
    ),
    "loader": lambda net, data: stochens.fit(
        net, DataLoader(TensorDataset(*data), batch_size=8), method="dropout", **FIT
    ),
    "langevin": lambda net, data: stochens.langevin(net, data, members=3, steps=6),
    "sgmcmc": lambda net, data: stochens.sgmcmc(net, data, chains=2, samples=2, burn_in=2),
    "nuts": lambda net, data: stochens.nuts(
        net, data, chains=2, samples=2, warmup=2, max_depth=2, run=stochens.Run(engine="vmap")
    ),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("trainer", SHARED)
def test_where_members_share_the_rows_it_runs_by_vmap(trainer: str, data: Any) -> None:
    train = SHARED[trainer]
    found = train(Branches, data)
    assert found.engine == "vmap"
    same_members(found, train(Plain, data))


@pytest.mark.parametrize("net", [Branches, BranchesInTraining, lambda: BranchesInTraining().eval()])
def test_a_branch_of_training_mode_is_found(net: Any, data: Any) -> None:
    with pytest.warns(UserWarning, match=ONE_BY_ONE):
        found = stochens.fit(net, data, method="regular", **FIT)
    assert found.predict(data[0]).mean.isfinite().all()
    with pytest.raises(Unsuited, match=r"vmap cannot run this network: .*; use engine='loop'"):
        stochens.fit(net, data, method="regular", run=stochens.Run(engine="vmap"), **FIT)


@pytest.mark.parametrize("mode", [True, False])
def test_what_is_tried_leaves_the_networks_mode_as_it_was(data, mode):
    net = Plain().train(mode)
    params = init(builder(Plain), members=[0, 1], seed=0)
    assert choose_engine("auto", net, params, data[0][:4], own_rows=True) == "vmap"
    assert all(module.training is mode for module in net.modules())
