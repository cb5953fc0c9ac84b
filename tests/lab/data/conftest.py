from pathlib import Path

import pytest


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, not yet made."""
    folder = tmp_path / "cache of images"
    monkeypatch.setenv("STOCHENS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="session")
def shared_data():
    """The real files beside the repository."""
    folder = Path(__file__).parents[3] / "shared" / "data"
    if not (folder / "cifar10" / "hmc_probs.npy").is_file():
        pytest.skip(f"no real data: {folder} has no cifar10/hmc_probs.npy")
    return folder
