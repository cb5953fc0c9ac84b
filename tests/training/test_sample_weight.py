"""A row of weight w counts as w equal rows, held against data where it really stands w times."""

import pytest
import torch
from tests.tolerance import trained
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, Categorical, Data, Heteroscedastic, Homoscedastic, InputError, Replicas
from stochens.data import source
from stochens.objective import mean_nll

N = 40
CLOSE = trained(torch.float64, steps=30, rows=2 * N)


@pytest.fixture
def data(float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 2, generator=generator)
    return x, (x[:, 0] * x[:, 1] > 0).long()


WEIGHTS = torch.arange(N) % 4  # 0, 1, 2, 3, ...


def repeated(x, y):
    return x.repeat_interleave(WEIGHTS, 0), y.repeat_interleave(WEIGHTS, 0)


def fit(data, likelihood="categorical", **options):
    width = {"categorical": 2, "gaussian": 1, "heteroscedastic": 2}[likelihood]
    settings = {"method": "regular", "members": 3, "epochs": 30, "batch_size": None, "lr": 0.01}
    settings |= {"prior": 2.0, "device": "cpu", "likelihood": likelihood}
    return stochens.fit(MLP(2, 6, width), data, **(settings | options))


@pytest.mark.parametrize("likelihood", ["categorical", "gaussian", "heteroscedastic"])
@pytest.mark.parametrize("engine", ["vmap", "loop", "auto"])
def test_weights_are_repeated_rows(data, likelihood, engine):
    x, y = data
    y = y if likelihood == "categorical" else y.double() + x[:, 0]
    weighted = fit(Data((x, y), weights=WEIGHTS), likelihood, run=stochens.Run(engine=engine))
    rows = fit(repeated(x, y), likelihood, run=stochens.Run(engine=engine))
    for name, p in rows.params.items():
        torch.testing.assert_close(weighted.params[name], p, **CLOSE)
    # the record too: the KL loss in nats is of as many examples
    torch.testing.assert_close(weighted.history.loss, rows.history.loss)
    torch.testing.assert_close(weighted.history.nll, rows.history.nll)


def test_equal_weights_are_repeated_data(data):
    x, y = data
    weighted = fit(Data(data, weights=torch.full((N,), 2.0)))
    twice = fit((torch.cat([x, x]), torch.cat([y, y])))
    for name, p in twice.params.items():
        torch.testing.assert_close(weighted.params[name], p, **CLOSE)


def test_weights_of_one_change_nothing(data):
    # the same kernel and noise as without them: equal to the last bit
    options = {"method": "dropout", "batch_size": 16, "epochs": 3}
    plain, weighted = fit(data, **options), fit(Data(data, weights=torch.ones(N)), **options)
    assert all(torch.equal(plain.params[n], p) for n, p in weighted.params.items())


def test_batches_are_an_unbiased_estimate(data):
    """The mean over an epoch's batches of equal size is the loss of the whole data."""
    x, y = data
    given = source(Data((x, y), weights=1.0 + torch.arange(N)))
    params = fit(data, epochs=1).params
    nll = mean_nll(MLP(2, 6, 2), Categorical(), engine="vmap", weights=given.weights)
    order = torch.randperm(N).expand(3, N)
    parts = [nll(params, given.x, given.y, rows) for rows in order.split(8, dim=1)]
    whole = nll(params, given.x, given.y, None)
    torch.testing.assert_close(torch.stack(parts).mean(0), whole)


@pytest.mark.parametrize("likelihood", [Categorical(), Homoscedastic(0.3), Heteroscedastic()])
def test_the_weighted_mean_by_hand(float64, likelihood):
    outputs, y = torch.randn(3, 5, 2), torch.randn(3, 5, 1)
    if isinstance(likelihood, Categorical):
        y = (y[..., 0] > 0).long()
    weights = torch.rand(3, 5)
    each = [
        [likelihood.nll(outputs[m, b : b + 1], y[m, b : b + 1]) for b in range(5)] for m in range(3)
    ]
    expected = (torch.tensor(each) * weights).mean(1)
    torch.testing.assert_close(likelihood.nll(outputs, y, weights), expected)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(N - 1), r"one for each row of x, got \(39,\)"),
        (torch.ones(N, 1), r"got \(40, 1\)"),
        (-torch.ones(N), "not negative; row 0 has -1.0"),
        (torch.full((N,), float("nan")), "finite"),
        (torch.zeros(N), "0 for every row"),
        ("heavy", "weights holds no numbers"),
    ],
)
def test_bad_weights_are_refused(data, weights, message):
    with pytest.raises(InputError, match=message):
        fit(Data(data, weights=weights))


def test_weights_where_they_mean_nothing(data):
    loader = DataLoader(TensorDataset(*data), batch_size=8)
    with pytest.raises(InputError, match="not a DataLoader"):
        fit(Data(loader, weights=torch.ones(N)))
    with pytest.raises(InputError, match="not Replicas"):
        fit(Data(Replicas([data, data]), weights=torch.ones(N)))
    with pytest.raises(InputError, match="fused"):
        fit(Data(data, weights=WEIGHTS), run=stochens.Run(engine="fused"))


def test_a_checkpoint_of_other_weights_is_refused(data, tmp_path):
    fit(Data(data, weights=WEIGHTS + 1), epochs=2, run=stochens.Run(checkpoint=tmp_path / "kept"))
    with pytest.raises(InputError, match="the data differ"):
        fit(
            Data(data, weights=WEIGHTS + 2),
            epochs=2,
            run=stochens.Run(checkpoint=tmp_path / "kept"),
        )
    with pytest.raises(InputError, match="the data differ"):
        fit(
            Data(data, weights=torch.full((N,), 2)),
            epochs=2,
            run=stochens.Run(checkpoint=tmp_path / "kept"),
        )


def test_a_posterior_knows_how_many_examples_it_is_of(data, tmp_path):
    x, y = data
    weighted = fit(Data(data, weights=WEIGHTS), epochs=1)
    assert weighted.data_size == fit(repeated(x, y), epochs=1).data_size == 60
    assert repr(weighted).endswith("N = 60)")
    assert fit(Data(data, weights=WEIGHTS / 8), epochs=1).data_size == 7.5
    weighted.save(tmp_path / "kept")
    kept = stochens.load(tmp_path / "kept", MLP(2, 6, 2))
    assert (kept.data_size, kept.sample_weight) == (60, weighted.sample_weight)


def test_members_of_other_weights_are_not_joined(data):
    one, *others = (
        fit(Data(data, weights=weights), members=[k], epochs=1)
        for k, weights in enumerate([WEIGHTS, WEIGHTS, 2 * WEIGHTS, WEIGHTS.flip(0)])
    )
    assert len(stochens.join([one, others[0]])) == 2
    with pytest.raises(InputError, match="differ in data_size: 60 and 120"):
        stochens.join([one, others[1]])
    with pytest.raises(InputError, match="differ in sample_weight"):
        stochens.join([one, others[2]])
    ones = fit(Data(data, weights=torch.ones(N)), members=[7], epochs=1)
    assert len(stochens.join([fit(data, members=[0], epochs=1), ones])) == 2
