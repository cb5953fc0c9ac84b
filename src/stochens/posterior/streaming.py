"""Prediction in batches: some members and some rows of x at a time, as memory allows."""

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens.checks import dtype_remedy, telling_rows
from stochens.errors import InputError
from stochens.kernels.noise import divisors, words
from stochens.likelihoods import Predicted
from stochens.members import Engine, Params, device_of, shared_by_all, size, take
from stochens.methods import stochastic_layers
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.low_rank import params_of_draw
from stochens.posterior.predictive import Sums
from stochens.posterior.shared_noise import noise_of_draw, noise_requests
from stochens.posterior.temperature import temperature_of
from stochens.private_names import changes
from stochens.program.choice import (
    BACKWARD,
    MOST_TRACES,
    ON_CPU_FROM,
    TRIED,
    Workload,
    flops,
)
from stochens.program.features import OnHost, features_of
from stochens.program.known import findings
from stochens.program.outputs import predicted_by, unchanged
from stochens.program.prefix import Split, has_frozen, split
from stochens.program.program import Noise
from stochens.randomness.noise import member_noise, same_noise
from stochens.randomness.seeds import PREDICTION, alone, derive, seeded
from stochens.run.memory import activation_bytes, free_bytes
from stochens.trees import Input, cat, describe, for_members, form, leaves_of

ACTIVATIONS = 64 << 20  # bytes of activations at once, which a CPU's caches like
MOST_ACTIVATIONS = 16 << 30  # likewise, to keep a large GPU busy


class Ask(NamedTuple):
    """What is predicted, and in which batches: these are part of what a seed draws."""

    all_rows: int
    rows: int  # of a batch
    chunk: int  # members at a time
    draws: int
    groups: int
    keep_draws: bool | None
    bf16: bool | None  # None: by kernels alone
    seed: int
    shared_noise: bool


