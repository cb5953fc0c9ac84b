"""A batch with fewer rows than the others counts by its rows, held against closed forms."""

import re
import warnings
from typing import Any

import pytest
import torch
from tests.running import fit_watched, gather
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import stochens
from stochens import Homoscedastic
from stochens.data import source
from stochens.samplers.gradients import batches
from stochens.samplers.problem import SamplerRequest, prepare
from stochens.training.shares import Shares

N, B = 33, 32
NOISE, PRECISION = 1.0, 2.0
pytestmark = pytest.mark.filterwarnings("ignore:targets have mean")  # the far row, on purpose
# Within an epoch the parameters go to and fro by rate * gradient / (1 - momentum). The rate falls
# to 0 by a cosine; where the steps that are left add up to a time of 1, 15 % before the end, the
# parameters stay. There it is 0.003 for the largest rate below, the far row's gradient about 3, and
# the to and fro at most 0.1; what does not average out of it is a small part. A last batch that
# counts as a whole one leads to a place that is 20 away.
NEAR = {"rtol": 0, "atol": 0.05}


@pytest.fixture
def far_last(float64):
    """The last row, alone in its batch, says something else than the others."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    y = x.sum(1, keepdim=True) + NOISE * torch.randn(N, 1, generator=generator)
    y[-1] = 100.0
    return x, y


def best(x, y, weights=None, *, precision=PRECISION):
    """The MAP of a linear Gaussian model, [weights..., bias]: (X'WX + lambda s^2)^-1 X'Wy."""
    rows = torch.cat([x, torch.ones(len(x), 1)], 1)
    heavy = rows if weights is None else weights.unsqueeze(1) * rows
    a = heavy.T @ rows + precision * NOISE**2 * torch.eye(3)
    return torch.linalg.solve(a, heavy.T @ y).squeeze(1)


def learned(data, **options):
    settings = {"method": "regular", "members": 2, "epochs": 200, "batch_size": B}
    settings |= {"prior": PRECISION, "likelihood": Homoscedastic(NOISE)}
    posterior = stochens.fit(nn.Linear(2, 1), data, **gather(**settings | options))
    return torch.cat([posterior.params["weight"].squeeze(1), posterior.params["bias"]], 1)


def in_order(data, size=B):
    return DataLoader(TensorDataset(*data), batch_size=size)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "sgd", "lr": 0.05},
        {"optimizer": "adam", "lr": 0.3},
        {"optimizer": "sgd", "lr": 0.05, "weight_decay": 10 / N},
        {"optimizer": "sgd", "lr": 0.05, "repulsion": 1e-3},  # too short to reach anyone
    ],
    ids=["sgd", "adam", "decay", "repulsion"],
)
def test_a_loader_in_a_fixed_order_leads_to_the_map(far_last, options):
    """An epoch's gradients sum to 0 at the MAP and nowhere else."""
    decay = N * options.get("weight_decay", 0.0)  # the loss is a mean over N rows
    found = learned(in_order(far_last), **options)
    expected = best(*far_last, precision=PRECISION + decay)
    torch.testing.assert_close(found, expected.expand(2, 3), **NEAR)


def test_the_example_that_was_wrong(float64):
    """Once 100 and else 0: a mean of 100 / (N + 1) by the prior, which came out as 50."""
    x, y = torch.zeros(N, 1), torch.zeros(N, 1)
    y[-1] = 100.0
    options = {"method": "regular", "members": 1, "epochs": 200, "optimizer": "sgd", "lr": 0.05}
    options |= {"likelihood": Homoscedastic(1.0)}
    posterior = stochens.fit(nn.Linear(1, 1), in_order((x, y)), **gather(**options))
    assert posterior.params["bias"].item() == pytest.approx(100 / (N + 1), abs=NEAR["atol"])


@pytest.mark.parametrize("engine", ["vmap", "fused"])
@pytest.mark.parametrize("weighted", [False, True])
def test_tensors_whose_batches_do_not_divide_them(far_last, engine, weighted):
    """One step of SGD without momentum moves by rate * gradient; at a rate near 0 an epoch moves by
    the sum of its gradients at one place, in any order: (N / B) times that of all the data."""
    x, y = far_last
    weights = 0.5 + torch.arange(N) % 3 if weighted else None
    if weighted and engine == "fused":
        pytest.skip("kernels know no weights")
    rate = 1e-7  # changes of the gradient on the way are of its square
    options = {"optimizer": "sgd", "lr": rate, "schedule": "constant", "epochs": 1}
    options |= {"engine": engine}
    data = stochens.Data((x, y), weights=weights)
    start = learned(data, **options | {"lr": 1e-300})
    moved = learned(data, **options | {"batch_size": 13}) - start  # 13, 13 and 7 rows
    # Nesterov's momentum m: three gradients g1, g2, g3 move by g1 (1 + m)(..): weigh them by hand
    m = 0.9
    gain = [1 + m + m**2 + m**3, 1 + m + m**2, 1 + m]  # of the first, the second, the third
    order = [
        stochens.randomness.seeds.permutations(N, seed=0, members=[k], epoch=0)[0] for k in range(2)
    ]
    w = torch.ones(N) if weights is None else weights * N / weights.sum()
    total = float(N) if weights is None else float(weights.sum())
    rows = torch.cat([x, torch.ones(N, 1)], 1)
    for k in range(2):
        expected = torch.zeros(3)
        for g, part in zip(gain, order[k].split(13), strict=True):
            error = rows[part] @ start[k] - y[part, 0]
            data = (w[part] * error) @ rows[part] / NOISE**2 / 13  # over B, not over the part
            expected -= rate * g * (data + len(part) / 13 * PRECISION * start[k] / total)
        torch.testing.assert_close(moved[k], expected, rtol=1e-4, atol=0)


def test_members_together_are_members_alone_and_those_in_blocks(far_last):
    options = {"epochs": 3, "batch_size": 13, "lr": 0.05}
    together = learned(far_last, members=3, **options)
    assert torch.equal(learned(far_last, members=[2], **options)[0], together[2])
    assert torch.equal(learned(far_last, members=3, chunk=2, **options), together)


def test_the_record_of_an_epoch_counts_rows(far_last):
    """At a rate of 0 the mean over batches is that of the data, in any order."""
    options = {"lr": 1e-300, "epochs": 2, "method": "regular", "members": 2}
    options |= {"likelihood": Homoscedastic(NOISE)}
    parts = stochens.fit(nn.Linear(2, 1), far_last, batch_size=13, **gather(**options)).history
    whole = stochens.fit(nn.Linear(2, 1), far_last, batch_size=None, **gather(**options)).history
    torch.testing.assert_close(parts.nll, whole.nll)  # float32 records
    torch.testing.assert_close(parts.loss, whole.loss)


def test_a_training_that_is_stopped_inside_an_epoch_goes_on(far_last, tmp_path):
    """The weight of the steps so far is kept with their sums."""

    class Stop(Exception):
        pass

    class Watch:
        def __init__(self, at):
            self.at = at

        def update(self, params, *, step, steps):
            if step == self.at:
                raise Stop

        def finish(self, params):
            return params, None

        def state(self):
            return {}

        def restore(self, state):
            pass

        def settings(self):
            return {}

    options = {"method": "regular", "members": 2, "epochs": 4, "batch_size": 13, "lr": 0.05}
    options |= {"likelihood": Homoscedastic(NOISE), "every": 0.0}
    net = nn.Linear(2, 1)
    whole = stochens.fit(net, far_last, **gather(**options))
    folder = tmp_path / "kept"
    with pytest.raises(Stop):  # after two of the three steps of the second epoch are kept
        fit_watched(net, far_last, lambda: Watch(6), checkpoint=folder, **options)
    again = fit_watched(net, far_last, lambda: Watch(-1), checkpoint=folder, **options)
    assert all(torch.equal(p, again.params[name]) for name, p in whole.params.items())
    assert all(torch.equal(a, b) for a, b in zip(whole.history, again.history, strict=True))


# Loaders of other kinds ---------------------------------------------------------------------------


class Sizes:
    """A batch sampler of one's own, with batches of these sizes."""

    def __init__(self, *sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __iter__(self):
        rows = iter(range(sum(self.sizes)))
        for size in self.sizes:
            yield [next(rows) for _ in range(size)]


def test_batches_of_any_sizes_lead_to_the_map(far_last):
    loader = DataLoader(TensorDataset(*far_last), batch_sampler=Sizes(1, 20, 4, 8))
    share = Shares(source(loader), B)
    shares = [share(batch) for batch in loader]
    assert shares == pytest.approx([4 * size / N for size in (1, 20, 4, 8)])
    found = learned(loader, optimizer="sgd", lr=0.02)
    torch.testing.assert_close(found, best(*far_last).expand(2, 3), **NEAR)


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        ((10, 6), "16 rows in its first epoch.* 33, .*of 2.06"),
        ((11, 11), "22 rows in its first epoch.* 33, .*of 1.5:"),  # as many as a batch are left out
        ((10, 16), None),
    ],
)
def test_rows_that_a_sampler_of_ones_own_leaves_out_are_told_of(far_last, sizes, said):
    """7 of 33 may be the rest of a last batch, and others the next time."""
    loader = DataLoader(TensorDataset(*far_last), batch_sampler=Sizes(*sizes))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learned(loader, epochs=2)
    found = [w for w in caught if "rows in its first epoch" in str(w.message)]
    assert len(found) == (said is not None)
    assert said is None or re.search(said, str(found[0].message))


