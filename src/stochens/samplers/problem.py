"""What every sampler prepares: the network, the data and where each chain begins, checked."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens import likelihoods, methods
from stochens.checks import member_ids, own_dropout, positive, whole, whole_seed
from stochens.data import source
from stochens.errors import InputError
from stochens.likelihoods import Likelihood
from stochens.members import (
    Builder,
    Engine,
    Factory,
    Params,
    init,
    init_from_prior,
    move,
    plain_attention,
    size,
    trainable,
)
from stochens.methods import stochastic_layers
from stochens.posterior.chains import count_or_list
from stochens.posterior.joining import join_chains, join_posteriors
from stochens.posterior.posterior import Posterior
from stochens.posterior.recipe import Inputs, Recipe
from stochens.randomness.seeds import seeded
from stochens.run.checkpoints import digest
from stochens.run.cluster.connect import Engines, Ray, ray_engine
from stochens.run.cluster.folder import refuse_url
from stochens.training.engines import ENGINES, choose_engine, place_for, refuse_unknown
from stochens.training.machines import local_device, members_to_check, over_machines, refuse_resume
from stochens.training.network import build_network
from stochens.training.starts import refuse_other_shapes

Start = str | Params | Posterior


class Machines(NamedTuple):
    """A cluster that samples in the place of this machine, where only one chain is prepared."""

    cluster: Ray
    which: str  # what the ids are of: chains, or members
    ids: tuple[int, ...]  # all of them
    home: torch.device  # where the draws are wanted

    def sampled(self, sample: Callable[..., Posterior], options: dict[str, Any]) -> Posterior:
        """`sample(**options)` for blocks of the ids, as one."""
        blocks = over_machines(self.cluster, sample, options, self.ids, which=self.which)
        join = join_chains if self.which == "chains" else join_posteriors
        return join(blocks).to(self.home)


class Problem(NamedTuple):
    """A posterior to sample, on its device."""

    net: nn.Module
    likelihood: Likelihood
    x: Tensor
    y: Tensor
    start: Params  # [chains, ...]
    prior_precision: float
    seed: int
    ids: tuple[int, ...]  # of the chains, which depend on nothing else but the seed
    engine: Engine  # by which the network runs where no kernel does
    way: str  # the engine that was asked for, on this machine
    machines: Machines | None

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {name: p.shape[1:] for name, p in self.start.items()}

    def posterior(self, params: Params, **fields: Any) -> Posterior:
        """The draws as the kind of object that `fit` returns."""
        return Posterior(
            net=self.net.eval(),
            params=params,
            likelihood=self.likelihood,
            recipe=Recipe(methods=tuple(methods.resolve("regular"))),
            members=tuple(range(size(params))),
            data_size=len(self.x),
            prior_precision=self.prior_precision,
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
        return {
            "chains": count_or_list(self.ids),
            "seed": self.seed,
            "prior_precision": self.prior_precision,
            "dtype": str(first.dtype),
            "likelihood": {"name": self.likelihood.name, **self.likelihood.options()},
            "parameters": shapes,
            "network": str(self.net),
            "data": digest({"x": self.x, "y": self.y}),
        }


def prepare(
    net: nn.Module | Builder,
    data: Any,
    *,
    chains: int | Sequence[int],
    which: str = "chains",
    likelihood: str | Likelihood,
    start: Start,
    prior_precision: float,
    seed: int,
    device: str | torch.device | None,
    dtype: torch.dtype | None,
    bf16: bool | None = None,
    batch_size: int | None = None,
    engine: Engines = "auto",
    engines: Sequence[str] = ENGINES,
    resume: Posterior | None = None,
    checkpoint: str | Path | None = None,
) -> Problem:
    """Check everything that can be checked before the first step.

    chains: how many, or which; `which`: what the sampler calls them. engines: those it knows.
    """
    positive(prior_precision=prior_precision)
    if not isinstance(chains, Iterable):
        whole(**{which: chains})
    ids, seed, cluster = member_ids(chains, which), whole_seed(seed), ray_engine(engine)
    way = cluster.within if cluster is not None else str(engine)
    refuse_unknown(way, engines)
    machines = None
    if cluster is None:
        refuse_url(checkpoint)
    else:
        refuse_resume(resume)
        machines = Machines(cluster, which, ids, local_device(device))
        ids = members_to_check(ids, start, cluster)
    if dtype not in (None, torch.float32, torch.float64):
        raise InputError(f"dtype must be torch.float32 or torch.float64, got {dtype}")
    like = likelihoods.resolve(likelihood)
    place = place_for(device, bf16, cluster)
    given = source(data)
    if given.loader is not None:
        raise InputError("samplers need all of the data at once, not a DataLoader; give (x, y)")
    if given.sets > 1:
        raise InputError("samplers take one data set, not Replicas; give (x, y)")
    y = like.check_targets(given.y)
    x, y = (t.to(dtype) if dtype and t.is_floating_point() else t for t in (given.x, y))
    plain, build, few, _ = build_network(
        net, like, x, y, seed, dtype=dtype, refuse=_refuse_no_density
    )
    params = _start(plain.eval(), build, start, ids, seed, prior_precision)
    own_rows = batch_size is not None and batch_size < len(x)
    # on the CPU, where all of these are
    how = choose_engine(way, plain, params, few, own_rows=own_rows, training=False)
    return Problem(
        net=plain.to(place),
        likelihood=like,
        x=x.to(place),
        y=y.to(place),
        start=move(params, place),
        prior_precision=prior_precision,
        seed=seed,
        ids=ids,
        engine=how,
        way=way,
        machines=machines,
    )


def _refuse_no_density(net: nn.Module, few: Tensor) -> None:
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
    start: Start,
    ids: tuple[int, ...],
    seed: int,
    precision: float,
) -> Params:
    """Where each chain begins, [chains, ...], in the network's own order."""
    wanted, chains = trainable(net), len(ids)
    if isinstance(start, Posterior):
        if len(start) < chains:
            raise InputError(f"start has {len(start)} members, fewer than chains = {chains}")
        each = [start.member(k) for k in range(chains)]
        if not all(name in each[0] for name in wanted):
            missing = next(name for name in wanted if name not in each[0])
            raise InputError(f"start: parameter {missing!r} is absent in the posterior given")
        given = {name: torch.stack([one[name] for one in each]) for name in wanted}
    elif isinstance(start, dict):
        given = start
    elif start in ("prior", "default"):
        given = init(build, members=ids, seed=seed)
        if start == "prior":
            given = init_from_prior(given, members=ids, seed=seed, sd=precision**-0.5)
    else:
        raise InputError(f"start must be 'prior', 'default', Params or a Posterior, got {start!r}")
    refuse_other_shapes(given, wanted, chains)
    return {name: given[name].detach().to("cpu", p.dtype) for name, p in wanted.items()}
