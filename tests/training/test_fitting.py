"""Training, held against a plain loop over single networks."""

import functools
import math
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.long import long_but
from tests.running import gather
from tests.tolerance import trained
from torch import nn
from torch.torch_version import TorchVersion
from torch.utils.data import DataLoader, Dataset, TensorDataset

import stochens
from stochens import MLP, DropConnect, Dropout, Failed, Gaussian, InputError, NPDropout
from stochens.kernels import mlp
from stochens.members import builder, init
from stochens.program import fusions
from stochens.randomness.seeds import permutations
from stochens.training.engines import COMPILES_SINCE

NET = (2, 8, 8, 2)
ENGINES = [
    "vmap",
    "loop",
    pytest.param(
        "fused", marks=pytest.mark.skipif(not mlp.available(), reason="no C++ compiler here")
    ),
]
CLOSE = trained(torch.float64, steps=50, rows=60)


def make_net() -> nn.Module:
    return MLP(*NET)


def fit(data, net=None, **options):
    settings = {"method": "regular", "members": 3, "epochs": 4, "batch_size": 25, "lr": 0.01}
    settings["device"] = "cpu"
    return stochens.fit(net or make_net, data, **gather(**settings | options))


def alone(data, member: int, *, epochs: int, batch: int, lr: float, precision: float, seed=0):
    """One network, trained as anyone would: no stacking, no vmap, no library."""
    x, y = data
    start = init(builder(make_net), members=[member], seed=seed)
    net = make_net()
    net.load_state_dict({name: p[0] for name, p in start.items()})
    optimizer = torch.optim.Adam(net.parameters(), lr=lr)
    steps, step = epochs * math.ceil(len(x) / batch), 0
    for epoch in range(epochs):
        order = permutations(len(x), seed=seed, members=[member], epoch=epoch)[0]
        for rows in order.split(batch):
            optimizer.param_groups[0]["lr"] = lr * 0.5 * (1 + math.cos(math.pi * step / steps))
            l2 = sum(p.square().sum() for p in net.parameters())
            loss = F.cross_entropy(net(x[rows]), y[rows]) + precision * l2 / (2 * len(x))
            loss = len(rows) / batch * loss  # so that every row counts the same in an epoch
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
    return net


@pytest.fixture
def data(float64, xor):
    return xor[0].double(), xor[1]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("members", [1, [0, 4, 2]])
def test_each_member_equals_the_network_trained_alone(data, engine, members):
    posterior = fit(data, members=members, run=stochens.Run(engine=engine), prior=3.0)
    for row, member in enumerate(posterior.members):
        net = alone(data, member, epochs=4, batch=25, lr=0.01, precision=3.0)
        for name, p in net.named_parameters():
            torch.testing.assert_close(posterior.params[name][row], p.detach(), **CLOSE)


