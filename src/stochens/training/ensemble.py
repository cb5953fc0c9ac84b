"""`train_ensemble`: what is checked, chosen and prepared before the loop, and what comes of it."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens import likelihoods, methods
from stochens.data import Source, source, weighting
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import Params, take, trainable
from stochens.methods import output_layer, stochastic, stochastic_layers
from stochens.methods.partial import warn_partial
from stochens.posterior.joining import join_posteriors
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.posterior import Posterior
from stochens.posterior.recipe import Inputs, Recipe
from stochens.prior import Centred, resolve, warn_unknown_fan_in
from stochens.program.data_term import InMemory, refuse_unfused
from stochens.program.features import keep_features
from stochens.randomness.seeds import seeded
from stochens.run.memory import member_bytes, members_that_fit
from stochens.run.options import matmul_precision
from stochens.run.progress import log_to
from stochens.training.advice import advise, advise_after
from stochens.training.alike import ROWS, refuse_alike, warn_alike, warn_nearly_alike
from stochens.training.augmented import refuse_augment
from stochens.training.batches import all_at_once
from stochens.training.blocks import drop_diverged, warn_diverged
from stochens.training.bootstrap import resampled
from stochens.training.callbacks import Callbacks
from stochens.training.engines import choose_engine, place_for
from stochens.training.folder import identity, own_identity, saved_block_size
from stochens.training.machines import local_device, members_to_check, over_machines
from stochens.training.network import adapt_network, build_network
from stochens.training.own_optimizer import refuse_mixing
from stochens.training.request import FitRequest
from stochens.training.schedules import Natural, rate_for
from stochens.training.starts import (
    complete_params,
    first_params,
    jittered,
    start_adapters,
    start_network,
)
from stochens.training.task import HeldOut, Settings, Task
from stochens.training.validation import held_out
from stochens.training.work import First, Work
from stochens.trees import Input, describe, floating_dtype, form, with_dtype


def train_ensemble(request: FitRequest) -> Posterior:
    """The ensemble that is asked for, trained on this machine or in blocks on many."""
    if request.run.cluster is None:
        return train_here(request)
    ready = _prepare(request)
    asked = request.full_prior
    given = asked is not None and asked.has_means and not asked.needs_start
    if given and ready.prior is not None and ready.prior(request.ids, request.seed).differs:
        raise InputError(
            "a prior's mean for each member is for one machine: blocks on several have some of the "
            "members each; give one mean for all"
        )
    each = member_bytes(ready.template, ready.few, batch_size=ready.at_once)
    blocks = over_machines(
        request.run.cluster, train_here, request, size=request.run.chunk, bytes_each=each
    )
    return join_posteriors(blocks).to(local_device(request.run.device))


class _Prepared(NamedTuple):
    """A request that was found to be right, on the CPU."""

    template: nn.Module  # the stochastic network
    recipe: Recipe
    likelihood: Likelihood
    data: Source
    few: Input  # rows of x
    outputs: Tensor  # of the plain network there
    settings: Settings
    first: First  # where members begin
    prior: Callable[[tuple[int, ...], int], Centred] | None  # as a Task has it
    at_once: int  # rows of a batch
    held: Source | None  # to validate on


def _prepare(request: FitRequest) -> _Prepared:
    """Check everything that can be checked before the first step."""
    run, ids = request.run, request.ids
    start: Any = request.start  # a name or Params, by `settle_start`
    like = likelihoods.resolve(request.likelihood)
    method = like.usual_method if request.method is None else request.method
    rules = tuple(methods.resolve(method))
    place = place_for(run)

    given = _cast(source(request.data, batch_size=request.batch_size), like, request)
    held = None
    if request.validation is not None:
        given, held = held_out(given, request.validation, int(request.seed))
        held = _cast(held, like, request)
    if request.bootstrap:
        given = resampled(given)
    if given.loader is not None and run.way == "compile":
        raise InputError("engine='compile' needs the data in memory, not a DataLoader")
    if given.augment is not None:
        refuse_augment(given, like, run.way)
    target, asked = request.given.target, request.full_prior
    net, last = request.net, None
    if any(rule.freezes for rule in rules):
        net, last = adapt_network(
            net,
            rules,
            given.x,
            request.seed,
            output=request.output,
            target=target,
        )
    begun_as_is = any(rule.begins_at_module for rule in rules)
    net = start_adapters(net) if begun_as_is else start_network(net, start)
    plain, build, few, outputs, calling = build_network(
        net,
        like,
        given.x,
        given.y,
        request.seed,
        dtype=run.dtype,
        output=request.output,
        target=target,
    )
    if held is not None:
        _refuse_other_data(plain, like, held)
    last = last or output_layer(plain, few)
    recipe = Recipe(methods=rules, output=last, calling=calling)
    template = stochastic(plain, rules, output=recipe.output)
    warn_partial(template, rules, few, output=recipe.output)

    if not isinstance(start, str):
        start = complete_params(start, template, len(ids), like.adds())
    wanted = {name: p.dtype for name, p in trainable(template).items()}
    needs_start = asked is not None and asked.needs_start
    if asked is not None:
        warn_unknown_fan_in(asked, template)

    def prior(own: tuple[int, ...], seed: int) -> Centred:
        assert asked is not None
        begun = unmoved(own, seed) if needs_start else {}
        rows = [ids.index(k) for k in own]
        return resolve(asked, template, begun, rows=rows, members=len(ids))

    def unmoved(own: tuple[int, ...], seed: int) -> Params:
        begun = start if isinstance(start, str) else take(start, [ids.index(k) for k in own])
        of_prior = asked is not None and isinstance(start, str) and start == "prior"
        drawn_from = prior(own, seed) if of_prior else request.prior_precision
        return first_params(template, build, begun, own, seed, drawn_from, like.adds())

    def first(own: tuple[int, ...], seed: int) -> Params:
        params = jittered(unmoved(own, seed), template, own, seed=seed, size=request.jitter)
        if run.dtype is None:
            return params
        return {name: p.to(wanted[name]) for name, p in params.items()}

    if asked is not None:  # a pattern or a mean that does not fit is refused here
        prior(ids[:1], request.seed)
    two = first(members_to_check(ids, start, run.cluster)[:2], request.seed)
    own_optimizer = None if isinstance(request.optimizer.name, str) else request.optimizer.name
    if own_optimizer is not None:
        refuse_mixing(own_optimizer, two, kept=run.checkpoint is not None)
    batch = min(request.batch_size or given.size, given.size)
    own_rows = given.loader is None and not all_at_once(given, batch)
    settings = Settings(
        epochs=request.epochs,
        batch_size=batch,
        optimizer=request.optimizer.kind,
        own=own_optimizer,
        lr=rate_for(request.optimizer.kind, request.lr),
        weight_decay=request.optimizer.weight_decay,
        schedule=request.optimizer.schedule,
        warmup=request.optimizer.warmup,
        clip=request.optimizer.clip,
        accumulate=request.optimizer.accumulate,
        natural=request.optimizer if isinstance(request.optimizer, Natural) else None,
        prior_precision=request.prior_precision,
        kl_weight=request.kl_weight,
        repulsion=request.optimizer.repulsion,
        seed=int(request.seed),
        device=place,
        bf16=run.bf16,
        tf32=run.tf32,
        engine=choose_engine(
            run.way,
            template,
            two,
            few,
            own_rows=own_rows,
            on_gpu=place.type == "cuda",
        ),
        fast=run.way in ("auto", "fused", "compile"),
        compile=run.way == "compile",
    )
    own_resample = request.bootstrap and given.size > 1
    if (not own_rows or batch >= given.size) and not own_resample:
        own = ids[: given.sets + 1] if isinstance(start, str) else ids  # two of them share a set
        begun = first(own, request.seed)
        refuse_alike(template, begun, few, own, rows=given.size, sets=given.sets)
    at_once = batch if given.loader is None else len(given.x)  # a loader has batches of its own
    prior_of = None if asked is None else prior
    return _Prepared(
        template, recipe, like, given, few, outputs, settings, first, prior_of, at_once, held
    )


def _cast(given: Source, like: Likelihood, request: FitRequest) -> Source:
    """The data with targets as the likelihood wants them, in the precision that is asked for."""
    dtype, y = request.run.dtype, like.check_targets(given.y)
    if dtype is None:
        return given._replace(y=y)
    x, y = with_dtype(given.x, dtype), with_dtype(y, dtype)
    if given.loader is not None and form(x) != form(given.x):
        raise InputError(
            f"precision={request.run.precision!r} casts data in memory, and the DataLoader gives "
            f"{floating_dtype(given.x)}; let it give {dtype}"
        )
    return given._replace(x=x, y=y)


def train_here(request: FitRequest) -> Posterior:
    """All members that are asked for, on this machine."""
    ready, run, ids = _prepare(request), request.run, request.ids
    asked = request.full_prior
    template, settings, like = ready.template, ready.settings, ready.likelihood
    given = saved_block_size(run.checkpoint, ids, run.chunk) or run.chunk
    together = given or members_that_fit(
        template, ready.few, batch_size=ready.at_once, device=settings.device
    )
    data = ready.data.to(settings.device)
    template.to(settings.device)
    kept = None
    if data.loader is None and data.augment is None and run.way != "fused":
        kept = keep_features(template.train(), data.x, ready.few, engine=settings.engine)
    if kept is not None and given is None:
        together = kept.members_that_fit(batch_size=ready.at_once, device=settings.device)
    coupled = request.optimizer.repulsion is not None
    if coupled and together < len(ids):
        raise InputError(
            f"repulsion couples all {len(ids)} members, but only {together} fit into memory at "
            "once; use fewer members or a smaller batch_size"
        )

    # batches of a loader have features too, and validation data are in memory
    behind = kept is not None or (data.loader is not None and run.way != "fused")
    held = None if ready.held is None else _to_validate(request, ready, behind=behind)
    task = Task(template, data, like, settings, ready.prior, kept, held)
    if run.way == "fused":
        refuse_unfused(task.net, like, InMemory(data.x, data.y, data.weights))
    write_log = log_to(run.log)  # last, since a logger writes files as soon as it exists
    callbacks = Callbacks(request.callbacks, run.checkpoint)
    whose = identity(settings, template, like, ready.recipe, data) if run.checkpoint else {}
    if run.checkpoint:
        whose |= own_identity(request, ready.held)

    def so_far(params: Params, low_rank: LowRankGaussian | None, own: tuple[int, ...]) -> Posterior:
        examples = data.examples
        return Posterior(
            net=template,
            params=params,
            likelihood=like,
            recipe=ready.recipe,
            members=own,
            data_size=int(examples) if examples.is_integer() else examples,
            sample_weight=weighting(request.given.weights),
            prior_precision=request.prior_precision,
            prior=asked,
            seed=settings.seed,
            low_rank=low_rank,
            engine=settings.engine,
            inputs=Inputs.of(ready.data.x),
        )

    kept_in = (request.collect, run.checkpoint, run.every, whose)
    work = Work(task, together, *kept_in, so_far, callbacks)
    named = isinstance(request.start, str)
    if named and request.start != "module":  # who goes on from somewhere may need a few steps
        advise(settings, work.steps, like, ready.data.y, ready.outputs)
    again = request.on_divergence == "retry" and named and not coupled
    if asked is not None and asked.needs_start and request.start == "reset":
        again = False  # another start would be another prior
    with matmul_precision(run):
        trained = work.done(ready.first, ids, again=again, progress=run.progress, log=write_log)
    keep = request.on_divergence == "keep"
    if trained.lost:
        warn_diverged(trained.lost, ids, "kept as they are" if keep else "left out")
    if not keep:
        trained, ids = drop_diverged(trained, ids)
    if not (trained.lost and keep):
        warn_alike(trained.params, ids)
    rules = ready.recipe.methods
    began_apart = named and request.start != "module"
    if any(rule.begins_at_module for rule in rules) or not began_apart:
        noisy = bool(stochastic_layers(template)) or trained.low_rank is not None
        if not (noisy or trained.lost):
            some = data.x[:: max(1, len(data.x) // ROWS)][: min(ROWS, ready.at_once)]
            warn_nearly_alike(
                template.eval(), trained.params, some, ids, sets=data.sets, engine=settings.engine
            )
    prior = None if ready.prior is None else _of_all(ready.prior, request, ids)
    advise_after(settings, work.steps, like, trained, data, template.eval(), rules, prior)
    return dataclasses.replace(
        so_far(trained.params, trained.low_rank, ids),
        prior_mean={} if prior is None else prior.to(trained.params).mean,
        history=trained.history,
    )


def _refuse_other_data(plain: nn.Module, like: Likelihood, held: Source) -> None:
    """Validation data that the network cannot take, or whose targets do not fit its outputs."""
    try:
        with torch.no_grad(), seeded(0):
            outputs = plain(held.x[:1])
    except (RuntimeError, IndexError, TypeError, ValueError) as error:
        raise InputError(
            f"the network fails on the validation data {describe(held.x)}: {error}"
        ) from error
    like.check_outputs(outputs.expand(len(held.y), *outputs.shape[1:]), held.y)


def _to_validate(request: FitRequest, ready: _Prepared, *, behind: bool) -> HeldOut:
    """On the device; `behind` the frozen part of the network, where training may be."""
    assert ready.held is not None
    held, settings = ready.held.to(ready.settings.device), ready.settings
    kept = None
    if behind:
        kept = keep_features(
            ready.template.eval(), held.x, held.x[: len(ready.few)], engine=settings.engine
        )
    net, x = (ready.template, held.x) if kept is None else (kept.net, kept.x)
    # a pass without gradients needs a quarter of what memory was planned for, or less
    rows = min(4 * ready.at_once, held.size)
    return HeldOut(net, x, held.y, held.weights, rows, request.validation)


def _of_all(
    prior: Callable[[tuple[int, ...], int], Centred], request: FitRequest, ids: tuple[int, ...]
) -> Centred:
    """Of those members that are left. All that begin at one module have the same."""
    own = ids[:1] if request.start == "module" and not _by_member(request) else ids
    return prior(own, int(request.seed))


def _by_member(request: FitRequest) -> bool:
    return request.full_prior is not None and request.full_prior.has_means
