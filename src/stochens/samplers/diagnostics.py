"""Whether chains may be trusted, in numbers and in words."""

import contextlib
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor

from stochens.errors import InputError, outside
from stochens.members import flatten
from stochens.posterior.posterior import Posterior
from stochens.samplers.chain_arrival import Arrival, arrival_troubles, measure_arrival
from stochens.samplers.chain_heat import Finding, find, heat_of, heat_troubles
from stochens.samplers.mixing import LEAST_DRAWS, Mixing, mixing
from stochens.text_table import text_table
from stochens.trees import Input

RHAT_LIMIT = 1.01  # Vehtari et al. 2021
ESS_LIMIT = 100  # of each chain, ibid.
BFMI_LIMIT = 0.3  # Betancourt 2016; Stan and ArviZ warn below it
ACCEPT_LIMIT = 0.5  # a chain below it has not found its step size
CUT_LIMIT = 0.05  # share of trajectories cut at max_depth that is worth a word
FEW_DRAWS = 100  # of a chain: fewer say nothing of energies
MEMBERS_ESS = 400  # of all members of `mclmc` together: Vehtari et al. 2021, of all chains
FEW_INPUTS = 20  # of the training data, whose predictions a sampler looks at by itself


class SamplingWarning(UserWarning):
    """A run whose draws are not to be trusted, or that can be had for less."""


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
    arrival: Arrival | None = None  # of `mclmc`
    temperature: Finding | None = None  # of `sgmcmc`: the place that is worst, 1 is right
    virial: Finding | None = None  # likewise

    def table(self) -> str:
        """Of predictions and of parameters the worst that there is."""
        rows = []
        for name, m in (("predictions", self.predictions), ("parameters", self.parameters)):
            if m is not None:
                values = float(m.rhat.max()), float(m.ess_bulk.min()), float(m.ess_tail.min())
                rows.append([name, f"{values[0]:.3f}", f"{values[1]:,.0f}", f"{values[2]:,.0f}"])
        return text_table(["", "R-hat, largest", "bulk ESS, least", "tail ESS, least"], rows)

    def __str__(self) -> str:
        lines = [] if self.arrival is not None else [f"{self.divergences} divergences"]
        if self.arrival is not None:
            lines.append(str(self.arrival))
        for name, found in (("temperature", self.temperature), ("virial", self.virial)):
            if found is not None:
                lines.append(f"{name} {found}")
        if self.accept is not None:
            lines.append(f"acceptance {_range(self.accept)}")
        if self.e_bfmi is not None:
            lines.append(f"E-BFMI {_range(self.e_bfmi)}")
        if self.depth:
            lines.append(f"tree depth {self.depth:.1f}")
        if self.leapfrogs is not None:
            lines.append(f"{self.leapfrogs:,.0f} leapfrogs a draw")
        words = [f"! {trouble}" for trouble in self.troubles] or ["nothing to worry about"]
        return "\n".join([self.table(), "", ", ".join(lines), *words])


