"""What rows of one method are told apart by: how they were made, and else their folders."""

from collections.abc import Mapping, Sequence
from typing import Any

ALL_IMAGES = 50_000  # that CIFAR has to train on; a run that asks for no number has them all
# In the order in which they are tried. {s} is the plural's letter.
SETTINGS = {
    "members": "{:,} member{s}",
    "lr": "learning rate {:g}",
    "step_size": "step size {:g}",
    "epochs": "{:,} epoch{s}",
    "images": "{:,} image{s}",
    "draws": "{:,} inference{s} each",
    "batch_size": "batches of {:,}",
    "schedule": "{} schedule",
    "prior_precision": "prior precision {:g}",
    "test_images": "{:,} test image{s}",
    "seed": "seed {}",
}


def phrase_setting(key: str, value: Any) -> str:
    """
    >>> phrase_setting("images", 40960), phrase_setting("step_size", 1.8e-3)
    ('40,960 images', 'step size 0.0018')
    """
    return SETTINGS[key].format(value, s="" if value == 1 else "s")


def read_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run's settings that make a difference to its row, as far as they are known."""
    found = {key: config[key] for key in SETTINGS if _known(key, config.get(key))}
    if "images" in config and config["images"] is None:
        found["images"] = ALL_IMAGES
    return found


def _known(key: str, value: Any) -> bool:
    """A run written by hand may have anything in its settings."""
    return isinstance(value, str if key == "schedule" else int | float)


def distinguish(found: Sequence[Mapping[str, Any]], folders: Sequence[str]) -> list[str]:
    """What to add to the name that all of these have, no more than is needed.

    >>> found = [{"members": 50, "epochs": 60}, {"members": 10, "epochs": 60}]
    >>> distinguish([*found, {"members": 10, "epochs": 15}], ["a", "b", "c"])
    [', 50 members', ', 10 members, 60 epochs', ', 10 members, 15 epochs']
    """
    if len(found) < 2:
        return [""] * len(found)
    for key in SETTINGS:
        values = [one.get(key) for one in found]
        if None in values or len(set(values)) == 1:
            continue
        ends = [""] * len(found)
        for value in set(values):
            at = [i for i in range(len(found)) if values[i] == value]
            rest = distinguish([found[i] for i in at], [folders[i] for i in at])
            for i, more in zip(at, rest, strict=True):
                ends[i] = f", {phrase_setting(key, value)}{more}"
        return ends
    return [f" ({folder})" for folder in folders]
