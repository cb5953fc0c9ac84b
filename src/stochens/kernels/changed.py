"""Whether a module is called as its class says: a kernel computes what the class says."""

from torch import nn

from stochens.methods import StochasticLayer
from stochens.private_names import hooks_of, pre_hooks_of


def changed(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` of this one object, change what a call of it computes.

    A stochastic layer calls the one inside it, which torch does not see and whose hooks stay.
    """
    own = hooks_of(module) or pre_hooks_of(module) or "forward" in vars(module)
    return bool(own) or (isinstance(module, StochasticLayer) and changed(module.inner))
