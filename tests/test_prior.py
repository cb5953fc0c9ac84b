"""The prior's mean, scale and layers, held against closed forms in float64."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.long import crossed, long_but
from tests.tolerance import close
from torch import Tensor, nn

import stochens
from stochens import InputError, Prior, objective
from stochens.members import trainable
from stochens.methods import stochastic
from stochens.prior import Centred, precisions, resolve, warn_unknown_fan_in

ROUNDING = 1e-12  # float64, sums of a hundred terms
M = 3


def network() -> nn.Module:
    """With two layers of other widths; the second one is the output layer, without noise."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


METHODS: dict[str, Any] = {
    "regular": stochens.Regular(),
    "dropout": stochens.Dropout(0.3),
    "dropconnect": stochens.DropConnect(0.2),
    "np-dropout": stochens.NPDropout(),
    "gaussian": stochens.Gaussian(0.3),
    "learned gaussian": stochens.Gaussian(0.3, learn=True),
    "np-dropout + gaussian": [stochens.NPDropout(), stochens.Gaussian(0.2)],
}
CENTRE = {name: 0.3 * torch.ones_like(p).cumsum(-1) for name, p in network().named_parameters()}
BY_MEMBER = {
    name: torch.stack([k * t for k in range(M)]).clone() for name, t in CENTRE.items()
}  # [M, ...]
PRIORS = {
    "fan-in": Prior(2.0, scale="fan-in"),
    "layers": Prior(2.0, layers={"0*": 5.0}),
    "mean": Prior(2.0, mean=CENTRE),
    "mean of each member": Prior(2.0, mean=BY_MEMBER),
    "all": Prior(0.5, mean=CENTRE, scale="fan-in", layers={"2.bias": Prior(7.0), "2": 3.0}),
}
# lambda of each parameter of the network, by hand
LAMBDA = {
    "fan-in": {"0.weight": 6.0, "0.bias": 2.0, "2.weight": 8.0, "2.bias": 2.0},
    "layers": {"0.weight": 5.0, "0.bias": 5.0, "2.weight": 2.0, "2.bias": 2.0},
    "mean": dict.fromkeys(CENTRE, 2.0),
    "mean of each member": dict.fromkeys(CENTRE, 2.0),
    "all": {"0.weight": 1.5, "0.bias": 0.5, "2.weight": 12.0, "2.bias": 7.0},
}


def mean_of(which: str, name: str) -> Tensor:
    """[1 or M, ...]"""
    if which == "mean of each member":
        return BY_MEMBER[name]
    given = which == "mean" or (which == "all" and name != "2.bias")
    return CENTRE[name].unsqueeze(0) if given else torch.zeros_like(CENTRE[name]).unsqueeze(0)


def members(net: nn.Module) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(M, *p.shape, generator=generator, dtype=p.dtype)
        for name, p in trainable(net).items()
    }


def centred(which: str, net: nn.Module) -> Centred:
    return resolve(PRIORS[which], net, {}, rows=range(M), members=M)


def by_hand(
    which: str, method: str, params: dict[str, Tensor], sigma: float
) -> tuple[float, float]:
    """(l2, constant), the mean over members: number by number, from the definitions alone.

    A component is N(w, s^2), the prior N(mu, 1 / l):
    KL = l / 2 (w - mu)^2 + (l s^2 - log s^2 - 1 - log l) / 2.
    """
    l2 = constant = 0.0
    for name in CENTRE:
        noisy = name.startswith("0") or "gaussian" in method
        lam, w = LAMBDA[which][name], params[name]
        mu = mean_of(which, name).expand_as(w)
        parts = [(1.0, w)]
        if name.startswith("0") and method in ("dropout", "dropconnect"):
            p = 0.3 if method == "dropout" else 0.2
            parts = [(1 - p, w), (p, torch.zeros_like(w))]
        if name.startswith("0") and method.startswith("np-dropout"):
            parts = [(0.5, w), (0.5, params[name + "_2"])]
        for share, mean in parts:
            l2 += share * lam / 2 * float((mean - mu).square().sum()) / M
        s = torch.full_like(w, sigma)
        if noisy and "gaussian" in method:
            s = torch.full_like(w, 0.2 if "+" in method else 0.3)
            if "learned" in method:
                s = params[name + "_log_sigma"].exp()
        terms = lam * s.square() - s.square().log() - 1 - math.log(lam)
        constant += 0.5 * float(terms.sum()) / M
    return l2, constant


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("which", PRIORS)
def test_kl_is_the_closed_form(which: str, method: str) -> None:
    net = stochastic(network(), METHODS[method])
    params = members(net)
    found = objective.kl(net, params, centred(which, net), sigma=0.01)
    l2, constant = by_hand(which, method, params, 0.01)
    assert found.l2 == pytest.approx(l2, rel=ROUNDING)
    assert found.constant == pytest.approx(constant, rel=ROUNDING)
    plain = objective.kl(net, params, 1.0, sigma=0.01)
    assert found.stochasticity == plain.stochasticity
    if which == "mean of each member":  # (member, theta) together: nothing is mixed
        assert found.ensembling == found.repulsive == 0
    else:
        assert (found.ensembling, found.repulsive) == (plain.ensembling, plain.repulsive)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("which", PRIORS)
