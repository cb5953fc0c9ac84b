"""Said before training starts: what would train, and badly. And after it: a learned noise that did
not arrive, or that holds the method's own noise."""

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from stochens.data import Source
from stochens.errors import TrainingAdvice, outside
from stochens.likelihoods import (
    LOG_2_PI,
    Draws,
    Likelihood,
    draws_of,
)
from stochens.members import Params, forward, size, take
from stochens.methods import Method, stochastic_layers
from stochens.posterior.low_rank import params_of_draw
from stochens.prior import Centred
from stochens.randomness.seeds import seeded
from stochens.training.freedom import noise_at_most, noise_too_small
from stochens.training.schedules import OWN, schedule_named, warmed_up
from stochens.training.task import Settings, Trained
from stochens.training.width import times_too_wide

ENOUGH = 0.5  # how far each parameter should be able to move, where weights are of order 1
FEW_STEPS = 100  # of an optimiser whose steps have no largest size
FAR = 10.0  # of targets from 0, and their low_rank: such ones take long to be reached
MEND = "more epochs, a smaller batch_size or a larger lr may be needed"
EPOCHS = 10  # from which on the last one's NLL is that of the parameters at the end
ARRIVED = 0.5  # of the squared error that there should be for the noise that was learned
TWICE = 0.1  # share of the learned variance that is the method's: intervals are 10 % too wide then
WIDER = 1.07  # times too wide: 10 %, less what of it draws may miss and data not seen may add
FOLLOWED = 1.2  # true noise over the learned one: 95 % intervals cover 90 % then
SEEN = (4, 128, 16)  # members, rows and draws that this is measured by

# network, member, likelihood, data, the prior's precision and that of each parameter
Asked = tuple[nn.Module, Params, Likelihood, Source, float, Mapping[str, float] | None]


def advise(settings: Settings, steps: int, like: Likelihood, y: Tensor, outputs: Tensor) -> None:
    """y [N, ...] are the targets, outputs [B, ...] those of the network as it is at first."""
    for said in (_few_steps(settings, steps), _far_targets(like, y), like.advice(outputs)):
        if said is not None:
            warnings.warn(said, TrainingAdvice, stacklevel=outside())


def _few_steps(settings: Settings, steps: int) -> str | None:
    if settings.optimizer in ("sgd", "natural", OWN):
        return f"{steps} steps of training are few; {MEND}" if steps < FEW_STEPS else None
    factor = warmed_up(schedule_named(settings.schedule), settings.warmup)
    reach = settings.lr * sum(factor(k / 100) for k in range(100)) * steps / 100
    if reach >= ENOUGH:  # Adam's steps are no longer than the rate
        return None
    return (
        f"{steps} steps of training are few: at lr = {settings.lr:g} a parameter moves by "
        f"about {reach:.2g} at most; {MEND}"
    )


def advise_after(
    settings: Settings,
    steps: int,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    rules: Sequence[Method],
    prior: Centred | None = None,
) -> None:
    """Of a noise that was to be learned; `net` has the noise of the methods `rules`.

    prior: None for N(0, 1 / prior_precision).
    """
    if data.y.is_floating_point() and bool(data.y.isnan().any()):
        return  # of targets that are missing: what is left of the errors is not known by the loss
    said = None
    noisy, natural = bool(stochastic_layers(net)), settings.natural is not None
    learned = like.learns_noise
    plain = like.least_squares and learned and not noisy and len(trained.history.nll) >= EPOCHS
    if plain and not natural:
        # (of natural gradients the draws' own variance makes up for it, and their check of arrival
        # tells where it does not)
        # first: where the network follows the noise, a learned one that is on its way down to what
        # is left of it is not too large, and more epochs would make it worse
        said = _followed(settings, like, trained, data, net, prior)
    last = len(trained.history.nll) - 1
    if said is None and bool((trained.history.kept == last).all()):  # not where validation chose
        said = _not_arrived(settings, steps, like, trained, data.examples, prior)
    if said is None and learned and (noisy or natural):
        asked = _asked(settings, like, trained, data, net, prior)
        ratio = noise_too_small(*asked) if plain else None  # plain: natural alone, here
        if ratio is None:
            said = _counted_twice(settings, like, trained, data, net, rules, asked)
        else:
            said = _too_wide(settings, like, trained, data, net, ratio)
    if said is not None:
        warnings.warn(said, TrainingAdvice, stacklevel=outside())


