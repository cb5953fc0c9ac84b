"""`Run`: the one way to say how something runs, shared by `fit`, every sampler and `predict`."""

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import torch

from stochens.checks import whole_or_none
from stochens.errors import InputError, check_known
from stochens.run.checkpoints import EVERY
from stochens.run.cluster.connect import Ray, ray_engine
from stochens.run.progress import Log, Show

PRECISIONS = ("auto", "float64", "float32", "tf32", "bf16")
CUDA_ONLY = ("tf32", "bf16")
DTYPES = {"float64": torch.float64, "float32": torch.float32, "tf32": torch.float32}
# Whether the network computes in bfloat16; None: only where a kernel serves that knows nothing
# else, and such a kernel wants parameters in float32
BF16 = {"auto": None, "float64": None, "float32": False, "tf32": False, "bf16": True}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How something runs: where, in which precision, by which engine, and what is kept of it.

    What is computed does not depend on it, but for the rounding of `precision`.

    device: "cpu", "cuda" or a torch.device; the GPU, if there is one, when None.
    precision: of the network's computations.
        "auto": that of the network's parameters. But on a GPU that has it, `fit` trains float32
        classifiers in bfloat16 where their program or the ResNet kernels run them
        (engine="auto" or "compile") and 16 examples stay apart in it; parameters, loss and
        optimiser stay float32. Samplers and predictions are in bfloat16 by those kernels alone.
        "float64", "float32": network and data are cast to it, and no bfloat16 kernel is used.
        "tf32": float32 with TensorFloat-32 matrix products, on CUDA.
        "bf16": the network in bfloat16, on CUDA; parameters, loss and optimiser stay as they are.
    engine: "auto" takes what is fastest: a kernel, the members as one program (on a GPU, or a CPU
        with much to do; through torch.compile on a GPU where the training is long enough for it) or
        vmap; the log says which. "fused" (a compiled kernel for small MLPs on a CPU), "compile"
        (the program through torch.compile in any case, needs torch 2.11), "vmap" or "loop"; "ray"
        or Ray(address, ...) for blocks of members or chains on many machines, with the same result
        as on one (docs/cluster.md).
    chunk: members trained together; chosen by the memory that is free when None. With Ray, the
        size of a block.
    checkpoint: a folder to save the run in, every `every` seconds and when Ctrl-C or SIGTERM ends
        it. The same call finds it there and goes on, to the same end. With Ray, a folder that all
        machines reach, or a URL such as s3://BUCKET/RUN.
    progress: True for a bar, False for nothing, None for a bar in a terminal and a line now and
        then elsewhere; or a function (done, total, note).
    log: of `fit`: a function (epoch, values), "tensorboard[:DIR]", "wandb[:PROJECT]" or
        "mlflow[:EXPERIMENT]".

    >>> Run(device="cpu", checkpoint="runs/mine").every  # seconds between checkpoints
    60.0
    >>> import stochens
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> stochens.fit(net, data, members=3, epochs=1, run=Run(engine="vmap", precision="float32"))
    Posterior(3 members, dropout, N = 40)
    """

    device: str | torch.device | None = None
    precision: str = "auto"
    engine: str | Ray = "auto"
    chunk: int | None = None
    checkpoint: str | Path | None = None
    every: float = EVERY
    progress: Show = None
    log: str | Log | None = None

    def __post_init__(self) -> None:
        check_known("precision", self.precision, PRECISIONS)
        if not isinstance(self.engine, (str, Ray)):
            raise InputError(f"engine must be a name or Ray(...), got {self.engine!r}")
        whole_or_none(chunk=self.chunk)
        if not self.every >= 0:
            raise InputError(f"every must not be negative, got {self.every!r}")

    @property
    def cluster(self) -> Ray | None:
        """The machines that do the work, or None for this one."""
        return ray_engine(self.engine)

    @property
    def way(self) -> str:
        """The engine on one machine."""
        return str(self.engine) if self.cluster is None else self.cluster.within

    @property
    def dtype(self) -> torch.dtype | None:
        """What network and data are cast to; None: they stay as they are."""
        return DTYPES.get(self.precision)

    @property
    def bf16(self) -> bool | None:
        """Whether the network computes in bfloat16; None: by kernels alone."""
        return BF16[self.precision]

    @property
    def tf32(self) -> bool:
        """Whether matrix products may be TensorFloat-32."""
        return self.precision == "tf32"


def merge_run(run: Run, *, device: str | torch.device | None, progress: Show) -> Run:
    """`run` with the options that are given beside it, `device` and `progress`.

    >>> merge_run(Run(engine="vmap"), device="cpu", progress=False).device
    'cpu'
    """
    if not isinstance(run, Run):
        raise InputError(f"run must be a stochens.Run, got {run!r}")
    if device is None and progress is None:
        return run
    for name, given, own in (("device", device, run.device), ("progress", progress, run.progress)):
        if given is not None and own is not None and str(given) != str(own):
            raise InputError(
                f"{name} = {given!r} and run.{name} = {own!r} differ; give one of them"
            )
    return dataclasses.replace(
        run,
        device=run.device if device is None else device,
        progress=run.progress if progress is None else progress,
    )


def refuse_unused(run: Run, where: str, *names: str) -> None:
    """Options of `run` that do nothing in the function `where`."""
    for name in names:
        if (value := getattr(run, name)) is not None:
            raise InputError(f"{where} has no use for Run({name}={value!r}); leave {name} out")


def matmul_precision(run: Run) -> contextlib.AbstractContextManager[None]:
    """Inside, float32 matrix products on CUDA are TensorFloat-32 where `run` says so."""
    return _tf32() if run.tf32 else contextlib.nullcontext()


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
