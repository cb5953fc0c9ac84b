"""What a run says of new data, as columns, and in a file by its suffix."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import write_whole
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import DRAWS_BUDGET, GaussianPredictive, Predictive
from stochens_lab.data.image_parquet import import_parquet
from stochens_lab.workflow.schema import Schema, whole_classes

SUFFIXES = (".parquet", ".csv", ".npz")
MOST_QUANTILE = 1 << 24  # elements that torch.quantile takes at once

Table = dict[str, np.ndarray]  # [B] each, or [B, C]: one number for each class or target


def predict(
    posterior: Posterior, schema: Schema, x: Tensor, *, draws: int = 1, seed: int = 0
) -> Predictive | GaussianPredictive:
    """As `Posterior.predict` has it, in the target's own units; for measures."""
    keep = not schema.classes  # measures of numbers need all draws
    return _predict_checked(posterior, schema, x, draws=draws, seed=seed, keep_draws=keep)


def _predict_checked(
    posterior: Posterior, schema: Schema, x: Tensor, **options: Any
) -> Predictive | GaussianPredictive:
    """A schema may come from anybody: it must fit what the network gives."""
    p = posterior.predict(x, **options)
    assert isinstance(p, Predictive | GaussianPredictive)  # all that `stochens fit` makes
    gaussian, outputs = isinstance(p, GaussianPredictive), p.mean.shape[1]
    scale = schema.target_scale
    if gaussian == bool(schema.classes) or outputs != (
        len(schema.classes) or (outputs if scale is None else scale.mean.numel())
    ):
        what = f"{len(schema.classes)} classes" if schema.classes else "numbers"
        raise InputError(f"the run is damaged: it says {what}, and the network has {outputs}")
    return schema.in_units(p) if isinstance(p, GaussianPredictive) else p


def make_table(
    posterior: Posterior,
    schema: Schema,
    x: Tensor,
    *,
    level: float = 0.95,
    draws: int = 1,
    seed: int = 0,
) -> Table:
    """Everything that is written of each example.

    Intervals need all draws. Where those do not fit into memory the examples go in blocks, and the
    noise of a method is another draw for each block.
    """
    if not 0 < level < 1:
        raise InputError(f"--level must be in (0, 1), got {level}")
    width = len(schema.classes) or 2 * _count_targets(schema)
    rows = max(1, DRAWS_BUDGET // (4 * width * draws * len(posterior)))
    blocks = []
    for first in range(0, len(x), rows):
        part = x[first : first + rows]
        p = _predict_checked(posterior, schema, part, draws=draws, seed=seed, keep_draws=True)
        if isinstance(p, GaussianPredictive):
            blocks.append(_list_numbers(p, level))
        else:
            blocks.append(_list_classes(p, level))
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    if not schema.classes:
        return columns
    names = np.array(whole_classes(schema.classes) or schema.classes)
    return {"label": names[columns["prob"].argmax(1)], **columns}


def _count_targets(schema: Schema) -> int:
    scale = schema.target_scale
    return len(schema.layout.targets) if scale is None else len(scale.mean)


def _list_classes(p: Predictive, level: float) -> Table:
    low, high = class_interval(p.probs, level)
    return {
        "prob": p.mean.numpy(),
        "low": low.numpy(),
        "high": high.numpy(),
        "entropy": p.entropy.numpy(),
        "mutual_information": p.mutual_information.numpy(),
    }


def class_interval(probs: Tensor, level: float) -> tuple[Tensor, Tensor]:
    """The central interval that holds a share `level` of the draws' probabilities: each [B, C]."""
    at = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=probs.dtype)
    rows = max(1, MOST_QUANTILE // (probs.shape[0] * probs.shape[2]))
    parts = [part.quantile(at, 0) for part in probs.split(rows, 1)]  # [2, b, C]
    low, high = torch.cat(parts, 1)
    return low, high


def _list_numbers(p: GaussianPredictive, level: float) -> Table:
    low, high = p.interval(level)
    return {
        "mean": p.mean.numpy(),
        "std": p.std.numpy(),
        "low": low.numpy(),
        "high": high.numpy(),
        "epistemic_std": p.epistemic.sqrt().numpy(),
        "aleatoric_std": p.aleatoric.sqrt().numpy(),
    }


# -- files -----------------------------------------------------------------------------------------


def check_out(out: Path, *inputs: Path) -> None:
    """Whether predictions can be written there; said before the work."""
    if out.suffix.lower() not in SUFFIXES:
        raise InputError(f"{out}: predictions are written to {', '.join(SUFFIXES)}")
    if out.is_dir():
        raise InputError(f"{out} is a folder; name a file")
    if not out.absolute().parent.is_dir():
        raise InputError(f"{out.absolute().parent} is not there; make that folder first")
    if any(out.exists() and out.samefile(given) for given in inputs):
        raise InputError(f"{out} is the data; write the predictions elsewhere")
    if out.suffix.lower() == ".parquet":
        import_parquet()


def write_table(columns: Table, schema: Schema, out: Path) -> None:
    """By the suffix, whole or not at all."""
    content = io.BytesIO()
    if out.suffix.lower() == ".npz":
        about = {"classes": np.array(schema.classes)} if schema.classes else {}
        np.savez(content, **columns, **about)  # type: ignore[arg-type]
    elif out.suffix.lower() == ".csv":
        flat = flatten_table(columns, schema)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(flat)
        # numpy writes a float32 with the digits that bring it back, and no more
        writer.writerows(zip(*(map(str, column) for column in flat.values()), strict=True))
        content.write(text.getvalue().encode())
    else:
        parquet = import_parquet()
        import pyarrow

        parquet.write_table(pyarrow.table(flatten_table(columns, schema)), content)
    write_whole(out, content.getvalue())


def flatten_table(columns: Table, schema: Schema) -> Table:
    """One column each: prob_CLASS for every class; mean_TARGET where there are several targets."""
    flat: Table = {}
    for name, values in columns.items():
        if values.ndim == 1:
            flat[name] = values
        elif not schema.classes and values.shape[1] == 1:
            flat[name] = values[:, 0]
        else:
            flat |= {
                f"{name}_{part}": values[:, k]
                for k, part in enumerate(_name_columns(schema, values.shape[1]))
            }
    return flat


def _name_columns(schema: Schema, width: int) -> Sequence[str]:
    """What the columns of [B, width] are called."""
    named = schema.classes or schema.layout.targets
    return named if len(named) == width else [str(k) for k in range(width)]
