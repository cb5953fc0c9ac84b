"""Which cluster, and how it is reached. Ray itself is imported when it is asked for, not before."""

import dataclasses
import os
import socket
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from stochens.checks import positive, whole
from stochens.errors import InputError

PATIENCE = 5.0  # seconds for a machine to answer at all
LOCAL = (None, "local")
# Ray speaks gRPC, and so HTTP/2: either side begins with a frame of settings
SETTINGS = b"\x04"
HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + SETTINGS + b"\0\0\0\0\0"


@dataclasses.dataclass(frozen=True)
class Ray:
    """The engine that trains blocks of members on many machines: `engine=stochens.Ray(...)`.

    `engine="ray"` is `Ray()`. What is connected already (`ray.init`) is used as it is.

    address: "HOST:PORT" of the head node, "auto" for the cluster that this machine is part of,
        "ray://HOST:PORT" from outside of it, "local" for a cluster of this machine alone; None:
        the environment's RAY_ADDRESS, and "local" where there is none.
    cpus: cores of each block where blocks run on CPUs. On GPUs a block has one GPU.
    tries: how often a block is begun when its worker or node dies, the first time included.
    within: the engine of each block, as in `fit`.

    >>> Ray("10.0.0.1:6379").cpus
    1
    """

    address: str | None = None
    cpus: int = 1
    tries: int = 4
    within: str = "auto"

    def __post_init__(self) -> None:
        positive(cpus=self.cpus)
        whole(cpus=self.cpus, tries=self.tries)
        if self.within == "ray":
            raise InputError("within is the engine of a block on its machine, and cannot be 'ray'")


# The address of a cluster as Ray knows it -> as it was given, which may be another name of its head
_given: dict[str, str] = {}

Engines = str | Ray  # what `engine` may be


def ray_engine(engine: Engines) -> Ray | None:
    """The cluster that `engine` asks for, or None.

    >>> ray_engine("auto") is None, ray_engine("ray")
    (True, Ray(address=None, cpus=1, tries=4, within='auto'))
    """
    if isinstance(engine, Ray):
        return engine
    return Ray() if engine == "ray" else None


def connect(options: Ray) -> Any:
    """The module `ray`, connected."""
    try:
        import ray
    except ImportError:
        raise InputError(
            "engine='ray' needs Ray, which is not installed: pip install 'stochens[ray]'"
        ) from None
    address = options.address or os.environ.get("RAY_ADDRESS") or None
    if ray.is_initialized():
        _refuse_another(ray, address)
        return ray
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    if address in LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is told to anybody
        ray.init(address="local", include_dashboard=False, **quiet)
        return ray
    _refuse_unreachable(address)
    try:
        ray.init(address=address, **quiet)
    except (Exception, SystemExit) as error:  # Ray ends the process where it cannot connect
        raise InputError(f"cannot connect to the Ray cluster at {address}: {error}") from error
    _given[place(ray)] = str(address)
    return ray


def _refuse_another(ray: Any, address: str | None) -> None:
    """One process is part of one cluster."""
    now = place(ray)
    if address not in (*LOCAL, "auto", now, _given.get(now)) and "://" not in str(address):
        raise InputError(
            f"address is {address}, but this process is connected to the Ray cluster at {now}; "
            "call ray.shutdown() first"
        )


def place(ray: Any) -> str:
    """The address of the cluster, as far as it is known (through ray:// it is not)."""
    return str(getattr(ray.get_runtime_context(), "gcs_address", "an unknown address"))


def _refuse_unreachable(address: str) -> None:
    """Ray itself would try for two minutes."""
    if address == "auto":
        return  # Ray looks into its own files, and says so at once
    url = urlsplit(address if "://" in address else f"//{address}")
    try:
        host, port = url.hostname, url.port
    except ValueError:
        host, port = None, None
    if host is None or port is None or url.scheme not in ("", "ray"):
        raise InputError(
            f"address must be HOST:PORT, ray://HOST:PORT, 'auto' or 'local', got {address!r}"
        )
    try:
        with socket.create_connection((host, port), timeout=PATIENCE) as line:
            line.sendall(HELLO)
            answer = line.recv(9)
    except OSError as error:
        raise InputError(
            f"no Ray cluster answers at {address}: {error.strerror or error}. Is its head running "
            "(ray start --head), and is its port open to this machine?"
        ) from None
    if answer[3:4] != SETTINGS:
        raise InputError(f"what answers at {address} is no Ray cluster")


class Room(NamedTuple):
    """What the cluster has for blocks."""

    slots: int  # blocks at a time
    gpu: bool  # whether each has a GPU
    memory: int | None  # bytes for each block, as far as it is known before one runs


def room(ray: Any, options: Ray, device: str | None) -> Room:
    """How many blocks run at a time: one on each GPU, or on every `cpus` cores."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = sum(int(node.get("GPU", 0)) for node in nodes)
    where = place(ray)
    wants = None if device is None else device.partition(":")[0]
    if wants == "cuda" and not gpus:
        raise InputError(f"device='cuda', but the Ray cluster at {where} has no GPU")
    if gpus and wants != "cpu":
        return Room(gpus, gpu=True, memory=None)
    slots = [int(node.get("CPU", 0)) // options.cpus for node in nodes]
    if not any(slots):
        most = max((int(node.get("CPU", 0)) for node in nodes), default=0)
        raise InputError(
            f"cpus = {options.cpus}, but no machine of the Ray cluster at {where} has more than "
            f"{most} cores for it"
        )
    shares = [
        int(node["memory"]) // count
        for node, count in zip(nodes, slots, strict=True)
        if count and "memory" in node
    ]
    return Room(sum(slots), gpu=False, memory=min(shares, default=None))
