"""Names that options had before: each is refused with the spelling that it has now."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from stochens.checks import refuse_renamed
from stochens.errors import InputError

P = ParamSpec("P")
R = TypeVar("R")
MOVED = {
    **{name: ("Run", "run", name) for name in ("engine", "chunk", "checkpoint", "log")},
    "checkpoint_every": ("Run", "run", "every"),
    "bf16": ("Run", "run", "precision"),
    "dtype": ("Run", "run", "precision"),
    "schedule": ("Optimizer", "optimizer", "schedule"),
    "weight_decay": ("Optimizer", "optimizer", "weight_decay"),
    "repulsion": ("Optimizer", "optimizer", "repulsion"),
    "target": ("Data", "data", "target"),
    "sample_weight": ("Data", "data", "weights"),
    "jitter": ("Start", "start", "jitter"),
    "skip": ("Dropout", "method", "skip"),
}  # old name -> (the object that has it now, the argument that takes this, its name there)
SAMPLERS = ("nuts", "hmc", "sgmcmc", "langevin", "mclmc")  # whose Data has no weights
FULL_BATCH = ("nuts", "hmc", "mclmc")
NO_BATCHES = (
    "{} uses all of the data in each step: the noise of mini-batches would be an error in the "
    "energy that it goes by. Leave batch_size out, or use langevin, which takes one and warns "
    "where its noise is too large"
)
COUNTED_ONCE = "samplers count every row once, and weigh none; leave {} out, or repeat rows"
RENAMED = {"temperature": "kl_weight", "prior_precision": "prior"}
SPELLED = {
    ("bf16", "None"): "auto",
    ("bf16", "True"): "bf16",
    ("bf16", "False"): "float32",
    ("dtype", "None"): "auto",
    ("dtype", "torch.float32"): "float32",
    ("dtype", "torch.float64"): "float64",
}


def refuse_moved(function: Callable[P, R]) -> Callable[P, R]:
    """A function that names the new spelling when it is given an option by its old one."""
    known = inspect.signature(function).parameters
    more = any(p.kind is p.VAR_KEYWORD for p in known.values())  # those of `fit`
    where = function.__qualname__

    @functools.wraps(function)
    def wrapper(*args: P.args, **options: P.kwargs) -> R:
        for name in (name for name in options if name not in known):
            if name == "batch_size" and where in FULL_BATCH:
                raise InputError(NO_BATCHES.format(where))
            if name in MOVED and (more or MOVED[name][1] in known):
                raise InputError(_new_spelling(where, name, options))
            if name in RENAMED and (more or RENAMED[name] in known):
                refuse_renamed(options, where, **{name: RENAMED[name]})
        return function(*args, **options)

    return wrapper


def _new_spelling(where: str, name: str, options: dict[str, Any]) -> str:
    """
    >>> _new_spelling("fit", "bf16", {"bf16": True})
    "bf16 is an option of Run now: fit(..., run=stochens.Run(precision='bf16'))"
    >>> _new_spelling("fit", "sample_weight", {"sample_weight": [1.0, 2.0]})
    'sample_weight is an option of Data now: fit(net, stochens.Data(data, weights=...))'
    >>> _new_spelling("nuts", "sample_weight", {"sample_weight": [1.0, 2.0]})
    'samplers count every row once, and weigh none; leave sample_weight out, or repeat rows'
    """
    if name == "sample_weight" and where in SAMPLERS:
        return COUNTED_ONCE.format(name)
    kind, argument, new = MOVED[name]
    value = options[name]
    value = SPELLED.get((name, str(value)), value)
    given = f"{new}={value!r}" if isinstance(value, (str, int, float)) else f"{new}=..."
    if argument == "data":
        return f"{name} is an option of {kind} now: {where}(net, stochens.Data(data, {given}))"
    if argument == "method":
        return f"{name} is an option of every method now, such as stochens.{kind}({given})"
    if argument == "start":
        start = options.get("start", "module")
        given = f"{start!r}, {given}" if isinstance(start, str) else f"start, {given}"
    return f"{name} is an option of {kind} now: {where}(..., {argument}=stochens.{kind}({given}))"
