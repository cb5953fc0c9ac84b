"""Lightning: members that one's own LightningModule and Trainer have trained, as a posterior."""

import copy
import warnings
import weakref
from typing import Any

import torch
from torch import nn

from stochens.errors import InputError, TrainingAdvice, outside
from stochens.posterior.posterior import Posterior

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
except ModuleNotFoundError as error:
    if (error.name or "").split(".")[0] != "lightning":
        raise
    raise ImportError(
        "stochens.lightning needs lightning: pip install 'stochens[lightning]'"
    ) from None


class Members(Callback):  # type: ignore[misc]
    """A callback that keeps the network at the end of every `trainer.fit`: a member of a posterior.

    Give one such callback to the Trainer of each run, and each run a seed and a module of its own.
    The weights are those at the end of `fit`, after any callback that averages them. A module that
    is fitted again replaces its member; a run that is interrupted, and `fast_dev_run`, add none.

    network: the name of the part of your module that makes outputs of x, say "net" for `self.net`;
        if not given, the module itself by its `forward`.

    >>> import lightning, stochens
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> class Mine(lightning.LightningModule):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.net = stochens.MLP(2, 10, 2)
    ...
    ...     def training_step(self, batch, number):
    ...         x, y = batch
    ...         return nn.functional.cross_entropy(self.net(x), y)
    ...
    ...     def configure_optimizers(self):
    ...         return torch.optim.Adam(self.parameters(), lr=0.01)
    >>> x, y = stochens.toy_set("a", n=40)  # [40, 2], [40]
    >>> members = Members("net")
    >>> quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    >>> for seed in range(3):
    ...     seed = lightning.seed_everything(seed, verbose=False)
    ...     trainer = lightning.Trainer(
    ...         max_epochs=2, callbacks=[members], enable_model_summary=False, **quiet
    ...     )
    ...     trainer.fit(Mine(), DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True))
    >>> posterior = members.posterior(example=x, data_size=len(x))
    >>> posterior
    Posterior(3 members, regular, N = 40)
    >>> posterior.predict(x).mutual_information.shape  # [B]
    torch.Size([40])
    """

    def __init__(self, network: str = "") -> None:
        super().__init__()
        self.network = network
        self.networks: list[nn.Module] = []  # of each member, on the CPU
        self._places: weakref.WeakKeyDictionary[nn.Module, int] = weakref.WeakKeyDictionary()

    def __len__(self) -> int:
        return len(self.networks)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """A name that the module has no part of is refused before the training."""
        self._part(pl_module)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the network. Not at the end of training: there others still average weights."""
        if trainer.fast_dev_run:
            return
        net = copy.deepcopy(self._part(pl_module)).cpu().eval()
        place = self._places.setdefault(pl_module, len(self))
        self.networks[place : place + 1] = [net]
        for k, other in enumerate(self.networks):
            if k != place and _same(net, other):
                warnings.warn(
                    f"members {min(k, place)} and {max(k, place)} have the same weights, so that "
                    "they count as one opinion given twice; give each run a seed of its own",
                    TrainingAdvice,
                    stacklevel=outside(),
                )
                break

    def posterior(self, **options: Any) -> Posterior:
        """The members so far, by `Posterior.of` with its options (likelihood, example, ...)."""
        if not self.networks:
            raise InputError(
                "no run has ended with this callback: Trainer(callbacks=[members]).fit(...) in "
                "this process (strategy='ddp_spawn' trains in others)"
            )
        return Posterior.of(self.networks, **options)

    def _part(self, module: LightningModule) -> nn.Module:
        try:
            part: nn.Module = module.get_submodule(self.network)
        except AttributeError:
            parts = ", ".join(repr(name) for name, _ in module.named_children()) or "none"
            raise InputError(
                f"Members({self.network!r}): {type(module).__name__} has no such part; it has "
                f"{parts}"
            ) from None
        return part


def _same(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
