"""Effective samples per second of NUTS: stochens against NumPyro, in one run on one machine.

    python benchmarks/nuts.py [--chains 4 256] [--repeats 3] [--json FILE]
    python benchmarks/nuts.py --reference [--json FILE]

The model is the paper's toy network 2-10-10-2 on 500 points, prior N(0, 1), with both samplers at
their own defaults (target acceptance 0.8, depth 10, diagonal mass). An effective sample is one of a
prediction p(class 1 | x): the median over 100 points x, half of them on [-1, 1]^2 and half on
[-10, 10]^2, by NumPyro's estimator for both. Seconds are those of warm-up and sampling; what either
side compiles, once, is told apart. NumPyro runs in its faster way on the machine at hand: a process
device for each chain on a CPU, all chains vectorised on a GPU.

--reference times the paper's reference posterior: 2000 points, 4 chains x (2000 + 2000).
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

import stochens
from stochens.toy import uniform_points

SIZES = (2, 10, 10, 2)


def places() -> torch.Tensor:
    """Where predictions are looked at, [100, 2]."""
    return torch.cat(
        [uniform_points(50, half_side=1.0, seed=0), uniform_points(50, half_side=10.0, seed=0)]
    )


def probs_of(posterior: stochens.Posterior) -> torch.Tensor:
    """Of every draw there, [S, 100, 2]."""
    found = posterior.predict(places())
    assert isinstance(found, stochens.Predictive)
    return found.probs


def effective(probs: Any) -> float:
    """Median effective sample size of predictions [chains, draws, points]; one that never changes,
    since every draw says 0 or 1 to the last bit, has none and is left out."""
    import numpy as np
    from numpyro.diagnostics import effective_sample_size

    return float(np.nanmedian(effective_sample_size(np.asarray(probs, dtype=np.float64))))


class NumPyro:
    def __init__(self, x: torch.Tensor, y: torch.Tensor, chains: int, draws: int) -> None:
        import jax
        import jax.numpy as jnp
        import numpyro
        import numpyro.distributions as dist
        from numpyro.infer import MCMC, NUTS

        def network(theta: dict[str, Any], x: Any) -> Any:
            h = x
            for layer in range(len(SIZES) - 1):
                h = h @ theta[f"w{layer}"] + theta[f"b{layer}"]
                h = jax.nn.relu(h) if layer < len(SIZES) - 2 else h
            return h

        def model(x: Any, y: Any) -> None:
            theta = {}
            for layer, shape in enumerate(itertools.pairwise(SIZES)):
                w, b = (dist.Normal(jnp.zeros(s), 1.0) for s in (shape, shape[1:]))
                theta[f"w{layer}"] = numpyro.sample(f"w{layer}", w.to_event(2))
                theta[f"b{layer}"] = numpyro.sample(f"b{layer}", b.to_event(1))
            numpyro.sample("y", dist.Categorical(logits=network(theta, x)), obs=y)

        self.x, self.y = jnp.asarray(x.numpy()), jnp.asarray(y.numpy())
        self.at = jnp.asarray(places().numpy())
        on_gpu = jax.default_backend() == "gpu"
        self.way = "vectorized" if on_gpu else "parallel"
        self.predict = jax.jit(
            jax.vmap(jax.vmap(lambda t: jax.nn.softmax(network(t, self.at))[:, 1]))
        )
        self.mcmc = MCMC(
            NUTS(model),
            num_warmup=draws,
            num_samples=draws,
            num_chains=chains,
            chain_method=self.way,
            progress_bar=False,
            jit_model_args=True,
        )
        began = time.perf_counter()  # inputs of 0 leave an easy posterior: compiling, little else
        self.run(0, 0 * self.x)
        self.compiling = time.perf_counter() - began

    def run(self, seed: int, x: Any = None) -> dict[str, float]:
        import jax

        began = time.perf_counter()
        inputs = self.x if x is None else x
        self.mcmc.run(jax.random.PRNGKey(seed), inputs, self.y, extra_fields=("num_steps",))
        leapfrogs = float(self.mcmc.get_extra_fields()["num_steps"].mean())  # waits
        seconds = time.perf_counter() - began
        probs = self.predict(self.mcmc.get_samples(group_by_chain=True))
        return {"seconds": seconds, "ess": effective(probs), "leapfrogs": leapfrogs}


class Ours:
    def __init__(self, x: torch.Tensor, y: torch.Tensor, chains: int, draws: int) -> None:
        self.data, self.chains, self.draws = (x, y), chains, draws
        began = time.perf_counter()
        self.sample(0, draws=1)
        self.compiling = time.perf_counter() - began

    def sample(self, seed: int, draws: int) -> stochens.Posterior:
        return stochens.nuts(
            stochens.MLP(*SIZES),
            self.data,
            chains=self.chains,
            samples=draws,
            warmup=draws,
            seed=seed,
        )

    def run(self, seed: int) -> dict[str, float]:
        began = time.perf_counter()
        posterior = self.sample(seed, self.draws)
        seconds = time.perf_counter() - began
        assert posterior.chains is not None
        probs = probs_of(posterior)[..., 1].unflatten(0, (self.chains, self.draws))
        leapfrogs = float(posterior.chains.stats["leapfrogs"].mean())
        return {"seconds": seconds, "ess": effective(probs), "leapfrogs": leapfrogs}


def against_numpyro(chains: int, points: int, draws: int, repeats: int) -> dict[str, Any]:
    x, y = stochens.toy_set("a", n=points)
    peer, ours = NumPyro(x, y, chains, draws), Ours(x, y, chains, draws)
    sides: dict[str, list[dict[str, float]]] = {"numpyro": [], "stochens": []}
    for seed in range(1, repeats + 1):
        sides["numpyro"].append(peer.run(seed))
        sides["stochens"].append(ours.run(seed))
        print(f"  seed {seed}:", {name: runs[-1] for name, runs in sides.items()}, flush=True)
    rates = {name: [run["ess"] / run["seconds"] for run in runs] for name, runs in sides.items()}
    ratios = [a / b for a, b in zip(rates["stochens"], rates["numpyro"], strict=True)]
    result: dict[str, Any] = {
        "chains": chains,
        "points": points,
        "warmup and samples": draws,
        "numpyro way": peer.way,
        "compiling seconds": {"numpyro": peer.compiling, "stochens": ours.compiling},
        "ess per second": {name: statistics.median(values) for name, values in rates.items()},
        "runs": sides,
        "ratio": {
            "median": statistics.median(ratios),
            "least": min(ratios),
            "most": max(ratios),
        },
    }
    print(
        f"{chains} chains: NumPyro ({peer.way}) {result['ess per second']['numpyro']:,.1f} and "
        f"stochens {result['ess per second']['stochens']:,.1f} effective samples/s; ratio "
        f"{statistics.median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})",
        flush=True,
    )
    return result


def reference(points: int) -> dict[str, Any]:
    """The paper's reference posterior, set by set."""
    found = {}
    for name in ("a", "b", "c"):
        data = stochens.toy_set(name, n=points)
        began = time.perf_counter()
        posterior = stochens.nuts(stochens.MLP(*SIZES), data, chains=4, samples=2000, warmup=2000)
        seconds = time.perf_counter() - began
        assert posterior.chains is not None
        stats = posterior.chains.stats
        probs = probs_of(posterior)[..., 1].unflatten(0, (4, 2000))
        found[name] = {
            "seconds": seconds,
            "leapfrogs a draw": float(stats["leapfrogs"].mean()),
            "divergences": int(stats["diverged"].sum()),
            "median ess of 8000": effective(probs),
        }
        print(f"set {name}, N = {points}, 4 x (2000 + 2000):", found[name], flush=True)
    return found


def machine() -> dict[str, Any]:
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "device": gpu or f"CPU, {os.cpu_count()} cores, {platform.machine()}",
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="effective samples per second against NumPyro")
    parser.add_argument("--chains", type=int, nargs="+", default=[4])
    parser.add_argument("--points", type=int, default=None, help="500, or 2000 for --reference")
    parser.add_argument("--draws", type=int, default=300, help="of warm-up, and as many samples")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    # Before jax is imported: a device for each chain, so that NumPyro can use all cores.
    devices = f"--xla_force_host_platform_device_count={max(options.chains)}"
    os.environ.setdefault("XLA_FLAGS", devices)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # leave torch some of the GPU
    results: dict[str, Any] = {"machine": machine()}
    if options.reference:
        results["reference"] = reference(options.points or 2000)
    else:
        results["against numpyro"] = [
            against_numpyro(chains, options.points or 500, options.draws, options.repeats)
            for chains in options.chains
        ]
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
