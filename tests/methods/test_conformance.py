"""Every method through one contract, on every kind of layer.

A new method adds a row to METHODS, a new kind of layer a row to NETWORKS. Methods by which members
own a part of the network stand in ADAPTERS: they take not every network.
"""

import copy
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from stochens import FRN, InputError, methods, objective
from stochens.errors import Unsuited
from stochens.members import Engine, Params, forward, init, trainable
from stochens.methods import DropConnect, Dropout, Gaussian, LastLayer, LoRA, NPDropout, stochastic
from stochens.methods.swap import layers_of
from stochens.randomness.seeds import seeded
from stochens.training.starts import start_adapters

METHODS: dict[str, Any] = {
    "regular": "regular",
    "dropout": Dropout(0.3),
    "dropout-channel": Dropout(0.3, node="channel"),
    "dropconnect": DropConnect(0.3),
    "np-dropout": NPDropout(),
    "np-dropout-channel": NPDropout(node="channel"),
    "gaussian": Gaussian(0.2),
    "gaussian-learned": Gaussian(0.2, learn=True),
    "dropout+gaussian": [Dropout(0.3), Gaussian(0.2)],
    "np-dropout+gaussian-learned": [NPDropout(), Gaussian(0.2, learn=True)],
    "dropconnect+gaussian": [DropConnect(0.3), Gaussian(0.2)],
}
ADAPTERS: dict[str, Any] = {
    "lora": LoRA(2),
    "lora-dropout": LoRA(2, alpha=1.0, dropout=0.3),
    "lora+dropout": [LoRA(2), Dropout(0.3)],
    "lora+np-dropout": [LoRA(8, head=False), NPDropout()],
    "lora+gaussian": [LoRA(2), Gaussian(0.2)],
    "lora-dropout+gaussian-learned": [LoRA(2, dropout=0.3), Gaussian(0.2, learn=True)],
    "last-layer": LastLayer(),
    "last-layer+gaussian-learned": [LastLayer(), Gaussian(0.2, learn=True)],
}
M, B = 2, 4
NOWHERE = "(none)"  # as the name of the output layer: every layer gets noise


class Net(nn.Module):
    """Named layers and a function that runs them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))


def convolutions(dims: int, *, transposed: bool) -> nn.Module:
    """One convolution with one group, one with two; then a Linear head."""
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    return Net(
        lambda net, x: net.head(net.two(net.one(x).tanh()).tanh().flatten(2).mean(2)),
        one=kind(2, 4, 3, padding=1),
        two=kind(4, 6, 2, groups=2, stride=2, bias=False),
        head=nn.Linear(6, 2),
    )


def embedding() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.embed(x).mean(1)),
        embed=nn.Embedding(7, 4),
        head=nn.Linear(4, 2),
    )


def normalised(norm: nn.Module) -> nn.Module:
    """x [B, 3, L] -> [B, 4, L], normalised; LayerNorm and RMSNorm take the last axis, L = 6."""
    return Net(
        lambda net, x: net.head(net.norm(net.conv(x)).tanh().flatten(1)),
        conv=nn.Conv1d(3, 4, 1),
        norm=norm,
        head=nn.Linear(24, 2),
    )


def attention() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.attend(x, x, x)[0].mean(1)),
        attend=nn.MultiheadAttention(4, 2, batch_first=True),
        head=nn.Linear(4, 2),
    )


def attention_of_several_widths() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.attend(x, x[..., :3], x[..., 1:])[0].mean(1)),
        attend=nn.MultiheadAttention(4, 2, kdim=3, vdim=3, add_bias_kv=True, batch_first=True),
        head=nn.Linear(4, 2),
    )


def transformer() -> nn.Module:
    block = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    return Net(
        lambda net, x: net.head(net.encoder(x).mean(1)),
        encoder=nn.TransformerEncoder(block, 2),
        head=nn.Linear(4, 2),
    )


def lstm() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.lstm(net.into(x))[0].mean(1)),
        into=nn.Linear(4, 3),
        lstm=nn.LSTM(3, 3, num_layers=2, bidirectional=True, batch_first=True),
        head=nn.Linear(6, 2),
    )


def used_twice() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.layer(net.layer(x).tanh()).tanh()),
        layer=nn.Linear(3, 3),
        head=nn.Linear(3, 2),
    )


def registered_twice() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), nn.Sequential(layer, nn.Tanh()), nn.Linear(3, 2))


def tied() -> nn.Module:
    """Embedding and output share their weights, as do two layers between them."""
    net = Net(
        lambda net, x: net.head(net.two(net.one(net.embed(x).mean(1)).tanh()).tanh()),
        embed=nn.Embedding(7, 4),
        one=nn.Linear(4, 4),
        two=nn.Linear(4, 4),
        head=nn.Linear(4, 7),
    )
    net.head.weight, net.two.weight = net.embed.weight, net.one.weight
    return net


def frozen() -> nn.Module:
    """The first layer is the same for all members, and not trained; of the second, the bias."""
    net: Any = mlp()
    with seeded(0):
        net[0].reset_parameters()
        net[2].reset_parameters()
    net[0].requires_grad_(False)
    net[2].bias.requires_grad_(False)
    return net


class Scaled(nn.Module):
    """A network with a parameter of its own, a scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.layers = mlp()

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layers(x)


