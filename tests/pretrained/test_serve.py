"""examples/serve: an exported posterior behind FastAPI, asked by real requests."""

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import stochens
from stochens.posterior.export_program import OLDEST_TORCH

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "frames.md").read_text()
X, Y = stochens.toy_set("a", n=40)
LIMIT = 60.0  # seconds that the server may take to answer first, on a busy machine
# float32 in both, but sums of another order; entropies are of size 1 and are subtracted
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 3e-6}

for package in ("fastapi", "uvicorn", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="needs stochens[serve] and stochens[onnx]")
pytestmark = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}"
)


class Server(NamedTuple):
    posterior: stochens.Posterior
    address: str

    def ask(self, path: str, given: Any = None) -> tuple[int, Any]:
        body = None if given is None else json.dumps(given).encode()
        kind = {"content-type": "application/json"}
        request = urllib.request.Request(self.address + path, body, kind)
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """By the command of the page, on a port that is free."""
    model = tmp_path_factory.mktemp("serve") / "model.onnx"
    posterior = stochens.fit(stochens.MLP(2, 5, 2), (X, Y), members=3, epochs=20, lr=0.03)
    posterior.export(model)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    (line,) = re.findall(r"^uvicorn .*$", PAGE, re.MULTILINE)
    words = [sys.executable, "-m", *shlex.split(line.replace("8000", port))]
    surroundings = os.environ | {"MODEL": str(model), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        words, cwd=ROOT, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    found = Server(posterior, f"http://127.0.0.1:{port}")
    try:
        _wait_for(found, process)
        yield found
    finally:
        process.terminate()
        process.communicate()


def _wait_for(server: Server, process: subprocess.Popen[bytes]) -> None:
    began = time.monotonic()
    while time.monotonic() - began < LIMIT:
        if process.poll() is not None:
            assert process.stdout is not None
            pytest.fail(process.stdout.read().decode())
        with contextlib.suppress(urllib.error.URLError):
            server.ask("/model")
            return
        time.sleep(0.1)
    pytest.fail(f"the server did not answer within {LIMIT} s")


def test_it_answers_what_predict_says(server):
    for rows in (1, 7):
        p = server.posterior.predict(X[:rows], noise="shared")
        status, said = server.ask("/predict", {"x": X[:rows].tolist()})
        assert status == 200
        assert list(said) == ["probs", "entropy", "mutual_information"]
        torch.testing.assert_close(torch.tensor(said["probs"]), p.mean, **CLOSE)
        torch.testing.assert_close(torch.tensor(said["entropy"]), p.entropy, **CLOSE)
        torch.testing.assert_close(
            torch.tensor(said["mutual_information"]), p.mutual_information, **CLOSE
        )


def test_it_says_what_it_serves(server):
    status, said = server.ask("/model")
    assert status == 200
    assert said["inputs"] == {"x": ["batch", 2]}
    assert said["outputs"] == ["probs", "entropy", "mutual_information"]
    assert said["made_of"]["posterior"] == "Posterior(3 members, dropout, N = 40)"


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"x": [[1.0, 2.0, 3.0]]}, r"x must be ['batch', 2], got [1, 3]"),
        ({"x": [1.0, 2.0]}, r"x must be ['batch', 2], got [2]"),
        ({"x": [[1.0, 2.0], [3.0]]}, "x must have rows of one length"),
        ({"x": [["one", "two"]]}, "x must be numbers in lists of lists"),
        ({"x": None}, "x must be numbers in lists of lists"),
        ({"x": [[float("nan"), 0.0]]}, "x must be finite numbers that float32 can hold"),
        ({"x": [[1e300, 0.0]]}, "x must be finite numbers that float32 can hold"),
        ({"x": [[0.0, 0.0]] * 1025}, "x must have 1 to 1024 rows, got 1025"),
        ({"y": [[0.0, 0.0]]}, "the model takes ['x'], got ['y']"),
        ({}, "the model takes ['x'], got []"),
    ],
)
def test_what_it_cannot_take_is_422_with_a_sentence(server, given, why):
    assert server.ask("/predict", given) == (422, {"detail": why})


def test_what_is_no_object_is_422_too(server):
    assert server.ask("/predict", [[0.0, 0.0]])[0] == 422