def _not_arrived(
    settings: Settings,
    steps: int,
    like: Likelihood,
    trained: Trained,
    examples: float,
    prior: Centred | None = None,
) -> str | None:
    """A learned noise begins at 1, and may not have come down to a small one; until then
    predictions are too unsure, however good their mean is."""
    name = like.noise_parameter()
    if name is None or len(trained.history.nll) < EPOCHS:
        return None
    logs = trained.params[name].double().cpu()  # [M, D]
    left = 2 * trained.history.nll[-1].double().cpu() - (logs + LOG_2_PI).sum(1)  # [M]
    # left = sum_d error_d^2 / noise_d^2; where the gradient is 0 it is this, the prior included
    precision, away = settings.prior_precision, logs
    if prior is not None:
        precision = prior.precision[name]
        away = logs - prior.mean[name].to(logs) if name in prior.mean else logs
    weight = settings.kl_weight * precision / examples
    due = (1 + 2 * weight * away).sum(1)
    ratio = max(float((left / due).nanmedian()), 1e-4)  # rounding, where no error is left
    if float(due.min()) <= 0 or ratio >= ARRIVED:
        return None
    return (
        f"{steps} steps of training are few: the learned noise is still about "
        f"{math.sqrt(1 / ratio):.1f} times the error that is left, so that predictions are too "
        f"unsure; {MEND}"
    )


def _followed(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    prior: Centred | None,
) -> str | None:
    """Whether the noise that was learned is too small, since the network follows that of its data;
    measured on the first member."""
    asked = _asked(settings, like, trained, data, net, prior)
    ratio = noise_too_small(*asked)
    if ratio is None:
        return _perhaps_followed(*noise_at_most(*asked), data.size)
    if ratio < FOLLOWED:
        return None
    return (
        f"the network follows the noise of its {data.size:,} rows, so that the learned noise is "
        f"too small, by a factor of about {ratio:.1f}, and so are intervals; use a smaller network "
        "or a prior of larger precision, or more data, and look at the coverage of data held out"
    )


def _asked(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    prior: Centred | None,
) -> Asked:
    """What `freedom` wants to know: of the first member."""
    first = {name: p[0].detach() for name, p in trained.params.items()}
    weight = settings.kl_weight * (settings.prior_precision if prior is None else 1.0)
    return net, first, like, data, weight, None if prior is None else prior.precision


def _perhaps_followed(factor: float, seen: int, rows: int) -> str | None:
    """Likewise where all rows are too many to look at: at most by this factor, as so many say."""
    if factor < FOLLOWED:
        return None
    known = "this could not be looked at"
    if seen:
        known = f"as {seen:,} of them say, the noise may be too small by a factor of {factor:.1f}"
    return (
        f"the network may follow the noise of its {rows:,} rows, so that the learned noise and "
        f"intervals are too small: {known}. Look at the coverage of data held out; a smaller "
        "network or a prior of larger precision helps"
    )


def _too_wide(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    followed: float,
) -> str | None:
    """Of natural gradients, whose draws are part of what was learned as the noise (width.py)."""
    wider = times_too_wide(settings, like, trained, data, net, followed)
    if not wider > WIDER:
        return None
    return (
        "the noise of natural gradients is counted twice: that of the data was learned with it, "
        "and predictions add it to that. Beside the errors that are left, intervals are about "
        f"{wider:.2g} times as wide as they should be; give the noise, e.g. "
        "likelihood=stochens.Homoscedastic(0.1), or use another optimizer, or more data"
    )


