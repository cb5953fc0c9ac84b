"""`method="auto"`: short trials of the methods, and a full training by the one that they favour."""

import dataclasses
import math
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from stochens import objective
from stochens.checks import whole, whole_or_none
from stochens.data import Data, Source, rows_of, source
from stochens.errors import Failed, InputError, Unsuited
from stochens.likelihoods import Likelihood
from stochens.likelihoods import resolve as likelihood_named
from stochens.members import builder, shared_by_all, trainable
from stochens.methods import (
    DropConnect,
    Dropout,
    Method,
    MethodLike,
    NPDropout,
    Regular,
    resolve,
)
from stochens.posterior.posterior import Posterior
from stochens.posterior.recipe import describe_fully
from stochens.posterior.trials import Trial, Trials, worth
from stochens.randomness.seeds import TRIALS, derive, seeded
from stochens.run.checkpoints import digest
from stochens.run.progress import live
from stochens.training.ensemble import train_ensemble
from stochens.training.folder import own_identity
from stochens.training.outcomes import Outcome, open_outcomes
from stochens.training.request import FitRequest
from stochens.training.schedules import describe_schedule, rate_for
from stochens.training.starts import start_network
from stochens.trees import named, with_dtype

RATES = (0.02, 0.05, 0.1, 0.2)
CANDIDATES: tuple[Method, ...] = (
    Regular(),
    *(Dropout(p) for p in RATES),
    *(DropConnect(p) for p in RATES),
    NPDropout(),
)
RULES = ("held-out", "kl", "both")
SHARE = 4  # a trial has this part of the epochs of the whole training


@dataclasses.dataclass(frozen=True, kw_only=True)
class Auto:
    """How `fit(..., method=Auto(...))` chooses its method; method="auto" is Auto().

    Every candidate trains `members` for `epochs` (a quarter of the whole training's when None) on
    all but a share `held_out` of the data, from the same starts. `by`: "held-out" takes the highest
    log-likelihood of the held-out examples, "kl" the lowest training KL loss, "both" the lowest KL
    loss among those whose held-out likelihood is within one standard error of the best. Against
    NUTS on small sets the first was right most often and the second never, since the entropy of the
    noise, which the KL loss counts, favours the highest rate (benchmarks/results/auto.md).

    Trials are part of a `checkpoint`: a training that is begun again has those that ended, goes on
    with the one that was stopped, and comes to the same choice.

    Candidates with a finite sigma (Gaussian) have no rank by KL loss: the others' sigma is machine
    precision, whose constant is left out, so that the two are on different scales.

    >>> Auto(candidates=["regular", Dropout(0.3)], by="kl").members
    8
    """

    candidates: Sequence[MethodLike] = CANDIDATES
    by: str = "held-out"
    held_out: float = 0.2
    members: int = 8
    epochs: int | None = None
    draws: int = 8

    def __post_init__(self) -> None:
        whole(members=self.members, draws=self.draws)
        whole_or_none(epochs=self.epochs)
        if self.by not in RULES:
            raise InputError(f"by must be one of {', '.join(RULES)}, got {self.by!r}")
        if not 0 < self.held_out < 1:
            raise InputError(f"held_out must be a share in (0, 1), got {self.held_out!r}")
        if isinstance(self.candidates, str | Method) or not self.candidates:
            raise InputError(f"candidates must be a list of methods, got {self.candidates!r}")
        labels = [label(c) for c in self.candidates]
        if len(set(labels)) < len(labels):
            raise InputError(f"a candidate stands there twice: {', '.join(labels)}")


def label(method: MethodLike) -> str:
    """A method in a word or two.

    >>> label(Dropout(0.2)), label(["np-dropout", "gaussian"])
    ('dropout 0.2', 'np-dropout + gaussian')
    """
    return " + ".join(_one(m) for m in resolve(method))


def _one(method: Method) -> str:
    said = [m for m in dataclasses.fields(method) if m.name != "p"]
    plain = type(method)()
    other = [
        f"{f.name}={getattr(method, f.name)}"
        for f in said
        if getattr(method, f.name) != getattr(plain, f.name)
    ]
    rate = [str(method.p)] if hasattr(method, "p") else []
    return " ".join([method.name, *rate, *other])


