"""Said before training starts: what would train, and badly. And after it: a noise that did not
arrive."""

import math
import warnings

import torch
from torch import Tensor

from stochens.likelihoods import LOG_2_PI, Categorical, Likelihood, learned_noise
from stochens.training.loop import Settings, Trained
from stochens.training.schedules import schedule_named

ENOUGH = 0.5  # how far each parameter should be able to move, where weights are of order 1
FEW_STEPS = 100  # of an optimiser whose steps have no largest size
FAR = 10.0  # of targets from 0, and their spread: such ones take long to be reached
ROUNDING = 1e-4  # of probabilities that sum to 1
MEND = "more epochs, a smaller batch_size or a larger lr may be needed"
EPOCHS = 10  # from which on the last one's NLL is that of the parameters at the end
ARRIVED = 0.5  # of the squared error that there should be for the noise that was learned


class TrainingAdvice(UserWarning):
    """Something that would train, and badly."""


def advise(settings: Settings, steps: int, like: Likelihood, y: Tensor, outputs: Tensor) -> None:
    """y [N, ...] are the targets, outputs [B, ...] those of the network as it is at first."""
    for said in (_few_steps(settings, steps), _far_targets(like, y), _softmax(like, outputs)):
        if said is not None:
            warnings.warn(said, TrainingAdvice, stacklevel=3)


def _few_steps(settings: Settings, steps: int) -> str | None:
    if settings.optimizer == "sgd":
        return f"{steps} steps of training are few; {MEND}" if steps < FEW_STEPS else None
    factor = schedule_named(settings.schedule)
    reach = settings.lr * sum(factor(k / 100) for k in range(100)) * steps / 100
    if reach >= ENOUGH:  # Adam's steps are no longer than the rate
        return None
    return (
        f"{steps} steps of training are few: at lr = {settings.lr:g} a parameter moves by "
        f"about {reach:.2g} at most; {MEND}"
    )


def advise_after(
    settings: Settings, steps: int, like: Likelihood, trained: Trained, examples: float
) -> None:
    """A noise that was to be learned begins at 1, and may not have come down to a small one; until
    then predictions are too unsure, however good their mean is."""
    name = learned_noise(like)
    if name is None or len(trained.history.nll) < EPOCHS:
        return
    logs = trained.params[name].double().cpu()  # [M, D]
    left = 2 * trained.history.nll[-1].double().cpu() - (logs + LOG_2_PI).sum(1)  # [M]
    # left = sum_d error_d^2 / noise_d^2; where the gradient is 0 it is this, the prior included
    weight = settings.kl_weight * settings.prior_precision / examples
    due = (1 + 2 * weight * logs).sum(1)
    ratio = max(float((left / due).nanmedian()), 1e-4)  # rounding, where no error is left
    if float(due.min()) > 0 and ratio < ARRIVED:
        warnings.warn(
            f"{steps} steps of training are few: the learned noise is still about "
            f"{math.sqrt(1 / ratio):.1f} times the error that is left, so that predictions are "
            f"too unsure; {MEND}",
            TrainingAdvice,
            stacklevel=3,
        )


def _far_targets(like: Likelihood, y: Tensor) -> str | None:
    if not like.in_units or not y.is_floating_point() or len(y) < 2:
        return None
    columns = y.double().reshape(len(y), -1)  # [N, D]
    mean, sd = columns.mean(0), columns.std(0)
    worst = int(torch.maximum(mean.abs(), sd).argmax())
    if float(torch.maximum(mean.abs(), sd)[worst]) <= FAR:
        return None
    return (
        f"targets have mean {float(mean[worst]):.3g} and standard deviation {float(sd[worst]):.3g},"
        " which a network takes long to reach; bring them to mean 0 and standard deviation 1 first"
    )


def _softmax(like: Likelihood, outputs: Tensor) -> str | None:
    if not isinstance(like, Categorical) or outputs.shape[-1] < 2 or bool((outputs < 0).any()):
        return None
    if float((outputs.double().sum(-1) - 1).abs().max()) > ROUNDING:
        return None
    return (
        "the network's outputs sum to 1: it seems to end in a softmax, which the likelihood "
        "applies again; let it return logits"
    )
