"""How far a method's noise reaches, and that what it does not reach is said by name."""

import warnings
from typing import Any

import pytest
import torch
from tests.methods.test_conformance import Conv1D, OwnParameters
from tests.tolerance import close
from torch import Tensor, nn

import stochens
from stochens import DropConnect, Dropout, Gaussian, InputError, LoRA, NPDropout, likelihoods
from stochens.members import forward, trainable
from stochens.methods import base, stochastic, stochastic_layers
from stochens.methods.partial import PartialNoiseWarning
from stochens.randomness.seeds import seeded

SIGMA, DRAWS = 0.2, 4000


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ij->bj", x, self.mix)


def variance(net: nn.Module, x: Tensor) -> Tensor:
    """Of the outputs, over DRAWS draws of one network."""
    same = {n: p.detach().expand(DRAWS, *p.shape) for n, p in trainable(net).items()}
    with torch.no_grad(), seeded(0):
        return forward(net, same, x).var(0)


@pytest.mark.parametrize(("net", "bias"), [(Conv1D(2, 3), 1), (Einsum(), 0)])
def test_gaussian_noise_on_a_matrix_that_no_layer_has(net: nn.Module, bias: int) -> None:
    """y = x W + b, each of W and b with sigma: var(y) = sigma^2 (|x|^2 + 1), 1 where there is b."""
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 3.0, 1.0]])
    found = variance(stochastic(net, Gaussian(SIGMA)), x)
    known = SIGMA**2 * (x.square().sum(1, keepdim=True) + bias)
    # the variance of DRAWS normal numbers has a standard error of sqrt(2 / DRAWS) of itself
    torch.testing.assert_close(found, known.expand(2, 2), rtol=5 * (2 / DRAWS) ** 0.5, atol=0)


def test_every_trainable_parameter_has_gaussian_noise() -> None:
    """Each alone: with all others at sigma 0 the outputs still differ."""
    net = stochastic(nn.Sequential(OwnParameters(), nn.PReLU(), Conv1D(2, 3)), Gaussian(SIGMA))
    noisy = {
        f"{path}.{name}" for path, layer in stochastic_layers(net).items() for name in layer.noisy
    }
    assert noisy == set(trainable(net))
    own = stochastic(OwnParameters(), Gaussian(SIGMA, learn=True))
    sigmas = [name for name in trainable(own) if name.endswith("_log_sigma")]
    assert len(sigmas) == len(trainable(OwnParameters()))
    for name in sigmas:
        params = {
            n: (p.detach() if n not in sigmas or n == name else torch.full_like(p, -50.0))[None]
            for n, p in trainable(own).items()
        }
        with torch.no_grad(), seeded(0):
            one, two = (forward(own, params, torch.ones(1, 3)) for _ in range(2))
        assert (one - two).abs().max() > 1e-4, name  # exp(-50) is 2e-22


def test_the_likelihoods_noise_level_is_no_weight() -> None:
    assert likelihoods.Homoscedastic().adds()[0] == base.LOG_VARIANCE
    for net in (Einsum(), nn.Linear(3, 2), nn.Sequential(Einsum(), nn.Linear(2, 2))):
        prepared = likelihoods.Homoscedastic().prepare(net, torch.zeros(4, 2))
        noisy = stochastic(prepared, Gaussian(SIGMA))
        assert "log_variance" in trainable(noisy)
        assert not any("log_variance" in layer.noisy for layer in stochastic_layers(noisy).values())
        alike = {n: p.detach().expand(2, *p.shape) for n, p in trainable(noisy).items()}
        log_variance = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
        with seeded(0):
            outputs = forward(noisy, alike | {"log_variance": log_variance}, torch.ones(1, 3))
        assert torch.equal(outputs[:, 0, 2:], log_variance)  # each member's own, as it is