class Conv1D(nn.Module):
    """As Hugging Face's GPT-2 has it: a linear layer whose weight is [in, out]."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.3 * torch.randn(inputs, outputs))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


def of_gpt2() -> nn.Module:
    return Net(
        lambda net, x: net.head(net.conv(net.into(x)).tanh()),
        into=nn.Linear(3, 4),
        conv=Conv1D(5, 4),
        head=nn.Linear(5, 2),
    )


class OwnParameters(nn.Module):
    """A module with parameters of its own, alone and in lists, beside layers; and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.randn(3, 3))
        self.shifts = nn.ParameterList([torch.randn(3), torch.randn(3)])
        self.named = nn.ParameterDict({"scale": torch.ones(3)})
        self.layer = nn.Linear(3, 3)
        self.register_buffer("factor", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.einsum("ij,bj->bi", self.mix, x) + self.shifts[0]
        return self.factor * self.layer(y.tanh() * self.named["scale"] + self.shifts[1])


def own_parameters() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), OwnParameters(), nn.Linear(3, 2))


class Row(NamedTuple):
    build: Callable[[], nn.Module]
    x: tuple[int, ...]  # the shape of an example
    tokens: bool = False
    engines: tuple[Engine, ...] = ("vmap", "loop")
    output: str | None = None  # as `stochastic` takes it


NETWORKS: dict[str, Row] = {
    "linear": Row(mlp, (3,)),
    "registered-twice": Row(registered_twice, (3,)),
    **{
        f"conv{'-transpose' * transposed}{d}d": Row(
            functools.partial(convolutions, d, transposed=transposed), (2, *[4] * d)
        )
        for d in (1, 2, 3)
        for transposed in (False, True)
    },
    "embedding": Row(embedding, (6,), tokens=True),
    "layer-norm": Row(lambda: normalised(nn.LayerNorm(6)), (3, 6)),
    "group-norm": Row(lambda: normalised(nn.GroupNorm(2, 4)), (3, 6)),
    "rms-norm": Row(lambda: normalised(nn.RMSNorm(6)), (3, 6)),
    "frn": Row(lambda: normalised(FRN(4)), (3, 6)),
    "attention": Row(attention, (3, 4)),
    "attention-widths": Row(attention_of_several_widths, (3, 4)),
    "transformer": Row(transformer, (3, 4)),
    "lstm": Row(lstm, (3, 4)),
    "used-twice": Row(used_twice, (3,)),
    "tied": Row(tied, (6,), tokens=True),
    "tied-all-noisy": Row(tied, (6,), tokens=True, output=NOWHERE),
    "frozen": Row(frozen, (3,)),
    "scalar": Row(Scaled, (3,)),
    "of-gpt2": Row(of_gpt2, (3,)),
    "own-parameters": Row(own_parameters, (3,)),
    "one-layer": Row(lambda: nn.Linear(3, 2), (3,), output=NOWHERE),
}


class Case(NamedTuple):
    name: str
    row: Row
    net: nn.Module
    params: Params
    x: Tensor

    @property
    def noisy(self) -> bool:
        return self.name not in ("regular", "lora", "last-layer")


@functools.cache
def members_of(network: str, purpose: int) -> Params:
    return init(NETWORKS[network].build, members=range(M), seed=0, purpose=purpose)


def inputs_of(row: Row) -> Tensor:
    with seeded(1):
        return torch.randint(7, (B, *row.x)) if row.tokens else torch.randn(B, *row.x)


def make(network: str, method: Any) -> tuple[nn.Module, Params]:
    """The stochastic network, and omega [M, ...]."""
    row, build = NETWORKS[network], None
    rules = methods.resolve(method)
    with seeded(2):
        plain = row.build()
        net = stochastic(plain, method, output=row.output)
    first, second = members_of(network, 0), members_of(network, 1)
    if any(rule.freezes for rule in rules):
        output = row.output or next(reversed(layers_of(plain)), None)
        for rule in rules:
            plain = rule.adapt(plain, output=output)
        build = start_adapters(plain)
        first, second = (init(build, members=range(M), seed=0, purpose=k) for k in (0, 1))
    params = methods.start(net, first, second)
    with seeded(3):  # off their start, where the two sets of a normalisation are the same
        for p in trainable(net).values():
            p.data += 0.3 * torch.randn_like(p)
        return net, {name: p + 0.3 * torch.randn_like(p) for name, p in params.items()}


