"""Whether a module is called as its class says: a kernel computes what the class says."""

from torch import nn

from stochens.methods import StochasticLayer


def changed(module: nn.Module) -> bool:
    """Whether hooks, or a `forward` of this one object, change what a call of it computes.

    A stochastic layer calls the one inside it, which torch does not see and whose hooks stay.
    """
    own = module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module)
    return bool(own) or (isinstance(module, StochasticLayer) and changed(module.inner))
