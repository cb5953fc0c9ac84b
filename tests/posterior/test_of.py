"""Networks that were trained elsewhere, as a posterior: `Posterior.of`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stochens
from stochens import InputError, Posterior, Prior
from stochens.posterior.templates import fold_statistics

X = torch.randn(30, 3, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(16, 2, 5, 5, generator=torch.Generator().manual_seed(0))
CLOSE: dict[str, Any] = {"rtol": 1e-5, "atol": 1e-6}  # float32, another order of sums


def small(seed: int) -> Any:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


def convolution(seed: int, *, affine: bool = True, same: bool = False) -> Any:
    """With batch statistics of its own, unless they are the `same` for all."""
    torch.manual_seed(seed)
    norm = nn.BatchNorm2d(4, affine=affine, eps=0.1)
    net = nn.Sequential(nn.Conv2d(2, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    torch.manual_seed(0 if same else seed)
    norm.running_mean, norm.running_var = torch.randn(4), torch.rand(4) * 50
    if affine:
        nn.init.normal_(norm.weight)
        nn.init.normal_(norm.bias)
    return net.eval()


@pytest.mark.parametrize("given", ["modules", "state dicts", "state dicts of a function"])
def test_it_predicts_what_the_networks_predict(given: str, tmp_path: Path) -> None:
    nets = [small(k) for k in range(3)]
    if given == "modules":
        posterior = Posterior.of(nets, example=X)
    else:
        plain = small(7) if given == "state dicts" else lambda: small(7)
        posterior = Posterior.of([net.state_dict() for net in nets], net=plain, example=X)
    known = torch.stack([net(X).softmax(-1) for net in nets]).detach()
    torch.testing.assert_close(posterior.predict(X).probs, known, **CLOSE)
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", small(9))
    assert torch.equal(again.predict(X).probs, posterior.predict(X).probs)
    assert repr(again) == "Posterior(3 members, regular, N not known)"
    for k, net in enumerate(nets):
        for name, t in posterior.member(k).items():
            assert torch.equal(t, net.state_dict()[name])
    two = [Posterior.of(nets[:1]), Posterior.of(nets[1:], members=[1, 2])]
    assert torch.equal(stochens.join(two).predict(X).probs, posterior.predict(X).probs)
    assert torch.equal(posterior.take([2]).predict(X).mean, posterior.predict(X).probs[2])
    y = (X[:, 0] > 0).long()
    table = stochens.compare({"mine": posterior.predict(X), "again": again.predict(X)}, y)
    assert "mine" in str(table)


@pytest.mark.parametrize("case", ["affine", "not affine", "same statistics"])
def test_batch_statistics_of_each_network_are_kept(case: str, tmp_path: Path) -> None:
    options = {"affine": case != "not affine", "same": case == "same statistics"}
    nets = [convolution(k, **options) for k in range(3)]
    known = torch.stack([net(IMAGES).softmax(-1) for net in nets]).detach()
    assert (known[0] - known[1]).abs().max() > 0.01  # which no rounding would hide
    for given in (nets, [net.state_dict() for net in nets]):
        posterior = Posterior.of(given, net=nets[0], example=IMAGES)
        torch.testing.assert_close(posterior.predict(IMAGES).probs, known, **CLOSE)
    assert "1.weight" in posterior.params
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", convolution(8, **options))
    assert torch.equal(again.predict(IMAGES).probs, posterior.predict(IMAGES).probs)
    if case == "same statistics":
        assert torch.equal(posterior.params["1.weight"][2], nets[2][1].weight)


def test_folded_statistics_are_the_same_map() -> None:
    """In float64, at statistics that are far from 0 and 1."""
    generator = torch.Generator().manual_seed(0)
    for scale in (1e-6, 1.0, 1e6):
        norm = nn.BatchNorm1d(5, eps=1e-3).double().eval()
        norm.running_mean = scale * torch.randn(5, generator=generator).double()
        norm.running_var = (scale * torch.randn(5, generator=generator).double()).square()
        nn.init.normal_(norm.weight)
        x = scale * torch.randn(7, 5, generator=generator).double()
        weight, bias = fold_statistics(
            norm.running_mean, norm.running_var, norm.weight, norm.bias, norm.eps
        )
        found = x / (1 + norm.eps) ** 0.5 * weight + bias
        torch.testing.assert_close(found, norm(x), rtol=1e-9, atol=1e-9)


def test_what_is_frozen_and_the_same_is_there_once() -> None:
    nets = [small(k) for k in range(3)]
    for net in nets:
        net[0].load_state_dict(nets[0][0].state_dict())
        net.requires_grad_(False)
    posterior = Posterior.of(nets, example=X)
    assert sorted(posterior.params) == ["2.bias", "2.weight"]
    assert torch.equal(posterior.net.get_parameter("0.weight"), nets[0][0].weight)
    known = torch.stack([net(X).softmax(-1) for net in nets])
    torch.testing.assert_close(posterior.predict(X).probs, known, **CLOSE)
    alone = Posterior.of(nets[:1])  # frozen to be used
    assert len(alone.params) == 4
    assert all(not p.requires_grad for p in nets[0].parameters())  # the user's own are left alone


def test_a_loaded_one_of_frozen_networks_has_its_members_own_weights(tmp_path: Path) -> None:
    nets = [small(k).requires_grad_(False) for k in range(2)]
    posterior = Posterior.of(nets, example=X)
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", small(5).requires_grad_(False))
    assert torch.equal(again.predict(X).probs, posterior.predict(X).probs)


def test_kl_has_the_prior() -> None:
    nets = [small(k) for k in range(2)]
    centre = nets[0].state_dict()
    posterior = Posterior.of(nets, prior=Prior(2.0, mean=centre, layers={"0*": 3.0}))
    l2 = sum(
        (3.0 if name[0] == "0" else 2.0) / 2 * float((t - centre[name]).double().square().sum())
        for name, t in nets[1].state_dict().items()
    )
    assert posterior.kl().l2 == pytest.approx(l2 / 2, rel=1e-6)  # of the first it is 0
    assert Posterior.of(nets, prior=4.0).kl().l2 > 0
    with pytest.raises(InputError, match="must be 'zero' or tensors"):
        Posterior.of(nets, prior=Prior(mean="start"))


def test_regression_has_the_noise_that_is_given() -> None:
    nets = [nn.Linear(3, 1) for _ in range(3)]
    posterior = Posterior.of(nets, likelihood=stochens.Homoscedastic(0.5), example=X)
    p = posterior.predict(X)
    assert isinstance(p, stochens.GaussianPredictive)
    torch.testing.assert_close(p.aleatoric, torch.full((30, 1), 0.25))
    with pytest.raises(InputError, match=r"learns log_variance.*Homoscedastic\(0.1\)"):
        Posterior.of(nets, likelihood="gaussian")


class Branches(nn.Module):
    """vmap cannot run it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        return y if float(y.sum()) > 1e9 else y + 1


