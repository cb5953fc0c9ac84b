"""The comparison on real images: how close each method comes to full-batch HMC on digits.

A small ResNet with filter response normalisation learns scikit-learn's digits. It is then asked
about test digits, the same rotated, the same with noise, and patches of photographs.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from stochens import metrics
from stochens.comparison import OWN_NOISE
from stochens.errors import InputError
from stochens.members import Params
from stochens.metrics import Interval
from stochens.networks import SmallResNetFRN
from stochens.posterior.posterior import Posterior
from stochens.posterior.predictive import Predictive
from stochens.samplers.sampling import hmc
from stochens_lab.data.digits import add_noise, cut_photo_patches, read_digits, rotate
from stochens_lab.experiments import configs
from stochens_lab.experiments.cifar_measures import measure_labelled
from stochens_lab.experiments.configs import config_to_json
from stochens_lab.experiments.rows import (
    CHAINS,
    ENSEMBLES,
    Training,
    by_langevin,
    by_mclmc,
    describe_reference,
    describe_training,
    predict_classes,
)
from stochens_lab.experiments.runs import (
    checkpoint_folder,
    find_device,
    finish_run,
    is_whole,
    open_run,
    work_in,
)
from stochens_lab.report.closeness import closeness, own_noise
from stochens_lab.report.run_folder import SAMPLER, TRAINING, RunFolder


@dataclasses.dataclass(frozen=True, kw_only=True)
class DigitsConfig:
    """What a run is made of. Presets are in PRESETS."""

    preset: Annotated[
        str, typer.Option(help="What size of run: {default} (if not given) or paper.")
    ] = "quick"
    images: int = 300  # to train on, of 1257
    channels: int = 8  # faster than 6: convolutions on CPUs work in eights
    members: configs.Members = 10
    steps: int = 450  # what the time allows: SE3 and gaussian are not at their end
    langevin_steps: int = 450  # of the whole data, each
    mclmc_steps: int = 2000  # likewise, of two gradients: fewer leave its members on their way
    chains: int = 4
    samples: int = 20
    warmup: int = 20
    trajectory: float = 0.6  # in standard deviations of the prior
    leapfrogs: int = 70  # of a trajectory, at most
    resamples: int = 300  # of the bootstrap over images
    seed: configs.Seed = 0
    device: configs.Device = None
    engine: configs.Engine = "auto"
    address: configs.Address = None
    out: configs.Out = Path("runs/digits")


PRESETS: dict[str, dict[str, Any]] = {
    "quick": {},
    "paper": {  # for a GPU
        "images": 1257,
        "members": 100,
        "steps": 4000,
        "langevin_steps": 4000,
        "mclmc_steps": 10_000,
        "chains": 8,
        "samples": 300,
        "warmup": 100,
        "trajectory": math.pi / 2,  # Izmailov et al. 2021
        "leapfrogs": 600,
    },
}


def configure(preset: str | None = None, **changes: Any) -> DigitsConfig:
    """A preset, with some of its fields changed; None leaves one as it is."""
    return DigitsConfig(**configs.merge_preset(PRESETS, preset, changes))


def reconfigure(path: Path, **changes: Any) -> DigitsConfig:
    """The Config of a run that was stopped; only where it is worked on may change."""
    before = configs.read_fields(DigitsConfig, path, "digits")
    return configs.change_config(DigitsConfig, before, changes, {"device", "address"})


SET = "digits"
REFERENCE, NOISE_ROW = "HMC", "HMC" + OWN_NOISE
LABELLED = ("test", "rotated", "noisy")
UNLABELLED = "photographs"
DEGREES, NOISE = 30.0, 0.3  # of the shifts: a pixel's standard deviation is 0.37
PRIOR_PRECISION = 1.0  # of all methods and of HMC
FIRST_STEP = 0.002  # of HMC: its curvature is up to 3e4, so that steps over 0.01 are unstable
TARGET_ACCEPT = 0.65  # Beskos et al. 2013: the best for many parameters
DIAGNOSED = 100  # test digits whose predictions tell of the chains


Data = tuple[Tensor, Tensor]  # x [N, 1, 8, 8], y [N]


TRAININGS = ENSEMBLES | {"langevin": by_langevin, "mclmc": by_mclmc}


def run(
    config: DigitsConfig, *, resume: bool = False, note: Callable[[str], None] = lambda text: None
) -> Path:
    """Sample, train, predict, compare; everything goes to the run folder, which is returned.

    `resume`: what the folder holds is done already, and the rest is gone on with.
    """
    if resume and is_whole(config.out):
        note(f"{config.out} is complete")
        return config.out
    data, places, labels = _load_images(config)
    device = find_device(config.engine, config.address, config.device)
    with open_run(config.out, "digits", config_to_json(config), device, resume=resume) as folder:
        for domain in LABELLED:
            folder.arrays[f"{SET}/points/labels-{domain}"] = labels.numpy()
        net = SmallResNetFRN(channels=config.channels)

        note(f"{REFERENCE}: {config.chains} chains of {config.samples} draws")
        with folder.timed(f"{SET}/{REFERENCE}"):
            reference = sample(net, data, config, folder)
            truth = {
                place: predict_classes(reference, x, keep_draws=False)
                for place, x in places.items()
            }
        folder.put(SAMPLER, (SET,), describe_reference(reference, places["test"][:DIAGNOSED]))
        _keep_predictions(folder, REFERENCE, truth)
        _put_rows(folder, REFERENCE, measure_all(truth, labels, resamples=config.resamples))
        if config.chains > 1:
            noise = {d: own_noise(p, resamples=config.resamples) for d, p in truth.items()}
            _put_rows(folder, NOISE_ROW, noise)
        folder.write()

        own_steps = {"langevin": config.langevin_steps, "mclmc": config.mclmc_steps}
        for name, train in TRAININGS.items():
            steps = own_steps.get(name, config.steps)
            members = min(config.members, CHAINS) if name == "mclmc" else config.members
            note(f"{name}: {members} members, {steps} steps")
            with folder.timed(f"{SET}/{name}"):
                posterior = train(
                    net,
                    data,
                    steps=steps,
                    members=members,
                    **_common(config, checkpoint_folder(folder, name)),
                )
                found = {place: predict_classes(posterior, x) for place, x in places.items()}
            _keep_predictions(folder, name, found)
            _put_rows(folder, name, measure_all(found, labels, resamples=config.resamples))
            near = {d: closeness(p, truth[d], resamples=config.resamples) for d, p in found.items()}
            _put_rows(folder, name, near)
            row = Training(name, train, steps)
            folder.put(TRAINING, (SET, name), describe_training(posterior, row))
            folder.write()
        return finish_run(folder)


def _common(config: DigitsConfig, keep: Path) -> dict[str, Any]:
    """What all methods and HMC have in common; `keep`: where the work is kept meanwhile."""
    return {"prior": PRIOR_PRECISION, "seed": config.seed, "run": work_in(config, keep)}


def _load_images(config: DigitsConfig) -> tuple[Data, dict[str, Tensor], Tensor]:
    """What to train on, the images of each domain, and the labels of those that have any."""
    x, y, x_test, y_test = read_digits(seed=config.seed)
    if not 1 <= config.images <= len(x):
        raise InputError(
            f"images must be 1 to {len(x)}, the digits to train on, got {config.images}"
        )
    places = {
        "test": x_test,
        "rotated": rotate(x_test, degrees=DEGREES),
        "noisy": add_noise(x_test, sd=NOISE, seed=config.seed),
        UNLABELLED: cut_photo_patches(len(x_test), seed=config.seed),
    }
    return (x[: config.images], y[: config.images]), places, y_test  # shuffled by the split


# The reference ------------------------------------------------------------------------------------


def sample(net: nn.Module, data: Data, config: DigitsConfig, folder: RunFolder) -> Posterior:
    """Full-batch HMC from members that no ensemble has, brought to the size of the prior."""
    sd = PRIOR_PRECISION**-0.5
    ids = range(config.members, config.members + config.chains)
    start = _common(config, checkpoint_folder(folder, "start"))
    trained = TRAININGS["regular"](net, data, steps=config.steps, members=ids, **start)
    return hmc(
        net,
        data,
        chains=config.chains,
        samples=config.samples,
        warmup=config.warmup,
        start=resize_channels(trained.params, sd=sd),
        trajectory=config.trajectory * sd,
        max_leapfrogs=config.leapfrogs,
        step_size=FIRST_STEP * sd,
        target_accept=TARGET_ACCEPT,
        **_common(config, checkpoint_folder(folder, REFERENCE)),
    )


def resize_channels(params: Params, *, sd: float) -> Params:
    """Every channel's weights and bias of a convolution, scaled to root mean square sd.

    FRN follows each convolution and divides by the size of its output: the function stays the same.
    Training leaves parameters of size 0.24, where a step of HMC must be as short as 0.002, and far
    from the prior's size, which chains would first have to reach.
    """
    new = dict(params)
    for name, weight in params.items():
        if weight.dim() == 5:  # [M, C, inputs, 3, 3]
            to_bias = name.removesuffix("weight") + "bias"
            both = torch.cat([weight.flatten(2), params[to_bias].unsqueeze(2)], dim=2)
            scale = sd / both.square().mean(2).sqrt().clamp_min(1e-12)  # [M, C]
            new[name] = weight * scale[..., None, None, None]
            new[to_bias] = params[to_bias] * scale
    return new


# What is kept -------------------------------------------------------------------------------------


def measure_all(
    found: Mapping[str, Predictive], labels: Tensor, *, resamples: int
) -> dict[str, dict[str, Interval]]:
    """domain -> metric -> what can be said without the reference."""
    rows = {domain: measure_labelled(found[domain], labels, resamples) for domain in LABELLED}
    known, unknown = found["test"].mean, found[UNLABELLED].mean
    auroc = metrics.bootstrap(metrics.ood_auroc, known, unknown, resamples=resamples)
    return rows | {UNLABELLED: {"OOD AUROC": auroc}}


def _put_rows(folder: RunFolder, method: str, rows: Mapping[str, Mapping[str, Interval]]) -> None:
    for domain, row in rows.items():
        # NLL is infinite where a label has probability 0
        known = {
            name: interval for name, interval in row.items() if all(map(math.isfinite, interval))
        }
        folder.put_row((SET, method, domain), known)


def _keep_predictions(folder: RunFolder, method: str, found: Mapping[str, Predictive]) -> None:
    for domain, p in found.items():
        folder.predictive((SET, method, domain), p)
