"""Small files in each of the forms that image sets come in."""

import io
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

CIFAR10 = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


def pixels(n: int, seed: int = 0) -> np.ndarray:
    """[n, 3, 32, 32] uint8."""
    return np.random.default_rng(seed).integers(0, 256, (n, 3, 32, 32), np.uint8)


def encoded(image: np.ndarray, form: str = "PNG") -> bytes:
    """image [3, H, W] as lossless bytes."""
    out = io.BytesIO()
    Image.fromarray(image.transpose(1, 2, 0)).save(out, form, lossless=True)
    return out.getvalue()


def write_parquet(
    file: Path,
    x: np.ndarray,
    labels: dict[str, list[int]],
    *,
    image: str = "img",
    names: dict[str, list[str]] | None = None,
    form: str = "PNG",
) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"bytes": encoded(one, form), "path": None} for one in x]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    columns = {image: pa.array(rows, kind)}
    columns |= {name: pa.array(values, pa.int64()) for name, values in labels.items()}
    features = {column: {"names": given} for column, given in (names or {}).items()}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata if names else None), file)
    return file


def write_batch(file: Path, x: np.ndarray, *labels: list[int]) -> Path:
    """Rows as CIFAR's binary files have them: the labels, then the pixels."""
    file.parent.mkdir(parents=True, exist_ok=True)
    columns = [np.array(values, np.uint8)[:, None] for values in labels]
    file.write_bytes(np.concatenate([*columns, x.reshape(len(x), -1)], 1).tobytes())
    return file
