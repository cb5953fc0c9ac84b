"""Data as the user gives them: how many rows there are."""

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from stochens import InputError
from stochens.data.source import source

ROWS = TensorDataset(torch.zeros(100, 2), torch.zeros(100, dtype=torch.long))


class Stream(IterableDataset):
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


def test_a_stream_has_the_rows_that_it_says():
    assert source(DataLoader(Counted(), batch_size=5)).size == 100
    with pytest.raises(InputError, match="__len__"):
        source(DataLoader(Stream(), batch_size=5))


def test_an_empty_loader_is_refused():
    with pytest.raises(InputError, match="the DataLoader is empty"):
        source(DataLoader(TensorDataset(torch.zeros(0, 2), torch.zeros(0)), batch_size=5))