def _counted_twice(
    settings: Settings,
    like: Likelihood,
    trained: Trained,
    data: Source,
    net: nn.Module,
    rules: Sequence[Method],
    asked: Asked,
) -> str | None:
    """Whether a learned variance holds the method's noise, which predictions add to it once more.

    A member minimises E_eps[(y - f_eps)^2] / (2 s^2) + log s, whose best s^2 is noise^2 + v with
    v = Var_eps f. Its predictions have the variance s^2 + v = noise^2 + 2 v. Of natural gradients
    alone a share g of s^2 is no noise but the posterior's own variance (width.py).
    """
    noisy = bool(stochastic_layers(net))
    members, rows, draws = SEEN
    x = data.x[:: max(1, len(data.x) // rows)][: min(rows, settings.batch_size)]
    with torch.no_grad(), seeded(0, x.device):
        first = forward(net, take(trained.params, slice(0, 1)), x[:1], engine=settings.engine)
    if draws_of(like, first).scale is None:  # classes, counts
        return None
    said = []
    for k in range(min(members, size(trained.params))):  # one at a time: more may not fit
        own = slice(k, k + 1)
        one, around = take(trained.params, own), None
        if settings.natural is not None and trained.low_rank is not None:
            around = trained.low_rank.take(own)
        with torch.no_grad(), seeded(0, x.device):
            thetas = (params_of_draw(one, around, number, seed=0) for number in range(draws))
            outputs = [forward(net, theta, x, engine=settings.engine) for theta in thetas]
        said.append(draws_of(like, torch.cat(outputs).double()))  # of [draws, B, C]
    if not _learns_scale(like, said):
        return None
    moments = [each.moments() for each in said]  # mean and variance, [draws, B, D]
    # where the scale is drawn too, a few draws of a long tail would be all of its mean
    usual = [v.mean(0) if settings.natural is None else v.median(0).values for _, v in moments]
    shares = [m.var(0) / own for (m, _), own in zip(moments, usual, strict=True)]
    share = float(torch.cat([one.flatten() for one in shares]).nanmedian())
    if share > TWICE and not noisy and like.check_targets(data.y[:1]).dim() == 2:
        ratio = noise_too_small(*asked)
        g = 0.0 if ratio is None else 1 - ratio**-2
        share = (share - g) / max(1 - g * share, 0.1)  # wider^2 is less by (1 - g) / (1 + g)
    if not share > TWICE:
        return None
    wider = math.sqrt((1 + share) / max(1 - share, 0.1))
    names = [rule.name for rule in rules] if noisy else []
    ways = ["method='regular'"] if noisy else []
    if settings.natural is not None:
        names.append("natural gradients")
        ways.append("another optimizer")
    return (
        f"the noise of {' and '.join(names)} is counted twice: it is {share:.0%} of the variance "
        "that was learned as the noise of the data, and predictions add it to that, so that "
        f"intervals are about {wider:.1f} times as wide as they should be and the aleatoric part "
        f"is too large; use {' and '.join(ways)}, or give the noise, e.g. "
        "likelihood=stochens.Homoscedastic(0.1)"
    )


def _learns_scale(like: Likelihood, said: Sequence[Draws]) -> bool:
    """Whether draws have a scale of their own beside their mean, which training has fitted: one
    that is not the same everywhere. A Poisson's variance, say, is its mean."""
    scales = [scale for each in said if (scale := each.scale) is not None]
    if not scales or len(scales) < len(said):
        return False
    every = torch.stack(scales)
    return like.noise_parameter() is not None or bool((every != every.flatten()[0]).any())


def _far_targets(like: Likelihood, y: Tensor) -> str | None:
    if not like.in_units or not y.is_floating_point() or len(y) < 2:
        return None
    columns = y.double().reshape(len(y), -1)  # [N, D]
    columns = columns[~columns.isnan().any(1)]
    if len(columns) < 2:
        return None
    mean, sd = columns.mean(0), columns.std(0)
    worst = int(torch.maximum(mean.abs(), sd).argmax())
    if float(torch.maximum(mean.abs(), sd)[worst]) <= FAR:
        return None
    return (
        f"targets have mean {float(mean[worst]):.3g} and standard deviation {float(sd[worst]):.3g},"
        " which a network takes long to reach; bring them to mean 0 and standard deviation 1 first"
    )
