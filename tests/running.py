"""Options of `fit` and the samplers as flat as tests want to vary them."""

import dataclasses
from typing import Any

import stochens
from stochens.run.options import merge_run
from stochens.training.fit import fit_by
from stochens.training.request import FitRequest
from stochens.training.schedules import as_optimizer

OF_RUN = [field.name for field in dataclasses.fields(stochens.Run)]
# not "warmup", which samplers have too: in steps
OF_OPTIMIZER = ["schedule", "weight_decay", "repulsion", "clip", "accumulate"]


def gather(**options: Any) -> dict[str, Any]:
    """The same options with those of Run inside `run`, and those of Optimizer inside `optimizer`.

    >>> gather(members=3, engine="vmap")["run"].engine
    'vmap'
    """
    flat = ("device", "progress")
    run = {name: options.pop(name) for name in OF_RUN if name in options and name not in flat}
    moves = {name: options.pop(name) for name in OF_OPTIMIZER if name in options}
    if run:
        options["run"] = dataclasses.replace(options.get("run", stochens.Run()), **run)
    if moves:
        options["optimizer"] = stochens.Optimizer(options.get("optimizer", "adam"), **moves)
    return options


def fit_watched(net: Any, data: Any, collect: Any, **options: Any) -> stochens.Posterior:
    """`fit` with somebody who watches each block of members, as multiswa has."""
    options = gather(**options)
    run = merge_run(
        options.pop("run", stochens.Run()),
        device=options.pop("device", None),
        progress=options.pop("progress", None),
    )
    optimizer = as_optimizer(options.pop("optimizer", "adam"))
    method = options.pop("method", None)
    request = FitRequest(
        net=net, data=data, run=run, optimizer=optimizer, collect=collect, **options
    )
    return fit_by(method, request)
