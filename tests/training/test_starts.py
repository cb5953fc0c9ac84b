"""Members that begin at a trained network's weights, and members that are one and the same."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import InputError
from stochens.errors import TrainingAdvice
from stochens.training.alike import alike, warn_nearly_alike

NO_STEP = 1e-30  # a rate that moves nothing: members are where they began


def images() -> tuple[Tensor, Tensor]:
    x = torch.randn(24, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    return x, (x.mean((1, 2, 3)) > 0).long()


def trained() -> nn.Module:
    """With weights and statistics that no initialisation gives."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2)
    )
    rate = torch.optim.SGD(net.parameters(), lr=0.1)
    x, y = images()
    for _ in range(5):
        nn.functional.cross_entropy(net(3 * x + 1), y).backward()
        rate.step()
        rate.zero_grad()
    return net.eval()


# -- start="module" --------------------------------------------------------------------------------

METHODS = {"regular": 1, "np-dropout": 1, "dropout": 400}  # draws until the noise has gone


@pytest.mark.filterwarnings("ignore:members .* ended with the same", "ignore:np-dropout gives no")
@pytest.mark.parametrize("method", METHODS)
def test_the_way_that_the_error_recommends_begins_at_the_trained_weights(method: str) -> None:
    net, (x, y) = trained().double(), images()
    x = x.double()
    with pytest.raises(InputError, match=r"freeze_batchnorm\(net\).*start='module'"):
        stochens.fit(net, (x, y), members=2)
    frozen = stochens.freeze_batchnorm(net)
    options: dict[str, Any] = {"method": method, "members": 3, "epochs": 1, "batch_size": 8}
    posterior = stochens.fit(frozen, (x, y), start="module", lr=NO_STEP, **options)
    for name, p in frozen.named_parameters():
        for member in posterior.params[name]:
            assert torch.equal(member, p)
    known = net(x).softmax(-1).detach()
    found = posterior.predict(x, draws=METHODS[method]).mean
    if method == "dropout":  # its mean is near, and not the same: softmax is no linear function
        assert (found - known).abs().mean() < 0.02
    else:
        # a convolution of 9 terms, the norm, a layer of 64 and softmax; both signs cancel
        within = close(torch.float64, terms=64, depth=4, condition=1e3)
        torch.testing.assert_close(found, known, **within)
    assert posterior.net.get_buffer("1.mean").any()  # the statistics are there too
    moved = stochens.fit(frozen, (x, y), start="module", lr=0.01, **options)
    assert not alike(moved.params)


@pytest.mark.parametrize("start", ["reset", "prior"])
def test_trained_statistics_are_not_put_under_new_weights(start: str) -> None:
    frozen = stochens.freeze_batchnorm(trained())
    message = rf"'1' is batch normalisation .* start='{start}' would draw new .*start='module'"
    with pytest.raises(InputError, match=message):
        stochens.fit(frozen, images(), members=2, start=start)
    fresh: Any = stochens.freeze_batchnorm(nn.Sequential(nn.Conv2d(1, 2, 6), nn.BatchNorm2d(2)))
    fresh.append(nn.Flatten())
    assert (
        len(stochens.fit(fresh, images(), members=2, epochs=1, start=start, method="regular")) == 2
    )


