"""Shared by all tests: small data, and float64 where a comparison should be exact."""

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import settings
from tests.torchvision_on_cpu import let_torchvision_import
from torch import Tensor

let_torchvision_import()

# Some tests press Ctrl-C. A shell makes what it starts in the background deaf to it.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The machines that run this are noisy: a slow example is no failure.
settings.register_profile("stochens", deadline=None)
settings.load_profile("stochens")

# One thread for torch: the tensors here are small, and its threads spin while they wait for a core.
# Another number, to see what another order of sums does, is had by TEST_THREADS.
torch.set_num_threads(int(os.environ.get("TEST_THREADS", "1")))

# Those that wait for other processes most of their time, so that none is left alone at the end.
FIRST = ("test_cluster.py", "test_kills.py", "test_workers.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    place = {name: k for k, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(FIRST)))
    if config.option.markexpr:
        return
    # Long ones (tests/long.py) are for those who ask by -m, or name them: file.py::test
    here = config.invocation_params.dir
    named = {here / arg.split("::")[0] for arg in config.args if "::" in arg}
    left_out = [t for t in items if t.get_closest_marker("long") and t.path not in named]
    config.hook.pytest_deselected(items=left_out)
    gone = {item.nodeid for item in left_out}
    items[:] = [item for item in items if item.nodeid not in gone]


# Ray notices after seconds, not minutes, that a node is gone
WATCHFUL = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500}
WATCHFUL |= {"health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
# and its workers have as much of a busy core as the tests beside them: by itself a thirtieth
EVEN = {"worker_niceness": 0}


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """Two nodes with a core each, both on this machine. Those who ask for it are in the xdist group
    "ray": one process, and so one cluster, for all of them."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'stochens[ray]'")
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    head = {**node, "include_dashboard": False, "_system_config": WATCHFUL | EVEN}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(**node)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(autouse=True)
def _same_numbers() -> None:
    """Whatever ran before in this process, a test draws the same from torch."""
    torch.manual_seed(0)


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
