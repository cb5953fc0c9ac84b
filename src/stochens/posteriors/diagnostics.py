"""Whether chains may be trusted, in numbers and in words."""

import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from stochens.errors import InputError
from stochens.members import flatten
from stochens.result.posterior import Posterior

RHAT_LIMIT = 1.01  # Vehtari et al. 2021
ESS_LIMIT = 100  # of each chain, ibid.
BFMI_LIMIT = 0.3  # Betancourt 2016; Stan and ArviZ warn below it
ACCEPT_LIMIT = 0.5  # a chain below it has not found its step size
CUT_LIMIT = 0.05  # share of trajectories cut at max_depth that is worth a word
LEAST_DRAWS = 4  # of a chain: it is split in two halves, and a variance needs two draws
FEW_DRAWS = 100  # of a chain: fewer say nothing of energies
MOST_QUANTITIES = 200  # of which R-hat and ESS are taken, evenly spaced


class SamplingWarning(UserWarning):
    """A run whose draws are not to be trusted, or that can be had for less."""


class Mixing(NamedTuple):
    """Of K quantities, each [K]: rank-normalised split R-hat, bulk and tail ESS."""

    rhat: Tensor
    ess_bulk: Tensor
    ess_tail: Tensor


class Diagnosis(NamedTuple):
    """What `diagnose` found. `troubles` says it in words, with what to do; empty if all is well.

    R-hat of the predictions is the one to look at: a network's parameters can be permuted without
    changing it, so they need not mix where the predictions do.
    """

    predictions: Mixing | None  # None: too few draws
    parameters: Mixing | None
    divergences: int
    e_bfmi: Tensor | None  # [chains]
    accept: Tensor | None  # [chains], mean
    depth: float | None  # mean; NUTS alone has it
    leapfrogs: float | None  # of a draw, mean
    troubles: list[str]

    def table(self) -> Table:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
        for name in ("", "R-hat, largest", "bulk ESS, least", "tail ESS, least"):
            table.add_column(name, justify="right" if name else "left")
        for name, m in (("predictions", self.predictions), ("parameters", self.parameters)):
            if m is not None:
                values = float(m.rhat.max()), float(m.ess_bulk.min()), float(m.ess_tail.min())
                table.add_row(name, f"{values[0]:.3f}", f"{values[1]:,.0f}", f"{values[2]:,.0f}")
        return table

    def __str__(self) -> str:
        console = Console(width=100, color_system=None)
        with console.capture() as capture:
            console.print(self.table())
        lines = [f"{self.divergences} divergences"]
        if self.accept is not None:
            lines.append(f"acceptance {_range(self.accept)}")
        if self.e_bfmi is not None:
            lines.append(f"E-BFMI {_range(self.e_bfmi)}")
        if self.depth:
            lines.append(f"tree depth {self.depth:.1f}")
        if self.leapfrogs is not None:
            lines.append(f"{self.leapfrogs:,.0f} leapfrogs a draw")
        words = [f"  ! {trouble}" for trouble in self.troubles] or ["  nothing to worry about"]
        return capture.get() + "  " + ", ".join(lines) + "\n" + "\n".join(words)


