"""What every test of programs wants of torch.compile."""

import pytest


@pytest.fixture(autouse=True)
def no_graphs_from_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch keeps compiled graphs on disk without a word on ATEN_CPU_CAPABILITY: one that another
    capability left there does not compile again."""
    monkeypatch.setattr("torch._inductor.config.fx_graph_cache", False)
