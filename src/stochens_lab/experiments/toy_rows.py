"""The methods of the toy table: how an ensemble of each is made, and for how many steps."""

from collections.abc import Callable
from typing import Any

from stochens.errors import InputError, did_you_mean
from stochens.networks import MLP
from stochens.posterior.posterior import Posterior
from stochens.samplers.langevin import langevin, usual_step
from stochens_lab.experiments.rows import ENSEMBLES, Train, Training
from stochens_lab.experiments.toy_config import ToyConfig

OnToy = Callable[..., Posterior]  # (data, *, members, steps, start, seed, device)
SIZES = (2, 10, 10, 2)
EARLY = {"a": 1000, "b": 2000, "c": 2000}  # steps of the control, picked by its distance to NUTS


def _on_toy(ensemble: Train) -> OnToy:
    def train(data: Any, **options: Any) -> Posterior:
        return ensemble(MLP(*SIZES), data, **options)

    return train


def _by_langevin(batch_size: int | None) -> OnToy:
    def train(data: Any, *, start: str, **options: Any) -> Posterior:
        assert start == "prior"
        step = usual_step(len(data[0]))  # the same for all members, as in the tables that are kept
        return langevin(MLP(*SIZES), data, batch_size=batch_size, step_size=step, **options)

    return train


TRAININGS = {name: _on_toy(ensemble) for name, ensemble in ENSEMBLES.items()}


def list_trainings(config: ToyConfig, set_name: str) -> list[Training]:
    """Schedule T (the authors'), Q (from the prior), the control that is stopped early, and the
    Langevin ensemble; `only` those that are named, where any are."""
    only, steps = config.only, config.steps
    rows = [Training(name, train, steps) for name, train in TRAININGS.items()]
    if config.prior_steps is not None:
        rows += [
            Training(f"{name}, Q", TRAININGS[name], config.prior_steps, "prior")
            for name in ("regular", "SE3", "gaussian")
        ]
    early = min(EARLY[set_name], steps)
    rows.append(Training("regular, early", TRAININGS["regular"], early, "prior"))
    by_langevin = _by_langevin(config.langevin_batch)
    rows.append(Training("langevin", by_langevin, config.langevin_steps, "prior", replicas=False))
    for name in only:
        if name not in [row.name for row in rows]:
            hint = did_you_mean(name, [row.name for row in rows])
            known = "; ".join(row.name for row in rows)
            raise InputError(f"no method {name!r} in this preset{hint or '.'} It has: {known}")
    return [row for row in rows if not only or row.name in only]
