"""The same on a GPU as on the CPU. Skipped where there is none."""

import pytest
import torch
from torch import nn

import stochens
from stochens import FRN, MLP, Dropout, Gaussian, NPDropout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")

METHODS = ["regular", "dropout", "dropconnect", "np-dropout", [NPDropout(), Gaussian(learn=True)]]


def images() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(96, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    return x, (x.mean((1, 2, 3)) > 0).long()


def convnet() -> nn.Module:
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 64, 2))
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), FRN(4), nn.SiLU(), head)


def test_members_are_those_of_the_cpu(float64, xor):
    data = xor[0].double(), xor[1]
    options = {"method": "regular", "members": 4, "epochs": 5, "batch_size": 20, "lr": 0.01}
    cpu, gpu = (stochens.fit(MLP(2, 8, 2), data, device=d, **options) for d in ("cpu", "cuda"))
    for name, p in cpu.params.items():
        # float64 rounding over 15 steps
        torch.testing.assert_close(gpu.params[name].cpu(), p, rtol=1e-8, atol=1e-10)
    p, q = cpu.predict(data[0]), gpu.predict(data[0])
    torch.testing.assert_close(p.probs, q.probs, rtol=1e-8, atol=1e-10)


def test_a_network_that_lives_on_the_gpu_is_fine():
    x, y = images()
    for net in (convnet().cuda(), lambda: convnet().cuda()):
        posterior = stochens.fit(net, (x.cuda(), y), method="dropout", members=2, epochs=1)
        assert next(iter(posterior.params.values())).is_cuda
    make = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 1)).cuda()  # noqa: E731
    target = x.mean((1, 2, 3)).cuda()
    known = stochens.fit(
        make, (x.cuda(), target), method="regular", likelihood="gaussian", members=2, epochs=1
    )
    assert known.predict(x.cuda()).std.shape == (96, 1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("bf16", [False, True])
def test_every_method_trains_predicts_and_saves(method, bf16, tmp_path):
    x, y = images()
    posterior = stochens.fit(
        convnet, (x, y), method=method, members=3, epochs=30, batch_size=32, lr=0.01, bf16=bf16
    )
    assert posterior.history.nll[-1].mean() < 0.9 * posterior.history.nll[0].mean()
    p = posterior.predict(x, draws=2, seed=1)
    assert torch.equal(p.probs, posterior.predict(x, draws=2, seed=1).probs)
    assert posterior.kl().total == pytest.approx(posterior.to("cpu").kl().total, rel=1e-9)
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", convnet)
    assert again.predict(x).mean.shape == (96, 2)
    assert next(iter(again.params.values())).device.type == "cpu"


def test_memory_is_shared_out_by_what_is_free():
    x, y = images()
    posterior = stochens.fit(convnet, (x, y), method=Dropout(0.1), members=5, epochs=1, chunk=2)
    assert len(posterior) == 5
    swag = stochens.multiswag(convnet, (x, y), members=2, epochs=30, snapshots=4, rank=3)
    assert swag.predict(x, draws=2).probs.shape == (4, 96, 2)
