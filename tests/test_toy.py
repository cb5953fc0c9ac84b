"""The toy sets are what their definition says."""

import math

import pytest
import torch

from stochens import InputError
from stochens.toy import grid, toy_set, uniform_points


@pytest.mark.parametrize(("name", "s"), [("a", 0.04), ("b", 0.12), ("c", 0.22)])
def test_points_lie_around_their_arcs(name, s):
    x, y = toy_set(name, n=4000)
    assert float(x.abs().max()) <= 1
    # distance of each point to its own arc, by a fine walk along it
    t = torch.linspace(0, math.pi, 2000)
    arcs = [
        torch.stack([(t.cos() - 0.5) / 2, t.sin() - 0.25], 1),
        torch.stack([(0.5 - t.cos()) / 2, 0.25 - t.sin()], 1),
    ]
    for k in (0, 1):
        distance = torch.cdist(x[y == k], arcs[k]).amin(1)
        # across the arc the noise is one normal, |N(0, s^2)|; ends and curvature change it a little
        assert float(distance.mean()) == pytest.approx(s * math.sqrt(2 / math.pi), rel=0.25)


def test_draws_differ_and_repeat():
    assert torch.equal(toy_set("b", draw=1)[0], toy_set("b", draw=1)[0])
    assert not torch.equal(toy_set("b", draw=1)[0], toy_set("b", draw=2)[0])
    with pytest.raises(InputError, match="the toy sets are a, b, c, got 'd'"):
        toy_set("d")
    with pytest.raises(InputError, match="at least 2 points"):
        toy_set("a", n=1)


def test_test_points_and_grid():
    points = uniform_points(20_000, half_side=10.0)
    assert float(points.abs().max()) <= 10
    assert float(points.var()) == pytest.approx(100 / 3, rel=0.03)  # a uniform's; 1 % of noise
    nodes = grid(2.0, steps=3)
    assert nodes[0].tolist() == [-2, -2]
    assert nodes[1].tolist() == [0, -2]
    assert nodes[-1].tolist() == [2, 2]