@functools.cache
def case_of(network: str, method: str) -> "Case":
    row = NETWORKS[network]
    if method in METHODS:
        return Case(method, row, *make(network, METHODS[method]), inputs_of(row))
    try:
        return Case(method, row, *make(network, ADAPTERS[method]), inputs_of(row))
    except Unsuited as error:
        pytest.skip(f"{method} does not take this network: {error}")


@pytest.fixture(params=METHODS)
def method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[*METHODS, *ADAPTERS])
def any_method(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=NETWORKS)
def case(request: pytest.FixtureRequest, any_method: str) -> Case:
    return case_of(str(request.param), any_method)


def run(case: Case, seed: int, *, params: Params | None = None, engine: Engine | None = None):
    with seeded(seed):
        params = case.params if params is None else params
        return forward(case.net, params, case.x, engine=engine or case.row.engines[0])


def wide(case: Case) -> Case:
    """The same in float64."""
    return case._replace(
        net=copy.deepcopy(case.net).to(torch.float64),
        params={name: p.double() for name, p in case.params.items()},
        x=case.x if case.row.tokens else case.x.double(),
    )


# -- the contract ---------------------------------------------------------------------------------


def test_parameters_keep_their_names_and_start_gives_the_trainable_ones(case: Case) -> None:
    plain = {name: p.shape for name, p in case.row.build().named_parameters()}
    omega = {name: p.shape for name, p in case.net.named_parameters()}
    assert plain.items() <= omega.items()
    assert {n: p.shape[1:] for n, p in case.params.items()} == {
        n: p.shape for n, p in trainable(case.net).items()
    }
    assert set(case.net.state_dict()) >= set(case.row.build().state_dict())


def test_in_prediction_two_draws_differ_and_one_seed_repeats_them(case: Case) -> None:
    case.net.eval()
    alike = {name: p[:1].expand_as(p) for name, p in case.params.items()}  # M times one member
    for engine in case.row.engines:
        with torch.no_grad():
            one, two, again = (run(case, s, params=alike, engine=engine) for s in (0, 1, 0))
        assert one.shape[:2] == (M, B)
        assert one.isfinite().all()
        assert torch.equal(one, again)
        assert torch.equal(one, two) is not case.noisy
        draws = torch.stack([one, two])
        assert torch.equal(draws[:, 0], draws[:, 1]) is not case.noisy  # each member its own noise


def test_a_direct_call_in_eval_mode_is_noisy(case: Case) -> None:
    """Without `forward`, nn.TransformerEncoderLayer may take its fast path past the noise."""
    case.net.eval()
    with torch.no_grad(), seeded(0):
        assert torch.equal(case.net(case.x), case.net(case.x)) is not case.noisy


def test_in_training_two_draws_differ_and_all_of_omega_gets_a_gradient(case: Case) -> None:
    case.net.train()
    params = {name: p.clone().requires_grad_() for name, p in case.params.items()}
    for engine in case.row.engines:
        draws = [run(case, seed, params=params, engine=engine) for seed in (0, 1)]
        assert torch.equal(*draws) is not case.noisy
        torch.stack(draws).square().sum().backward()
    for name, p in params.items():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.reshape(M, -1).any(1).all(), f"{name} moves nothing in some member"


def test_a_member_is_on_its_own(case: Case) -> None:
    """NaN in one member's parameters stays there, and the KL's terms by member too."""
    params = {name: p.clone() for name, p in case.params.items()}
    for p in params.values():
        p[1] = torch.nan
    finite = run(case, 0, params=params).isfinite()
    assert finite[0].all()
    assert not finite[1].any()
    assert objective.penalty(case.net, params, 1.0).isfinite().tolist() == [True, False]


