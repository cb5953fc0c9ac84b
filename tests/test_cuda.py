"""The same on a GPU as on the CPU. Skipped where there is none."""

import pytest
import torch
from tests.methods.test_conformance import NETWORKS, inputs_of
from tests.running import gather
from tests.test_casts import BF16, CASES, LAYERS
from tests.tolerance import trained
from torch import nn

import stochens
from stochens import FRN, MLP, DropConnect, Dropout, Gaussian, NPDropout
from stochens.kernels import conv, resnet
from stochens.kernels.noise import words
from stochens.networks import ResNet20FRN
from stochens.randomness.noise import hashed_words
from stochens.randomness.seeds import permutations

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

METHODS = ["regular", "dropout", "dropconnect", "np-dropout", [NPDropout(), Gaussian(learn=True)]]


def images() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, (x.mean((1, 2, 3)) > 0).long()


def convnet() -> nn.Module:
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 64, 2))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), FRN(4), nn.SiLU(), head)


def test_members_are_those_of_the_cpu(float64, xor):
    data = xor[0].double(), xor[1]
    options = {"method": "regular", "members": 4, "epochs": 5, "batch_size": 20, "lr": 0.01}
    options["optimizer"] = "sgd"
    cpu, gpu = (
        stochens.fit(MLP(2, 8, 2), data, device=d, **gather(**options)) for d in ("cpu", "cuda")
    )
    # by SGD: Adam divides by gradients, and makes much of the rounding of one that cancels
    within = trained(torch.float64, steps=15, rows=20)
    # a graph's learning rate is float32: a factor of 1 + d, |d| <= 2^-24, of all that is moved, at
    # most 15 steps of .01 times a gradient, whose inputs and outputs' errors are below 4
    within["atol"] += 15 * 0.01 * 4 * 2.0**-24
    for name, value in cpu.params.items():
        torch.testing.assert_close(gpu.params[name].cpu(), value, **within)
    p, q = cpu.predict(data[0]), gpu.predict(data[0])
    torch.testing.assert_close(p.probs, q.probs, **within)


def test_a_network_that_lives_on_the_gpu_is_fine():
    x, y = images()
    for net in (convnet().cuda(), lambda: convnet().cuda()):
        posterior = stochens.fit(net, (x.cuda(), y), method="dropout", members=2, epochs=1)
        assert next(iter(posterior.params.values())).is_cuda
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)).cuda()  # noqa: E731
    target = x.mean((1, 2, 3)).cuda()
    known = stochens.fit(
        make, (x.cuda(), target), method="regular", likelihood="gaussian", members=2, epochs=1
    )
    assert known.predict(x.cuda()).std.shape == (96, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("precision", ["float32", "tf32", "bf16"])
def test_every_method_trains_predicts_and_saves(method, precision, tmp_path):
    x, y = images()
    posterior = stochens.fit(
        convnet,
        (x, y),
        method=method,
        members=3,
        epochs=30,
        batch_size=32,
        lr=0.01,
        run=stochens.Run(precision=precision),
    )
    assert posterior.history.nll[-1].mean() < 0.9 * posterior.history.nll[0].mean()
    p = posterior.predict(x, draws=2, seed=1)
    assert torch.equal(p.probs, posterior.predict(x, draws=2, seed=1).probs)
    assert posterior.kl().total == pytest.approx(posterior.to("cpu").kl().total, rel=1e-9)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", convnet)
    assert again.predict(x).mean.shape == (96, 2)
    assert next(iter(again.params.values())).device.type == "cpu"


def in_bf16(name, **options):
    """A network that autocast and vmap once disagreed on, trained and predicted in bfloat16."""
    own = torch.randn(4, 3, 6, generator=torch.Generator().manual_seed(0))
    x = inputs_of(NETWORKS[name]) if name in NETWORKS else own
    x = torch.cat([x, x.flip(0)])
    options = {"members": 2, "epochs": 2, "batch_size": 4, "device": "cuda", **options}
    posterior = stochens.fit(
        CASES[name], (x, torch.arange(8) % 2), **gather(precision="bf16", **options)
    )
    assert all(p.isfinite().all() and p.dtype == torch.float32 for p in posterior.params.values())
    return posterior, x


@pytest.mark.filterwarnings("ignore::UserWarning")  # of few steps, and of vmap's own slow rules
@pytest.mark.parametrize("engine", ["auto", "vmap", "loop"])
@pytest.mark.parametrize("name", CASES)
def test_every_network_trains_in_bf16(name, engine):
    posterior, x = in_bf16(name, method="regular", engine=engine)
    assert posterior.engine == ("loop" if engine == "loop" else "vmap")
    narrow, wide = (
        posterior.predict(x, run=stochens.Run(precision=p)) for p in ("bf16", "float32")
    )
    # a logit's rounding, a few times over; probabilities move by a quarter of it at most
    torch.testing.assert_close(narrow.mean, wide.mean, rtol=0, atol=LAYERS * BF16)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", [*METHODS, "gaussian"])
@pytest.mark.parametrize("name", ["transformer", "attention-without-weights", "frozen-layer-norm"])
def test_every_method_trains_attention_in_bf16(name, method, caplog):
    posterior, x = in_bf16(name, method=method)
    assert posterior.predict(x, draws=2, run=stochens.Run(precision="bf16")).mean.isfinite().all()
    assert "without a CUDA graph" not in caplog.text


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["transformer", "sdpa"])
def test_attention_is_compiled_in_bf16(name):
    posterior, _ = in_bf16(name, method="regular", engine="compile")
    plain, _ = in_bf16(name, method="regular", engine="vmap")
    nll, known = posterior.history.nll, plain.history.nll
    torch.testing.assert_close(nll, known, rtol=LAYERS * BF16, atol=0)  # a logit's rounding
    for part, p in plain.params.items():
        # Adam moves each weight by its rate at most, whatever the rounding of its gradient
        torch.testing.assert_close(posterior.params[part], p, rtol=0, atol=2 * 4 * 1e-3)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ["transformer", "layer-norm"])