def test_the_penalty_of_training_is_the_kls(which: str, method: str) -> None:
    """With its gradient, which is weight decay and a constant where no sigma is finite."""
    net = stochastic(network(), METHODS[method])
    params = {name: p.requires_grad_() for name, p in members(net).items()}
    prior = centred(which, net)
    exact = objective.penalty(net, params, prior)
    slopes = torch.autograd.grad(exact.sum(), list(params.values()), allow_unused=True)
    for large in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            if large:
                patch.setattr(objective, "ALONE_FROM", 0)
            quick = objective.penalty_for(net, params, prior)
        torch.testing.assert_close(quick.of(params), exact, rtol=ROUNDING, atol=ROUNDING)
        assert (quick.slopes is None) == ("gaussian" in method)
        for (name, p), slope in zip(params.items(), slopes, strict=True):
            if quick.slopes is not None:
                away = p - (quick.means or {}).get(name, torch.zeros(()))
                torch.testing.assert_close(quick.slopes[name] * away, slope)


def test_a_plain_prior_is_the_precision_alone() -> None:
    net = stochastic(network(), "dropout")
    params = members(net)
    by_names = resolve(Prior(3.0), net, {}, rows=range(M), members=M)
    for one, other in zip(
        objective.kl(net, params, by_names), objective.kl(net, params, 3.0), strict=True
    ):
        assert one == pytest.approx(other, rel=ROUNDING)


class Turned(stochens.methods.StochasticLayer):
    """theta = -omega or omega, in this order."""

    fusable = False

    def mixtures(self, omega: dict[str, Tensor]) -> list[stochens.methods.Mixture]:
        return [
            stochens.methods.Mixture((0.5, 0.5), (-part.means[0], part.means[0]))
            for part in self.inner_mixtures(omega)
        ]


def test_a_method_that_lays_out_something_else_is_refused() -> None:
    net = nn.Sequential(Turned(nn.Linear(3, 4)), nn.Linear(4, 2)).double()
    params = members(net)
    assert objective.kl(net, params, 2.0).l2 > 0
    with pytest.raises(InputError, match="another first component than omega"):
        objective.kl(net, params, centred("fan-in", net))


# -- which lambda ----------------------------------------------------------------------------------


def test_fan_in_is_what_an_output_is_a_sum_of() -> None:
    net = nn.ModuleDict(
        {
            "linear": nn.Linear(3, 5),
            "conv": nn.Conv2d(4, 6, 3, groups=2),
            "up": nn.ConvTranspose1d(4, 6, 3, groups=2),
            "lookup": nn.Embedding(7, 3),
            "norm": nn.LayerNorm((2, 3)),
            "attention": nn.MultiheadAttention(4, 2, kdim=6, vdim=3, add_bias_kv=True),
            "lstm": nn.LSTM(3, 5, proj_size=2),
            "pair": nn.Bilinear(2, 3, 4),
        }
    )
    found = precisions(Prior(10.0, scale="fan-in"), net)
    known = {
        "linear.weight": 3, "conv.weight": 18, "up.weight": 6, "pair.weight": 6,
        "attention.q_proj_weight": 4, "attention.k_proj_weight": 6, "attention.v_proj_weight": 3,
        "attention.out_proj.weight": 4,
        "lstm.weight_ih_l0": 3, "lstm.weight_hh_l0": 2, "lstm.weight_hr_l0": 5,
    }  # fmt: skip
    for name in dict(net.named_parameters()):
        assert found[name] == 10.0 * known.get(name, 1), name


