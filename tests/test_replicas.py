"""Several training sets at once: every member as if its own were the only one."""

import pytest
import torch
from tests.running import gather
from tests.tolerance import trained
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, InputError, Replicas


def sets(count: int, n: int = 30) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [stochens.toy_set("b", n=n, draw=draw) for draw in range(count)]


@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_members_are_those_of_their_own_set_alone(engine, batch_size, float64):
    data = [(x.double(), y) for x, y in sets(3)]
    options = {"method": "regular", "epochs": 3, "batch_size": batch_size, "engine": engine}
    together = stochens.fit(MLP(2, 5, 2), Replicas(data), members=7, **gather(**options))
    for d in range(3):
        ids = range(d, 7, 3)
        alone = stochens.fit(MLP(2, 5, 2), data[d], members=list(ids), **gather(**options))
        mine = together.replica(d, 3)
        assert mine.members == alone.members == tuple(ids)
        for name, p in alone.params.items():
            # all rows in another order than the data's
            within = trained(torch.float64, steps=12, rows=30)
            torch.testing.assert_close(mine.params[name], p, **within)
        torch.testing.assert_close(mine.history.loss, alone.history.loss)
    assert together.data_size == 30


def test_a_member_that_is_left_out_moves_no_other_to_another_set():
    trained = stochens.fit(MLP(2, 3, 2), Replicas(sets(2)), members=4, epochs=1)
    posterior = trained.take([1, 2, 3])
    assert posterior.replica(0, 2).members == (2,)
    assert posterior.replica(1, 2).members == (1, 3)
    with pytest.raises(InputError, match="no member learned from set 0"):
        posterior.take([0]).replica(0, 2)


def test_what_does_not_fit_together_is_refused():
    (x, y), _ = sets(2)
    with pytest.raises(InputError, match=r"of one size: .* number 1 x \(29, 2\)"):
        stochens.fit(MLP(2, 2), Replicas([(x, y), (x[1:], y[1:])]))
    with pytest.raises(InputError, match="no data set"):
        stochens.fit(MLP(2, 2), Replicas([]))
    with pytest.raises(InputError, match="not DataLoaders"):
        stochens.fit(MLP(2, 2), Replicas([DataLoader(TensorDataset(x, y))]))
    with pytest.raises(InputError, match="one data set, not Replicas"):
        stochens.nuts(MLP(2, 2), Replicas([(x, y), (x, y)]))
