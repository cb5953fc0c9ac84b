"""`fit` on a stream: the members of a loader, N as the user says it, passes and places in them."""

import importlib.util
import itertools
import math
import warnings
from typing import Any

import pytest
import torch
from tests.tolerance import trained
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import stochens
from stochens import MLP, Data, InputError
from stochens.data import source
from stochens.streams import Reader

N, ROWS = 50, 16
X, Y = stochens.toy_set("a", n=N)
OPTIONS: dict[str, Any] = {"members": 3, "epochs": 3, "batch_size": ROWS, "device": "cpu"}


class Stream(IterableDataset[Any]):
    """Rows in their order, or shuffled by torch's generator."""

    def __init__(self, x=X, y=Y, *, shuffle=False):
        self.x, self.y, self.shuffle = x, y, shuffle

    def __iter__(self):
        order = torch.randperm(len(self.x)) if self.shuffle else torch.arange(len(self.x))
        return ((self.x[k], self.y[k]) for k in order)


class Batches(Stream):
    """Which makes the batches itself."""

    def __iter__(self):
        return iter(zip(self.x.split(ROWS), self.y.split(ROWS), strict=True))


class HuggingFace:
    """What `datasets.IterableDataset` can do that is asked of it; it need not be torch's class."""

    column_names = None

    def __init__(self, x=X, *, torch_format=False):
        self.x, self.torch_format, self.epochs = x, torch_format, []

    def with_format(self, kind):
        assert kind == "torch"
        made = HuggingFace(self.x, torch_format=True)
        made.epochs = self.epochs
        return made

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        for k, row in enumerate(self.x):
            numbers = row if self.torch_format else row.tolist()
            yield {"input": numbers, "text": "words", "label": int(Y[k % N])}


class Network(nn.Sequential):
    def forward(self, input):
        return super().forward(input)


def network():
    return Network(nn.Linear(2, 5), nn.ReLU(), nn.Linear(5, 2))


def fit(data, **options):
    return stochens.fit(network, data, **OPTIONS | options)


def same(one, other):
    assert all(torch.equal(p, other.params[name]) for name, p in one.params.items())


LOADER = DataLoader(TensorDataset(X, Y), batch_size=ROWS)


@pytest.mark.parametrize(
    "stream",
    [
        Stream(),
        DataLoader(Stream(), batch_size=ROWS),
        DataLoader(Batches(), batch_size=None),
        HuggingFace(),
    ],
    ids=["dataset", "loader", "batches", "hugging face"],
)
def test_members_are_those_of_a_loader(stream, recwarn):
    """With N rows, an epoch is a pass, its short last batch counts by its rows, and none warns. The
    dictionaries of Hugging Face go through vmap, and the others through the kernel, which rounds
    in another order."""
    posterior, known = fit(Data(stream, size=N)), fit(LOADER)
    assert posterior.data_size == N
    if isinstance(stream, HuggingFace):
        for name, p in posterior.params.items():
            within = trained(p.dtype, steps=12, rows=ROWS)
            torch.testing.assert_close(p, known.params[name], **within)
    else:
        same(posterior, known)
    assert not [w for w in recwarn if "stream" in str(w.message)]


@pytest.mark.skipif(not importlib.util.find_spec("datasets"), reason="needs datasets")
def test_the_real_hugging_face():
    import datasets

    def rows():
        yield from (
            {"input": r.tolist(), "text": "a", "label": int(t)} for r, t in zip(X, Y, strict=True)
        )

    stream = datasets.IterableDataset.from_generator(rows)
    same(fit(Data(stream, size=N)), fit(LOADER))


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (Stream(), {}, r"Stream is a stream without a length.*stochens\.Data\(data, size=N\)"),
        (HuggingFace(), {}, r"HuggingFace is a stream without a length"),
        (DataLoader(Batches(), batch_size=None), {}, "Batches is a stream without a length"),
        (Data(Stream(), size=N), {"batch_size": None}, "batch_size=None is all of the data"),
        (Data((X, Y), size=N), {}, "size=50 is how many rows a stream has, and the data is a tup"),
        (Data(LOADER, size=N), {}, "the data is a DataLoader, which knows that itself"),
        (Data(Stream(X[:0], Y[:0]), size=N), {}, "the stream is empty"),
        (stochens.Replicas([Stream(), Stream()]), {}, "Replicas must hold data sets in memory"),
        (
            Data(Stream(), size=N),
            {"bootstrap": True},
            "bootstrap=True draws rows of data in memory",
        ),
        (Data(Stream(), size=N, weights=[1.0] * N), {}, "weights need one data set in memory"),
        (Data(Stream(), size=N), {"validation": 0.1}, "not|takes rows of one data set in memory"),
    ],
)
def test_what_a_stream_cannot_do_is_refused(data, options, message):
    with pytest.raises(InputError, match=message):
        fit(data, **options)


