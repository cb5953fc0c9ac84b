"""What every likelihood owes, by one table: table.py."""

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.likelihoods.table import ROWS, Row, network, outputs_of
from tests.long import long_but
from tests.tolerance import close
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import InputError
from stochens.likelihoods import LIKELIHOODS, Gaussians, Numbers, draws_of
from stochens.likelihoods.moments import Moments, has_cdf
from stochens.members import forward
from stochens.posterior.export_program import OLDEST_TORCH

every = pytest.mark.parametrize("name", ROWS)
NUMBERS = [
    name
    for name, row in ROWS.items()
    if isinstance(draws_of(row.like, outputs_of(row, 1, 1)), (Numbers, Gaussians))
]
numbers = pytest.mark.parametrize("name", NUMBERS)
CLOSE = {"rtol": 1e-9, "atol": 1e-11}  # float64 on both sides; logarithms of factorials cancel
ERRORS = 5.5  # standard errors: once in 3e7 numbers, and there are some thousands


def targets(row: Row, *leading: int, seed: int = 3) -> Tensor:
    """As `nll` takes them, in float64 where they are numbers: [*leading, ...]."""
    generator = torch.Generator().manual_seed(seed)
    flat = row.like.check_targets(row.targets(math.prod(leading), generator))
    flat = flat.double() if flat.is_floating_point() else flat
    return flat.unflatten(0, leading)


def test_the_table_has_every_name():
    assert {row.like.name for row in ROWS.values()} == set(LIKELIHOODS)


@every
def test_bad_targets_are_refused(name):
    row = ROWS[name]
    for y, said in row.bad:
        with pytest.raises(InputError, match=said):
            row.like.check_targets(y)
    y = targets(row, 4)
    assert torch.equal(row.like.check_targets(y), y), "what was checked passes again"
    row.like.check_outputs(outputs_of(row, 4), y)
    with pytest.raises(InputError, match=r"\(4, 7, 7, 7, 7\)"):
        row.like.check_outputs(torch.zeros(4, 7, 7, 7, 7), y)
    if len(row.outputs) == 1 and name not in ("categorical", "ordinal"):  # of any width
        with pytest.raises(InputError, match=r"\(4, 7\)"):
            row.like.check_outputs(torch.zeros(4, 7), y)


@every
def test_the_nll_is_that_of_torch(name):
    row = ROWS[name]
    outputs, y = outputs_of(row, 3, 5), targets(row, 3, 5)
    terms = -row.log_prob(outputs, y)  # [M, B]
    torch.testing.assert_close(row.like.nll(outputs, y), terms.mean(1), **CLOSE)
    weights = torch.rand(3, 5, dtype=torch.float64)
    found = row.like.nll(outputs, y, weights)
    torch.testing.assert_close(found, (weights * terms).mean(1), **CLOSE)
    low = row.like.nll(outputs.bfloat16(), y)
    assert low.dtype == torch.float32 or y.dtype == torch.float64, "bf16 is too coarse for a sum"
    wide = row.like.nll(outputs.bfloat16().double(), y)
    # in float32; images have 8 places of 3 classes, the most terms there are
    size = float(outputs.abs().flatten(2).sum(-1).max())
    within = close(torch.float32, terms=24, depth=2, scale=1 + size)
    torch.testing.assert_close(low.double(), wide, **within)


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_numbers_at_extreme_outputs(name, dtype):
    row = ROWS[name]
    generator = torch.Generator().manual_seed(0)
    for size in (1e4, 1e2, 1.0):
        signs = torch.randint(2, (40, 6, *row.outputs), generator=generator) * 2 - 1
        outputs = (size * signs).to(dtype).requires_grad_()
        y = targets(row, 40, 6)
        nll = row.like.nll(outputs, y.to(dtype) if y.is_floating_point() else y)
        nll.sum().backward()
        assert nll.isfinite().all()
        assert outputs.grad.isfinite().all()
        said = draws_of(row.like, outputs.detach())
        assert all(t.isfinite().all() for t in said.terms(*said.centre())[:2])


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row.masked is not None])
def test_missing_targets_add_nothing(name):
    """With their outputs anything, and the others as if they were alone."""
    row = ROWS[name]
    like, outputs, y = row.masked, outputs_of(row, 3, 5), targets(row, 3, 5)
    hidden = torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.4
    holes = like.check_targets(y.flatten(0, 1).masked_fill(hidden.flatten(0, 1), row.hole))
    holes = holes.unflatten(0, (3, 5))
    leaf = outputs.clone().requires_grad_()
    found = like.nll(leaf, holes)
    found.sum().backward()
    assert leaf.grad.isfinite().all()
    if y.dim() == 2:  # one target each: its row is left out
        terms = -row.log_prob(outputs, y)
        torch.testing.assert_close(found, (terms * ~hidden).mean(1), **CLOSE)
    moved = y.masked_fill(hidden, 1)  # whatever hides there
    again = like.nll(outputs, moved.masked_fill(hidden, row.hole))
    assert torch.equal(found, again)
    # all of them, added up: those that are hidden here, and those that are hidden there
    other = like.nll(outputs, y.masked_fill(~hidden, row.hole))
    if name != "mixture":  # whose targets are not independent of each other
        torch.testing.assert_close(found + other, row.like.nll(outputs, y), **CLOSE)
    nothing = torch.full_like(y, row.hole)
    nothing = like.check_targets(nothing.flatten(0, 1)).unflatten(0, (3, 5))
    leaf = outputs.clone().requires_grad_()
    zero = like.nll(leaf, nothing)
    zero.sum().backward()
    # to rounding: the weights of a mixture sum to 1
    assert zero.abs().max() < 1e-12
    assert leaf.grad.abs().max() < 1e-12


