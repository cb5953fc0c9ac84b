"""bfloat16 under vmap: the casts that autocast leaves out there, made by hand.

torch.autocast casts the arguments of whole functions (softmax and normalisation to float32,
attention to bfloat16). vmap takes such a function apart before autocast sees it, and then some of
the parts meet two types: attention's softmax gives float32 on CUDA where its backward pass expects
bfloat16 ("expected input and grad types to match"), PReLU and batch normalisation refuse at once.
So we cast the arguments of these functions ourselves, as autocast does without vmap, and turn
autocast off inside. (pytorch issues 184890 and 192617 tell of the same.)
"""

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

# By torch's own lists for CUDA (aten/src/ATen/autocast_mode.h), as far as vmap takes them apart
FLOAT32 = {
    *("layer_norm", "native_layer_norm", "group_norm", "native_group_norm", "rms_norm"),
    *("instance_norm", "batch_norm", "softmax", "log_softmax", "softmin", "gumbel_softmax"),
    *("cdist", "pdist", "cosine_similarity", "pairwise_distance", "normalize", "bilinear"),
}
BFLOAT16 = {
    *("scaled_dot_product_attention", "multi_head_attention_forward", "prelu"),
    *("lstm", "gru", "rnn_tanh", "rnn_relu"),
}
CAST = (torch.float32, torch.float16, torch.bfloat16)  # not float64, as autocast


def with_casts(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Inside, the functions above have arguments of one type, wherever autocast is on."""
    return _Casts(device.type) if torch.is_autocast_enabled(device.type) else _nothing


_nothing = contextlib.nullcontext()


class _Casts(TorchFunctionMode):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in FLOAT32 and name not in BFLOAT16:
            return func(*args, **(kwargs or {}))
        dtype = torch.float32 if name in FLOAT32 else torch.bfloat16
        own = {key: _cast(value, dtype) for key, value in (kwargs or {}).items()}
        with torch.autocast(self.device, enabled=False):
            return func(*_cast(args, dtype), **own)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor):
        return value.to(dtype) if value.dtype in CAST else value
    several = type(value) in (tuple, list)  # not torch.Size
    return type(value)(_cast(v, dtype) for v in value) if several else value


def after_casts(outputs: Tensor) -> Tensor:
    """The network's outputs in float32, where autocast made them narrower: losses, and a
    likelihood of the user's own, are not meant to run in bfloat16."""
    narrow = torch.is_autocast_enabled(outputs.device.type) and outputs.dtype.itemsize < 4
    return outputs.float() if narrow and outputs.is_floating_point() else outputs
