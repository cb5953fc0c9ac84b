"""What the driver of many machines decides by itself, without a cluster."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stochens
from stochens import Data, Failed, InputError, Replicas
from stochens.run.cluster.connect import Ray, Room
from stochens.run.memory import SHARE
from stochens.training.machines import (
    TOLD,
    Piece,
    _part,
    _report_failures,
    _size,
    local_device,
    members_to_check,
    packed_data,
    refuse_resume,
    unpacked_data,
)

DATA = stochens.toy_set("a", n=12)


@pytest.fixture(scope="module")
def posterior():
    return stochens.fit(nn.Linear(2, 2), DATA, method="regular", members=4, epochs=1)


@pytest.mark.parametrize(
    ("count", "slots", "fit", "size"),
    [
        (8, 4, None, 2),  # memory is not known: all at once
        (9, 4, None, 3),
        (3, 4, 1, 1),
        (8, 4, 2, 2),
        (8, 4, 5, 2),  # no more than a worker's even share
        (8, 2, 3, 2),  # 3 fit, so that two waves are needed, and those are even
        (16, 1, 7, 6),
        (4, 2, 0, 1),  # one member is the least, whether it fits or not
    ],
)
def test_blocks_are_even_and_fit_into_memory(count, slots, fit, size):
    each = 1 << 20
    memory = None if fit is None else int((fit + 0.5) * each / SHARE)
    where = Room(slots=slots, gpu=False, memory=memory)
    assert _size(None, where, count, each) == size
    share = -(-count // slots)
    assert _size(None, where, count, None) == share  # a member's size is not known


def test_a_block_has_its_rows_of_the_start(posterior):
    ids = (3, 5, 7, 9)
    part: Any = _part(posterior, (7, 3), ids)
    assert torch.equal(part.params["weight"], posterior.params["weight"][[2, 0]])
    part = _part(posterior.params, (7, 3), ids)
    assert torch.equal(part["weight"], posterior.params["weight"][[2, 0]])
    assert _part("prior", (7,), ids) is None
    with pytest.raises(InputError, match="start has 4 members, fewer than the 5 asked for"):
        _part(posterior, (7,), (*ids, 11))


def test_one_member_stands_for_all_where_no_start_is_given_for_each(posterior):
    assert members_to_check((4, 5, 6), "prior", Ray()) == (4,)
    assert members_to_check((4, 5, 6), posterior.params, Ray()) == (4, 5, 6)
    assert members_to_check((4, 5, 6), "prior", None) == (4, 5, 6)
    refuse_resume(None)
    with pytest.raises(InputError, match="resume is for one machine"):
        refuse_resume(posterior)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_what_was_made_on_a_gpu_elsewhere_comes_home_to_the_cpu():
    assert local_device("cuda") == local_device(None) == local_device("cpu") == torch.device("cpu")


def test_data_travels_as_arrays_and_comes_back():
    for data in (DATA, TensorDataset(*DATA)):
        x, y = unpacked_data(packed_data(Data(data)))
        assert torch.equal(x, DATA[0])
        assert torch.equal(y, DATA[1])
    sets = unpacked_data(packed_data(Data(Replicas([DATA, (DATA[0] + 1, DATA[1])]))))
    assert isinstance(sets, Replicas)
    assert torch.equal(list(sets)[1][0], DATA[0] + 1)
    loader = DataLoader(TensorDataset(*DATA), batch_size=4)
    assert unpacked_data(packed_data(Data(loader))) is loader


def pieces(count: int) -> dict[str, Piece]:
    return {f"members {k}": Piece(f"members {k}", (k,), None) for k in range(count)}


def test_blocks_that_failed_are_named():
    _report_failures({}, pieces(2), "members", None)
    failed = {f"members {k}": Failed(f"reason {k}") for k in range(7)}
    with pytest.warns(UserWarning, match="7 of 9 blocks failed for good, and their 7 members") as w:
        _report_failures(failed, pieces(9), "members", None)
    said = str(w[0].message)
    assert f"members {TOLD - 1}: reason {TOLD - 1}; and 2 more)" in said
    assert "tries them again" not in said
    with pytest.warns(UserWarning, match="The same call with checkpoint='kept' tries them again"):
        _report_failures(failed, pieces(9), "members", "kept")


@pytest.mark.parametrize(
    ("errors", "kind", "said"),
    [
        ([InputError("bad lr"), InputError("bad lr")], InputError, "all 2 blocks failed: bad lr"),
        ([InputError("a"), InputError("b")], InputError, "failed: members 0: a; members 1: b"),
        ([InputError("a"), Failed("a")], Failed, "all 2 blocks failed: a"),
    ],
)
def test_where_all_fail_it_is_an_error(errors, kind, said):
    """Bad input where all of them refuse it, and a reason once where it is the same for all."""
    failed = dict(zip(pieces(2), errors, strict=True))
    with pytest.raises(kind) as raised:
        _report_failures(failed, pieces(2), "members", None)
    assert type(raised.value) is kind
    assert str(raised.value).endswith(said)
