"""Members that begin where they are told: weights of networks, a posterior's, a step aside; and
members that have a resample of the data each."""

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import InputError
from stochens.data import Source, source
from stochens.randomness.seeds import JITTER, derive
from stochens.training.alike import alike
from stochens.training.bootstrap import bootstrap_rows, resampled
from stochens.training.starts import jittered

NO_STEP = 1e-30
NOTHING = 1e-20  # where such a step leads from 0
X = torch.randn(24, 3, generator=torch.Generator().manual_seed(0))
DATA = X, (X[:, 0] > 0).long()
pytestmark = pytest.mark.filterwarnings(
    "ignore:members .* ended with the same", "ignore:members are nearly one network"
)


def small(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def fit(net: Any, data: Any = DATA, **options: Any) -> stochens.Posterior:
    own: dict[str, Any] = {"members": 3, "epochs": 1, "method": "regular", "batch_size": 8}
    return stochens.fit(net, data, **{**own, "lr": NO_STEP, **options})


# -- weights that are given ------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["module", "state dict"])
@pytest.mark.parametrize("method", ["regular", "dropout", "np-dropout", "gaussian"])
@pytest.mark.filterwarnings("ignore:np-dropout gives no")
def test_all_members_begin_at_one_network(given: str, method: str) -> None:
    trained = small(5)
    start = trained if given == "module" else trained.state_dict()
    for net in (small(1), lambda: small(1)):
        posterior = fit(net, start=start, method=method)
        for name, t in trained.state_dict().items():
            for member in posterior.params[name]:
                assert torch.equal(member, t)


@pytest.mark.parametrize("method", ["regular", "np-dropout"])
def test_each_member_begins_at_its_own_network(method: str) -> None:
    nets = [small(k) for k in range(3)]
    start = [nets[0], nets[1].state_dict(), nets[2]]
    for batch_size in (8, None):  # they differ, so that nothing else need set them apart
        posterior = fit(small(9), start=start, method=method, batch_size=batch_size)
        for k, net in enumerate(nets):
            for name, t in net.state_dict().items():
                assert torch.equal(posterior.params[name][k], t)
    torch.testing.assert_close(
        fit(small(9), start=start).predict(X).probs,
        torch.stack([net(X).softmax(-1) for net in nets]).detach(),
    )


@pytest.mark.filterwarnings("ignore:np-dropout gives no")
def test_a_posterior_is_a_start_for_any_method() -> None:
    first = fit(small(1), lr=0.1, members=4)
    for method in ("regular", "np-dropout"):
        again = fit(small(1), start=first, method=method)
        assert torch.equal(again.params["0.weight"], first.params["0.weight"][:3])
    second = fit(small(1), start=first, method="np-dropout", lr=0.1)
    assert torch.equal(fit(small(1), start=second).params["0.bias"], second.params["0.bias"])
    with pytest.raises(InputError, match="start has 4 members, fewer than members = 5"):
        fit(small(1), start=first, members=5)


def test_a_learned_noise_begins_where_it_always_does() -> None:
    options: dict[str, Any] = {"likelihood": "gaussian", "data": (X, X[:, :1])}
    nets = [nn.Linear(3, 1) for _ in range(3)]
    for start in (nets, nets[0], fit(nets[0], **options)):
        posterior = fit(nn.Linear(3, 1), start=start, **options)
        assert posterior.params["log_variance"].abs().max() < NOTHING


@pytest.mark.filterwarnings("ignore")
def test_samplers_begin_there_too() -> None:
    trained = small(5)
    steps: dict[Any, dict[str, Any]] = {
        stochens.nuts: {"samples": 1, "warmup": 1, "step_size": 1e-12, "max_depth": 1},
        stochens.sgmcmc: {"samples": 1, "burn_in": 0, "thin": 1, "lr": NO_STEP, "temperature": 0},
    }
    for sampler, options in steps.items():
        for start in ("module", trained, trained.state_dict(), [trained, small(5)]):
            net = trained if start == "module" else small(2)
            posterior = sampler(net, DATA, chains=2, start=start, **options)
            for name, t in trained.state_dict().items():
                torch.testing.assert_close(posterior.params[name], t.expand(2, *t.shape))


class Buffered(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("scale", torch.tensor(value))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.scale


def test_buffers_come_with_the_weights() -> None:
    trained = Buffered(3.0)
    posterior = fit(Buffered(1.0), start=trained)
    assert float(posterior.net.get_buffer("scale")) == 3
    known = trained(X).softmax(-1).detach()
    torch.testing.assert_close(posterior.predict(X).mean, known)
    with pytest.raises(InputError, match=r"'scale', which all members share.*start\[1\]"):
        fit(Buffered(1.0), start=[Buffered(1.0), Buffered(2.0), Buffered(1.0)])
    with pytest.raises(InputError, match=r"'scale', which all members share.*the posterior"):
        fit(Buffered(1.0), start=posterior)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_a_networks_batch_norm_is_in_what_it_predicts(norm: Any) -> None:
    """start='module' with no step predicts what the module predicts, in evaluation mode."""
    torch.manual_seed(0)
    if norm is nn.BatchNorm1d:
        net = nn.Sequential(nn.Linear(3, 6), norm(6), nn.ReLU(), nn.Linear(6, 2))
        x = X
    else:
        net = nn.Sequential(nn.Conv2d(1, 4, 3), norm(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 2))
        x = torch.randn(24, 1, 6, 6)
    for _ in range(20):
        net(3 * x + 1)  # statistics that no initialisation has
    net, x = net.double(), x.double()
    known = net.eval()(x).softmax(-1).detach()
    frozen = stochens.freeze_batchnorm(net)
    for start in ("module", frozen, frozen.state_dict()):
        posterior = fit(frozen, (x, DATA[1]), start=start)
        # a convolution of 9 terms, the norm, a layer of 64 and softmax; both signs cancel
        within = close(torch.float64, terms=64, depth=4, condition=1e3)
        torch.testing.assert_close(posterior.predict(x).mean, known, **within)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ("default", "is called start='reset' now"),
        ("rest", "did you mean 'reset'"),
        ([small(0)], "start has 1 networks, and members = 3"),
        ([small(0), 1, 2], "a list of them, Params or a Posterior, got list"),
        (nn.Linear(3, 2), r"start is of another network: '0.weight' is \(4, 3\) .* absent in it"),
        ({"weight": torch.zeros(2, 3)}, r"'0.weight' must be \(3, 4, 3\), got absent"),
        ({"0.weight": torch.zeros(3, 4, 3)}, r"'0.bias' must be \(3, 4\), got absent"),
        ({"0.weight": torch.zeros(2, 4, 3)}, r"'0.weight' must be \(3, 4, 3\), got \(2, 4, 3\)"),
    ],
)
def test_a_start_that_is_none_is_refused(start: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        fit(small(1), start=start)


def test_the_log_says_that_a_modules_weights_are_not_used(caplog: pytest.LogCaptureFixture) -> None:
    said = "the weights of the module are not used"
    with caplog.at_level(logging.INFO, "stochens"):
        fit(small(1).eval())
        (one,) = [r for r in caplog.records if said in r.getMessage()]
        assert one.levelno == logging.WARNING  # in evaluation mode: someone has trained it
        caplog.clear()
        fit(small(1))
        (one,) = [r for r in caplog.records if said in r.getMessage()]
        assert one.levelno == logging.INFO
        caplog.clear()
        fit(lambda: small(1))
        fit(small(1), start="module")
        assert not [r for r in caplog.records if said in r.getMessage()]


@pytest.mark.parametrize(
    ("method", "said", "level"),
    [
        (stochens.LoRA(1), "method='lora': all members begin at the weights of the", logging.INFO),
        ("last-layer", "method='last-layer': what members train begins at", logging.WARNING),
        ("frozen", "start='reset': what members train begins at", logging.WARNING),
    ],
)
def test_the_log_says_which_weights_of_the_module_are_used(
    method: Any, said: str, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Adapters stand on them, and a last layer is behind them."""
    net: Any = small(1).eval()
    if method == "frozen":
        net[0].requires_grad_(False)
        method = "regular"
    with caplog.at_level(logging.INFO, "stochens"):
        fit(net, method=method)
    lines = [r for r in caplog.records if "the module" in r.getMessage()]
    assert [r.levelno for r in lines] == [level]
    assert lines[0].getMessage().startswith(said)


# -- a step aside ----------------------------------------------------------------------------------


def test_jitter_has_its_size_whatever_the_scale_of_a_parameter() -> None:
    torch.manual_seed(0)
    net: Any = nn.Sequential(nn.Linear(3, 50), nn.Linear(50, 2))
    with torch.no_grad():
        net[0].weight.mul_(1e-4)
        net[0].bias.zero_()
        net[1].weight.mul_(1e3)
    options: dict[str, Any] = {"start": stochens.Start("module", jitter=0.01), "batch_size": None}
    posterior = fit(net, members=40, **options)
    for name, p in net.named_parameters():
        moved = posterior.params[name] - p.detach()
        size, count = p.detach().square().mean().sqrt(), moved.numel()
        if name == "0.bias":
            assert moved.abs().max() < NOTHING
        else:
            assert (moved.square().mean().sqrt() / (0.01 * size) - 1).abs() < 5 / (2 * count) ** 0.5
    assert not alike(posterior.params)
    some = fit(net, members=[7, 3], **options)  # by (seed, member)
    assert torch.equal(some.params["0.weight"], posterior.params["0.weight"][[7, 3]])
    with pytest.raises(InputError, match="jitter must not be negative"):
        stochens.Start("module", jitter=-0.1)


def test_a_jitter_is_of_its_seed_and_member() -> None:
    """p + 0.1 rms(p) n, with n from the generator of that seed and member."""
    net = nn.Linear(2, 1, bias=False)
    p = torch.tensor([[[3.0, -4.0]], [[3.0, -4.0]]])  # rms sqrt(12.5), of members 5 and 6
    moved = jittered({"weight": p}, net, (5, 6), seed=7, size=0.1)["weight"]
    for row, member in enumerate((5, 6)):
        generator = torch.Generator().manual_seed((derive(7, JITTER) + member) % 2**63)
        n = torch.randn(1, 2, generator=generator)
        torch.testing.assert_close(moved[row], p[row] + 0.1 * 12.5**0.5 * n)


def test_a_jitter_that_moves_nothing_sets_nobody_apart() -> None:
    net = nn.Linear(3, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    with pytest.raises(InputError, match="begin with the same parameters"):
        fit(net, start=stochens.Start("module", jitter=0.1), batch_size=None)


def test_a_learned_sigma_and_a_noise_level_are_not_jittered() -> None:
    posterior = fit(
        nn.Linear(3, 1), (X, X[:, :1]), start=stochens.Start("module", jitter=0.5),
        likelihood="gaussian", method=stochens.Gaussian(0.1, learn=True),
    )  # fmt: skip
    sigma = posterior.params["weight_log_sigma"]
    torch.testing.assert_close(sigma, torch.full_like(sigma, 0.1).log())
    assert posterior.params["log_variance"].abs().max() < NOTHING


def test_the_prior_is_around_the_start_and_not_around_its_jitter() -> None:
    net = small(3)
    start = stochens.Start("module", jitter=0.1)
    posterior = fit(net, start=start, prior=stochens.Prior(2.0, mean="start"))
    for name, p in net.named_parameters():
        assert torch.equal(posterior.prior_mean[name], p.detach().unsqueeze(0))
    moved = sum(float((posterior.params[n] - p).double().square().sum())
                for n, p in net.named_parameters())  # fmt: skip
    assert posterior.kl().l2 == pytest.approx(2.0 / 2 * moved / 3, rel=1e-5)


# -- bootstrap -------------------------------------------------------------------------------------


def test_every_remedy_of_members_that_stay_alike_works() -> None:
    options: dict[str, Any] = {"start": "module", "batch_size": None, "lr": 0.1, "epochs": 3}
    with pytest.raises(InputError) as refused:
        fit(small(1), **options)
    for remedy, words in (
        ({"method": "dropout"}, "method='dropout'"),
        ({"bootstrap": True}, "bootstrap=True"),
        ({"batch_size": 8}, "batch_size below N = 24"),
        ({"start": stochens.Start("module", jitter=0.01)}, "jitter=0.01"),
        ({"start": "reset"}, "start='reset'"),
    ):
        assert words in str(refused.value)
        assert not alike(fit(small(1), **{**options, **remedy}).params)


@pytest.mark.parametrize("batch_size", [None, 8, 7])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("engine", ["auto", "vmap"])
def test_a_member_learns_from_its_own_resample(
    batch_size: int | None, weighted: bool, engine: str
) -> None:
    """As if it had been given those rows. In float64, since orders of sums differ."""
    data = (X.double(), DATA[1])
    weight = torch.arange(24.0) if weighted else None
    options: dict[str, Any] = {
        "start": "module", "lr": 0.05, "epochs": 4, "batch_size": batch_size, "seed": 3,
        "run": stochens.Run(engine=engine), "prior": 5.0,
    }  # fmt: skip
    net = small(2).double()
    posterior = fit(net, stochens.Data(data, weights=weight), bootstrap=True, **options)
    given = source(stochens.Data(data, weights=weight))
    rows = bootstrap_rows(resampled(given), members=(0, 1, 2), seed=3)
    for k in range(3):
        own = (given.x[rows[k]], given.y[rows[k]])
        each = None if weight is None else torch.full((given.size,), given.examples / given.size)
        alone = fit(net, stochens.Data(own, weights=each), members=[k], **options)
        for name, p in alone.params.items():
            torch.testing.assert_close(posterior.params[name][k], p[0], rtol=1e-7, atol=1e-9)
    assert posterior.data_size == (24 if weight is None else float(weight.sum()))


def test_rows_are_drawn_by_their_weights() -> None:
    weights = torch.tensor([1.0, 3.0, 0.0, 6.0])
    data = resampled(
        source(stochens.Data((torch.zeros(4, 1), torch.zeros(4).long()), weights=weights))
    )
    assert data.weights is None  # those of weight 0 are left out: 3 rows of 1, 3 and 6
    assert data.examples == 10
    rows = bootstrap_rows(data, members=tuple(range(4000)), seed=0)
    share = rows.flatten().bincount(minlength=3) / rows.numel()
    assert ((share - torch.tensor([0.1, 0.3, 0.6])).abs() < 5 * 0.5 / 12000**0.5).all()
    plain = Source(torch.zeros(50, 1), torch.zeros(50), 50, bootstrap=True)
    some = bootstrap_rows(plain, members=(0, 5), seed=1)
    assert torch.equal(some[1:], bootstrap_rows(plain, members=(5,), seed=1))
    assert not torch.equal(some[0], some[1])
    left = [
        len(set(own.tolist())) for own in bootstrap_rows(plain, members=tuple(range(400)), seed=0)
    ]
    assert abs(sum(left) / 400 / 50 - (1 - (1 - 1 / 50) ** 50)) < 0.01  # 63.6 % are in it


def test_bootstrap_of_several_sets_stays_in_each() -> None:
    sets = stochens.Replicas([DATA, (X, 1 - DATA[1])])
    posterior = fit(small(1), sets, bootstrap=True, members=4, lr=0.1, epochs=30)
    for d, y in enumerate((DATA[1], 1 - DATA[1])):
        labels = posterior.replica(d, 2).predict(X).labels
        assert (labels == y).float().mean() > 0.8


def test_a_loader_cannot_be_resampled_and_one_row_sets_nobody_apart() -> None:
    loader: Any = DataLoader(TensorDataset(*DATA), batch_size=8)
    with pytest.raises(InputError, match="bootstrap=True draws rows of data in memory"):
        fit(small(1), loader, bootstrap=True)
    with pytest.raises(InputError, match="begin with the same parameters"):
        fit(small(1), (X[:1], DATA[1][:1]), bootstrap=True, start="module")


def test_a_stopped_bootstrap_goes_on_as_one(tmp_path: Path) -> None:
    options: dict[str, Any] = {"lr": 0.1, "epochs": 3, "start": "module"}
    run = stochens.Run(checkpoint=tmp_path)
    once = fit(small(1), bootstrap=True, run=run, **options)
    again = fit(small(1), bootstrap=True, run=run, **options)
    assert torch.equal(once.params["0.weight"], again.params["0.weight"])
    with pytest.raises(InputError, match="bootstrap"):
        fit(small(1), run=run, **options)


def test_auto_goes_with_all_of_it() -> None:
    auto = stochens.Auto(candidates=["regular", "dropout"], members=2, epochs=1)
    net = copy.deepcopy(small(1))
    start = stochens.Start(small(2), jitter=0.01)
    posterior = fit(net, method=auto, start=start, bootstrap=True, lr=0.1)
    assert len(posterior) == 3
