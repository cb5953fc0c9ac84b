"""The ways out of BatchNorm, and dropout that stays on."""

import copy
import warnings
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn

from stochens import FRN, InputError, freeze_batchnorm, keep_dropout, replace_batchnorm
from stochens.checks import check_network
from stochens.conversions import AlwaysDropout, FrozenBatchNorm
from stochens.private_names import BatchNorm
from stochens.randomness.seeds import seeded

# (x - mean) w / sd + b in two orders, whose terms cancel; in float64
FROZEN = close(torch.float64, terms=3, depth=2, condition=1e3)


def trained(norm: Any, shape: tuple[int, ...]) -> nn.Module:
    """Statistics and an affine map that are not the trivial ones."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Identity(), nn.Sequential(norm))
    for _ in range(3):
        net(2 * torch.randn(8, *shape) + 1)
    for p in net.parameters():
        nn.init.normal_(p)
    return net


CASES = [
    (nn.BatchNorm1d(4), (4,)),
    (nn.BatchNorm1d(4), (4, 5)),
    (nn.BatchNorm2d(4, eps=0.1), (4, 5, 5)),
    (nn.BatchNorm2d(4, affine=False), (4, 5, 5)),
    (nn.BatchNorm3d(4, momentum=None), (4, 3, 3, 3)),
]


@pytest.mark.parametrize(("norm", "shape"), CASES)
@pytest.mark.parametrize("training", [True, False])
def test_frozen_is_batchnorm_in_eval_mode(norm: Any, shape: Any, training: bool) -> None:
    net = trained(copy.deepcopy(norm), shape).double()
    frozen = freeze_batchnorm(net).train(training)
    x = torch.randn(6, *shape).double()
    torch.testing.assert_close(frozen(x), net.eval()(x), **FROZEN)
    state = {name: t.clone() for name, t in frozen.state_dict().items()}
    frozen(x)
    assert all(torch.equal(t, state[name]) for name, t in frozen.state_dict().items())
    if norm.affine:
        check_network(frozen)
        assert all(p.requires_grad for p in frozen.parameters())
        assert [n for n, _ in frozen.named_parameters()] == [n for n, _ in net.named_parameters()]


def test_frozen_needs_statistics() -> None:
    with pytest.raises(ValueError, match="track_running_stats=False: nothing to freeze"):
        freeze_batchnorm(nn.BatchNorm2d(4, track_running_stats=False))


class BatchNormAct2d(nn.BatchNorm2d):
    """As in timm: normalises, and applies an activation."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(super().forward(x))


