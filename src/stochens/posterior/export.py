"""The averaged predictor as a file that needs no stochens: ONNX, or torch.export's own format.

Its inputs are x [B, ...], or each tensor of a tree by its name, with B free, and the noise of every
draw as plain numbers, so that the file holds a pure function. Draws run one after the other in a
loop inside the graph (ONNX's Scan), so that its size does not grow with their number.
"""

import contextlib
import copy
import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens.errors import InputError
from stochens.likelihoods import Likelihood, draws_of
from stochens.members import Params, forward, size
from stochens.posterior.shared_noise import noise_requests
from stochens.private_names import ONNX_LOG, scan
from stochens.trees import Input, cat, named
from stochens.version import __version__

SUFFIXES = (".onnx", ".pt2")
OLDEST_TORCH = "2.10"  # the first whose scan can be traced with a network inside
MOST_BYTES = 2_000_000_000  # a protobuf message, and so an ONNX file, ends at 2 GiB


class Predictor(NamedTuple):
    """What is to be written. S draws are rows of M members: draw s is of member s mod M."""

    net: nn.Module
    params: Params  # [M, ...], or [S, ...] where each draw has parameters of its own
    likelihood: Likelihood
    noise: dict[str, Tensor]  # each [S, ...]
    draws: int  # S
    temperature: float = 1.0


class _One(nn.Module):
    """One draw of one member as a function of x, its parameters and its noise. `joined` makes the
    network's input of x."""

    def __init__(self, net: nn.Module, names: list[str], joined: Callable[[Any], Input]) -> None:
        super().__init__()
        self._net, self._names, self._joined = net, names, joined

    def forward(self, x: Any, params: list[Tensor], noise: list[Tensor]) -> Tensor:
        one = {name: p.unsqueeze(0) for name, p in zip(self._names, params, strict=True)}
        drawn = [t.unsqueeze(0) for t in noise]
        return forward(self._net, one, self._joined(x), engine="loop", noise=drawn)[0]  # [B, C]


class _All(nn.Module):
    """Every draw, and their averages."""

    def __init__(self, predictor: Predictor, one: nn.Module, loop: Callable[..., Any]) -> None:
        super().__init__()
        self._one, self._scan = one, loop
        self._likelihood, self._draws = predictor.likelihood, predictor.draws
        self._temperature = predictor.temperature
        self._count = size(predictor.params)
        for k, p in enumerate(predictor.params.values()):
            self.register_buffer(f"parameter_{k}", p)

    def forward(self, x: Any, noise: dict[str, Tensor]) -> tuple[Tensor, ...]:
        params = list(self.buffers(recurse=False))  # each [M, ...]

        def draw(carry: Tensor, row: list[Tensor]) -> tuple[Tensor, Tensor]:
            member, own = row[0], list(row[1:])  # older torch takes `member, *own` for a tuple
            theta = [p.index_select(0, member).squeeze(0) for p in params]
            return carry.clone(), self._one(x, theta, own)

        rows = (torch.arange(self._draws) % self._count).unsqueeze(1)  # [S, 1]
        _, outputs = self._scan(
            draw, _tensors(x)[0].new_zeros(()), [rows, *noise.values()]
        )  # [S, B, C]
        said = draws_of(self._likelihood, outputs, self._temperature)
        return tuple(said.exported().values())


