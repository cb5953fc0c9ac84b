"""How long `import stochens` takes, over torch's own import: `python benchmarks/imports.py`.

Each import is timed in a process of its own, in turns, so that both meet the same machine. The
interpreter's own start is not counted.
"""

import json
import statistics
import subprocess
import sys

ROUNDS = 7
TIMED = """
import time
began = time.perf_counter()
import {module}
print(time.perf_counter() - began)
"""


def seconds(module: str) -> float:
    code = TIMED.format(module=module)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    for module in ("torch", "stochens"):
        seconds(module)  # from disk into memory
    pairs = [(seconds("torch"), seconds("stochens")) for _ in range(ROUNDS)]
    ratios = sorted(mine / torch for torch, mine in pairs)
    found = {
        "torch_s": statistics.median(torch for torch, _ in pairs),
        "stochens_s": statistics.median(mine for _, mine in pairs),
        "ratio": statistics.median(ratios),
        "ratios": [ratios[0], ratios[-1]],
        "python": sys.version.split()[0],
    }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
