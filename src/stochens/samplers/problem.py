"""What every sampler prepares: the network, the data and where each chain begins, checked."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from stochens import likelihoods, methods
from stochens.adapter import Calling
from stochens.checks import own_dropout, whole, whole_or_none
from stochens.data import reads_stream, source
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import (
    Engine,
    Factory,
    Params,
    init,
    move,
    plain_attention,
    size,
    trainable,
)
from stochens.methods import stochastic_layers
from stochens.moved import COUNTED_ONCE
from stochens.posterior.chains import count_or_list
from stochens.posterior.joining import join_chains
from stochens.posterior.posterior import Posterior
from stochens.posterior.recipe import Inputs, Recipe
from stochens.prior import Centred, Prior, resolve, warn_unknown_fan_in
from stochens.program.features import Kept, OnHost, keep_features
from stochens.randomness.seeds import seeded
from stochens.run.checkpoints import digest
from stochens.run.cluster.connect import Ray
from stochens.run.options import Run, refuse_unused
from stochens.samplers.coordinates import Coordinates, coordinates_for
from stochens.samplers.target import unflatten
from stochens.training.engines import ENGINES, choose_engine, place_for, refuse_unknown
from stochens.training.machines import local_device, members_to_check, over_machines, refuse_resume
from stochens.training.network import build_network
from stochens.training.request import Place, Request, Start
from stochens.training.starts import (
    complete_params,
    draw_from_prior,
    jittered,
    refuse_other_shapes,
    start_network,
)
from stochens.trees import Input, named, with_dtype

R = TypeVar("R", bound="SamplerRequest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplerRequest(Request):
    """What every sampler is asked for."""

    which: ClassVar[str] = "chains"

    members: int | Sequence[int] = 4  # the chains
    start: Place | Start = "prior"
    batch_size: int | None = None
    resume: Posterior | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.members, Iterable):
            whole(**{self.which: self.members})
        super().__post_init__()
        whole_or_none(batch_size=self.batch_size)
        if self.given.augment is not None:
            raise InputError(
                "samplers need one density, and augmented data have another in each step; leave "
                "augment out, or use fit"
            )
        if self.given.weights is not None:
            raise InputError(COUNTED_ONCE.format("weights of Data"))
        if self.jitter and isinstance(self.start, str) and self.start == "prior":
            raise InputError(
                "start='prior' is a draw from the prior for each of the "
                f"{self.which}, and would be none with a jitter; leave jitter out"
            )
        refuse_unused(self.run, "a sampler", "log")
        if self.run.cluster is None:
            refuse_unused(self.run, "a sampler on one machine", "chunk")
        else:
            refuse_resume(self.resume)


class Machines(NamedTuple):
    """A cluster that samples in the place of this machine, where only one chain is prepared."""

    cluster: Ray
    home: torch.device  # where the draws are wanted

    def sampled(self, sample: Callable[[R], Posterior], request: R) -> Posterior:
        """`sample(request)` for blocks of its chains, as one."""
        return join_chains(self.blocks(sample, request)).to(self.home)

    def blocks(self, sample: Callable[[R], Posterior], request: R) -> list[Posterior]:
        """Likewise, each block by itself."""
        run = dataclasses.replace(request.run, chunk=None)
        alone = dataclasses.replace(request, run=run)
        return over_machines(self.cluster, sample, alone, size=request.run.chunk)


class Problem(NamedTuple):
    """A posterior to sample, on its device."""

    net: nn.Module
    likelihood: Likelihood
    x: Input
    y: Tensor
    start: Params  # [chains, ...]
    prior_precision: float
    prior: Prior | None
    coordinates: Coordinates
    seed: int
    ids: tuple[int, ...]  # of the chains, which depend on nothing else but the seed
    engine: Engine  # by which the network runs where no kernel does
    run: Run
    machines: Machines | None
    calling: Calling | None = None  # how the network is called, where that is not net(x)
    kept: Kept | None = None  # features, where a part of the network is frozen

    @property
    def computed(self) -> tuple[nn.Module, Input]:
        """What is run: the network and x, or what is left of it behind its frozen part."""
        if self.kept is None or isinstance(self.kept.x, OnHost):
            return self.net, self.x
        return self.kept.net, self.kept.x

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape[1:] for name, p in self.start.items()}

    @property
    def prior_mean(self) -> Params:
        """The prior's means, [1, ...], where they are not 0."""
        mean = self.coordinates.mean
        return {} if mean is None else unflatten(mean.unsqueeze(0), self.shapes)

    def posterior(self, params: Params, **fields: Any) -> Posterior:
        """The draws as the kind of object that `fit` returns."""
        return Posterior(
            net=self.net.eval(),
            params=params,
            likelihood=self.likelihood,
            recipe=Recipe(methods=tuple(methods.resolve("regular")), calling=self.calling),
            members=tuple(range(size(params))),
            data_size=len(self.x),
            prior_precision=self.prior_precision,
            prior=self.prior,
            prior_mean=self.prior_mean,
            seed=self.seed,
            inputs=Inputs.of(self.x),
            engine=self.engine,
            **fields,
        )

    def begun(self, **options: Any) -> dict[str, Any]:
        """What a checkpoint must share beside the settings: where it began, and such options."""
        return {"start": digest(self.start), **options}

    def settings(self) -> dict[str, Any]:
        """What a run that goes on must share with the one before it."""
        first = next(iter(self.start.values()))
        shapes = ", ".join(f"{name} {tuple(shape)}" for name, shape in self.shapes.items())
        rounded = {"tf32": True} if self.run.tf32 else {}
        return {
            "chains": count_or_list(self.ids),
            "seed": self.seed,
            "prior_precision": self.prior_precision,
            "dtype": str(first.dtype),
            "likelihood": {"name": self.likelihood.name, **self.likelihood.options()},
            "parameters": shapes,
            "network": str(self.net),
            "data": digest({**named(self.x), "y": self.y}),
            **rounded,
            **self._prior_settings(),
        }

    def _prior_settings(self) -> dict[str, Any]:
        if self.prior is None:
            return {"prior": None}  # said, so that a run with another one is not gone on with
        mean = self.coordinates.mean
        return {
            "prior": self.prior.description(),
            "prior mean": None if mean is None else digest({"mean": mean}),
        }