class Scaled(nn.Module):
    """A temperature, as a parameter without an axis."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.scale * self.layer(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: y.squeeze(-1), r"needs a network with outputs \[B, 1\], got \(4,\)"),
        (lambda y: (y, y), "must return one tensor, got tuple"),
    ],
)
def test_outputs_of_a_wrong_shape_are_named_in_regression(xor, change, message):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, x):
            return change(self.layer(x))

    with pytest.raises(InputError, match=message):
        fit((xor[0], xor[0][:, 0]), Net, likelihood="gaussian")


def test_the_learned_noise_is_of_the_networks_precision(xor):
    x, y = xor[0], xor[0][:, 0].double()
    posterior = fit((x, y), lambda: MLP(2, 4, 1), likelihood="gaussian")
    assert posterior.params["log_variance"].dtype == torch.float32
    with pytest.raises(InputError, match=r"its parameters are torch.float64; use .*double"):
        fit((x, y.float()), lambda: MLP(2, 4, 1).double(), likelihood="gaussian")


def test_a_parameter_may_be_a_single_number(data):
    """One full-batch step of plain gradient descent, by hand."""
    options = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant", "batch_size": None}
    posterior = fit(data, Scaled, members=2, epochs=1, **options)
    start = init(builder(Scaled), members=range(2), seed=0)
    for k in range(2):
        net = Scaled()
        net.load_state_dict({name: p[k] for name, p in start.items()})
        l2 = sum(p.square().sum() for p in net.parameters())
        loss = F.cross_entropy(net(data[0]), data[1]) + l2 / (2 * len(data[0]))
        for (name, p), g in zip(
            net.named_parameters(),
            torch.autograd.grad(loss, list(net.parameters())),
            strict=True,
        ):
            moved = p - 0.1 * 1.9 * g  # Nesterov's first step is (1 + momentum) times as long
            torch.testing.assert_close(posterior.params[name][k], moved.detach(), **CLOSE)


@pytest.mark.parametrize("method", [Dropout(0.0), DropConnect(0.0)])
def test_a_rate_of_zero_is_the_regular_ensemble(data, method):
    regular, zero = fit(data), fit(data, method=method)
    for name, p in regular.params.items():
        assert torch.equal(zero.params[name], p)
    assert regular.kl() == zero.kl()


@pytest.mark.parametrize(
    "method", ["dropout", "dropconnect", "np-dropout", "gaussian", ["np-dropout", "gaussian"]]
)
def test_every_method_learns_repeats_and_leaves_the_users_randomness_alone(xor, method):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    options = {"method": method, "members": 4, "epochs": 60, "lr": 0.03}
    first, second = fit(xor, **options), fit(xor, **options)
    assert torch.equal(torch.rand(1), expected)
    for name, p in first.params.items():
        assert torch.equal(second.params[name], p)
    assert (first.predict(xor[0]).labels == xor[1]).float().mean() > 0.8
    assert first.history.nll[-1].mean() < first.history.nll[0].mean()


def test_fused_and_vmap_agree_where_the_noise_is_on_weights(data):
    """Both draw the weights' noise from the same stream, so they are the same to rounding."""
    for method in (DropConnect(0.2), NPDropout()):
        vmap, fused = (
            fit(data, method=method, run=stochens.Run(engine=e)) for e in ("vmap", "auto")
        )
        for name, p in vmap.params.items():
            torch.testing.assert_close(fused.params[name], p, **CLOSE)


@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_a_member_that_is_lost_does_not_harm_the_others(data, engine):
    start = init(builder(make_net), members=range(3), seed=0)
    start["0.weight"][1, 0, 0] = float("nan")
    healthy = fit(data, run=stochens.Run(engine=engine))
    said = r"1 of 3 members diverged and are %s \(member 1 at step 0 with loss nan\)"
    with pytest.warns(UserWarning, match=said % "kept as they are"):
        harmed = fit(data, start=start, on_divergence="keep", run=stochens.Run(engine=engine))
    with pytest.warns(UserWarning, match=said % "left out"):
        fewer = fit(data, start=start, run=stochens.Run(engine=engine))  # nothing to try again from
    assert fewer.members == (0, 2)
    for name, p in healthy.params.items():
        torch.testing.assert_close(harmed.params[name][[0, 2]], p[[0, 2]], **CLOSE)
        assert torch.equal(fewer.params[name], harmed.params[name][[0, 2]])
    assert torch.equal(harmed.params["0.weight"][1, 1:], start["0.weight"][1, 1:])  # frozen
    start = {name: p[1:2] for name, p in start.items()}
    with pytest.raises(Failed, match="all 1 members diverged"), pytest.warns(match="1 of 1"):
        fit(data, start=start, members=[1])


