"""Data as users hand it in."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from stochens import InputError
from stochens.data.digits import digits, photo_patches
from stochens.data.source import inputs, source


def test_arrays_and_lists_become_tensors():
    data = source((np.zeros((3, 2)), [0, 1, 1]))
    assert data.x.dtype == torch.float32  # numpy's float64 is nobody's choice
    assert data.y.dtype == torch.int64
    assert source((torch.zeros(3, 2, dtype=torch.float64), [0, 1, 1])).x.dtype == torch.float64


def test_a_dataset_is_read_in_its_order():
    class Squares(Dataset):
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


def test_digits_split_by_class_and_photographs_are_no_digits():
    data = digits(seed=1)
    assert len(data.x_train) + len(data.x_test) == 1797
    shares = data.y_train.bincount() / len(data.y_train)
    assert float((shares - data.y_test.bincount() / len(data.y_test)).abs().max()) < 0.01
    assert not torch.equal(digits(seed=2).x_test, data.x_test)
    patches = photo_patches(50, seed=3)
    assert patches.shape == (50, 1, 8, 8)
    assert float(patches.min()) == 0
    assert float(patches.max()) == 1
    assert torch.equal(patches, photo_patches(50, seed=3))
