"""`Optimizer(warmup=, clip=, accumulate=)`, against plain loops in float64."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import gather
from tests.tolerance import close, trained
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, InputError, Optimizer
from stochens.posterior.history import Recorder
from stochens.program import choice
from stochens.training.schedules import SCHEDULES
from stochens.training.step import EagerStep, Loss, Passes, clip_members


def points(n: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0] * x[:, 1] > 0).long()


def assert_same(one: stochens.Posterior, other: stochens.Posterior, within: dict[str, Any]) -> None:
    for name, p in other.params.items():
        torch.testing.assert_close(one.params[name], p, **within)


# -- warmup ---------------------------------------------------------------------------------------


def test_the_rate_grows_over_the_first_share() -> None:
    rates: list[float] = []
    options = {"members": 1, "epochs": 20, "batch_size": None, "lr": 0.4}
    stochens.fit(
        MLP(2, 3, 2),
        stochens.toy_set("a", n=20),
        optimizer=Optimizer(warmup=0.25),
        callbacks=lambda view: rates.append(view.lr),
        **options,
    )
    cosine = [0.4 * SCHEDULES["cosine"](k / 20) for k in range(20)]
    expected = [rate * min(1.0, k / 5) for k, rate in enumerate(cosine)]
    assert rates == pytest.approx(expected)


# -- clip -----------------------------------------------------------------------------------------


def test_each_member_has_its_own_norm() -> None:
    generator = torch.Generator().manual_seed(0)
    params = {n: torch.zeros(3, *s, dtype=torch.float64) for n, s in (("w", (2, 4)), ("b", (2,)))}
    size = torch.tensor([0.01, 1.0, 30.0], dtype=torch.float64)
    for p in params.values():
        p.requires_grad_()
        g = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        p.grad = g * size.view(-1, *[1] * (p.dim() - 1))
    stacked: list[Any] = [p.grad for p in params.values()]
    alone = [[g[k].clone() for g in stacked] for k in range(3)]
    clip_members(params, 0.5)
    for k, gradients in enumerate(alone):
        own = [torch.zeros_like(g).requires_grad_() for g in gradients]
        for p, g in zip(own, gradients, strict=True):
            p.grad = g
        nn.utils.clip_grad_norm_(own, 0.5)
        for p, g in zip(own, stacked, strict=True):
            torch.testing.assert_close(g[k], p.grad, **close(torch.float64, terms=10))


def test_a_gradient_that_is_no_number_stays_its_members_own() -> None:
    w = torch.zeros(2, 2, requires_grad=True)
    w.grad = torch.tensor([[float("nan"), 1.0], [3.0, 4.0]])
    clip_members({"w": w}, 1.0)
    torch.testing.assert_close(w.grad[1], torch.tensor([0.6, 0.8]))


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_clipped_steps_are_those_of_a_plain_loop(name: str) -> None:
    """Of each member alone, on mean NLL + lambda |theta|^2 / 2 N; the last batch is short, and its
    step is worth its share."""
    x, y = points(20)
    torch.manual_seed(0)
    nets = [MLP(2, 4, 2).double() for _ in range(2)]
    rate, most, precision, rows = 0.05, 0.1, 3.0, 12
    posterior = stochens.fit(
        nets[0],
        DataLoader(TensorDataset(x, y), batch_size=rows),  # in one order
        method="regular",
        members=2,
        epochs=4,
        lr=rate,
        prior=precision,
        start=[net.state_dict() for net in nets],
        optimizer=Optimizer(name, schedule="constant", clip=most),
    )
    clipped = 0
    for k, net in enumerate(copy.deepcopy(nets)):
        own: list[Any] = list(net.parameters())
        kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}
        more = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
        optimizer: Any = kinds[name](own, lr=rate, **more)
        for _ in range(4):
            for part in (slice(0, 12), slice(12, 20)):
                share = len(x[part]) / rows
                squares = torch.stack([p.square().sum() for p in own]).sum()
                loss = F.cross_entropy(net(x[part]), y[part]) + precision * squares / (2 * 20)
                optimizer.zero_grad()
                loss.backward()
                clipped += int(nn.utils.clip_grad_norm_(own, most) > most)
                for p in own:
                    p.grad *= share
                optimizer.step()
        for path, p in net.named_parameters():
            within = trained(torch.float64, steps=8, rows=12)
            torch.testing.assert_close(posterior.params[path][k], p.detach(), **within)
    assert clipped > 8, "the test needs gradients that are too long"


# -- accumulate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("rows", [48, 50, 20])  # whole steps, a short one, fewer than a step
def test_several_batches_are_one_large_one(rows: int, clip: float | None) -> None:
    options = {"method": "regular", "members": 3, "epochs": 4, "lr": 0.05, "clip": clip}
    data = points(rows)
    parts, whole = (
        stochens.fit(lambda: MLP(2, 4, 2).double(), data, **gather(**how, **options))
        for how in ({"batch_size": 8, "accumulate": 3}, {"batch_size": 24})
    )
    assert_same(parts, whole, trained(torch.float64, steps=12, rows=24))
    torch.testing.assert_close(parts.history.loss, whole.history.loss)
    torch.testing.assert_close(parts.history.nll, whole.history.nll)


@pytest.mark.parametrize("method", ["gaussian", stochens.Gaussian(0.1, learn=True)])
def test_the_prior_counts_once(method: Any) -> None:
    """Of sigmas that are learned it is part of the loss of each pass. All rows are the same and the
    network has no inputs that count, so that noise on its weights changes nothing."""
    x, y = torch.zeros(24, 2).double(), torch.zeros(24, dtype=torch.long)
    net = nn.Linear(2, 2, bias=False).double()
    options = {"method": method, "members": 2, "epochs": 5, "lr": 0.05, "prior": 5.0}
    parts, whole = (
        stochens.fit(net, (x, y), **gather(**how, **options))
        for how in ({"batch_size": 4, "accumulate": 3}, {"batch_size": 12})
    )
    assert_same(parts, whole, trained(torch.float64, steps=10, rows=12))


def test_batches_of_a_loader() -> None:
    data = TensorDataset(*points(50))
    options = {"method": "regular", "members": 2, "epochs": 3, "lr": 0.05}
    parts, whole = (
        stochens.fit(
            lambda: MLP(2, 4, 2).double(),
            DataLoader(data, batch_size=rows),
            **gather(**options, accumulate=accumulate),
        )
        for rows, accumulate in ((8, 3), (24, 1))
    )
    assert_same(parts, whole, trained(torch.float64, steps=9, rows=24))


def test_members_in_turns_keep_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients of the next pass may not take the memory of those that they are added to."""
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr(choice, "TURNS_FROM", 0.0)
    x = torch.randn(24, 1, 5, 5, generator=torch.Generator().manual_seed(0)).double()
    y = (x.mean((1, 2, 3)) > 0).long()

    def net() -> nn.Module:
        layers = nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)
        return nn.Sequential(*layers).double()

    options = {"method": "regular", "members": 2, "epochs": 3, "lr": 0.05}
    parts, whole = (
        stochens.fit(net, (x, y), **gather(**how, **options))
        for how in ({"batch_size": 4, "accumulate": 3}, {"batch_size": 12})
    )
    assert_same(parts, whole, trained(torch.float64, steps=6, rows=27))


