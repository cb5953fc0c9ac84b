"""An approximate posterior: stacked parameters and the network they belong to."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from stochens import objective
from stochens.adapter import Output
from stochens.checks import whole
from stochens.description.describe import description_of
from stochens.description.layers import count_bytes
from stochens.description.runs import what_predicts
from stochens.description.table import Description
from stochens.errors import InputError
from stochens.inputs import first_input
from stochens.likelihoods import Likelihood, Predicted
from stochens.members import Builder, device_of, join, take
from stochens.methods import MethodLike, merge_adapters, stochastic_places
from stochens.moved import refuse_moved
from stochens.posterior import saved
from stochens.posterior.export import write
from stochens.posterior.export_program import Predictor
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.low_rank import params_of_draw
from stochens.posterior.of import fields_of
from stochens.posterior.pieces import (
    Wanted,
    batches_of,
    pieces_of,
    trained_on,
    write_predictions,
)
from stochens.posterior.reading import join_pieces
from stochens.posterior.reporting import Wishes, check_place, write_report
from stochens.posterior.shared_noise import noise_by_name, noise_requests
from stochens.posterior.temperature import temperature_of
from stochens.prior import Centred, Prior, precisions
from stochens.run.options import Run, merge_run
from stochens.run.progress import Show
from stochens.trees import Input


@dataclasses.dataclass(frozen=True, kw_only=True)
class Posterior(PosteriorFields):
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

    @classmethod
    @refuse_moved
    def of(
        cls,
        networks: Sequence[nn.Module | Mapping[str, Tensor]],
        *,
        net: nn.Module | Builder | None = None,
        likelihood: str | Likelihood = "categorical",
        example: Any = None,
        data_size: float = 0,
        members: Sequence[int] | None = None,
        prior: float | Prior = 1.0,
        output: Output | None = None,
        device: torch.device | str = "cpu",
    ) -> "Posterior":
        """Networks that are trained already, as a posterior like any other.

        networks: modules, or state dicts of `net`, with the same parameters and shapes.
        likelihood: what their outputs mean, as in `fit`; of "gaussian" the noise must be given.
        example: inputs [B, ...] of the kind that they take. A few are run through each network and
            held against the posterior, and export knows the shape then.
        data_size: N, on which they were trained; 0 where it is not known.
        members: their numbers, where they are to be joined with others.
        prior: for `kl`, as in `fit`.
        output: what of their outputs counts, as in `fit`.

        Batch norms are frozen. Where their statistics differ they are folded into the layer's
        weight and bias, which each member has for itself; other buffers must be the same in all.
        A network's own dropout is off; `keep_dropout` keeps it on.

        >>> nets = [nn.Linear(2, 3) for _ in range(5)]
        >>> posterior = Posterior.of(nets, example=torch.zeros(1, 2))
        >>> posterior
        Posterior(5 members, regular, N not known)
        >>> posterior.predict(torch.zeros(4, 2)).probs.shape  # [S, B, C]
        torch.Size([5, 4, 3])
        """
        fields = fields_of(
            networks,
            net,
            likelihood,
            example=example,
            data_size=data_size,
            members=members,
            prior=prior,
            output=output,
        )
        return cls(**vars(fields)).to(device)

    def __repr__(self) -> str:
        if self.data_size == 0:
            names = " + ".join(method.name for method in self.recipe.methods)
            return f"Posterior({len(self)} members, {names}, N not known)"
        n = self.data_size if isinstance(self.data_size, int) else f"{self.data_size:.6g}"
        if self.chains is not None:
            sampler, count = self.chains.sampler.upper(), self.chains.count
            return f"Posterior({len(self)} draws of {count} {sampler} chains, N = {n})"
        names = " + ".join(method.name for method in self.recipe.methods)
        return f"Posterior({len(self)} members, {names}, N = {n})"

    # -- prediction -----------------------------------------------------------------------------

    @overload
    def predict(
        self,
        x: Any,
        *,
        draws: int = 1,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        noise: str = "fresh",
        seed: int = 0,
        out: None = None,
        device: str | torch.device | None = None,
        progress: Show = None,
        run: Run = Run(),
    ) -> Predicted: ...

    @overload
    def predict(
        self,
        x: Any,
        *,
        out: str | Path,
        draws: int = 1,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        noise: str = "fresh",
        seed: int = 0,
        device: str | torch.device | None = None,
        progress: Show = None,
        run: Run = Run(),
    ) -> Path: ...

    @refuse_moved
    def predict(
        self,
        x: Any,
        *,
        draws: int = 1,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        noise: str = "fresh",
        seed: int = 0,
        out: str | Path | None = None,
        device: str | torch.device | None = None,
        progress: Show = None,
        run: Run = Run(),
    ) -> Predicted | Path:
        """The predictive distribution at x [B, ...], of the kind that the likelihood states: a
        Predictive for classes, a GaussianPredictive for regression.

        x is what the network was trained on: a tensor, or a dictionary, tuple, list or dataclass
        of them, where y by its name may still be there. x may be a Dataset, a DataLoader, a stream
        or an iterator of batches too, of x or of (x, y), whose inputs are read in order, a few at a
        time, as are memory-mapped arrays; the lengths of its batches may differ, as of sequences
        that are padded batch by batch.
        Each member is drawn `draws` times, so S = M * draws. Inputs are streamed in batches. The
        draws [S, B, C] are kept where they fit into 1 GiB, unless `keep_draws` says otherwise; mean
        and uncertainties are always there. One seed gives the same draws again. Noise on weights is
        drawn once for all of x; noise on outputs is fresh for each example, or drawn once for all
        of x too by `noise="shared"`: each draw is one function then, whose value at an input does
        not depend on the inputs beside it.

        `out`: "preds.parquet" (needs `stochens[parquet]`) or "preds.zarr", where the predictions
        are written as they are made, in bounded memory. A row has what `Predicted.summaries` says,
        for classes probs, entropy and mutual_information, for numbers mean, std, aleatoric,
        epistemic, low and high; with keep_draws=True the draws too, and with False no low and high.
        The file is there when it is whole, and its path is returned.

        `run`: its precision, and its engine where that is "ray" or Ray(...), for batches on many
        machines, which draw the same numbers where they have the same kind of device. `device` is
        theirs, "cpu" or "cuda" (if not given, CPUs for a posterior on the CPU), and `progress`
        shows them, and what is written to `out`. On one machine a posterior predicts where it is.

        Threads may predict and train at the same time, and each gets what it would get alone; only
        what draws from torch's own generator meanwhile, as building a network does, can change it.
        """
        run = merge_run(run, device=device, progress=progress)
        wanted = Wanted(draws, batch_size, keep_draws, noise, seed)
        if out is None:
            return join_pieces(pieces_of(self, x, wanted, run).each)
        return write_predictions(self, x, wanted, run, out)

    def predict_batches(
        self,
        x: Any,
        *,
        draws: int = 1,
        batch_size: int | None = None,
        keep_draws: bool | None = None,
        noise: str = "fresh",
        seed: int = 0,
        run: Run = Run(),
    ) -> Iterator[Predicted]:
        """What `predict` gives with the same options, a few rows at a time and in their order, so
        that no more than these need be in memory.

        Each has `batch_size` rows and the last one what is left; as many as memory likes when None.

        >>> from torch.utils.data import DataLoader
        >>> posterior = Posterior.of([nn.Linear(2, 3) for _ in range(5)])
        >>> loader = DataLoader(torch.zeros(10, 2), batch_size=4)
        >>> [len(p.mean) for p in posterior.predict_batches(loader, batch_size=4)]
        [4, 4, 2]
        """
        return batches_of(self, x, Wanted(draws, batch_size, keep_draws, noise, seed), run)

    def report(
        self,
        x: Any,
        y: Any = None,
        *,
        ood: Any = None,
        out: Any = "report.html",
        title: str | None = None,
        names: Sequence[str] = (),
        features: Sequence[str] = (),
        show: Callable[[Any], Any] | None = None,
        draws: int = 1,
        seed: int = 0,
        resamples: int = 300,
        overwrite: bool = False,
    ) -> Path:
        """Write one HTML page on what this posterior predicts, and return where it is.

        It has every measure with its 95 % interval, the figures and tables that the likelihood
        states (reliability, risk and coverage, histograms of uncertainty, scores by class), the
        most uncertain and the most confidently wrong examples, members beside the ensemble, and
        the training curves. It opens from disk, in light and dark, and asks nothing of a network.
        It needs `stochens[report]`.

        x, y: inputs as `predict` takes them, and the truth; y may be in x, as in a Dataset or a
            DataLoader of (x, y), or a dictionary with "labels".
        ood: inputs of another kind, of which it should be less sure.
        names: of classes, labels or targets, in their order; features: of the columns of x.
        show: a function of one input that gives what to show of it: an array [H, W] or [H, W, 3],
            or a text. If not given, [C, H, W] and [H, W] are pictures, and other inputs rows.
        draws, seed: as in `predict`; resamples: of the bootstrap behind the intervals.

        >>> import stochens, tempfile
        >>> x, y = stochens.toy_set("a", n=40)
        >>> posterior = stochens.fit(stochens.MLP(2, 5, 2), (x, y), members=3, epochs=1)
        >>> posterior.report(x, y, out=tempfile.mkdtemp() + "/report.html").name
        'report.html'
        """
        path = check_place(out, overwrite=overwrite)
        wishes = Wishes(title, names, features, show, draws, seed, resamples)
        write_report(self, x, y, ood, path, wishes)
        return path

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

        "model.onnx" (needs `stochens[onnx]`) or "model.pt2" (torch.export), both by torch 2.10
        or newer. The function is that of `predict(x, draws=draws, seed=seed, noise="shared")`:
        x [B, ...] and the noise of each draw to probs [B, C], entropy and mutual_information [B],
        or for regression to mean, std, aleatoric and epistemic [B, D], the last two as variances.

        Returned are the noise inputs by name, each [S, ...], numbers from U(0, 1) ("uniform_0") or
        N(0, 1) ("normal_0"). In ONNX they are the inputs' default values: x alone gives this seed's
        draws, and other numbers give others; onnxruntime warns of such inputs, unless you call
        onnxruntime.set_default_logger_severity(3). A .pt2 takes (x, noise). SWAG's draws of whole
        parameter sets are made now and are part of the file.

        A tree of inputs is that many inputs, by their names ("input_ids", "pair.0"); a .pt2 takes a
        dictionary of them. Lengths of sequences (the second axis of whole numbers and of masks)
        stay free too where the network takes other lengths and torch can trace that; noise that has
        a number for each position is needed in the new length then (`noise_inputs`).

        `example`: inputs to take shape and dtype from; those of training when None.
        """
        noise = self.noise_inputs(example, draws=draws, seed=seed)
        params = self.params
        if self.low_rank is not None:
            each = (params_of_draw(params, self.low_rank, k, seed=seed) for k in range(draws))
            params = join(list(each))
        temperature = temperature_of(self.calibration)
        count = draws * len(self)
        predictor = Predictor(self.net, params, self.likelihood, noise, count, temperature)
        about = {"posterior": repr(self), "draws": str(draws), "seed": str(seed)}
        write(path, predictor, self._example(example), about=about, overwrite=overwrite)
        return noise

    def noise_inputs(
        self, example: Any = None, *, draws: int = 1, seed: int = 0
    ) -> dict[str, Tensor]:
        """The noise of another seed for an exported predictor, by name, each [S, ...]."""
        whole(draws=draws)
        self.net.eval()
        requests = noise_requests(self.net, self._example(example))
        return noise_by_name(requests, len(self), draws=draws, seed=seed)

    def _example(self, given: Any) -> Input:
        """One input, [1, ...]."""
        like, target = trained_on(self)
        if given is not None:
            return first_input(given, like, target=target)
        example: Input | None = None if self.inputs is None else self.inputs.example()
        if example is None:
            raise InputError("this posterior does not know its inputs; pass an example of them")
        return example

    # -- what it is -----------------------------------------------------------------------------

    def kl(self, *, sigma: float = objective.SIGMA) -> objective.KL:
        """Every term of KL(q || prior), by name; `sigma` where a method has none of its own. Where
        parameters have Gaussians by natural gradients, `constant` is their term of the sigmas.

        Where members have priors of their own, each around its own start, it is the mean of their
        KL(q_k || prior_k), and the terms of the mixture (ensembling, repulsive) are 0.
        """
        prior: float | Centred = self.prior_precision
        if self.prior is not None:
            prior = Centred(precisions(self.prior, self.net), self.prior_mean)
        own = self.low_rank
        variance = own.variance if own is not None and own.diagonal() else None
        return objective.kl(self.net, self.params, prior, sigma=sigma, variance=variance)

    def summary(self) -> Description:
        """A table of layers: their noise, their parameters and bytes, what is frozen, shared or
        tied, and what runs predictions. `stochens.describe` gives it before training."""
        few = None if self.inputs is None else self.inputs.example().to(device_of(self.params))
        also, extra = "", 0
        if self.low_rank is not None:
            also = f"SWAG, a Gaussian of rank {self.low_rank.rank()} over all parameters"
            if self.low_rank.diagonal():
                also = "a Gaussian over all parameters, a sigma for each"
            extra = sum(count_bytes(part.values()) for part in self.low_rank)
        if self.chains is not None:
            also = f"draws of {self.chains.count} {self.chains.sampler.upper()} chains"
        return description_of(
            self.net.eval(),
            self.recipe.methods,
            few,
            output=self.recipe.output,
            members=len(self),
            runs=self.engine if few is None else what_predicts(self.net, few, self.engine),
            also=also,
            other_bytes=extra,
            calibration="" if self.calibration is None else str(self.calibration),
        )

    def member(self, k: int) -> dict[str, Tensor]:
        """The k-th member as the plain network's own load_state_dict wants it, buffers and all.

        Where a method trains two sets or a sigma, these are the first set and the mean; an adapter
        is part of its layer's weight. To hand a
        member to those who have no stochens:

            safetensors.torch.save_file(posterior.member(k), "member.safetensors")
            net.load_state_dict(safetensors.torch.load_file("member.safetensors"))

        The plain network has no noise: it is the member's centre, not its predictive.
        """
        if k not in range(-len(self), len(self)):
            raise InputError(f"member must be a place from 0 to {len(self) - 1}, got {k!r}")
        own = {id(p): name for name, p in self.net.named_parameters() if p.requires_grad}
        one = {  # a tied parameter under each of its names, and what all members share
            name: (self.params[own[id(t)]][k] if id(t) in own else t).detach().clone()
            for name, t in self.net.state_dict(keep_vars=True).items()
        }
        for path, layer in stochastic_places(self.net).items():
            prefix = f"{path}." if path else ""
            plain = {prefix + name for name in layer.plain.state_dict()}
            one = {n: p for n, p in one.items() if not n.startswith(prefix) or n in plain}
        one = merge_adapters(self.net, one)
        for name in self.likelihood.adds():
            del one[name]  # the likelihood's, not the network's
        return one

    def replica(self, d: int, sets: int) -> "Posterior":
        """The members that learned from the d-th of so many Replicas."""
        rows = [k for k, member in enumerate(self.members) if member % sets == d]
        if not rows:
            raise InputError(f"no member learned from set {d} of {sets}")
        return self.take(rows)

    def take(self, members: slice | list[int]) -> "Posterior":
        """Some of the members, by their places, as a posterior of their own.

        A temperature is left out, unless these are all of the members: it was fitted to the mean of
        all of them, and fewer are sure of themselves in another way.
        """
        places, chosen = range(len(self)), []
        with contextlib.suppress(IndexError, TypeError):
            chosen = (
                [*places[members]] if isinstance(members, slice) else [places[k] for k in members]
            )
        if not chosen:
            raise InputError(
                f"take wants a list or slice of places from 0 to {len(self) - 1}, got {members!r}"
            )
        return dataclasses.replace(
            self,
            params=take(self.params, members),
            prior_mean={n: t[members] if len(t) > 1 else t for n, t in self.prior_mean.items()},
            members=tuple(torch.tensor(self.members)[members].tolist()),
            low_rank=self.low_rank and self.low_rank.take(members),
            history=self.history and self.history.take(members),
            chains=None,  # some of the draws are no chain
            calibration=self.calibration if sorted(chosen) == [*places] else None,
        )

    def uncalibrated(self) -> "Posterior":
        """The same without the temperature that `stochens.calibration.fit_temperature` gave it."""
        return dataclasses.replace(self, calibration=None)

    def chain(self, k: int) -> "Posterior":
        """The draws of the k-th chain of a sampler, as a posterior of their own."""
        if self.chains is None:
            raise InputError("this posterior has no chains: no sampler made it")
        if not -self.chains.count <= k < self.chains.count:
            raise InputError(f"there are {self.chains.count} chains, got {k}")
        draws, k = len(self) // self.chains.count, k % self.chains.count
        return self.take(slice(k * draws, (k + 1) * draws))

    def save(self, path: Any, *, overwrite: bool = False) -> None:
        """Write one folder of safetensors and JSON; `stochens.load(path, net)` reads it back."""
        saved.write(path, self, overwrite=overwrite)


def load(
    path: Any,
    net: nn.Module | Builder,
    *,
    method: MethodLike | None = None,
    likelihood: Likelihood | None = None,
    output: Output | None = None,
    device: torch.device | str = "cpu",
) -> Posterior:
    """Read a saved posterior into the network it belongs to (the plain one, as given to `fit`).

    Never runs a pickle. Another network is refused by the first parameter that differs, or by its
    outputs at fixed inputs.
    `method`, `likelihood`: those given to `fit`, where they are of a class of your own; `output`:
    likewise, where it is a function.

    >>> import stochens, tempfile
    >>> net, data = stochens.MLP(2, 5, 2), stochens.toy_set("a", n=40)
    >>> folder = tempfile.mkdtemp() + "/mine"
    >>> stochens.fit(net, data, members=3, epochs=1).save(folder)
    >>> load(folder, net).params["0.weight"].shape  # [M, 5, 2]
    torch.Size([3, 5, 2])
    """
    return Posterior(**vars(saved.read(path, net, method, likelihood, output))).to(device)
