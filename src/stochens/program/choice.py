"""Which program runs a network: the traced one, or none, and then vmap serves.

A program is taken after it has been seen to give what vmap gives, for two members on a few inputs.
What cannot be traced, or differs, is said in one line of the log.
"""

import logging

import torch
from torch import Tensor, nn

from stochens.members import Engine, Params, forward, forward_each, trainable
from stochens.program.program import Noise, Program, build
from stochens.program.trace import Untraceable
from stochens.randomness.noise import member_noise
from stochens.randomness.seeds import seeded

log = logging.getLogger("stochens")

# ||program - vmap|| / ||vmap|| that rounding may make: a wrong rule is off by far more
WITHIN = {torch.float64: 1e-8, torch.float32: 1e-2, torch.bfloat16: 0.2}
APART = 0.05  # how far the second member of the test is from the network's own parameters


def choose(
    net: nn.Module,
    few: Tensor,
    *,
    own_rows: bool,
    engine: Engine = "vmap",
    dtype: torch.dtype | None = None,
) -> Program | None:
    """The program of a network in its mode for inputs like few [B, ...], on their device; None
    where there is none.

    own_rows: whether each member will have inputs of its own. engine: what runs the network
    otherwise. dtype: what the program computes in; None: in that of the parameters.

    >>> net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    >>> choose(net, torch.randn(4, 3), own_rows=True) is not None
    True
    """
    try:
        program = build(net, few, dtype=dtype)
        with seeded(0, few.device):
            off = distance_to_members(program, net, few, own_rows=own_rows, engine=engine)
    except Untraceable as error:
        log.info("members run by %s: the network cannot be traced (%s)", engine, error)
        return None
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        log.info("members run by %s: their program does not run (%s)", engine, reason)
        return None
    allowed = WITHIN.get(dtype or next(iter(trainable(net).values())).dtype, 0.2)
    if not off <= allowed:
        log.warning(
            "members run by %s: their program is off by %.1e, and %.1e is allowed; please report "
            "this network",
            *(engine, off, allowed),
        )
        return None
    return program


def distance_to_members(
    program: Program, net: nn.Module, few: Tensor, *, own_rows: bool, engine: Engine
) -> float:
    """||program - engine|| / ||engine|| of outputs, for two members with noise of their own; 0
    where the network draws from torch's generator, so that two passes never agree."""
    ids = torch.tensor([0, 1], device=few.device)
    noise = Noise(ids, torch.tensor([0], device=few.device))
    params: Params = {}
    for name, p in trainable(net).items():
        one = p.detach().to(few.device)
        params[name] = torch.stack([one, one + APART * torch.randn_like(one)])
    x = few.expand(2, *few.shape) if own_rows else few
    with torch.no_grad():
        ours = program.each(params, x, noise) if own_rows else program(params, x, noise)
        before = _generator(few.device)
        with member_noise(*noise):
            run = forward_each if own_rows else forward
            theirs = run(net, params, x, engine=engine)
    if not torch.equal(before, _generator(few.device)):
        return 0.0
    return float((ours - theirs).double().norm() / theirs.double().norm().clamp_min(1e-30))


def _generator(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