@pytest.mark.parametrize("size", [0, -3, 2.5, "many"])
def test_a_size_is_a_whole_number(size):
    with pytest.raises(InputError, match="size"):
        Data(Stream(), size=size)


def test_a_generator_is_no_stream_that_can_be_read_again():
    class Once(Stream):
        def __init__(self):
            super().__init__()
            self.rows = super().__iter__()

        def __iter__(self):
            return self.rows

    with pytest.raises(InputError, match="Once can be read once: its __iter__ returns the same"):
        fit(Data(Once(), size=N))

    class Exhausted(Stream):
        def __init__(self):
            super().__init__()
            self.rows = super().__iter__()

        def __iter__(self):
            for row in self.rows:  # noqa: UP028, which would close them
                yield row

    with (
        pytest.warns(UserWarning, match="the stream ended after 34 rows"),  # 16 for the first look
        pytest.raises(InputError, match="cannot be read again: pass 2 over it has no rows"),
    ):
        fit(Data(Exhausted(), size=N))


def test_samplers_say_what_they_take_instead():
    for data in (Stream(), Data(DataLoader(Stream(), batch_size=5), size=N)):
        with pytest.raises(InputError, match=r"its own order; give .*memory-mapped arrays"):
            stochens.sgmcmc(network, data)


def test_the_size_is_the_n_of_the_posterior():
    """Rows that count twice by N = 2 n are rows of weight 2: mean NLL + KL / (2 n)."""
    x = X.double()
    options = {"method": "regular", "batch_size": N, "prior": 30.0, "lr": 0.03, "device": None}
    options["run"] = stochens.Run(device="cpu", precision="float64")
    with pytest.warns(UserWarning, match="ended after 50 rows, and Data.*N = 100.*counts 2 times"):
        doubled = fit(Data(Stream(x), size=2 * N), epochs=3, **options)  # two passes an epoch
    weighted = fit(Data((x, Y), weights=[2.0] * N), epochs=6, **options)
    plain = fit((x, Y), epochs=6, **options)
    assert doubled.data_size == weighted.data_size == 2 * N
    within = trained(torch.float64, steps=6, rows=N)
    for name, p in weighted.params.items():
        torch.testing.assert_close(doubled.params[name], p, **within)
    apart = [(doubled.params[n] - p).abs().max() for n, p in plain.params.items()]
    assert max(apart) > 10 * within["atol"]  # the prior is seen


def numbers(count):
    return Stream(torch.arange(float(count)).unsqueeze(1), torch.zeros(count).long())


def taken(stream, epochs):
    """The numbers of each batch that a reader gives, epoch by epoch, and what it warns of."""
    given = source(stream, batch_size=4)
    reader = Reader(given.stream, 0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        each = [
            [x.flatten().int().tolist() for x, _ in reader.take(given.stream.batches)]
            for _ in range(epochs)
        ]
    return each, [str(w.message) for w in told], reader


@pytest.mark.parametrize(
    ("size", "epochs", "said"),
    [
        (10, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2, []),
        (4, [[[0, 1, 2, 3]], [[4, 5, 6, 7]], [[8, 9]], [[0, 1, 2, 3]]], ["goes on", "10 rows"]),
        (9, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]], ["goes on", "10 rows"]),
        (11, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]] * 2, ["10 rows"]),  # in the first epoch
        (13, [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9], [0, 1, 2, 3]]], ["10 rows"]),
    ],
)
def test_an_epoch_has_n_rows_and_the_stream_is_read_again_when_it_ends(size, epochs, said):
    each, told, _ = taken(Data(numbers(10), size=size), len(epochs))
    assert each == epochs
    assert len(told) == len(said)
    for text, part in zip(told, said, strict=True):
        assert part in text
        assert f"N = {size}" in text


