"""BatchBALD: which inputs tell the most about the parameters together (Kirsch et al. 2019)."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from stochens.metrics.information import entropy
from stochens.randomness.seeds import derive

BLOCK = 1 << 20  # numbers at a time, of joint probabilities


class Batch(NamedTuple):
    """Inputs in the order in which they were chosen.

    indices [K]: their places among the candidates. information [K]: what the labels of the first k
    tell about the parameters together, in nats; it cannot pass log S, of S draws.

    >>> probs = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])  # two draws that contradict each other
    >>> choose(probs.double(), 1, configurations=100, seed=0).information
    tensor([0.6931], dtype=torch.float64)
    """

    indices: Tensor
    information: Tensor


class _Joint(NamedTuple):
    """Some labellings of the chosen inputs, y_1..y_k, under each draw.

    ratio [S, K]: p(labels | draw) / p(labels). weight [K]: of each in the mean over labellings,
    p(labels) where all of them are here, else 1/K.
    """

    ratio: Tensor
    weight: Tensor


def choose(probs: Tensor, size: int, *, configurations: int, seed: int) -> Batch:
    """Greedily, each time the input that adds most: probs [S, N, C] in float64.

        I(y_1..y_k, y_n; theta) - I(y_1..y_k; theta)
            = mean over labels y_1..y_k of H(y_n | labels), less mean_s H(y_n | theta_s)

    What an input adds never grows while others are chosen (labels are independent given theta). So
    what it added when it was last looked at is a bound, and only inputs whose bound is above the
    best are looked at again. Where labellings are drawn, that holds up to their noise.
    """
    probs = probs / probs.sum(-1, keepdim=True)  # float32 is off by 1e-7
    alone = entropy(probs).mean(0)  # [N]
    bound = torch.full_like(alone, torch.inf)
    taken: list[int] = []
    gains: list[float] = []
    for k in range(size):
        few = probs.shape[2] ** k <= configurations
        joint = (
            _exact(probs, taken) if few else _sampled(probs, taken, configurations, derive(seed, k))
        )
        some = len(alone) if k == 0 else max(1, BLOCK // (len(joint.weight) * probs.shape[2]))
        best, most = -1, -torch.inf
        left = bound.argsort(descending=True, stable=True)[: len(alone) - k]  # the taken are last
        for block in left.split(some):
            if bound[block[0]] <= most:
                break
            bound[block] = _conditional(probs[:, block], joint) - alone[block]
            if (gain := bound[block].max().item()) > most:
                best, most = int(block[bound[block].argmax()]), gain
        taken.append(best)
        gains.append(max(0.0, most))
        bound[best] = -torch.inf
    # an estimate may pass the bound by its noise, the information itself cannot
    total = torch.tensor(gains, dtype=torch.float64).cumsum(0).clamp_max(math.log(len(probs)))
    return Batch(torch.tensor(taken), total)


def _conditional(probs: Tensor, joint: _Joint) -> Tensor:
    """The mean of H(y_n | labels) over labellings, of some candidates: [S, n, C] -> [n].

    p(y_n = c | labels) = 1/S sum_s p(labels | s) / p(labels) p(y_n = c | s)
    """
    draws, count, classes = probs.shape
    r = (joint.ratio.mT @ probs.reshape(draws, -1) / draws).reshape(-1, count, classes)
    return joint.weight @ entropy(r)


def _exact(probs: Tensor, taken: list[int]) -> _Joint:
    """All labellings, C^k of them."""
    logs = torch.zeros(len(probs), 1, dtype=probs.dtype)  # [S, K]
    for n in taken:
        logs = (logs.unsqueeze(2) + probs[:, n].log().unsqueeze(1)).flatten(1)
    log_prob = _log_mean(logs)
    possible = log_prob > -torch.inf
    logs, log_prob = logs[:, possible], log_prob[possible]
    return _Joint((logs - log_prob).exp(), log_prob.exp())


def _sampled(probs: Tensor, taken: list[int], count: int, seed: int) -> _Joint:
    """So many labellings or a few more from the mixture of all draws, as many of each draw as of
    any other."""
    generator = torch.Generator().manual_seed(seed)
    count = len(probs) * math.ceil(count / len(probs))
    draw = torch.arange(count) % len(probs)
    logs = torch.zeros(len(probs), count, dtype=probs.dtype)
    for n in taken:
        own = probs[:, n]  # [S, C]
        label = torch.multinomial(own[draw], 1, generator=generator).squeeze(1)  # [K]
        logs += own.log()[:, label]
    return _Joint((logs - _log_mean(logs)).exp(), torch.full((count,), 1 / count).to(logs))


def _log_mean(logs: Tensor) -> Tensor:
    """log of the mean over draws, [S, K] -> [K]."""
    return logs.logsumexp(0) - math.log(len(logs))