class Fragile(nn.Module):
    """Says NaN where its first weight began above a bound: about half of the members do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) / (self.layer.bias[0] < 0).to(x)  # x / 0


def test_lost_members_are_trained_again_from_other_seeds(data):
    options = {"members": 8, "epochs": 1, "lr": 1e-9}
    with pytest.warns(UserWarning, match="of 8 members diverged"):
        kept = fit(data, on_divergence="keep", net=Fragile, **options)
    fine = kept.params["layer.weight"].isfinite().flatten(1).all(1) & (
        kept.params["layer.bias"][:, 0] < 0
    )
    assert 0 < int(fine.sum()) < 8
    with pytest.warns(UserWarning, match=r"are trained again \(member \d at step 0") as again:
        tried = fit(data, net=Fragile, run=stochens.Run(chunk=2), **options)
    with pytest.warns(UserWarning, match="are left out") as left:
        dropped = fit(data, on_divergence="drop", net=Fragile, **options)
    assert {w.filename for w in (*again, *left)} == {__file__}  # the user's line
    assert dropped.members == tuple(fine.nonzero().flatten().tolist())
    assert len(tried) > len(dropped)
    assert bool((tried.params["layer.bias"][:, 0] < 0).all())
    for k, member in enumerate(tried.members):
        if bool(fine[member]):
            assert torch.equal(tried.params["layer.bias"][k], kept.params["layer.bias"][member])
    assert tried.history.loss.isfinite().all()


@pytest.mark.filterwarnings("ignore:.* members diverged")
def test_natural_gradients_are_tried_again_at_a_smaller_rate(data):
    """What rate they bear depends on how parameters go together, which no sigma tells."""
    constant = stochens.Natural(sigma=1e-4, schedule="constant", warmup=0.0)
    options = {"net": Fragile, "members": 8, "epochs": 1}
    for optimizer, lr, rates in (
        (constant, 2e-6, {2e-6, 0.5e-6}),
        (stochens.Optimizer("adam", schedule="constant"), 1e-9, {1e-9}),
    ):
        seen: set[float] = set()
        fit(data, optimizer=optimizer, lr=lr, callbacks=lambda at: seen.add(at.lr), **options)  # noqa: B023
        assert rates <= seen
        assert all(one == 0 or any(one == lr * 4.0**-k for k in range(4)) for one in seen)
        if optimizer is not constant:
            assert seen - {0.0} == rates


@pytest.mark.filterwarnings("ignore:.* members diverged")
def test_the_bar_ends_at_all_of_the_work_where_members_are_trained_again(data):
    told: list[tuple[int, int]] = []
    run = stochens.Run(chunk=2, progress=lambda done, total, _: told.append((done, total)))
    fit(data, net=Fragile, members=8, epochs=1, lr=1e-9, run=run)
    assert all(done <= total for done, total in told)
    done, total = told[-1]
    assert done == total > 8 * math.ceil(len(data[0]) / 25)


def test_a_dataset_is_its_tensors_and_a_loader_gives_its_own_batches(data):
    tensors = fit(data)
    dataset = fit(TensorDataset(*data))
    full = fit(data, batch_size=None)
    loader = fit(DataLoader(TensorDataset(*data), batch_size=len(data[0])))
    for name, p in tensors.params.items():
        torch.testing.assert_close(dataset.params[name], p, **CLOSE)
    for name, p in full.params.items():
        torch.testing.assert_close(loader.params[name], p, **CLOSE)


class Counted(Dataset[Any]):
    def __init__(self, *tensors):
        self.tensors, self.reads = tensors, 0

    def __len__(self):
        return len(self.tensors[0])

    def __getitem__(self, i):
        self.reads += 1
        return tuple(t[i] for t in self.tensors)


def test_a_dataset_is_read_once_and_a_loader_in_every_epoch(xor):
    data = Counted(*xor)
    fit(data, epochs=3)
    assert data.reads == 60
    data, sizes = Counted(*xor), set()

    class Net(MLP):
        def forward(self, x):
            sizes.add(len(x))
            return super().forward(x)

    loader = DataLoader(data, batch_size=20)
    fit(loader, net=lambda: Net(2, 4, 2), epochs=3, batch_size=7, run=stochens.Run(engine="loop"))
    assert data.reads >= 3 * 60
    assert 20 in sizes  # the loader's batches
    assert 7 not in sizes


def test_a_loader_is_checked_batch_by_batch(xor):
    x, y = xor
    late = y.clone()
    late[-1] = 2
    with pytest.raises(InputError, match="label 2 is out of range"):
        fit(DataLoader(TensorDataset(x, late), batch_size=20))
    with pytest.raises(InputError, match="x must be finite"):
        fit(DataLoader(TensorDataset(nan_at(x, 59), y), batch_size=20))


def test_a_float64_tensor_is_told_what_to_do(xor):
    with pytest.raises(InputError, match=r"parameters are torch.float32; use x.float\(\): "):
        fit((xor[0].double(), xor[1]))


def test_start_from_the_prior_and_from_given_parameters(xor):
    prior = fit(xor, members=400, epochs=1, lr=1e-30, start="prior", prior=4.0)
    values = torch.cat([p.flatten() for p in prior.params.values()])
    # sd of the sample sd of n normals is sd / sqrt(2 n); five of those
    assert abs(values.std() - 0.5) < 5 * 0.5 / math.sqrt(2 * len(values))
    again = fit(xor, members=400, epochs=1, lr=1e-30, start=prior.params)
    assert torch.equal(again.params["0.weight"], prior.params["0.weight"])
    with pytest.raises(InputError, match=r"start: parameter '0.weight' must be \(3, 8, 2\)"):
        fit(xor, start=prior.params)


def test_repulsion_keeps_members_apart(xor):
    """Members that start almost together: the force drives them from each other."""
    start = init(builder(make_net), members=[0] * 2, seed=0)
    start = {name: p + 1e-3 * torch.randn_like(p) for name, p in start.items()}
    options = {"members": 2, "start": start, "batch_size": None, "epochs": 30}
    kept, pushed = (
        fit(xor, **options),
        fit(xor, optimizer=stochens.Optimizer(repulsion=0.05), **options),
    )

    def distance(posterior):
        return sum((p[0] - p[1]).square().sum() for p in posterior.params.values())

    assert distance(pushed) > 2 * distance(kept)
    push = stochens.Optimizer(repulsion=0.05)
    with pytest.raises(InputError, match="couples all 2 members"):
        fit(xor, optimizer=push, members=2, run=stochens.Run(chunk=1))


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
@pytest.mark.parametrize("schedule", ["cosine", "step", "constant"])
def test_optimizers_and_schedules_learn(xor, optimizer, schedule):
    posterior = fit(
        xor, optimizer=stochens.Optimizer(optimizer, schedule=schedule), epochs=40, lr=0.05
    )
    assert posterior.history.nll[-1].mean() < 0.9 * posterior.history.nll[0].mean()


def test_history_holds_the_kl_loss(data):
    """Full batch, no noise, a rate that moves nothing: the loss is known."""
    posterior = fit(data, batch_size=None, lr=1e-300, epochs=2, method=Dropout(0.0))
    x, y = data
    for k in range(3):
        net = make_net()
        net.load_state_dict(posterior.member(k))
        nll = F.cross_entropy(net(x), y)
        l2 = 0.5 * sum(p.square().sum() for p in net.parameters())
        expected = (len(x) * nll + l2).float()
        torch.testing.assert_close(posterior.history.loss[-1, k], expected, rtol=1e-5, atol=0)
        assert posterior.history.loss_sd[-1, k] == 0
    noisy = fit(data, batch_size=None, lr=1e-300, epochs=20, method=Dropout(0.4))
    gain = stochens.objective.stochasticity(stochens.objective.mixtures(noisy.net, noisy.params))
    assert gain == pytest.approx(16 * (0.4 * math.log(0.4) + 0.6 * math.log(0.6)))
    l2 = stochens.objective.penalty(noisy.net, noisy.params, 1.0)
    rest = noisy.history.loss - len(x) * noisy.history.nll - (l2 + gain).float()
    assert rest.abs().max() < 1e-3  # float32 history of numbers near 40


def test_regression_learns_the_line_and_its_noise():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 1, generator=generator) * 4 - 2
    y = 2 * x[:, 0] + 1 + 0.3 * torch.randn(400, generator=generator)
    make = lambda outputs: lambda: nn.Linear(1, outputs)  # noqa: E731
    options = {"method": "regular", "members": 3, "epochs": 800, "lr": 0.1, "batch_size": None}
    one = stochens.fit(make(1), (x, y), likelihood="gaussian", **gather(**options))
    two = stochens.fit(make(2), (x, y), likelihood="heteroscedastic", **gather(**options))
    known = stochens.fit(
        make(1), (x, y), likelihood=stochens.Homoscedastic(0.3), **gather(**options)
    )
    at = torch.tensor([[0.0], [1.5]])
    for posterior in (one, two, known):
        p = posterior.predict(at)
        # 400 points of noise 0.3 pin the line to about 0.3 / sqrt(400) = 0.015 at the centre
        torch.testing.assert_close(p.mean[:, 0], torch.tensor([1.0, 4.0]), rtol=0, atol=0.08)
        torch.testing.assert_close(p.std[:, 0], torch.full((2,), 0.3), rtol=0, atol=0.05)
    assert "log_variance" in one.params
    assert "log_variance" not in one.member(0)
    low, high = one.predict(x).interval(0.9)
    inside = ((y[:, None] > low) & (y[:, None] < high)).float().mean()
    assert 0.85 < inside < 0.95


class OwnNoise(nn.Module):
    """A network that learns its noise by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.log_variance = nn.Linear(1, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return torch.cat([self.mean(x), self.log_variance.expand(len(x), 1)], 1)


@pytest.mark.filterwarnings("ignore::stochens.training.advice.TrainingAdvice")
@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_only_a_noise_of_the_likelihood_moves_faster_than_a_weight(optimizer):
    x = torch.linspace(-1, 1, 20).unsqueeze(1)
    one_step = {"epochs": 1, "batch_size": None, "schedule": "constant", "optimizer": optimizer}
    ours = fit((x, x), lambda: nn.Linear(1, 1), likelihood="gaussian", **one_step)
    own = fit((x, x), OwnNoise, likelihood="heteroscedastic", **one_step)
    for posterior, moved in ((ours, 0.1), (own, 0.01)):
        # Adam's first step is the rate, up or down, here from 0; ten times the weights' 0.01
        torch.testing.assert_close(
            posterior.params["log_variance"].abs(), torch.full((3, 1), moved), rtol=1e-4, atol=0
        )


class Branches(nn.Module):
    """In a training each member has rows of its own, so that vmap cannot tell whether to go on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        if bool(x.isnan().any()):
            raise ValueError("x has NaN")
        return self.layer(x)


def test_what_vmap_cannot_run_uses_the_loop_and_says_so(xor):
    options = {"method": "regular", "members": 2, "epochs": 2, "lr": 0.5, "batch_size": 20}
    with pytest.warns(UserWarning, match="members run one after the other"):
        posterior = stochens.fit(Branches, xor, **gather(**options))
    assert posterior.engine == "loop"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stochens.fit(Branches, xor, **gather(engine="loop", **options))


class Classifier(nn.Module):
    """A small transformer: tokens [B, T] to logits [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x)).mean(1))


