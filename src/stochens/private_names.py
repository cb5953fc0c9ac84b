"""Every private name of another package that we use. No other file uses one; a test looks.

A private name may be gone in the next version. So each stands in a table, with what it is for,
since when it is there and what happens where it is missing: the slower public way, or an error that
says what to install. ("2.6": in the oldest torch that we accept, and perhaps before it.)
"""

import abc
import contextlib
import inspect
import types
from collections.abc import Callable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

from stochens.errors import InputError


class Private(NamedTuple):
    """One of them."""

    name: str  # from the package on
    since: str  # version of its package
    purpose: str
    missing: str  # what happens then


_TOLD = "an InputError that names the versions of torch which have it"
_EACH_RUN = "CUDA kernels are compiled in each run"
_PUBLIC_CLASSES = "torch's public classes of the kind; another library's own are not seen"

NAMES = (
    Private("torch.nn.Module._modules", "2.6", "to swap layers, each in all of its places", _TOLD),
    Private("torch.nn.Module._parameters", "2.6", "to lend a layer's parameters", _TOLD),
    Private("torch.nn.Module._buffers", "2.6", "likewise its buffers", _TOLD),
    Private("torch.nn.Module._non_persistent_buffers_set", "2.6", "which are not saved", _TOLD),
    Private(
        "torch.nn.Module._forward_hooks", "2.6", "whether a call does more than forward", _TOLD
    ),
    Private("torch.nn.Module._forward_pre_hooks", "2.6", "likewise", _TOLD),
    Private("torch.nn.Module._backward_hooks", "2.6", "likewise its gradient", _TOLD),
    Private("torch.nn.Module._backward_pre_hooks", "2.6", "likewise", _TOLD),
    Private("torch.nn.Module._apply", "2.6", "to(): a layer inside another moves with it", _TOLD),
    Private(
        "torch.nn.MultiheadAttention._reset_parameters",
        "2.6",
        "attention's initialisation, again for each member",
        "an InputError that asks for a function which builds the network",
    ),
    Private("torch.nn.modules.conv._ConvNd", "2.6", "any convolution", _PUBLIC_CLASSES),
    Private("torch.nn.modules.conv._ConvTransposeNd", "2.6", "transposed ones", _PUBLIC_CLASSES),
    Private("torch.nn.modules.batchnorm._BatchNorm", "2.6", "any batch norm", _PUBLIC_CLASSES),
    Private("torch.nn.modules.batchnorm._NormBase", "2.6", "and instance norm", _PUBLIC_CLASSES),
    Private("torch.nn.modules.instancenorm._InstanceNorm", "2.6", "the latter", _PUBLIC_CLASSES),
    Private(
        "torch.nn.utils.parametrizations._SpectralNorm",
        "2.6",
        "spectral normalisation is refused by its name",
        "it is refused as a network whose forward pass changes a buffer",
    ),
    Private(
        "torch.Tensor._version",
        "2.6",
        "whether the network changes its input in place",
        "the input is compared with a copy: writing the same values again is not noticed",
    ),
    Private(
        "torch.utils.checkpoint._checkpoint_without_reentrant_generator",
        "2.6",
        "to notice activation checkpointing in a network",
        "checkpoint() itself is given another body for that time",
    ),
    Private(
        "torch._foreach_copy_",
        "2.6",
        "to copy a sampler's state in one operation",
        "one tensor after the other, each a kernel of its own on a GPU",
    ),
    Private(
        "torch.cuda._compile_kernel",
        "2.8",
        "to compile our CUDA sources by NVRTC",
        "plain torch does the work, slower",
    ),
    Private("torch.cuda._utils._nvrtc_compile", "2.8", "likewise, to keep what it made", _EACH_RUN),
    Private("torch.cuda._utils._cuda_load_module", "2.8", "and to load that again", _EACH_RUN),
    Private(
        "torch._higher_order_ops.scan",
        "2.6",
        "the loop over draws in an exported program",
        "an InputError: there is no export",
    ),
    Private(
        "torch.ops.aten.linear.default._schema",
        "2.6",
        "the names and defaults of an operator's arguments in a traced network",
        _TOLD,
    ),
    Private(
        "torch.onnx._internal.exporter._registration",
        "2.6",
        "the log in which torch says that torchvision is missing",
        "it says so",
    ),
    Private(
        "sklearn.utils.validation._check_sample_weight",
        "1.6",
        "weights as scikit-learn's own estimators check them",
        "check_array and a look at the shape",
    ),
)


# What a module holds ------------------------------------------------------------------------------