@pytest.mark.parametrize("method", METHODS)
def test_a_networks_noise_changes_no_prior_of_its_parameters(method: str) -> None:
    plain, prior = network(), Prior(2.0, scale="fan-in", layers={"2.weight": 9.0})
    noisy = stochastic(plain, METHODS[method])
    one, other = precisions(prior, plain), precisions(prior, noisy)
    assert {n: p for n, p in other.items() if n in one} == one
    for name, p in other.items():  # a second set has the first one's, a log sigma none
        assert p == one[name.removesuffix("_2")]
    assert not any("log_sigma" in name for name in other)


def test_with_fan_in_outputs_have_one_variance_at_every_width() -> None:
    for width in (10, 1000):
        net = nn.Linear(width, 1, bias=False).double()
        precision = precisions(Prior(4.0, scale="fan-in"), net)["weight"]
        x = torch.ones(width).double()
        assert float(x @ x) / precision == pytest.approx(1 / 4)


@pytest.mark.filterwarnings("ignore")
def test_with_fan_in_a_deep_heteroscedastic_network_has_a_place_to_start() -> None:
    """By N(0, 1) for all weights, 200^5 times the variance of an input is a log variance."""
    hidden = [m for _ in range(4) for m in (nn.Linear(200, 200), nn.ReLU())]
    net = nn.Sequential(nn.Linear(3, 200), nn.ReLU(), *hidden, nn.Linear(200, 2))
    data = (X.float(), Y.float())
    options: dict[str, Any] = {"members": 2, "steps": 5, "likelihood": "heteroscedastic"}
    with pytest.raises(InputError, match=r"cannot start: .*scale='fan-in'"):
        stochens.langevin(net, data, **options)
    posterior = stochens.langevin(net, data, prior=Prior(scale="fan-in"), **options)
    assert posterior.predict(data[0]).mean.isfinite().all()


def test_hugging_faces_conv1d_is_a_linear_layer_turned() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.nf, self.weight = 6, nn.Parameter(torch.zeros(4, 6))  # [in, out]

    assert precisions(Prior(scale="fan-in"), Conv1D()) == {"weight": 4.0}


def test_a_tied_weight_has_the_narrowest_prior_of_its_places() -> None:
    net = nn.ModuleDict({"lookup": nn.Embedding(7, 3), "head": nn.Linear(3, 7, bias=False)})
    net["head"].weight = net["lookup"].weight
    assert precisions(Prior(scale="fan-in"), net) == {"lookup.weight": 3.0}


def test_a_weight_of_unknown_fan_in_is_named() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.zeros(3, 2))

    with pytest.warns(UserWarning, match=r"fan-in of 'matrix' \(3, 2\) is not known.*layers"):
        warn_unknown_fan_in(Prior(scale="fan-in"), Own())
    warn_unknown_fan_in(Prior(scale="fan-in", layers={"matrix": Prior(3.0)}), Own())
    assert precisions(Prior(5.0, scale="fan-in"), Own()) == {"matrix": 5.0}


DATA = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
XY = (DATA, (DATA[:, 0] > 0).long())
QUICK: dict[str, Any] = {"members": 2, "epochs": 1, "method": "regular", "batch_size": 10}

