"""Which networks have a program, and that training by it is training by vmap."""

import ast
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tolerance import trained
from torch import Tensor, nn

import stochens
from stochens.program import rules
from stochens.program.choice import (
    GROUPED,
    TURNS_FROM,
    Workload,
    choose,
    flops,
    gradient_distance,
    members_apart,
)
from stochens.program.program import build
from stochens.training.engines import COMPILES_SINCE

TASK = Workload(batch=4, examples=1e20, own_rows=True)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if (x > 0).all() else self.layer(-x)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def test_a_network_without_a_program_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "stochens")
    assert choose(Branching(), torch.randn(4, 3), TASK) is None
    (line,) = [record.message for record in caplog.records if record.name == "stochens"]
    assert line.startswith("members run by vmap: the network cannot be traced (")


def test_one_place_chooses_for_each_kind_of_use() -> None:
    """The source is read. Losses of data in memory, losses of batches, and outputs; NUTS and HMC,
    whose gradient is that of all data at once, ask for the program alone."""
    root = Path(stochens.__file__).parent
    users = set()
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                by_program = node.module == "stochens.program.choice" and "choose" in names
                fused = any(name.startswith("fused_") for name in names)
                if by_program or fused or "program_by" in names:
                    users.add(file.relative_to(root).as_posix())
    program = {f"program/{name}.py" for name in ("data_term", "loader_term", "outputs")}
    # `describe` says what would run a network
    assert users == {*program, "samplers/sampling.py", "description/runs.py"}


class Unseen(nn.Module):
    """vmap runs it, and torch.export cannot: what it makes of x depends on how it is looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_exporting():
            raise RuntimeError("not to be seen")
        return self.layer(x).sigmoid()  # which no kernel has


@pytest.mark.filterwarnings("ignore::UserWarning")  # the loop is said in a warning too
@pytest.mark.parametrize(("network", "engine"), [(Unseen, "vmap"), (Branching, "loop")])
def test_fit_says_it_once_and_serves_the_network_all_the_same(
    network: Any, engine: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of one member too; the same parameters as by the engine itself."""
    caplog.set_level(logging.INFO, "stochens")
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0)).double()
    data = (x, (x[:, 0] > 0).long())

    def fit(**options: Any) -> stochens.Posterior:
        run = stochens.Run(chunk=1, **options)
        return stochens.fit(
            lambda: network().double(), data, method="regular", members=3, epochs=2, batch_size=5,
            lr=0.01, seed=1, run=run,
        )  # fmt: skip

    expected = fit(engine=engine)
    assert "cannot be traced" not in caplog.text
    monkeypatch.setattr("stochens.program.choice.ON_CPU_FROM", 0.0)
    ours = fit()
    assert caplog.text.count(f"members run by {engine}: the network cannot be traced (") == 1
    for name, p in expected.params.items():
        assert torch.equal(ours.params[name], p)


def test_a_program_that_is_wrong_is_not_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(s: Any, target: Any, given: Any) -> Any:
        return rules.pointwise(s, torch.ops.aten.sin.default, given)

    x = torch.randn(4, 3)
    assert choose(net(), x, TASK) is not None
    monkeypatch.setitem(rules.RULES, "aten::tanh", wrong)
    assert choose(net(), x, TASK) is None
    assert "is off by" in caplog.text


class _NoSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.tanh()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return slope


def without_slope(x: Tensor) -> Tensor:
    """tanh with the gradient of another function."""
    made: Tensor = _NoSlope.apply(x)
    return made


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_program_with_a_wrong_gradient_is_not_taken(
    dtype: torch.dtype | None, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16 too, where rounding would hide it. For predictions, which need none, it is."""

    def wrong(s: Any, target: Any, given: Any) -> Any:
        return s.emit(without_slope, s.front(given["self"])), "front"

    x, task = torch.randn(4, 3), TASK._replace(dtype=dtype)
    assert choose(net(), x, task) is not None
    monkeypatch.setitem(rules.RULES, "aten::tanh", wrong)
    assert choose(net(), x, task) is None
    assert "their program has a gradient of 0." in caplog.text
    assert choose(net(), x, task._replace(gradients=False)) is not None


def test_gradients_are_those_of_each_member_alone() -> None:
    """By the loop, and not by vmap, which gives the row of padding a gradient; and what has none
    but for rounding, as the bias of attention's keys, is no mistake."""
    layers: list[nn.Module] = [nn.Embedding(7, 8, padding_idx=0)]
    layers += [nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), nn.Flatten()]
    words = nn.Sequential(*layers, nn.Linear(8 * 5, 2))
    x = torch.randint(7, (4, 5), generator=torch.Generator().manual_seed(0))
    assert (x == 0).any()
    off, _ = gradient_distance(build(words, x), words, x, TASK)
    assert off < 1e-3  # sums of float32, of at most 40 terms


