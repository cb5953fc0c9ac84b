"""Faults on a GPU: training goes on to rounding, lost members harm nobody, memory ends."""

import pytest
import torch
from tests.running import gather
from torch import nn

import stochens
from stochens.networks import ResNet20FRN

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")


def images(number: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (number,), generator=generator)
    return torch.randn(number, 3, 32, 32, generator=generator) + y.view(-1, 1, 1, 1), y


def network() -> nn.Module:
    return ResNet20FRN(classes=2)


@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect"])
@pytest.mark.parametrize(
    "precision", ["float32", "bf16"]
)  # by vmap, and by the kernels where they run
def test_a_stopped_training_goes_on_to_rounding(method, precision, tmp_path):
    options = {"method": method, "members": 2, "epochs": 4, "batch_size": 32, "optimizer": "sgd"}
    options |= {"lr": 0.01, "precision": precision, "device": "cuda", "seed": 3}
    whole = stochens.fit(network, images(), **gather(**options))

    def stop(epoch: int, values: dict[str, float]) -> None:
        if epoch == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stochens.fit(network, images(), **gather(log=stop, checkpoint=tmp_path, every=0, **options))
    again = stochens.fit(network, images(), **gather(checkpoint=tmp_path, **options))
    for name, p in whole.params.items():
        # cuDNN and the kernels may add in another order; 8 steps at a small rate
        torch.testing.assert_close(again.params[name], p, rtol=1e-2, atol=2e-3)


@pytest.mark.parametrize("lost", ["drop", "keep"])
def test_a_lost_member_harms_nobody(lost):
    options = {"method": "regular", "epochs": 3, "batch_size": 32, "optimizer": "sgd", "lr": 0.01}
    options |= {"device": "cuda", "precision": "bf16", "on_divergence": lost}
    start = stochens.fit(network, images(), members=4, **gather(**options | {"epochs": 1})).params
    poisoned = {name: p.clone() for name, p in start.items()}
    poisoned["head.weight"][2] = float("nan")
    healthy = stochens.fit(network, images(), members=4, start=start, **gather(**options))
    with pytest.warns(UserWarning, match="member"):
        found = stochens.fit(network, images(), members=4, start=poisoned, **gather(**options))
    assert found.members == ((0, 1, 3) if lost == "drop" else (0, 1, 2, 3))
    for name, p in healthy.params.items():
        for member in (0, 1, 3):
            row = found.members.index(member)
            # the same operations on the same rows of the same memory
            torch.testing.assert_close(found.params[name][row], p[member], rtol=1e-2, atol=2e-3)


def test_memory_that_ends_halves_the_blocks():
    """Really: the process gets 3 GiB, and 256 members of a batch of 64 want more."""
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((3 << 30) / total)
    try:
        with pytest.warns(UserWarning, match="at a time do not fit"):
            posterior = stochens.fit(
                network,
                images(),
                method="regular",
                members=256,
                epochs=1,
                batch_size=64,
                device="cuda",
                run=stochens.Run(engine="vmap"),
            )
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert len(posterior) == 256