@pytest.mark.parametrize("method", ["dropout", "np-dropout", "gaussian"])
def test_a_transformer_becomes_an_ensemble(method):
    x = torch.randint(0, 11, (40, 5), generator=torch.Generator().manual_seed(0))
    y = x[:, 0] % 3
    for net in (Classifier, Classifier()):  # a function, and a module with its layers' own resets
        posterior = stochens.fit(net, (x, y), method=method, members=3, epochs=8, lr=0.01)
        assert posterior.predict(x, draws=2).probs.shape == (6, 40, 3)
        assert posterior.history.nll[-1].mean() < posterior.history.nll[0].mean()


def test_progress_and_logging(xor, capsys):
    seen = []
    fit(
        xor,
        progress=True,
        run=stochens.Run(log=lambda epoch, values: seen.append((epoch, values))),
        epochs=3,
    )
    assert [epoch for epoch, _ in seen] == [0, 1, 2]
    assert set(seen[0][1]) == {"loss", "lr"}
    assert "training" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"members": 0}, "members must be at least 1, got 0"),
        ({"members": [1, 1]}, "member ids must be distinct"),
        ({"members": "3"}, "members must be a whole number or a list of them, got '3'"),
        ({"members": [0.5, 1]}, "members must be a whole number or a list of them"),
        ({"seed": 1.7}, "seed must be a whole number, got 1.7"),
        ({"seed": None}, "seed must be a whole number, got None"),
        ({"weight_decay": -1.0}, "weight_decay must not be negative"),
        ({"kl_weight": "1"}, "kl_weight must not be negative, got '1'"),
        ({"prior": "1"}, "prior must be a precision or a stochens.Prior, got '1'"),
        ({"lr": "0.1"}, "lr must be a positive number, got '0.1'"),
        ({"epochs": 0}, "epochs must be a whole number, at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be a whole number, at least 1, got 1.5"),
        ({"batch_size": 0}, "batch_size must be a whole number"),
        ({"chunk": -1}, "chunk must be a whole number"),
        ({"kl_weight": -1.0}, "kl_weight must not be negative"),
        ({"lr": -1.0}, "lr must be a positive number, got -1.0"),
        ({"prior": 0.0}, "prior must be a positive number"),
        ({"method": "dropot"}, "unknown method 'dropot'; did you mean 'dropout'"),
        ({"method": "langevin"}, r"own, not a method of fit: stochens.langevin\(net, data"),
        ({"method": "zebra"}, "unknown method 'zebra'. The methods are regular, .* functions of"),
        ({"schedule": "cosin"}, "unknown schedule 'cosin'; did you mean 'cosine'"),
        ({"optimizer": "adm"}, "unknown optimizer 'adm'; did you mean 'adam'"),
        ({"likelihood": "zebra"}, "unknown likelihood 'zebra'. Known: "),
        ({"engine": "fast"}, "engine must be"),
        ({"start": "zeros"}, "start must be"),
        (
            {"method": stochens.Dropout(skip="haed")},
            "pattern 'haed' matches no layer; the layers are 0, 2, 4",
        ),
        ({"precision": "bf16", "device": "cpu"}, "precision='bf16' is for CUDA"),
        ({"every": -1.0}, "every must not be negative"),
        ({"log": "paper"}, "log must be a function"),
    ],
)
def test_bad_settings_get_one_clear_error(xor, change, message):
    with pytest.raises(InputError, match=message):
        fit(xor, **({"method": "dropout"} | change))


