"""Image sets in parquet files of the Hugging Face layout.

An image column `img` or `image`, struct{bytes, path}; integer labels; class names as JSON in the
schema's metadata `huggingface`; shards SPLIT-00000-of-00002.parquet in order, or one file whose
name begins with the split.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stochens.errors import InputError
from stochens_lab.data.image_sets import (
    Images,
    ImageSet,
    check_class_names,
    check_labels,
)
from stochens_lab.data.pixels import MOST_BYTES, decode

SHARD = re.compile(r"-(\d{5})-of-(\d{5})(-[0-9a-f]+)?")
MOST_ROWS = 1_000_000  # in one file; the largest set here has 73,257
ROWS_AT_A_TIME = 2000

Encoded = tuple[list[bytes], np.ndarray]  # images, and their labels [n]


def find_files(folder: Path, about: ImageSet, split: str) -> list[Path]:
    """The files of a split in order, [] if there is none; a missing or second shard is an error."""
    found = sorted(folder.glob(f"{split}*.parquet"))
    shards: dict[int, Path] = {}
    totals: set[int] = set()
    for file in found:
        numbers = SHARD.fullmatch(file.stem.removeprefix(split))
        if numbers is None:
            if len(found) > 1:
                names = ", ".join(file.name for file in found)
                raise InputError(f"{folder} has several {split} files, {names}; keep one set")
            return found
        shard, total = int(numbers[1]), int(numbers[2])
        totals.add(total)
        if shard in shards or len(totals) > 1 or shard >= total:
            first = shards.get(shard, found[0])
            raise InputError(f"{file} and {first.name} are shards of different sets; keep one set")
        shards[shard] = file
    for shard in range(max(totals, default=0)):
        if shard not in shards:
            name = f"{split}-{shard:05d}-of-{max(totals):05d}.parquet"
            raise InputError(f"{folder / name} is missing; the other shards are there: put it back")
    return [shards[shard] for shard in sorted(shards)]


def read(files: list[Path], about: ImageSet, split: str) -> Images:
    """The rows of the files, one after the other."""
    x, y = [], []
    names: tuple[str, ...] = ()
    for file in files:
        opened = _open(file, about)
        names = check_class_names(_read_names(opened, about, file), about, file)
        done = 0
        for encoded, label in _read_rows(file, opened, about):
            x.append(decode(encoded, file, done))
            y.append(label)
            done += len(label)
    if not x:
        raise InputError(f"{files[0]} has no rows")
    labelled = torch.as_tensor(np.concatenate(y))
    check_labels(labelled, about, files[0].parent)
    return Images(torch.as_tensor(np.concatenate(x)), labelled, names)


def _open(file: Path, about: ImageSet) -> Any:
    """The file with its columns checked; no row is read."""
    parquet = import_parquet()
    with reading_parquet(file):
        opened = parquet.ParquetFile(file, page_checksum_verification=True)
        schema, rows = opened.schema_arrow, opened.metadata.num_rows
        size = sum(
            opened.metadata.row_group(group).total_byte_size
            for group in range(opened.metadata.num_row_groups)
        )
    if _find_image_column(schema.names) is None or about.column not in schema.names:
        raise InputError(
            f"{file} has the columns {', '.join(schema.names)}; expected img or image, and "
            f"{about.column}: this is another set, or labels of another kind"
        )
    if not 0 <= rows <= MOST_ROWS or size > MOST_BYTES * (rows + 1):
        raise InputError(f"{file} says it has {rows} rows of {size} bytes; it is damaged")
    return opened


def _find_image_column(names: list[str]) -> str | None:
    return next((name for name in ("img", "image") if name in names), None)


def _read_rows(file: Path, opened: Any, about: ImageSet) -> Iterator[Encoded]:
    """A few thousand at a time."""
    import pyarrow as pa

    image = _find_image_column(opened.schema_arrow.names)
    with reading_parquet(file):
        kind = opened.schema_arrow.field(image).type
        if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
            raise InputError(f"{file}: column {image} is {kind}, not struct<bytes, path>")
        if not pa.types.is_integer(opened.schema_arrow.field(about.column).type):
            raise InputError(f"{file}: column {about.column} holds no whole numbers")
        for batch in opened.iter_batches(ROWS_AT_A_TIME, columns=[image, about.column]):
            struct, label = batch.column(image), batch.column(about.column)
            encoded = struct.field("bytes").to_pylist()
            if label.null_count or struct.null_count or None in encoded:
                raise InputError(f"{file} has rows without an image or a label")
            yield encoded, label.to_numpy(zero_copy_only=False).astype(np.int64)


def _read_names(opened: Any, about: ImageSet, file: Path) -> object:
    text = (opened.schema_arrow.metadata or {}).get(b"huggingface")
    if text is None:
        return None
    with reading_parquet(file):
        feature = json.loads(text)["info"]["features"].get(about.column, {})
        return feature.get("names") if isinstance(feature, dict) else None


def import_parquet() -> Any:
    """The module."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise InputError("parquet files need pyarrow: pip install 'stochens[lab]'") from None
    return pyarrow.parquet


@contextlib.contextmanager
def reading_parquet(file: Path) -> Iterator[None]:
    """Whatever pyarrow raises on a damaged file is one clear error."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"{file} cannot be read: {said}; get the file again") from None
