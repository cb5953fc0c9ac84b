"""`fit`: everything that is checked, chosen and prepared before the loop, and what comes of it."""

import contextlib
import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stochens import likelihoods, methods
from stochens.auto import Auto, fit_best
from stochens.blocks import in_blocks, report_lost, tried_again, without_lost
from stochens.checkpoints import (
    EVERY,
    Checkpoints,
    Keeper,
    alone_in,
    as_read,
    digest,
    stoppable,
)
from stochens.checks import check_network, positive, probe_outputs, whole, whole_or_none
from stochens.cluster.connect import Engines, Ray, asked
from stochens.cluster.folder import refuse_url
from stochens.data.source import Source, source
from stochens.errors import InputError
from stochens.joining import join_posteriors
from stochens.kernels.fused import fused_nll
from stochens.likelihoods import Likelihood
from stochens.machines import checked_here, home, over_machines
from stochens.members import (
    Builder,
    Engine,
    Factory,
    Params,
    builder,
    forward,
    init,
    init_from_prior,
    move,
    take,
    trainable,
)
from stochens.memory import member_bytes, members_that_fit
from stochens.methods import MethodLike, output_layer, stochastic, stochastic_layers
from stochens.posterior import Posterior
from stochens.progress import Log, Show, log_to, progress_bar
from stochens.randomness import RETRY, SECOND_SET, derive, seeded
from stochens.recipe import Inputs, Recipe, described
from stochens.schedules import rate_for, schedule_named
from stochens.train import Collector, Settings, Trained, steps_per_epoch, train

ENGINES = ("auto", "fused", "compile", "vmap", "loop")