def _range(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    return f"{low:.2f} to {high:.2f}" if f"{low:.2f}" != f"{high:.2f}" else f"{low:.2f}"


def diagnose(posterior: Posterior, x: Any) -> Diagnosis:
    """R-hat, effective sample sizes and the sampler's own signs of trouble.

    Predictions are those at x [B, ...]: p(class | x), or the mean of a regression; at most 200 of
    them, and of the parameters, are looked at, evenly spaced.

    >>> from stochens import nuts
    >>> x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    >>> posterior = nuts(torch.nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), samples=1000, warmup=500)
    >>> bool(diagnose(posterior, x).predictions.rhat.max() < 1.05)
    True
    """
    chains = posterior.chains
    if chains is None:
        raise InputError("diagnose needs the chains of a sampler; this posterior has none")
    stats = chains.stats
    draws = len(posterior) // chains.count
    troubles = sampler_troubles(posterior)
    predictions = parameters = arrival = None
    if draws < LEAST_DRAWS:
        troubles.append(_too_few(draws))
    else:
        outputs = _outputs(posterior, x).unflatten(0, (chains.count, draws))
        predictions = mixing(outputs)
        parameters = mixing(flatten(posterior.params).unflatten(0, (chains.count, draws)))
        if chains.sampler == "mclmc":
            arrival = measure_arrival(chains, outputs)
            troubles += arrival_troubles(arrival)
        said = _mixing_in_words(predictions, chains.count, "the predictions", chains.sampler)
        troubles += [] if said is None else [said]
    heat = heat_of(chains)
    return Diagnosis(
        predictions=predictions,
        parameters=parameters,
        divergences=int(stats["diverged"].sum()) if "diverged" in stats else 0,
        e_bfmi=e_bfmi(stats["energy"]) if "energy" in stats and draws >= LEAST_DRAWS else None,
        accept=stats["accept"].mean(1) if "accept" in stats else None,
        depth=float(stats["depth"].mean()) if "depth" in stats else None,
        leapfrogs=float(stats["leapfrogs"].mean()) if "leapfrogs" in stats else None,
        troubles=troubles,
        arrival=arrival,
        temperature=None if heat is None else find(heat.temperature, _sizes(posterior)),
        virial=None if heat is None else find(heat.virial, _sizes(posterior)),
    )


def _sizes(posterior: Posterior) -> dict[str, int]:
    """How many numbers of a draw each parameter has."""
    return {name: p[0].numel() for name, p in posterior.params.items()}


def _outputs(posterior: Posterior, x: Any) -> Tensor:
    """What each draw predicts, [S, K]."""
    found: Tensor = posterior.predict(x, keep_draws=True).quantities()
    return found


def e_bfmi(energy: Tensor) -> Tensor:
    """mean (E_n - E_{n-1})^2 / var E, of energy [chains, draws] -> [chains] (Betancourt, 2016).

    A chain that stands still has 0, the worst there is.
    """
    ratio = energy.diff(dim=1).square().mean(1) / energy.var(1, correction=0)
    return ratio.where(~ratio.isnan() | energy.isnan().any(1), 0.0)


# In words -----------------------------------------------------------------------------------------


def warn_of_trouble(posterior: Posterior, x: Input, more: str | None = None) -> None:
    """Said once at the end of a run on the inputs x: what its own statistics tell, `more` that the
    sampler has found, and whether its chains mixed."""
    found = _arrival(posterior, x)
    own = (more, *sampler_troubles(posterior), *(arrival_troubles(found) if found else []))
    for said in (*own, mixing_trouble(posterior, x)):
        if said is not None:
            warnings.warn(said, SamplingWarning, stacklevel=outside())


class Verdict(NamedTuple):
    """Whether members have arrived, and whether the steps were too long where they have not."""

    arrived: bool
    too_long: bool


def judge_members(posterior: Posterior, x: Input) -> Verdict:
    """Of `mclmc`: it has arrived where `warn_of_trouble` has nothing to say."""
    found = _arrival(posterior, x)
    if found is None:
        return Verdict(arrived=False, too_long=False)
    wrong = sampler_troubles(posterior) + arrival_troubles(found)
    arrived = not wrong and mixing_trouble(posterior, x) is None
    return Verdict(arrived=arrived, too_long=found.too_long)


def _arrival(posterior: Posterior, x: Input) -> Arrival | None:
    """Of `mclmc`, whose draws have more to say of themselves."""
    chains = posterior.chains
    assert chains is not None
    if chains.sampler != "mclmc" or len(posterior) < LEAST_DRAWS * chains.count:
        return None
    outputs = torch.zeros(chains.count, len(posterior) // chains.count, 0)
    with contextlib.suppress(InputError):  # a likelihood that cannot predict
        found = _outputs(posterior, x[:: -(-len(x) // FEW_INPUTS)])
        outputs = found.cpu().unflatten(0, (chains.count, -1))
    return measure_arrival(chains, outputs)


def mixing_trouble(posterior: Posterior, x: Input) -> str | None:
    """R-hat and bulk ESS of the predictions at a few of the inputs x, and of the log density.

    Not of the weights, which need not mix: units can change places without changing a prediction.
    The limits are those of Vehtari et al. 2021. It costs less than one gradient of these inputs for
    each draw.
    """
    assert posterior.chains is not None
    chains, stats = posterior.chains.count, posterior.chains.stats
    draws = len(posterior) // chains
    if draws < LEAST_DRAWS:
        return _too_few(draws)
    few = x[:: -(-len(x) // FEW_INPUTS)]
    parts = []
    exact = "energy" in stats or "virial" in stats  # a mini-batch's likelihood is mostly noise
    if exact:
        parts.append((stats["likelihood"] + stats["prior"]).unsqueeze(2))
    with contextlib.suppress(InputError):  # a likelihood that cannot predict
        parts.append(_outputs(posterior, few).cpu().double().unflatten(0, (chains, draws)))
    if not parts:
        return None
    q = torch.cat(parts, 2)  # [chains, draws, K]
    q = q[q.isfinite().all(2).all(1)]  # chains that are NaN are told of elsewhere
    q = q[..., (q.amax((0, 1)) > q.amin((0, 1)))] if len(q) else q
    if q.numel() == 0:
        return None  # nothing ever changes, as where all predictions are 0 or 1
    what = f"predictions at {len(few)} training inputs"
    if exact:
        what += " and the log density"
    return _mixing_in_words(mixing(q), len(q), what, posterior.chains.sampler)


def _mixing_in_words(m: Mixing, chains: int, what: str, sampler: str = "") -> str | None:
    """What is wrong and no more, in one sentence, with what to do."""
    if sampler == "mclmc":
        return _members_in_words(m, chains, what)
    worst, least = float(m.rhat.max()), float(m.ess_bulk.min())
    wrong, remedy = [], "more samples"
    if chains == 1:
        wrong.append("one chain alone has no R-hat, so that nothing tells whether it arrived")
        remedy = "several chains" if least >= ESS_LIMIT else "several chains and more samples"
    elif not worst <= RHAT_LIMIT:  # NaN: a quantity that never changed
        wrong.append(f"R-hat of {what} is up to {worst:.3f} (good: at most {RHAT_LIMIT})")
        remedy = "more samples and a longer warmup or burn_in"
    if not least >= ESS_LIMIT * chains:
        of_what = "" if wrong else f" for {what}"
        wrong.append(
            f"the draws are worth as few as {least:,.0f} independent ones{of_what} (good: at least "
            f"{ESS_LIMIT * chains}, which is {ESS_LIMIT} for each chain)"
        )
    return f"{', and '.join(wrong)}. Ask for {remedy}" if wrong else None


def _members_in_words(m: Mixing, members: int, what: str) -> str | None:
    """Likewise of an ensemble, whose members may each be a mode's own draws."""
    worst, least = float(m.rhat.max()), float(m.ess_bulk.min())
    if members == 1:
        return (
            "one member alone has no R-hat, so that nothing tells whether it arrived. Ask for more"
        )
    if not worst <= RHAT_LIMIT:
        return (
            f"R-hat of {what} is up to {worst:.3f} (good: at most {RHAT_LIMIT}): members differ by "
            "more than their own draws do. Ask for a longer warmup and more draws_per_member; "
            "where members sit in modes of their own that does not end it, and more members make "
            "the mixture of them finer"
        )
    if not least >= MEMBERS_ESS:
        return (
            f"the draws are worth as few as {least:,.0f} independent ones for {what} (good: at "
            f"least {MEMBERS_ESS}). Ask for more members or draws_per_member"
        )
    return None


def _too_few(draws: int) -> str:
    return (
        f"{draws} draws of each chain are too few for R-hat and effective sample sizes, which "
        f"need at least {LEAST_DRAWS}; ask for more samples"
    )


def sampler_troubles(posterior: Posterior) -> list[str]:
    """What the sampler's own statistics say, with what to do about it."""
    assert posterior.chains is not None
    chains, stats = posterior.chains, posterior.chains.stats
    found = heat_troubles(chains, _sizes(posterior), posterior.data_size)
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
                f"{cut:.0%} of the trajectories were cut at max_depth = {limit}: draws follow each "
                "other closely, so that more of them are needed. Parameters of very different "
                "scales, or rounding, may keep the steps so short. "
                f"max_depth={limit + 2} makes longer trajectories"
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