def test_samplers_run_in_bf16(name):
    x = inputs_of(NETWORKS[name])
    data, options = (
        (x, torch.arange(4) % 2),
        {"precision": "bf16", "device": "cuda", "batch_size": 2},
    )
    for posterior in (
        stochens.langevin(CASES[name], data, members=2, steps=4, **gather(**options)),
        stochens.sgmcmc(CASES[name], data, chains=2, samples=2, burn_in=2, **gather(**options)),
    ):
        assert posterior.predict(x, run=stochens.Run(precision="bf16")).mean.isfinite().all()


def test_memory_is_shared_out_by_what_is_free():
    x, y = images()
    posterior = stochens.fit(
        convnet, (x, y), method=Dropout(0.1), members=5, epochs=1, run=stochens.Run(chunk=2)
    )
    assert len(posterior) == 5
    swag = stochens.multiswag(convnet, (x, y), members=2, epochs=30, snapshots=4, rank=3)
    assert swag.predict(x, draws=2).probs.shape == (4, 96, 2)


@pytest.mark.parametrize("shape", [(1,), (7, 3), (2, 0), (100_001,)])
def test_random_words_are_those_of_the_cpu(shape):
    ids, seed = torch.tensor([4, 0, 9]), torch.tensor([2**62 + 5])
    want = hashed_words(ids, seed, 3, shape)
    on = (ids.cuda(), seed.cuda(), 3, shape)
    assert torch.equal(words(*on).cpu(), want)
    assert torch.equal(hashed_words(*on).cpu(), want)