def fit(
    net: nn.Module | Builder,
    data: Any,
    *,
    method: MethodLike | Auto = "dropout",
    members: int | Sequence[int] = 50,
    sample_weight: Any = None,
    epochs: int = 100,
    batch_size: int | None = 128,
    optimizer: str = "adam",
    lr: float | None = None,
    schedule: str = "cosine",
    weight_decay: float = 0.0,
    prior_precision: float = 1.0,
    temperature: float = 1.0,
    likelihood: str | Likelihood = "categorical",
    skip: str | Sequence[str] = (),
    start: str | Params = "default",
    repulsion: float | None = None,
    lost: str = "retry",
    seed: int = 0,
    device: str | torch.device | None = None,
    bf16: bool = False,
    chunk: int | None = None,
    engine: Engines = "auto",
    progress: Show = None,
    log: str | Log | None = None,
    collect: Callable[[], Collector] | None = None,
    checkpoint: str | Path | None = None,
    checkpoint_every: float = EVERY,
) -> Posterior:
    """Train a stochastic ensemble by variational inference, all members in one program.

    Each member minimises  mean NLL + temperature * KL / N;  losses are summed over members, so that
    they stay independent.

    net: a function that builds a network (each member its own initialisation, as its author wrote
        it), or a module (each member initialised again through its layers' own resets).
    data: (x [N, ...], y [N]), a Dataset (read once), a DataLoader (streamed: every member sees
        its batches in its order), or Replicas: several sets, member k learns from set k mod D.
    method: a name, a Method with options, or several that compose, e.g. [Dropout(0.1), Gaussian()].
        "auto" (or Auto with options) runs short trials of the methods first, on a part of the data,
        and takes the one they favour; `posterior.trials` tells.
    members: how many, or which: `members=range(50, 100)` adds to an earlier run of 50.
    sample_weight: [N], not negative: a row of weight w counts as w equal rows, so N becomes their
        sum; batches are drawn row by row whatever the weights. Kernels do not serve it.
    batch_size: None for the whole data set.
    optimizer: "adam", "adamw" or "sgd" (Nesterov). schedule: "cosine", "step" (divided by 10 at 1/2
        and 3/4, with a fresh optimiser) or "constant". weight_decay: on top of the prior's L2.
    prior_precision: lambda of the prior N(0, 1 / lambda) on all parameters.
    likelihood: "categorical", "gaussian" (one noise, learned), "heteroscedastic", or an object.
    skip: name patterns of layers that get no noise.
    start: "default", "prior" (a draw from it), or Params to go on from.
    repulsion: sigma of the repulsive force between members; None for none (its value at machine
        precision). It couples the members.
    lost: what becomes of members whose loss or parameters are no numbers any more: "retry" (they
        are trained again from other seeds, three times at most, and then left out), "drop" (left
        out) or "keep". The others are the same in any case.
    chunk: members trained together; chosen by the memory that is free when None.
    engine: "auto", "fused" (a compiled kernel for small MLPs on a CPU), "compile" (vmap through
        torch.compile: a minute to begin with, and then the fastest for large networks on a GPU),
        "vmap" or "loop"; "ray" or Ray(address, ...) for blocks of members on many machines, the
        same as on one (docs/cluster.md), where `chunk` is the size of a block.
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
    if isinstance(method, Auto) or method == "auto":
        rest = {k: v for k, v in options.items() if k not in ("net", "data", "method")}
        whole(epochs=epochs)  # before the trials
        member_ids(members)
        return fit_best(fit, net, data, method if isinstance(method, Auto) else Auto(), rest)
    ids, seed = member_ids(members), int(seed)
    cluster = asked(engine)
    way = cluster.within if cluster is not None else str(engine)
    whole(epochs=epochs)
    whole_or_none(batch_size=batch_size, chunk=chunk)
    positive(prior_precision=prior_precision)
    if not 0 <= temperature < math.inf:
        raise InputError(f"temperature must not be negative, got {temperature!r}")
    if repulsion is not None:
        positive(repulsion=repulsion)
    if lost not in ("retry", "drop", "keep"):
        raise InputError(f"lost must be 'retry', 'drop' or 'keep', got {lost!r}")
    if cluster is None:
        refuse_url(checkpoint)
    elif repulsion is not None or log is not None:
        what = (
            "repulsion couples all members" if repulsion is not None else "log is for one machine"
        )
        raise InputError(f"{what}, and cannot go with engine='ray'")
    rules = tuple(methods.resolve(method))
    like = likelihoods.resolve(likelihood)
    place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if bf16 and place.type != "cuda" and (cluster is None or device is not None):
        raise InputError(f"bf16 is for CUDA, got device {place.type!r}")
    if cluster is not None:
        place = torch.device("cpu")  # of what is checked here; blocks have places of their own
    schedule_named(schedule)
    rate = rate_for(optimizer, lr)

    given = source(data, sample_weight)
    y = like.check_targets(given.y)
    build = builder(net)
    with seeded(derive(seed)):
        plain = build()
    check_network(plain)
    if given.loader is not None and way == "compile":
        raise InputError("engine='compile' needs the data in memory, not a DataLoader")
    plain = like.prepare(plain, y)
    few = given.x[:4].cpu()
    like.check_outputs(probe_outputs(plain, few), y)
    patterns = (skip,) if isinstance(skip, str) else tuple(skip)
    recipe = Recipe(methods=rules, skip=patterns, output=output_layer(plain, few))
    template = stochastic(plain, rules, skip=recipe.skip, output=recipe.output)

    prepared = build.then(lambda net: like.prepare(net, y))
    here = checked_here(ids, start, cluster)
    params = _start(template, prepared, start, here, seed, prior_precision)
    chosen = _choose_engine(way, template, params, few)
    batch = min(batch_size or given.size, given.size)
    settings = Settings(
        epochs=epochs,
        batch_size=batch,
        optimizer=optimizer,
        lr=rate,
        weight_decay=weight_decay,
        schedule=schedule,
        prior_precision=prior_precision,
        temperature=temperature,
        repulsion=repulsion,
        seed=seed,
        device=place,
        bf16=bf16,
        engine=chosen,
        fast=way in ("auto", "fused", "compile"),
        compile=way == "compile",
    )
    if cluster is not None:
        each = member_bytes(template, few, batch_size=batch)
        return _on_machines(cluster, options, ids, chunk, each)
    together = _size_kept(checkpoint, ids, chunk) or chunk
    together = together or members_that_fit(template, few, batch_size=batch, device=place)
    if repulsion is not None and together < len(ids):
        raise InputError(
            f"repulsion couples all {len(ids)} members, but only {together} fit into memory at "
            "once; use fewer members or a smaller batch_size"
        )
    template.to(place)
    weights = None if given.weights is None else given.weights.to(place)
    on_device = given._replace(x=given.x.to(place), y=y.to(place), weights=weights)
    if way == "fused" and weights is not None:
        raise InputError("engine='fused' knows no sample_weight; use engine='auto'")
    if way == "fused" and fused_nll(template, like, on_device.x, y, ids, seed) is None:
        raise InputError(
            "engine='fused' runs chains of small Linear layers and activations on a CPU with a C++ "
            "compiler, not this network; use engine='auto'"
        )
    write_log = log_to(log)  # last, since a logger writes files as soon as it exists
    step_count = settings.epochs * steps_per_epoch(on_device, settings)
    identity = _identity(settings, template, like, recipe, on_device) if checkpoint else {}
    with contextlib.ExitStack() as held:
        stop = _held(checkpoint, held)
        total = step_count * len(ids)
        bar = held.enter_context(progress_bar("training", total=total, show=progress))

        def block(part: Params, own: tuple[int, ...], *, seed: int = seed, name: str) -> Trained:
            watch = collect() if collect else None
            kept, whose = None, identity
            if checkpoint is not None:
                kept = Checkpoints(Path(checkpoint) / name, FORMAT, every=checkpoint_every)
                whose = identity | _of_block(part, own, watch)
            return train(
                template,
                move(part, place),
                on_device,
                like,
                own,
                dataclasses.replace(settings, seed=seed),
                watch,
                bar,
                write_log,
                Keeper(kept, whose, stop),
            )

        trained = in_blocks(block, params, ids, together, coupled=repulsion is not None)
        if lost == "retry" and isinstance(start, str) and repulsion is None:

            def once_more(own: tuple[int, ...], attempt: int) -> Trained:
                anew = derive(seed, RETRY, attempt)
                fresh = _start(template, prepared, start, own, anew, prior_precision)
                once = functools.partial(block, seed=anew)
                return in_blocks(once, fresh, own, together, prefix=f"again-{attempt}-")

            trained = tried_again(trained, ids, once_more)
    if trained.lost:
        report_lost(trained.lost, ids, "kept as they are" if lost == "keep" else "left out")
    if lost != "keep":
        trained, ids = without_lost(trained, ids)
    return Posterior(
        net=template.eval(),
        params=trained.params,
        likelihood=like,
        recipe=recipe,
        members=ids,
        data_size=given.size,
        prior_precision=prior_precision,
        seed=seed,
        history=trained.history,
        spread=trained.spread,
        engine=chosen,
        inputs=Inputs.of(given.x),
    )


FORMAT = "stochens training 1"


def _on_machines(
    cluster: Ray, options: dict[str, Any], ids: tuple[int, ...], chunk: int | None, each: int
) -> Posterior:
    """The same call in blocks; each finds its checkpoints under its own name."""
    blocks = over_machines(cluster, fit, options, ids, size=chunk, bytes_each=each)
    return join_posteriors(blocks).to(home(options["device"]))


def _held(
    checkpoint: str | Path | None, held: contextlib.ExitStack
) -> Callable[[], BaseException | None]:
    """The checkpoint folder is ours alone, and signals wait for the end of a step."""
    if checkpoint is None:
        return lambda: None
    held.enter_context(alone_in(checkpoint))
    return held.enter_context(stoppable())


def _size_kept(
    checkpoint: str | Path | None, ids: tuple[int, ...], chunk: int | None
) -> int | None:
    """Of the blocks that are kept there: memory may be another now, and noise is drawn by block."""
    for path in sorted(Path(checkpoint).glob("members-*/0*")) if checkpoint else ():
        first, last = (int(word) for word in path.parent.name.split("-")[1:])
        if first in ids and last in ids:
            size = ids.index(last) - ids.index(first) + 1
            if chunk not in (None, size) and size < len(ids):
                raise InputError(
                    f"{checkpoint} holds blocks of {size} members, which cannot go on in blocks of "
                    f"chunk = {chunk}; leave chunk out, or choose another folder"
                )
            return size if chunk is None else chunk
    return None


def _identity(
    settings: Settings, template: nn.Module, like: Likelihood, recipe: Recipe, data: Source
) -> dict[str, Any]:
    """What a training that goes on must share with the one before it; how it is run is no part."""
    plain = dataclasses.asdict(settings)
    for how in ("device", "fast", "compile"):
        del plain[how]
    own = trainable(template)
    shared = {n: t for n, t in template.state_dict().items() if n not in own}
    in_memory = {"x": data.x, "y": data.y} if data.loader is None else {}
    if data.weights is not None:
        in_memory["weights"] = data.weights
    if data.total is not None:
        in_memory["total"] = torch.tensor(data.total, dtype=torch.float64)
    return as_read(
        {
            **plain,
            "network": str(template),
            "shared": digest(shared),
            "methods": [described(method) for method in recipe.methods],
            "likelihood": described(like),
            "data": digest(in_memory),
        }
    )


def _of_block(part: Params, own: tuple[int, ...], watch: Collector | None) -> dict[str, Any]:
    """Likewise, of a block of members."""
    collected = {} if watch is None else watch.settings()
    return as_read({"members": own, "start": digest(part), "averages": collected})


def member_ids(members: int | Sequence[int], which: str = "members") -> tuple[int, ...]:
    count = isinstance(members, Integral)  # numpy's integers too
    ids = tuple(range(int(members)) if count else map(int, members))  # type: ignore[arg-type]
    if not ids:
        raise InputError(f"{which} must be at least 1, got {members!r}")
    if min(ids) < 0 or len(set(ids)) < len(ids):
        raise InputError(f"{which[:-1]} ids must be distinct and not negative, got {list(ids)}")
    return ids


def _start(
    template: nn.Module,
    build: Factory,
    start: str | Params,
    ids: tuple[int, ...],
    seed: int,
    precision: float,
) -> Params:
    """omega at step 0, [M, ...]."""
    if not isinstance(start, str):
        return _given_start(template, start, ids)
    if start not in ("default", "prior"):
        raise InputError(f"start must be 'default', 'prior' or Params, got {start!r}")
    first = init(build, members=ids, seed=seed)
    second: Params = {}
    if any(layer.needs_second_set for layer in _all_layers(template)):
        second = init(build, members=ids, seed=seed, purpose=SECOND_SET)
    if start == "prior":
        sd = precision**-0.5
        first = init_from_prior(first, members=ids, seed=seed, sd=sd)
        second = init_from_prior(second, members=ids, seed=derive(seed, SECOND_SET), sd=sd)
    return methods.start(template, first, second)


def _all_layers(net: nn.Module) -> Iterator[methods.StochasticLayer]:
    for layer in stochastic_layers(net).values():
        yield layer
        if isinstance(layer.inner, methods.StochasticLayer):
            yield layer.inner


def _given_start(template: nn.Module, start: Params, ids: tuple[int, ...]) -> Params:
    for name, p in trainable(template).items():
        want = (len(ids), *p.shape)
        got = tuple(start[name].shape) if name in start else "absent"
        if got != want:
            raise InputError(f"start: parameter {name!r} must be {want}, got {got}")
    return {name: start[name].detach().cpu() for name in trainable(template)}


def _choose_engine(engine: str, template: nn.Module, params: Params, few: Tensor) -> Engine:
    if engine not in ENGINES:
        raise InputError(f"engine must be one of {', '.join(ENGINES)}, ray, got {engine!r}")
    if engine == "loop":
        return "loop"
    two = take(params, slice(0, 2))
    try:
        with torch.no_grad(), seeded(0):
            forward(template, two, few)
    except RuntimeError as error:
        if engine != "auto":
            raise InputError(f"vmap cannot run this network: {error}") from error
        reason = str(error).splitlines()[0]
        warnings.warn(
            f"members run one after the other, since vmap cannot run this network ({reason}); "
            "engine='loop' says that you know",
            stacklevel=3,
        )
        return "loop"
    return "vmap"
