"""Each term of the KL against loops, enumeration of all configurations, quadrature, Monte Carlo.

The references know nothing of mixtures: they list the components of q of a tiny network, from the
definitions of the families (spec, section 1; paper, equations 3, 6 and 7).
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from tests.tolerance import rounding
from torch import Tensor, nn

from stochens import objective
from stochens.members import Params
from stochens.methods import (
    DropConnect,
    Dropout,
    Gaussian,
    NPDropout,
    resolve,
    stochastic,
    stochastic_layers,
)
from stochens.methods.base import Mixture
from stochens.objective import SIGMA

# exp and log of numbers up to some hundreds lose 3 digits
ROUNDING = rounding(torch.float64, terms=1000, condition=300.0)
properties = settings(max_examples=25, deadline=None)  # a busy machine is no failure

RULES: dict[str, Any] = {
    "regular": "regular",
    "dropout": Dropout(0.3),
    "dropconnect": DropConnect(0.2),
    "np-dropout": NPDropout(),
    "gaussian": Gaussian(0.6),
    "gaussian-learned": Gaussian(0.6, learn=True),
    "dropout+gaussian": [Dropout(0.3), Gaussian(0.6)],
    "np-dropout+learned": [NPDropout(), Gaussian(0.6, learn=True)],
    "dropconnect+learned": [DropConnect(0.2), Gaussian(0.6, learn=True)],
}


def tiny(rule: Any) -> nn.Module:
    """Two nodes of two parameters each, and an output layer of three parameters."""
    net = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    return stochastic(net, rule)


def omega_of(net: nn.Module, members: int, seed: int = 0, scale: float = 1.0) -> Params:
    generator = torch.Generator().manual_seed(seed)
    return {
        n: scale * torch.randn(members, *p.shape, generator=generator, dtype=torch.float64)
        for n, p in net.named_parameters()
    }


class Components(NamedTuple):
    """q = sum_c w_c N(mu_c, diag(s_c^2))"""

    w: np.ndarray  # [C]
    mu: np.ndarray  # [C, D]
    s: np.ndarray  # [C, D]


Node = list[tuple[float, list[float]]]  # (p_i, omega_i) for each i


def nodes_of(layer: str, rule: Any, params: Params, k: int) -> list[Node]:
    """The nodes of one Linear layer of member k, row by row: weights, then the bias."""

    def rows(suffix: str) -> list[list[float]]:
        weight, bias = (params[f"{layer}.{n}{suffix}"][k].tolist() for n in ("weight", "bias"))
        return [[*w, b] for w, b in zip(weight, bias, strict=True)]

    first = rows("")
    noise = next((m for m in resolve(rule) if not isinstance(m, Gaussian)), None)
    if layer == "2" or noise is None or noise.name == "regular":  # "2" is the output layer
        return [[(1.0, row)] for row in first]
    if isinstance(noise, Dropout):
        return [[(1 - noise.p, row), (noise.p, [0.0] * len(row))] for row in first]
    if isinstance(noise, DropConnect):
        return [[(1 - noise.p, [w]), (noise.p, [0.0])] for row in first for w in row]
    return [[(0.5, one), (0.5, two)] for one, two in zip(first, rows("_2"), strict=True)]


def sigmas_of(rule: Any, params: Params, k: int, sigma: float) -> list[float]:
    last = resolve(rule)[-1]
    if not isinstance(last, Gaussian):
        return [sigma] * 7
    if not last.learn:
        return [last.sigma] * 7
    logs = {n: params[n + "_log_sigma"][k].tolist() for n in ("0.weight", "0.bias")}
    logs |= {n: params[n + "_log_sigma"][k].tolist() for n in ("2.weight", "2.bias")}
    rows = [
        [*w, b]
        for layer in ("0", "2")
        for w, b in zip(logs[f"{layer}.weight"], logs[f"{layer}.bias"], strict=True)
    ]
    return [math.exp(value) for row in rows for value in row]


def components(rule: Any, params: Params, sigma: float) -> Components:
    """Every member and every configuration of its nodes."""
    members = len(params["0.bias"])
    w, mu, s = [], [], []
    for k in range(members):
        nodes = [*nodes_of("0", rule, params, k), *nodes_of("2", rule, params, k)]
        for chosen in itertools.product(*nodes):
            w.append(math.prod(p for p, _ in chosen) / members)
            mu.append([value for _, row in chosen for value in row])
            s.append(sigmas_of(rule, params, k, sigma))
    return Components(np.array(w), np.array(mu), np.array(s))


def overlap_by_quadrature(q: Components) -> np.ndarray:
    """The integral of sqrt(N_c N_c') for all pairs [C, C], dimension by dimension, trapezoids."""
    total = np.ones((len(q.w), len(q.w)))
    for mu, s in zip(q.mu.T, q.s.T, strict=True):
        reach = np.abs(mu).max() + 12 * s.max()
        grid, step = np.linspace(-reach, reach, 4001, retstep=True)
        assert step < s.min()  # trapezoids over a Gaussian are then exact but for rounding
        root = np.exp(-(((grid - mu[:, None]) / s[:, None]) ** 2) / 4)
        root /= (2 * np.pi * s[:, None] ** 2) ** 0.25  # sqrt of each density on the grid
        total *= root @ root.T * step
    return total


def overlap_at_one_sigma(q: Components, sigma: float) -> np.ndarray:
    squares = ((q.mu[:, None] - q.mu[None]) ** 2).sum(-1)
    return np.exp(-squares / (8 * sigma**2))


def bound(q: Components, overlap: np.ndarray) -> float:
    """sum over c != c' of sqrt(w_c w_c') overlap(c, c')"""
    pairs = np.sqrt(np.outer(q.w, q.w)) * overlap
    np.fill_diagonal(pairs, 0.0)
    return float(pairs.sum())


# -- closed forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("precision", [0.5, 3.0])
def test_terms_against_loops(name: str, precision: float) -> None:
    rule, members, sigma = RULES[name], 3, 0.01
    net = tiny(rule)
    params = omega_of(net, members)
    found = objective.kl(net, params, precision, sigma=sigma)
    constant = l2 = 0.0
    noise = [
        sum(p * math.log(p) for p, _ in node)
        for layer in ("0", "2")
        for node in nodes_of(layer, rule, params, 0)
    ]
    for k in range(members):
        for s in sigmas_of(rule, params, k, sigma):
            term = precision * s * s - math.log(s * s) - 1 - math.log(precision)
            constant += term / 2 / members
        for node in [*nodes_of("0", rule, params, k), *nodes_of("2", rule, params, k)]:
            for p, row in node:
                l2 += precision * p * sum(v * v for v in row) / 2 / members
    assert found.constant == pytest.approx(constant, rel=ROUNDING)
    assert found.l2 == pytest.approx(l2, rel=ROUNDING)
    assert found.ensembling == -math.log(members)
    assert found.stochasticity == pytest.approx(sum(noise), rel=ROUNDING)
    assert found.total == pytest.approx(sum(found), rel=ROUNDING)


def entropy(p: float) -> float:
    return p * math.log(p) + (1 - p) * math.log(1 - p)


@pytest.mark.parametrize(
    ("layer", "rule", "nodes"),
    [
        (nn.Linear(3, 5), Dropout(0.1), 5),
        (nn.Linear(3, 5), DropConnect(0.1), 20),
        (nn.Linear(3, 5), NPDropout(), 5),
        (nn.Conv2d(2, 4, 3), Dropout(0.1), 4),  # a channel counts once, by position too
        (nn.Conv2d(2, 4, 3), Dropout(0.1, node="channel"), 4),
        (nn.Conv2d(2, 4, 3), DropConnect(0.1), 2 * 4 * 9 + 4),
        (nn.ConvTranspose1d(4, 6, 2, groups=2), NPDropout(), 6),
        (nn.Embedding(7, 4), Dropout(0.1), 4),
        (nn.LayerNorm(4), NPDropout(), 4),
        (nn.MultiheadAttention(4, 2), Dropout(0.1), 4),  # its outputs are dropped, nothing else
        (nn.MultiheadAttention(4, 2, bias=False), Dropout(0.1), 4),
        (nn.MultiheadAttention(4, 2), NPDropout(), 12 + 4),
        (nn.MultiheadAttention(4, 2), [Dropout(0.1), Gaussian()], 4),
        (nn.MultiheadAttention(4, 2), DropConnect(0.1), 12 * 5 + 4 * 5),
        (nn.LSTM(3, 4), NPDropout(), 16),
    ],
)
def test_stochasticity_counts_the_nodes_that_have_noise(
    layer: nn.Module, rule: Any, nodes: int
) -> None:
    net = stochastic(layer, rule, output="(none)")
    p = 0.5 if isinstance(rule, NPDropout) else 0.1
    parts = objective.mixtures(net, omega_of(net, 2))
    assert objective.stochasticity(parts) == pytest.approx(nodes * entropy(p), rel=ROUNDING)


def test_dropped_attention_weighs_l2_by_its_outputs() -> None:
    """1 - p on out_proj, whose nodes are dropped; 1 on what leads into the heads."""
    net = stochastic(nn.MultiheadAttention(4, 2), Dropout(0.25), output="(none)")
    params = omega_of(net, 1)
    weighed = sum(
        (0.75 if n.startswith("out_proj") else 1.0) * p.square().sum() for n, p in params.items()
    )
    assert objective.kl(net, params, 2.0).l2 == pytest.approx(float(weighed), rel=ROUNDING)


# -- the repulsive bound --------------------------------------------------------------------------


@properties
@given(
    st.sampled_from(["regular", "dropout", "dropconnect", "np-dropout"]),
    st.integers(1, 3),
    st.floats(0.02, 0.98),
    st.floats(0.05, 3.0),
    st.integers(0, 2**16),
)
def test_bound_is_the_sum_over_all_pairs_of_configurations(
    name: str, members: int, p: float, sigma: float, seed: int
) -> None:
    rule = {"dropout": Dropout(p), "dropconnect": DropConnect(p)}.get(name, RULES[name])
    net = tiny(rule)
    params = omega_of(net, members, seed)
    q = components(rule, params, sigma)
    found = objective.kl(net, params, 1.0, sigma=sigma).repulsive
    assert found == pytest.approx(bound(q, overlap_at_one_sigma(q, sigma)), rel=1e-9, abs=1e-12)


@properties
@given(
    st.sampled_from(["gaussian-learned", "np-dropout+learned", "dropconnect+learned"]),
    st.integers(1, 2),
    st.integers(0, 2**16),
)
def test_bound_with_unequal_sigmas_by_quadrature(name: str, members: int, seed: int) -> None:
    rule = RULES[name]
    net = tiny(rule)
    params = omega_of(net, members, seed, scale=0.7)  # sigmas from about 0.2 to 5
    q = components(rule, params, math.nan)
    found = objective.kl(net, params, 1.0).repulsive
    # thousands of grid points and a product over seven dimensions: a few more digits of rounding
    assert found == pytest.approx(bound(q, overlap_by_quadrature(q)), rel=1e-8)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_bound_of_a_regular_ensemble_is_equation_5(sigma: float) -> None:
    """(1/K) sum_k sum_{k' != k} exp(-||omega_k - omega_k'||^2 / (8 sigma^2)), also as p = (1, 0)"""
    net = tiny("regular")
    params = omega_of(net, 4)
    flat = torch.cat([p.flatten(1) for p in params.values()], 1).tolist()
    expected = sum(
        math.exp(-sum((u - v) ** 2 for u, v in zip(a, b, strict=True)) / (8 * sigma**2)) / 4
        for a, b in itertools.permutations(flat, 2)
    )
    found = objective.kl(net, params, 1.0, sigma=sigma).repulsive
    assert found == pytest.approx(expected, rel=ROUNDING)
    block = torch.tensor(flat, dtype=torch.float64).view(4, 1, -1)
    certain = Mixture((1.0, 0.0), (block, torch.zeros_like(block)))
    found = float(objective.repulsive_bound([certain], sigma))
    assert found == pytest.approx(expected, rel=ROUNDING)


def test_bound_in_small_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("np-dropout", "np-dropout+learned"):
        net = tiny(RULES[name])
        parts = objective.mixtures(net, omega_of(net, 3))
        whole = objective.repulsive_bound(parts, 0.5)
        monkeypatch.setattr(objective, "BLOCK", 1)
        assert float(objective.repulsive_bound(parts, 0.5)) == pytest.approx(float(whole))
        monkeypatch.undo()


def test_at_machine_precision_only_coinciding_configurations_repel() -> None:
    """Members share the configuration in which every node is dropped: (K - 1) p^N is left."""
    net = stochastic(nn.Linear(3, 5), Dropout(0.3), output="(none)")
    found = objective.kl(net, omega_of(net, 4), 1.0).repulsive
    assert found == pytest.approx(3 * 0.3**5, rel=ROUNDING)
    for name in ("regular", "np-dropout"):
        net = tiny(RULES[name])
        assert objective.kl(net, omega_of(net, 4), 1.0).repulsive == pytest.approx(0, abs=1e-14)


def monte_carlo(q: Components, precision: float, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws of log q(theta) - log(w_c N_c(theta)), whose mean is RF, and of log q - log prior."""
    random = np.random.default_rng(0)
    c = random.choice(len(q.w), size=draws, p=q.w)
    theta = q.mu[c] + q.s[c] * random.standard_normal((draws, q.mu.shape[1]))
    joint = np.log(q.w) + np.stack(  # log w_c N_c(theta) for every c: [S, C]
        [
            (-((theta - m) ** 2) / (2 * s**2) - np.log(s * np.sqrt(2 * np.pi))).sum(1)
            for m, s in zip(q.mu, q.s, strict=True)
        ],
        1,
    )
    log_q = logsumexp(joint, axis=1)
    prior = -precision * theta**2 / 2 + 0.5 * np.log(precision / (2 * np.pi))
    return log_q - joint[np.arange(draws), c], log_q - prior.sum(1)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.5])
def test_terms_add_up_to_the_kl_and_the_bound_bounds(name: str, sigma: float) -> None:
    rule, precision, draws = RULES[name], 2.0, 20_000
    net = tiny(rule)
    params = omega_of(net, 2, scale=0.7)
    q = components(rule, params, sigma)
    terms = objective.kl(net, params, precision, sigma=sigma)
    repulsion, divergence = monte_carlo(q, precision, draws)
    # 4 standard errors of each mean: one seed in 10^4 would fail by chance, and this one is fixed
    error = 4 / draws**0.5
    assert repulsion.mean() <= terms.repulsive + error * repulsion.std() + 1e-12
    assert divergence.mean() <= terms.total + error * divergence.std()
    # without the bound, with the true RF in its place, the terms are the KL itself
    rest = divergence - repulsion
    exact = terms.total - terms.repulsive
    assert abs(rest.mean() - exact) <= error * rest.std() + ROUNDING


# -- gradients ------------------------------------------------------------------------------------


def brute_force(mu: Tensor, w: Tensor, sigma: float) -> Tensor:
    squares = (mu[:, None] - mu[None]).square().sum(-1)
    pairs = (w[:, None] * w[None]).sqrt() * (-squares / (8 * sigma**2)).exp()
    return pairs.sum() - pairs.diagonal().sum()


def test_gradient_of_the_bound() -> None:
    """np-dropout, three members, two nodes, all 12 configurations."""
    one, two = (
        torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(s))
        for s in (0, 1)
    )
    leaves = [one.requires_grad_(), two.requires_grad_()]
    found = torch.autograd.grad(
        objective.repulsive_bound([Mixture((0.5, 0.5), (one, two))], 0.7), leaves
    )
    mu = torch.stack(
        [
            torch.cat([(one, two)[i][k, 0], (one, two)[j][k, 1]])
            for k in range(3)
            for i in (0, 1)
            for j in (0, 1)
        ]
    )
    expected = torch.autograd.grad(brute_force(mu, torch.full((12,), 1 / 12).double(), 0.7), leaves)
    torch.testing.assert_close(found, expected)  # float64 defaults: rounding


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("sigma", [SIGMA, 0.5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_finite_where_members_coincide(
    name: str, sigma: float, dtype: torch.dtype
) -> None:
    """Two members alike, the third at 0, where dropout's second component is."""
    net = tiny(RULES[name])
    params = {n: p[[0, 0, 1]].to(dtype) for n, p in omega_of(net, 2).items()}
    for n, p in params.items():
        if not n.endswith("_log_sigma"):
            p[2] = 0.0
        p.requires_grad_()
    value = objective.repulsive_bound(objective.mixtures(net, params), sigma)
    assert value.isfinite()
    assert value > 0.6  # the pair that coincides gives 2/3
    grads = torch.autograd.grad(value, list(params.values()), allow_unused=True)
    assert all(g is None or bool(g.isfinite().all()) for g in grads)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("members", [1, 4])
def test_gradient_of_the_penalty(name: str, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """lambda p_i omega_i and lambda sigma^2 - 1, whole: averaged over no members and no layers."""
    net, precision = tiny(RULES[name]), 3.0
    params = {n: p.requires_grad_() for n, p in omega_of(net, members).items()}
    value = objective.penalty(net, params, precision)  # [M]
    assert value.shape == (members,)
    value.sum().backward()
    for alone_from in (0, 1 << 20):
        monkeypatch.setattr(objective, "ALONE_FROM", alone_from)
        same = objective.penalty_for(net, params, precision)
        torch.testing.assert_close(same.of(params), value)
        assert (same.slopes is None) == ("gaussian" in name or "learned" in name)
        for n, slope in (same.slopes or {}).items():
            torch.testing.assert_close(slope * params[n], params[n].grad)
    rate = {"dropout": 0.7, "dropconnect": 0.8, "np-dropout": 0.5}.get(name.split("+")[0], 1.0)
    for n, p in params.items():
        noisy = n.startswith("0.")  # "2" is the output layer
        if n.endswith("_log_sigma"):
            expected = precision * (2 * p).exp() - 1
        else:
            expected = precision * (rate if noisy else 1.0) * p
        torch.testing.assert_close(p.grad, expected)


def test_penalty_of_a_member_is_its_own() -> None:
    net = tiny(RULES["np-dropout+learned"])
    params = omega_of(net, 3)
    together = objective.penalty(net, params, 2.0)
    for k in range(3):
        alone = objective.penalty(net, {n: p[k : k + 1] for n, p in params.items()}, 2.0)
        torch.testing.assert_close(together[k : k + 1], alone)


def test_penalty_differs_from_the_kl_by_what_training_cannot_move() -> None:
    """Without a sigma of its own, l2; with one, the constant too."""
    for name, rule in RULES.items():
        net = tiny(rule)
        params = omega_of(net, 3)
        terms = objective.kl(net, params, 2.0)
        expected = terms.l2 + (terms.constant if "learned" in name or "gaussian" in name else 0.0)
        found = float(objective.penalty(net, params, 2.0).mean())
        assert found == pytest.approx(expected, rel=ROUNDING)
    net = tiny(Gaussian(0.6, skip="2"))  # four parameters have a sigma, three have none
    params = omega_of(net, 3)
    expected = 4 / 2 * (2 * 0.36 - math.log(0.36) - 1 - math.log(2))
    found = float(objective.penalty(net, params, 2.0).mean())
    assert found == pytest.approx(objective.kl(net, params, 2.0).l2 + expected, rel=ROUNDING)


def test_kl_is_computed_in_float64() -> None:
    """From float32 parameters too: a sum of 10^5 squares would lose four digits in float32."""
    net = nn.Linear(1000, 100)
    params = {n: torch.randn(2, *p.shape) for n, p in net.named_parameters()}
    exact = sum(float(p.double().square().sum()) for p in params.values()) / 2 / 2
    assert objective.kl(net, params, 1.0).l2 == pytest.approx(exact, rel=1e-12)


def test_parameters_outside_of_layers_are_in_the_kl() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))
            self.layer = nn.Linear(2, 2)

    net = stochastic(Scaled(), Dropout(0.5), output="(none)")
    assert list(stochastic_layers(net)) == ["layer"]
    params = {
        "scale": torch.tensor([1.0, 3.0]),
        **{n: torch.zeros(2, *p.shape) for n, p in net.named_parameters() if n != "scale"},
    }
    terms = objective.kl(net, params, 2.0, sigma=1.0)
    assert terms.l2 == pytest.approx((1 + 9) / 2)
    assert terms.constant == pytest.approx(7 / 2 * (2 - 0 - 1 - math.log(2)))
