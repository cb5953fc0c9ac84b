"""Memory of prediction: 1024 members over a million points, streamed.

    python benchmarks/prediction.py [--members 1024] [--points 1000000]

The draws alone would be members * points * classes * 4 bytes; what is kept are sums.
"""

import argparse
import resource
import time
import warnings

import torch

import stochens
from stochens.errors import TrainingAdvice


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def main() -> None:
    warnings.simplefilter("ignore", TrainingAdvice)  # trainings are short here on purpose
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=1024)
    parser.add_argument("--points", type=int, default=1_000_000)
    args = parser.parse_args()
    data = stochens.toy_set("a")
    net = stochens.MLP(2, 10, 10, 2)
    posterior = stochens.fit(net, data, members=args.members, epochs=1, progress=False)
    x = torch.rand(args.points, 2) * 20 - 10
    before, began = peak_gib(), time.perf_counter()
    p = posterior.predict(x)
    seconds = time.perf_counter() - began
    assert isinstance(p, stochens.Predictive)
    draws = args.members * args.points * 2 * 4 / 2**30
    print(f"{args.members} members x {args.points} points in {seconds:.0f} s")
    print(f"peak memory {peak_gib():.2f} GiB ({before:.2f} before); all draws: {draws:.1f} GiB")
    print(f"draws kept: {p.draws is not None}; mean entropy {float(p.entropy.mean()):.4f} nats")


if __name__ == "__main__":
    main()
