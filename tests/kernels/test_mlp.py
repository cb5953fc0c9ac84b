"""The fused kernel against its torch twin, and the noise of both against its distribution."""

import itertools
import math
import multiprocessing
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kernels import mlp_reference
from tests.kernels.mlp_reference import keep, nll_reference, normal
from tests.tolerance import close, rounding
from torch import Tensor

from stochens.kernels import build, mlp

pytestmark = pytest.mark.skipif(not mlp.available(), reason="no C++ compiler: no mlp kernel")

ACTIVATIONS = ("identity", "relu", "tanh", "silu")
LIKELIHOODS = ("categorical", ("gaussian", 0.3), "gaussian-heteroscedastic")


class Case(NamedTuple):
    weights: list[Tensor]
    biases: list[Tensor | None]
    x: Tensor
    y: Tensor
    options: dict[str, Any]

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *(b for b in self.biases if b is not None)]

    def run(self, f: Any = mlp.nll, **changes: Any) -> Any:
        return f(self.weights, self.biases, self.x, self.y, **{**self.options, **changes})

    def run_with_grads(self, f: Any = mlp.nll, **changes: Any) -> list[Tensor]:
        """The losses and d sum_m (m + 1) loss_m"""
        loss = self.run(f, **changes)
        by = torch.arange(1, len(loss) + 1, dtype=loss.dtype)
        return [loss.detach(), *torch.autograd.grad(loss @ by, self.parameters)]


def make(
    widths: tuple[int, ...] = (2, 10, 10, 2),
    *,
    M: int = 3,
    N: int = 50,
    B: int | None = 20,
    activation: str | tuple[str, ...] = "relu",
    dropout: float | tuple[float, ...] = 0.0,
    likelihood: Any = "categorical",
    bias: bool = True,
    dtype: torch.dtype = torch.float64,
    seed: int = 0,
) -> Case:
    g = torch.Generator().manual_seed(seed)
    L = len(widths) - 1
    if likelihood == "gaussian-heteroscedastic":
        widths = (*widths[:-1], 2 * widths[-1])
    shapes = list(zip(widths[1:], widths[:-1], strict=True))
    weights = [torch.randn(M, o, i, generator=g, dtype=dtype) / i**0.5 for o, i in shapes]
    biases: list[Tensor | None] = [None] * L
    if bias:
        biases = [torch.randn(M, o, generator=g, dtype=dtype) for o, _ in shapes]
    x = torch.randn(N, widths[0], generator=g, dtype=dtype)
    if likelihood == "categorical":
        y = torch.randint(widths[-1], (N,), generator=g)
    else:
        D = widths[-1] // (1 if isinstance(likelihood, tuple) else 2)
        y = torch.randn(N, D, generator=g, dtype=dtype)
    hidden = (activation,) * (L - 1) + ("identity",) if isinstance(activation, str) else activation
    rates = (dropout,) * (L - 1) + (0.0,) if isinstance(dropout, float) else dropout
    options = {
        "index": None if B is None else torch.randint(N, (M, B), generator=g),
        "activation": hidden,
        "dropout": rates,
        "likelihood": likelihood,
        "members": torch.arange(M) + 7,
        "seed": seed,
    }
    case = Case(weights, biases, x, y, options)
    for p in case.parameters:
        p.requires_grad_()
    return case


def assert_close(got: list[Tensor], want: list[Tensor], tolerance: float) -> None:
    """To `tolerance` of the largest entry: the scale of what rounds off on the way back.

    A tensor's own largest entry would not do: behind a saturated tanh, 1 - f^2 is all rounding.
    """
    scale = 1 + max(float(t.abs().max()) for t in want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance * scale)


def bound(dtype: torch.dtype) -> float:
    """Forth and back through at most 5 layers. The sums of 256 terms at most, and those over rows,
    which are means, have terms of random signs: their errors grow as the root, 16."""
    return rounding(dtype, terms=16, depth=10)


