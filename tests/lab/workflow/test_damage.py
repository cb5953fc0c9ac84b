"""Damaged files of every kind are read, or refused by our own error; nothing else is raised."""

import io
import random

import numpy as np
import pytest
from PIL import Image

from stochens.errors import InputError
from stochens_lab.data import examples

FILES = 150  # of each kind; 3,000 of each were tried once, by hand
IMAGES = {"png": "PNG", "jpg": "JPEG", "webp": "WEBP", "bmp": "BMP"}


def damaged(content: bytes, dice: random.Random) -> bytes:
    data = bytearray(content)
    for _ in range(dice.randint(1, 4)):
        i = dice.randrange(len(data))
        match dice.randrange(4):
            case 0:
                data[i] ^= 1 << dice.randrange(8)
            case 1:
                del data[i : i + dice.randint(1, 50)]
            case 2:
                data[i:i] = dice.randbytes(dice.randint(1, 20))
            case _:
                data[i : i + 4] = dice.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"])
        if not data:
            break
    return bytes(data)


@pytest.mark.filterwarnings("ignore")  # Pillow warns of what it finds
@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", *IMAGES])
def test_damaged(files, tmp_path, kind):
    if kind in IMAGES:
        pixels = np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(out := io.BytesIO(), IMAGES[kind])
        whole, place = out.getvalue(), tmp_path / "p" / f"1.{kind}"
        place.parent.mkdir()
    else:
        whole, place = (files / f"train.{kind}").read_bytes(), tmp_path / f"it.{kind}"
    given = tmp_path if kind in IMAGES else place
    targets = {"csv": ["kind"]}.get(kind, [])
    dice, refused = random.Random(0), 0
    for _ in range(FILES):
        place.write_bytes(damaged(whole, dice))
        try:
            _, found = examples.read_first(given, targets=targets)
            assert np.isfinite(found.x.astype(float)).all()
        except InputError:
            refused += 1
    assert refused > FILES / 5
