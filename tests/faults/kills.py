"""Kills trainings and samplers at random moments, until they have done their work all the same.

    python -m tests.faults.kills --kills 200

Each piece of work runs in a process of its own, which gets SIGKILL after a random time and is then
begun again, over and over. What comes out at the end must be, bit for bit, what an undisturbed
process makes; and what a kill costs must be no more than the time since the last checkpoint.
"""

import argparse
import hashlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import stochens
from stochens import Posterior
from stochens.posterior import saved
from stochens.run.checkpoints import Checkpoints


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return stochens.toy_set("b", n=60)


def by_fit(method: str, **options: object) -> Callable[[Path], Posterior]:
    def work(folder: Path) -> Posterior:
        return stochens.fit(
            stochens.MLP(2, 6, 6, 2),
            data(),
            method=method,
            members=6,
            epochs=40,
            batch_size=16,
            run=stochens.Run(checkpoint=folder, **options),
        )

    return work


def by_convolutions(folder: Path) -> Posterior:
    """By vmap, with torch's own random numbers."""
    x = torch.randn(40, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.SiLU(), nn.Flatten(), nn.Linear(48, 2))
    return stochens.fit(
        net,
        (x, (x.mean((1, 2, 3)) > 0).long()),
        method="dropout",
        members=3,
        epochs=10,
        batch_size=16,
        optimizer=stochens.Optimizer("sgd", schedule="step"),
        run=stochens.Run(chunk=2, checkpoint=folder),
    )


def by_swag(folder: Path) -> Posterior:
    return stochens.multiswag(
        stochens.MLP(2, 6, 2),
        data(),
        members=4,
        epochs=60,
        batch_size=16,
        snapshots=8,
        rank=4,
        run=stochens.Run(checkpoint=folder),
    )


def by_nuts(folder: Path) -> Posterior:
    options = {"chains": 2, "samples": 40, "warmup": 40}
    return stochens.nuts(
        stochens.MLP(2, 5, 2), data(), run=stochens.Run(checkpoint=folder), **options
    )


def by_langevin(folder: Path) -> Posterior:
    options = {"members": 5, "steps": 400, "batch_size": 20}
    return stochens.langevin(
        stochens.MLP(2, 5, 2), data(), run=stochens.Run(checkpoint=folder), **options
    )


def by_sghmc(folder: Path) -> Posterior:
    options = {"kind": "csghmc", "chains": 3, "samples": 20, "burn_in": 60, "batch_size": 20}
    return stochens.sgmcmc(
        stochens.MLP(2, 5, 2), data(), run=stochens.Run(checkpoint=folder), **options
    )


WORK: dict[str, Callable[[Path], Posterior]] = {
    "regular": by_fit("regular"),
    "dropout": by_fit("dropout"),
    "dropconnect": by_fit("dropconnect", chunk=4),
    "np-dropout": by_fit("np-dropout"),
    "gaussian, vmap": by_fit("gaussian", engine="vmap"),
    "convolutions": by_convolutions,
    "swag": by_swag,
    "nuts": by_nuts,
    "langevin": by_langevin,
    "sghmc": by_sghmc,
}


def digest(posterior: Posterior) -> str:
    """Of every number that a run makes, history and all."""
    found = hashlib.sha256()
    for name, t in sorted(saved.tensors(posterior).items()):
        if "counts" not in name:
            found.update(name.encode() + t.detach().cpu().contiguous().numpy().tobytes())
    return found.hexdigest()


OFTEN = 0.1  # the share of steps that leave a checkpoint


def begun(name: str, folder: Path, chance: random.Random) -> int:
    """The process id of a child that does the work and leaves its digest."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        torch.set_num_threads(1)
        Checkpoints.due = lambda self: chance.random() < OFTEN  # type: ignore[method-assign]
        warnings.simplefilter("error")  # a damaged checkpoint would be passed over with one
        warnings.simplefilter("ignore", stochens.samplers.diagnostics.SamplingWarning)
        warnings.simplefilter("ignore", stochens.training.advice.TrainingAdvice)
        result = digest(WORK[name](folder / "work"))
        (folder / ".digest").write_text(result)
        (folder / ".digest").rename(folder / "digest")
        status = 0
    finally:
        sys.stderr.flush()
        os._exit(status)


def done(child: int) -> None:
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"a process that nobody killed ended with status {status}")


def trial(name: str, place: Path, chance: random.Random, most: int) -> int:
    """How many times the work was killed before it was done."""
    whole, cut = place / "whole", place / "cut"
    whole.mkdir(parents=True)
    cut.mkdir()
    start = time.monotonic()
    done(begun(name, whole, chance))
    usual = time.monotonic() - start
    kills = 0
    while kills < most:
        child = begun(name, cut, chance)
        time.sleep(chance.uniform(0, 0.8 * usual))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break  # it was done before the signal came
        kills += 1
    else:
        done(begun(name, cut, chance))
    if (cut / "digest").read_text() != (whole / "digest").read_text():
        raise SystemExit(f"{name}: after {kills} kills the result is another one")
    return kills


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    chance, kills, works = random.Random(args.seed), 0, 0
    folder = Path(tempfile.mkdtemp())
    try:
        while kills < args.kills:
            name = list(WORK)[works % len(WORK)]
            most = min(args.kills - kills, chance.randint(2, 6))
            made = trial(name, folder / str(works), chance, most)
            kills, works = kills + made, works + 1
            print(f"{kills:4d} kills, {works} pieces of work the same: {name}", flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{kills} of {kills} kills: resumed, bit for bit the same")


if __name__ == "__main__":
    main()