def test_a_stream_without_end_goes_on():
    class Endless(IterableDataset[Any]):
        def __iter__(self):
            return ((torch.tensor([float(k)]), 0) for k in itertools.count())

    each, told, _ = taken(Data(Endless(), size=8), 3)
    assert each == [
        [[8 * k, 8 * k + 1, 8 * k + 2, 8 * k + 3], [*range(8 * k + 4, 8 * k + 8)]] for k in range(3)
    ]
    assert len(told) == 1
    assert "goes on after 8 rows" in told[0]


class Counted(Stream):
    def __len__(self):
        return len(self.x)


def test_a_length_of_its_own_is_a_size_and_dropped_rows_are_no_surprise(recwarn):
    assert source(Counted()).size == N
    loader = DataLoader(Counted(), batch_size=ROWS, drop_last=True)
    fit(loader)
    assert source(loader).stream.batches == 3
    assert not [w for w in recwarn if "stream" in str(w.message)]
    lies = Counted()
    lies.x = X[:40]
    lies.__class__ = type("Lies", (Counted,), {"__len__": lambda _: N})
    with pytest.warns(UserWarning, match="ended after 40 rows, and the length of Lies is N = 50"):
        fit(lies)


def test_each_pass_has_a_number_and_random_numbers_of_its_own():
    face = HuggingFace()
    fit(Data(face, size=N), epochs=2)
    assert face.epochs == [0, 0, 1]  # a look at the first batch, then two passes
    passes, _, _ = taken(
        Data(Stream(torch.arange(10.0)[:, None], torch.zeros(10), shuffle=True), size=10), 3
    )
    orders = [[k for batch in batches for k in batch] for batches in passes]
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 3


@pytest.mark.parametrize("size", [N, 20])
def test_blocks_of_any_size_and_a_run_that_goes_on_see_the_same(size, tmp_path):
    """A shuffled stream; with size=20 the end of an epoch lies inside a pass."""
    data = Data(Stream(shuffle=True), size=size)

    def stop(view):
        if view.epoch == 2:
            raise RuntimeError("stop here")

    def run(**options):
        return stochens.Run(device="cpu", progress=False, **options)

    options = {"method": "dropout", "epochs": 4, "device": None}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the stream")
        whole = fit(data, run=run(), **options)
        same(fit(data, run=run(chunk=1), **options), whole)
        kept = run(checkpoint=tmp_path / "kept", every=0)
        with pytest.raises(Exception, match="stop here"):
            fit(data, run=kept, callbacks=stop, **options)
        same(fit(data, run=kept, **options), whole)


def test_another_stream_is_not_gone_on_with(tmp_path):
    run = stochens.Run(device="cpu", progress=False, checkpoint=tmp_path / "kept")
    fit(Data(Stream(), size=N), run=run, device=None)
    with pytest.raises(InputError, match="data"):
        fit(Data(Stream(X.flip(0), Y.flip(0)), size=N), run=run, device=None)
    with (
        pytest.raises(InputError, match="data"),
        warnings.catch_warnings(action="ignore"),
    ):
        fit(Data(Stream(), size=N + 1), run=run, device=None)
    given = source(Data(numbers(10), size=4), batch_size=4)
    with (
        warnings.catch_warnings(action="ignore"),
        pytest.raises(InputError, match="another one now: the run was at row 12 of it, after"),
    ):
        Reader(given.stream, 0).restore({"place": torch.tensor([0, 3, 12])})


def test_what_else_takes_a_stream(recwarn):
    data = Data(Stream(), size=N)
    same(
        stochens.multiswag(MLP(2, 5, 2), data, rank=3, **OPTIONS),
        stochens.multiswag(MLP(2, 5, 2), LOADER, rank=3, **OPTIONS),
    )
    posterior = fit(
        Data(Stream(), size=N, augment=lambda x, y: (x + torch.randn_like(x), y)),
        validation=Data(Stream(), size=N),
        optimizer=stochens.Optimizer(accumulate=2),
    )
    assert posterior.history.validation.shape == (3, 3)
    assert bool(posterior.history.validation.isfinite().all())
    tempered = stochens.calibration.fit_temperature(posterior, data)
    assert math.isclose(
        tempered.calibration.temperature,
        stochens.calibration.fit_temperature(posterior, (X, Y)).calibration.temperature,
    )
    assert len(posterior.predict(data).mean) == N
    assert not [w for w in recwarn if "stream" in str(w.message)]