@pytest.mark.parametrize("engine", ["auto", "vmap"])
@pytest.mark.parametrize("method", [*METHODS, "gaussian"])
def test_members_are_the_same_in_blocks_of_any_size(method, engine, float64):
    x, y = images()
    options = {"members": 4, "epochs": 3, "batch_size": 20, "lr": 0.01, "device": "cuda"}
    options |= {"method": method, "engine": engine}
    whole = stochens.fit(convnet, (x.double(), y), **gather(**options))
    for chunk in (2, 1):
        parted = stochens.fit(convnet, (x.double(), y), **gather(chunk=chunk, **options))
        for name, p in whole.params.items():
            # float64 rounding over 15 steps of Adam, which divides by small numbers
            torch.testing.assert_close(parted.params[name], p, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("method", [*METHODS, "gaussian"])
@pytest.mark.parametrize("batch_size", [None, 20])  # of 96: the last batch is another graph
@pytest.mark.parametrize("optimizer", ["adam", "sgd", "natural"])
def test_a_graph_of_the_step_is_the_step(method, batch_size, optimizer, caplog, float64):
    x, y = images()
    x = x.double()
    options = {"members": 3, "epochs": 6, "batch_size": batch_size, "lr": 0.01, "device": "cuda"}
    options |= {"method": method, "optimizer": optimizer}
    if optimizer != "natural":
        options["schedule"] = "step"
    elif method == "gaussian" or isinstance(method, list):
        pytest.skip("natural gradients have Gaussians of their own")
    plain = stochens.fit(convnet, (x, y), **gather(engine="vmap", **options))
    graph = stochens.fit(convnet, (x, y), **gather(**options))
    for name, p in plain.params.items():
        # the same random numbers; float64 rounding over 30 steps of Adam
        torch.testing.assert_close(graph.params[name], p, rtol=1e-6, atol=1e-7)
    for part, same in zip(graph.low_rank or (), plain.low_rank or (), strict=True):
        for name, v in same.items():
            torch.testing.assert_close(part[name], v, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(graph.history.loss, plain.history.loss, rtol=1e-6, atol=1e-6)
    assert "without a CUDA graph" not in caplog.text


@pytest.mark.parametrize(
    "how",
    [
        {"clip": 0.05},
        {"accumulate": 2},
        {"optimizer": stochens.Optimizer(warmup=0.3)},
        {"validation": stochens.Validation(0.25, patience=1)},
        {"callbacks": lambda view: view.predict(view_rows())},
    ],
    ids=lambda how: next(iter(how)),
)
def test_a_graph_serves_what_steers_the_training(how, caplog, float64):
    x, y = images()
    x = x.double()
    options = {"members": 3, "epochs": 6, "batch_size": 20, "lr": 0.01, "device": "cuda", **how}
    plain = stochens.fit(convnet, (x, y), **gather(engine="vmap", **options))
    graph = stochens.fit(convnet, (x, y), **gather(**options))
    for name, p in plain.params.items():
        # the same random numbers; float64 rounding over 30 steps of Adam
        torch.testing.assert_close(graph.params[name], p, rtol=1e-6, atol=1e-7)
    assert torch.equal(graph.history.kept, plain.history.kept)
    assert "without a CUDA graph" not in caplog.text


def view_rows():
    return images()[0][:8].double()


def test_a_graph_keeps_the_rate_of_a_learned_noise(caplog):
    x = torch.linspace(-1, 1, 60).unsqueeze(1)
    options = {"members": 3, "epochs": 20, "batch_size": 20, "lr": 0.01, "device": "cuda"}
    options |= {"method": "regular", "likelihood": "gaussian"}
    plain, graph = (
        stochens.fit(stochens.MLP(1, 8, 1), (x, x), **gather(engine=engine, **options))
        for engine in ("vmap", "auto")
    )
    noise = [posterior.params["log_variance"] for posterior in (graph, plain)]
    torch.testing.assert_close(*noise, rtol=1e-3, atol=1e-4)  # sums may be in another order
    assert plain.params["log_variance"].max() < -0.5  # a weight's rate brings it to -0.3 at most
    assert "without a CUDA graph" not in caplog.text


def test_what_no_graph_can_hold_is_trained_without_one(caplog):
    class Asks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.seen = torch.zeros(1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) + self.seen.to(x.device)  # waits for a copy from the CPU

    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0] > 0).long()
    options = {"members": 3, "epochs": 3, "batch_size": 20, "method": "regular"}
    with caplog.at_level("INFO", logger="stochens"):
        posterior = stochens.fit(Asks, data, **gather(**options))
    assert "without a CUDA graph" in caplog.text
    plain = stochens.fit(Asks, data, **gather(engine="vmap", **options))
    for name, p in plain.params.items():
        torch.testing.assert_close(posterior.params[name], p, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not conv.available(), reason="no Hopper GPU here")
