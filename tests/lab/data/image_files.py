"""Small files in each of the forms that image sets come in."""

import io
import json
import pickle
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


def write_batch(
    file: Path, x: np.ndarray, labels: dict[str, list[int]], *, protocol: int = 2
) -> Path:
    """As Python 3 pickles it; `python2_batch` is what CIFAR's own files look like."""
    file.parent.mkdir(parents=True, exist_ok=True)
    content = {b"data": x.reshape(len(x), 3072), **{k.encode(): v for k, v in labels.items()}}
    file.write_bytes(pickle.dumps(content, protocol))
    return file


def python2_batch(data: np.ndarray, labels: list[int], key: bytes = b"labels") -> bytes:
    """A pickle as cPickle of Python 2 wrote it: byte strings without a type of their own."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little", signed=True)

    raw = data.tobytes()
    shape = b"".join(number(size) for size in data.shape)
    dtype = b"cnumpy\ndtype\nq\x05(" + text(b"u1") + b"K\x00K\x01tRq\x06"
    dtype += b"(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03"
    array += b"(K\x00tq\x04" + text(b"b") + b"\x87R"
    array += b"(K\x01(" + shape + b"t" + dtype + b"\x89T" + len(raw).to_bytes(4, "little") + raw
    array += b"tb"
    values = b"".join(number(label) for label in labels)
    batch = text(b"batch_label") + text(b"testing batch 1 of 1")
    return b"\x80\x02}q\x01(" + batch + text(b"data") + array + text(key) + b"](" + values + b"eu."


def write_folder_of_images(folder: Path, x: np.ndarray, y: list[int], names: list[str]) -> None:
    for name in names:
        (folder / name).mkdir(parents=True)
    for i, (image, label) in enumerate(zip(x, y, strict=True)):
        (folder / names[label] / f"{i}.png").write_bytes(encoded(image))
