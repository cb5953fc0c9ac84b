"""What tests of the samplers' own calls share."""

import pytest
import torch

quiet = pytest.mark.filterwarnings("ignore::UserWarning")  # runs this short are not to be trusted


def same(a, b):
    """Two posteriors with the same draws, statistics and state, to the bit."""
    for name, p in a.params.items():
        assert torch.equal(p, b.params[name]), name
    for name, s in a.chains.stats.items():
        assert torch.equal(s, b.chains.stats[name]), name
    for name, s in a.chains.state.items():
        assert torch.equal(s, b.chains.state[name]), name
