"""The folder that a posterior is saved in: what is written there, read back and checked."""

from typing import Any

from torch import Tensor, nn

from stochens.adapter import Output
from stochens.errors import InputError
from stochens.files import storage
from stochens.likelihoods import LIKELIHOODS, Likelihood
from stochens.members import Builder, Params, builder, copy_network, shared_by_all, trainable
from stochens.methods import MethodLike, resolve, stochastic
from stochens.posterior.chains import Chains
from stochens.posterior.fields import PosteriorFields
from stochens.posterior.fingerprint import differs, fingerprint
from stochens.posterior.history import History
from stochens.posterior.low_rank import LowRankGaussian
from stochens.posterior.recipe import Inputs, Recipe, describe_part, rebuild_part
from stochens.posterior.temperature import Calibration
from stochens.posterior.templates import as_members_have_it
from stochens.posterior.trials import Trials
from stochens.prior import Prior
from stochens.randomness.seeds import derive, seeded

FORMAT = "stochens posterior 1"
# With a prior that is more than a precision, which versions that know the first one only would not
# see: kl() would be another there.
WITH_PRIOR = "stochens posterior 2"
# With a temperature, and a prior of any kind: predictions would be others there.
WITH_TEMPERATURE = "stochens posterior 3"


def write(path: Any, posterior: PosteriorFields, *, overwrite: bool) -> None:
    """One folder of safetensors and JSON, whole or not there."""
    kind = FORMAT if posterior.prior is None else WITH_PRIOR
    kind = kind if posterior.calibration is None else WITH_TEMPERATURE
    storage.write_folder(
        path, kind, tensors(posterior), _description(posterior), overwrite=overwrite
    )


def tensors(posterior: PosteriorFields) -> dict[str, Tensor]:
    """Everything that is a tensor, by kind and name."""
    # Copies, since one tensor may have several names, which safetensors refuses.
    shared = {name: t.clone() for name, t in shared_by_all(posterior.net).items()}
    kinds: dict[str, dict[str, Tensor]] = {"params": posterior.params, "shared": shared}
    if posterior.prior_mean:
        kinds["prior"] = posterior.prior_mean
    if posterior.history is not None:
        kinds["history"] = posterior.history._asdict()
    if posterior.low_rank is not None:
        kinds |= {f"low_rank.{part}": v for part, v in posterior.low_rank._asdict().items()}
    if posterior.chains is not None:
        kinds |= posterior.chains.tensors()
    if (outputs := fingerprint(posterior.net, posterior.params, posterior.inputs)) is not None:
        kinds["fingerprint"] = {"outputs": outputs}
    return {f"{kind}/{name}": t for kind, named in kinds.items() for name, t in named.items()}


def _description(posterior: PosteriorFields) -> dict[str, Any]:
    """Everything else."""
    return {
        **posterior.recipe.description(),
        "likelihood": describe_part(posterior.likelihood, LIKELIHOODS),
        "members": list(posterior.members),
        "parameters": list(posterior.params),  # in the order that SWAG's draws follow
        "data_size": posterior.data_size,
        "sample_weight": posterior.sample_weight,
        "prior_precision": posterior.prior_precision,
        "prior": posterior.prior and posterior.prior.description(),
        "seed": posterior.seed,
        "engine": posterior.engine,
        "chains": posterior.chains and posterior.chains.description(),
        "trials": posterior.trials and posterior.trials.description(),
        "inputs": posterior.inputs and posterior.inputs._asdict(),
        "calibration": posterior.calibration and posterior.calibration._asdict(),
    }


