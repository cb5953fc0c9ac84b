"""Methods: rules that make a network stochastic. One file each, listed in `registry.py`."""

from stochens.methods.base import Method, Mixture, StochasticLayer
from stochens.methods.dropconnect import DropConnect
from stochens.methods.dropout import Dropout
from stochens.methods.gaussian import Gaussian
from stochens.methods.last_layer import LastLayer
from stochens.methods.lora import LoRA, begin_adapters, lora_layers, merge_adapters
from stochens.methods.np_dropout import NPDropout
from stochens.methods.registry import METHODS, MethodLike, resolve
from stochens.methods.regular import Regular
from stochens.methods.swap import (
    output_layer,
    start,
    stochastic,
    stochastic_layers,
    stochastic_places,
)

__all__ = [
    "METHODS",
    "DropConnect",
    "Dropout",
    "Gaussian",
    "LastLayer",
    "LoRA",
    "Method",
    "MethodLike",
    "Mixture",
    "NPDropout",
    "Regular",
    "StochasticLayer",
    "begin_adapters",
    "lora_layers",
    "merge_adapters",
    "output_layer",
    "resolve",
    "start",
    "stochastic",
    "stochastic_layers",
    "stochastic_places",
]
