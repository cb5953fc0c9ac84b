"""Likelihoods against torch.distributions, and what they refuse."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, distributions, nn

from stochens import MLP, Categorical, Heteroscedastic, Homoscedastic, InputError
from stochens.likelihoods import LIKELIHOODS, resolve
from stochens.members import builder, forward, init, trainable

properties = settings(max_examples=50, deadline=None)  # a busy machine is no failure


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 5), st.integers(1, 4), st.integers(0, 2**16))


@properties
@given(sizes)
def test_categorical(size: tuple[int, int, int, int]) -> None:
    members, batch, classes, seed = size
    logits = normal(members, batch, classes, seed=seed)
    y = torch.randint(classes, (members, batch), generator=torch.Generator().manual_seed(seed))
    expected = -distributions.Categorical(logits=logits).log_prob(y).mean(1)
    torch.testing.assert_close(Categorical().nll(logits, y), expected)  # float64 rounding


@properties
@given(sizes, st.floats(0.01, 100.0))
def test_fixed_noise(size: tuple[int, int, int, int], noise: float) -> None:
    members, batch, targets, seed = size
    outputs, y = normal(members, batch, targets, seed=seed), normal(members, batch, targets, seed=1)
    expected = -distributions.Normal(outputs, noise).log_prob(y).sum(-1).mean(1)
    torch.testing.assert_close(Homoscedastic(noise).nll(outputs, y), expected)


@properties
@given(sizes)
def test_heteroscedastic(size: tuple[int, int, int, int]) -> None:
    members, batch, targets, seed = size
    outputs = normal(members, batch, 2 * targets, seed=seed)
    y = normal(members, batch, targets, seed=1)
    mean, log_variance = outputs[..., :targets], outputs[..., targets:]
    expected = -distributions.Normal(mean, (log_variance / 2).exp()).log_prob(y).sum(-1).mean(1)
    torch.testing.assert_close(Heteroscedastic().nll(outputs, y), expected)


@pytest.mark.parametrize("like", [Categorical(), Homoscedastic(0.3), Heteroscedastic()])
def test_bf16_outputs_lose_nothing_more(like: Any) -> None:
    outputs = normal(6, 2).bfloat16()
    y = torch.tensor([0, 1, 1, 0, 0, 1])
    y = y if isinstance(like, Categorical) else normal(6, like.moments(outputs)[0].shape[1]).float()
    found = like.nll(outputs, y)
    assert found.dtype == torch.float32
    wide = like.nll(outputs.double(), y if isinstance(like, Categorical) else y.double())
    assert float(found) == pytest.approx(float(wide), rel=1e-5)  # float32 rounding, no bf16's 1e-2


def test_learned_noise_is_a_parameter_of_each_member() -> None:
    """`prepare` appends log noise^2, a parameter, to the means that the network gives."""
    like, y = Homoscedastic(), normal(7, 2).float()
    net = like.prepare(MLP(3, 4, 2), y)
    assert trainable(net)["log_variance"].shape == (2,)
    params = init(lambda: like.prepare(MLP(3, 4, 2), y), members=range(3), seed=0)
    assert not params["log_variance"].any()  # noise 1 at the start
    params["log_variance"] = torch.tensor([[0.0, 0.0], [1.0, -1.0], [2.0, 3.0]], requires_grad=True)
    x = normal(7, 3).float()
    outputs = forward(net, params, x)  # [M, B, 2 D]
    plain = forward(MLP(3, 4, 2), {n: p for n, p in params.items() if n != "log_variance"}, x)
    torch.testing.assert_close(outputs[..., :2], plain)
    found = like.nll(outputs, y.expand(3, 7, 2))
    noise = (params["log_variance"] / 2).exp().unsqueeze(1)
    expected = -distributions.Normal(plain, noise).log_prob(y).sum(-1).mean(1)
    torch.testing.assert_close(found, expected)
    found.sum().backward()
    # d nll / d log noise^2 = (1 - mean squared error / noise^2) / 2
    error = (y - plain).square().mean(1) / noise.squeeze(1).square()
    torch.testing.assert_close(params["log_variance"].grad, ((1 - error) / 2).detach())


def test_prepare_changes_nothing_else_and_only_once() -> None:
    y = torch.zeros(5, 2)
    for like in (Categorical(), Homoscedastic(0.1), Heteroscedastic()):
        assert set(trainable(like.prepare(nn.Linear(3, 2), y))) == {"weight", "bias"}
    net = Homoscedastic().prepare(Homoscedastic().prepare(nn.Linear(3, 2), y), y)
    assert net(torch.zeros(5, 3)).shape == (5, 4)
    built = builder(lambda: Homoscedastic().prepare(nn.Linear(3, 2), y))()
    assert built(torch.zeros(5, 3)).shape == (5, 4)


# -- targets and outputs --------------------------------------------------------------------------


def test_targets_as_nll_wants_them() -> None:
    assert Categorical().check_targets(torch.tensor([0, 1], dtype=torch.int32)).dtype == torch.long
    for like in (Homoscedastic(), Homoscedastic(1.0), Heteroscedastic()):
        y = like.check_targets(torch.tensor([1, 2, 3]))
        assert y.tolist() == [[1.0], [2.0], [3.0]]
        assert like.check_targets(torch.zeros(3, 2, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.parametrize(
    ("like", "y", "message"),
    [
        (Categorical(), torch.zeros(3), "labels must be integers, got torch.float32; use y.long"),
        (Categorical(), torch.eye(3), r"each row is one-hot: use y.argmax\(1\), .* of 3 outputs"),
        (Categorical(), torch.full((4, 2), 0.5), "probabilities: use likelihood='soft-labels'"),
        (Categorical(), torch.tensor(1), "labels must be .N., or .N, .... for dense ones"),
        (Categorical(), torch.rand(4, 2), "likelihood='gaussian' for regression, which takes"),
        (Homoscedastic(), torch.zeros(3, 2, 1), r"must be \[N\] or \[N, D\], got \(3, 2, 1\)"),
        (Homoscedastic(), torch.zeros(3, dtype=torch.complex64), "must be real"),
        (Heteroscedastic(), torch.tensor([0.0, math.nan]), "must be finite; row 1 is .nan"),
        (Homoscedastic(), torch.tensor([[0.0, 1.0], [math.inf, 0.0]]), r"row 1 is \[inf, 0.0\]"),
    ],
)
def test_wrong_targets(like: Any, y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        like.check_targets(y)


@pytest.mark.parametrize(
    ("like", "shape", "y", "message"),
    [
        (Categorical(), (4, 2, 2), torch.tensor([0]), r"must return logits \[B, C\]"),
        (Categorical(), (4,), torch.tensor([0]), r"must return logits \[B, C\]"),
        (Categorical(), (4, 3), torch.eye(3).long(), r"\(3, 3\); each row is one-hot: use y.argm"),
        (Categorical(), (4, 3), torch.zeros(4, 1).long(), r"use y.squeeze\(1\)"),
        (Categorical(), (4, 3), torch.zeros(4, 2).long(), r"one prediction for each example: lab"),
        (Categorical(), (4, 3, 7), torch.zeros(4, 7).long(), r"use .*Categorical\(class_axis=1\)"),
        (Categorical(), (4, 8, 9, 3), torch.zeros(4, 8, 9).long(), r"Categorical\(class_axis=-1\)"),
        (Categorical(), (4, 3, 8, 8), torch.zeros(4, 7, 8).long(), r"one label for each place of"),
        (Categorical(class_weights=[1, 2]), (4, 3), torch.tensor([0]), "weights are 2, .* 3 cla"),
        (Categorical(), (4, 2), torch.tensor([0, 2]), "label 2 is out of range: .* 2 outputs"),
        (Categorical(), (4, 2), torch.tensor([-1, 1]), "label -1 is out of range"),
        (Categorical(), (4, 1), torch.tensor([0, 1]), "one output, and two classes need two"),
        (Homoscedastic(0.1), (4, 2), torch.zeros(5, 1), r"outputs \[B, 1\], got \(4, 2\)"),
        (Heteroscedastic(), (4, 2), torch.zeros(5, 2), r"outputs \[B, 4\], got \(4, 2\)"),
        (Heteroscedastic(), (4,), torch.zeros(5, 2), r"outputs \[B, 4\], got \(4,\)"),
    ],
)
def test_wrong_outputs(like: Any, shape: tuple[int, ...], y: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        like.check_outputs(torch.zeros(shape), y)


def test_learned_noise_names_the_outputs_of_the_users_network() -> None:
    y = torch.zeros(5, 2)
    for width, fits in ((2, True), (3, False), (4, False), (1, False)):
        net = Homoscedastic().prepare(nn.Linear(3, width), y)
        outputs = net(torch.zeros(4, 3))
        if fits:
            Homoscedastic().check_outputs(outputs, y)
            continue
        with pytest.raises(InputError, match=rf"outputs \[B, 2\], got \(4, {width}\)"):
            Homoscedastic().check_outputs(outputs, y)


def test_right_outputs_pass() -> None:
    Categorical().check_outputs(torch.zeros(4, 3), torch.tensor([0, 2, 1]))
    Homoscedastic(1.0).check_outputs(torch.zeros(4, 3), torch.zeros(9, 3))
    Heteroscedastic().check_outputs(torch.zeros(4, 6), torch.zeros(9, 3))


@pytest.mark.parametrize("noise", [0.0, -1.0, math.inf, math.nan])
def test_impossible_noise(noise: float) -> None:
    with pytest.raises(InputError, match="noise must be a positive number or None"):
        Homoscedastic(noise)


def test_by_name_or_object() -> None:
    for name, kind in LIKELIHOODS.items():
        assert isinstance(resolve(name), kind)
        again = LIKELIHOODS[name](**resolve(name).options())
        assert again == resolve(name)
    assert resolve(Homoscedastic(0.2)) == Homoscedastic(0.2)
    with pytest.raises(InputError, match="unknown likelihood 'gausian'; did you mean 'gaussian'"):
        resolve("gausian")