def read(
    path: Any,
    net: nn.Module | Builder,
    method: MethodLike | None,
    likelihood: Likelihood | None,
    output: Output | None = None,
) -> PosteriorFields:
    """The posterior, on the CPU, for the plain network that it belongs to; method, likelihood and
    output where they are the user's own."""
    says = storage.format_of(path)
    kind = says if says in (WITH_PRIOR, WITH_TEMPERATURE) else FORMAT
    found, about = storage.read_folder(path, kind)
    kinds: dict[str, dict[str, Tensor]] = {}
    for key, tensor in found.items():
        kind, _, name = key.partition("/")
        kinds.setdefault(kind, {})[name] = tensor
    params, common = kinds.get("params", {}), kinds.get("shared", {})
    with storage.reading(path):
        recipe = Recipe.read(about, None if method is None else resolve(method), path, output)
        likelihood = rebuild_part(about["likelihood"], likelihood, LIKELIHOODS, "likelihood", path)
        seed = derive(about["seed"])  # the same as in `fit`
    with seeded(seed):
        # A module as it is: its weights are overwritten, and it need not be one that resets them.
        template = copy_network(net).cpu() if isinstance(net, nn.Module) else builder(net)()
        template = as_members_have_it(template, params)
        if recipe.calling is not None:
            template = recipe.calling.adapt(template)
        for name in likelihood.adds()[:1]:
            if name in params:
                template = likelihood.prepare(template, params[name])
        template = stochastic(template, recipe.methods, output=recipe.output)
    _refuse_another(trainable(template), {name: p[0] for name, p in params.items()}, path)
    _refuse_another(shared_by_all(template), common, path)
    for name, t in template.state_dict(keep_vars=True).items():
        if (kept := params.get(name, common.get(name))) is not None:
            t.data = t.data.to(kept.dtype)  # a sampler may have been asked for another
    template.load_state_dict(common, strict=False)
    template.eval()  # as everything that makes a posterior leaves it
    with storage.reading(path):
        # the network's own order in folders of before, where theirs was not kept
        names = sorted(params, key=about.get("parameters", list(trainable(template))).index)
        inputs = Inputs.read(about.get("inputs"))
    params = {name: params[name] for name in names}
    _refuse_other_outputs(template, params, inputs, kinds.get("fingerprint", {}), path)
    with storage.reading(path):
        return PosteriorFields(
            net=template,
            params=params,
            likelihood=likelihood,
            recipe=recipe,
            members=tuple(about["members"]),
            data_size=about["data_size"],
            sample_weight=about.get("sample_weight"),
            prior_precision=about["prior_precision"],
            prior=_prior(about.get("prior"), kinds),
            prior_mean=kinds.get("prior", {}),
            seed=about["seed"],
            history=History.of(kinds["history"]) if "history" in kinds else None,
            low_rank=_low_rank(kinds, names),
            engine=about["engine"],
            chains=Chains.read(kinds, about.get("chains")),
            inputs=inputs,
            trials=Trials.read(about.get("trials")),
            calibration=Calibration.read(about.get("calibration")),
        )


def _prior(about: dict[str, Any] | None, kinds: dict[str, Params]) -> Prior | None:
    return None if about is None else Prior.read(about, kinds.get("prior", {}))


def _low_rank(kinds: dict[str, Params], names: list[str]) -> LowRankGaussian | None:
    if "low_rank.variance" not in kinds:
        return None
    parts = (kinds[f"low_rank.{field}"] for field in LowRankGaussian._fields)
    return LowRankGaussian(*({name: part[name] for name in names} for part in parts))


def _refuse_another(wanted: Params, found: Params, path: Any) -> None:
    for name in [*wanted, *found]:
        here = tuple(wanted[name].shape) if name in wanted else "absent"
        there = tuple(found[name].shape) if name in found else "absent"
        if here != there:
            raise InputError(
                f"{path} holds another network: parameter {name!r} is {here} in the network given "
                f"and {there} in the file"
            )


def _refuse_other_outputs(
    net: nn.Module, params: Params, inputs: Inputs | None, found: Params, path: Any
) -> None:
    """Of the same parameters another network makes other predictions, which nobody would notice."""
    there, here = found.get("outputs"), fingerprint(net, params, inputs)
    if there is None or here is None:  # of a version before this check, or it has noise of its own
        return
    if (apart := differs(there, here)) is not None:
        raise InputError(
            f"{path} holds another network: with the same parameters the one given has outputs up "
            f"to {apart:.3g} away from the saved ones. Its activations, options or constants "
            "differ; random constants that are no buffers are drawn anew when it is built"
        )
