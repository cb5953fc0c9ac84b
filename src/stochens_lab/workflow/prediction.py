"""What a run says of new data, as columns, and in a file by its suffix."""

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from stochens.errors import InputError
from stochens.files.storage import write_whole
from stochens.likelihoods import Predicted
from stochens.likelihoods.base import Targets
from stochens.posterior.outputs import outputs_of
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import DRAWS_BUDGET
from stochens_lab.data.image_parquet import import_parquet
from stochens_lab.workflow.schema import Schema
from stochens_lab.workflow.targets import whole_classes

SUFFIXES = (".parquet", ".csv", ".npz")

Table = dict[str, np.ndarray]  # [B] each, or [B, C]: one number for each class or target


def predict(
    posterior: Posterior, schema: Schema, x: Tensor, *, draws: int = 1, seed: int = 0
) -> Predicted:
    """As `Posterior.predict` has it, in the target's own units; for measures."""
    keep = not schema.classes  # measures of labels and numbers need all draws
    return _predict_checked(posterior, schema, x, draws=draws, seed=seed, keep_draws=keep)


def _predict_checked(posterior: Posterior, schema: Schema, x: Tensor, **options: Any) -> Predicted:
    """A schema may come from anybody: it must fit what the network gives."""
    p = posterior.predict(x, **options)
    outputs = p.mean.shape[1:].numel()
    if schema.kind != posterior.likelihood.targets or schema.width not in (None, outputs):
        raise InputError(
            f"the run is damaged: it says {schema.width or ''} {schema.kind}, and the network has "
            f"{outputs} {posterior.likelihood.targets}"
        )
    return schema.in_units(p)


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
    one = outputs_of(posterior, x[:1])  # [S, 1, ...]
    rows = max(1, DRAWS_BUDGET // (4 * draws * one.numel()))
    blocks = []
    for first in range(0, len(x), rows):
        part = x[first : first + rows]
        p = _predict_checked(posterior, schema, part, draws=draws, seed=seed, keep_draws=True)
        blocks.append({name: t.numpy() for name, t in list_columns(p, schema.kind, level).items()})
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    if schema.classes:
        names = np.array(whole_classes(schema.classes) or schema.classes)
        columns["label"] = names[columns["label"]]
    return columns


def list_columns(p: Predicted, kind: Targets, level: float) -> dict[str, Tensor]:
    """What a prediction says of each input, by the names of tables: [B], or [B, K] for K classes or
    targets. Numbers have the two parts of their standard deviation: their squares add up."""
    found = p.summaries(level)
    if kind == "numbers":
        for part in ("epistemic", "aleatoric"):
            found[f"{part}_std"] = found.pop(part).sqrt()
        return found
    probs = found.pop("probs")
    label = (probs > 0.5).long() if kind == "labels" else probs.argmax(-1)
    ends = {name: found.pop(name) for name in ("low", "high")}
    return {"label": label, "prob": probs, **ends, **found}


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
            parts = schema.names(values.shape[1])
            flat |= {f"{name}_{part}": values[:, k] for k, part in enumerate(parts)}
    return flat
