"""An approximate posterior: stacked parameters and the network they belong to."""

import copy
import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from stochens import objective, storage
from stochens.chains import COMMON, Chains
from stochens.checks import whole
from stochens.cluster.connect import Engines, asked
from stochens.cluster.prediction import Ask, on_machines
from stochens.conversions import AlwaysDropout
from stochens.data.source import inputs
from stochens.errors import InputError
from stochens.export import Predictor, noise_names, write
from stochens.history import History
from stochens.kernels.fused import fused_forward
from stochens.kernels.resnet import resnet_forward
from stochens.likelihoods import LIKELIHOODS, Likelihood
from stochens.members import (
    Builder,
    Engine,
    Params,
    builder,
    forward,
    join,
    size,
    take,
    trainable,
    watch,
)
from stochens.memory import activation_bytes, free_bytes
from stochens.methods import METHODS, Method, stochastic, stochastic_layers
from stochens.noise import Request, drawn, recorded
from stochens.predict import sums_for
from stochens.randomness import PREDICTION, SPREAD, derive, seeded
from stochens.spread import Spread, draw, join_spreads
from stochens.trials import Trials

ACTIVATIONS = 64 << 20  # bytes of activations at once in prediction, which a CPU's caches like
MOST_ACTIVATIONS = 16 << 30  # likewise, to keep a large GPU busy
FORMAT = "stochens posterior 1"
SHARED = ("recipe", "likelihood", "data_size", "sample_weight", "prior_precision", "seed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the stochastic network was made from the plain one, so that loading can make it again."""

    methods: tuple[Method, ...]
    skip: tuple[str, ...] = ()
    output: str | None = None


class Inputs(NamedTuple):
    """What one example of the training data was."""

    shape: tuple[int, ...]
    dtype: str  # torch's name, e.g. "float32"

    @classmethod
    def of(cls, x: Tensor) -> "Inputs":
        """From a batch, [B, ...]."""
        return cls(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch."))

    def example(self) -> Tensor:
        """Zeros, [1, ...]."""
        return torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior:
    """Members and their noise: what `fit`, `multiswag` and the samplers return.

    `net` is the stochastic network, a template whose own tensors are not used; `params` holds every
    member's, [M, ...].

    >>> import stochens
    >>> x, y = stochens.toy_set("a", n=40)  # [40, 2], [40]
    >>> posterior = stochens.fit(stochens.MLP(2, 5, 2), (x, y), members=3, epochs=1)
    >>> posterior
    Posterior(3 members, dropout, N = 40)
    >>> posterior.predict(x).mean.shape, len(posterior.take([0, 2])), posterior.kl().l2 > 0
    (torch.Size([40, 2]), 2, True)
    >>> sorted(posterior.member(0))[:2]  # a plain network's state dict
    ['0.bias', '0.weight']
    """

    net: nn.Module
    params: Params
    likelihood: Likelihood
    recipe: Recipe
    members: tuple[int, ...]
    data_size: float  # how many examples the likelihood is of: N, or the sum of their weights
    prior_precision: float = 1.0
    seed: int = 0
    history: History | None = None
    spread: Spread | None = None
    engine: Engine = "vmap"
    chains: Chains | None = None  # of a sampler: the members are its draws, chain after chain
    trials: Trials | None = None  # of method="auto": what led to the method
    sample_weight: str | None = None  # a digest of the weights; None: all examples counted the same
    inputs: Inputs | None = None  # None: of a folder that was written before they were kept

    def __len__(self) -> int:
        return size(self.params)

    def __repr__(self) -> str:
        if self.chains is not None:
            sampler, count = self.chains.sampler.upper(), self.chains.count
            return f"Posterior({len(self)} draws of {count} {sampler} chains, N = {self.data_size})"
        names = " + ".join(method.name for method in self.recipe.methods)
        return f"Posterior({len(self)} members, {names}, N = {self.data_size})"

    # -- prediction -----------------------------------------------------------------------------

    def predict(
        self,
        x: Any,
        *,
        draws: int = 1,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        noise: str = "fresh",
        bf16: bool = False,
        seed: int = 0,
        engine: Engines | None = None,
        device: str | None = None,
        progress: bool | None = False,
    ) -> Any:
        """The predictive distribution at x [B, ...]: a Predictive, or a GaussianPredictive.

        Each member is drawn `draws` times, so S = M * draws. Inputs are streamed in batches. The
        draws [S, B, C] are kept where they fit into 1 GiB, unless `keep_draws` says otherwise; mean
        and uncertainties are always there. One seed gives the same draws again. Noise on weights is
        drawn once for all of x; noise on outputs is fresh for each example, or drawn once for all
        of x too by `noise="shared"`: each draw is one function then, whose value at an input does
        not depend on the inputs beside it. `bf16`: the network in bfloat16, on CUDA; the averages
        stay as they are. `engine`: "ray" or Ray(...) for batches on many machines, which draw the
        same numbers where they have the same kind of device; `device` is theirs, "cpu" or "cuda"
        (if not given, CPUs for a posterior on the CPU), and `progress` shows them.
        """
        x, cluster = inputs(x), None if engine is None else asked(engine)
        if noise not in ("fresh", "shared"):
            raise InputError(f"noise must be 'fresh' or 'shared', got {noise!r}")
        if draws < 1:
            raise InputError(f"draws must be at least 1, got {draws}")
        if engine is not None and cluster is None:
            raise InputError(f"engine must be None, 'ray' or Ray(...), got {engine!r}")
        if device is not None and cluster is None:
            raise InputError(
                f"device = {device!r} is for engine='ray'; use posterior.to({device!r})"
            )
        here = next(iter(self.params.values())).device
        if bf16 and here.type != "cuda" and cluster is None:
            raise InputError(f"bf16 is for CUDA, and this posterior is on {here.type!r}")
        with _alone_with(self.net):
            rows, chunk = self._plan(x, batch_size)
            groups = self.chains.count if self.chains is not None and draws == 1 else 1
            ask = Ask(len(x), rows, chunk, draws, groups, keep_draws, bf16, seed, noise == "shared")
            if cluster is not None:
                return on_machines(self, x, ask, cluster, device, progress)
            return self._predictive(x, ask)

    def _predictive(self, x: Tensor, ask: Ask, *, first_row: int = 0) -> Any:
        """At some of the rows that were asked for: those from a multiple of `ask.rows` on."""
        device = next(iter(self.params.values())).device
        rows, chunk, draws, seed = ask.rows, ask.chunk, ask.draws, ask.seed
        sums = sums_for(
            self.likelihood,
            draws * len(self),
            len(x),
            keep=ask.keep_draws,
            groups=ask.groups,
            of_rows=ask.all_rows,
        )
        layers = stochastic_layers(self.net).values()
        shared = any(layer.shared_by_batch() for layer in layers)
        self.net.eval()
        requests = (self._noise_requests(x[:1]) if ask.shared_noise else None) or None
        with torch.no_grad():
            for number in range(draws):
                params = self._draw(seed, number)
                own = None if requests is None else self._noise(requests, number, seed=seed)
                for first in range(0, len(self), chunk):
                    block = take(params, slice(first, first + chunk))
                    for top in range(0, len(x), rows):
                        # A draw that a batch shares is the same for every batch: one function.
                        place = 0 if shared else first_row + top
                        stream = derive(seed, PREDICTION, number, first, place)
                        part = _padded(x[top : top + rows], rows).to(device)
                        mine = own and [t[first : first + chunk].to(device) for t in own]
                        outputs = self._forward(block, part, stream, ask.bf16, mine)  # [m, rows, C]
                        at = slice(top, min(top + rows, len(x)))
                        got = outputs[:, : at.stop - at.start]  # [m, b, C]
                        sums.add(got, rows=at, first_draw=number * len(self) + first)
        return sums.result()

    def _noise_requests(self, x: Tensor) -> list[Request]:
        """What the layers ask for in one pass of one example, x [1, ...]."""
        for path, module in self.net.named_modules():
            if isinstance(module, AlwaysDropout):
                raise InputError(
                    f"{path} is the network's own dropout, whose noise cannot be given from "
                    "outside; leave noise to the method (method='dropout')"
                )
        with recorded() as requests:
            watch(self.net, x.to(next(self.net.parameters()).device), {})
        return requests

    def _noise(self, requests: list[Request], number: int, *, seed: int) -> list[Tensor]:
        """The noise of one draw of every member, each [M, ...], for `noise="shared"`."""
        return drawn(requests, len(self), seed=derive(seed, PREDICTION, number))

    def _forward(
        self, params: Params, x: Tensor, stream: int, bf16: bool, noise: list[Tensor] | None
    ) -> Tensor:
        with seeded(stream, x.device):
            if self.engine == "vmap" and noise is None:
                fused = fused_forward(self.net, params, x, seed=stream)
                if fused is None and bf16:
                    chosen = torch.tensor([stream], device=x.device)
                    fused = resnet_forward(self.net, params, x, seed=chosen)
                if fused is not None:
                    return fused
            with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
                return forward(self.net, params, x, engine=self.engine, noise=noise)

    def _draw(self, seed: int, number: int) -> Params:
        """Every member's parameters for one draw; the noise of layers comes on top."""
        if self.spread is None:
            return self.params
        generator = torch.Generator().manual_seed(derive(seed, SPREAD, number))
        return draw(self.params, self.spread, generator)

    def _plan(self, x: Tensor, batch_size: int | None) -> tuple[int, int]:
        """Rows of x and members at a time, so that activations stay inside their budget."""
        home = next(self.net.parameters()).device
        try:
            one = max(1, activation_bytes(self.net, x[:1].to(home)))
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            raise InputError(
                f"the network fails on x {tuple(x.shape)} of {x.dtype}: {error}"
            ) from error
        budget = _budget(next(iter(self.params.values())).device)
        chunk = min(len(self), max(1, budget // (one * min(len(x), 256))))
        rows = min(len(x), batch_size or max(1, budget // (one * chunk)))
        return rows, chunk

    def export(
        self,
        path: Any,
        example: Any = None,
        *,
        draws: int = 1,
        seed: int = 0,
        overwrite: bool = False,
    ) -> dict[str, Tensor]:
        """Write the averaged predictor as one file that needs no stochens; B stays free.

        "model.onnx" (needs `stochens[onnx]`) or "model.pt2" (torch.export). The function is that of
        `predict(x, draws=draws, seed=seed, noise="shared")`: x [B, ...] and the noise of each draw
        to probs [B, C], entropy [B] and mutual_information [B], or for regression to mean, std,
        aleatoric and epistemic [B, D].

        Returned are the noise inputs by name, each [S, ...], numbers from U(0, 1) ("uniform_0") or
        N(0, 1) ("normal_0"). In ONNX they are the inputs' default values: x alone gives this seed's
        draws, and other numbers give others. A .pt2 takes (x, noise). SWAG's draws of whole
        parameter sets are made now and are part of the file.

        `example`: inputs to take shape and dtype from; those of training when None.
        """
        noise = self.noise_inputs(example, draws=draws, seed=seed)
        params = self.params
        if self.spread is not None:
            params = join([self._draw(seed, number) for number in range(draws)])
        predictor = Predictor(self.net, params, self.likelihood, noise, draws * len(self))
        about = {"posterior": repr(self), "draws": str(draws), "seed": str(seed)}
        write(path, predictor, self._example(example), about=about, overwrite=overwrite)
        return noise

    def noise_inputs(
        self, example: Any = None, *, draws: int = 1, seed: int = 0
    ) -> dict[str, Tensor]:
        """The noise of another seed for an exported predictor, by name, each [S, ...]."""
        whole(draws=draws)
        self.net.eval()
        asked = self._noise_requests(self._example(example))
        parts = [self._noise(asked, number, seed=seed) for number in range(draws)]
        drawn = (torch.cat(own) for own in zip(*parts, strict=True))
        return dict(zip(noise_names(asked), drawn, strict=True))

    def _example(self, given: Any) -> Tensor:
        """One input, [1, ...]."""
        if given is not None:
            return inputs(given)[:1]
        if self.inputs is None:
            raise InputError("this posterior does not know its inputs; pass an example of them")
        return self.inputs.example()

    # -- what it is -----------------------------------------------------------------------------

    def kl(self, *, sigma: float = objective.SIGMA) -> objective.KL:
        """Every term of KL(q || prior), by name; `sigma` where a method has none of its own."""
        return objective.kl(self.net, self.params, self.prior_precision, sigma=sigma)

    def member(self, k: int) -> dict[str, Tensor]:
        """The k-th member as the plain network's own load_state_dict wants it, buffers and all.

        Where a method trains two sets or a sigma, these are the first set and the mean. To hand a
        member to those who have no stochens:

            safetensors.torch.save_file(posterior.member(k), "member.safetensors")
            net.load_state_dict(safetensors.torch.load_file("member.safetensors"))

        The plain network has no noise: it is the member's centre, not its predictive.
        """
        own = {id(p): name for name, p in self.net.named_parameters() if p.requires_grad}
        one = {  # a tied parameter under each of its names, and what all members share
            name: (self.params[own[id(t)]][k] if id(t) in own else t).detach().clone()
            for name, t in self.net.state_dict(keep_vars=True).items()
        }
        for path, layer in stochastic_layers(self.net).items():
            prefix = f"{path}." if path else ""
            plain = {prefix + name for name, _ in layer.plain.named_parameters()}
            one = {n: p for n, p in one.items() if not n.startswith(prefix) or n in plain}
        one.pop("log_variance", None)  # the likelihood's, not the network's
        return one

    def replica(self, d: int, sets: int) -> "Posterior":
        """The members that learned from the d-th of so many Replicas."""
        rows = [k for k, member in enumerate(self.members) if member % sets == d]
        if not rows:
            raise InputError(f"no member learned from set {d} of {sets}")
        return self.take(rows)

    def take(self, members: slice | list[int]) -> "Posterior":
        """Some of the members, by their places, as a posterior of their own."""
        spread = self.spread and Spread(*(take(part, members) for part in self.spread))
        history = self.history and History(*(t[:, members] for t in self.history))
        return dataclasses.replace(
            self,
            params=take(self.params, members),
            members=tuple(torch.tensor(self.members)[members].tolist()),
            spread=spread,
            history=history,
            chains=None,  # some of the draws are no chain
        )

    def chain(self, k: int) -> "Posterior":
        """The draws of the k-th chain of a sampler, as a posterior of their own."""
        if self.chains is None:
            raise InputError("this posterior has no chains: no sampler made it")
        if not -self.chains.count <= k < self.chains.count:
            raise InputError(f"there are {self.chains.count} chains, got {k}")
        draws, k = len(self) // self.chains.count, k % self.chains.count
        return self.take(slice(k * draws, (k + 1) * draws))

    def to(self, device: torch.device | str) -> "Posterior":
        """The same posterior on another device; this one stays where it is."""
        spread = self.spread and Spread(*(_to(part, device) for part in self.spread))
        net = copy.deepcopy(self.net).to(device)  # a module moves in place
        return dataclasses.replace(self, net=net, params=_to(self.params, device), spread=spread)

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write one folder of safetensors and JSON; `stochens.load(path, net)` reads it back."""
        storage.write_folder(
            path, FORMAT, self._tensors(), self._description(), overwrite=overwrite
        )

    def _tensors(self) -> dict[str, Tensor]:
        """Everything that is a tensor, by kind and name."""
        kinds: dict[str, dict[str, Tensor]] = {"params": self.params, "shared": _shared(self.net)}
        if self.history is not None:
            kinds["history"] = self.history._asdict()
        if self.spread is not None:
            kinds |= {f"spread.{part}": v for part, v in self.spread._asdict().items()}
        if self.chains is not None:
            kinds |= self.chains.tensors()
        return {f"{kind}/{name}": t for kind, named in kinds.items() for name, t in named.items()}

    def _description(self) -> dict[str, Any]:
        """Everything else."""
        return {
            "methods": [{"name": m.name, "options": m.options()} for m in self.recipe.methods],
            "skip": list(self.recipe.skip),
            "output": self.recipe.output,
            "likelihood": {"name": self.likelihood.name, "options": self.likelihood.options()},
            "members": list(self.members),
            "data_size": self.data_size,
            "sample_weight": self.sample_weight,
            "prior_precision": self.prior_precision,
            "seed": self.seed,
            "engine": self.engine,
            "chains": self.chains and self.chains.description(),
            "trials": self.trials and self.trials.description(),
            "inputs": self.inputs and self.inputs._asdict(),
        }


_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()


def _alone_with(net: nn.Module) -> threading.RLock:
    """Held while members' tensors are in the network, which is one object for all threads."""
    return _locks.setdefault(net, threading.RLock())


def _budget(device: torch.device) -> int:
    """Bytes of activations at once. A power of two, so that a seed's draws, which depend on how x
    is cut, do not change with every byte that is free."""
    if device.type != "cuda":
        return ACTIVATIONS
    quarter = free_bytes(device) // 4
    return min(MOST_ACTIVATIONS, max(ACTIVATIONS, 1 << quarter.bit_length() - 1))


def _padded(x: Tensor, rows: int) -> Tensor:
    """x with its last row repeated up to `rows`: every batch then uses as many random numbers."""
    missing = rows - len(x)
    return x if missing <= 0 else torch.cat([x, x[-1:].expand(missing, *x.shape[1:])])


def load(path: Any, net: nn.Module | Builder, *, device: torch.device | str = "cpu") -> Posterior:
    """Read a saved posterior into the network it belongs to (the plain one, as given to `fit`).

    Never runs a pickle. Another network is refused by the first parameter that differs.

    >>> import stochens, tempfile
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> folder = tempfile.mkdtemp() + "/mine"
    >>> stochens.fit(net, data, members=3, epochs=1).save(folder)
    >>> load(folder, net).params["0.weight"].shape  # [M, 5, 2]
    torch.Size([3, 5, 2])
    """
    tensors, about = storage.read_folder(path, FORMAT)
    kinds: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        kind, _, name = key.partition("/")
        kinds.setdefault(kind, {})[name] = tensor
    params, shared = kinds.get("params", {}), kinds.get("shared", {})
    with storage.reading(path):
        recipe = Recipe(
            methods=tuple(METHODS[m["name"]](**m["options"]) for m in about["methods"]),
            skip=tuple(about["skip"]),
            output=about["output"],
        )
        likelihood = LIKELIHOODS[about["likelihood"]["name"]](**about["likelihood"]["options"])
    template = builder(net)()
    if "log_variance" in params:
        template = likelihood.prepare(template, torch.zeros(1, params["log_variance"].shape[-1]))
    template = stochastic(template, recipe.methods, skip=recipe.skip, output=recipe.output)
    _refuse_another(trainable(template), {name: p[0] for name, p in params.items()}, path)
    _refuse_another(_shared(template), shared, path)
    template.load_state_dict(shared, strict=False)
    names = list(trainable(template))  # the network's own order, which draws follow
    with storage.reading(path):
        posterior = Posterior(
            net=template,
            params={name: params[name] for name in names},
            likelihood=likelihood,
            recipe=recipe,
            members=tuple(about["members"]),
            data_size=about["data_size"],
            sample_weight=about.get("sample_weight"),
            prior_precision=about["prior_precision"],
            seed=about["seed"],
            history=History(**kinds["history"]) if "history" in kinds else None,
            spread=_spread(kinds, names),
            engine=about["engine"],
            chains=Chains.read(kinds, about.get("chains")),
            inputs=_inputs(about.get("inputs")),
            trials=Trials.read(about.get("trials")),
        )
    return posterior.to(device)


def _spread(kinds: dict[str, Params], names: list[str]) -> Spread | None:
    if "spread.variance" not in kinds:
        return None
    parts = (kinds[f"spread.{field}"] for field in Spread._fields)
    return Spread(*({name: part[name] for name in names} for part in parts))


def _inputs(about: dict[str, Any] | None) -> Inputs | None:
    return None if about is None else Inputs(tuple(about["shape"]), str(about["dtype"]))


def _shared(net: nn.Module) -> dict[str, Tensor]:
    """Buffers and frozen parameters, which all members have in common."""
    own = {id(p) for p in net.parameters() if p.requires_grad}
    state = net.state_dict(keep_vars=True)
    return {name: t.detach() for name, t in state.items() if id(t) not in own}


def _refuse_another(wanted: Params, found: Params, path: Any) -> None:
    for name in [*wanted, *found]:
        here = tuple(wanted[name].shape) if name in wanted else "absent"
        there = tuple(found[name].shape) if name in found else "absent"
        if here != there:
            raise InputError(
                f"{path} holds another network: parameter {name!r} is {here} in the network given "
                f"and {there} in the file"
            )


def _to(params: Params, device: torch.device | str) -> Params:
    return {name: p.to(device) for name, p in params.items()}


def join_chains(posteriors: Sequence[Posterior]) -> Posterior:
    """Chains of one sampler that ran apart, as one posterior, chain after chain."""
    joined = join_posteriors(
        [dataclasses.replace(p, members=()) for p in posteriors]  # draws of each count from 0
    )
    parts = [p.chains for p in posteriors if p.chains is not None]
    assert len(parts) == len(posteriors)
    first, count = parts[0], sum(part.count for part in parts)

    def together(kind: Callable[[Chains], dict[str, Tensor]]) -> dict[str, Tensor]:
        return {
            name: t if name in COMMON else torch.cat([kind(part)[name] for part in parts])
            for name, t in kind(first).items()
        }

    chains = Chains(
        sampler=first.sampler,
        count=count,
        stats=together(lambda part: part.stats),
        state=together(lambda part: part.state),
        settings={**first.settings, "chains": count},
    )
    return dataclasses.replace(joined, members=tuple(range(len(joined))), chains=chains)


def join_posteriors(posteriors: Sequence[Posterior]) -> Posterior:
    """Members that were trained apart, as one posterior, in order.

    They must be of the same network, method, data size and weights, and no member may come twice.

    >>> import stochens
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> parts = [stochens.fit(net, data, members=ids, epochs=1) for ids in (range(2), range(2, 5))]
    >>> join_posteriors(parts).params["0.weight"].shape  # [M, 5, 2]
    torch.Size([5, 5, 2])
    """
    if not posteriors:
        raise InputError("nothing to join")
    first, *others = posteriors
    for other in others:
        for field in SHARED:
            if getattr(first, field) != getattr(other, field):
                raise InputError(
                    f"posteriors differ in {field}: {getattr(first, field)} and "
                    f"{getattr(other, field)}"
                )
        if {n: p.shape[1:] for n, p in first.params.items()} != {
            n: p.shape[1:] for n, p in other.params.items()
        }:
            raise InputError("posteriors are of different networks")
    ids = [member for posterior in posteriors for member in posterior.members]
    if len(set(ids)) < len(ids):
        raise InputError("a member is in two of the posteriors; train them with other member ids")
    histories = [p.history for p in posteriors if p.history is not None]
    spreads = [p.spread for p in posteriors if p.spread is not None]
    return dataclasses.replace(
        first,
        params=join([p.params for p in posteriors]),
        members=tuple(ids),
        history=History.join(histories) if len(histories) == len(posteriors) else None,
        spread=join_spreads(spreads) if len(spreads) == len(posteriors) else None,
        chains=None,
    )