@pytest.mark.parametrize("p", [-0.1, 1.0, 1.5, float("nan"), "0.1"])
def test_drop_rates_outside_their_range(p):
    for make in (Dropout, DropConnect, lambda p: Dropout(rates={"conv*": p})):
        with pytest.raises(InputError, match=r"drop rate.* must be in \[0, 1\), got"):
            make(p)
    with pytest.raises(InputError, match="sigma must be a positive number"):
        Gaussian(-1.0)


def nan_at(x, row):
    x = x.clone()
    x[row, 1] = float("nan")
    return x


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda x, y: (x, y.float()),
            r"labels must be integers, got torch.float32; use y.long\(\)",
        ),
        (lambda x, y: (x, y + 1), "label 2 is out of range: the network has 2 outputs"),
        (lambda x, y: (x, y - 1), "label -1 is out of range"),
        (lambda x, y: (nan_at(x, 7), y), r"x must be finite; x\[7, 1\] is nan"),
        (lambda x, y: (x / 0, y), "x must be finite"),
        (lambda x, y: (x[:-1], y), r"same length, got \(59, 2\) and \(60,\)"),
        (lambda x, y: (x[:0], y[:0]), "x is empty"),
        (lambda x, y: (x, F.one_hot(y)), r"must be \[N\], got \(60, 2\); each row is one-hot"),
        (lambda x, y: (x[:, :1], y), r"the network fails on x \(4, 1\)"),
        (lambda x, y: x, "data must be"),
        (lambda x, y: ("abc", y), r"x holds no numbers \(dtype <U3\): use x.astype\(float\)"),
        (lambda x, y: (x, ["no", "yes"] * 32), "y holds no numbers .* number the classes from 0"),
        (lambda x, y: ([[1.0], [2.0, 3.0]], y), "x cannot be read as a tensor"),
    ],
)
def test_bad_data_gets_one_clear_error(xor, change, message):
    with pytest.raises(InputError, match=message):
        fit(change(*xor))


