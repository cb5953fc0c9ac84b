"""`Data(augment=...)`: what a function of the batch is called with, and what comes of it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.running import gather
from tests.tolerance import trained
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import MLP, Data, InputError

TRIES = 1 + 3  # calls before the first step: of its result, and of what training draws from
WITHIN = trained(torch.float64, steps=16, rows=8)


def points(n: int = 26) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 2, generator=torch.Generator().manual_seed(0)).double()
    return x, (x[:, 0] * x[:, 1] > 0).long()


def fit(data: Any, **options: Any) -> stochens.Posterior:
    usual = {"members": 3, "epochs": 4, "batch_size": 8, "method": "dropout", "lr": 0.05}
    return stochens.fit(lambda: MLP(2, 4, 2).double(), data, **gather(**usual | options))


def assert_same(one: stochens.Posterior, other: stochens.Posterior) -> None:
    for name, p in other.params.items():
        torch.testing.assert_close(one.params[name], p, **WITHIN)
    torch.testing.assert_close(one.history.loss, other.history.loss)


@pytest.mark.parametrize(
    "options", [{}, {"batch_size": None}, {"accumulate": 2}, {"optimizer": "natural", "lr": 0.1}]
)
@pytest.mark.filterwarnings("ignore:natural gradients have not arrived")
def test_what_changes_nothing_changes_nothing(options: dict[str, Any]) -> None:
    data = points()
    same = Data(data, augment=lambda x, y: (x, y))
    options = {"method": "regular" if "optimizer" in options else "dropout", **options}
    assert_same(fit(same, **options), fit(data, engine="vmap", **options))


def test_weights_count_as_before() -> None:
    weights = torch.arange(1.0, 27.0)
    same = Data(points(), weights=weights, augment=lambda x, y: (x, y))
    assert_same(fit(same), fit(Data(points(), weights=weights)))


def test_a_loader() -> None:
    x, y = points()
    shifted = Data(DataLoader(TensorDataset(x, y), batch_size=8), augment=lambda x, y: (x + 1.0, y))
    assert_same(fit(shifted), fit(DataLoader(TensorDataset(x + 1.0, y), batch_size=8)))


def test_x_and_y_are_those_that_it_gives() -> None:
    """Labels that are smoothed in each step are labels that were smooth before."""
    x, y = points()
    soft = F.one_hot(y, 2).double()
    options = {"likelihood": "soft-labels", "method": "regular"}
    smooth = Data((x, soft), augment=lambda x, y: (2 * x, 0.9 * y + 0.05))
    assert_same(fit(smooth, **options), fit((2 * x, 0.9 * soft + 0.05), **options))


class Drawn:
    """Remembers the first random number of each call; each row says which member it is for."""

    def __init__(self) -> None:
        self.numbers: list[float] = []

    def __call__(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        self.numbers.append(float(torch.rand(())))
        return x + 0.1 * torch.rand(1), y


def test_numbers_depend_on_seed_member_and_step() -> None:
    """So they are the same in blocks of any size, and the caller's generator stays as it is."""
    whole, parts, other = Drawn(), Drawn(), Drawn()
    before = torch.get_rng_state()
    one = fit(Data(points(), augment=whole), epochs=2)
    assert torch.equal(torch.get_rng_state(), before)
    two = fit(Data(points(), augment=parts), epochs=2, chunk=1)
    assert_same(two, one)
    steps = torch.tensor(whole.numbers[TRIES:]).view(-1, 3)  # [steps, M]
    assert len(steps.unique()) == steps.numel() == 3 * 8
    assert set(parts.numbers[1:]) == set(whole.numbers[1:])
    fit(Data(points(), augment=other), epochs=2, seed=1)
    assert not set(other.numbers[1:]) & set(whole.numbers[1:])


def test_data_stay_as_they_are() -> None:
    """A function may change a batch in place."""

    def doubled(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.mul_(2.0), y

    for batch_size in (8, None):
        x, y = points()
        options = {"batch_size": batch_size, "method": "regular"}
        in_place = fit(Data((x, y), augment=doubled), **options)
        assert torch.equal(x, points()[0])
        assert_same(in_place, fit((2 * x, y), **options))


def test_a_frozen_part_sees_what_is_augmented() -> None:
    """Its features are not kept: they would be those of other inputs."""
    x, y = points()
    torch.manual_seed(0)
    net = MLP(2, 4, 2).double()
    options = {"members": 2, "epochs": 2, "method": "last-layer", "batch_size": 8, "lr": 0.05}
    moved = stochens.fit(net, Data((x, y), augment=lambda x, y: (x + 1.0, y)), **options)
    assert_same(moved, stochens.fit(net, (x + 1.0, y), **options))


def test_a_checkpoint_knows_it(tmp_path: Path) -> None:
    options = {"checkpoint": tmp_path / "run", "epochs": 1}
    fit(points(), **options)
    with pytest.raises(InputError, match="is of another run: augment was None there"):
        fit(Data(points(), augment=lambda x, y: (x, y)), **options)


@pytest.mark.parametrize(
    ("augment", "said"),
    [
        (lambda x, y: x, "augment must return x and y as two tensors, got Tensor"),
        (lambda x, y: (x[1:], y[1:]), r"must keep the number of rows .* of x \(4, 2\) float64"),
        (lambda x, y: (x, y.double()), "For mixed labels give probabilities"),
        (lambda x, y: (x[:, :1], y), "must keep the shape and type of a row"),
        (lambda x, y: (x / 0, y), "augment makes inputs that are not finite"),
    ],
)
def test_what_does_not_fit_is_refused(augment: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        fit(Data(points(), augment=augment))


def test_where_it_has_no_place() -> None:
    data = Data(points(), augment=lambda x, y: (x, y))
    with pytest.raises(InputError, match="augment must be a function of a batch"):
        Data(points(), augment="mixup")
    with pytest.raises(InputError, match="samplers need one density"):
        stochens.nuts(MLP(2, 3, 2).double(), data)
    with pytest.raises(InputError, match="engine='fused' knows no augment"):
        fit(data, engine="fused")
    with pytest.raises(InputError, match="validation data are taken as they are"):
        fit(points(), validation=data)

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2).double()

        def forward(self, a: Tensor, b: Tensor) -> Tensor:
            return self.layer(torch.cat([a, b], 1))

    x, y = points()
    several = Data(((x, x), y), augment=lambda x, y: (x, y))
    with pytest.raises(InputError, match="augment is for inputs of one tensor"):
        stochens.fit(Two, several, members=2, epochs=1)


def test_validation_rows_are_not_augmented() -> None:
    calls: list[int] = []

    def count(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        calls.append(len(x))
        return x, y

    posterior = fit(Data(points(), augment=count), validation=0.25, epochs=1, method="regular")
    assert posterior.history.validation.isfinite().all()
    assert sum(calls[TRIES:]) == 3 * posterior.data_size
