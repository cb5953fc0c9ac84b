"""Shared by all tests: small data, and float64 where a comparison should be exact."""

import os

import pytest
import torch
from hypothesis import settings
from torch import Tensor

# The machines that run this are noisy: a slow example is no failure.
settings.register_profile("stochens", deadline=None)
settings.load_profile("stochens")

# One thread for torch: the tensors here are small, and its threads spin while they wait for a core.
# Another number, to see what another order of sums does, is had by TEST_THREADS.
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))

# Those that wait for other processes most of their time, so that none is left alone at the end.
FIRST = ("test_cluster.py", "test_kills.py", "test_workers.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {name: k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))


@pytest.fixture
def float64():
    """Networks built inside the test are float64, so that rounding hides nothing."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.fixture
def xor() -> tuple[Tensor, Tensor]:
    """60 points [60, 2] and the sign of their product [60]."""
    x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    return x, (x[:, 0] * x[:, 1] > 0).long()
