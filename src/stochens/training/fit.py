"""`fit`: train a stochastic ensemble."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stochens import methods
from stochens.adapter import Output
from stochens.likelihoods import Likelihood
from stochens.members import Builder
from stochens.methods import MethodLike
from stochens.moved import refuse_moved
from stochens.posterior.posterior import Posterior
from stochens.prior import Prior
from stochens.run.options import Run, merge_run
from stochens.run.progress import Show
from stochens.training.auto import Auto, choose_method
from stochens.training.ensemble import train_ensemble
from stochens.training.request import FitRequest, Place, Start
from stochens.training.schedules import Natural, Optimizer, OptimizerOf, as_optimizer
from stochens.training.starts import settle_start


@refuse_moved
def fit(
    net: nn.Module | Builder,
    data: Any,
    *,
    method: MethodLike | Auto | None = None,
    members: int | Sequence[int] = 50,
    epochs: int = 100,
    batch_size: int | None = 128,
    optimizer: str | Optimizer | Natural | OptimizerOf = "adam",
    lr: float | None = None,
    output: Output | None = None,
    likelihood: str | Likelihood = "categorical",
    prior: float | Prior = 1.0,
    kl_weight: float = 1.0,
    start: Place | Start = "reset",
    bootstrap: bool = False,
    validation: Any = None,
    callbacks: Any = None,
    on_divergence: str = "retry",
    seed: int = 0,
    device: str | torch.device | None = None,
    progress: Show = None,
    run: Run = Run(),
) -> Posterior:
    """Train a stochastic ensemble by variational inference, all members in one program.

    Each member minimises  mean NLL + kl_weight * KL / N;  losses are summed over members, so that
    they stay independent.

    net: a function that builds a network (each member its own initialisation, as its author wrote
        it), or a module (each member initialised again through its layers' own resets).
    data: (x [N, ...], y [N]), a Dataset (read once), a DataLoader (streamed: every member sees
        its batches in its order), Replicas: several sets, member k learns from set k mod D, or a
        stream, stochens.Data(stream, size=N): an IterableDataset of torch or Hugging Face, or a
        DataLoader of one (docs: Large data). x may be a dictionary, tuple, list or dataclass of
        tensors [N, ...]: the network is called as net(**x), net(*x) or net(x), as its forward asks.
        A dictionary that holds y as "labels", "label" or "y" will do for (x, y), also as the rows
        or batches of a Dataset or DataLoader, and so will a Hugging Face Dataset.
        stochens.Data(data, target=..., weights=..., augment=...) says what y is called, if it is
        something else, what each row counts, and how batches are changed at random.
    output: what of the network's outputs counts, where they are no one tensor: a name, a place or
        a function. None: their `logits`.
    method: a name, a Method with options, or several that compose, e.g. [Dropout(0.1), Gaussian()].
        Dropout(0.1, skip="head") leaves layers without noise, as every method can.
        None: "dropout" for classes, "regular" for regression, where a learned noise would take in
        a method's own noise and predictions would count it twice (`fit` warns of it).
        "auto" (or Auto with options) runs short trials of the methods first, on a part of the data,
        and takes the one they favour; `posterior.trials` tells.
    members: how many, or which: `members=range(50, 100)` adds to an earlier run of 50.
    batch_size: None for the whole data set. A step counts by its rows, so that a short last batch,
        of a DataLoader too, is not a whole step (training/shares.py).
    optimizer: "adam", "adamw" or "sgd" (Nesterov), with a cosine schedule; or
        stochens.Optimizer(name, schedule=..., weight_decay=..., warmup=..., clip=...,
        accumulate=..., repulsion=...). A function makes one of your own for stacked parameters:
        lambda params: torch.optim.RMSprop(params, lr=0.01). "natural", or
        stochens.Natural with options: every parameter becomes Gaussian, with a sigma that is
        learned by natural gradients (IVON); it goes with every method but "gaussian".
    lr: its first rate; 0.001 when None, and 0.1 for "sgd" and "natural".
    likelihood: "categorical" (one label for each example, pixel or token), "gaussian" (one noise,
        learned), "heteroscedastic" (outputs are the D means, then the D log variances), "binary",
        "multilabel", "poisson" and others (docs: Which likelihood), or an object with options:
        stochens.Categorical(ignore_index=-100). One's own says what it predicts
        (stochens.likelihoods.Likelihood).
    prior: lambda of the prior N(0, 1 / lambda) on all parameters, or
        stochens.Prior(precision, mean=..., scale=..., layers=...), such as Prior(mean="start")
        around weights that are trained already.
    kl_weight: w. 1 is Bayes' rule; another one fits  likelihood^(1 / w) * prior.  `temperature` in
        `sgmcmc` is another thing: (likelihood * prior)^(1 / T).
    start: where members begin. "reset": each its own initialisation; the weights of a module given
        as net are not used. "module": all at the weights of the module given as net, such as a
        trained one. "prior": a draw from it. A module or a state dict: all at those weights. A
        list of them: one for each member. Params [members, ...] or a Posterior, to go on from.
        stochens.Start(one of these, jitter=0.01): a random step away from it. Members that would
        stay alike are refused.
    bootstrap: whether each member has its own resample of the data: N rows drawn with replacement,
        by (seed, member). The likelihood counts N examples as before, those drawn twice twice.
        With weights, rows are drawn with probability w / sum(w), and each counts sum(w) / N.
    validation: data, as above, or a share of the rows (0.1), on which the NLL of each member is
        written down after every epoch (`posterior.history.validation` [E, M]).
        stochens.Validation(data or share, patience=5) stops each member by itself, and gives it
        the state of its best epoch.
    callbacks: a function that is called with a stochens.View after each epoch, a stochens.Callback,
        or a list of them: losses, parameters and predictions of the members as they are then, and
        a way to stop. stochens.TensorBoard(), WandB() and MLflow() are such.
    on_divergence: what becomes of members whose loss or parameters are no numbers any more:
        "retry" (they are trained again from other seeds, three times at most, and then left out;
        by natural gradients each time at a quarter of the rate before),
        "drop" (left out) or "keep". The others are the same in any case.
    device, progress, run: how it runs. stochens.Run has device, precision, engine, checkpoint and
        more; device and progress may stand here as well as there.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> posterior = fit(net, (x, (x[:, 0] > 0).long()), members=4, epochs=2)
    >>> posterior.predict(x).probs.shape
    torch.Size([4, 60, 2])
    """
    request = FitRequest(
        net=net,
        data=data,
        members=members,
        epochs=epochs,
        batch_size=batch_size,
        optimizer=as_optimizer(optimizer),
        lr=lr,
        output=output,
        likelihood=likelihood,
        prior=prior,
        kl_weight=kl_weight,
        start=start,
        bootstrap=bootstrap,
        validation=validation,
        callbacks=callbacks,
        on_divergence=on_divergence,
        seed=seed,
        run=merge_run(run, device=device, progress=progress),
    )
    return fit_by(method, request)


def fit_by(method: MethodLike | Auto | None, request: FitRequest) -> Posterior:
    """By this method, or by the one that short trials favour."""
    if method == "auto" or isinstance(method, Auto):
        auto = method if isinstance(method, Auto) else Auto()
        chosen, trials = choose_method(settle_start(request), auto)
        return dataclasses.replace(train_ensemble(chosen), trials=trials)
    rules = () if method is None else methods.resolve(method)
    request = settle_start(request, rules)
    return train_ensemble(dataclasses.replace(request, method=method))
