from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data():
    """The real files beside the repository."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "cifar10" / "hmc_probs.npy").is_file():
        pytest.skip(f"no real data: {folder} has no cifar10/hmc_probs.npy")
    return folder