@pytest.mark.filterwarnings("ignore:members .* ended with the same")
def test_what_cannot_be_reset_begins_as_it_is(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    net, data = Own(), (torch.randn(20, 2), torch.arange(20) % 2)
    options: dict[str, Any] = {"method": "regular", "members": 2, "epochs": 1, "batch_size": 5}
    posterior = stochens.fit(net, data, start="module", lr=NO_STEP, **options)
    assert torch.equal(posterior.params["weight"], net.weight.detach().expand(2, 2, 2))
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", net)
    assert torch.equal(again.predict(data[0]).mean, posterior.predict(data[0]).mean)
    with pytest.raises(InputError, match="start='module' needs a module, got a function"):
        stochens.fit(Own, data, start="module", **options)
    with pytest.raises(InputError, match="must be 'reset', 'prior', 'module', or weights"):
        stochens.fit(net.__class__, data, start="modul", **options)


def test_a_learned_noise_begins_beside_the_modules_weights() -> None:
    net, x = nn.Linear(2, 1), torch.randn(20, 2)
    posterior = stochens.fit(
        net,
        (x, x[:, 0]),
        likelihood="gaussian",
        start="module",
        method="regular",
        members=2,
        epochs=1,
        batch_size=5,
        lr=NO_STEP,
    )
    assert torch.equal(posterior.params["weight"][1], net.weight.detach())
    assert "log_variance" in posterior.params
    assert not hasattr(net, "log_variance")  # the user's own is left alone


# -- members that are one network ------------------------------------------------------------------


def loader(data: tuple[Tensor, Tensor]) -> Any:
    return DataLoader(TensorDataset(*data), batch_size=8, shuffle=True)


class Noisy(nn.Module):
    """Noise of the network's own, in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x + torch.randn_like(x) if self.training else x)


X = torch.randn(24, 2, generator=torch.Generator().manual_seed(1))
DATA = X, (X[:, 0] > 0).long()
ALIKE = r"members 0, 1(, 2)? begin with the same parameters, see the same rows .*method='dropout'"


def fit(net: Any, data: Any = DATA, **options: Any) -> stochens.Posterior:
    own: dict[str, Any] = {"members": 3, "epochs": 2, "method": "regular", "lr": 0.1, **options}
    return stochens.fit(net, data, **own)


@pytest.mark.parametrize("way", ["copies", "module", "params"])
@pytest.mark.parametrize(
    "options",
    [
        {"data": loader(DATA)},
        {"batch_size": None},
        {"batch_size": 24},
        {"optimizer": stochens.Optimizer(repulsion=0.1)},
    ],
    ids=["loader", "all-rows", "as-many-rows", "repulsion"],
)
def test_members_that_would_stay_alike_are_refused(way: str, options: dict[str, Any]) -> None:
    net = stochens.MLP(2, 4, 2)
    same = {name: p.detach().expand(3, *p.shape).clone() for name, p in net.named_parameters()}
    start: Any = {"copies": "reset", "module": "module", "params": same}[way]
    given = (lambda: copy.deepcopy(net)) if way == "copies" else net
    with pytest.raises(InputError, match=ALIKE):
        fit(given, **{"batch_size": None, "start": start, **options})


@pytest.mark.parametrize(
    ("net", "options"),
    [
        (stochens.MLP(2, 4, 2), {"batch_size": 8}),  # an order of each member's own
        (stochens.MLP(2, 4, 2), {"batch_size": None, "method": "dropconnect"}),
        (stochens.MLP(2, 4, 2), {"data": loader(DATA), "method": "np-dropout"}),
        (Noisy(), {"batch_size": None}),
        (stochens.MLP(2, 4, 2), {"batch_size": None, "members": 1}),
    ],
)
def test_what_sets_members_apart_is_let_pass(net: nn.Module, options: dict[str, Any]) -> None:
    posterior = fit(lambda: copy.deepcopy(net), **options)
    assert not alike(posterior.params)


def test_members_of_several_data_sets_are_apart_by_their_set() -> None:
    net = stochens.MLP(2, 4, 2)
    sets = stochens.Replicas([DATA, (-X, DATA[1])])
    options: dict[str, Any] = {"start": "module", "batch_size": None}
    assert not alike(fit(net, sets, members=2, **options).params)
    with pytest.raises(InputError, match="members 0, 2 begin with the same parameters"):
        fit(net, sets, members=4, **options)


def test_auto_passes_over_the_method_that_leaves_them_alike(tmp_path: Path) -> None:
    net = stochens.MLP(2, 4, 2)
    auto = stochens.Auto(candidates=["regular", "dropout"], members=2, epochs=1)
    options: dict[str, Any] = {"method": auto, "batch_size": None, "start": "module"}
    posterior = fit(net, run=stochens.Run(checkpoint=tmp_path), **options)
    assert posterior.recipe.methods[0].name == "dropout"
    with pytest.raises(InputError, match="begun"):  # trials of other weights are not gone on with
        fit(stochens.MLP(2, 4, 2), run=stochens.Run(checkpoint=tmp_path), **options)


def test_members_that_end_alike_are_named() -> None:
    net = stochens.MLP(2, 4, 2)
    with pytest.warns(UserWarning, match="members 0, 1, 2 ended with the same parameters"):
        fit(net, start="module", batch_size=8, lr=NO_STEP)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lr": 1e-7}, True),
        ({"lr": 0.01}, False),
        ({"lr": 1e-7, "method": "dropout"}, False),
        ({"lr": 1e-7, "start": stochens.Start("module", jitter=0.05)}, False),
        ({"lr": 1e-7, "start": "reset"}, False),
        ({"lr": 1e-7, "method": stochens.LoRA(2), "start": "reset"}, True),
        ({"lr": 1e-7, "method": ["regular", stochens.LoRA(2)], "start": "reset"}, True),
        ({"lr": 1e-7, "optimizer": stochens.Natural(), "start": "module"}, False),
    ],
)
def test_members_that_end_nearly_alike_are_told_of(options: Any, said: bool) -> None:
    """A few small steps from one start: the last bits differ, and no prediction does."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(stochens.MLP(2, 4, 4, 2), **{"start": "module", "batch_size": 8, **options})
    found = [w for w in caught if "members are nearly one network" in str(w.message)]
    assert len(found) == said
    assert all(w.filename == __file__ for w in found)


def test_members_are_compared_with_those_of_their_data_set() -> None:
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    net, ids = nn.Linear(2, 2), (0, 1, 2, 3)
    params = {n: torch.stack([p.detach(), -p.detach()] * 2) for n, p in net.named_parameters()}
    params["bias"][2:] += 1e-6
    with pytest.warns(TrainingAdvice, match="nearly one network"):
        warn_nearly_alike(net, params, x, ids, sets=2, engine="vmap")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_nearly_alike(net, params, x, ids, sets=1, engine="vmap")
        warn_nearly_alike(net, params, x, ids, sets=4, engine="vmap")  # one of each


def test_alike_looks_at_every_number() -> None:
    p = torch.zeros(5, 2, 400)
    p[1, 1, 399], p[3, 0, 0] = 1e-30, 2
    assert alike({"w": p}) == [[0, 2, 4]]
    q = torch.zeros(5, 3)
    q[4] = 1
    assert alike({"w": p, "v": q}) == [[0, 2]]
    assert alike({"w": p, "v": torch.arange(5.0)}) == []
