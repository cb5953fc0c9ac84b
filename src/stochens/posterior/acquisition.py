"""What to look at next: labels to ask for, and points to try.

>>> import torch, stochens
>>> x, y = stochens.toy_set("a", n=200)
>>> posterior = stochens.fit(stochens.MLP(2, 5, 2), (x[:20], y[:20]), members=20, epochs=5)
>>> p = posterior.predict(x[20:], noise="shared")  # each draw one function of x
>>> stochens.acquisition.batch_bald(p, 5).indices.shape  # the next five to have labelled
torch.Size([5])
"""

import math
from typing import Any, Literal

import torch
from torch import Tensor

from stochens.checks import whole, whole_seed
from stochens.errors import InputError, check_known
from stochens.likelihoods import Predicted
from stochens.metrics.information import mutual_information
from stochens.metrics.inputs import checked_probs
from stochens.posterior.batch_bald import Batch, choose
from stochens.posterior.botorch_model import botorch_model, botorch_posterior
from stochens.posterior.draw_means import draw_moments
from stochens.randomness.seeds import derive

__all__ = [
    "Batch",
    "bald",
    "batch_bald",
    "botorch_model",
    "botorch_posterior",
    "expected_improvement",
    "thompson",
]

Goal = Literal["max", "min"]
Of = Literal["function", "outcome"]
CONFIGURATIONS = 10_000  # labellings of a batch: all of them up to here, drawn ones beyond


def bald(p: Predicted | Tensor) -> Tensor:
    """I(y; theta) = H[mean p] - mean H[p] of each input by itself, in nats: [B].

    p: a prediction, or probs [S, B, C] of the draws. The best k by it are not the best k together:
    of two copies of an input both are among them. `batch_bald` sees that.

    >>> bald(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]]))  # two draws that contradict each other
    tensor([0.6931], dtype=torch.float64)
    """
    if isinstance(p, Predicted):
        return p.mutual_information.detach().cpu().double()
    return mutual_information(_draws(p))


def batch_bald(
    p: Predicted | Tensor, size: int, *, configurations: int = CONFIGURATIONS, seed: int = 0
) -> Batch:
    """The inputs whose labels tell the most about the parameters together, chosen greedily.

        I(y_1, ..., y_k; theta) = H(y_1, ..., y_k) - sum_i mean_s H(y_i | theta_s)

    p: a prediction with its draws, or probs [S, B, C]. Each draw must be one function of x: predict
        with noise="shared" where the method has noise on outputs. Information cannot pass log S,
        so that a large batch needs many draws: `predict(x, draws=20, noise="shared")`.
    configurations: joint entropies are exact while the batch has no more labellings C^k than this,
        and estimates from as many drawn labellings beyond that.

    >>> sure, torn = torch.tensor([[1.0, 0.0]] * 2), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> probs = torch.stack([torn, torn, sure], 1)  # [S = 2, B = 3, C], the second is a copy
    >>> batch_bald(probs, 2).information  # the copy adds nothing
    tensor([0.6931, 0.6931], dtype=torch.float64)
    """
    probs = _draws(p)
    whole(size=size, configurations=configurations)
    whole_seed(seed)
    if size > probs.shape[1]:
        raise InputError(f"size must be at most the {probs.shape[1]} inputs of p, got {size}")
    return choose(probs, int(size), configurations=int(configurations), seed=int(seed))


def expected_improvement(
    p: Predicted, best: float, *, goal: Goal = "max", of: Of = "function"
) -> Tensor:
    """E[max(0, f(x) - best)] over the draws, or of best - f(x) where the goal is "min": [B].

    p: a prediction of one target, with its draws. of: "function" takes f as what each draw says
    without noise, so that only what the parameters are unsure of counts; "outcome" takes y with its
    noise, exactly for Gaussian noise: of each draw s

        sd_s (z Phi(z) + phi(z)),  z = (mean_s - best) / sd_s

    >>> import stochens
    >>> means = torch.tensor([[[0.0]], [[2.0]]])  # two draws at one input
    >>> p = stochens.GaussianPredictive.of(means, torch.ones_like(means))
    >>> expected_improvement(p, best=1.0), expected_improvement(p, best=1.0, of="outcome")
    (tensor([0.5000], dtype=torch.float64), tensor([0.5833], dtype=torch.float64))
    """
    check_known("goal", goal, ("max", "min"))
    check_known("of", of, ("function", "outcome"))
    if not isinstance(best, (int, float)) or not math.isfinite(best):
        raise InputError(f"best must be a finite number, the best value so far, got {best!r}")
    means, variances = draw_moments(p)
    gain = (means - best) * (1 if goal == "max" else -1)  # [S, B]
    if of == "function":
        return gain.clamp_min(0).mean(0)
    sd = variances.sqrt()
    smooth = sd * _gain_of_unit_noise(torch.where(sd > 0, gain / sd, 0.0))
    return torch.where(sd > 0, smooth, gain.clamp_min(0)).mean(0)


def _gain_of_unit_noise(z: Tensor) -> Tensor:
    """z Phi(z) + phi(z). Far below 0, where the two nearly cancel, it is
    phi(z) (1 + z Phi(z) / phi(z)), of which erfcx has the quotient.

    >>> _gain_of_unit_noise(torch.tensor([0.0, -10.0], dtype=torch.float64))
    tensor([3.9894e-01, 7.4746e-25], dtype=torch.float64)
    """
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    below = z.clamp_max(0)
    quotient = math.sqrt(math.pi / 2) * torch.special.erfcx(-below / math.sqrt(2))
    tail = density * (1 + below * quotient).clamp_min(0)
    return torch.where(z < 0, tail, z * torch.special.ndtr(z) + density)


def thompson(p: Predicted, count: int, *, goal: Goal = "max", seed: int = 0) -> Tensor:
    """Where functions drawn from the posterior have their optimum among the inputs of p: [count].

    Each of `count` draws, different ones as long as there are any, says where it is best; the same
    input may come several times. p: a prediction of one target, with its draws, each of them one
    function of x: predict with noise="shared" where the method has noise on outputs.

    >>> import stochens
    >>> means = torch.tensor([[[0.0], [1.0]], [[5.0], [1.0]]])  # [S = 2, B = 2, D = 1]
    >>> p = stochens.GaussianPredictive.of(means, torch.ones_like(means))
    >>> sorted(thompson(p, 2).tolist())
    [0, 1]
    """
    check_known("goal", goal, ("max", "min"))
    whole(count=count)
    means, _ = draw_moments(p)
    generator = torch.Generator().manual_seed(derive(whole_seed(seed)))
    rounds = math.ceil(count / len(means))
    orders = [torch.randperm(len(means), generator=generator) for _ in range(rounds)]
    drawn = means[torch.cat(orders)[:count]]  # [count, B]
    return drawn.argmax(1) if goal == "max" else drawn.argmin(1)


def _draws(p: Any) -> Tensor:
    """Probabilities of each draw, [S, B, C] in float64."""
    if not isinstance(p, (Predicted, Tensor)):
        raise InputError(
            f"this is for classes: a prediction or probs [S, B, C], got {type(p).__name__}"
        )
    return checked_probs(p if isinstance(p, Tensor) else p.probs, "probs", "[S, B, C]").cpu()