def with_weight_norm() -> nn.Module:
    """Of the old kind, by a hook."""
    norm = nn.BatchNorm1d(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.utils.weight_norm(norm, dim=None)


def with_own_forward() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    norm.forward = torch.relu  # type: ignore[method-assign]
    return norm


def parametrized() -> nn.Module:
    norm = nn.BatchNorm1d(4)
    nn.utils.parametrize.register_parametrization(norm, "weight", nn.Softplus())
    return norm


def hooked() -> nn.Module:
    norm = nn.BatchNorm2d(4)
    norm.register_forward_hook(lambda module, x, y: y.relu())
    return norm


@pytest.mark.parametrize("convert", [freeze_batchnorm, replace_batchnorm])
@pytest.mark.parametrize(
    ("norm", "message"),
    [
        (BatchNormAct2d(4), r"'1\.0' is a .*BatchNormAct2d, a batch norm that may do more"),
        (parametrized(), "ParametrizedBatchNorm1d, a batch norm that may do more"),
        (with_weight_norm(), r"'1\.0' is a BatchNorm1d with hooks or a forward of its own"),
        (with_own_forward(), "BatchNorm1d with hooks or a forward of its own"),
        (hooked(), "BatchNorm2d with hooks or a forward of its own"),
        (nn.LazyBatchNorm2d(), r"'1\.0' is lazy and has no shape yet; call the network once"),
    ],
    ids=["subclass", "parametrized", "weight-norm", "forward", "hook", "lazy"],
)
def test_what_does_more_than_normalise_is_refused(convert: Any, norm: Any, message: str) -> None:
    net = nn.Sequential(nn.Identity(), nn.Sequential(norm))
    with pytest.raises(InputError, match=message):
        convert(net)


def test_a_lazy_batch_norm_that_has_its_shape_is_a_plain_one() -> None:
    net = nn.Sequential(nn.LazyBatchNorm2d())
    net(torch.randn(8, 3, 4, 4))
    net, x = net.double(), torch.randn(8, 3, 4, 4).double()
    torch.testing.assert_close(freeze_batchnorm(net)(x), net.eval()(x), **FROZEN)
    assert isinstance(replace_batchnorm(net).get_submodule("0"), FRN)


def test_frozen_can_be_initialised_again() -> None:
    net: Any = freeze_batchnorm(trained(nn.BatchNorm1d(4), (4,)))
    frozen = net[1][0]
    mean = frozen.mean.clone()
    frozen.reset_parameters()
    assert frozen.weight.tolist() == [1.0] * 4
    assert frozen.bias.tolist() == [0.0] * 4
    assert torch.equal(frozen.mean, mean)


@pytest.mark.parametrize(
    ("norm", "by", "expected"),
    [
        (nn.BatchNorm2d(6), "frn", FRN),
        (nn.BatchNorm3d(6), "frn", FRN),
        (nn.SyncBatchNorm(6), "frn", FRN),
        (nn.BatchNorm1d(6), "frn", nn.GroupNorm),  # it may have no positions
        (nn.BatchNorm2d(6), "group", nn.GroupNorm),
    ],
)
def test_replacements(norm: nn.Module, by: Any, expected: type[nn.Module]) -> None:
    net: Any = nn.Sequential(nn.Sequential(norm), nn.Linear(2, 2)).double()
    new: Any = replace_batchnorm(net, by)
    assert type(new[0][0]) is expected
    assert all(p.dtype == torch.float64 for p in new.parameters())
    assert isinstance(net[0][0], BatchNorm)  # the original is left alone
    check_network(new)
    x = torch.randn(2, 6, *[2] * (3 if isinstance(norm, nn.BatchNorm3d) else 2)).double()
    assert new[0](x).shape == x.shape


@pytest.mark.parametrize(
    ("channels", "groups", "expected"), [(6, 8, 6), (16, 8, 8), (10, 4, 2), (7, 4, 1)]
)
def test_groups_divide_the_channels(channels: int, groups: int, expected: int) -> None:
    new: Any = replace_batchnorm(nn.BatchNorm2d(channels), "group", groups=groups)
    assert (new.num_groups, new.num_channels) == (expected, channels)


@pytest.mark.parametrize("by", ["frn", "group"])
@pytest.mark.parametrize("channels", [2, 8, 10])
def test_features_without_positions_keep_what_they_say(by: Any, channels: int) -> None:
    """Eight groups of eight features would make a constant of each."""
    x = torch.randn(5, channels)
    new = replace_batchnorm(nn.BatchNorm1d(channels), by)
    torch.testing.assert_close(new(x), nn.functional.layer_norm(x, (channels,)))
    assert new(x[:1]).shape == (1, channels)


def test_an_unknown_replacement_is_refused() -> None:
    with pytest.raises(ValueError, match="by must be 'frn' or 'group', got 'layer'"):
        replace_batchnorm(nn.BatchNorm2d(4), "layer")


DROPOUTS = [
    (nn.Dropout(0.5), (8,)),
    (nn.Dropout1d(0.5), (8, 3)),
    (nn.Dropout2d(0.5), (8, 3, 3)),
    (nn.Dropout3d(0.5), (8, 2, 2, 2)),
    (nn.AlphaDropout(0.5), (8,)),
    (nn.FeatureAlphaDropout(0.5), (8, 3)),
]


@pytest.mark.parametrize(("own", "shape"), DROPOUTS)
def test_kept_dropout_is_on_in_eval_mode_as_it_was_in_training(own: nn.Module, shape: Any) -> None:
    net = nn.Sequential(nn.Linear(8, 8) if len(shape) == 1 else nn.Conv1d(8, 8, 1), own)
    net = net if len(shape) < 3 else nn.Sequential(own)
    kept = keep_dropout(net).eval()
    x = torch.ones(4, *shape)

    def draw(net: nn.Module, seed: int) -> Tensor:
        torch.manual_seed(seed)
        return net(x)

    assert torch.equal(draw(kept, 0), draw(net.train(), 0))
    assert not torch.equal(draw(kept, 0), draw(kept, 1))
    assert torch.equal(draw(net.eval(), 0), draw(net, 1))  # the original is left alone


def test_a_module_in_two_places_is_replaced_in_both() -> None:
    dropout, norm = nn.Dropout(0.5), nn.BatchNorm1d(3)
    net = nn.Sequential(nn.Linear(3, 3), dropout, norm, nn.Sequential(norm, dropout), norm)
    kept: Any = keep_dropout(net)
    assert isinstance(kept[1], AlwaysDropout)
    assert kept[1] is kept[3][1]
    frozen: Any = freeze_batchnorm(net)
    assert isinstance(frozen[2], FrozenBatchNorm)
    assert frozen[2] is frozen[3][0] is frozen[4]
    assert not any(isinstance(m, BatchNorm) for m in replace_batchnorm(net).modules())


def test_the_network_itself_can_be_the_module() -> None:
    assert isinstance(keep_dropout(nn.Dropout(0.1)), AlwaysDropout)
    assert isinstance(freeze_batchnorm(nn.BatchNorm1d(3)), FrozenBatchNorm)
    assert isinstance(replace_batchnorm(nn.BatchNorm2d(3)), FRN)


# -- what a trained norm hands on ------------------------------------------------------------------


def of_one_example(channels: int, *positions: int) -> tuple[Any, Tensor]:
    """A batch norm whose statistics are exactly those of one example [1, C, *positions]."""
    with seeded(0):
        x = torch.randn(1, channels, *positions) * torch.rand(channels, *[1] * len(positions))
        x += torch.randn(channels, *[1] * len(positions))
        kind: Any = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[len(positions)]
        norm = kind(channels)
        for p in norm.parameters():
            nn.init.normal_(p)
    rows = x.transpose(0, 1).flatten(1)
    norm.running_mean.copy_(rows.mean(1))
    norm.running_var.copy_(rows.var(1, correction=0))
    return norm.eval(), x


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("positions", [(7,), (4, 5), (2, 3, 2)])
@pytest.mark.parametrize(("by", "groups"), [("frn", 8), ("group", 1), ("group", 3), ("group", 6)])
def test_a_replaced_norm_agrees_where_an_example_has_the_running_moments(
    by: Any, groups: int, positions: tuple[int, ...]
) -> None:
    norm, x = of_one_example(6, *positions)
    new = replace_batchnorm(norm, by, groups=groups)
    terms = 6 * x[0, 0].numel()  # the moments of a group are sums of so many
    within = close(torch.float64, terms=terms, depth=4, condition=1e3)  # mean and weight cancel
    torch.testing.assert_close(new(x), norm(x), **within)


@pytest.mark.parametrize("by", ["frn", "group"])
def test_a_norm_without_statistics_hands_on_its_affine_map(by: Any) -> None:
    norm = nn.BatchNorm2d(6, track_running_stats=False)
    with seeded(0):
        for p in norm.parameters():
            nn.init.normal_(p)
    new: Any = replace_batchnorm(norm, by)
    assert torch.equal(new.weight, norm.weight)
    assert torch.equal(new.bias, norm.bias)


@pytest.mark.parametrize("by", ["frn", "group"])
def test_a_norm_as_it_was_built_becomes_one_as_it_is_built(by: Any) -> None:
    for norm in (nn.BatchNorm2d(6), nn.BatchNorm2d(6, affine=False)):
        new: Any = replace_batchnorm(norm, by)
        fresh = FRN(6) if by == "frn" else nn.GroupNorm(6, 6)
        for name, p in fresh.named_parameters():
            assert torch.equal(new.get_parameter(name), p)


@pytest.mark.parametrize("by", ["frn", "group"])
def test_a_norm_whose_weight_starts_at_zero_still_learns(by: Any) -> None:
    """As the last ones of residual blocks do: max(y, tau) has no gradient where tau is above."""
    norm = nn.BatchNorm2d(6)
    nn.init.zeros_(norm.weight)
    new: Any = replace_batchnorm(norm, by)
    assert not new(torch.randn(2, 6, 4, 4)).any()
    (torch.randn(2, 6, 4, 4) * new(torch.randn(2, 6, 4, 4))).sum().backward()
    assert bool((new.weight.grad != 0).all())


def test_what_was_frozen_stays_frozen() -> None:
    for by, names in (("frn", ["weight", "bias", "tau"]), ("group", ["weight", "bias"])):
        norm = nn.BatchNorm2d(6).requires_grad_(False)
        new: Any = replace_batchnorm(norm, by)
        assert [n for n, p in new.named_parameters() if not p.requires_grad] == names
        norm.weight.requires_grad_(True)
        again: Any = replace_batchnorm(norm, by)
        assert [n for n, p in again.named_parameters() if p.requires_grad] == ["weight"]


def with_activation() -> nn.Module:
    """As timm's: the same name, the same parts, the same order."""

    class Norm(nn.BatchNorm2d):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)
            self.drop, self.act = nn.Identity(), nn.SiLU(inplace=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.drop(super().forward(x)))

    Norm.__module__, Norm.__qualname__ = "timm.layers.norm_act", "BatchNormAct2d"
    return Norm(4)


def test_an_activation_in_a_norm_is_kept() -> None:
    net = trained(with_activation(), (4, 5, 5)).eval().double()
    x = torch.randn(6, 4, 5, 5).double()
    frozen: Any = freeze_batchnorm(net)
    torch.testing.assert_close(frozen(x), net(x), **FROZEN)
    assert [n for n, _ in frozen.named_parameters()] == [n for n, _ in net.named_parameters()]
    replaced: Any = replace_batchnorm(net, "group")
    norm, act = replaced[1][0]
    assert isinstance(norm, nn.GroupNorm)
    assert isinstance(act, nn.SiLU)
    torch.testing.assert_close(replaced(x), act(norm(x)))
