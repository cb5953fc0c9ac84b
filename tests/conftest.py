"""Shared by all tests: small data, and float64 where a comparison should be exact."""

import pytest
import torch
from hypothesis import settings
from torch import Tensor

# The machines that run this are noisy: a slow example is no failure.
settings.register_profile("stochens", deadline=None)
settings.load_profile("stochens")

# One thread for torch: the tensors here are small, and its threads spin while they wait for a core.
torch.set_num_threads(1)


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