@pytest.mark.parametrize(
    "method", ["regular", Dropout(0.2), DropConnect(0.05), NPDropout(node="channel")]
)
def test_a_resnet_runs_by_its_kernels_unless_they_are_off(method, monkeypatch, caplog):
    calls, run = [], resnet.run

    def counted(*args, **options):
        calls.append(len(args))
        return run(*args, **options)

    monkeypatch.setattr(resnet, "run", counted)
    x = torch.randn(64, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = x, (x[:, 0].mean((1, 2)) > 0).long()
    # of 64: the last batch is another graph; at so small a rate the start decides the loss
    options = {"members": 3, "epochs": 2, "batch_size": 24, "lr": 1e-4, "optimizer": "sgd"}
    options |= {"method": method, "device": "cuda"}
    found = []
    for switch, precision in (("", "auto"), ("off", "bf16"), ("", "float32")):
        monkeypatch.setenv("STOCHENS_KERNELS", switch)
        calls.clear()
        posterior = stochens.fit(
            lambda: ResNet20FRN(classes=2), data, **gather(precision=precision, **options)
        )
        trained = len(calls)
        found.append(
            (
                posterior.history.nll.mean(),
                posterior.predict(x, run=stochens.Run(precision=precision)).mean,
            )
        )
        assert (trained > 0) is (len(calls) > trained) is (precision == "auto")
    assert "without a CUDA graph" not in caplog.text
    (loss, probs), *others = found
    assert loss.isfinite()
    for plain_loss, plain_probs in others:  # the same draws: only bf16 is between them
        torch.testing.assert_close(loss, plain_loss, rtol=0.05, atol=0)
        if method == "regular":  # a threshold of FRN turns rounding into another draw's output
            torch.testing.assert_close(probs, plain_probs, rtol=0, atol=0.05)


def test_orders_are_those_of_the_cpu():
    for n in (1, 7, 1000):
        cpu, gpu = (
            permutations(n, seed=3, members=[4, 900], epoch=2, device=d) for d in ("cpu", "cuda")
        )
        assert torch.equal(gpu.cpu(), cpu)


# Samplers -----------------------------------------------------------------------------------------

CHAINS = {
    "relu": (MLP(2, 6, 6, 2), "categorical"),
    "tanh, no bias": (
        nn.Sequential(nn.Linear(2, 5, bias=False), nn.Tanh(), nn.Linear(5, 1)),
        stochens.Homoscedastic(noise=0.3),
    ),
    "silu": (nn.Sequential(nn.Linear(2, 5), nn.SiLU(), nn.Linear(5, 2)), "heteroscedastic"),
    "linear": (nn.Linear(2, 3), "categorical"),
}


@pytest.mark.parametrize("sampler", [stochens.nuts, stochens.hmc])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_those_of_the_cpu_whoever_runs_them(sampler, name):
    net, likelihood = CHAINS[name]
    x = torch.randn(201, 2, generator=torch.Generator().manual_seed(0)).double()
    y = (x[:, 0] > 0).long() if likelihood == "categorical" else x[:, 0].sin()
    # short trajectories: long ones make of the last bit another path
    short = {"max_depth": 4} if sampler is stochens.nuts else {"trajectory": 0.1}
    options = {"likelihood": likelihood, "samples": 4, "warmup": 4, "precision": "float64", **short}
    cpu = sampler(net, (x, y), device="cpu", **gather(engine="vmap", **options))
    for engine in ("fused", "vmap", "loop"):
        gpu = sampler(net, (x, y), device="cuda", **gather(engine=engine, **options))
        assert torch.equal(gpu.chains.stats["leapfrogs"], cpu.chains.stats["leapfrogs"])
        for part, p in cpu.params.items():
            # float64 rounding, which eight trajectories make larger
            torch.testing.assert_close(gpu.params[part].cpu(), p, rtol=1e-6, atol=1e-8)


def test_a_run_may_change_its_engine_and_device(xor):
    x = xor[0].double()
    options = {"warmup": 60, "precision": "float64", "chains": 3}
    whole = stochens.nuts(MLP(2, 3, 2), (x, xor[1]), samples=6, device="cpu", **gather(**options))
    half = stochens.nuts(MLP(2, 3, 2), (x, xor[1]), samples=3, device="cpu", **gather(**options))
    rest = stochens.nuts(
        MLP(2, 3, 2), (x, xor[1]), samples=6, device="cuda", resume=half, **gather(**options)
    )
    for name, p in whole.params.items():
        torch.testing.assert_close(rest.params[name].cpu(), p, rtol=1e-5, atol=1e-7)


def test_a_convolutional_network_is_sampled_by_a_graph():
    x, y = images()
    posterior = stochens.hmc(convnet, (x, y), chains=3, samples=10, warmup=20, trajectory=0.2)
    assert posterior.predict(x).probs.shape == (30, 96, 2)
    assert posterior.chains.stats["accept"].mean() > 0.4
    small = stochens.nuts(convnet, (x, y), chains=2, samples=3, warmup=3, max_depth=4)
    assert small.predict(x).mean.isfinite().all()


@pytest.mark.parametrize("kind", ["sgld", "sghmc", "csghmc"])
def test_sgmcmc_is_that_of_the_cpu(kind, xor, caplog):
    options = {"kind": kind, "samples": 8, "burn_in": 5, "thin": 2, "batch_size": 20}
    data = xor[0].double(), xor[1]
    cpu, gpu = (
        stochens.sgmcmc(MLP(2, 6, 2), data, device=d, **gather(precision="float64", **options))
        for d in ("cpu", "cuda")
    )
    for name, p in cpu.params.items():
        torch.testing.assert_close(gpu.params[name].cpu(), p, rtol=1e-7, atol=1e-9)
    assert "without a CUDA graph" not in caplog.text