def prediction(row: Row, outputs: Tensor) -> Any:
    """As `predict` makes it of all draws [S, B, ...] at once."""
    said = draws_of(row.like, outputs)
    centre = said.centre()
    averages = tuple(t.double().mean(0, keepdim=True) for t in said.terms(*centre))
    return said.averaged(averages, centre, said.parameters)


@every
def test_log_prob_is_of_the_mixture(name):
    row = ROWS[name]
    outputs, y = outputs_of(row, 4, 5), targets(row, 5)
    p = prediction(row, outputs)
    each = row.log_prob(outputs, y.expand(4, *y.shape))  # [S, B]
    wanted = each.logsumexp(0) - math.log(4)
    if row.outputs != (row.outputs[0],) and name != "quantiles":  # of each place by itself
        places = y[0].numel()
        wanted = torch.zeros(5, dtype=torch.float64)
        for k in range(places):
            own = torch.full_like(y, row.masked.ignore_index).flatten(1)
            own[:, k] = y.flatten(1)[:, k]
            one = row._replace(like=row.masked)
            wanted += prediction(one, outputs).log_prob(own.view_as(y))
        one = prediction(row._replace(like=row.masked), outputs)
        torch.testing.assert_close(one.log_prob(y), wanted, **CLOSE)
        return
    if name == "soft-labels":  # the expectation of the logarithm of the mean
        wanted = (y * outputs.softmax(-1).mean(0).log()).sum(-1)
    if name == "quantiles":  # the spline's density, and not the loss: by its cdf
        h = 1e-6
        cdf = p.each().cdf
        density = (cdf(y + h) - cdf(y - h)) / (2 * h)
        wanted = density.log().sum(-1).logsumexp(0) - math.log(4)
        torch.testing.assert_close(p.log_prob(y), wanted, rtol=1e-5, atol=1e-5)  # h^2, eps / h
        return
    torch.testing.assert_close(p.log_prob(y), wanted, **CLOSE)


DRAWN = 40_000


@functools.cache
def drawn(name: str) -> tuple[Any, Tensor]:
    """A prediction of one target by three draws at two inputs, and samples of it, [n, B, ...]."""
    row = ROWS[name]
    if row.like.in_units or "poisson" in name or "negative" in name:
        row = row._replace(outputs=(row.like.width(1),))
    p = prediction(row, 0.7 * outputs_of(row, 3, 2, seed=1))
    return p, p.sample(DRAWN, seed=5)