def test_each_pass_has_noise_of_its_own() -> None:
    numbers: list[Any] = []
    w = torch.zeros(1, 2, requires_grad=True)

    def loss_of(params: Any, batch: Any, number: Any) -> Loss:
        numbers.append(number)
        loss = params["w"].sum(1)
        return Loss(loss, loss, loss)

    step = EagerStep(
        {"w": w},
        loss_of,
        torch.optim.SGD([{"params": [w], "factor": 1.0, "l2": 0.0}], lr=0.1),
        Recorder(1, torch.device("cpu")),
        lambda batch: 1.0,
        passes=Passes(4, 3),
    )
    for number in range(2):
        step(torch.zeros(1, 12, dtype=torch.int64), number, rate=0.1)
    step(torch.zeros(1, 7, dtype=torch.int64), 2, rate=0.1)
    assert numbers == list(range(8))


# -- all of them ----------------------------------------------------------------------------------


def test_a_checkpoint_knows_them(tmp_path: Path) -> None:
    options = {"members": 2, "epochs": 1, "checkpoint": tmp_path / "run"}
    net, data = MLP(2, 3, 2), stochens.toy_set("a", n=20)
    stochens.fit(net, data, **gather(**options))
    for change in (
        {"clip": 1.0},
        {"optimizer": Optimizer(warmup=0.1)},
        {"accumulate": 2},
    ):
        with pytest.raises(InputError, match="is of another run: steps was None there"):
            stochens.fit(net, data, **gather(**options, **change))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clip": 0.0}, "clip must be a positive number, got 0.0"),
        ({"warmup": 1.0}, r"warmup must be a share in \[0, 1\), got 1.0"),
        ({"warmup": "0.1"}, r"warmup must be a share in \[0, 1\), got '0.1'"),
        ({"accumulate": 0}, "accumulate must be a whole number, at least 1, got 0"),
    ],
)
def test_what_is_out_of_range_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Optimizer(**options)
