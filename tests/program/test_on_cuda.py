"""Programs on a GPU: the same numbers as vmap, eager, compiled, on streams and in a CUDA graph."""

import copy
import logging
from typing import Any

import pytest
import torch
from tests.methods.test_conformance import NETWORKS, Case, case_of, wide
from tests.program import test_prefix_of_trees as frozen
from tests.program.test_program import assert_same, results
from tests.program.test_trees import bert, sentences, two

import stochens
from stochens.kernels.graphs import record_graph
from stochens.kernels.noise import words
from stochens.members import Params, forward
from stochens.program import choice, features
from stochens.program.apart import Apart
from stochens.program.program import Noise, build
from stochens.randomness.noise import member_noise

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def on_cuda(network: str, method: str) -> Case:
    case = wide(case_of(network, method))
    params = {name: p.cuda() for name, p in case.params.items()}
    return case._replace(net=copy.deepcopy(case.net).cuda(), params=params, x=case.x.cuda())


def noise() -> Noise:
    return Noise(torch.tensor([3, 8]).cuda(), torch.tensor([11]).cuda())


@pytest.mark.parametrize("method", ["dropout", "np-dropout+gaussian-learned"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_program_is_vmap(network: str, method: str) -> None:
    case = on_cuda(network, method)
    program = build(case.net, case.x)

    def theirs(p: Params) -> torch.Tensor:
        with member_noise(*noise(), words):
            return forward(case.net, p, case.x, engine=case.row.engines[0])

    expected = results(theirs, case.params)
    for ours in (program, Apart(program)):
        run: Any = ours
        got = results(lambda p: run(p, case.x, noise()), case.params)  # noqa: B023, called at once
        torch.cuda.synchronize()
        assert_same(got, expected)


@pytest.mark.parametrize("method", ["regular", "dropout", "np-dropout"])
def test_a_program_of_a_tree_is_vmap(method: str) -> None:
    net, x = bert(method).cuda(), sentences(4).to("cuda")
    params, program = {n: p.cuda() for n, p in two(net).items()}, build(net, x)

    def theirs(p: Params) -> torch.Tensor:
        with member_noise(*noise(), words):
            return forward(net, p, x, engine="vmap")

    expected = results(theirs, params)
    for ours in (program, Apart(program)):
        run: Any = ours
        got = results(lambda p: run(p, x, noise()), params)  # noqa: B023, called at once
        torch.cuda.synchronize()
        assert_same(got, expected)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("method", ["dropout", "dropconnect", "np-dropout", "gaussian"])
def test_predictions_with_noise_are_those_of_vmap(
    method: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "stochens")
    row, x = NETWORKS["transformer"], case_of("transformer", "regular").x
    data = torch.cat([x, x.flip(0)]).double(), torch.arange(8) % 2
    options: dict[str, Any] = {"members": 3, "epochs": 1, "batch_size": 4, "device": "cuda"}
    posterior = stochens.fit(lambda: row.build().double(), data, method=method, **options)
    caplog.clear()
    ours = posterior.predict(data[0], draws=2, batch_size=3)
    assert "members run by one program" in caplog.text
    monkeypatch.setattr("stochens.program.outputs.kept_program", lambda *_: None)
    plain = posterior.predict(data[0], draws=2, batch_size=3)
    torch.testing.assert_close(ours.probs, plain.probs, rtol=1e-10, atol=1e-12)  # float64's sums


def test_a_recorded_program_draws_the_noise_of_each_step() -> None:
    case = on_cuda("linear", "dropout")
    program, seed = build(case.net, case.x), torch.tensor([11]).cuda()
    ids, held = noise().members, {}

    def work() -> None:
        held["y"] = program(case.params, case.x, Noise(ids, seed))

    with torch.no_grad():
        graph = record_graph(work)
        for step in (5, 6):
            seed.fill_(step)
            graph.replay()
            torch.testing.assert_close(held["y"], program(case.params, case.x, Noise(ids, seed)))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("network", ["conv2d", "transformer"])
def test_fit_takes_the_program_and_a_graph(
    network: str, streams: bool, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "STREAMS_FROM", 0.0 if streams else float("inf"))
    caplog.set_level(logging.INFO, "stochens")
    row, x = NETWORKS[network], case_of(network, "regular").x
    data = torch.cat([x, x.flip(0)]).double(), torch.arange(8) % 2
    options: dict[str, Any] = {"members": 3, "epochs": 2, "batch_size": 4, "device": "cuda"}
    ours = stochens.fit(lambda: row.build().double(), data, method="dropout", **options)
    assert "members run by one program" in caplog.text
    assert "without a CUDA graph" not in caplog.text
    vmap = stochens.Run(engine="vmap")
    plain = stochens.fit(lambda: row.build().double(), data, method="dropout", run=vmap, **options)
    for name, p in plain.params.items():
        if name.endswith("in_proj_bias"):
            continue  # of keys the gradient is 0 but for rounding, which Adam makes a step of
        # float64 rounding over 4 steps of Adam, which divides by small numbers
        torch.testing.assert_close(ours.params[name], p, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("float64")
@pytest.mark.filterwarnings("ignore::stochens.methods.partial.PartialNoiseWarning")
@pytest.mark.parametrize("where", ["on cuda", "on the host"])
def test_a_frozen_part_of_several_inputs(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "stochens")
    torch.manual_seed(0)
    net, given = frozen.MaskedLater(), frozen.data(unused=True)
    run = stochens.Run(precision="float64", device="cuda")
    # by SGD: Adam divides by gradients, and makes much of the rounding of one that cancels
    how: Any = {"run": run, "optimizer": "sgd"}
    with monkeypatch.context() as short:
        if where == "on the host":
            short.setattr(features, "free_bytes", lambda at: 0 if at.type == "cuda" else 2**40)
        ours = frozen.fit(net, given, **how)
        probs = ours.predict(frozen.inputs(given), draws=3).probs
    assert f"float64, {where}" in caplog.text
    frozen.without_cut(monkeypatch)
    frozen.same(ours, frozen.fit(net, given, **how), steps=8)
    expected = ours.predict(frozen.inputs(given), draws=3).probs
    torch.testing.assert_close(probs, expected, **frozen.close(torch.float64, terms=100, depth=20))
