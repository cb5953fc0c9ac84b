"""The rows of the table of IMDB: how each one's members are made."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor, nn

from stochens.methods import Dropout, Method, NPDropout, Regular
from stochens.networks import CNNLSTM
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.run.options import Run
from stochens.samplers.sgmcmc import sgmcmc
from stochens.samplers.swag import multiswa
from stochens.training.fit import fit
from stochens.training.schedules import Natural
from stochens_lab.data.imdb import WORDS
from stochens_lab.experiments.imdb_config import ImdbConfig

FORGET = "lstm.bias_hh_l0"


class Work(NamedTuple):
    """What a row is made of, and where."""

    net: Callable[[], CNNLSTM]
    data: tuple[Tensor, Tensor]
    device: str
    keep: Path  # where the work is kept meanwhile


Make = Callable[[ImdbConfig, Work, int], Posterior]  # (config, work, epochs)


@dataclasses.dataclass(frozen=True)
class Row:
    make: Make
    epochs: int
    noisy: bool = False  # whether an inference is a draw
    start: str = "reset"  # where members begin; "trained": where `_warmed` ended


def network() -> CNNLSTM:
    return CNNLSTM(words=WORDS)


def prior_of(precision: float, net: CNNLSTM) -> Prior:
    """N(0, 1 / precision), but around 1 where a bias opens the forget gate: the reference's LSTM
    adds that 1 to it."""
    about = Prior(precision, mean={FORGET: net.forget_bias()})
    return Prior(precision, layers={FORGET: about})


def _common(config: ImdbConfig, work: Work, precision: float) -> dict[str, Any]:
    return {
        "batch_size": config.batch_size,
        "prior": prior_of(precision, work.net()),
        "seed": config.seed,
        "run": Run(device=work.device, engine=config.engine, checkpoint=work.keep),
    }


def _by_fit(
    method: Callable[[ImdbConfig], Method],
    *,
    true_prior: bool = False,
    train: Callable[..., Posterior] = fit,
    **options: Any,
) -> Make:
    """true_prior: HMC's; else the precision that its authors' deep ensembles have."""

    def make(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
        precision = config.prior_precision if true_prior else config.weight_decay
        common = _common(config, work, precision) | {"members": config.members, "epochs": epochs}
        return train(work.net, work.data, method=method(config), **common, **options)

    return make


def _plain(config: ImdbConfig) -> Method:
    return Regular()


def _warmed(config: ImdbConfig, work: Work) -> Posterior:
    """A regular ensemble that has been trained for an epoch, to begin at: under HMC's prior nothing
    is learned from an initialisation in so few epochs."""
    beside = work.keep.with_name(f"{work.keep.name}-start")
    return ROWS["regular"].make(config, work._replace(keep=beside), 1)


def _by_averages(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    """MultiSWA under HMC's prior: the mean of what each member goes through at a constant rate."""
    common = _common(config, work, config.prior_precision)
    return multiswa(
        work.net,
        work.data,
        method=Regular(),
        members=config.members,
        start=_warmed(config, work),
        epochs=epochs,
        lr=RATE,
        average_from=AVERAGED_FROM,
        **common,
    )


def _by_sghmc(
    config: ImdbConfig, work: Work, epochs: int, *, preconditioner: str, lr: float | None = None
) -> Posterior:
    """A chain from each member of a regular ensemble, which is trained for an epoch. The first
    third of a chain is its burn-in; then there is a draw every THIN steps."""
    trained = _warmed(config, work)
    steps = epochs * -(-len(work.data[0]) // config.batch_size)
    draws = max(1, 2 * steps // (3 * THIN))
    common = _common(config, work, config.prior_precision)
    # a checkpoint would have all draws: more to write than there is to lose
    common["run"] = dataclasses.replace(common["run"], checkpoint=None)
    return sgmcmc(
        work.net,
        work.data,
        chains=config.members,
        start=trained,
        samples=draws,
        thin=THIN,
        burn_in=max(1, steps - THIN * draws),
        preconditioner=preconditioner,
        lr=lr,
        **common,
    )


RATE = 2e-3  # of Adam
AVERAGED_FROM = 0.3  # of the training under HMC's prior
THIN = 20  # of SGHMC
ROWS: dict[str, Row] = {
    "regular": Row(_by_fit(_plain, lr=RATE), 2),
    "regular, HMC's prior": Row(_by_fit(_plain, true_prior=True, lr=RATE), 2),
    "MultiSWA, HMC's prior": Row(_by_averages, 3, start="trained"),
    "MultiSWA": Row(_by_fit(_plain, train=multiswa, lr=RATE), 2),
    "SE1": Row(_by_fit(lambda config: Dropout(config.rate), lr=RATE), 2, noisy=True),
    "SE3": Row(_by_fit(lambda config: NPDropout(), lr=RATE), 2, noisy=True),
    "natural": Row(_by_fit(_plain, true_prior=True, optimizer=Natural()), 4, noisy=True),
    "SGHMC": Row(partial(_by_sghmc, preconditioner="rmsprop", lr=3e-4), 6, start="trained"),
    "SGHMC, fisher": Row(partial(_by_sghmc, preconditioner="fisher"), 30, start="trained"),
}


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())
