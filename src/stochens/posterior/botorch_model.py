"""A posterior for BoTorch, which is imported when it is asked for."""

import importlib
from typing import Any

import torch
from torch import Tensor

from stochens.checks import whole, whole_seed
from stochens.likelihoods import Predicted, draws_of
from stochens.members import forward
from stochens.posterior.low_rank import params_of_draw
from stochens.posterior.posterior import Posterior
from stochens.posterior.shared_noise import noise_of_draw, noise_requests
from stochens.posterior.temperature import temperature_of


def botorch_posterior(p: Predicted) -> Any:
    """A prediction of numbers as BoTorch's EnsemblePosterior: its values are the draws' means
    [S, B, D], which covary over the B inputs as the posterior says.

    >>> import stochens
    >>> p = stochens.GaussianPredictive.of(torch.zeros(5, 4, 1), torch.ones(5, 4, 1))
    >>> botorch_posterior(p).mean.shape  # doctest: +SKIP
    torch.Size([4, 1])
    """
    posterior = _needed("botorch.posteriors.ensemble").EnsemblePosterior
    return posterior(values=p.draw_moments()[0])


def botorch_model(posterior: Posterior, *, draws: int = 1, seed: int = 0) -> Any:
    """A regression's posterior as BoTorch's EnsembleModel, for its acquisition functions and
    optimize_acqf: X [..., q, d] -> what each of S = members * draws functions says, [..., S, q, D],
    with gradients with respect to X.

    Each draw is one function, as of `predict(noise="shared")`, and always the same. Noise of y is
    left out: BoTorch's ensembles are of the function. Values have the dtype of X. Needs
    `stochens[botorch]`.

    >>> import stochens
    >>> x = torch.rand(20, 2)
    >>> posterior = stochens.fit(stochens.MLP(2, 5, 1), (x, x[:, 0]), likelihood="gaussian",
    ...     members=3, epochs=1)
    >>> model = botorch_model(posterior)  # doctest: +SKIP
    >>> model.posterior(torch.rand(7, 2)).mean.shape  # doctest: +SKIP
    torch.Size([7, 1])
    """
    whole(draws=draws)
    whole_seed(seed)
    base = _needed("botorch.models.ensemble").EnsembleModel
    function = _function(posterior, int(draws), int(seed))

    class Ensemble(base):  # type: ignore[misc, valid-type]
        """The members, as BoTorch's models are."""

        def __init__(self) -> None:
            super().__init__()
            with torch.no_grad():
                self._num_outputs = function(posterior._example(None)).shape[-1]

        def forward(self, X: Tensor) -> Tensor:
            flat = X.reshape(-1, X.shape[-1])  # [B, d]
            values: Tensor = function(flat).reshape(-1, *X.shape[:-1], self._num_outputs)
            return values.movedim(0, -3).to(X)

    return Ensemble()


def _function(posterior: Posterior, draws: int, seed: int) -> Any:
    """x [B, d] -> means [S, B, D] of every draw."""
    net, members = posterior.net.eval(), len(posterior)
    requests = noise_requests(net, posterior._example(None)) or None
    params = [
        params_of_draw(posterior.params, posterior.low_rank, k, seed=seed) for k in range(draws)
    ]
    dtype, device = (t := next(iter(posterior.params.values()))).dtype, t.device
    noise = [
        None
        if requests is None
        else [t.to(device) for t in noise_of_draw(requests, members, k, seed=seed)]
        for k in range(draws)
    ]
    scale = temperature_of(posterior.calibration)

    def means(x: Tensor) -> Tensor:
        x = x.to(device, dtype)
        each = [
            forward(net, theta, x, engine=posterior.engine, noise=own)
            for theta, own in zip(params, noise, strict=True)
        ]
        found, _ = draws_of(posterior.likelihood, torch.cat(each)).moments()
        centre = found.mean(0)
        return found if scale == 1 else centre + scale * (found - centre)

    return means


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] != "botorch":
            raise
        raise ImportError(
            "a posterior for BoTorch needs the package botorch: pip install 'stochens[botorch]'"
        ) from None