def choose_method(request: FitRequest, auto: Auto) -> tuple[FitRequest, Trials]:
    """The same request with the method that short trials favour, and the trials."""
    if not isinstance(request.start, str):
        raise InputError("method='auto' needs a start by name: Params fit one method")
    trials, best = run_trials(request, auto)
    if live(request.run.progress):
        print(trials, file=sys.stderr)
    return dataclasses.replace(request, method=best), trials


def run_trials(request: FitRequest, auto: Auto) -> tuple[Trials, MethodLike]:
    """The trials alone, and the candidate that they favour."""
    given = source(request.data)
    part, held, weights = _split(given, auto.held_out, int(request.seed))
    place = request.run.checkpoint
    own = dataclasses.replace(
        request,
        method=None,
        data=Data((part.x, part.y), request.given.target, part.weights, given.augment),
        members=auto.members,
        epochs=auto.epochs or max(1, math.ceil(int(request.epochs) / SHARE)),
        seed=derive(int(request.seed), TRIALS),
        run=dataclasses.replace(request.run, log=None),
        collect=None,
        callbacks=(),
        validation=None,  # they hold out data of their own
    )
    like = likelihood_named(request.likelihood)
    y = like.check_targets(held.y)
    settings = {} if place is None else _identity(own, auto, like, part, held, weights)
    candidates = {label(method): method for method in auto.candidates}
    reasons: list[Unsuited | Failed] = []
    with open_outcomes(list(candidates), place, settings) as outcomes:
        for name, method in candidates.items():
            if name in outcomes.found:
                continue  # kept by a run that was stopped
            run = dataclasses.replace(own.run, checkpoint=outcomes.folder(name))
            try:
                with warnings.catch_warnings():  # what is said of a trial is said of the training
                    warnings.simplefilter("ignore", UserWarning)
                    posterior = train_ensemble(dataclasses.replace(own, method=method, run=run))
            except (Unsuited, Failed) as error:  # e.g. no layer that this method could take
                outcomes.refused[name] = str(error)
                reasons.append(error)
                continue
            x = with_dtype(held.x, run.dtype)
            p = posterior.predict(x, draws=auto.draws, keep_draws=True)
            all_there = len(posterior) == auto.members
            outcomes.add(name, _outcome(posterior, p.log_prob(y)), whole=all_there)
    if not outcomes.found:
        raise reasons[0]
    rows = _rows(outcomes.in_order(), weights)
    chosen, reason = choice(rows, auto.by)
    trials = Trials(rows, chosen, reason, outcomes.refused)
    return trials, candidates[chosen]


def _identity(
    own: FitRequest, auto: Auto, like: Likelihood, part: Source, held: Source, weights: Tensor
) -> dict[str, Any]:
    """What trials that go on must share with those before them; how they are run is no part, but
    for the precision."""
    with seeded(own.seed):
        plain = builder(start_network(own.net, own.start))()
    data = {**named(part.x), "y": part.y}
    data |= {f"held {name}": t for name, t in named(held.x).items()}
    data |= {"held y": held.y, "of held": weights}
    if part.weights is not None:
        data["weights"] = part.weights
    settings = {
        "members": own.members,
        "epochs": own.epochs,
        "batch_size": own.batch_size,
        "optimizer": own.optimizer.kind,
        "schedule": describe_schedule(own.optimizer.schedule),
        "weight_decay": own.optimizer.weight_decay,
        "lr": rate_for(own.optimizer.kind, own.lr),
        "kl_weight": own.kl_weight,
        "prior_precision": own.prior_precision,
        "skip": (),  # once an option beside those of the candidates
        "start": own.start,
        "repulsion": own.optimizer.repulsion,
        "on_divergence": own.on_divergence,
        "seed": own.seed,
        "bf16": own.run.bf16,
        "network": str(plain),
        "shared": digest(shared_by_all(plain)),
        "likelihood": describe_fully(like),
        "data": digest(data),
        "draws": auto.draws,
        "candidates": [[describe_fully(m) for m in resolve(c)] for c in auto.candidates],
    }
    if own.start == "module":
        settings["begun"] = digest(trainable(plain))
    settings |= own_identity(own)
    settings["jitter"] = own.jitter or None
    if own.run.dtype is not None and own.run.precision != "float32":
        settings["precision"] = own.run.precision
    return settings


