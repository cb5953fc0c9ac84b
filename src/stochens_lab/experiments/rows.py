"""What the experiments share of a row of their table: how it is trained, and what is told of its
training and of the reference."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from stochens.data import source
from stochens.methods import DropConnect, Dropout, Gaussian, Method, NPDropout, Regular
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens.samplers.diagnostics import diagnose
from stochens.samplers.langevin import langevin, usual_step
from stochens.samplers.mclmc import mclmc
from stochens.samplers.swag import multiswa
from stochens.training.fit import fit
from stochens.training.schedules import Natural, Optimizer

BATCH, RATE = 100, 0.01  # the authors' code: Adam, divided by 10 at 1/2 and 3/4, fresh each time
# Of mclmc, members at most and draws of each: more draws cost less than more members
# (benchmarks/spending.py).
CHAINS, CHAIN_DRAWS = 20, 50
LAST_PART = 0.2  # of training, over which the loss and its fluctuation are told


def schedule(examples: int, steps: int, rates: str = "step") -> dict[str, Any]:
    """The authors' way to train, for so many steps: options of `fit`."""
    batch = min(BATCH, examples)
    return {
        "optimizer": Optimizer("adam", schedule=rates),
        "lr": RATE,
        "batch_size": batch,
        "epochs": max(1, round(steps / math.ceil(examples / batch))),
    }


Train = Callable[..., Posterior]  # (net, data, *, steps, and options of `fit`)


def _by_fit(method: Method) -> Train:
    def train(net: nn.Module, data: Any, *, steps: int, **options: Any) -> Posterior:
        settings = schedule(source(data).size, steps)
        return fit(net, data, method=method, **settings, **options)

    return train


def _by_swa(net: nn.Module, data: Any, *, steps: int, **options: Any) -> Posterior:
    settings = schedule(source(data).size, steps, "constant")
    return multiswa(net, data, **settings, **options)


def by_natural(
    net: nn.Module,
    data: Any,
    *,
    method: Method,
    sigma: float | None,
    rate: float,
    steps: int,
    **options: Any,
) -> Posterior:
    """Gaussian members by natural gradients, on top of a method."""
    settings = schedule(source(data).size, steps)
    settings |= {"optimizer": Natural(sigma=sigma), "lr": rate}
    return fit(net, data, method=method, **settings, **options)


def by_langevin(net: nn.Module, data: Any, *, start: str = "prior", **options: Any) -> Posterior:
    """With one step size for all members, that of the results which are published."""
    assert start == "prior"
    return langevin(net, data, step_size=usual_step(len(data[0])), **options)


def by_mclmc(
    net: nn.Module, data: Any, *, steps: int, start: str = "reset", **options: Any
) -> Posterior:
    """Members with CHAIN_DRAWS each, from the second half of their steps."""
    assert start == "reset"
    draws = max(1, min(CHAIN_DRAWS, steps // 2))
    thin = max(1, steps // 2 // draws)
    return mclmc(
        net,
        data,
        draws_per_member=draws,
        thin=thin,
        warmup=max(1, steps - draws * thin),
        training=steps // 10,
        **options,
    )


ENSEMBLES: dict[str, Train] = {
    "regular": _by_fit(Regular()),
    "MultiSWA": _by_swa,
    "SE1": _by_fit(Dropout(0.1)),
    "SE2": _by_fit(DropConnect(0.1)),
    "SE3": _by_fit(NPDropout()),
    "gaussian": _by_fit(Gaussian(0.1, learn=True)),
}


@dataclasses.dataclass(frozen=True)
class Training:
    """One row of the table: a method under a schedule."""

    name: str
    train: Train
    steps: int
    start: str = "reset"
    replicas: bool = True  # whether it takes several data draws at once
    members: int | None = None  # of an ensemble, where they are not as many as the others have


def predict_classes(posterior: Posterior, x: Tensor, **options: Any) -> Predictive:
    """`posterior.predict`, of an experiment on classes."""
    found = posterior.predict(x, **options)
    assert isinstance(found, Predictive)
    return found


def describe_reference(reference: Posterior, at: Tensor) -> dict[str, Any]:
    """The sampler's diagnostics as plain numbers."""
    assert reference.chains is not None
    chains = reference.chains
    about: dict[str, Any] = {
        "sampler": chains.sampler,
        "chains": chains.count,
        "draws": len(reference) // chains.count,
        "divergences": int(chains.stats["diverged"].sum()),
        "accept": float(chains.stats["accept"].mean()),
        "leapfrogs": float(chains.stats["leapfrogs"].mean()),
    }
    found = diagnose(reference, at)
    assert found.e_bfmi is not None
    about |= {"e_bfmi": float(found.e_bfmi.min()), "troubles": found.troubles}
    for name, m in (("predictions", found.predictions), ("parameters", found.parameters)):
        if m is not None:
            about[name] = {
                "rhat": float(m.rhat.max()),
                "ess_bulk": float(m.ess_bulk.min()),
                "ess_tail": float(m.ess_tail.min()),
            }
    return about


def describe_training(posterior: Posterior, row: Training) -> dict[str, Any]:
    """KL terms, the training KL loss over the last part of training, its fluctuation and course."""
    history = posterior.history
    about = {"steps": row.steps, "start": row.start, "kl": posterior.kl()._asdict()}
    if history is None:  # nothing was minimised
        return about
    loss, fluctuation = history.loss.double(), history.loss_sd.double()  # [E, M]
    last = slice(-max(1, round(LAST_PART * len(loss))), None)
    keep = torch.linspace(0, len(loss) - 1, min(len(loss), 100)).round().long()
    return about | {
        "loss": float(loss[last].mean()),
        "loss_sd": float(fluctuation[last].mean()),
        "course": {
            "step": [round((int(e) + 1) / len(loss) * row.steps) for e in keep],
            "loss": loss.mean(1)[keep].tolist(),
            "sd": loss.std(1, correction=0)[keep].tolist(),
        },
    }