def plan(
    net: nn.Module,
    params: Params,
    x: Input,
    batch_size: int | None,
    trained_on: tuple[int, ...] | None = None,
    *,
    available: Callable[[int], int] | None = None,
) -> tuple[int, int]:
    """Rows of x and members at a time, so that activations stay inside their budget.

    `trained_on`: the shape of one example then, for the words of a refusal. `available(n)`: n, or
    how many rows there are if they are fewer; those of x, if not given.
    """
    available = available or (lambda most: min(most, len(x)))
    one = bytes_of_one(net, x, trained_on)
    budget = _budget(device_of(params))
    chunk = min(size(params), max(1, budget // (one * available(256))))
    return available(batch_size or max(1, budget // (one * chunk))), chunk


def bytes_of_one(net: nn.Module, x: Input, trained_on: tuple[int, ...] | None) -> int:
    """Of activations for one row of x [B, ...], or an InputError if the network cannot take it."""
    kept = _bytes.setdefault(net, {})
    case = (form(x), *map(torch.is_autocast_enabled, ("cpu", "cuda")))
    if case in kept:
        return kept[case]
    home = next(net.parameters()).device
    try:
        found = max(1, activation_bytes(net, telling_rows(x, 1).to(home)))
        if all(t.is_floating_point() for t in leaves_of(x)):  # whole numbers may be out of range
            kept[case] = found
        return found
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        other = isinstance(x, Tensor) and trained_on not in (None, tuple(x.shape[1:]))
        then = f"; it was trained on x [N, {', '.join(map(str, trained_on or ()))}]"
        raise InputError(
            f"the network fails on x {describe(x)}{dtype_remedy(net, x)}"
            f"{then if other else ''}: {error}"
        ) from error


_bytes: weakref.WeakKeyDictionary[nn.Module, dict[Hashable, int]] = weakref.WeakKeyDictionary()


def _budget(device: torch.device) -> int:
    """Bytes of activations at once. A power of two, so that a seed's draws, which depend on how x
    is cut, do not change with every byte that is free."""
    if device.type != "cuda":
        return ACTIVATIONS
    quarter = free_bytes(device) // 4
    return min(MOST_ACTIVATIONS, max(ACTIVATIONS, 1 << quarter.bit_length() - 1))


def predictive(posterior: PosteriorFields, x: Input, ask: Ask, *, first_row: int = 0) -> Predicted:
    """At some of the rows that were asked for: those from a multiple of `ask.rows` on."""
    net, params, engine = posterior.net, posterior.params, posterior.engine
    device, members = device_of(params), size(params)
    rows, chunk, draws, seed = ask.rows, ask.chunk, ask.draws, ask.seed
    sums = Sums(
        posterior.likelihood,
        draws * members,
        len(x),
        keep=ask.keep_draws,
        groups=ask.groups,
        of_rows=ask.all_rows,
        temperature=temperature_of(posterior.calibration),
    )
    # passes over x: what members share is computed once for those that run at once
    again = draws * (members if engine == "loop" else math.ceil(members / chunk))
    with alone():
        known = _ready(net)
    shared = bool(known["shared"])
    apart = (1,) if shared else ()  # noise on outputs has no numbers of what batches share
    requests = (noise_requests(net, x[:1]) if ask.shared_noise else None) or None
    given: Input | OnHost = x
    if len(x) and again > 1:
        with seeded(seed, device):  # one thread at a time: others have members in the network
            net, given = _behind_frozen(net, x, rows, device, engine, again)
    examples = draws * members * ask.all_rows / BACKWARD  # which takes no part here
    load = Workload(rows, examples, False, compile=False, engine=engine, gradients=False)
    run = predicted_by(
        *(net, params, given, load),
        device=device,
        bf16=ask.bf16,
        kernels=requests is None,  # they draw by themselves
        known=known if net is posterior.net else None,
    )
    with torch.no_grad():
        for number in range(draws):
            theta = params_of_draw(params, posterior.low_rank, number, seed=seed)
            own = None if requests is None else noise_of_draw(requests, members, number, seed=seed)
            for first in range(0, members, chunk):
                block = theta if chunk >= members else take(theta, slice(first, first + chunk))
                count = size(block)
                mine = own and [t[first : first + chunk].to(device) for t in own]
                # A draw that a batch shares is the same for every batch: one function.
                same = derive(seed, PREDICTION, number, first, 0) if shared else None
                for top in range(0, len(x), rows):
                    place = first_row + top
                    stream = derive(seed, PREDICTION, number, first, place, *apart)
                    noise = _noise_of(seed, number, place, first, count, device)
                    part = _padded(given[top : top + rows], rows).to(device)
                    # Members' tensors are in the network meanwhile, which is one object for all
                    # threads, and `seeded` lets in one at a time.
                    with seeded(stream, device):
                        outputs = run(block, part, noise, _source(noise, same), mine)
                    at = slice(top, min(top + rows, len(x)))
                    got = outputs[:, : at.stop - at.start]  # [m, b, C] of [m, rows, C]
                    sums.add(got, rows=at, first_draw=number * members + first)
    return sums.result()


@functools.lru_cache(maxsize=16)
def _noise_of(
    seed: int, number: int, place: int, first: int, count: int, device: torch.device
) -> Noise:
    """Whose noise it is: the members, and two seeds, of this batch alone and of what all share."""
    seeds = [derive(seed, PREDICTION, number, p, 2) for p in (place, -1)]
    ids = torch.arange(first, first + count, device=device)
    return Noise(ids, torch.tensor(seeds, device=device))


def _ready(net: nn.Module) -> dict[Hashable, Any]:
    """Puts the network into its mode for predictions. What is known of it then: of "shared",
    whether a batch shares noise."""
    known = findings(net)
    if "shared" not in known:
        net.eval()
        known = findings(net)  # others, where that has changed it
        known["shared"] = any(n.shared_by_batch() for n in stochastic_layers(net).values())
    return known


def _behind_frozen(
    net: nn.Module, x: Input, rows: int, device: torch.device, engine: Engine, again: int
) -> tuple[nn.Module, Input | OnHost]:
    """The part of the network that members change, and its inputs: what comes before is computed
    once for x [B, ...], and not in every one of `again` passes over it. Where nothing is frozen: as
    they are."""
    if not has_frozen(net):
        return net, x
    held = _cuts.get(net)
    if held is None or not held.holds(net):
        shared = shared_by_all(net)
        held = _Cuts({}, shared, [changes(t) for t in shared.values()])
        _cuts[net] = held
    key = form(x)
    if key not in held.by_input:
        few = x[:TRIED].to(device)
        if held.by_input and not _pays(held, net, few, (again - 1) * len(x)):
            return net, x
        held.by_input[key] = split(net, few, engine=engine)
    cut = held.by_input[key]
    features = None if cut is None else features_of(cut, x, max(2, rows), device)
    return (net, x) if cut is None or features is None else (cut.rest, features)


class _Cuts(NamedTuple):
    """A network behind its frozen part, by the form of its inputs, and what of the network that
    depends on."""

    by_input: dict[Hashable, Split | None]
    shared: dict[str, Tensor]
    changed: list[Callable[[], bool]]

    def holds(self, net: nn.Module) -> bool:
        return unchanged(net, self.shared, self.changed)


def _pays(held: _Cuts, net: nn.Module, few: Input, examples: int) -> bool:
    """Whether to cut it for inputs of one more length. To trace it takes seconds, and texts come in
    many lengths. examples: of the passes that this would save."""
    if len(held.by_input) >= MOST_TRACES:
        return False
    return flops(net, few) / len(few) * examples >= ON_CPU_FROM


_cuts: weakref.WeakKeyDictionary[nn.Module, _Cuts] = weakref.WeakKeyDictionary()


def _padded(x: Input, rows: int) -> Input:
    """x with its last row repeated up to `rows`: every batch then uses as many random numbers."""
    missing = rows - len(x)
    if missing <= 0:
        return x
    padded: Input = cat([x, for_members(x[-1], missing)])
    return padded


def _source(noise: Noise, same: int | None) -> contextlib.AbstractContextManager[None]:
    """What layers draw from: each member's own streams, where the device has them. same: the stream
    of what all batches share, if they share any."""
    device = noise.members.device
    if device.type in ("cpu", "cuda"):
        return member_noise(*noise, words, divisors)
    return contextlib.nullcontext() if same is None else same_noise(same, device)