def _split(given: Source, share: float, seed: int) -> tuple[Source, Source, Tensor]:
    """A part to train on, a part to hold out, and what the rows of the latter count, of sum 1."""
    if given.loader is not None or given.sets > 1:
        what = "a DataLoader or a stream" if given.loader is not None else "Replicas"
        raise InputError(f"method='auto' holds data out, so it needs one set in memory, not {what}")
    count = round(share * given.size)
    if count < 2 or count > given.size - 1:
        raise InputError(
            f"method='auto' would hold {count} of {given.size} examples out; it needs at least 2, "
            "and 1 to train on"
        )
    generator = torch.Generator().manual_seed(derive(seed, TRIALS, 1))
    order = torch.randperm(given.size, generator=generator).to(given.x.device)
    held, rest = order[:count], order[count:]
    per_row = given.examples / given.size
    all_weights = given.weights
    if all_weights is None:
        all_weights = torch.ones(given.size, dtype=torch.float64, device=given.x.device)
    weights = all_weights.double() * per_row
    part = Source(rows_of(given.x, rest), given.y[rest], len(rest), weights=weights[rest])
    of_held = weights[held].cpu() / weights[held].sum().cpu()
    return part, Source(given.x[held], given.y[held], count), of_held


def _outcome(posterior: Posterior, log_p: Tensor) -> Outcome:
    history = posterior.history
    assert history is not None
    parts = objective.mixtures(posterior.net, posterior.params)
    return Outcome(
        log_p=log_p,
        loss=history.loss[-1].double(),
        loss_sd=history.loss_sd[-1],
        stochasticity=torch.tensor(objective.stochasticity(parts), dtype=torch.float64),
        ranked=torch.tensor(all(part.sigma is None for part in parts)),
    )


def _rows(found: dict[str, Outcome], weights: Tensor) -> tuple[Trial, ...]:
    means = {name: float((weights * one.log_p).sum()) for name, one in found.items()}
    best = max(means, key=lambda name: worth(means[name]))
    rows = []
    for name, one in found.items():
        loss = one.loss  # [M]
        below = found[best].log_p - one.log_p
        rows.append(
            Trial(
                label=name,
                kl=float(loss.mean()) if one.ranked else None,
                kl_fluctuation=float(one.loss_sd.mean()),
                kl_error=float(loss.std() / len(loss) ** 0.5) if len(loss) > 1 else 0.0,
                stochasticity=float(one.stochasticity),
                held_out=means[name],
                held_out_error=_error(one.log_p, weights),
                gap=float((weights * below).sum()),
                gap_error=_error(below, weights),
            )
        )
    return tuple(rows)


def _error(values: Tensor, weights: Tensor) -> float:
    """The standard error of a weighted mean of independent values; weights of sum 1."""
    mean = (weights * values).sum()
    n = len(values)
    return float(((weights * (values - mean)).square().sum() * n / (n - 1)).sqrt())


def choice(rows: Sequence[Trial], by: str) -> tuple[str, str]:
    """The label of the candidate that the rule takes, and the rule's words for it."""
    best = max(rows, key=lambda row: worth(row.held_out))
    ranked = [row for row in rows if row.kl is not None]
    if by == "kl":
        if not ranked:
            raise InputError("no candidate has a rank by KL loss; use by='held-out'")
        low = min(ranked, key=_kl)
        others = len(ranked) - 1
        return low.label, f"{low.label}: the lowest KL loss, {_kl(low):.1f} nats, {others} others"
    top = f"{best.label}: the highest held-out log-likelihood, {best.held_out:.4f}"
    near = [row for row in rows if row.gap <= row.gap_error]
    beside = [row.label for row in near if row.label != best.label]
    if by == "held-out" or not beside:
        told = f"within one standard error: {', '.join(beside)}" if beside else "alone there"
        return best.label, f"{top}; {told}"
    able = [row for row in near if row.kl is not None]
    low = min(able, key=_kl) if able else best
    return low.label, (
        f"{low.label}: the lowest KL loss of the {len(near)} whose held-out log-likelihood is "
        f"within one standard error of the best ({best.label}, {best.held_out:.4f})"
    )


def _kl(row: Trial) -> float:
    return math.inf if row.kl is None or math.isnan(row.kl) else row.kl