def test_the_kl_has_every_parameter_once_and_in_its_place(case: Case) -> None:
    """With omega2 = -3 omega1 and sigma = |omega1|, each mixture must show the same relations."""
    params = {n: p.double() for n, p in case.params.items()}
    means = {n for n in params if not n.endswith(("_2", "_log_sigma"))}
    params |= {n + "_2": -3 * params[n] for n in means if n + "_2" in params}
    params |= {n + "_log_sigma": params[n].abs().log() for n in means if n + "_log_sigma" in params}
    parts = objective.mixtures(case.net, params)
    counted = torch.cat([part.means[0].flatten(1) for part in parts], 1)
    expected = torch.cat([params[n].reshape(M, -1) for n in means], 1)
    assert torch.equal(counted.sort(1).values, expected.sort(1).values)
    for part in parts:
        if len(part.means) == 2:
            assert torch.equal(part.means[1], -3 * part.means[0]) or not part.means[1].any()
        if "learned" in case.name and part.sigma is not None:
            torch.testing.assert_close(part.sigma, part.means[0].abs())


def test_deepcopy_and_double(case: Case) -> None:
    twin = case._replace(net=copy.deepcopy(case.net))
    assert torch.equal(run(case, 0), run(twin, 0))
    addresses = [{p.data_ptr() for p in net.parameters()} for net in (case.net, twin.net)]
    assert not set.intersection(*addresses)  # the copy shares nothing with the original
    twin = wide(case)
    assert all(p.dtype == torch.float64 for p in twin.net.parameters())
    assert run(twin, 0).dtype == torch.float64
    with seeded(0):
        assert twin.net(twin.x).dtype == torch.float64  # with the network's own parameters too


@pytest.mark.parametrize("network", NETWORKS)
def test_regular_members_are_the_plain_network(network: str) -> None:
    """In float64. vmap sums in another order than a single network, and LayerNorm divides what it
    is given by a standard deviation, which may be small: in float32 they are 3e-6 apart on one CPU
    and less on another."""
    case = wide(case_of(network, "regular"))
    # at most 8 layers in a row, of at most 24 terms; a normalisation divides by no less than 1e-3
    within = close(torch.float64, terms=24, depth=8, condition=1e3)
    for engine in case.row.engines:
        outputs = run(case, 0, engine=engine)
        for k in range(M):
            plain = case.row.build().double()
            own = {name: p[k] for name, p in case.params.items()}
            plain.load_state_dict(own, strict=False)  # tied names are given once
            torch.testing.assert_close(outputs[k], plain(case.x), **within)


@pytest.mark.parametrize("rule", [*METHODS.values(), *ADAPTERS.values()])
def test_a_layer_with_two_names_is_left_as_it_was(rule: Any) -> None:
    net = stochastic(registered_twice(), rule)
    one = {name: p.detach()[None] for name, p in net.named_parameters()}
    forward(net, one, torch.zeros(2, 3))
    assert all(isinstance(p, nn.Parameter) for p in net.parameters())


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rule", [Dropout(0.0), DropConnect(0.0), Dropout(0.5, rates={"*": 0.0})])
def test_rate_zero_is_the_regular_ensemble(network: str, rule: methods.Method) -> None:
    net, params = make(network, rule)
    regular, same = make(network, "regular")
    assert params.keys() == same.keys()
    engine = NETWORKS[network].engines[0]
    x = inputs_of(NETWORKS[network])
    assert torch.equal(
        forward(net, params, x, engine=engine), forward(regular, same, x, engine=engine)
    )
    assert objective.kl(net, params, 2.0) == objective.kl(regular, same, 2.0)


# -- the noise of single layers against closed forms -----------------------------------------------

DRAWS = 4000
LINEAR: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "Linear": (nn.Linear(3, 4), (3,)),
    "Linear-no-bias": (nn.Linear(3, 4, bias=False), (2, 3)),
    "Conv1d": (nn.Conv1d(4, 4, 3, padding=1, groups=2, padding_mode="circular"), (4, 5)),
    "Conv2d": (nn.Conv2d(2, 3, 2, stride=2), (2, 4, 4)),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 4, 2, stride=2, groups=2), (4, 2, 2)),
    "Embedding": (nn.Embedding(7, 4), (3,)),
}


def layer_of(kind: str, rule: Any) -> tuple[nn.Module, nn.Module, Tensor]:
    """The plain layer in float64, the same one with noise, and a batch of two inputs."""
    with seeded(3):
        plain, shape = LINEAR[kind]
        plain = copy.deepcopy(plain).double()
        for p in plain.parameters():
            nn.init.normal_(p)
        noisy = stochastic(plain, rule, output=NOWHERE)
        for name, p in noisy.named_parameters():
            if name.endswith("_2"):
                nn.init.normal_(p)
            if name.endswith("_log_sigma"):
                nn.init.normal_(p, -1.0, 0.5)
        tokens = kind == "Embedding"
        return plain, noisy, torch.randint(7, (2, 3)) if tokens else torch.randn(2, *shape).double()


