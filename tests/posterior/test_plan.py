"""How a prediction is cut into batches of rows and blocks of members."""

import torch

from stochens import MLP, Categorical
from stochens.members import builder, init
from stochens.posterior import streaming
from stochens.posterior.predictive import Sums
from stochens.run.memory import activation_bytes


def test_what_fits_is_done_at_once_and_the_rest_inside_the_budget(monkeypatch):
    net = MLP(2, 8, 2)
    params = init(builder(net), members=range(5), seed=0)
    x = torch.zeros(1000, 2)
    assert streaming.plan(net, params, x, None) == (1000, 5)
    assert streaming.plan(net, params, x, 10) == (10, 5)
    one = activation_bytes(net, x[:1])  # of one member and one row
    for budget in (10**6, 10**5, 10**4, 10):
        monkeypatch.setattr(streaming, "ACTIVATIONS", budget)
        rows, chunk = streaming.plan(net, params, x, None)
        assert 1 <= rows <= 1000
        assert 1 <= chunk <= 5
        assert rows * chunk * one <= max(budget, one)
        # no row more would fit, unless there is none
        assert rows == 1000 or (rows + 1) * chunk * one > budget


def test_a_network_is_measured_once_for_each_shape(monkeypatch):
    """A request of one row would take longer to plan than to answer."""
    net, asked = MLP(2, 8, 2), []

    def counted(net, x):
        asked.append(x.shape)
        return activation_bytes(net, x)

    monkeypatch.setattr(streaming, "activation_bytes", counted)
    for rows in (1, 1, 1):
        streaming.bytes_of_one(net, torch.zeros(rows, 2), None)
    assert len(asked) == 1


def test_draws_are_kept_up_to_one_gibibyte():
    """As the documentation of `predict` says; what is asked for is done in any case."""

    def keeps(rows: int, keep: bool | None = None) -> bool:
        sums = Sums(Categorical(), 1, 1, keep=keep, groups=1, of_rows=rows)
        sums.add(torch.zeros(1, 1, 2), rows=slice(0, 1), first_draw=0)  # 8 bytes a row
        return sums.result().keeps_draws

    assert keeps(2**27)
    assert not keeps(2**27 + 1)
    assert keeps(2**27 + 1, True)
    assert not keeps(1, False)
