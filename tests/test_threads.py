"""Threads share torch's generator and switches; what each gets is what it would get alone."""

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, DropConnect, Dropout
from stochens.estimators import StochasticEnsembleClassifier
from stochens.kernels import mlp
from stochens.members import plain_attention
from stochens.randomness.seeds import seeded

TIMES = 5


def together(*calls):
    """The results of calls that run at the same time, a thread each."""
    start = threading.Barrier(len(calls))

    def one(call):
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(one, calls))


def equal(one, two):
    return all(torch.equal(two.params[name], p) for name, p in one.params.items())


def test_a_stream_is_one_threads_alone():
    def numbers(seed):
        with seeded(seed):
            return torch.stack([torch.rand(3) for _ in range(200)])

    torch.manual_seed(1)
    before = torch.get_rng_state()
    alone = [numbers(seed) for seed in range(4)]
    for _ in range(TIMES):
        assert torch.equal(
            torch.stack(together(*(functools.partial(numbers, seed) for seed in range(4)))),
            torch.stack(alone),
        )
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.GELU])  # by a kernel, and by vmap
def test_predictions(xor, activation):
    net = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 2))
    options = {"members": 3, "epochs": 1, "device": "cpu"}
    both = [stochens.fit(net, xor, method=m, **options) for m in (Dropout(0.5), DropConnect(0.3))]
    calls = [
        functools.partial(posterior.predict, xor[0], draws=4, batch_size=7, seed=seed)
        for posterior in both
        for seed in (1, 2)  # two at a time of one posterior as well
    ]
    alone = [call() for call in calls]
    for _ in range(TIMES):
        for one, two in zip(alone, together(*calls), strict=True):
            assert torch.equal(two.probs, one.probs)


def own_dropout():
    return nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2))


@pytest.mark.filterwarnings("ignore::stochens.checks.SilentNoiseWarning")
@pytest.mark.parametrize("kind", ["kernel", "vmap", "own dropout", "loader"])
def test_trainings(xor, kind):
    net = {
        "kernel": lambda: MLP(2, 8, 2),
        "vmap": lambda: nn.Sequential(nn.Linear(2, 8), nn.GELU(), nn.Linear(8, 2)),
        "own dropout": own_dropout,
        "loader": lambda: MLP(2, 8, 2),
    }[kind]
    data = xor
    if kind == "loader":
        data = DataLoader(TensorDataset(*xor), batch_size=20, shuffle=True)
    calls = [
        functools.partial(
            stochens.fit, net, data, members=3, epochs=4, batch_size=20, seed=seed, device="cpu"
        )
        for seed in (1, 2, 3)
    ]
    alone = [call() for call in calls]
    for _ in range(TIMES):
        assert all(map(equal, together(*calls), alone))


def test_a_training_that_draws_nothing_holds_nobody_up(xor):
    """Each waits in its first epoch for the other to be there."""
    meet = threading.Barrier(2, timeout=60)

    def log(epoch, values):
        if epoch == 0:
            meet.wait()

    call = functools.partial(stochens.fit, MLP(2, 8, 2), xor, members=2, epochs=2, device="cpu")
    together(*(functools.partial(call, run=stochens.Run(log=log), seed=seed) for seed in (1, 2)))


def test_estimators(xor):
    x, y = (t.numpy() for t in xor)

    def probs(seed):
        own = StochasticEnsembleClassifier(members=2, epochs=3, random_state=seed)
        return torch.tensor(own.fit(x, y).predict_proba(x))

    calls = [functools.partial(probs, seed) for seed in (1, 2)]
    alone = [call() for call in calls]
    for _ in range(TIMES):
        assert all(map(torch.equal, together(*calls), alone))


def test_loading_leaves_the_others_stream_alone(xor, tmp_path):
    net = MLP(2, 8, 2)
    posterior = stochens.fit(net, xor, members=2, epochs=1, device="cpu")
    posterior.save(tmp_path / "run")
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert equal(stochens.load(tmp_path / "run", lambda: MLP(2, 8, 2)), posterior)
    StochasticEnsembleClassifier(members=1, epochs=1).fit(*(t.numpy() for t in xor))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_last_one_turns_attention_back():
    def switches():
        cuda = torch.backends.cuda
        return torch.backends.mha.get_fastpath_enabled(), cuda.flash_sdp_enabled()

    before, inside, first_out = switches(), threading.Barrier(2), threading.Event()
    seen = []

    def leaves_first():
        with plain_attention():
            inside.wait()
        first_out.set()

    def leaves_last():
        with plain_attention():
            inside.wait()
            first_out.wait(60)
            seen.append(switches())

    together(leaves_first, leaves_last)
    assert before == (True, True)
    assert seen == [(False, False)]
    assert switches() == before


def test_the_cores_are_given_back():
    """By who leaves first and by who leaves last, to each of them and to threads to come."""
    before = torch.get_num_threads()
    inside, first_out, seen = threading.Barrier(2), threading.Event(), []

    def leaves_first():
        with mlp.alone_on_the_cores():
            inside.wait()
        seen.append(torch.get_num_threads())
        first_out.set()

    def leaves_last():
        with mlp.alone_on_the_cores():
            inside.wait()
            first_out.wait(60)
            seen.append(mlp.threads())
        seen.append(torch.get_num_threads())

    torch.set_num_threads(3)
    try:
        together(leaves_first, leaves_last)
        with ThreadPoolExecutor(1) as thread:
            seen.append(thread.submit(torch.get_num_threads).result())
        assert seen == [3, 3, 3, 3]
        assert mlp._threads == 0
    finally:
        torch.set_num_threads(before)
