"""Whether `precision="auto"` may compute in bfloat16, which has three digits."""

import contextlib
import logging
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from stochens.members import copy_network, forward, trainable
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import seeded
from stochens.trees import Input, with_dtype

log = logging.getLogger("stochens")

# What may be lost of the differences between examples: it is 0.007 to 0.11 for the networks of
# benchmarks/models.py on standardised inputs, 0.3 for inputs around 100 and 41 around 10,000.
LOST_AT_MOST = 0.2


@contextlib.contextmanager
def whole_float32() -> Iterator[None]:
    """Without TF32, which torch takes for convolutions by itself: over fifty of them it rounds by
    more than a wrong cut or a wrong gradient might be off."""
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before


def auto_dtype(net: nn.Module, few: Input, *, coarse: bool) -> torch.dtype | None:
    """bfloat16, or None for the precision of the parameters.

    It is bfloat16 on a GPU that has it, for float32 parameters, where outputs may be `coarse`
    (those of a classifier; a regression may need more digits) and few [B, ...] stay apart.
    """
    params = trainable(net).values()
    plain = few.is_cuda and all(p.is_cuda and p.dtype == torch.float32 for p in params)
    if not (coarse and plain and torch.cuda.is_bf16_supported(including_emulation=False)):
        return None
    lost = lost_by_rounding(net, few)
    if lost <= LOST_AT_MOST:
        return torch.bfloat16
    log.info(
        "the network computes in float32: in bfloat16 its outputs would be off by %.2g times what "
        "tells examples apart; standardised inputs may mend it",
        lost,
    )
    return None


def lost_by_rounding(net: nn.Module, few: Input) -> float:
    """||b - f|| / ||f - mean of f over examples|| of one member's outputs f in the precision that
    it has and b in bfloat16, for few [B, ...].

    >>> net, x = nn.Linear(3, 2), torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    >>> lost_by_rounding(net, x) < 0.02, lost_by_rounding(net, x + 1e4) > 2
    (True, True)
    """
    params = {name: p.detach().unsqueeze(0) for name, p in trainable(net).items()}
    exact = _outputs(net, params, few, None)
    try:
        rounded = _outputs(net, params, few, torch.bfloat16)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, TypeError):  # an operation that has no bfloat16
        return float("inf")
    spread = (exact - exact.mean(0)).norm()
    return float((rounded - exact).norm() / spread.clamp_min(1e-30))


def _outputs(
    net: nn.Module, params: dict[str, Tensor], few: Input, dtype: torch.dtype | None
) -> Tensor:
    own = copy_network(net).to(dtype).eval()  # without the network's own dropout
    params = {name: p if dtype is None else p.to(dtype) for name, p in params.items()}
    x = with_dtype(few, dtype)
    zero = torch.zeros(1, dtype=torch.int64, device=few.device)
    with torch.no_grad(), seeded(0, few.device), member_noise(zero, zero):
        return forward(own, params, x, engine="loop")[0].double()
