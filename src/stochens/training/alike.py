"""Members that are one and the same network: their ensemble knows no uncertainty."""

import hashlib
import warnings

import torch
from torch import Tensor, nn

from stochens.errors import TrainingAdvice, Unsuited, outside
from stochens.members import Engine, Params, forward, plain_attention, size, take
from stochens.methods import stochastic_layers
from stochens.randomness.seeds import seeded
from stochens.trees import Input

FIRST = 256  # numbers of a parameter that tell most members apart
FEW, ROWS = 4, 64  # members and rows whose outputs tell whether members are nearly alike
# Spread of outputs over members by their spread over rows. A posterior of D parameters and N rows
# has sqrt(D / N) noise / signal of it: below this with a million rows for each parameter, or with
# next to no noise. Rounding to float32 is a thousand times less.
NEARLY = 1e-3


def refuse_alike(
    template: nn.Module, params: Params, few: Input, ids: tuple[int, ...], *, rows: int, sets: int
) -> None:
    """Refuse members that begin alike and would stay so, since nothing sets them apart.

    For a training in which members of a data set see the same rows in each step; `rows` and `sets`:
    how many there are. few: some of them, on the CPU, as is the network.
    """
    groups = [
        same
        for group in alike(params)
        for k in range(sets)
        if len(same := [ids[row] for row in group if ids[row] % sets == k]) > 1
    ]
    if not groups or draws_noise(template, few):
        return
    raise Unsuited(
        f"{_named(groups[0])} begin with the same parameters, see the same rows in each step and "
        "have no noise, so that they would stay one network, with no uncertainty. Give one of: a "
        "method with noise (method='dropout'); bootstrap=True, each member its own resample of the "
        f"data; (x, y) in memory with a batch_size below N = {rows}, each member its own order of "
        "the rows; start=stochens.Start(..., jitter=0.01), starts that differ by 1 %; "
        "start='reset' or a function that builds each network anew, each member its own "
        "initialisation"
    )


def warn_alike(params: Params, ids: tuple[int, ...]) -> None:
    """After a training."""
    for group in alike(params):
        warnings.warn(
            f"{_named([ids[row] for row in group])} ended with the same parameters, and are one "
            "network but for noise. Was lr too small to move them apart?",
            stacklevel=outside(),
        )


def warn_nearly_alike(
    net: nn.Module, params: Params, x: Input, ids: tuple[int, ...], *, sets: int, engine: Engine
) -> None:
    """After a training of members that may have begun alike: where outputs are as good as the same.

    x [B, ...]: some rows, on the members' device. Of members of one data set, the spread of their
    outputs is measured by what outputs vary from row to row.
    """
    rows = [row for row, member in enumerate(ids) if member % sets == ids[0] % sets][:FEW]
    if len(rows) < 2 or len(alike(take(params, rows))) > 0:  # `warn_alike` has said it
        return
    with torch.no_grad(), seeded(0, x.device):
        each = [forward(net, take(params, [row]), x, engine=engine)[0] for row in rows]
    outputs = torch.stack(each).double()  # [m, B, ...]
    spread = (outputs - outputs.mean(0)).square().mean().sqrt()
    mean = outputs.mean(0)
    varies = (mean - mean.mean(0)).square().mean().sqrt()
    if not bool(varies > 0):
        varies = mean.square().mean().sqrt()
    share = float(spread / varies)
    if not share < NEARLY:
        return
    warnings.warn(
        f"members are nearly one network: their outputs differ by {share:.1e} of what they vary "
        "from row to row, so that their ensemble has next to no uncertainty. They began alike; "
        "train for more epochs or with a larger lr, or give one of: a method with "
        "noise (method='dropout'); bootstrap=True; start=stochens.Start(..., jitter=0.01); "
        "start='reset'",
        TrainingAdvice,
        stacklevel=outside(),
    )


def alike(params: Params) -> list[list[int]]:
    """Rows of members [M, ...] that are the same in every parameter, in groups of two or more.

    >>> alike({"w": torch.tensor([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]])})
    [[0, 2]]
    """
    groups = [list(range(size(params)))]
    for p in params.values():
        for count in (FIRST, None):  # few numbers first, and all where these are the same
            found: dict[tuple[int, bytes], list[int]] = {}
            for number, group in enumerate(groups):
                for row in group if len(group) > 1 else ():
                    found.setdefault((number, _digest(p[row], count)), []).append(row)
            groups = [group for group in found.values() if len(group) > 1]
    return groups


def _digest(p: Tensor, count: int | None) -> bytes:
    numbers = p.detach().reshape(-1)[:count].cpu().contiguous().view(torch.uint8)
    return hashlib.blake2b(numbers.numpy().tobytes(), digest_size=16).digest()


def draws_noise(net: nn.Module, few: Input) -> bool:
    """Whether two passes in training mode differ: by a method's noise, or by the network's own."""
    if stochastic_layers(net):
        return True
    training = net.training
    try:
        with torch.no_grad(), plain_attention(), seeded(0):
            before = torch.get_rng_state()
            net.train()(few.clone())
            return not torch.equal(torch.get_rng_state(), before)
    finally:
        net.train(training)


def _named(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:3]))
    return f"members {shown}" + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
