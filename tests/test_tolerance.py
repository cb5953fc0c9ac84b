"""The error model bounds what it says it bounds, and is not so wide that it bounds nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import torch
from tests.tolerance import close, rounding

N = 500
ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_sum_in_any_order_is_within_the_bound(dtype):
    """N products of both signs, added one by one in 20 orders and by torch's own product."""
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(2, N, generator=generator, dtype=dtype)
    found = [a @ b]
    for _ in range(20):
        total = torch.zeros((), dtype=dtype)
        for term in (a * b)[torch.randperm(N, generator=generator)]:
            total = total + term
        found.append(total)
    spread = torch.stack(found).max() - torch.stack(found).min()
    scale = float((a * b).abs().sum())
    assert 0 < float(spread) <= rounding(dtype, terms=N) * scale
    assert rounding(dtype, terms=N) * scale < 1e-3 * scale


@pytest.mark.parametrize("function", [torch.exp, torch.log, torch.tanh, torch.sigmoid, torch.cos])
def test_functions_are_within_a_few_units_in_the_last_place(function):
    """In float32, as this CPU computes them at once and one by one, against float64."""
    x = torch.linspace(0.01, 3, 1001)
    exact = function(x.double())
    within = close(torch.float32, terms=0, scale=1.0)
    for found in (function(x), torch.stack([function(v) for v in x])):
        torch.testing.assert_close(found.double(), exact, **within)


def test_make_portable_runs_whatever_has_a_tolerance():
    """All files that import the error model are among those that `make portable` runs."""
    env = {name: value for name, value in os.environ.items() if name != "MAKEFLAGS"}
    make = ["make", "--dry-run", "portable"]
    said = subprocess.run(make, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    line = next(part for part in said.stdout.replace("\\\n", " ").split("\n") if "SSE41" in part)
    ignored = set(re.findall(r"--ignore (\S+)", line))
    run = {word for word in line.split() if word.startswith("tests/")} - ignored
    held = [
        path.relative_to(ROOT)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "from tests.tolerance import" in path.read_text()
    ]
    assert len(held) > 50
    left_out = [p for p in held if not run & {str(p), *map(str, p.parents)} or str(p) in ignored]
    assert not left_out