def with_values(plain: nn.Module, values: dict[str, Tensor], x: Tensor) -> Tensor:
    layer = copy.deepcopy(plain)
    for name, p in layer.named_parameters():
        p.data = values[name].detach()
    return layer(x).detach()


def moments_in_closed_form(kind: str, rule: Any) -> tuple[Tensor, Tensor]:
    """Mean and variance of every output element; parts that are independent add up."""
    plain, noisy, x = layer_of(kind, rule)
    own = dict(noisy.named_parameters())
    squared = x if kind == "Embedding" else x.square()
    mean = plain(x).detach()
    variance = torch.zeros_like(mean)
    for part in methods.resolve(rule):
        if isinstance(part, Dropout):  # y z / (1 - p)
            variance = variance + mean.square() * part.p / (1 - part.p)
        if isinstance(part, DropConnect):  # each weight by itself: w^2 p / (1 - p)
            squares = {n: p.square() * part.p / (1 - part.p) for n, p in plain.named_parameters()}
            variance = variance + with_values(plain, squares, squared)
        if isinstance(part, NPDropout):  # y1 or y2
            second = with_values(plain, {n: own[n + "_2"] for n, _ in plain.named_parameters()}, x)
            mean, variance = (mean + second) / 2, variance + ((mean - second) / 2).square()
        if isinstance(part, Gaussian):
            squares = {
                n: (2 * own[n + "_log_sigma"]).exp() if part.learn else p * 0 + part.sigma**2
                for n, p in plain.named_parameters()
            }
            variance = variance + with_values(plain, squares, squared)
    return mean, variance


def draws_of(layer: nn.Module, x: Tensor, seed: int = 0) -> Tensor:
    params = {n: p.detach().expand(DRAWS, *p.shape) for n, p in layer.named_parameters()}
    with seeded(seed):
        return forward(layer, params, x)  # [S, B, ...]


def assert_moments(draws: Tensor, mean: Tensor, variance: Tensor) -> None:
    """5 standard errors: with some hundred elements a true match fails once in 10^4 seeds."""
    assert ((draws.mean(0) - mean).abs() <= 5 * (variance / DRAWS).sqrt() + 1e-9).all()
    gaps = (draws - mean).square()
    error = gaps.std(0) / DRAWS**0.5
    assert ((gaps.mean(0) - variance).abs() <= 5 * error + 1e-9).all()


@pytest.mark.parametrize("kind", LINEAR)
def test_mean_and_variance_of_one_layer(kind: str, method: str) -> None:
    _, noisy, x = layer_of(kind, METHODS[method])
    assert_moments(draws_of(noisy, x), *moments_in_closed_form(kind, METHODS[method]))


@pytest.mark.parametrize("kind", LINEAR)
@pytest.mark.parametrize("learn", [True, False])
def test_local_reparameterisation_against_draws_of_the_weights(kind: str, learn: bool) -> None:
    plain, noisy, x = layer_of(kind, Gaussian(0.4, learn=learn))
    own = {n: p.detach() for n, p in noisy.named_parameters()}
    with seeded(5):
        theta = {
            n: p + (own[n + "_log_sigma"].exp() if learn else 0.4) * torch.randn(DRAWS, *p.shape)
            for n, p in plain.named_parameters()
        }
    drawn = forward(plain, theta, x).detach()
    local = draws_of(noisy, x)
    # Gaussian outputs: the standard error of a variance is sqrt(2 / S) of it; two samples, 5 errors
    ratio = local.var(0) / drawn.var(0)
    assert ((ratio - 1).abs() < 5 * (4 / DRAWS) ** 0.5).all()
    gap = (local.mean(0) - drawn.mean(0)).abs()
    assert (gap < 5 * ((local.var(0) + drawn.var(0)) / DRAWS).sqrt()).all()


class Standardised(nn.Linear):
    """Its output is not linear in its weight."""

    def forward(self, input: Tensor) -> Tensor:
        w = self.weight - self.weight.mean(1, keepdim=True)
        return nn.functional.linear(input, w / w.std(1, keepdim=True), self.bias)