@every
def test_samples_have_the_mean_and_the_entropy_that_are_said(name):
    p, y = drawn(name)
    assert torch.equal(y[:9], p.sample(DRAWN, seed=5)[:9])
    if not isinstance(p, Moments):
        one = nn.functional.one_hot(y, p.mean.shape[-1]) if y.shape[1:] != p.mean.shape else y
        share = one.double().mean(0)
        error = (p.mean * (1 - p.mean) / DRAWN).sqrt()
        assert ((share - p.mean).abs() / error).max() < ERRORS
        if y.dim() == 2:  # one label: H = -E log p
            logs = torch.stack([p.log_prob(y[k]) for k in range(2000)])
            error = logs.std(0) / math.sqrt(2000)
            assert ((-logs.mean(0) - p.entropy).abs() / error).max() < ERRORS
        return
    y = y.double()
    assert ((y.mean(0) - p.mean).abs() / (p.std / math.sqrt(DRAWN))).max() < ERRORS
    squares = (y - p.mean).square()
    error = squares.std(0) / math.sqrt(DRAWN)
    assert ((squares.mean(0) - p.variance).abs() / error).max() < ERRORS
    logs = torch.stack([p.log_prob(y[k]) for k in range(1000)])  # [n, B]
    # the estimate by 512 draws has a standard error of 1 nat at most, over sqrt 512
    exact = p._counts() is not None
    error = (logs.var(0) / 1000 + (0 if exact else 1 / 512)).sqrt()
    found = p.entropy.reshape(-1)
    assert ((-logs.mean(0) - found).abs() / error).max() < ERRORS
    assert (p.mutual_information >= 0).all()


@numbers
def test_mutual_information_is_that_of_a_long_average(name):
    """E log p_s(y) - log p(y), y ~ p_s: three times as many draws as the estimate takes."""
    p, _ = drawn(name)
    each = p.each()
    torch.manual_seed(0)
    gains = []
    for _ in range(500):
        y = each.sample()  # [S, B, 1]
        for s in range(3):
            logs = each.log_prob(y[s]).reshape(3, 2)
            gains.append(logs[s] - logs.logsumexp(0) + math.log(3))
    gain = torch.stack(gains)
    spread = gain.std(0)
    # sums over counts are exact; estimates are by 513 draws of the same spread
    error = spread * (1 / 1500 + (0 if p._counts() is not None else 1 / 513)) ** 0.5
    found = p.mutual_information.reshape(-1)
    assert ((gain.mean(0) - found).abs() / error).max() < ERRORS
    assert gain.mean(0).max() > 0.02, "the draws differ, so that something was tested"


@numbers
@pytest.mark.parametrize("level", [0.025, 0.4, 0.975])
def test_quantiles_hold_their_share(name, level):
    p, y = drawn(name)
    found = p.quantile(level)
    assert has_cdf(p.each())
    # to bisection's precision; of counts the first whose cdf is as large
    cdf = p.each().cdf(found.double()).mean(0)
    if p.each().support.is_discrete:
        below = p.each().cdf(found.double() - 1).mean(0)
        assert (cdf >= level).all()
        assert (below < level).all()
    else:
        torch.testing.assert_close(cdf, torch.full_like(cdf, level), rtol=0, atol=1e-9)
    error = (cdf * (1 - cdf) / DRAWN).sqrt()
    share = (y.double() <= found).double().mean(0)
    assert ((share - cdf).abs() / error).max() < ERRORS
    low, high = p.interval(0.95)
    assert (low <= high).all()


@numbers
def test_the_crps_is_the_integral_of_its_definition(name):
    """int (F(t) - 1[y <= t])^2 dt, by a trapezoid rule of 20,001 points in float64."""
    p, drawn_y = drawn(name)
    y = drawn_y[7].double()
    low, high = p.quantile(1e-7).double(), p.quantile(1 - 1e-7).double()
    low, high = float(low.min().minimum(y.min())), float(high.max().maximum(y.max()))
    t = torch.linspace(low - 1, high + 1, 20_001, dtype=torch.float64)
    wanted = torch.zeros_like(y)
    for b in range(2):
        cdf = p.each().cdf(t.view(-1, 1, 1, 1)).mean(1)[:, b, 0]
        step = (y[b] <= t).double()
        wanted[b] = torch.trapezoid((cdf - step).square(), t)
    found = p.crps(y)
    closed = name in ("gaussian", "heteroscedastic", "laplace", "poisson", "negative-binomial")
    if closed:
        # each jump, of y and of counts, costs the rule half a step
        jumps = 1 + (high - low if p.each().support.is_discrete else 0)
        atol = jumps * (high - low + 2) / 20_000
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=atol)
    else:  # 1000 draws: |Y - y| and half of |Y - Y'| have the spread of y at most
        error = 1.5 * p.std.double() / math.sqrt(1000)
        assert ((found - wanted).abs() / error).max() < ERRORS


# -- with networks --------------------------------------------------------------------------------

OPTIONS = {"method": "regular", "epochs": 3, "lr": 0.01, "device": "cpu", "progress": False}
N = 24


