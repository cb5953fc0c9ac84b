"""Data as users hand it in."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

from stochens import InputError
from stochens.data import source
from stochens.inputs import inputs
from stochens.trees import InputTree
from stochens_lab.data.digits import cut_photo_patches, read_digits


def test_arrays_and_lists_become_tensors():
    data = source((np.zeros((3, 2)), [0, 1, 1]))
    assert data.x.dtype == torch.float32  # numpy's float64 is nobody's choice
    assert data.y.dtype == torch.int64
    assert source((torch.zeros(3, 2, dtype=torch.float64), [0, 1, 1])).x.dtype == torch.float64


def test_a_dataset_is_read_in_its_order():
    class Squares(Dataset[Any]):
        def __len__(self) -> int:
            return 2500  # more than one block of reading

        def __getitem__(self, i):
            return torch.tensor([float(i)]), i % 2

    data = source(Squares())
    assert torch.equal(data.x[:, 0], torch.arange(2500.0))
    assert torch.equal(data.y, torch.arange(2500) % 2)


def test_a_loader_is_streamed():
    data = TensorDataset(torch.arange(10.0).view(10, 1), torch.zeros(10, dtype=torch.long))
    given = source(DataLoader(data, batch_size=4))
    assert given.size == 10
    assert [len(x) for x, _ in given.batches()] == [4, 4, 2]


def test_integer_inputs_are_fine_and_empty_ones_are_not():
    assert inputs(torch.arange(3)).dtype == torch.int64
    with pytest.raises(InputError, match="the data set is empty"):
        source(TensorDataset(torch.zeros(0, 2), torch.zeros(0)))


X, Y = torch.arange(2500.0).view(-1, 1), torch.zeros(2500, dtype=torch.long)  # two reads


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return iter(X)


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(X),
        TensorDataset(X, Y),
        Stream(),
        X.tolist(),
        DataLoader(TensorDataset(X, Y), batch_size=999),
        DataLoader(Stream(), batch_size=999),
        DataLoader(X, batch_sampler=BatchSampler(SequentialSampler(X), 999, drop_last=False)),
    ],
)
def test_inputs_alone_come_in_their_order(data):
    assert torch.equal(inputs(data), X)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(X, shuffle=True), "has a RandomSampler; build it with shuffle=False"),
        (DataLoader(X, sampler=SubsetRandomSampler([3, 1])), "has a SubsetRandomSampler"),
        (DataLoader(X, batch_sampler=[[3], [1]]), "has a list"),
        (DataLoader(X, batch_size=999, drop_last=True), "leaves rows out"),
        (
            DataLoader(X, batch_sampler=BatchSampler(RandomSampler(X), 999, drop_last=False)),
            "has a RandomSampler",
        ),
    ],
)
def test_inputs_in_another_order_are_refused(loader, message):
    with pytest.raises(InputError, match=message):
        inputs(loader)


@pytest.mark.parametrize("b", [X, X[:, 0], torch.cat([X, X], 1)])
def test_several_tensors_are_a_tree(b):
    for several in ((X, b), [X, b], {"a": X, "b": b}):
        x = source((several, Y)).x
        assert isinstance(x, InputTree)
        assert len(x) == len(X)
        assert all(torch.equal(t, u) for t, u in zip(x.leaves, (X, b), strict=True))
    assert isinstance(inputs((X, b)), InputTree)


def test_a_list_of_rows_is_one_tensor():
    rows = list(torch.zeros(6, 3))
    assert source((rows, [0] * 6)).x.shape == (6, 3)
    assert inputs(rows).shape == (6, 3)


def test_a_data_frame_is_read_without_a_warning(recwarn):
    frame = pytest.importorskip("pandas").DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
    assert inputs(frame).tolist() == [[1, 3], [2, 4]]
    array = np.zeros((2, 2))
    array.flags.writeable = False
    assert inputs(array).shape == (2, 2)
    assert not recwarn.list


def test_digits_split_by_class_and_photographs_are_no_digits():
    data = read_digits(seed=1)
    assert len(data.x_train) + len(data.x_test) == 1797
    shares = data.y_train.bincount() / len(data.y_train)
    assert float((shares - data.y_test.bincount() / len(data.y_test)).abs().max()) < 0.01
    assert not torch.equal(read_digits(seed=2).x_test, data.x_test)
    patches = cut_photo_patches(50, seed=3)
    assert patches.shape == (50, 1, 8, 8)
    assert float(patches.min()) == 0
    assert float(patches.max()) == 1
    assert torch.equal(patches, cut_photo_patches(50, seed=3))
