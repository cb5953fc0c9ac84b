"""Every method, exported from four networks and run by onnxruntime, against `predict`.

    python benchmarks/export.py --json benchmarks/results/export.json
    python benchmarks/export.py --latency --json benchmarks/results/export-latency.json

For each: the largest difference of each output over batches of 1, 7 and 32 inputs and two seeds of
noise, seconds to export, bytes of the file. Needs stochens[onnx]. Ten minutes on two cores.
`--latency`: milliseconds in onnxruntime on one thread, all members at once as `export` writes them,
and one after the other in a loop of the file.
"""

import argparse
import json
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any
from unittest import mock

import onnxruntime
import torch
from torch import Tensor, nn

import stochens
from latency import networks
from stochens.errors import TrainingAdvice
from stochens.networks import ResNet20FRN, SmallResNetFRN
from stochens.posterior import export_program

TRAININGS = {
    "regular": stochens.Regular(),
    "dropout": stochens.Dropout(0.1),
    "dropconnect": stochens.DropConnect(0.1),
    "np-dropout": stochens.NPDropout(),
    "gaussian": stochens.Gaussian(0.05, learn=True),
}


def cases() -> dict[str, tuple[nn.Module, Tensor, Tensor, str]]:
    """Network, x, y, likelihood."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(32, *shape, generator=generator)

    labels = torch.arange(32) % 10
    line = draw(1)
    return {
        "MLP": (stochens.MLP(64, 50, 50, 10), draw(64), labels, "categorical"),
        "MLP, regression": (stochens.MLP(1, 50, 50, 1), line, line.sin(), "gaussian"),
        "SmallResNetFRN": (SmallResNetFRN(), draw(1, 8, 8), labels, "categorical"),
        "ResNet20FRN": (ResNet20FRN(), draw(3, 32, 32), labels, "categorical"),
    }


def outputs(p: Any) -> dict[str, Tensor]:
    if isinstance(p, stochens.GaussianPredictive):
        names = ("mean", "std", "aleatoric", "epistemic")
        return {name: getattr(p, name) for name in names}
    return {"probs": p.mean, "entropy": p.entropy, "mutual_information": p.mutual_information}


def measure(net: nn.Module, x: Tensor, y: Tensor, likelihood: str, method: Any) -> dict[str, Any]:
    epochs = 2 if isinstance(net, ResNet20FRN) else 50
    posterior = stochens.fit(
        net, (x, y), method=method, members=4, epochs=epochs, lr=0.01, likelihood=likelihood
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        began = time.perf_counter()
        posterior.export(path, draws=2)
        seconds, size = time.perf_counter() - began, path.stat().st_size
        session = onnxruntime.InferenceSession(path)
    worst: dict[str, float] = {}
    names = [output.name for output in session.get_outputs()]
    for rows in (1, 7, 32):
        for seed in (0, 1):
            noise = posterior.noise_inputs(draws=2, seed=seed)
            given = {name: t.numpy() for name, t in noise.items()} if seed else {}
            got = session.run(None, {"x": x[:rows].numpy(), **given})
            p = posterior.predict(x[:rows], draws=2, seed=seed, noise="shared")
            for name, one in zip(names, got, strict=True):
                gap = float((torch.tensor(one) - outputs(p)[name]).abs().max())
                worst[name] = max(worst.get(name, 0.0), gap)
    return {"worst": worst, "export_s": round(seconds, 1), "bytes": size}


def session_of(posterior: stochens.Posterior, *, together: bool) -> Any:
    """Of its exported file, on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    room = export_program.TOGETHER if together else 1
    with tempfile.TemporaryDirectory() as folder:
        with mock.patch.object(export_program, "TOGETHER", room):
            posterior.export(Path(folder) / "model.onnx")
        return onnxruntime.InferenceSession(Path(folder) / "model.onnx", options)


def latency(turns: int = 41) -> dict[str, Any]:
    """Of 10 members: network -> rows -> way -> median milliseconds, the ways in turns."""
    found: dict[str, Any] = {}
    for name, (build, shape) in networks().items():
        for method in ("regular", "dropout"):
            torch.manual_seed(0)
            x, y = torch.randn(32, *shape), torch.arange(32) % 10
            posterior = stochens.fit(build, (x, y), method=method, members=10, epochs=1)
            ways = {
                way: session_of(posterior, together=way == "at once")
                for way in ("at once", "in turns")
            }
            for rows in (1, 8, 32):
                given = {"x": x[:rows].numpy()}
                times: dict[str, list[float]] = {way: [] for way in ways}
                for _ in range(turns + 1):
                    for way, session in ways.items():
                        began = time.perf_counter()
                        session.run(None, given)
                        times[way].append(1000 * (time.perf_counter() - began))
                one = {way: round(statistics.median(t[1:]), 4) for way, t in times.items()}
                found.setdefault(f"{name}, {method}", {})[str(rows)] = one
                print(f"{name}, {method}, {rows} rows: {one}", flush=True)
    return found


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--json", type=Path)
    options.add_argument("--latency", action="store_true")
    given = options.parse_args()
    onnxruntime.set_default_logger_severity(3)
    found = latency() if given.latency else differences()
    if given.json:
        about = {"torch": torch.__version__, "onnxruntime": onnxruntime.__version__}
        given.json.write_text(json.dumps({**about, "results": found}, indent=2) + "\n")


def differences() -> dict[str, Any]:
    """Network and method -> what `measure` says."""
    found: dict[str, Any] = {}
    for network, (net, x, y, likelihood) in cases().items():
        for name, method in TRAININGS.items():
            one = measure(net, x, y, likelihood, method)
            found[f"{network}, {name}"] = one
            gaps = ", ".join(f"{k} {v:.1e}" for k, v in one["worst"].items())
            print(f"{network}, {name}: {gaps}; {one['export_s']} s, {one['bytes']:,} B", flush=True)
    return found


if __name__ == "__main__":
    main()