@pytest.mark.parametrize(
    "build", [lambda: Standardised(4, 3), lambda: parametrizations.weight_norm(nn.Linear(4, 3))]
)
@pytest.mark.parametrize("learn", [True, False])
@pytest.mark.filterwarnings("ignore:There is a performance drop")  # weight norm under vmap
def test_gaussian_draws_the_weights_of_layers_not_linear_in_them(
    build: Callable[[], nn.Module], learn: bool
) -> None:
    with seeded(0):
        plain = build().double()
        x = torch.randn(2, 4).double()
        theta = {
            n: p.detach() + 0.1 * torch.randn(DRAWS, *p.shape) for n, p in plain.named_parameters()
        }
    noisy = draws_of(stochastic(plain, Gaussian(0.1, learn=learn)), x)
    drawn = forward(plain, theta, x).detach()
    # nearly Gaussian outputs: as above, 5 standard errors of a ratio of two sample variances
    assert ((noisy.var(0) / drawn.var(0) - 1).abs() < 5 * (4 / DRAWS) ** 0.5).all()
    # one draw of the weights for both examples: what they have in common cancels
    ratio = noisy.diff(dim=1).var(0) / drawn.diff(dim=1).var(0)
    assert ((ratio - 1).abs() < 5 * (4 / DRAWS) ** 0.5).all()


def test_layers_may_be_called_by_keyword() -> None:
    rules = METHODS | {name: rule for name, rule in ADAPTERS.items() if "lora" in name}
    for name, rule in rules.items():
        net = stochastic(nn.Linear(3, 2), rule, output=NOWHERE)
        with seeded(0):
            y = net(input=torch.ones(4, 3))
        with seeded(0):
            assert torch.equal(y, net(torch.ones(4, 3))), name


@pytest.mark.parametrize("rule", [DropConnect(0.3), NPDropout(node="channel"), "regular"])
def test_gaussian_adds_its_variance_to_drawn_weights(rule: Any) -> None:
    """theta = theta_inner + sigma eps where the layer is not linear in theta, here attention."""
    rules = [*methods.resolve(rule), Gaussian(0.4)]
    net, _ = make("attention", rules)
    attend = net.get_submodule("attend")
    omega = {name: p.detach() for name, p in attend.named_parameters()}
    stacked = {n: p.expand(DRAWS, *p.shape) for n, p in omega.items()}
    with seeded(0):
        theta = torch.func.vmap(attend.draw, randomness="different")(stacked)
    for name, draws in theta.items():
        w, mean, spread = omega[name], omega[name], torch.tensor(0.0)
        if isinstance(rule, DropConnect):
            spread = w.square() * 0.3 / 0.7
        if isinstance(rule, NPDropout):
            second = omega[name + "_2"]
            mean, spread = (w + second) / 2, ((w - second) / 2).square()
        assert_moments(draws, mean, spread + 0.16)


# -- granularity: what shares one mask ------------------------------------------------------------


