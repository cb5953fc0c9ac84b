"""The rows of the table of IMDB: how each one's members are made."""

import dataclasses
from collections.abc import Callable
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


def network() -> CNNLSTM:
    return CNNLSTM(words=WORDS)


def prior_of(precision: float, net: CNNLSTM) -> Prior:
    """N(0, 1 / precision), but around 1 where a bias opens the forget gate: the reference's LSTM
    adds that 1 to it."""
    about = Prior(precision, mean={FORGET: net.forget_bias()})
    return Prior(precision, layers={FORGET: about})


def _common(config: ImdbConfig, work: Work) -> dict[str, Any]:
    return {
        "batch_size": config.batch_size,
        "prior": prior_of(config.prior_precision, work.net()),
        "seed": config.seed,
        "run": Run(device=work.device, engine=config.engine, checkpoint=work.keep),
    }


def _trained(
    config: ImdbConfig, work: Work, epochs: int, method: Method, **options: Any
) -> Posterior:
    common = _common(config, work) | {"members": config.members, "epochs": epochs}
    return fit(work.net, work.data, method=method, **common, **options)


def _by_regular(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    return _trained(config, work, epochs, Regular(), lr=RATE)


def _by_dropout(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    return _trained(config, work, epochs, Dropout(config.rate), lr=RATE)


def _by_np_dropout(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    return _trained(config, work, epochs, NPDropout(), lr=RATE)


def _by_natural(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    return _trained(config, work, epochs, Regular(), optimizer=Natural())


def _by_swa(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    common = _common(config, work) | {"members": config.members, "epochs": epochs}
    return multiswa(work.net, work.data, lr=RATE, **common)


def _by_sghmc(config: ImdbConfig, work: Work, epochs: int) -> Posterior:
    """A chain from each member of `regular`, which is trained first. The first third of a chain is
    its burn-in; then there is a draw every THIN steps."""
    first = ROWS["regular"].epochs if config.epochs is None else config.epochs
    trained = _by_regular(config, work, first)
    steps = epochs * -(-len(work.data[0]) // config.batch_size)
    draws = max(1, 2 * steps // (3 * THIN))
    common = _common(config, work)
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
        preconditioner="rmsprop",
        lr=CHAIN_RATE,
        **common,
    )


RATE = 2e-3  # of Adam
CHAIN_RATE, THIN = 3e-4, 20  # of SGHMC
ROWS: dict[str, Row] = {
    "regular": Row(_by_regular, 2),
    "MultiSWA": Row(_by_swa, 2),
    "SE1": Row(_by_dropout, 3, noisy=True),
    "SE3": Row(_by_np_dropout, 3, noisy=True),
    "natural": Row(_by_natural, 5, noisy=True),
    "SGHMC": Row(_by_sghmc, 20),
}


def parameters(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())
