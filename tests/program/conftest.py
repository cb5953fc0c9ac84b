"""What every test of programs wants of torch.compile."""

from collections.abc import Iterator

import pytest
import torch._functorch.config
import torch._inductor.config


@pytest.fixture(autouse=True)
def no_graphs_from_disk() -> Iterator[None]:
    """torch keeps compiled graphs on disk without a word on ATEN_CPU_CAPABILITY: one that another
    capability left there does not compile again."""
    inductor = torch._inductor.config.patch(fx_graph_cache=False)
    autograd = torch._functorch.config.patch(enable_autograd_cache=False)
    with inductor, autograd:
        yield