BAD = {
    "pattern": (
        {"prior": Prior(layers={"haed*": 2.0})},
        r"'haed\*' matches no .*they are 0.weight",
    ),
    "none": ({"prior": None}, "prior must be a precision or a stochens.Prior, got None"),
    "number": ({"prior": -2.0}, "prior must be a positive number"),
    "names": ({"prior": Prior(mean={"0.weight": torch.zeros(4, 3)})}, "has no '0.bias'"),
    "shapes": (
        {"prior": Prior(mean={**CENTRE, "0.bias": torch.zeros(7)})},
        r"'0.bias' must be \(4,\), or \(2, 4\)",
    ),
    "nan": ({"prior": Prior(mean={**CENTRE, "0.bias": torch.full((4,), math.nan)})}, "not finite"),
    "circle": ({"prior": Prior(mean="start"), "start": "prior"}, "is a draw from it"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_prior_that_does_not_fit_is_refused(case: str) -> None:
    options, message = BAD[case]
    with pytest.raises(InputError, match=message):
        stochens.fit(network(), XY, **QUICK, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": 0.0}, "precision must be a positive"),
        ({"mean": "strat"}, "did you mean 'start'"),
        ({"mean": 0.0}, r"such as net.state_dict\(\)"),
        ({"scale": "fan"}, "'isotropic' or 'fan-in'"),
        ({"layers": {"a": -1.0}}, "the precision of 'a' must be a positive"),
        ({"layers": {"a": Prior(layers={"b": 1.0})}}, "layers of its own"),
        ({"layers": ["a"]}, "dict of patterns"),
    ],
)
def test_a_prior_that_is_none_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Prior(**options)


# -- fit -------------------------------------------------------------------------------------------

X = torch.randn(15, 3, generator=torch.Generator().manual_seed(3)).double()
Y = (X @ torch.tensor([[1.0], [-2.0], [0.5]]).double() + 3).double()
NOISE = 0.5
LINE = {"weight": torch.tensor([[2.0, 1.0, -1.0]]).double(), "bias": torch.tensor([-4.0]).double()}
LINEAR = {
    "plain": (None, (2.0, 2.0), (0.0, 0.0)),
    "fan-in": (Prior(2.0, scale="fan-in"), (6.0, 2.0), (0.0, 0.0)),
    "layers": (Prior(2.0, layers={"bias": 40.0}), (2.0, 40.0), (0.0, 0.0)),
    "mean": (Prior(2.0, mean=LINE), (2.0, 2.0), (1.0, 1.0)),
    "start": (Prior(2.0, mean="start"), (2.0, 2.0), (1.0, 1.0)),
    "all": (
        Prior(2.0, mean=LINE, scale="fan-in", layers={"bias": Prior(9.0)}),
        (6.0, 9.0),
        (1.0, 0.0),
    ),
}


def exact(case: str) -> tuple[Tensor, Tensor]:
    """Mean [D] and covariance [D, D] of the posterior of (weight, bias): a Gaussian."""
    _, lam, share = LINEAR[case]
    ones = torch.cat([X, torch.ones(len(X), 1)], 1)
    prior = torch.diag(torch.tensor([lam[0]] * 3 + [lam[1]])).double()
    mu = torch.cat([share[0] * LINE["weight"][0], share[1] * LINE["bias"]])
    precision = ones.T @ ones / NOISE**2 + prior
    covariance = torch.linalg.inv(precision)
    return covariance @ (ones.T @ Y[:, 0] / NOISE**2 + prior @ mu), covariance


def at_the_mode(case: str) -> dict[str, Any]:
    """Training ends where rounding does: the slope is a sum over all rows, and an error of it moves
    the mode by as much as the flattest direction lets it."""
    condition = float(torch.linalg.cond(exact(case)[1]))
    return close(torch.float64, terms=len(X), depth=2, condition=condition)


def line() -> nn.Module:
    net = nn.Linear(3, 1).double()
    net.load_state_dict(LINE)
    return net


def options_of(case: str) -> dict[str, Any]:
    prior = LINEAR[case][0]
    start = "module" if case == "start" else "reset"
    own: dict[str, Any] = {"prior": 2.0 if prior is None else prior, "start": start}
    return own | {"likelihood": stochens.Homoscedastic(NOISE)}


def flat(posterior: stochens.Posterior) -> Tensor:
    """[M, 4]"""
    return torch.cat([posterior.params["weight"][:, 0], posterior.params["bias"]], 1)


@pytest.mark.parametrize(
    ("case", "optimizer"), crossed([*LINEAR], ["adam", "adamw", "sgd"], each=1)
)
@pytest.mark.filterwarnings("ignore:.*ended with the same")
def test_a_trained_member_is_the_posteriors_mode(case: str, optimizer: str) -> None:
    options = options_of(case)
    posterior = stochens.fit(
        line(),
        (X, Y),
        method="regular",
        members=2,
        epochs=1000,
        batch_size=None,
        optimizer=optimizer,
        lr=0.01 if optimizer == "sgd" else 0.1,
        **options | {"start": stochens.Start(options["start"], jitter=0.1)},
    )
    mean, _ = exact(case)
    torch.testing.assert_close(flat(posterior), mean.expand(2, 4), **at_the_mode(case))


@pytest.mark.parametrize("chunk", [None, 1])
def test_each_member_has_the_mode_of_its_own_prior(chunk: int | None) -> None:
    """theta_k = (A + lambda)^-1 (b + lambda mu_k): linear in mu_k, which is 0 or the line's."""
    means = {name: torch.stack([torch.zeros_like(t), t, 2 * t]) for name, t in LINE.items()}
    posterior = stochens.fit(
        line(),
        (X, Y),
        method="regular",
        members=3,
        epochs=1000,
        batch_size=None,
        lr=0.1,
        prior=Prior(2.0, mean=means),
        likelihood=stochens.Homoscedastic(NOISE),
        run=stochens.Run(chunk=chunk),
    )
    (zero, _), (one, _) = exact("plain"), exact("mean")
    known = torch.stack([zero, one, 2 * one - zero])
    torch.testing.assert_close(flat(posterior), known, **at_the_mode("plain"))
    some = posterior.take([1])
    mu = torch.cat([LINE["weight"][0], LINE["bias"]])
    assert some.kl().l2 == pytest.approx(float((flat(some)[0] - mu).square().sum()), rel=1e-9)


@pytest.mark.filterwarnings("ignore:R-hat")  # of each chain there are few draws
@pytest.mark.parametrize("case", long_but({"plain", "start", "all"}, LINEAR))
def test_nuts_has_the_exact_posterior(case: str) -> None:
    """Mean and covariance within five standard errors of as many draws that depend on each other
    little: NUTS on a Gaussian has more than half of its draws effective."""
    posterior = stochens.nuts(line(), (X, Y), chains=40, samples=30, warmup=50, **options_of(case))
    _held_against(case, posterior, effective=1000)


@pytest.mark.filterwarnings("ignore:R-hat")  # of each chain there are few draws
@pytest.mark.parametrize("case", long_but({"all"}, ["mean", "all"]))
def test_hmc_has_the_exact_posterior(case: str) -> None:
    posterior = stochens.hmc(line(), (X, Y), chains=40, samples=30, warmup=50, **options_of(case))
    _held_against(case, posterior, effective=1000)


@pytest.mark.parametrize("case", ["mean", "start", "all"])
def test_langevin_has_the_exact_posterior(case: str) -> None:
    posterior = stochens.langevin(line(), (X, Y), members=400, **options_of(case))
    _held_against(case, posterior, effective=400)


@pytest.mark.parametrize("case", long_but({"all"}, ["mean", "all"]))
@pytest.mark.filterwarnings("ignore")
def test_sgmcmc_has_the_exact_posterior(case: str) -> None:
    posterior = stochens.sgmcmc(
        line(), (X, Y), chains=40, samples=50, burn_in=500, thin=20, lr=0.01, **options_of(case)
    )
    _held_against(case, posterior, effective=800)
    chains = posterior.chains
    assert chains is not None
    _, lam, share = LINEAR[case]
    lam_of = torch.tensor([lam[0]] * 3 + [lam[1]]).double()
    mu = torch.cat([share[0] * LINE["weight"][0], share[1] * LINE["bias"]])
    energy = (lam_of / 2 * (flat(posterior) - mu).square()).sum(1)
    torch.testing.assert_close(chains.stats["prior"].flatten(), energy)


def _held_against(case: str, posterior: stochens.Posterior, *, effective: int) -> None:
    mean, covariance = exact(case)
    draws = flat(posterior)
    sd = covariance.diagonal().sqrt()
    assert ((draws.mean(0) - mean).abs() < 5 * sd / effective**0.5).all()
    found = draws.T.cov() / sd.outer(sd)
    known = covariance / sd.outer(sd)
    assert ((found - known).abs() < 5 * (2 / effective) ** 0.5).all()


def test_a_draw_from_the_prior_has_its_mean_and_scale() -> None:
    prior = Prior(4.0, mean=LINE, layers={"bias": 100.0})
    posterior = stochens.fit(
        line(), (X, Y), members=4000, epochs=1, lr=1e-30, method="regular", start="prior",
        prior=prior, likelihood=stochens.Homoscedastic(NOISE), batch_size=None,
    )  # fmt: skip
    draws, sd = flat(posterior), torch.tensor([0.5] * 3 + [0.1]).double()
    mean = torch.cat([LINE["weight"][0], LINE["bias"]])
    assert ((draws.mean(0) - mean).abs() < 5 * sd / 4000**0.5).all()
    assert ((draws.std(0) / sd - 1).abs() < 5 / 8000**0.5).all()


def test_chains_with_priors_of_their_own_are_refused() -> None:
    with pytest.raises(InputError, match="is another for each chain"):
        stochens.nuts(
            line(), (X, Y), samples=1, warmup=1, start="reset", prior=Prior(mean="start"),
            likelihood=stochens.Homoscedastic(NOISE),
        )  # fmt: skip


# -- kept ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", ["reset", "module"])
def test_a_saved_posterior_has_its_prior(start: str, tmp_path: Path) -> None:
    prior = Prior(0.5, mean="start", scale="fan-in", layers={"2*": Prior(3.0), "0.bias": 2.0})
    net = network()
    options: dict[str, Any] = {**QUICK, "members": 4, "prior": prior, "start": start}
    posterior = stochens.fit(net, XY, **options)
    mean = posterior.prior_mean
    assert set(mean) == {"0.weight", "0.bias"}
    assert len(mean["0.weight"]) == (1 if start == "module" else 4)
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", net)
    assert again.kl() == posterior.kl()
    two = [stochens.fit(net, XY, **{**options, "members": ids}) for ids in ([0, 1], [2, 3])]
    joined = stochens.join(two)
    assert joined.kl() == posterior.kl()
    assert joined.take([2, 3]).kl() == two[1].kl()
    other = stochens.fit(net, XY, **{**options, "members": [7], "prior": Prior(0.5)})
    with pytest.raises(InputError, match="differ in prior"):
        stochens.join([posterior, other])


def test_a_member_is_the_same_in_any_blocks(tmp_path: Path) -> None:
    options: dict[str, Any] = {**QUICK, "epochs": 3, "prior": Prior(3.0, mean="start"), "lr": 0.1}
    one = stochens.fit(network(), XY, **{**options, "members": 3})
    run = stochens.Run(chunk=1, checkpoint=tmp_path / "here")
    other = stochens.fit(network(), XY, run=run, **{**options, "members": 3})
    for name, p in one.params.items():  # other blocks, other orders of sums
        torch.testing.assert_close(other.params[name], p, rtol=1e-9, atol=1e-9)
    for changed in (Prior(3.0), Prior(3.0, scale="fan-in")):
        with pytest.raises(InputError, match="prior"):
            stochens.fit(network(), XY, run=run, **{**options, "members": 3, "prior": changed})


@pytest.mark.filterwarnings("ignore::stochens.samplers.diagnostics.SamplingWarning")
def test_the_prior_of_chains_is_kept_and_gone_on_with(tmp_path: Path) -> None:
    options: dict[str, Any] = {"warmup": 50, "chains": 2, **options_of("all")}
    whole = stochens.nuts(line(), (X, Y), samples=60, **options)
    part = stochens.nuts(line(), (X, Y), samples=30, **options)
    part.save(tmp_path / "part")
    again = stochens.nuts(
        line(), (X, Y), samples=60, resume=stochens.load(tmp_path / "part", line()), **options
    )
    torch.testing.assert_close(flat(again), flat(whole), rtol=1e-9, atol=1e-9)
    with pytest.raises(InputError, match="prior"):
        stochens.nuts(line(), (X, Y), samples=60, resume=part, **(options | {"prior": Prior(2.0)}))
    assert whole.kl().l2 > 0