@functools.cache
def data(name: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    y = ROWS[name].targets(N, generator)
    return x, y.float() if y.is_floating_point() else y


@functools.cache
def fitted(name: str) -> Any:
    row = ROWS[name]
    net = functools.partial(network, row)
    return stochens.fit(net, data(name), likelihood=row.like, members=3, **OPTIONS)


def same(p: Any, q: Any) -> None:
    assert type(p) is type(q)
    assert torch.equal(p.mean, q.mean)
    assert torch.equal(p.aleatoric, q.aleatoric)


@every
@pytest.mark.filterwarnings("ignore::stochens.training.advice.TrainingAdvice")
def test_from_fit_to_a_table(name, tmp_path):
    row, (x, y) = ROWS[name], data(name)
    posterior = fitted(name)
    p = posterior.predict(x, keep_draws=True)
    outputs = forward(posterior.net, posterior.params, x, engine="loop").detach()  # [S, B, ...]
    q = prediction(row, outputs.double())
    float32 = {"rtol": 1e-4, "atol": 1e-5}  # three layers, and exp of what they give
    torch.testing.assert_close(p.mean.double(), q.mean, **float32)
    torch.testing.assert_close(p.aleatoric.double(), q.aleatoric.double(), **float32)
    light = posterior.predict(x, keep_draws=False, batch_size=7)
    assert not light.keeps_draws
    assert "draws not kept" in repr(light)
    torch.testing.assert_close(light.mean, p.mean, **float32)
    loader = DataLoader(TensorDataset(x), batch_size=5)
    torch.testing.assert_close(posterior.predict(loader).mean, p.mean, **float32)
    assert posterior.predict(x[:5]).log_prob(y[:5]).shape == (5,)
    rows = stochens.compare({"p": p}, y, resamples=10, show=False).rows["p"]
    assert all(math.isfinite(v) for found in rows.values() for v in found)
    posterior.save(tmp_path / "run")
    same(stochens.load(tmp_path / "run", network(row)).predict(x), posterior.predict(x))


@every
@pytest.mark.filterwarnings("ignore")
def test_by_a_sampler_and_by_a_loader(name):
    """NUTS and a DataLoader call what training in memory does not."""
    row, (x, y) = ROWS[name], data(name)
    net, few = network(row), {"warmup": 4, "samples": 4, "chains": 1, "max_depth": 3}
    chains = stochens.nuts(net, (x, y), likelihood=row.like, **few, device="cpu", progress=False)
    assert chains.predict(x).mean.isfinite().all()
    loader = DataLoader(TensorDataset(x, y), batch_size=7)
    posterior = stochens.fit(net, loader, likelihood=row.like, members=1, **OPTIONS)
    assert posterior.predict(x).mean.isfinite().all()


@every
@pytest.mark.filterwarnings("ignore")
def test_what_export_computes_is_what_predict_says(name):
    x, _ = data(name)
    posterior = fitted(name)
    outputs = forward(posterior.net, posterior.params, x, engine="loop").detach()
    p = posterior.predict(x)
    agree(list(draws_of(posterior.likelihood, outputs).exported().values()), p)
    arrays = p.numpy()
    assert arrays.keys() == p.summaries().keys()
    for summary, told in p.summaries().items():
        assert len(told) == len(x)
        assert np.array_equal(arrays[summary], told.numpy(), equal_nan=True)


@pytest.mark.skipif(torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}")
@pytest.mark.parametrize("name", long_but(["categorical, images", "quantiles"], ROWS))
@pytest.mark.filterwarnings("ignore")
def test_an_exported_file_says_what_predict_says(name, tmp_path):
    """It takes seconds each; images are large, and quantiles are sorted."""
    x, _ = data(name)
    posterior = fitted(name)
    noise = posterior.export(tmp_path / "model.pt2")
    agree(torch.export.load(tmp_path / "model.pt2").module()(x, noise), posterior.predict(x))


def agree(found: Any, p: Any) -> None:
    float32 = {"rtol": 1e-4, "atol": 1e-4}  # other orders of the same sums, and an exp
    torch.testing.assert_close(found[0], p.mean, **float32)
    if isinstance(p, Moments):
        wanted: Any = (p.std, p.aleatoric, p.epistemic)
    else:
        wanted = (p.entropy, p.mutual_information)
    assert len(found) == 1 + len(wanted)
    for a, b in zip(found[1:], wanted, strict=True):
        torch.testing.assert_close(a, b, **float32)


@every
def test_its_options_are_what_a_file_keeps(name):
    like = ROWS[name].like
    again = type(like)(**like.options())
    assert again == like
    assert hash(again) == hash(like)
    assert dataclasses.is_dataclass(like)
