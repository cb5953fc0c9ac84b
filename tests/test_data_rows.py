"""Data as the user gives them: how many rows there are."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from stochens import InputError
from stochens.data import source

ROWS = TensorDataset(torch.zeros(100, 2), torch.zeros(100, dtype=torch.long))


class Stream(IterableDataset[Any]):
    def __iter__(self):
        return iter(ROWS)


class Counted(Stream):
    def __len__(self):
        return len(ROWS)


@pytest.mark.parametrize(
    ("sampler", "rows"),
    [
        (None, 100),
        (SubsetRandomSampler(range(10)), 10),
        (RandomSampler(ROWS, num_samples=30), 100),  # other 30 in the next epoch
        (WeightedRandomSampler([1.0] * 100, 300), 100),
        ([3, 1, 4], 3),
    ],
)
def test_the_rows_of_a_loader_are_those_that_it_shows(sampler, rows):
    assert source(DataLoader(ROWS, batch_size=5, sampler=sampler)).size == rows


def test_rows_that_are_always_dropped_do_not_count():
    """In the order of the data they are the same in every epoch, and shuffled they are others."""
    assert source(DataLoader(ROWS, batch_size=30, drop_last=True)).size == 90
    assert source(DataLoader(ROWS, batch_size=30, drop_last=True, shuffle=True)).size == 100
    batches = BatchSampler(SequentialSampler(ROWS), 30, drop_last=True)
    assert source(DataLoader(ROWS, batch_sampler=batches)).size == 90


def test_a_stream_has_the_rows_that_it_says():
    assert source(DataLoader(Counted(), batch_size=5)).size == 100
    with pytest.raises(InputError, match=r"Stream is .*Data\(data, size=N\), or .* a __len__"):
        source(DataLoader(Stream(), batch_size=5))


def test_a_sampler_inside_of_batches_counts_too():
    """DataLoader.sampler is then torch's own for all rows, which nobody asks."""
    batches = BatchSampler(SubsetRandomSampler(range(10)), 5, drop_last=False)
    assert source(DataLoader(ROWS, batch_sampler=batches)).size == 10
    batches = BatchSampler(RandomSampler(ROWS), 5, drop_last=False)
    assert source(DataLoader(ROWS, batch_sampler=batches)).size == 100


def test_a_length_in_batches_is_no_number_of_rows():
    """The prior would weigh as many times too much as there are rows in a batch."""
    batches = [(torch.zeros(25, 2), torch.zeros(25, dtype=torch.long))] * 4
    with pytest.raises(InputError, match="batch_size=None"):
        source(DataLoader(batches, batch_size=None))


def test_values_that_are_not_there_are_refused():
    x, y = torch.rand(4, 2), torch.zeros(4, dtype=torch.long)
    with pytest.raises(InputError, match="x has masked values"):
        source((np.ma.masked_array(x.numpy(), mask=x.numpy() > x.numpy().min()), y))
    assert torch.equal(source((np.ma.masked_array(x.numpy()), y)).x, x)
    with pytest.raises(InputError, match=r"use x\.to_dense\(\)"):
        source((x.to_sparse(), y))


def test_an_empty_loader_is_refused():
    with pytest.raises(InputError, match="the DataLoader is empty"):
        source(DataLoader(TensorDataset(torch.zeros(0, 2), torch.zeros(0)), batch_size=5))