def test_networks_that_cannot_be_members(xor):
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2))

        def forward(self, x):
            return x * self.scale

    with pytest.raises(InputError, match="parameter 'scale' cannot be initialised again"):
        stochens.fit(Bare(), xor, method="regular")
    options = {"method": "regular", "members": 2, "epochs": 1, "batch_size": 20}
    stochens.fit(Bare, xor, **gather(**options))  # a function is fine
    norm = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(InputError, match=r"'1' is a BatchNorm1d.*freeze_batchnorm.*replace_batch"):
        stochens.fit(norm, xor)
    with pytest.raises(InputError, match=r"must be an nn\.Module or a function"):
        stochens.fit(3, xor)
    no_network: Any = lambda: 3  # noqa: E731
    with pytest.raises(InputError, match=r"must return an nn\.Module, got 3"):
        stochens.fit(no_network, xor)
    with pytest.raises(InputError, match=r"must return logits \[B, C\]"):
        stochens.fit(nn.Sequential(nn.Linear(2, 2), nn.Flatten(0)), xor, method="regular")


@pytest.mark.skipif(
    torch.__version__ < COMPILES_SINCE, reason=f"engine='compile' needs torch {COMPILES_SINCE}"
)
@pytest.mark.parametrize("backend", long_but({"aot_eager"}, ["aot_eager", "inductor"]))
def test_a_compiled_step_is_the_step(float64, xor, monkeypatch, backend):
    # with the first, all but the C++ of it, which takes a compiler seconds
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    # torch keeps compiled graphs on disk and takes one of another ATEN_CPU_CAPABILITY for its own:
    # code with vectors, built without them, does not compile. So nothing is taken from there.
    monkeypatch.setattr("torch._inductor.config.fx_graph_cache", False)
    monkeypatch.setattr("torch._functorch.config.enable_autograd_cache", False)
    data = xor[0].double(), xor[1]
    options = {"method": "regular", "members": 2, "epochs": 2, "batch_size": 30, "lr": 0.01}
    plain = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(engine="vmap", **options))
    compiled = stochens.fit(stochens.MLP(2, 4, 2), data, **gather(engine="compile", **options))
    for name, p in plain.params.items():
        torch.testing.assert_close(compiled.params[name], p, **CLOSE)


@pytest.mark.parametrize("way", [stochens.fit, stochens.sgmcmc, stochens.langevin])
def test_compile_on_an_older_torch_is_one_clear_error(xor, monkeypatch, way):
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.10.0+cpu"))
    said = r"engine='compile' needs torch 2\.11 or newer, this is 2\.10\.0\+cpu"
    with pytest.raises(InputError, match=said):
        way(stochens.MLP(2, 4, 2), xor, run=stochens.Run(engine="compile"))


@pytest.mark.parametrize(("precision", "asked"), [("auto", ["train", "predict"]), ("float32", [])])
def test_the_kernels_of_a_resnet_are_asked_unless_float32_is(monkeypatch, precision, asked):
    said = []
    asks = fusions.RESNET._replace(
        nll=lambda *_: said.append("train"), outputs=lambda *_: said.append("predict")
    )
    monkeypatch.setattr(fusions, "FUSIONS", (asks,))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2))
    data = torch.randn(8, 1, 4, 4), torch.arange(8) % 2
    posterior = stochens.fit(
        net, data, method="regular", members=2, epochs=1, run=stochens.Run(precision=precision)
    )
    posterior.predict(data[0], run=stochens.Run(precision=precision))
    assert said == asked
