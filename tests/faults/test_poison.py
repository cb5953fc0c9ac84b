"""One of 64 members is poisoned at a random step; the other 63 end as they would have, bit for bit.

The poison is given by a collector, which `fit` shows the parameters after each step.
"""

import functools
import math
import warnings
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.long import crossed
from tests.running import fit_watched

import stochens
from stochens import MLP, Posterior
from stochens.kernels import mlp

MEMBERS, EPOCHS, POINTS, BATCH = 64, 3, 40, 16
STEPS = EPOCHS * math.ceil(POINTS / BATCH)


class Watch:
    """Sees everything and does nothing."""

    def update(self, params, *, step, steps):
        assert steps == STEPS

    def finish(self, params):
        return params, None

    def state(self):
        return {}

    def restore(self, state):
        pass

    def settings(self):
        return {}


class Poison(Watch):
    """A value in the parameters of one member after a step, or in its gradient in the next."""

    def __init__(self, member: int, step: int, where: str, value: float) -> None:
        self.member, self.step, self.where, self.value = member, step, where, value
        self.given = False
        self.hooks: list[Any] = []

    def update(self, params, *, step, steps):
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        if step != self.step:
            return
        if self.where == "parameters":
            with torch.no_grad():
                params["0.weight"][self.member, 0, 0] = self.value
            self.given = True
        else:
            self.hooks = [p.register_hook(self._spoil) for p in params.values()]

    def _spoil(self, gradient):
        spoilt = gradient.clone()
        spoilt[self.member] = self.value
        self.given = True
        return spoilt


def trained(
    engine: str, method: str, optimizer: str, collect=Watch, on_divergence="keep"
) -> Posterior:
    return fit_watched(
        MLP(2, 6, 6, 2),
        stochens.toy_set("b", n=POINTS),
        collect,
        method=method,
        members=MEMBERS,
        epochs=EPOCHS,
        batch_size=BATCH,
        optimizer=optimizer,
        run=stochens.Run(engine=engine),
        on_divergence=on_divergence,
        device="cpu",
    )


healthy = functools.cache(trained)


@pytest.mark.parametrize(
    ("lost", "engine"), crossed(["retry", "drop", "keep"], ["vmap", "fused"], each=1)
)
@settings(max_examples=25)
@given(
    member=st.integers(0, MEMBERS - 1),
    step=st.integers(1, STEPS - 1),
    where=st.sampled_from(["parameters", "gradient"]),
    value=st.sampled_from([math.nan, math.inf, -math.inf, 1e30]),  # its square is infinite
    method=st.sampled_from(["regular", "dropout", "dropconnect", "np-dropout", "gaussian"]),
    optimizer=st.sampled_from(["adam", "adamw", "sgd"]),
)
def test_the_other_63_are_unchanged(engine, lost, member, step, where, value, method, optimizer):
    if engine == "fused" and not mlp.available():
        pytest.skip("no C++ compiler here")
    whole = healthy(engine, method, optimizer)
    poison = [Poison(member, step, where, value)]
    left = list(poison)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = trained(
            engine,
            method,
            optimizer,
            lambda: left.pop() if left else Watch(),
            on_divergence=lost,
        )
    assert poison[0].given
    told = [str(w.message) for w in said if "of 64 members diverged" in str(w.message)]
    if where == "gradient" and value == 1e30:  # Adam takes a step of its usual size all the same
        assert len(told) <= 1
    else:
        assert len(told) == 1
        assert f"1 of 64 members diverged and are {WORDS[lost]} (member {member} " in told[0]
    others = [k for k in range(MEMBERS) if k != member]
    assert found.members == tuple(others if told and lost == "drop" else range(MEMBERS))
    rows = [found.members.index(k) for k in others]
    for name, p in whole.params.items():
        assert torch.equal(found.params[name][rows], p[others]), name
        if lost == "retry":
            assert found.params[name].isfinite().all()
    for mine, theirs in zip(found.history, whole.history, strict=True):
        assert torch.equal(mine[..., rows], theirs[..., others])


WORDS = {"retry": "trained again", "drop": "left out", "keep": "kept as they are"}
