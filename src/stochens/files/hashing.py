"""SHA-256: the one checksum of what is written, read back, kept in a cache or downloaded."""

import hashlib
from pathlib import Path


def hash_bytes(*parts: bytes | memoryview) -> str:
    """Of the parts, one after the other, as 64 hexadecimal digits.

    >>> hash_bytes(b"ab", b"c") == hash_bytes(b"abc")
    True
    """
    found = hashlib.sha256()
    for part in parts:
        found.update(part)
    return found.hexdigest()


def hash_file(path: Path) -> str:
    """Of what a file holds, read in blocks."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
