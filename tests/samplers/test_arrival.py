"""The identities that draws obey: exact draws pass, and those that are a little wrong do not."""

import math

import pytest
import torch
from scipy import stats

from stochens.samplers.arrival import ALARM, Ends, judge, not_diverged, student_tails

SIZES = {"weight": 30, "bias": 10}
D = sum(SIZES.values())


def draws(M: int, seed: int, *, wide=1.0, hot=1.0, pulled=0.0) -> Ends:
    """Of a Gaussian posterior with correlations, far from the origin, where the prior is."""
    generator = torch.Generator().manual_seed(seed)
    turn = torch.linalg.qr(torch.randn(D, D, generator=torch.Generator().manual_seed(1)))[0]
    turn, precision = turn.double(), torch.logspace(0, 4, D).double()
    middle = torch.linspace(-3, 3, D).double()
    z = torch.randn(M, D, generator=generator).double()
    q = (1 - pulled) * middle + (wide * z / precision.sqrt()) @ turn.T
    g = (q - middle) @ (turn * precision) @ turn.T
    p = math.sqrt(hot) * torch.randn(M, D, generator=generator).double()
    return Ends(q, p, g, 0.5 * ((q - middle) * g).sum(1))


@pytest.mark.parametrize("M", [5, 20, 50])
def test_exact_draws_are_rarely_called_wrong(M):
    called = sum(not judge(draws(M, seed), SIZES).arrived for seed in range(300))
    assert called <= 5  # 300 * 0.0027 = 0.8 expected; P(> 5) < 1e-3 under Poisson


@pytest.mark.parametrize(
    "wrong", [{"wide": 1.1}, {"wide": 0.9}, {"hot": 1.2}, {"pulled": 0.02}], ids=str
)
def test_draws_that_are_wrong_are_called_so(wrong):
    """10 % too wide or too narrow, too hot, or not yet away from the prior: 100 members see it."""
    assert all(not judge(draws(100, seed, **wrong), SIZES).arrived for seed in range(10))


def test_the_numbers_are_the_averages():
    verdict = judge(draws(400, 0, wide=1.2, hot=1.5), SIZES)
    virial, error = verdict.virial
    assert error == pytest.approx(1.2**2 * math.sqrt(2 / (400 * D)), rel=0.2)
    assert abs(virial - 1.2**2) < 5 * error
    assert abs(verdict.kinetic[0] - 1.5) < 5 * 1.5 * verdict.kinetic[1]
    assert verdict.chance < ALARM


def test_the_part_that_is_wrong_is_named():
    ends = draws(50, 0)
    q, g = ends.q.clone(), ends.g.clone()
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(50, 10, generator=generator).double()
    q[:, 30:], g[:, 30:] = 2 * z, 2 * z  # of precision 1, and twice too wide
    assert judge(ends._replace(q=q, g=g), SIZES).place == "bias"


def test_few_members_are_judged_by_their_momenta_alone():
    assert math.isnan(judge(draws(4, 0), SIZES).virial[0])
    assert judge(draws(4, 0, wide=3.0), SIZES).arrived
    assert not judge(draws(4, 0, hot=3.0), SIZES).arrived


def test_who_diverged_is_not_measured_by_the_middle_of_all():
    ends = draws(20, 0)
    assert not_diverged(ends).all()
    far = ends._replace(energy=ends.energy.clone())
    far.energy[5:] = 1e17 * torch.arange(1, 16)  # most of them
    assert not_diverged(far).tolist() == [True] * 5 + [False] * 15
    assert not_diverged(far, settled=False).all()
    for name in ("q", "p", "g"):
        lost = ends._replace(**{name: getattr(ends, name).clone()})
        getattr(lost, name)[3, 2] = math.nan
        assert (~not_diverged(lost)).nonzero().flatten().tolist() == [3]
    hot = ends._replace(p=ends.p.clone())
    hot.p[7] *= 5
    assert (~not_diverged(hot, settled=False)).nonzero().flatten().tolist() == [7]
    nowhere = ends._replace(energy=torch.full_like(ends.energy, math.nan))
    assert not not_diverged(nowhere).any()


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 10, 49, 50, 999])
def test_students_tails_are_scipys(freedom):
    for t in (0.0, 0.3, -1.0, 2.5, 6.0):
        expected = 2 * stats.t.sf(abs(t), freedom)
        # a sum of `freedom` / 2 terms below 1, taken from 1
        assert student_tails(t, freedom) == pytest.approx(expected, abs=freedom * 2**-52 + 1e-15)