def test_rows_that_torchs_samplers_leave_out_may_come_later(far_last):
    data = TensorDataset(*far_last)
    loader = DataLoader(data, batch_size=5, sampler=RandomSampler(data, num_samples=10))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learned(loader, epochs=2)
    assert not [w for w in caught if "rows in its first epoch" in str(w.message)]


def test_a_loader_that_doubles_its_rows_keeps_its_rate(far_last):
    def twice(rows):
        x, y = (torch.stack(part) for part in zip(*rows, strict=True))
        return x.repeat(2, 1), y.repeat(2, 1)

    loader = DataLoader(TensorDataset(*far_last), batch_size=16, collate_fn=twice)
    share = Shares(source(loader), B)
    assert [share(batch) for batch in loader] == [1.0, 1.0, 1 / 16]


# Samplers -----------------------------------------------------------------------------------------


def test_every_batch_of_a_sampler_is_whole_and_every_row_comes_as_often(xor):
    x, y = xor
    request = SamplerRequest(net=nn.Linear(2, 2), data=(x, y), members=[0, 3])
    problem = prepare(request)
    stream: Any = batches(problem, 25)
    rows = torch.cat([next(stream) for _ in range(12)], 1)  # 300 rows of 60: five epochs
    assert rows.shape == (2, 300)
    for chain in rows:
        assert (chain.bincount(minlength=60) == 5).all()
        assert (chain[:60].sort().values == torch.arange(60)).all()