# Values and gradients ----------------------------------------------------------------------------


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_agrees_with_torch(data: st.DataObject) -> None:
    L = data.draw(st.integers(1, 4), "layers")
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32]))
    # float32 rounds to either side of a kink, and the search finds such inputs: no relu there
    smooth = [f for f in ACTIVATIONS if f != "relu" or dtype == torch.float64]
    case = make(
        tuple(data.draw(st.lists(st.integers(1, 40), min_size=L + 1, max_size=L + 1), "widths")),
        M=data.draw(st.integers(1, 5), "M"),
        N=data.draw(st.integers(1, 300), "N"),
        B=data.draw(st.none() | st.integers(1, 300), "B"),
        activation=tuple(data.draw(st.sampled_from(smooth)) for _ in range(L)),
        dropout=tuple(data.draw(st.sampled_from([0.0, 0.1, 0.5])) for _ in range(L)),
        likelihood=data.draw(st.sampled_from(LIKELIHOODS)),
        bias=data.draw(st.booleans(), "bias"),
        dtype=dtype,
        seed=data.draw(st.integers(0, 2**63 - 1), "seed"),
    )
    assert_close(case.run_with_grads(), case.run_with_grads(nll_reference), bound(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("N", [511, 2000, 20_000])  # chunks of gradients, up to the most there are
def test_full_batch(dtype: torch.dtype, N: int) -> None:
    case = make(N=N, B=None, M=2, activation="silu", dropout=0.1, dtype=dtype)
    assert_close(case.run_with_grads(), case.run_with_grads(nll_reference), bound(dtype))


def test_relu_in_float32() -> None:
    case = make(dropout=0.1, dtype=torch.float32)
    assert_close(case.run_with_grads(), case.run_with_grads(nll_reference), bound(torch.float32))


def test_wide_and_deep() -> None:
    case = make((30, 256, 200, 3, 256, 10), N=70, B=65, activation="silu", dropout=0.2)
    assert_close(case.run_with_grads(), case.run_with_grads(nll_reference), bound(torch.float64))


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ["tanh", "silu"])
def test_gradcheck(activation: str, likelihood: Any) -> None:
    case = make((2, 3, 2), B=5, activation=activation, dropout=0.3, likelihood=likelihood)

    def f(*p: Tensor) -> Tensor:
        return mlp.nll(p[:2], p[2:], case.x, case.y, **case.options)

    assert torch.autograd.gradcheck(f, case.parameters)


def test_closed_forms() -> None:
    """Zero weights: every class has probability 1/C, every mean is the bias."""
    case = make((2, 3, 5), bias=False)
    for w in case.weights:
        w.data.zero_()
    torch.testing.assert_close(case.run().detach(), torch.full((3,), math.log(5)).double())
    case = make((2, 1), M=1, N=1, B=None, likelihood=("gaussian", 0.5))
    case.weights[0].data.zero_()
    normal = torch.distributions.Normal(case.biases[0][0], 0.5)  # type: ignore[index]
    torch.testing.assert_close(case.run(), -normal.log_prob(case.y[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_numbers(activation: str, dtype: torch.dtype) -> None:
    """Saturated and tiny values, where exp, log and tanh of the kernel's own could go wrong."""
    case = make((1, 3), N=200, B=None, M=1, activation=(activation,), bias=False, dtype=dtype)
    case.weights[0].data = torch.tensor([1.0, -0.7, 0.3], dtype=dtype).view(1, 3, 1)
    size = torch.logspace(-9, 3, 100, dtype=dtype)
    case.x.copy_(torch.cat([size, -size])[:, None])
    for row in range(0, 200, 7):  # one row at a time, so that none hides behind another
        index = torch.tensor([[row]])
        got, want = (case.run_with_grads(f, index=index) for f in (mlp.nll, nll_reference))
        # a product, the activation, exp, log, and back
        within = close(dtype, terms=3, depth=4, scale=float(case.x[row].abs()) + 1)
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, **within)


def test_float64_where_float32_overflows() -> None:
    case = make((1, 2), N=1, B=None, M=1, bias=False, dtype=torch.float32)
    case.weights[0].data = torch.tensor([1e30, -1e30]).view(1, 2, 1)
    case.x.fill_(1e30)
    assert not case.run().isfinite().any()  # inf - inf, as in torch
    assert not case.run(nll_reference).isfinite().any()


# Where gradients go ------------------------------------------------------------------------------


def test_without_grad() -> None:
    case = make(dropout=0.1)
    loss = case.run()
    assert loss.requires_grad
    with torch.no_grad():
        assert torch.equal(case.run(), loss)
    for p in case.parameters:
        p.requires_grad_(False)
    assert torch.equal(case.run(), loss)
    assert not case.run().requires_grad


def test_some_parameters_require_grad() -> None:
    case = make()
    want = case.run_with_grads()[2]  # of weights[1]
    for p in case.parameters:
        p.requires_grad_(p is case.weights[1])
    (case.run() @ torch.arange(1.0, 4.0).double()).backward()
    got = case.weights[1].grad
    assert got is not None
    assert torch.equal(got, want)
    assert case.weights[0].grad is None


def test_backward_twice_and_not_contiguous() -> None:
    case = make()
    want = case.run_with_grads()
    strided = [w.detach().mT.contiguous().mT.requires_grad_() for w in case.weights]
    assert not strided[1].is_contiguous()
    loss = mlp.nll(strided, case.biases, case.x, case.y, **case.options)
    by = torch.arange(1.0, 4.0).double()
    for _ in range(2):
        for got, grad in zip(
            torch.autograd.grad(loss @ by, strided, retain_graph=True), want[1:], strict=False
        ):
            assert torch.equal(got, grad)


def test_grads_without_autograd() -> None:
    case = make(dropout=0.1)
    case.biases[1] = None
    loss = case.run()
    want = torch.autograd.grad(loss.sum(), case.parameters)
    got = case.run(mlp.nll_and_grads)
    assert torch.equal(got[0], loss)
    assert not any(t.requires_grad for t in (got[0], *got[1]))
    assert got[2][1] is None
    for a, b in zip([*got[1], got[2][0], got[2][2]], want, strict=True):
        assert torch.equal(a, b)


def test_no_second_derivative() -> None:
    """An error, and not a gradient penalty that silently has no gradient."""
    case = make()
    with pytest.raises(RuntimeError, match="no second derivative; use engine='vmap'"):
        torch.autograd.grad(case.run().sum(), case.weights[0], create_graph=True)


def test_biases_for_some_layers() -> None:
    case = make()
    case.biases[1] = None
    assert_close(case.run_with_grads(), case.run_with_grads(nll_reference), bound(torch.float64))
    none = case._replace(biases=[None] * 3)
    loss = mlp.nll(case.weights, None, case.x, case.y, **case.options)
    assert torch.equal(loss, none.run())


# Members are independent, threads do not show ----------------------------------------------------


@pytest.mark.parametrize(("M", "N", "B"), [(64, 200, 100), (3, 3000, None), (40, 900, None)])
def test_threads_do_not_change_bits(M: int, N: int, B: int | None) -> None:
    case = make(M=M, N=N, B=B, dropout=0.1, dtype=torch.float32)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        want = case.run_with_grads()
        for threads in (2, 3, 7):
            torch.set_num_threads(threads)
            for _ in range(3):
                for a, b in zip(case.run_with_grads(), want, strict=True):
                    assert torch.equal(a, b)
    finally:
        torch.set_num_threads(before)


def test_member_is_the_same_alone() -> None:
    case = make(M=6, N=700, B=600, dropout=0.2, dtype=torch.float32)
    for m in (0, 5):
        alone = mlp.nll(
            [w[m : m + 1] for w in case.weights],
            [b[m : m + 1] for b in case.biases if b is not None],
            case.x,
            case.y,
            **{
                **case.options,
                "index": case.options["index"][m : m + 1],
                "members": case.options["members"][m : m + 1],
            },
        )
        assert torch.equal(alone[0], case.run()[m])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("likelihood", LIKELIHOODS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_diverged_member_stays_alone(activation: str, likelihood: Any, bad: float) -> None:
    case = make(M=5, activation=activation, likelihood=likelihood, dropout=0.1)
    want = case.run_with_grads()
    with torch.no_grad():
        case.weights[0][2] = bad
    got = case.run_with_grads()
    for a, b in zip(got, want, strict=True):
        assert torch.equal(a[[0, 1, 3, 4]], b[[0, 1, 3, 4]])
    if math.isnan(bad):
        assert all(t[2].isnan().all() for t in (got[0], *got[-len(case.weights) :]))


def _loss_and_grads(case: Case) -> list[Any]:
    """Without autograd, which a torch with CUDA refuses to run in a forked child."""
    loss, weight_grads, bias_grads = case.run(mlp.nll_and_grads)
    return [t.tolist() for t in (loss, *weight_grads, *bias_grads) if t is not None]


def _in_child(case: Case, queue: Any) -> None:
    queue.put(_loss_and_grads(case))


def test_after_fork() -> None:
    case = make(M=200, N=300, B=100)
    want = _loss_and_grads(case)  # its helper threads do not go to the child
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(case, queue))
    child.start()
    try:
        assert queue.get(timeout=20) == want
    finally:
        child.kill()
        child.join()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_built_for_a_plain_cpu(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter vectors than those of this CPU give the same numbers, up to rounding."""
    case = make(dropout=0.1, N=300, B=150, dtype=dtype)
    want = case.run_with_grads()
    monkeypatch.setattr(build, "NATIVE", ("",))
    build.load.cache_clear()
    try:
        assert_close(case.run_with_grads(), want, bound(dtype))
    finally:
        build.load.cache_clear()


# Noise -------------------------------------------------------------------------------------------


def test_seed_and_member_choose_the_noise() -> None:
    case = make(dropout=0.5)
    assert torch.equal(case.run(), case.run())
    assert (case.run(seed=1) != case.run(seed=2)).all()
    assert (case.run(seed=1) != case.run(seed=1 + 2**40)).all()
    moved = case.run(members=case.options["members"] + 1)
    assert (moved != case.run()).all()


@pytest.mark.parametrize("p", [1e-3, 0.1, 0.5, 0.9])
def test_rate(p: float) -> None:
    z = keep(p, (100, 50), site=1, members=torch.arange(400), seed=3).double()  # 2e6 bits
    assert abs(z.mean() - (1 - p)) < 5 * math.sqrt(p * (1 - p) / z.numel())
    for axes in ((0, 1), (0, 2), (1, 2)):  # of each node, row and member
        means = z.mean(axes)
        error = math.sqrt(p * (1 - p) / (z.numel() / means.numel()))
        chi2 = ((means - (1 - p)) / error).square().sum()
        assert abs(chi2 - means.numel()) < 6 * math.sqrt(2 * means.numel())


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_neighbours_are_uncorrelated(p: float) -> None:
    """Correlations of 2e6 bits with their neighbours are within 5 standard errors of 0."""

    def bits(site: int = 0, first: int = 0, seed: int = 0) -> Tensor:
        members = torch.arange(first, first + 200)
        z = keep(p, (200, 50), site=site, members=members, seed=seed).double()
        return (z - (1 - p)) / math.sqrt(p * (1 - p))  # [M, B, out]

    z = bits()
    pairs = {
        "node": (z[:, :, 1:], z[:, :, :-1]),
        "row": (z[:, 1:], z[:, :-1]),
        "row and node": (z[:, 1:, 1:], z[:, :-1, :-1]),
        "member": (z[1:], z[:-1]),
        "site": (z, bits(site=1)),
        "member block": (z, bits(first=2**32)),
        **{f"seed bit {k}": (z, bits(seed=1 << k)) for k in (0, 1, 7, 31, 32, 63)},
    }
    for name, (a, b) in pairs.items():
        assert abs((a * b).mean()) < 5 / math.sqrt(a.numel()), name
        swapped = (a[..., ::2, :] * b.flip(-1)[..., ::2, :]).mean()
        assert abs(swapped) < 5 / math.sqrt(a.numel() / 2), name


def test_moments_of_the_noise() -> None:
    """nll = (u z / (1 - p) - y)^2 / 2 + const, whose mean has d / d b = u / (1 - p) - y."""
    M, p = 20_000, 0.25
    case = make((3, 2), M=1, N=1, B=None, likelihood=("gaussian", 1.0), dropout=(p,))
    w, b = (t.detach()[0].expand(M, *t.shape[1:]) for t in case.parameters)
    b = b.clone().requires_grad_()
    loss = mlp.nll([w], [b], case.x, case.y, **{**case.options, "members": torch.arange(M)})
    grad = torch.autograd.grad(loss.sum(), b)[0]  # [M, 2]
    u = w[0] @ case.x[0] + b[0]
    error = grad.std(0) / math.sqrt(M)
    assert ((grad.mean(0) - (u / (1 - p) - case.y[0])).abs() < 5 * error).all()


# Errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": torch.zeros(2, 5, dtype=torch.int64)}, r"index must be \[3, any\].*\(2, 5\)"),
        ({"index": torch.zeros(3, 0, dtype=torch.int64)}, r"index must be .*no size 0"),
        ({"index": torch.zeros(3, 5)}, "index must be torch.int64, got torch.float32"),
        ({"members": torch.arange(2)}, r"weights\[0\] must be \[2, any, 2\], .*\(3, 10, 2\)"),
        ({"activation": ("relu", "gelu", "identity")}, "activation must be one of .*'gelu'"),
        ({"activation": ("relu",)}, "activation must have an entry for each of 3 layers, got 1"),
        ({"dropout": (0.0, 1.0, 0.0)}, r"dropout must be in \[0, 1\), got 1.0"),
        ({"dropout": (0.0, math.nan, 0.0)}, r"dropout must be in \[0, 1\), got nan"),
        ({"likelihood": "gaussian"}, "likelihood must be .*got 'gaussian'"),
        ({"likelihood": ("categorical", 1.0)}, "likelihood must be"),
        ({"likelihood": ("gaussian", 0.0)}, "noise of the Gaussian likelihood must be positive"),
        ({"likelihood": ("gaussian", 1.0)}, r"y must be \[50, 2\], .*got \(50,\)"),
    ],
)
def test_bad_options(change: dict[str, Any], message: str) -> None:
    for f in (mlp.nll, nll_reference):
        with pytest.raises(ValueError, match=message):
            make().run(f, **change)


def test_bad_tensors() -> None:
    case = make()
    w, b, x, y = case.weights, case.biases, case.x, case.y
    for arguments, message in (
        (([], b, x, y), "at least one layer"),
        (([w[0], w[2]], b[:2], x, y), "activation must have"),
        (([w[0], w[0], w[2]], b, x, y), r"weights\[1\] must be \[3, any, 10\].*\(3, 10, 2\)"),
        (([w[0].float(), *w[1:]], b, x, y), r"x must be torch.float32, got torch.float64"),
        (([w[0].half(), *w[1:]], b, x, y), r"weights\[0\] must be float32 or float64"),
        ((w, [b[2], *b[1:]], x, y), r"biases\[0\] must be \[3, 10\].*\(3, 2\)"),
        ((w, b[:2], x, y), "biases must have an entry for each of 3 layers, got 2"),
        ((w, b, x[:, :1], y), r"weights\[0\] must be \[3, any, 1\]"),
        ((w, b, x[0], y), r"x must be \[any, any\].*\(2,\)"),
        ((w, b, x, y[:-1]), r"y must be \[50\].*\(49,\)"),
        ((w, b, x, y.int()), "y must be torch.int64, got torch.int32"),
        ((w, b, x.clone().requires_grad_(), y), "must not require grad"),
        ((w, b, x.to("meta"), y), "x must be on the CPU, got meta"),
    ):
        with pytest.raises(ValueError, match=message):
            mlp.nll(*arguments, **case.options)


def test_odd_outputs_for_mean_and_variance() -> None:
    case = make((2, 3), likelihood=("gaussian", 1.0))
    with pytest.raises(ValueError, match="means and log variances, but got 3"):
        case.run(likelihood="gaussian-heteroscedastic")


@pytest.mark.parametrize("bad", [-1, 50, 2**62])
def test_index_out_of_range(bad: int) -> None:
    case = make(M=300)
    case.options["index"][150, 7] = bad
    with pytest.raises(ValueError, match=rf"index must be in \[0, 50\), got {bad}"):
        case.run()


@pytest.mark.parametrize("bad", [-1, 2, 2**32])
def test_label_out_of_range(bad: int) -> None:
    case = make(M=300, B=None)
    case.y[31] = bad
    with pytest.raises(ValueError, match=rf"y must be labels in \[0, 2\), got {bad}"):
        case.run()


def test_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    case = make()
    monkeypatch.setenv("STOCHENS_KERNELS", "off")
    build.load.cache_clear()
    try:
        assert not mlp.available()
        with pytest.raises(RuntimeError, match="not available here; use engine='vmap'"):
            case.run()
        case.run(nll_reference)
    finally:
        build.load.cache_clear()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_are_the_twins(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes, M, N = (3, 7, 5, 4), 3, 301
    weights = [
        torch.randn(M, o, i, generator=generator, dtype=dtype) / i**0.5
        for i, o in itertools.pairwise(sizes)
    ]
    biases = [torch.randn(M, o, generator=generator, dtype=dtype) for o in sizes[1:]]
    x = torch.randn(N, 3, generator=generator, dtype=dtype)
    options = {
        "activation": ("tanh", "silu", "identity"),
        "dropout": (0.3, 0.0, 0.2),
        "members": torch.tensor([4, 0, 9]),
        "seed": 5,
    }
    got = mlp.outputs(weights, biases, x, **options)
    call = mlp.check(weights, biases, x, None, index=None, likelihood="categorical", **options)
    want = mlp_reference.forward_reference(call, options["activation"])
    torch.testing.assert_close(got, want, **close(dtype, terms=max(sizes), depth=3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noisy", [False, True])
def test_one_row_is_the_first_of_many(dtype: torch.dtype, noisy: bool) -> None:
    """One row has loops of its own: for widths below, at and beside those of all registers. Its
    terms have the same order, but a compiler may round products in one of the loops alone."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    for sizes in ((1, 1), (3, 17, 2), (16, 8, 33, 5), (50, 31, 64, 15, 1)):
        shapes, M = list(itertools.pairwise(sizes)), 3
        L, x = len(shapes), draw(40, sizes[0])
        weights = [draw(M, o, i) for i, o in shapes]
        biases = [*[draw(M, o) for _, o in shapes[:-1]], None]
        options: dict[str, Any] = {
            "activation": [*["relu", "tanh", "silu"][: L - 1], "identity"],
            "dropout": [0.3 * noisy] * L,
            "variances": [(w.square(), None) if noisy else None for w in weights],
            "members": torch.tensor([4, 0, 9]),
            "seed": 5,
        }
        got, want = (mlp.outputs(weights, biases, rows, **options) for rows in (x[:1], x))
        # a layer's outputs are sums of weights near 1: each is as large as its terms' number
        size = math.prod(sizes[:-1])
        within = close(dtype, terms=max(sizes), depth=L, scale=size)
        torch.testing.assert_close(got[:, 0], want[:, 0], **within)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("rows", [5, 300])  # one tile, and several chunks of a batch
def test_gaussian_noise_is_the_twins(dtype: torch.dtype, rows: int) -> None:
    """Loss, and gradients of weights, biases and variances, with dropout in the same layer."""
    generator = torch.Generator().manual_seed(0)
    sizes, M, N = (3, 7, 5, 4), 3, 400

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype)

    shapes = list(itertools.pairwise(sizes))
    weights = [draw(M, o, i).requires_grad_() for i, o in shapes]
    biases = [draw(M, o).requires_grad_() for _, o in shapes]
    spreads = [draw(M, o, i).square().requires_grad_() for i, o in shapes]
    of_biases = draw(M, 7).square().requires_grad_()
    variances = [(spreads[0], of_biases), None, (spreads[2], None)]
    options = {
        "index": torch.randint(0, N, (M, rows), generator=generator),
        "activation": ("tanh", "silu", "identity"),
        "dropout": (0.3, 0.0, 0.0),
        "likelihood": "categorical",
        "members": torch.tensor([4, 0, 9]),
        "seed": 5,
        "variances": variances,
    }
    x, y = draw(N, 3), torch.randint(0, 4, (N,), generator=generator)
    by = torch.arange(1, M + 1, dtype=dtype)
    leaves = [*weights, *biases, spreads[0], of_biases, spreads[2]]
    results = []
    for nll in (mlp.nll, nll_reference):
        loss = nll(weights, biases, x, y, **options)
        results.append([loss.detach(), *torch.autograd.grad((loss * by).sum(), leaves)])
    # eps / sd of small variances amplifies
    tolerance = rounding(dtype, terms=7, depth=6, condition=25.0)
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(
            got, want, rtol=tolerance, atol=tolerance * float(want.abs().max())
        )


def test_gaussian_noise_is_normal() -> None:
    """Moments, tails and neighbours of a million draws, within five standard errors."""
    like = torch.empty(10, 1000, 100, dtype=torch.float64)
    eps = normal(like, site=1, members=torch.arange(10), seed=1).flatten()
    n = eps.numel()
    for power, expected, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(eps.pow(power).mean() - expected) < 5 * math.sqrt(variance / n)
    for cut in (1.0, 2.0, 3.0, 4.0):
        share = math.erfc(cut / math.sqrt(2))
        assert abs((eps.abs() > cut).double().mean() - share) < 5 * math.sqrt(share / n)
    for lag in (1, 100, 100_000):  # nodes, rows, members
        assert abs((eps[:-lag] * eps[lag:]).mean()) < 5 / math.sqrt(n - lag)
