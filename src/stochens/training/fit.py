"""`fit`: everything that is checked, chosen and prepared before the loop, and what comes of it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stochens import likelihoods, methods
from stochens.checks import (
    member_ids,
    not_negative,
    positive,
    refuse_renamed,
    whole,
    whole_or_none,
    whole_seed,
)
from stochens.data import Source, source, weighting
from stochens.errors import InputError, Unsuited
from stochens.kernels.fused import fused_nll
from stochens.likelihoods import Likelihood
from stochens.members import Builder, Params, take, trainable
from stochens.methods import MethodLike, output_layer, stochastic
from stochens.methods.partial import warn_partial
from stochens.posterior.joining import join_posteriors
from stochens.posterior.posterior import Posterior
from stochens.posterior.recipe import Inputs, Recipe
from stochens.run.checkpoints import EVERY
from stochens.run.cluster.connect import Engines, Ray, ray_engine
from stochens.run.cluster.folder import refuse_url
from stochens.run.memory import member_bytes, members_that_fit
from stochens.run.progress import Log, Show, log_to
from stochens.training.advice import advise, advise_after, usual_method
from stochens.training.alike import refuse_alike, warn_alike
from stochens.training.auto import Auto, fit_best
from stochens.training.blocks import drop_diverged, warn_diverged
from stochens.training.engines import choose_engine, place_for
from stochens.training.folder import identity, saved_block_size
from stochens.training.loop import Collector, Settings, all_at_once
from stochens.training.machines import local_device, members_to_check, over_machines
from stochens.training.network import build_network
from stochens.training.schedules import rate_for, schedule_named
from stochens.training.starts import first_params, refuse_other_shapes, start_network
from stochens.training.work import Work


def fit(
    net: nn.Module | Builder,
    data: Any,
    *,
    method: MethodLike | Auto | None = None,
    members: int | Sequence[int] = 50,
    sample_weight: Any = None,
    epochs: int = 100,
    batch_size: int | None = 128,
    optimizer: str = "adam",
    lr: float | None = None,
    schedule: str = "cosine",
    weight_decay: float = 0.0,
    prior_precision: float = 1.0,
    kl_weight: float = 1.0,
    likelihood: str | Likelihood = "categorical",
    skip: str | Sequence[str] = (),
    start: str | Params = "default",
    repulsion: float | None = None,
    on_divergence: str = "retry",
    seed: int = 0,
    device: str | torch.device | None = None,
    bf16: bool | None = None,
    chunk: int | None = None,
    engine: Engines = "auto",
    progress: Show = None,
    log: str | Log | None = None,
    collect: Callable[[], Collector] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY,
    temperature: None = None,
) -> Posterior:
    """Train a stochastic ensemble by variational inference, all members in one program.

    Each member minimises  mean NLL + kl_weight * KL / N;  losses are summed over members, so that
    they stay independent.

    net: a function that builds a network (each member its own initialisation, as its author wrote
        it), or a module (each member initialised again through its layers' own resets).
    data: (x [N, ...], y [N]), a Dataset (read once), a DataLoader (streamed: every member sees
        its batches in its order), or Replicas: several sets, member k learns from set k mod D.
    method: a name, a Method with options, or several that compose, e.g. [Dropout(0.1), Gaussian()].
        None: "dropout" for classes, "regular" for regression, where a learned noise would take in
        a method's own noise and predictions would count it twice (`fit` warns of it).
        "auto" (or Auto with options) runs short trials of the methods first, on a part of the data,
        and takes the one they favour; `posterior.trials` tells.
    members: how many, or which: `members=range(50, 100)` adds to an earlier run of 50.
    sample_weight: [N], not negative: a row of weight w counts as w equal rows, so N becomes their
        sum; batches are drawn row by row whatever the weights. Kernels do not serve it.
    batch_size: None for the whole data set. A step counts by its rows, so that a short last batch,
        of a DataLoader too, is not a whole step (training/shares.py).
    optimizer: "adam", "adamw" or "sgd" (Nesterov). schedule: "cosine", "step" (divided by 10 at 1/2
        and 3/4, with a fresh optimiser) or "constant". weight_decay: on top of the prior's L2.
    prior_precision: lambda of the prior N(0, 1 / lambda) on all parameters.
    kl_weight: w. 1 is Bayes' rule; another one fits  likelihood^(1 / w) * prior.  `temperature` in
        `sgmcmc` is another thing: (likelihood * prior)^(1 / T).
    likelihood: "categorical", "gaussian" (one noise, learned), "heteroscedastic" (outputs are the D
        means, then the D log variances), or an object: one's own says what it predicts
        (stochens.likelihoods.Likelihood).
    skip: name patterns of layers that get no noise.
    start: "default", "prior" (a draw from it), "module" (all members at the weights of the module
        given as net, such as a trained one), or Params [members, ...] to go on from. Members that
        would stay alike are refused.
    repulsion: sigma of the repulsive force between members; None for none (its value at machine
        precision). It couples the members.
    on_divergence: what becomes of members whose loss or parameters are no numbers any more:
        "retry" (they are trained again from other seeds, three times at most, and then left out),
        "drop" (left out) or "keep". The others are the same in any case.
    bf16: the network in bfloat16, on CUDA; parameters, loss and optimiser stay as they are. None:
        only where ResNet20FRN's kernels serve (a Hopper GPU, data in memory, no sample_weight,
        engine="auto"), which know no other; False or STOCHENS_KERNELS=off in the environment is
        without them.
    chunk: members trained together; chosen by the memory that is free when None.
    engine: "auto", "fused" (a compiled kernel for small MLPs on a CPU), "compile" (vmap through
        torch.compile, needs torch 2.11: a minute to begin with, and then the fastest for large
        networks on a GPU), "vmap" or "loop"; "ray" or Ray(address, ...) for blocks of members on
        many machines, the same as on one (docs/cluster.md), where `chunk` is the size of a block.
    log: a function (epoch, values), "tensorboard[:DIR]" or "wandb[:PROJECT]".
    checkpoint: a folder to save the training in, every `checkpoint_every` seconds and when Ctrl-C
        or SIGTERM ends it. The same call finds it there and goes on, to the same end. With Ray,
        a folder that all machines reach, or a URL such as s3://BUCKET/RUN.

    >>> x = torch.randn(60, 2, generator=torch.Generator().manual_seed(0))
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> posterior = fit(net, (x, (x[:, 0] > 0).long()), members=4, epochs=2)
    >>> posterior.predict(x).probs.shape
    torch.Size([4, 60, 2])
    """
    options = dict(locals())
    refuse_renamed(options, "fit", temperature="kl_weight")
    if isinstance(method, Auto) or method == "auto":
        return _after_trials(method if isinstance(method, Auto) else Auto(), options)
    ids, seed, cluster = member_ids(members), whole_seed(seed), ray_engine(engine)
    way = cluster.within if cluster is not None else str(engine)
    _refuse_bad(options, cluster)
    like = likelihoods.resolve(likelihood)
    rules = tuple(methods.resolve(usual_method(like) if method is None else method))
    place = place_for(device, bf16, cluster)
    schedule_named(schedule)
    rate = rate_for(optimizer, lr)

    given = source(data, sample_weight)
    y = like.check_targets(given.y)
    if given.loader is not None and way == "compile":
        raise InputError("engine='compile' needs the data in memory, not a DataLoader")
    plain, build, few, outputs = build_network(start_network(net, start), like, given.x, y, seed)
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    recipe = Recipe(methods=rules, skip=patterns, output=output_layer(plain, few))
    template = stochastic(plain, rules, skip=recipe.skip, output=recipe.output)
    warn_partial(template, rules, few, skip=recipe.skip, output=recipe.output)

    if not isinstance(start, str):
        refuse_other_shapes(start, trainable(template), len(ids))

    def first(own: tuple[int, ...], seed: int) -> Params:
        begun = start if isinstance(start, str) else take(start, [ids.index(k) for k in own])
        return first_params(template, build, begun, own, seed, prior_precision)

    params = first(members_to_check(ids, start, cluster)[:2], seed)  # to try the network with
    batch = min(batch_size or given.size, given.size)
    own_rows = given.loader is None and not all_at_once(given, batch)
    settings = Settings(
        epochs=epochs,
        batch_size=batch,
        optimizer=optimizer,
        lr=rate,
        weight_decay=weight_decay,
        schedule=schedule,
        prior_precision=prior_precision,
        kl_weight=kl_weight,
        repulsion=repulsion,
        seed=seed,
        device=place,
        bf16=bf16,
        engine=choose_engine(way, template, params, few, own_rows=own_rows),
        fast=way in ("auto", "fused", "compile"),
        compile=way == "compile",
    )
    if not own_rows or batch >= given.size:
        own = ids[: given.sets + 1] if isinstance(start, str) else ids  # two of them share a set
        refuse_alike(template, first(own, seed), few, own, rows=given.size, sets=given.sets)
    at_once = batch if given.loader is None else len(given.x)  # a loader has batches of its own
    if cluster is not None:
        each = member_bytes(template, few, batch_size=at_once)
        return _on_machines(cluster, options, ids, chunk, each)
    together = saved_block_size(checkpoint, ids, chunk) or chunk
    together = together or members_that_fit(template, few, batch_size=at_once, device=place)
    if repulsion is not None and together < len(ids):
        raise InputError(
            f"repulsion couples all {len(ids)} members, but only {together} fit into memory at "
            "once; use fewer members or a smaller batch_size"
        )

    template.to(place)
    on_device = given._replace(y=y).to(place)
    if way == "fused":
        _refuse_unfused(template, like, on_device, ids, seed)
    write_log = log_to(log)  # last, since a logger writes files as soon as it exists
    work = Work(
        template=template,
        data=on_device,
        likelihood=like,
        settings=settings,
        together=together,
        collect=collect,
        checkpoint=checkpoint,
        every=checkpoint_every,
        whose=identity(settings, template, like, recipe, on_device) if checkpoint else {},
    )
    if start in ("default", "prior"):  # who goes on from somewhere may need a few steps only
        advise(settings, work.steps, like, y, outputs)
    del params
    again = on_divergence == "retry" and isinstance(start, str) and repulsion is None
    trained = work.done(first, ids, again=again, progress=progress, log=write_log)
    if trained.lost:
        warn_diverged(
            trained.lost, ids, "kept as they are" if on_divergence == "keep" else "left out"
        )
    if on_divergence != "keep":
        trained, ids = drop_diverged(trained, ids)
    if not (trained.lost and on_divergence == "keep"):
        warn_alike(trained.params, ids)
    advise_after(settings, work.steps, like, trained, on_device, template.eval(), rules)
    return Posterior(
        net=template,
        params=trained.params,
        likelihood=like,
        recipe=recipe,
        members=ids,
        data_size=int(given.examples) if given.examples.is_integer() else given.examples,
        sample_weight=weighting(sample_weight),
        prior_precision=prior_precision,
        seed=seed,
        history=trained.history,
        low_rank=trained.low_rank,
        engine=settings.engine,
        inputs=Inputs.of(given.x),
    )


def _after_trials(auto: Auto, options: dict[str, Any]) -> Posterior:
    """By the method that short trials favour."""
    whole(epochs=options["epochs"])  # before the trials
    member_ids(options["members"])
    if ray_engine(options["engine"]) is None:
        refuse_url(options["checkpoint"])
    rest = {k: v for k, v in options.items() if k not in ("net", "data", "method")}
    return fit_best(fit, options["net"], options["data"], auto, rest)


def _refuse_bad(options: dict[str, Any], cluster: Ray | None) -> None:
    """What is out of its range, or does not go together."""

    def named(*names: str) -> dict[str, Any]:
        return {name: options[name] for name in names}

    whole(**named("epochs"))
    whole_or_none(**named("batch_size", "chunk"))
    positive(**named("prior_precision"))
    not_negative(**named("kl_weight", "weight_decay"))
    every, repulsion, on_divergence = (
        options[name] for name in ("checkpoint_every", "repulsion", "on_divergence")
    )
    if not every >= 0:
        raise InputError(f"checkpoint_every must not be negative, got {every!r}")
    if repulsion is not None:
        positive(repulsion=repulsion)
    if on_divergence not in ("retry", "drop", "keep"):
        raise InputError(f"on_divergence must be 'retry', 'drop' or 'keep', got {on_divergence!r}")
    if cluster is None:
        refuse_url(options["checkpoint"])
    elif repulsion is not None:
        raise InputError("repulsion couples all members, and cannot go with engine='ray'")
    elif options["log"] is not None:
        raise InputError("log is for one machine, and cannot go with engine='ray'")


def _refuse_unfused(
    template: nn.Module, like: Likelihood, data: Source, ids: tuple[int, ...], seed: int
) -> None:
    if data.weights is not None:
        raise InputError("engine='fused' knows no sample_weight; use engine='auto'")
    if fused_nll(template, like, data.x, data.y, ids, seed) is None:
        raise Unsuited(
            "engine='fused' runs chains of small Linear layers and activations on a CPU with a C++ "
            "compiler, not this network; use engine='auto'"
        )


def _on_machines(
    cluster: Ray, options: dict[str, Any], ids: tuple[int, ...], chunk: int | None, each: int
) -> Posterior:
    """The same call in blocks; each finds its checkpoints under its own name."""
    blocks = over_machines(cluster, fit, options, ids, size=chunk, bytes_each=each)
    return join_posteriors(blocks).to(local_device(options["device"]))