def prepare(request: SamplerRequest, *, engines: Sequence[str] = ENGINES) -> Problem:
    """Check everything that can be checked before the first step. engines: those it knows."""
    run, ids, start, seed = request.run, request.ids, request.start, int(request.seed)
    refuse_unknown(run.way, engines)
    machines = None
    if run.cluster is not None:
        machines = Machines(run.cluster, local_device(run.device))
        ids = members_to_check(ids, start, run.cluster)
    like = likelihoods.resolve(request.likelihood)
    place, dtype = place_for(run), run.dtype
    if reads_stream(request.given.data):
        raise InputError(
            "samplers need rows at random, or all of them, and a stream has them in its own order; "
            "give (x, y), which may be memory-mapped arrays (np.load(file, mmap_mode='r'))"
        )
    given = source(request.data)
    if given.loader is not None:
        raise InputError("samplers need all of the data at once, not a DataLoader; give (x, y)")
    if given.sets > 1:
        raise InputError("samplers take one data set, not Replicas; give (x, y)")
    y = like.check_targets(given.y)
    x, y = with_dtype(given.x, dtype), with_dtype(y, dtype)
    plain, build, few, _, calling = build_network(
        start_network(request.net, start),
        like,
        x,
        y,
        seed,
        dtype=dtype,
        refuse=_refuse_no_density,
        output=request.output,
        target=request.given.target,
    )
    prior: float | Centred = request.prior_precision
    asked = request.full_prior
    if asked is not None:
        warn_unknown_fan_in(asked, plain)
        begun = {}
        if asked.needs_start:
            begun = _start(plain.eval(), build, start, ids, seed, 1.0, like.adds())
        prior = resolve(asked, plain, begun, rows=range(len(ids)), members=len(ids))
        _refuse_several_priors(prior)
    params = _start(plain.eval(), build, start, ids, seed, prior, like.adds())
    params = jittered(params, plain, ids, seed=seed, size=request.jitter)
    own_rows = request.batch_size is not None and request.batch_size < len(x)
    # on the CPU, where all of these are
    how = choose_engine(run.way, plain, params, few, own_rows=own_rows, training=False)
    x, y, plain = x.to(place), y.to(place), plain.to(place)
    kept = None
    if machines is None and run.way != "fused":
        kept = keep_features(plain.eval(), x, few, engine=how)
    return Problem(
        net=plain,
        likelihood=like,
        x=x,
        y=y,
        start=move(params, place),
        prior_precision=request.prior_precision,
        prior=asked,
        coordinates=coordinates_for(prior, params, request.prior_precision).to(place),
        seed=seed,
        ids=ids,
        engine=how,
        run=run,
        machines=machines,
        calling=calling,
        kept=kept,
    )


def _refuse_no_density(net: nn.Module, few: Input) -> None:
    """A density must have one value at one point, and no pass may move the point."""
    for name, module in net.named_modules():
        if getattr(module, "max_norm", None) is not None:
            raise InputError(
                f"{name} has max_norm, which changes its weights in each pass, so that a chain is "
                "not where the sampler put it; build it without, the prior keeps weights small"
            )
    noisy = list(stochastic_layers(net))
    if not noisy:
        try:
            with torch.no_grad(), plain_attention():
                outputs = []
                for attempt in range(2):
                    with seeded(attempt):
                        outputs.append(net(few.clone()))  # it may change them in place
        except (RuntimeError, IndexError, TypeError, ValueError):
            return  # said better by the probe that follows
        if not isinstance(outputs[0], Tensor) or torch.equal(
            outputs[0].nan_to_num(), outputs[1].nan_to_num()
        ):
            return
        noisy = own_dropout(net)
    where = f" ({', '.join(noisy)})" if noisy else ""
    raise InputError(
        f"the network is stochastic{where}: two passes over the same inputs differ, so that its "
        "log density has no value to sample from. Give the plain network; its own dropout is off "
        "after net.eval()"
    )


def _start(
    net: nn.Module,
    build: Factory,
    start: Place | Start,
    ids: tuple[int, ...],
    seed: int,
    prior: float | Centred,
    adds: tuple[str, ...],
) -> Params:
    """Where each chain begins, [chains, ...], in the network's own order."""
    wanted, chains = trainable(net), len(ids)
    if isinstance(start, dict):
        given = complete_params(start, net, chains, adds)
    else:
        given = init(build, members=ids, seed=seed)
        if start == "prior":
            given = draw_from_prior(given, prior, ids, seed)
    refuse_other_shapes(given, wanted, chains)
    return {name: given[name].detach().to("cpu", p.dtype) for name, p in wanted.items()}


def _refuse_several_priors(prior: Centred) -> None:
    """Chains are draws from one posterior, so they have one prior."""
    if prior.differs:
        name = next(name for name, mean in prior.mean.items() if len(mean) > 1)
        raise InputError(
            f"the prior's mean of {name!r} is another for each chain, and chains sample one "
            "posterior. Let all begin at the same weights, by start='module', a module or a state "
            "dict, or give the mean as tensors, Prior(mean=net.state_dict())"
        )