def pattern(layer: nn.Module, x: Tensor, rule: Any, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Outputs of the plain layer and one noisy draw of it."""
    net = stochastic(layer, rule, output=NOWHERE)
    for name, p in net.named_parameters():
        if name.endswith("_2"):
            p.data = p.data + 1.0
    with seeded(seed), torch.no_grad():
        return layer(x), net(x)


def varies(z: Tensor, axis: int) -> bool:
    return bool((z != z.narrow(axis, 0, 1)).any())


CONV = nn.Conv2d(2, 4, 1)
GRANULARITY = [  # layer, input, rule; does the mask vary over examples, positions, channels?
    (nn.Linear(3, 8), (6, 3), Dropout(0.5), "examples channels"),
    (nn.Linear(3, 8), (6, 5, 3), Dropout(0.5), "examples positions channels"),
    (CONV, (6, 2, 4, 4), Dropout(0.5), "examples positions channels"),
    (CONV, (6, 2, 4, 4), Dropout(0.5, node="channel"), "examples channels"),
    (nn.ConvTranspose2d(2, 4, 1), (6, 2, 4, 4), Dropout(0.5, node="channel"), "examples channels"),
    (nn.Linear(3, 8), (6, 3), NPDropout(), "channels"),
    (nn.Linear(3, 8), (6, 5, 3), NPDropout(), "channels"),
    (CONV, (6, 2, 4, 4), NPDropout(), "positions channels"),
    (CONV, (6, 2, 4, 4), NPDropout(node="channel"), "channels"),
    (nn.ConvTranspose2d(2, 4, 1), (6, 2, 4, 4), NPDropout(node="channel"), "channels"),
    (FRN(4), (6, 4, 4, 4), NPDropout(), "positions channels"),
    (FRN(4), (6, 4, 4, 4), NPDropout(node="channel"), "channels"),
    (nn.GroupNorm(2, 4), (6, 4, 4, 4), NPDropout(), "positions channels"),
    (nn.GroupNorm(2, 4), (6, 4, 4, 4), NPDropout(node="channel"), "channels"),
]


@pytest.mark.parametrize(("layer", "shape", "rule", "axes"), GRANULARITY)
def test_what_has_a_mask_of_its_own(
    layer: nn.Module, shape: tuple[int, ...], rule: Any, axes: str
) -> None:
    with seeded(0):
        x = torch.randn(1, shape[1], *[1] * (len(shape) - 2)).expand(shape).clone()
        if isinstance(layer, nn.Linear):
            x = torch.randn(shape[-1]).expand(shape).clone()
    y, drawn = pattern(layer, x, rule)
    if isinstance(rule, Dropout):  # zero or twice the output
        z = drawn / y
        assert ((z - 1).abs() - 1).abs().max() < 1e-6  # 0 or 2, but for float32 rounding
        z = z.round()
    else:
        z = (drawn == y).float()  # 1: from set 1
    assert 0.2 < z.bool().float().mean() < 0.8  # half of them
    last = isinstance(layer, nn.Linear)
    examples, channels = 0, -1 if last else 1
    positions = [a for a in range(1, z.dim()) if a not in (channels % z.dim(),)]
    found = [
        name
        for name, moving in {
            "examples": varies(z, examples),
            "positions": any(varies(z, a) for a in positions),
            "channels": varies(z, channels),
        }.items()
        if moving
    ]
    assert " ".join(found) == axes


@pytest.mark.parametrize(
    ("layer", "rule", "per_example"),
    [
        (nn.Linear(3, 4), DropConnect(0.5), False),
        (nn.Linear(3, 4), Gaussian(0.5), True),
        (nn.Linear(3, 4), [DropConnect(0.5), Gaussian(0.5)], True),
        (nn.LayerNorm(3), Gaussian(0.5), False),
        (nn.RMSNorm(3), Gaussian(0.5, learn=True), False),
        (nn.LayerNorm(3), NPDropout(), False),
        (nn.LayerNorm(3), NPDropout(node="channel"), False),
    ],
)
def test_noise_on_weights_is_shared_by_the_batch(
    layer: nn.Module, rule: Any, per_example: bool
) -> None:
    with seeded(1):
        y, drawn = pattern(layer, torch.randn(3).expand(6, 3), rule)
    assert not torch.equal(y, drawn)
    assert varies(drawn, 0) is per_example


def test_dropconnect_masks_each_weight_and_bias() -> None:
    """One draw of theta has 0 or omega / (1 - p) at every place, both of them often."""
    layer: Any = stochastic(nn.Linear(30, 20), DropConnect(0.25), output=NOWHERE)
    with seeded(0):
        theta = layer.draw(layer.omega())
    for name, w in layer.omega().items():
        z = theta[name] / w
        assert (z.isclose(torch.tensor(0.0)) | z.isclose(torch.tensor(4 / 3))).all()
    kept = (theta["weight"] != 0).float().mean()
    assert abs(kept - 0.75) < 5 * (0.25 * 0.75 / 600) ** 0.5  # 5 standard errors of a share
    assert varies((theta["weight"] != 0).float(), 0)
    assert varies((theta["weight"] != 0).float(), 1)


def test_np_dropout_exchanges_a_node_with_its_bias() -> None:
    layer: Any = stochastic(nn.Linear(3, 40), NPDropout(), output=NOWHERE)
    layer.weight_2.data.fill_(100.0)
    layer.bias_2.data.fill_(100.0)
    with seeded(0):
        theta = layer.draw(layer.omega())
    from_second = (theta["weight"] == 100.0).all(1)
    assert torch.equal((theta["weight"] == 100.0).any(1), from_second)
    assert torch.equal(theta["bias"] == 100.0, from_second)
    assert 8 < from_second.sum() < 32  # Binomial(40, 1/2): mean 20, standard deviation 3.2


# -- which layers -------------------------------------------------------------------------------


def noisy_layers(net: nn.Module) -> dict[str, float]:
    layers = methods.stochastic_layers(net)
    return {
        p: getattr(layer, "output_rate", 0.0) or layer.__dict__.get("p", 0.0)
        for p, layer in layers.items()
    }


def test_rates_and_skip_by_pattern() -> None:
    net = transformer()
    rates, skip = {"encoder.layers.0.*": 0.3, "*.linear1": 0.2}, ["*.linear2", "*.1.self_attn"]
    assert noisy_layers(stochastic(net, Dropout(0.1, rates=rates, skip=skip))) == {
        "encoder.layers.0.self_attn": 0.3,
        "encoder.layers.0.linear1": 0.3,  # the first pattern that matches
        "encoder.layers.1.linear1": 0.2,
    }


def test_the_output_layer_is_left_alone_unless_named() -> None:
    assert noisy_layers(stochastic(mlp(), Dropout(0.1))) == {"0": 0.1, "2": 0.1}
    named = Dropout(0.1, rates={"4": 0.4})
    assert noisy_layers(stochastic(mlp(), named)) == {"0": 0.1, "2": 0.1, "4": 0.4}
    other = DropConnect(0.1, rates={"4": 0.4}, skip=("0", "2"))
    assert noisy_layers(stochastic(mlp(), other)) == {"4": 0.4}
    assert noisy_layers(stochastic(mlp(), DropConnect(0.1), output="0")) == {"2": 0.1, "4": 0.1}
    assert set(noisy_layers(stochastic(mlp(), NPDropout()))) == {"0", "2"}
    assert set(noisy_layers(stochastic(mlp(), Gaussian()))) == {"0", "2", "4"}


def test_output_layer_is_the_last_one_called() -> None:
    net = Net(lambda net, x: net.b(net.a(x)), b=nn.Linear(3, 2), a=nn.Linear(3, 3))
    state = torch.get_rng_state()
    assert methods.output_layer(net, torch.zeros(2, 3)) == "b"
    assert torch.equal(torch.get_rng_state(), state)
    assert not net.a._forward_hooks
    assert methods.output_layer(nn.Linear(3, 2), torch.zeros(2, 3)) == ""
    assert methods.output_layer(nn.ReLU(), torch.zeros(2, 3)) is None


def test_a_shared_layer_stays_shared_and_the_users_network_stays_as_it_is() -> None:
    net: Any = registered_twice()
    noisy: Any = stochastic(net, Dropout(0.1))
    assert noisy[0] is noisy[2][0]
    assert type(net[0]) is nn.Linear
    assert len(methods.stochastic_layers(noisy)) == 1


def test_what_is_trained_beside_tied_weights_is_tied() -> None:
    net = stochastic(tied(), [NPDropout(), Gaussian(learn=True)], output=NOWHERE)
    assert net.head.weight_2 is net.embed.weight_2
    assert net.head.weight_log_sigma is net.embed.weight_log_sigma
    assert net.one.bias_2 is not net.two.bias_2


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (Dropout(rates={"Linear": 0.1}), "pattern 'Linear' matches no layer; the layers are 0"),
        (Dropout(skip="hed"), "pattern 'hed' matches no layer"),
        (Gaussian(skip="5"), "pattern '5' matches no layer; the layers are 0, 2, 4"),
        ([Gaussian(), Dropout()], "dropout cannot go on '0', which is stochastic already"),
        ([Gaussian(), Gaussian()], "gaussian cannot go on '0'"),
        ([Dropout(), DropConnect()], "dropconnect cannot go on '0'"),
        ([NPDropout(), NPDropout()], "np-dropout cannot go on '0'"),
        (Dropout(skip="*"), "dropout found no layer to make stochastic"),
        ("dropuot", "unknown method 'dropuot'; did you mean 'dropout'"),
    ],
)
def test_slips_are_refused(rule: Any, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")):
        stochastic(mlp(), rule)


def test_a_rate_for_a_layer_the_method_cannot_take_is_refused() -> None:
    with pytest.raises(InputError, match="pattern 'norm' matches no layer"):
        stochastic(normalised(FRN(4)), Dropout(rates={"norm": 0.2}))


def test_a_one_layer_network_has_only_its_output_layer() -> None:
    with pytest.raises(InputError, match="found no layer to make stochastic"):
        stochastic(nn.Linear(3, 2), Dropout())
    assert noisy_layers(stochastic(nn.Linear(3, 2), Dropout(rates={"*": 0.2}))) == {"": 0.2}


@pytest.mark.parametrize("p", [1.0, -0.1, float("nan"), "0.1"])
def test_impossible_rates(p: Any) -> None:
    for kind in (Dropout, DropConnect):
        with pytest.raises(InputError, match=r"drop rate must be in \[0, 1\)"):
            kind(p)
        with pytest.raises(InputError, match="drop rate of 'a'"):
            kind(rates={"a": p})


@pytest.mark.parametrize("sigma", [0.0, -1.0, float("inf"), float("nan"), "1"])
def test_impossible_sigma(sigma: Any) -> None:
    with pytest.raises(InputError, match="sigma must be a positive number"):
        Gaussian(sigma)


@pytest.mark.parametrize("kind", [Dropout, NPDropout])
def test_impossible_node(kind: Any) -> None:
    with pytest.raises(InputError, match="node must be 'position' or 'channel', got 'pixel'"):
        kind(node="pixel")


def test_np_dropout_reaches_the_output_layer_when_asked() -> None:
    net = mlp()
    last = list(dict(net.named_parameters()))[-1]
    assert last + "_2" not in dict(stochastic(net, NPDropout()).named_parameters())
    assert last + "_2" in dict(stochastic(net, NPDropout(output=True)).named_parameters())
