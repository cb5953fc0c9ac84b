"""A folder that all machines reach: a path that each of them has (NFS, or one machine alone), or a
URL that fsspec knows, such as s3://BUCKET/RUN.

    FOLDER/blocks.json      how the members were cut, and a token that tells this folder from others
    FOLDER/BLOCK/...        checkpoints of a block (checkpoints.py)

At a URL a block works in a folder of its machine, of which a thread keeps a copy at the URL: whole
checkpoints only, and those that it left there before are fetched first.
"""

import contextlib
import json
import secrets
import shutil
import tempfile
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stochens.errors import InputError
from stochens.files.storage import LOCK
from stochens.run.checkpoints import alone_in

BLOCKS = "blocks.json"
COPY_EVERY = 2.0  # seconds between two looks for a new checkpoint


def is_url(place: str | Path | None) -> bool:
    """
    >>> is_url("s3://bucket/run"), is_url("/nfs/run"), is_url(None)
    (True, False, False)
    """
    return "://" in str(place)


def everywhere(place: str | Path) -> str | Path:
    """As workers know it, who are in other folders than the driver."""
    return place if is_url(place) else Path(place).absolute()


def below(place: str | Path, name: str) -> str | Path:
    """
    >>> below("s3://bucket/run/", "block")
    's3://bucket/run/block'
    """
    return f"{str(place).rstrip('/')}/{name}" if is_url(place) else Path(place) / name


def forget(place: str | Path | None) -> None:
    """Remove a folder of checkpoints that nobody needs any more, as far as it can be removed."""
    if not is_url(place):
        if place is not None:
            shutil.rmtree(place, ignore_errors=True)
        return
    with contextlib.suppress(Exception):  # any of the many that file systems of URLs raise
        system, path = files_at(str(place))
        system.rm(path, recursive=True)


def refuse_url(place: str | Path | None) -> None:
    """Of work on one machine."""
    if is_url(place):
        raise InputError(f"checkpoint = {place} is a URL, which is for engine='ray'; give a folder")


def files_at(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:  # no such protocol, or its package is missing
        raise InputError(f"cannot reach {url}: {error}") from error
    return system, path.rstrip("/")


@contextlib.contextmanager
def held(place: str | Path) -> Iterator[None]:
    """A path is ours alone meanwhile. At a URL there are no locks, and so no such protection."""
    if is_url(place):
        yield
        return
    with alone_in(place):
        yield


def kept_cut(place: str | Path) -> dict[str, Any] | None:
    """What blocks.json says, or None where there is none."""
    try:
        found: dict[str, Any] = json.loads(_read(place))
        assert isinstance(found["token"], str)
        assert all(isinstance(k, int) for block in found["blocks"] for k in block)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
        raise InputError(f"cannot read {place}/{BLOCKS}: {error!r}") from error
    return found


def keep_cut(place: str | Path, blocks: list[tuple[int, ...]], token: str | None) -> str:
    """Write blocks.json; returns its token."""
    token = token or secrets.token_hex(8)
    text = json.dumps({"token": token, "blocks": blocks}) + "\n"
    try:
        if is_url(place):
            system, path = files_at(str(place))
            system.makedirs(path, exist_ok=True)
            system.pipe_file(f"{path}/{BLOCKS}", text.encode())
        else:
            part = Path(place) / f".{BLOCKS}.part"
            part.write_text(text)
            part.rename(Path(place) / BLOCKS)
    except OSError as error:
        raise InputError(f"cannot write to {place}: {error}") from error
    return token


def _read(place: str | Path) -> bytes:
    if not is_url(place):
        return (Path(place) / BLOCKS).read_bytes()
    system, path = files_at(str(place))
    content: bytes = system.cat_file(f"{path}/{BLOCKS}")
    return content


@contextlib.contextmanager
def folder_of(place: str | Path | None, token: str, name: str, node: str) -> Iterator[Path | None]:
    """In a worker: where the block with this name keeps its checkpoints; None: nowhere."""
    if place is None:
        yield None
        return
    found = kept_cut(place)
    if found is None or found["token"] != token:
        raise InputError(
            f"{place} is not the same folder on {node} as where the run was begun; give a folder "
            "that all machines reach (NFS), or a URL such as s3://BUCKET/RUN"
        )
    with at_hand(below(place, name)) as folder:
        yield folder


@contextlib.contextmanager
def at_hand(place: str | Path) -> Iterator[Path]:
    """A folder of checkpoints as a path: itself, or of a URL a copy, what is new in which is copied
    back."""
    if not is_url(place):
        yield Path(place)
        return
    system, path = files_at(str(place))
    local = Path(tempfile.mkdtemp(prefix="stochens-"))
    name = path.rpartition("/")[2]
    try:
        _fetch(system, path, local / name)
        with _copied(system, path, local / name):
            yield local / name
    finally:
        shutil.rmtree(local, ignore_errors=True)


def _fetch(system: Any, path: str, local: Path) -> None:
    """What is there, file by file; a checkpoint that is not whole is found out by its checksums."""
    try:
        there = system.find(path)
    except FileNotFoundError:
        there = []
    for file in there:
        to = local / file[len(path) :].lstrip("/")
        if not to.resolve().is_relative_to(local.resolve()):  # an object's name may hold ".."
            raise InputError(f"{file} is no checkpoint's name; somebody else writes to {path}")
        to.parent.mkdir(parents=True, exist_ok=True)
        system.get_file(file, str(to))
    if there:
        (local / LOCK).touch()  # what is a folder of checkpoints has one


@contextlib.contextmanager
def _copied(system: Any, path: str, local: Path) -> Iterator[None]:
    """Inside, checkpoints in `local` are copied to `path` soon after they are there; at the end all
    of them are."""
    over = threading.Event()
    copier = _Copier(system, path, local)

    def go_on() -> None:
        while not over.wait(COPY_EVERY):
            copier.copy()

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        copier.copy()


class _Copier:
    """Keeps what lies at `path` as `local` is. A checkpoint never changes once it is there."""

    def __init__(self, system: Any, path: str, local: Path) -> None:
        self._system, self._path, self._local = system, path, local
        self._there = self._here()  # what was fetched
        self._said = False

    def _here(self) -> set[str]:
        """Checkpoints, as BLOCK/NUMBER or NUMBER."""
        found = (p for p in self._local.rglob("[0-9]*") if p.is_dir() and p.name.isdigit())
        return {str(p.relative_to(self._local)) for p in found}

    def copy(self) -> None:
        try:
            here = self._here()
            for name in sorted(here - self._there):
                for file in sorted((self._local / name).iterdir()):
                    self._system.makedirs(f"{self._path}/{name}", exist_ok=True)
                    self._system.put_file(str(file), f"{self._path}/{name}/{file.name}")
                self._there.add(name)
            for name in self._there - here:
                self._system.rm(f"{self._path}/{name}", recursive=True)
            self._there &= here
        except Exception as error:  # any of the many that file systems of URLs raise
            if not self._said:  # the work goes on: it is only less safe
                warnings.warn(f"cannot keep checkpoints at {self._path}: {error}", stacklevel=2)
                self._said = True