def _tensors(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else list(x.values())


def output_names(predictor: Predictor, x: Input) -> list[str]:
    """What the likelihood calls its averages, in order; x is an example."""
    net = copy.deepcopy(predictor.net).cpu().eval()
    one = {name: p[:1].detach().cpu() for name, p in predictor.params.items()}
    noise = [t[:1] for t in predictor.noise.values()]
    with torch.no_grad():
        outputs = forward(net, one, x[:1].cpu(), engine="loop", noise=noise)  # [1, 1, C]
    return list(draws_of(predictor.likelihood, outputs).exported())


class Sequence(NamedTuple):
    """Which axes have the length of a sequence, which stays free."""

    of_x: dict[str, set[int]]  # of each input
    of_noise: list[set[int]]  # of each tensor of noise, for one draw


def program(predictor: Predictor, x: Input) -> Any:
    """The torch.export.ExportedProgram of (x [B, ...], noise) -> averages; x is an example.

    Of a tree x is a dictionary of its tensors by name. Lengths of sequences stay free where torch
    can trace that.
    """
    if torch.__version__ < OLDEST_TORCH:  # compared as versions, not as strings
        raise InputError(f"export needs torch {OLDEST_TORCH} or newer, this is {torch.__version__}")
    net = copy.deepcopy(predictor.net).cpu().eval().requires_grad_(False)
    # copies: those of a sampler are views of one tensor, and torch's scan takes no two such
    params = {name: p.detach().cpu().clone() for name, p in predictor.params.items()}
    predictor, x = predictor._replace(net=net, params=params), x[:1].cpu()
    if (free := sequence(net, x)) is not None:
        with contextlib.suppress(RuntimeError, ValueError, TypeError, AssertionError):
            return _traced(predictor, x, free)
    return _traced(predictor, x, Sequence({}, [set() for _ in predictor.noise]))


def sequence(net: nn.Module, x: Input) -> Sequence | None:
    """The axes that are of another length where x [1, T, ...] is one shorter; None where nothing is
    a sequence, or the network takes no other length.

    T is the length of the second axes of whole numbers and of masks.
    """
    lengths = _lengths(x)
    if not lengths or min(lengths) < 3:  # torch takes 0 and 1 for lengths that are always these
        return None
    of_x = {name: {1} for name, t in named(x).items() if t.dim() > 1 and t.shape[1] in lengths}
    cut = {name: t[:, :-1] if name in of_x else t for name, t in named(x).items()}
    shorter = cut["x"] if isinstance(x, Tensor) else x.with_leaves(list(cut.values()))
    try:
        then, now = noise_requests(net, x), noise_requests(net, shorter)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return None
    pairs = [(enumerate(a.shape), b.shape) for a, b in zip(then, now, strict=True)]
    return Sequence(of_x, [{k for k, size in one if other[k] != size} for one, other in pairs])


def _lengths(x: Input) -> set[int]:
    """
    >>> _lengths(torch.zeros(2, 7, dtype=torch.long)), _lengths(torch.zeros(2, 7))
    ({7}, set())
    """
    return {t.shape[1] for t in named(x).values() if t.dim() > 1 and not t.is_floating_point()}


def _traced(predictor: Predictor, x: Input, free: Sequence) -> Any:
    net, params, loop = predictor.net, predictor.params, scan()
    batch, length = torch.export.Dim("batch", min=1), torch.export.Dim.AUTO
    first = [p[0] for p in params.values()]
    noise = [t[0] for t in predictor.noise.values()]
    # torch takes an axis of length 1 for one that is always 1, and two of one length for the same
    given, joined = example_of(cat([x] * next(n for n in (3, 5, 7) if n not in _lengths(x))))
    axes = [{0: batch, **dict.fromkeys(free.of_x.get(name, ()), length)} for name in named(x)]
    shapes: Any = axes[0] if isinstance(x, Tensor) else dict(zip(given, axes, strict=True))
    of_one = [dict.fromkeys(own, length) for own in free.of_noise]
    of_all = [{k + 1: length for k in own} for own in free.of_noise]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        one = torch.export.export(
            _One(net, list(params), joined),
            (given, first, noise),
            dynamic_shapes=(shapes, [None] * len(first), of_one),
        )
        return torch.export.export(
            _All(predictor, _with_constants(one), loop),
            (given, predictor.noise),
            dynamic_shapes=(shapes, dict(zip(predictor.noise, of_all, strict=True))),
        )


def _with_constants(made: Any) -> nn.Module:
    """The traced module, with the tensors that it makes of numbers as buffers: torch's scan does
    not take others."""
    module: nn.Module = made.module()
    for name in made.constants:
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if own in vars(owner):
            value = vars(owner).pop(own)
            owner.register_buffer(own, value)
    return module


def example_of(x: Input) -> tuple[Any, Callable[[Any], Input]]:
    """What the exported function takes, and how the network's input is made of that."""
    if isinstance(x, Tensor):
        return x, lambda t: t
    return x.named(), lambda given: x.with_leaves(list(given.values()))


def write(
    path: Any, predictor: Predictor, x: Input, *, about: dict[str, str], overwrite: bool
) -> None:
    """The predictor as one file, whole or not there; its suffix says in which format."""
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise InputError(f"export writes {' or '.join(SUFFIXES)}, got {path.name!r}")
    if path.exists() and not overwrite:
        raise InputError(f"{path} exists; pass overwrite=True")
    if path.suffix == ".onnx":
        _refuse_without_onnx()
        held = sum(p.numel() * p.element_size() for p in predictor.params.values())
        if held > MOST_BYTES:
            raise InputError(
                f"the parameters are {held / 1e9:.1f} GB, and an ONNX file holds 2; export fewer "
                "members (posterior.take), or to .pt2"
            )
    try:
        made = program(predictor, x)
    except RuntimeError as error:  # what torch.export raises
        said = str(error).splitlines()[0]
        raise InputError(f"torch.export cannot trace this network: {said}") from error
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".pt2":
            torch.export.save(made, part)
        else:
            part.write_bytes(_onnx(made, predictor, x, about))
        part.replace(path)
    except ImportError as error:  # onnxscript has a module for each newer torch
        raise InputError(
            f"torch {torch.__version__} needs a newer onnxscript ({error}); "
            "pip install -U onnxscript"
        ) from error
    except (OSError, RuntimeError) as error:  # torch's own way to say: cannot open
        raise InputError(f"cannot write {path}: {error}") from error
    finally:
        part.unlink(missing_ok=True)


def _refuse_without_onnx() -> None:
    for package in ("onnx", "onnxscript"):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"to write ONNX needs the package {package}: pip install 'stochens[onnx]'"
            )