def parts_of(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules directly in it, to read and to write. named_children() has a shared one once."""
    found: dict[str, nn.Module | None] = _held(module, "_modules")
    return found


def parameters_of(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of its own, to read and to write without register_parameter's checks."""
    found: dict[str, nn.Parameter | None] = _held(module, "_parameters")
    return found


def buffers_of(module: nn.Module) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = _held(module, "_buffers")
    return found


def unsaved_buffers_of(module: nn.Module) -> set[str]:
    found: set[str] = _held(module, "_non_persistent_buffers_set")
    return found


def lend_all(owner: nn.Module, to: nn.Module) -> None:
    """Parts, parameters and buffers of one module are those of another too, by the same names:
    what is exchanged in one is exchanged in the other."""
    for name in ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set"):
        to.__dict__[name] = _held(owner, name)


def hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """What is called after its forward."""
    found: MutableMapping[int, Callable[..., Any]] = _held(module, "_forward_hooks")
    return list(found.values())


def pre_hooks_of(module: nn.Module) -> list[Callable[..., Any]]:
    """What is called before its forward."""
    found: MutableMapping[int, Callable[..., Any]] = _held(module, "_forward_pre_hooks")
    return list(found.values())


def called_around(module: nn.Module) -> list[Callable[..., Any]]:
    """All that is called before or after its forward or its backward pass."""
    found = [*hooks_of(module), *pre_hooks_of(module)]
    for name in ("_backward_hooks", "_backward_pre_hooks"):
        found += _held(module, name).values()
    return found


def with_parts(module: nn.Module, parts: dict[str, nn.Module | None]) -> nn.Module:
    """Another module of the same class that has all of this one but for its parts.

    >>> both = nn.Sequential(nn.ReLU(), nn.Tanh())
    >>> with_parts(both, {"0": nn.Tanh(), "1": both[1]})
    Sequential(
      (0): Tanh()
      (1): Tanh()
    )
    """
    _held(module, "_modules")
    twin: nn.Module = object.__new__(type(module))
    twin.__dict__.update(vars(module), _modules=parts)
    return twin


def apply_to_tensors(module: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool) -> None:
    """What to(), cuda(), double() do with each parameter and buffer."""
    _held(module, "_apply")(fn, recurse)


def check_apply() -> None:
    """StochasticLayer overrides `_apply`, the only private name that we define for others to call;
    where torch has none, nobody would, and the layer inside would stay where it is."""
    _held(nn.Module, "_apply")


def _held(module: Any, name: str) -> Any:
    try:
        return getattr(module, name)
    except AttributeError:
        kind = module if isinstance(module, type) else type(module)
        raise InputError(
            f"{kind.__name__} has no {name} in torch {torch.__version__}, and stochens "
            "needs it; 2.6 and 2.13 have it: pip install 'torch>=2.6,<2.14'"
        ) from None


def reset_of(module: nn.Module) -> Callable[[], None] | None:
    """Its own initialisation, or None. Attention has it under a private name."""
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(reset := getattr(module, name, None)):
            return reset  # type: ignore[no-any-return]
    return None


def schema_of(operator: Any) -> Any:
    """Of an operator of a traced graph, its schema: arguments with names and defaults."""
    return _held(operator, "_schema")


# Kinds of layers ----------------------------------------------------------------------------------

_BASES: dict[str, tuple[types.ModuleType, tuple[type[nn.Module], ...]]] = {
    "_ConvNd": (
        nn.modules.conv,
        (
            *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
            *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
        ),
    ),
    "_ConvTransposeNd": (
        nn.modules.conv,
        (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
    ),
    "_BatchNorm": (
        nn.modules.batchnorm,
        (
            *(nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm),
            *(nn.LazyBatchNorm1d, nn.LazyBatchNorm2d, nn.LazyBatchNorm3d),
        ),
    ),
    "_InstanceNorm": (
        nn.modules.instancenorm,
        (
            *(nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d),
            *(nn.LazyInstanceNorm1d, nn.LazyInstanceNorm2d, nn.LazyInstanceNorm3d),
        ),
    ),
}
_BASES["_NormBase"] = (
    nn.modules.batchnorm,
    _BASES["_BatchNorm"][1] + _BASES["_InstanceNorm"][1],
)


def base(name: str) -> Any:
    """torch's base class of that name, or a class that isinstance finds its public ones to be of.

    >>> isinstance(nn.Conv2d(1, 1, 1), base("_ConvNd"))
    True
    """
    where, public = _BASES[name]
    found = getattr(where, name, None)
    if found is None:
        found = abc.ABCMeta(name, (), {})
        for kind in public:
            found.register(kind)
    return found


if TYPE_CHECKING:
    Convolution = nn.modules.conv._ConvNd
    TransposedConvolution = nn.modules.conv._ConvTransposeNd
    BatchNorm = nn.modules.batchnorm._BatchNorm
    InstanceNorm = nn.modules.instancenorm._InstanceNorm
    BatchOrInstanceNorm = nn.modules.batchnorm._NormBase
else:
    Convolution = base("_ConvNd")  # transposed ones included
    TransposedConvolution = base("_ConvTransposeNd")
    BatchNorm = base("_BatchNorm")
    InstanceNorm = base("_InstanceNorm")
    BatchOrInstanceNorm = base("_NormBase")

SPECTRAL = ("_SpectralNorm", "SpectralNorm")  # torch's own, as a parametrisation and as a hook


# Things torch does --------------------------------------------------------------------------------


def changes(x: Tensor) -> Callable[[], bool]:
    """A function that tells whether x was written to since this call.

    >>> x = torch.zeros(2)
    >>> changed = changes(x)
    >>> changed(), bool(x.add_(1).sum()), changed()
    (False, True, True)
    """
    if hasattr(x, "_version"):
        before = x._version
        return lambda: x._version != before
    kept = x.clone()
    return lambda: not bool(torch.isclose(kept, x, rtol=0, atol=0, equal_nan=True).all())


CHECKPOINTED = (
    "the network uses torch.utils.checkpoint, which computes again when a member's parameters are "
    "no longer in it; turn it off"
)


@contextlib.contextmanager
def checkpointing_refused() -> Iterator[None]:
    """Inside, activation checkpointing is an InputError. Who has imported `checkpoint` by its name
    has the function itself, so that what it calls is replaced, or what it does."""
    _Refused.apply = staticmethod(_refuse)
    with contextlib.ExitStack() as back:
        back.enter_context(_replaced(checkpoint, "CheckpointFunction", _Refused))
        if hasattr(checkpoint, "_checkpoint_without_reentrant_generator"):
            name = "_checkpoint_without_reentrant_generator"
            back.enter_context(_replaced(checkpoint, name, _refuse))
        else:
            function = inspect.unwrap(checkpoint.checkpoint)
            back.enter_context(_replaced(function, "__code__", _refuse.__code__))
        yield


def _refuse(*args: Any, **kwargs: Any) -> Any:
    from stochens import errors, private_names  # its code runs among torch's names too

    raise errors.InputError(private_names.CHECKPOINTED)


class _Refused:
    apply: Any


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def copy_all(to: list[Tensor], values: list[Tensor]) -> None:
    """Each of `values` into its place in `to`."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, values)
        return
    for place, value in zip(to, values, strict=True):
        place.copy_(value)


def compiles_cuda() -> bool:
    """Whether torch can; where it cannot, nobody may call `compile_cuda`."""
    return hasattr(torch.cuda, "_compile_kernel")


def compile_cuda(code: str, name: str, nvcc_options: list[str]) -> Any:
    """The kernel of that name, by NVRTC."""
    return torch.cuda._compile_kernel(code, name, nvcc_options=nvcc_options)


# The two halves of it, so that what is compiled can be kept. A torch without them raises
# ImportError or TypeError: `compile_cuda` then compiles in each run.


def cuda_machine_code(code: str, name: str, nvcc_options: list[str]) -> tuple[bytes, str]:
    """For the current device, and the kernel's name inside."""
    from torch.cuda._utils import _nvrtc_compile

    made: tuple[bytes, str] = _nvrtc_compile(code, name, nvcc_options=nvcc_options)
    return made


def load_cuda(machine_code: bytes, name: str) -> Any:
    """The kernel, as `compile_cuda` gives it."""
    from torch.cuda._utils import _cuda_load_module

    kernels: Any = _cuda_load_module(machine_code, [name])
    return kernels[name]


def scan() -> Callable[..., Any]:
    """The loop torch.export can keep as a loop: young, and so not public yet."""
    try:
        from torch._higher_order_ops.scan import scan as found
    except ImportError as error:
        raise InputError(
            f"torch {torch.__version__} has no torch._higher_order_ops.scan, and export needs it; "
            "2.10 and 2.13 have it: pip install 'torch>=2.10,<2.14'"
        ) from error
    made: Callable[..., Any] = found
    return made


ONNX_LOG = "torch.onnx._internal.exporter._registration"


# Of other packages --------------------------------------------------------------------------------


class _ByName(type):
    """isinstance by the name of the class, so that its package need not be there."""

    def __instancecheck__(cls, instance: object) -> bool:
        kind = type(instance)
        return bool(f"{kind.__module__}.{kind.__qualname__}" == vars(cls)["stands_for"])


class TransposedLinear(nn.Module, metaclass=_ByName):
    """Hugging Face's Conv1D:  y = x W + b,  x [..., in], W [in, out], b [out]."""

    stands_for = "transformers.pytorch_utils.Conv1D"


def check_sample_weight(weights: Any, x: Any) -> Any:
    """float64 weights [N] for the rows of x [N, features], from weights or from one number."""
    import numpy as np
    from sklearn.utils import validation

    own = getattr(validation, "_check_sample_weight", None)
    if own is not None:
        return own(weights, x, dtype=np.float64)
    if np.ndim(weights) == 0:
        weights = np.full(len(x), weights)
    found = validation.check_array(
        weights, ensure_2d=False, dtype=np.float64, order="C", input_name="sample_weight"
    )
    if found.shape != (len(x),):
        raise InputError(f"sample_weight.shape == {found.shape}, expected {(len(x),)}!")
    if not found.any():
        raise InputError("Sample weights must contain at least one non-zero number.")
    return found