def _range(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.2f} to {high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else f"{low:.2f}"


def diagnose(posterior: Posterior, x: Any) -> Diagnosis:
    """R-hat, effective sample sizes and the sampler's own signs of trouble (needs arviz).

    Predictions are those at x [B, ...]: p(class | x), or the mean of a regression; at most 200 of
    them, and of the parameters, are looked at, evenly spaced.

    >>> from stochens import nuts
    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = nuts(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), samples=200, warmup=200)
    >>> bool(diagnose(posterior, x).predictions.rhat.max() < 1.05)
    True
    """
    chains = posterior.chains
    if chains is None:
        raise InputError("diagnose needs the chains of a sampler; this posterior has none")
    stats = chains.stats
    draws = len(posterior) // chains.count
    troubles = sampler_troubles(posterior)
    predictions = parameters = None
    if draws < LEAST_DRAWS:
        troubles.append(
            f"{draws} draws of each chain are too few for R-hat and effective sample sizes, which "
            f"need at least {LEAST_DRAWS}; ask for more samples"
        )
    else:
        outputs = _outputs(posterior, x).unflatten(0, (chains.count, draws))
        predictions = mixing(outputs)
        parameters = mixing(flatten(posterior.params).unflatten(0, (chains.count, draws)))
        troubles += _mixing_troubles(predictions, chains.count)
    return Diagnosis(
        predictions=predictions,
        parameters=parameters,
        divergences=int(stats["diverged"].sum()) if "diverged" in stats else 0,
        e_bfmi=e_bfmi(stats["energy"]) if "energy" in stats and draws >= LEAST_DRAWS else None,
        accept=stats["accept"].mean(1) if "accept" in stats else None,
        depth=float(stats["depth"].mean()) if "depth" in stats else None,
        leapfrogs=float(stats["leapfrogs"].mean()) if "leapfrogs" in stats else None,
        troubles=troubles,
    )


def _outputs(posterior: Posterior, x: Any) -> Tensor:
    """What each draw predicts, [S, K]."""
    found: Tensor = posterior.predict(x, keep_draws=True).quantities()
    return found


def mixing(quantities: Tensor) -> Mixing:
    """R-hat and ESS of quantities [chains, draws, K], by ArviZ.

    >>> draws = torch.randn(4, 100, 3, generator=torch.Generator().manual_seed(0))
    >>> mixing(draws).rhat.shape
    torch.Size([3])
    """
    az = arviz()
    if quantities.shape[2] > MOST_QUANTITIES:
        quantities = quantities[..., :: -(-quantities.shape[2] // MOST_QUANTITIES)]
    data = az.convert_to_dataset({"q": quantities.detach().double().cpu().numpy()})
    results = [az.ess(data, method=method) for method in ("bulk", "tail")]
    bulk, tail = (torch.from_numpy(np.asarray(r["q"].values)) for r in results)
    if quantities.shape[0] == 1:  # of one chain ArviZ has none either, and logs a line to say so
        return Mixing(torch.full_like(bulk, torch.nan), bulk, tail)
    return Mixing(torch.from_numpy(np.asarray(az.rhat(data)["q"].values)), bulk, tail)


def arviz() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # it announces its own next version
        try:
            import arviz as az
        except ImportError:
            raise InputError(
                "R-hat and effective sample sizes need arviz: pip install 'stochens[arviz]'"
            ) from None
    return az


def e_bfmi(energy: Tensor) -> Tensor:
    """mean (E_n - E_{n-1})^2 / var E, of energy [chains, draws] -> [chains] (Betancourt, 2016).

    A chain that stands still has 0, the worst there is.
    """
    ratio = energy.diff(dim=1).square().mean(1) / energy.var(1, correction=0)
    return ratio.where(~ratio.isnan() | energy.isnan().any(1), 0.0)


# In words -----------------------------------------------------------------------------------------


def warn_of_trouble(posterior: Posterior, *, stacklevel: int) -> None:
    """What can be seen without arviz, said once at the end of a run."""
    for trouble in sampler_troubles(posterior):
        warnings.warn(trouble, SamplingWarning, stacklevel=stacklevel)


def sampler_troubles(posterior: Posterior) -> list[str]:
    """What the sampler's own statistics say, with what to do about it."""
    assert posterior.chains is not None
    chains, stats, found = posterior.chains, posterior.chains.stats, []
    draws = len(posterior) // chains.count
    if "diverged" in stats and float(stats["diverged"].sum()):
        count, worst = int(stats["diverged"].sum()), int(stats["diverged"].sum(1).argmax())
        found.append(
            f"{count} of {draws * chains.count} transitions diverged ({count / len(posterior):.1%},"
            f" most in chain {worst}): the posterior is too curved there for the step size, and "
            "those places are visited too rarely. Try target_accept=0.95, then 0.99, or float64"
        )
    if "accept" in stats and draws >= FEW_DRAWS:
        accept = stats["accept"].mean(1)
        if float(accept.min()) < ACCEPT_LIMIT:
            found.append(
                f"chain {int(accept.argmin())} accepts only {float(accept.min()):.0%} of its moves:"
                " its warm-up was too short to find a step size. Ask for a longer warmup"
            )
    if chains.sampler == "nuts":
        limit = chains.settings["max_depth"]
        cut = float((stats["depth"] >= limit).double().mean())
        if cut > CUT_LIMIT and draws >= FEW_DRAWS:
            found.append(
                f"{cut:.0%} of the trajectories were cut at max_depth = {limit}: the draws are "
                f"right but follow each other closely. max_depth={limit + 2} makes longer ones"
            )
    if "energy" in stats and draws >= FEW_DRAWS:
        bfmi = e_bfmi(stats["energy"])
        if float(bfmi.min()) < BFMI_LIMIT:
            found.append(
                f"E-BFMI of chain {int(bfmi.argmin())} is {float(bfmi.min()):.2f}, below "
                f"{BFMI_LIMIT}: momenta change its energy too little to reach the tails. Ask for a "
                "longer warmup, or for more samples"
            )
    return found


def _mixing_troubles(m: Mixing, chains: int) -> list[str]:
    found = []
    if chains == 1:
        found.append("one chain alone has no R-hat: nothing tells that it arrived. Ask for more")
    elif not float(m.rhat.max()) <= RHAT_LIMIT:  # NaN: a quantity that never changed
        found.append(
            f"R-hat of the predictions is up to {float(m.rhat.max()):.3f}, above {RHAT_LIMIT}: the "
            "chains have not forgotten where they began. Ask for more samples and a longer warmup"
        )
    if not float(m.ess_bulk.min()) >= ESS_LIMIT * chains:
        found.append(
            f"the draws are worth as few as {float(m.ess_bulk.min()):,.0f} independent ones for a "
            f"prediction; {ESS_LIMIT} of each chain is the least to trust. Ask for more samples"
        )
    return found
