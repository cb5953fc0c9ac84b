"""Learning rates over a run, held against plain torch loops.

The paper's recipe, in our words (its authors' code, toy problem and CIFAR): the rate is divided by
ten when half of the training is done, and by ten again when three quarters are; at either place the
optimiser begins anew, without the averages (Adam) or the momentum (Nesterov's, 0.9) that it had
gathered. The toy networks train by Adam at 0.01, the CIFAR networks by SGD at 0.1.
"""

import math

import pytest
import torch
import torch.nn.functional as F

import stochens
from stochens import MLP, InputError
from stochens.members import builder, init
from stochens.training.schedules import (
    DEFAULT_RATES,
    optimizer_named,
    rate_for,
    restarts,
    schedule_named,
)

# float64 rounding, grown by the few dozen steps that these tests train
CLOSE = {"rtol": 1e-9, "atol": 1e-11}
OPTIMIZERS = {
    "adam": lambda params, lr: torch.optim.Adam(params, lr=lr),
    "adamw": lambda params, lr: torch.optim.AdamW(params, lr=lr, weight_decay=0.0),
    "sgd": lambda params, lr: torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True),
}


def make_net():
    return MLP(2, 6, 2)


def by_the_recipe(data, optimizer: str, lr: float, steps: int):
    """One network, the whole data at each step, and a new torch optimiser for each of the three
    parts: [0, 1/2), [1/2, 3/4) and [3/4, 1) of the steps, at lr, lr / 10 and lr / 100."""
    x, y = data
    net = make_net()
    first = init(builder(make_net), members=[0], seed=0)
    net.load_state_dict({name: p[0] for name, p in first.items()})
    for begin, end, rate in ((0, 2, lr), (2, 3, lr / 10), (3, 4, lr / 100)):
        fresh = OPTIMIZERS[optimizer](net.parameters(), rate)
        for step in range(steps):
            if begin * steps <= 4 * step < end * steps:
                l2 = sum(p.square().sum() for p in net.parameters())
                fresh.zero_grad()
                (F.cross_entropy(net(x), y) + l2 / (2 * len(x))).backward()
                fresh.step()
    return net


@pytest.mark.parametrize("steps", [16, 17, 18, 19])
@pytest.mark.parametrize(("optimizer", "lr"), [("adam", 0.01), ("adamw", 0.01), ("sgd", 0.1)])
def test_steps_are_the_papers(float64, xor, optimizer, lr, steps):
    """Three parts with an optimiser of their own, also where halves and quarters are no steps."""
    data = xor[0].double(), xor[1]
    options = {"method": "regular", "members": 1, "batch_size": None, "device": "cpu"}
    posterior = stochens.fit(
        make_net,
        data,
        optimizer=stochens.Optimizer(optimizer, schedule="step"),
        lr=lr,
        epochs=steps,
        **options,
    )
    for name, p in by_the_recipe(data, optimizer, lr, steps).named_parameters():
        torch.testing.assert_close(posterior.params[name][0], p.detach(), **CLOSE)


def test_the_optimiser_is_fresh_where_the_rate_falls():
    """At the first step of each part, and nowhere else, whatever the number of steps."""
    for steps in range(1, 200):
        rates = [schedule_named("step")(k / steps) for k in range(steps)]
        falls = {k for k in range(1, steps) if rates[k] != rates[k - 1]}
        assert restarts("step", steps) & set(range(steps)) == falls, steps
    assert restarts("cosine", 8) == restarts("constant", 8) == set()


def test_the_rate_is_a_tenth_from_half_and_a_hundredth_from_three_quarters():
    rate = schedule_named("step")
    assert [rate(done) for done in (0.0, 0.499, 0.5, 0.749, 0.75, 0.999)] == pytest.approx(
        [1, 1, 0.1, 0.1, 0.01, 0.01], rel=1e-15
    )


def test_the_other_schedules():
    assert [schedule_named("constant")(k / 4) for k in range(4)] == [1, 1, 1, 1]
    cosine = [schedule_named("cosine")(k / 4) for k in range(5)]  # half a period, from 1 to 0
    half = math.sqrt(0.5)
    assert cosine == pytest.approx([1, (1 + half) / 2, 0.5, (1 - half) / 2, 0], abs=1e-15)


def test_rates_where_none_is_given():
    """Adam's own default; for SGD the paper's on CIFAR."""
    assert DEFAULT_RATES == {"adam": 1e-3, "adamw": 1e-3, "sgd": 0.1}
    assert rate_for("sgd", None) == 0.1
    assert rate_for("sgd", 0.02) == 0.02
    with pytest.raises(InputError, match="lr must be"):
        rate_for("adam", -1.0)


@pytest.mark.parametrize(
    ("lr", "noise_rate"),
    [(1e-4, 1e-3), (1e-2, 0.1), (0.05, 0.1), (0.1, 0.1), (0.5, 0.5)],
)
def test_a_learned_noise_has_ten_times_the_rate_up_to_a_tenth(lr, noise_rate):
    """min(10 lr, 0.1), and never below lr itself; weights keep lr, and SGD knows one rate."""
    params = {"w": torch.zeros(1, requires_grad=True), "s": torch.zeros(1, requires_grad=True)}
    for name in ("adam", "adamw"):
        groups = optimizer_named(name, params, lr=lr, weight_decay=0.0, noise="s").param_groups
        rates = {id(p): lr * g["factor"] for g in groups for p in g["params"]}
        assert rates[id(params["w"])] == pytest.approx(lr, rel=1e-15)
        assert rates[id(params["s"])] == pytest.approx(noise_rate, rel=1e-15)
    (group,) = optimizer_named("sgd", params, lr=lr, weight_decay=0.0, noise="s").param_groups
    assert group["factor"] == 1
    assert len(group["params"]) == 2


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_weight_decay_reaches_the_optimiser(name):
    """A step with no gradient but the decay's, against torch's own optimiser."""
    mine, theirs = (torch.full((3,), 2.0, dtype=torch.float64, requires_grad=True) for _ in "ab")
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": torch.optim.SGD}
    options = {"momentum": 0.9, "nesterov": True} if name == "sgd" else {}
    both = (
        optimizer_named(name, {"w": mine}, lr=0.1, weight_decay=0.3),
        kinds[name]([theirs], lr=0.1, weight_decay=0.3, **options),
    )
    for p, optimizer in zip((mine, theirs), both, strict=True):
        p.grad = torch.zeros_like(p)
        optimizer.step()
    assert float(mine.detach()[0]) < 2
    torch.testing.assert_close(mine, theirs, **CLOSE)