def test_networks_that_vmap_cannot_run_go_one_by_one() -> None:
    posterior = Posterior.of([Branches(), Branches()], example=X)
    assert posterior.engine == "loop"
    assert posterior.predict(X).probs.shape == (2, 30, 2)


@pytest.mark.skipif(torch.__version__ < "2.10", reason="export needs torch 2.10")
def test_it_is_exported(tmp_path: Path) -> None:
    posterior = Posterior.of([convolution(k) for k in range(2)], example=IMAGES)
    noise = posterior.export(tmp_path / "mine.pt2")
    program = torch.export.load(tmp_path / "mine.pt2").module()
    torch.testing.assert_close(program(IMAGES, noise)[0], posterior.predict(IMAGES).mean, **CLOSE)


# -- what is refused -------------------------------------------------------------------------------


class Constant(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.register_buffer("constant", torch.tensor(value))
        self.hidden = value

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.constant


class Hidden(Constant):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.hidden


def hidden(value: float) -> nn.Module:
    net = Hidden(1.0)
    net.hidden = value
    return net


def tied(*, tie: bool) -> Any:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    if tie:
        net[1].weight = net[0].weight
    return net


BAD: dict[str, tuple[Any, dict[str, Any], str]] = {
    "none": ([], {}, "takes a list"),
    "one": (small(0), {}, "takes a list of networks .* got a Sequential"),
    "no network": ([small(0).state_dict()], {}, "give it, Posterior.of"),
    "shape": ([small(0), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))], {},
              r"'0.weight' is \(4, 3\) of float32 in the first and \(5, 3\)"),
    "dtype": ([small(0), small(1).double()], {}, "float64 in number 1"),
    "absent": ([small(0), {"0.weight": torch.zeros(4, 3)}], {}, "'0.bias' .* absent in number 1"),
    "activation": ([small(0), nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))], {},
                   r"Tanh\(\) in the first is .*ReLU\(\)"),
    "buffer": ([Constant(1.0), Constant(2.0)], {}, "buffer 'constant' differs"),
    "hidden": ([hidden(1.0), hidden(2.0)], {"example": X}, "number 1 computes something else"),
    "ties": ([tied(tie=True), tied(tie=False)], {}, "ties other parameters"),
    "tied state": ([tied(tie=False).state_dict()], {"net": tied(tie=True)}, "are one parameter"),
    "members": ([small(0), small(1)], {"members": [1]}, "members names 1"),
    "noisy": ([stochens.stochastic(small(0), "dropout")], {}, "is stochastic"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_networks_that_do_not_go_together_are_refused(case: str) -> None:
    networks, options, message = BAD[case]
    with pytest.raises(InputError, match=message):
        Posterior.of(networks, **options)