def test_a_program_that_fails_is_not_taken(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(s: Any, target: Any, given: Any) -> Any:
        return s.emit(torch.ops.aten.view.default, given["self"].node, [1, 1, 1]), "front"

    caplog.set_level(logging.INFO, "stochens")
    monkeypatch.setitem(rules.RULES, "aten::tanh", failing)
    assert choose(net(), torch.randn(4, 3), TASK) is None
    assert "their program does not run (" in caplog.text


def test_own_dropout_of_the_network_is_no_mistake() -> None:
    drops = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)).train()
    assert choose(drops, torch.randn(4, 3), TASK) is not None


@pytest.mark.skipif(torch.__version__ < COMPILES_SINCE, reason="engine='compile' is refused")
@pytest.mark.parametrize("method", ["regular", "dropout", "np-dropout", "gaussian"])
@pytest.mark.parametrize("batch_size", [7, None])
def test_training_by_a_program_is_training_by_vmap(
    monkeypatch: pytest.MonkeyPatch, method: str, batch_size: int | None
) -> None:
    """In any blocks of members: noise is a function of (seed, member, step)."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # the program is eager
    x = torch.randn(20, 3, generator=torch.Generator().manual_seed(0)).double()
    data = (x, (x[:, 0] > 0).long())

    def fit(**options: Any) -> stochens.Posterior:
        return stochens.fit(
            net().double(), data, method=method, members=3, epochs=2, batch_size=batch_size,
            lr=0.01, seed=1, **options,
        )  # fmt: skip

    expected = fit(run=stochens.Run(engine="vmap"))
    for chunk in (3, 2):
        ours = fit(run=stochens.Run(engine="compile", chunk=chunk))
        for name, p in expected.params.items():
            within = trained(torch.float64, steps=6, rows=20)
            torch.testing.assert_close(ours.params[name], p, **within)


def test_work_is_counted() -> None:
    x = torch.randn(4, 3)
    assert flops(net(), x) == 4 * 2 * (3 * 5 + 5 * 2)
    image = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 36, 2))
    program = build(image, torch.randn(4, 3, 6, 6))
    assert program.mean_convolution == 2 * 8 * 36 * 27
    assert build(net(), x).mean_convolution == 0


def test_members_take_turns_on_a_cpu_where_convolutions_are_large_or_have_groups() -> None:
    def program(groups: int) -> Any:
        layer = nn.Conv2d(4, 4, 3, groups=groups)
        return build(nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 2)), torch.randn(4, 4, 6, 6))

    for groups, least in [(1, TURNS_FROM), (4, GROUPED * TURNS_FROM)]:
        made = program(groups)
        few = int(least / made.mean_convolution)
        assert made.grouped == (groups > 1)
        assert not members_apart(made, few, on_gpu=False)
        assert members_apart(made, few + 1, on_gpu=False)


class Expands(nn.Module):
    """A parameter that goes into a layer, one for each row: a query, or a class token."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.layer = nn.Parameter(torch.randn(1, 3)), nn.Linear(3, 2)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.query.expand(len(x), -1)) + self.again(x)


def test_a_parameter_that_is_expanded_is_counted_too() -> None:
    expands = Expands()
    before = list(expands.parameters())
    assert flops(expands, torch.zeros(4, 3)) == 2 * 4 * 2 * 3 * 2
    assert [id(p) for p in expands.parameters()] == [id(p) for p in before]
    data = (torch.randn(6, 3), torch.arange(6) % 2)
    stochens.fit(expands, data, method="regular", members=2, epochs=1, start="module", batch_size=3)


def test_what_is_asked_for_is_compiled_and_short_work_is_not() -> None:
    x = torch.randn(4, 3)
    for wanted, expected in [(None, False), (False, False), (True, True)]:
        chosen = choose(net(), x, TASK._replace(compile=wanted))
        assert chosen is not None
        assert chosen.compiled == expected
