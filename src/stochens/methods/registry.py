"""The methods by name. A new one is a file beside this and an entry here."""

from collections.abc import Iterable, Sequence

from stochens.errors import InputError, did_you_mean
from stochens.methods.base import Method
from stochens.methods.dropconnect import DropConnect
from stochens.methods.dropout import Dropout
from stochens.methods.gaussian import Gaussian
from stochens.methods.last_layer import LastLayer
from stochens.methods.lora import LoRA
from stochens.methods.np_dropout import NPDropout
from stochens.methods.regular import Regular

METHODS: dict[str, type[Method]] = {
    method.name: method
    for method in (Regular, Dropout, DropConnect, NPDropout, Gaussian, LoRA, LastLayer)
}
PAPER_NAMES = {"SE1": "dropout", "SE2": "dropconnect", "SE3": "np-dropout"}
FUNCTIONS = ("langevin", "multiswa", "multiswag", "nuts", "hmc", "sgmcmc")  # stochens.langevin, ...

MethodLike = str | Method | Sequence[str | Method]


def resolve(method: MethodLike) -> list[Method]:
    """Methods by name, by object, or several that compose, in the order they are applied.

    >>> resolve(["dropout", Gaussian(0.1)])[1].sigma
    0.1
    """
    if isinstance(method, str | Method | type) or not isinstance(method, Iterable):
        return [_one(method)]
    return [_one(m) for m in method]


def _one(method: object) -> Method:
    if isinstance(method, Method):
        return method
    known = METHODS.get(PAPER_NAMES.get(method, method)) if isinstance(method, str) else None
    if known is not None:
        return known()
    if isinstance(method, type):
        raise InputError(f"method must be an object: {method.__name__}(), with the parentheses")
    if method in FUNCTIONS:
        raise InputError(
            f"{method!r} is a function of its own, not a method of fit: "
            f"stochens.{method}(net, data, ...)"
        )
    hint = did_you_mean(str(method), [*METHODS, *PAPER_NAMES])
    names = f"{', '.join(METHODS)}; {', '.join(FUNCTIONS)} are functions of their own"
    raise InputError(f"unknown method {method!r}{hint or '.'} The methods are {names}")