def _onnx(made: Any, predictor: Predictor, x: Input, about: dict[str, str]) -> bytes:
    """The bytes of the ONNX file. Noise has default values there, so that x alone will do."""
    import onnx

    given, _ = example_of(x)
    names = ["x"] if isinstance(x, Tensor) else list(given)
    with warnings.catch_warnings(), _no_word_of_torchvision():
        warnings.simplefilter("ignore")  # of what the exporter does inside
        model = torch.onnx.export(
            made,
            (given, predictor.noise),
            input_names=[*names, *predictor.noise],
            output_names=output_names(predictor, x),
            dynamo=True,
            verbose=False,
        ).model_proto  # type: ignore[union-attr]
    for name, t in predictor.noise.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(t.numpy(), name))
    _strip(model.graph)
    for value in model.graph.output:
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    _name_axes(model.graph.input, len(names))
    written = {"stochens": __version__, **about}
    onnx.helper.set_model_props(model, written)
    onnx.checker.check_model(model)
    raw: bytes = model.SerializeToString()
    return raw


def _name_axes(values: Any, count: int) -> None:
    """The free axes of the first `count` inputs are "batch", and lengths of sequences; those of
    noise follow."""
    known: dict[str, str] = {}
    for k, value in enumerate(values):
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if axis == 0 and k < count:
                dim.dim_param = "batch"
            elif dim.dim_param.isdigit():  # torch has found that it cannot be another
                dim.dim_value = int(dim.dim_param)
            elif dim.dim_param:
                number = "" if not known else f"_{len(known)}"
                dim.dim_param = known.setdefault(dim.dim_param, f"length{number}")


@contextlib.contextmanager
def _no_word_of_torchvision() -> Iterator[None]:
    """torch logs that it is not installed, whose operations no network of ours has need of."""
    log = logging.getLogger(ONNX_LOG)

    def others(record: logging.LogRecord) -> bool:
        return "torchvision" not in record.getMessage()

    log.addFilter(others)
    try:
        yield
    finally:
        log.removeFilter(others)


def _strip(graph: Any) -> None:
    """Take out where in whose Python files each operation came from, and torch's names of sizes."""
    graph.ClearField("value_info")
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _strip(attribute.g)