@pytest.mark.usefixtures("float64")
def test_such_a_network_goes_all_the_way(tmp_path: Any, xor: Any) -> None:
    x = torch.cat([xor[0], xor[0][:, :1]], 1).double()

    def make() -> Any:
        return nn.Sequential(OwnParameters(), Conv1D(2, 3))

    options: dict[str, Any] = {"method": Gaussian(0.1, learn=True), "members": 3, "epochs": 2}
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)
        posterior = stochens.fit(make, (x, xor[1]), **options)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", make)
    assert torch.equal(again.predict(x).probs, posterior.predict(x).probs)
    plain = make()
    plain.load_state_dict(posterior.member(1))  # the plain network's names, and no others
    assert torch.equal(plain[0].mix, posterior.params["0.mix"][1])
    assert posterior.kl().total == pytest.approx(again.kl().total)
    shared = posterior.predict(x, noise="shared")
    alone = posterior.predict(x[:1], noise="shared")
    # a product, a layer and one more of 3 terms and a bias each, tanh and softmax
    within = close(torch.float64, terms=4, depth=5, condition=1e3)
    torch.testing.assert_close(shared.mean[:1], alone.mean, **within)


# -- what has no noise is said ---------------------------------------------------------------------


def gpt() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 3), Conv1D(3, 3), nn.Tanh(), nn.LayerNorm(3), nn.Linear(3, 2))


def fit(net: Any, xor: Any, method: Any, **options: Any) -> stochens.Posterior:
    return stochens.fit(net, xor, method=method, members=2, epochs=1, **options)


@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout"])
def test_parameters_that_a_method_cannot_reach_are_named(method: str, xor: Any) -> None:
    message = rf"{method} gives no noise to 1\.weight, 1\.bias, which .*; gaussian gives noise to"
    with pytest.warns(PartialNoiseWarning, match=message):
        fit(gpt, xor, method)


@pytest.mark.parametrize(
    "method",
    [
        "regular",
        "gaussian",
        [Dropout(), Gaussian()],
        Dropout(skip="1"),
        [Dropout(skip="1"), Gaussian(skip="1")],
        Dropout(rates={"0": 0.1}, skip="1"),
        Gaussian(skip="1"),
    ],
)
def test_nothing_is_said_where_all_is_reached_or_left_out_on_purpose(method: Any, xor: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)
        fit(gpt, xor, method)


@pytest.mark.parametrize("method", [[LoRA(2), Dropout()], [Dropout(), LoRA(2)]])
def test_what_adapters_freeze_is_not_named(method: Any, xor: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)
        fit(stochens.MLP(2, 4, 4, 2), xor, method)


def test_a_learned_noise_level_is_not_named(xor: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)
        for method in ("dropout", "gaussian"):
            net = stochens.MLP(2, 3, 1)
            fit(net, (xor[0], xor[0][:, 0]), method, likelihood="gaussian")


class Encodes(nn.Module):
    """A part that is called by another method than `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.part, self.head = Part(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.part.encode(x))


class Part(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(2, 3))
        self.layer = nn.Linear(3, 3)

    def encode(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.mix)


def test_a_method_of_another_name_has_the_members_parameters_and_their_noise() -> None:
    """With sigma near 0, each member's outputs are those of the plain network with its values."""
    with seeded(0):  # of 150 draws of the weights 26 have an output that hardly depends on `mix`
        plain, x = Encodes(), torch.randn(4, 2)
    net = stochastic(plain, Gaussian(1e-12))
    params = {n: torch.stack([p, 2 * p]).detach() for n, p in trainable(net).items()}
    for engine in ("vmap", "loop"):
        outputs = forward(net, params, x, engine=engine)
        for k in range(2):
            own = {n: p[k] for n, p in params.items()}
            known = torch.func.functional_call(plain, own, (x,))
            # the floor of the variance is 1e-12, of two layers' outputs. The head magnifies the
            # first by 2 at most: 5 standard deviations; and three products of numbers below 10
            within = close(torch.float32, terms=4, depth=3, scale=10.0)
            within["atol"] += 5 * 1e-6 * 5**0.5
            torch.testing.assert_close(outputs[k], known, **within)
    assert all(isinstance(p, nn.Parameter) for p in net.part.inner.parameters())
    mix = stochastic(plain, Gaussian(SIGMA, skip=["head", "part.layer"]))
    assert variance(mix, x).min() > 1e-4
    with warnings.catch_warnings():
        warnings.simplefilter("error", PartialNoiseWarning)
        fit(Encodes, (x, torch.arange(4) % 2), "gaussian")


