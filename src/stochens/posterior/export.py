"""The averaged predictor as a file that needs no stochens: ONNX, or torch.export's own format.

Its inputs are x [B, ...], or each tensor of a tree by its name, with B free, and the noise of every
draw as plain numbers, so that the file holds a pure function: export_program.py makes it.
"""

import contextlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from stochens.errors import InputError
from stochens.posterior.export_program import Predictor, example_of, output_names, program
from stochens.private_names import ONNX_LOG
from stochens.trees import Input
from stochens.version import __version__

SUFFIXES = (".onnx", ".pt2")
MOST_BYTES = 2_000_000_000  # a protobuf message, and so an ONNX file, ends at 2 GiB


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
    names = ["x"] if isinstance(x, torch.Tensor) else list(given)
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
