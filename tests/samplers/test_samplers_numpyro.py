"""NUTS against NumPyro's, on the same posteriors.

Both sides have a Monte Carlo error; z is the difference of two posterior means over the root of the
sum of their squared errors, those from effective sample sizes over all chains (ArviZ).
"""

import itertools
import os
import warnings

import numpy as np
import pytest
import torch
from scipy import stats as scipy_stats

# Chains in parallel; read when jax is first used.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + (
    " --xla_force_host_platform_device_count=4 --xla_cpu_multi_thread_eigen=false"
)

import stochens

numpyro = pytest.importorskip("numpyro")
jax = pytest.importorskip("jax")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its next version
    arviz = pytest.importorskip("arviz")

ALARM = 1e-4  # the chance that a right sampler fails one comparison, on another machine
CHAINS = 4

pytestmark = pytest.mark.filterwarnings("ignore")  # of jax about devices, of ours about short runs


def network(sizes, precision):
    """log p(y | x, theta) + log p(theta) of stochens.MLP(*sizes), as a NumPyro model."""
    import jax.numpy as jnp
    import numpyro.distributions as dist

    def model(x, y):
        h, sd = x, precision**-0.5
        for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
            weight = dist.Normal(0, sd).expand([outputs, inputs]).to_event(2)
            bias = dist.Normal(0, sd).expand([outputs]).to_event(1)
            h = h @ numpyro.sample(f"w{layer}", weight).T + numpyro.sample(f"b{layer}", bias)
            if layer < len(sizes) - 2:
                h = jnp.maximum(h, 0)
        numpyro.sample("y", dist.Categorical(logits=h), obs=y)

    return model


def theirs(sizes, precision, data, x_test, *, warmup, samples):
    """p(class 1 | x) of every draw, [chains, samples, B]."""
    from numpyro.infer import MCMC, NUTS

    sampler = MCMC(
        NUTS(network(sizes, precision)),
        num_warmup=warmup,
        num_samples=samples,
        num_chains=CHAINS,
        chain_method="parallel",
        progress_bar=False,
    )
    sampler.run(jax.random.PRNGKey(0), data[0].numpy(), data[1].numpy())
    draws = sampler.get_samples(group_by_chain=True)
    h = x_test.numpy()[None, None]  # [1, 1, B, inputs]
    for layer in range(len(sizes) - 1):
        weight, bias = np.asarray(draws[f"w{layer}"]), np.asarray(draws[f"b{layer}"])
        h = np.einsum(
            "csbi,csoi->csbo", np.broadcast_to(h, (CHAINS, samples, *h.shape[2:])), weight
        )
        h = h + bias[:, :, None]
        h = np.maximum(h, 0) if layer < len(sizes) - 2 else h
    return 1 / (1 + np.exp(h[..., 0] - h[..., 1]))


def ours(net, precision, data, x_test, *, warmup, samples):
    posterior = stochens.nuts(
        net, data, chains=CHAINS, samples=samples, warmup=warmup, prior=precision, seed=5
    )
    return posterior.predict(x_test).probs[..., 1].view(CHAINS, samples, -1).numpy(), posterior


def z_scores(a, b):
    """Of the means of a and b, [chains, samples, K] -> [K]."""
    errors = [
        np.array([float(arviz.mcse(v[..., k], method="mean")) for k in range(v.shape[-1])])
        for v in (a, b)
    ]
    return (a.mean((0, 1)) - b.mean((0, 1))) / np.hypot(*errors)


def alarm(z):
    """The chance of a largest |z| like this among as many, by Bonferroni."""
    return len(z) * 2 * scipy_stats.norm.sf(np.abs(z).max())


def test_logistic_regression():
    """A softmax over two classes with a weight for each: the posterior has one mode, and chains mix
    as if their draws were independent. Means, second moments and the prior's share."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator)
    y = (x[:, 0] - 0.5 * x[:, 1] + torch.randn(60, generator=generator) > 0).long()
    x_test = 2 * torch.randn(12, 3, generator=generator)
    a, posterior = ours(stochens.MLP(3, 2), 2.0, (x, y), x_test, warmup=300, samples=500)
    b = theirs((3, 2), 2.0, (x, y), x_test, warmup=300, samples=500)
    assert alarm(z_scores(a, b)) > ALARM
    assert alarm(z_scores(a**2, b**2)) > ALARM
    assert np.abs(a.mean((0, 1)) - b.mean((0, 1))).max() < 0.02  # and the errors are small enough
    assert float(posterior.chains.stats["diverged"].sum()) == 0


@pytest.mark.long
def test_toy_network():
    """162 weights whose posterior has many equal modes; predictions mix all the same, with about as
    many effective draws as draws on both sides (measured)."""
    x, y = stochens.toy_set("b", n=100)
    x_test = stochens.toy_set("b", n=12, draw=1)[0]
    sizes = (2, 10, 10, 2)
    a, _ = ours(stochens.MLP(*sizes), 1.0, (x, y), x_test, warmup=300, samples=500)
    b = theirs(sizes, 1.0, (x, y), x_test, warmup=150, samples=150)
    assert alarm(z_scores(a, b)) > ALARM
    assert alarm(z_scores(a**2, b**2)) > ALARM
    assert np.abs(a.mean((0, 1)) - b.mean((0, 1))).max() < 0.05  # and the errors are small enough
