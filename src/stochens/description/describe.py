"""`describe`: a table of a network's layers, their noise and their bytes, before anything is
trained."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from stochens import likelihoods
from stochens.checks import check_network, own_dropout, probe_outputs, telling_rows, whole
from stochens.conversions import AlwaysDropout
from stochens.description.layers import count_bytes, layer_rows
from stochens.description.runs import what_trains
from stochens.description.table import Description
from stochens.errors import InputError
from stochens.inputs import inputs
from stochens.likelihoods import Likelihood
from stochens.members import Builder, copy_network
from stochens.methods import MethodLike, output_layer, resolve, stochastic, stochastic_layers
from stochens.methods.base import ATTENTION, RECURRENT
from stochens.methods.partial import called_layers
from stochens.methods.swap import layers_of
from stochens.moved import refuse_moved
from stochens.randomness.seeds import seeded
from stochens.run.memory import chosen_device

FEW = 4  # inputs that the network is tried on


@refuse_moved
def describe(
    net: nn.Module | Builder,
    method: MethodLike,
    x: Any = None,
    *,
    likelihood: str | Likelihood = "categorical",
    members: int = 50,
    device: str | torch.device | None = None,
) -> Description:
    """What `fit(net, (x, y), method=method, ...)` would train, without training: a table of layers.

    For each layer: which noise it has, or why it has none; how many parameters each member has for
    itself, and their bytes; what is frozen, and so held once; which parameters are tied to those of
    another layer. Below it: the bytes of all members, what will run them, and the layers without
    noise that nobody asked to be without. `.rows` has the same as `LayerRow` objects.

    x [B, ...]: some inputs, or the training data as a Data. With them it is known which layer makes
    the outputs, which layers are never called, and what runs the members; for a large network that
    takes some seconds. Without them the last layer that was registered is taken for the output
    layer. Options are those of `fit`. Where `fit` would refuse the network, this does.

    >>> net = nn.Sequential(nn.Linear(2, 10), nn.LayerNorm(10), nn.ReLU(), nn.Linear(10, 2))
    >>> describe(net, "dropout", members=10)
    layer  kind       noise                   parameters  a member
    --------------------------------------------------------------
    0      Linear     dropout 0.1 on outputs          30     120 B
    1      LayerNorm  none: normalisation             20      80 B
    3      Linear     none: output layer              22      88 B
    <BLANKLINE>
    method: dropout
    bytes: 10 members x 288 B + 0 B shared = 2.9 kB
    runs by: not known without x, some inputs
    """
    whole(members=members)
    rules, like = tuple(resolve(method)), likelihoods.resolve(likelihood)
    if isinstance(net, nn.Module):
        check_network(net)  # before it is copied, which a lazy layer does not bear
    with seeded(0):
        plain = copy_network(net) if isinstance(net, nn.Module) else net()
    if not isinstance(plain, nn.Module):
        raise InputError(f"the function given as net must return an nn.Module, got {plain!r}")
    check_network(plain)
    plain = plain.cpu()
    few = None if x is None else telling_rows(inputs(x), FEW).cpu()
    output = next(reversed(layers_of(plain)), None)
    if few is not None:
        plain = like.prepare(plain, probe_outputs(plain, few))
        output = output_layer(plain, few)
    noisy = stochastic(plain, rules, output=output)
    runs = "not known without x, some inputs"
    if few is not None:
        place = chosen_device(device)
        runs = what_trains(copy_network(noisy).to(place), like, few.to(place))
    return description_of(noisy, rules, few, output=output, members=members, runs=runs)


def description_of(
    noisy: nn.Module,
    rules: Sequence[Any],
    few: Tensor | None,
    *,
    output: str | None,
    members: int,
    runs: str,
    also: str = "",
    other_bytes: int = 0,
    calibration: str = "",
) -> Description:
    """Of a network that already has its noise. few [B, ...]: inputs on its device; also: what is
    random beside the layers' noise."""
    layers = stochastic_layers(noisy)
    called = None if few is None else called_layers(noisy, layers, few)
    frozen = [p for p in noisy.parameters() if not p.requires_grad]
    kept = [path for path, m in noisy.named_modules() if isinstance(m, AlwaysDropout)]
    whole_layers = (*ATTENTION, *RECURRENT)  # which may have dropout inside
    inside = [p for p, m in layers.items() if isinstance(m.plain, whole_layers)]
    off = [*own_dropout(noisy), *(p for p in inside if own_dropout(layers[p].plain))]
    return Description(
        rows=layer_rows(noisy, rules, output=output, called=called),
        method=" + ".join([*(rule.name for rule in rules), *filter(None, [also])]),
        members=members,
        runs=runs,
        shared_bytes=count_bytes([*frozen, *noisy.buffers()]),
        other_bytes=other_bytes,
        dropout_off=tuple(off),
        dropout_on=tuple(kept),
        calibration=calibration,
    )