class Reads(nn.Module):
    """A layer that is never called: another module reads its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.read, self.head = nn.Linear(2, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head((x @ self.read.weight.T).tanh())


def test_a_layer_that_is_only_read_is_named(xor: Any) -> None:
    with pytest.warns(
        PartialNoiseWarning, match="no noise for read: other modules read its parameters"
    ):
        fit(Reads, xor, "gaussian")


class Hidden(nn.Module):
    """Parameters where no module holds them that is called."""

    def __init__(self) -> None:
        super().__init__()
        self.lists = nn.ModuleList([nn.ParameterList([torch.randn(2)])])
        self.head = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner: Any = self.lists[0]
        return self.head(x * inner[0])


def test_parameters_that_no_called_module_holds_are_named(xor: Any) -> None:
    with pytest.warns(PartialNoiseWarning, match=r"to lists\.0\.0, which .* takes\. stoch"):
        fit(Hidden, xor, "gaussian")


# -- what is frozen --------------------------------------------------------------------------------


def frozen() -> nn.Module:
    """The first layer wholly, of the second the bias."""
    with seeded(0):
        net = stochens.MLP(2, 4, 4, 2)
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


RULES = [Dropout(0.5), DropConnect(0.5), NPDropout(), Gaussian(0.5), Gaussian(0.5, learn=True)]


@pytest.mark.parametrize("rule", [*RULES, [NPDropout(), Gaussian(0.5, learn=True)]])
def test_what_is_frozen_has_no_noise_and_is_there_once(rule: Any, xor: Any) -> None:
    net: Any = stochastic(frozen(), rule)
    assert next(iter(stochastic_layers(net))) == "2"
    added = {n for n, _ in net.named_parameters() if n.endswith(("_2", "_log_sigma"))}
    assert added <= {"2.weight_2", "2.weight_log_sigma", "4.weight_log_sigma", "4.bias_log_sigma"}
    with seeded(0):
        hidden = [net[1](net[0](xor[0])) for _ in range(2)]
    assert torch.equal(*hidden)
    told = r"frozen parameters .* have no noise: 0\.weight, 0\.bias"
    told += "" if isinstance(rule, Dropout) else r", 2\.bias"  # a dropped output has no bias
    told += r"\. stochens\.describe\(net, method\)"
    with pytest.warns(PartialNoiseWarning, match=told):
        fit(frozen, xor, rule)


@pytest.mark.parametrize("rule", [DropConnect(0.5), NPDropout(), Gaussian(0.5)])
def test_a_frozen_bias_is_the_same_in_every_draw(rule: Any) -> None:
    """At x = 0 a layer's output is its bias."""
    layer = nn.Linear(3, 50)
    layer.bias.requires_grad_(False)
    net = stochastic(layer, rule, output="(none)")
    with seeded(0):
        outputs = net(torch.zeros(2, 3))
    # gaussian draws the output, with the floor of its variance
    torch.testing.assert_close(outputs, layer.bias.expand(2, 50), rtol=0, atol=1e-5)


def test_a_frozen_layer_gets_noise_where_it_is_named() -> None:
    for kind in (Dropout, DropConnect):
        net: Any = stochastic(frozen(), kind(0.5, rates={"0": 0.5}))
        with seeded(0):
            assert not torch.equal(net[0](torch.ones(1, 2)), net[0](torch.ones(1, 2)))
    with pytest.raises(InputError, match="frozen layers get none: '0'"):
        stochastic(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)), "dropout")
