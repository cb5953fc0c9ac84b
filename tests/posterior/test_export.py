"""The exported predictor, run by onnxruntime and by torch alone, against `predict`."""

import dataclasses
import logging
import warnings
from typing import Any

import pytest
import torch
from tests.tolerance import close
from torch import Tensor, nn
from torch.torch_version import TorchVersion

import stochens
from stochens import DropConnect, Dropout, Gaussian, InputError, NPDropout, Regular
from stochens.networks import FRN
from stochens.posterior import export_program
from stochens.posterior.export_program import OLDEST_TORCH, program
from stochens.samplers.diagnostics import SamplingWarning

needs_scan = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}"
)
# Of the convolutional network, the largest: sums of 9 and 9 (its norm), SiLU, 36 and 3 (softmax),
# 58 in five layers. Terms of logits add up to 7 at most, and softmax halves their error.
CLOSE = close(torch.float32, terms=12, depth=5, scale=4.0)
TOLD = 1e-2  # of mutual information: far more than that

METHODS = [
    "regular",
    Dropout(0.3, node="channel"),
    DropConnect(0.3),
    NPDropout(),
    [Dropout(0.2), Gaussian(0.1)],
    Gaussian(0.1, learn=True),
]


def convnet() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), FRN(4), nn.SiLU(), nn.Flatten(), nn.Linear(4 * 9, 3))


@pytest.fixture(scope="module")
def images():
    x = torch.randn(20, 1, 5, 5, generator=torch.Generator().manual_seed(0))
    return x, torch.arange(20) % 3


def fit(net, data, method="regular", **options):
    # a high rate, so that the members are far from uniform and from one another
    settings = {"members": 3, "epochs": 20, "lr": 0.03, "batch_size": None} | options
    return stochens.fit(net, data, method=method, **settings)


def wanted(p):
    if isinstance(p, stochens.GaussianPredictive):
        return p.mean, p.std, p.aleatoric, p.epistemic
    return p.mean, p.entropy, p.mutual_information


def run_onnx(path, x, noise=None):
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(3)  # it warns of inputs that have default values
    session = onnxruntime.InferenceSession(path)
    given = {name: t.numpy() for name, t in (noise or {}).items()}
    return session, [torch.tensor(t) for t in session.run(None, {"x": x.numpy(), **given})]


def compare(got, p):
    for one, other in zip(got, wanted(p), strict=True):
        torch.testing.assert_close(one, other, **CLOSE)


# A trace takes seconds, so that these and the tests below have each kind of noise once;
# benchmarks/export.py has every method on four networks, ResNet20FRN among them, in onnxruntime.
@needs_scan
@pytest.mark.parametrize(
    "method",
    [
        pytest.param(DropConnect(0.3), marks=pytest.mark.long),
        [Dropout(0.2, node="channel"), Gaussian(0.1, learn=True)],
    ],
    ids=str,
)
def test_torch_export(images, method, monkeypatch):
    x, y = images
    posterior = fit(convnet, (x, y), method)
    made: dict[str, Any] = {}
    monkeypatch.setattr(
        "stochens.posterior.posterior.write", lambda _, p, x, **__: made.update(p=p, x=x)
    )
    noise = posterior.export("model.pt2", draws=2, seed=5)
    function = program(made["p"], made["x"]).module()
    p = posterior.predict(x, draws=2, seed=5, noise="shared")
    compare(function(x, noise), p)
    compare(function(x[:1], noise), posterior.predict(x[:1], draws=2, seed=5, noise="shared"))
    assert p.mutual_information.max() > TOLD, "the draws differ, so the noise has been tested"


class Reads(nn.Module):
    """A recurrent layer, which is of one member alone."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.LSTM(5, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.body(x.flatten(1, 2))[0][:, -1])


# Of 6 members with 2 draws: all at once for each draw, 2 at a time, or one after the other. A draw
# needs 144 bytes an example in the convolutional network's largest layer.
@needs_scan
@pytest.mark.parametrize(
    ("net", "draws", "room", "turns"),
    [
        (convnet, 2, 10 * 144, 2),
        pytest.param(convnet, 2, 3 * 144, 4, marks=pytest.mark.long),
        (convnet, 1, 5 * 144, 2),
        pytest.param(convnet, 1, 6 * 144, 1, marks=pytest.mark.long),
        (Reads, 1, 2**18, 6),
    ],
)
def test_members_run_at_once_as_far_as_memory_goes(images, net, draws, room, turns, monkeypatch):
    x, y = images
    method = Regular() if net is Reads else [Dropout(0.2), Gaussian(0.1)]
    posterior = fit(net, (x, y), method, members=6)
    made: dict[str, Any] = {}
    monkeypatch.setattr(export_program, "TOGETHER", room)
    monkeypatch.setattr(
        "stochens.posterior.posterior.write", lambda _, p, x, **__: made.update(p=p, x=x)
    )
    noise = posterior.export("model.pt2", draws=draws, seed=5)
    whole = program(made["p"], made["x"])
    compare(whole.module()(x, noise), posterior.predict(x, draws=draws, seed=5, noise="shared"))
    loops = [n for n in whole.graph.nodes if n.op == "call_function" and str(n.target) == "scan"]
    rows = [n.args[2][0].meta["val"].shape for n in loops]  # [turns, members of each]
    assert rows == ([] if turns == 1 else [(turns, 6 * draws // turns)])


@pytest.fixture
def torch_says(caplog):
    """What torch logs, which it keeps from the root logger."""
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    log.addHandler(caplog.handler)
    yield caplog
    log.removeHandler(caplog.handler)


@needs_scan
def test_onnx(images, tmp_path, torch_says):
    x, y = images
    posterior = fit(convnet, (x, y), [NPDropout(), Gaussian(0.1)])
    first = posterior.export(tmp_path / "model.onnx", draws=2)
    assert "torchvision" not in torch_says.text
    session, got = run_onnx(tmp_path / "model.onnx", x)
    assert [o.name for o in session.get_outputs()] == ["probs", "entropy", "mutual_information"]
    assert session.get_inputs()[0].shape == ["batch", 1, 5, 5]
    assert [i.name for i in session.get_overridable_initializers()] == list(first)
    compare(got, posterior.predict(x, draws=2, noise="shared"))  # x alone: the default noise
    other = posterior.predict(x[:7], draws=2, seed=9, noise="shared")
    noise = posterior.noise_inputs(draws=2, seed=9)
    compare(run_onnx(tmp_path / "model.onnx", x[:7], noise)[1], other)  # another size and noise
    assert b"/src/" not in (tmp_path / "model.onnx").read_bytes(), "no paths of ours in the file"


@pytest.mark.long
@needs_scan
def test_onnx_of_regression(tmp_path):
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    net = stochens.MLP(1, 8, 1)
    posterior = fit(net, (x, x.sin()), Dropout(0.2), likelihood="gaussian")
    posterior.save(tmp_path / "saved")  # what it knows of its inputs is saved with it
    posterior = stochens.load(tmp_path / "saved", net)
    posterior.export(tmp_path / "model.onnx", draws=3, seed=1)
    session, got = run_onnx(tmp_path / "model.onnx", x)
    assert [o.name for o in session.get_outputs()] == ["mean", "std", "aleatoric", "epistemic"]
    compare(got, posterior.predict(x, draws=3, seed=1, noise="shared"))


@needs_scan
def test_draws_of_swag_are_part_of_the_file(images, tmp_path):
    x, y = images
    posterior = stochens.multiswag(
        stochens.MLP(25, 6, 3), (x.flatten(1), y), members=2, epochs=30, rank=3, lr=0.03
    )
    noise = posterior.export(tmp_path / "model.pt2", draws=4, seed=2)
    function = torch.export.load(tmp_path / "model.pt2").module()
    p = posterior.predict(x.flatten(1), draws=4, seed=2)
    compare(function(x.flatten(1), noise), p)
    assert p.mutual_information.max() > TOLD


def test_bad_exports_are_refused(images, tmp_path, monkeypatch):
    x, y = images
    posterior = fit(stochens.MLP(25, 6, 3), (x.flatten(1), y), epochs=1)
    with pytest.raises(InputError, match=r"writes .onnx or .pt2, got 'model.tflite'"):
        posterior.export(tmp_path / "model.tflite")
    (tmp_path / "there.onnx").touch()
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        posterior.export(tmp_path / "there.onnx")
    with pytest.raises(InputError, match="draws must be a whole number"):
        posterior.export(tmp_path / "model.onnx", draws=0)
    with pytest.raises(InputError, match="pass an example"):  # as of an older folder
        dataclasses.replace(posterior, inputs=None).export(tmp_path / "model.onnx")
    monkeypatch.setattr("stochens.posterior.export.MOST_BYTES", 100)
    with pytest.raises(InputError, match="an ONNX file holds 2"):
        posterior.export(tmp_path / "model.onnx")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'stochens\[onnx\]'"):
        posterior.export(tmp_path / "model.onnx")
    assert [file.name for file in tmp_path.iterdir()] == ["there.onnx"], "nothing half-written"


@needs_scan
def test_a_place_that_cannot_be_written(images):
    x, y = images
    posterior = fit(stochens.MLP(25, 6, 3), (x.flatten(1), y), epochs=1)
    with pytest.raises(InputError, match=r"cannot write /proc/model\.pt2"):
        posterior.export("/proc/model.pt2")


def test_an_onnxscript_older_than_torch_is_one_clear_error(images, tmp_path, monkeypatch):
    def exported(*_, **__):
        raise ModuleNotFoundError("No module named 'onnxscript._framework_apis.torch_2_11'")

    x, y = images
    posterior = fit(stochens.MLP(25, 6, 3), (x.flatten(1), y), epochs=1)
    monkeypatch.setattr("stochens.posterior.export.program", lambda *_: None)
    monkeypatch.setattr("torch.onnx.export", exported)
    with pytest.raises(InputError, match=r"needs a newer onnxscript .*pip install -U onnxscript"):
        posterior.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", [".onnx", ".pt2"])
def test_an_older_torch_is_one_clear_error(images, tmp_path, monkeypatch, suffix):
    x, y = images
    posterior = fit(stochens.MLP(25, 6, 3), (x.flatten(1), y), epochs=1)
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.9.1+cpu"))
    with pytest.raises(InputError, match=r"needs torch 2\.10 or newer, this is 2\.9\.1\+cpu"):
        posterior.export(tmp_path / f"model{suffix}")
    assert not list(tmp_path.iterdir())


@needs_scan
def test_a_network_that_cannot_be_traced_is_one_clear_error(images, tmp_path):
    class Asks(nn.Linear):
        def forward(self, x):
            return super().forward(x if float(x.sum()) > 0 else -x)

    x, y = images
    posterior = fit(
        lambda: Asks(25, 3), (x.flatten(1), y), epochs=1, run=stochens.Run(engine="loop")
    )
    with pytest.raises(InputError, match=r"torch.export cannot trace this network"):
        posterior.export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_a_member_loads_into_the_plain_network(images, method, tmp_path):
    """Safetensors, one member at a time, into a network that knows nothing of stochens."""
    from safetensors.torch import load_file, save_file

    x, y = images
    posterior = fit(convnet, (x, y), method)
    for k in range(3):
        save_file(posterior.member(k), tmp_path / f"member-{k}.safetensors")
        plain = convnet()
        plain.load_state_dict(load_file(tmp_path / f"member-{k}.safetensors"))
        if method == "regular":  # without noise it is the member
            probs = plain(x).softmax(-1).detach()
            torch.testing.assert_close(probs, posterior.predict(x).probs[k], **CLOSE)
        for name, p in plain.named_parameters():
            assert torch.equal(p, posterior.params[name][k])


@needs_scan
def test_the_draws_of_a_sampler(tmp_path):
    """Whose parameters are views of one tensor."""
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    options = {"samples": 4, "warmup": 10, "chains": 2, "progress": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SamplingWarning)
        posterior = stochens.nuts(nn.Linear(2, 2), (x, (x[:, 0] > 0).long()), **options)
    path = tmp_path / "draws.pt2"
    noise = posterior.export(path)
    compare(torch.export.load(path).module()(x, noise), posterior.predict(x))


class Tied(nn.Module):
    """Two layers with one weight, a frozen layer, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fixed = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.fixed.requires_grad_(False)
        nn.init.eye_(self.fixed.weight)
        nn.init.zeros_(self.fixed.bias)
        self.register_buffer("scale", torch.tensor(3.0))
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.fixed(self.second(self.first(x).relu() * self.scale)))


@pytest.mark.parametrize("method", [Regular(skip="fixed"), NPDropout(skip="fixed")], ids=repr)
def test_a_member_brings_tied_frozen_and_buffered_tensors(method):
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    posterior = fit(Tied, (x, y), method, epochs=3)
    plain = Tied()
    plain.get_buffer("scale").fill_(0.0)
    plain.load_state_dict(posterior.member(2))  # strict: every name, and no other
    assert plain.scale == 3.0
    assert plain.second.weight is plain.first.weight
    if method.name == "regular":
        probs = plain(x).softmax(-1).detach()
        torch.testing.assert_close(probs, posterior.predict(x).probs[2], **CLOSE)


class Masked(nn.Linear):
    """A layer with a buffer, drawn when it is built."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("mask", (torch.rand(4, 4) < 0.5).float())

    def forward(self, x):
        return nn.functional.linear(x, self.weight * self.mask, self.bias)


def masked() -> Any:
    """It stands in two places, under two names."""
    layer = Masked()
    return nn.Sequential(layer, nn.ReLU(), nn.Sequential(layer, nn.ReLU()), nn.Linear(4, 3))


@pytest.mark.parametrize(
    "method", ["regular", "np-dropout", [stochens.DropConnect(0.2), stochens.Gaussian(learn=True)]]
)
def test_a_noisy_layer_keeps_its_buffers_and_its_names(method, tmp_path):
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    net = masked()
    posterior = fit(net, (x, y), method, epochs=3)
    assert torch.equal(posterior.member(0)["0.mask"], net[0].mask)
    masked().load_state_dict(posterior.member(0))  # strict: every name, and no other
    posterior.save(tmp_path / "mine")
    again = stochens.load(tmp_path / "mine", masked)  # with another mask, were it not saved
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)
    assert again.net.double().get_buffer("0.mask").dtype == torch.float64


@needs_scan
def test_a_noisy_layer_is_exported_with_its_buffers(tmp_path):
    x, y = torch.randn(9, 4), torch.arange(9) % 3
    posterior = fit(masked(), (x, y), stochens.DropConnect(0.2), epochs=3)
    noise = posterior.export(tmp_path / "model.pt2")
    made = torch.export.load(tmp_path / "model.pt2").module()
    compare(made(x, noise), posterior.predict(x, noise="shared"))


def test_a_member_of_regression_leaves_the_noise_out():
    x = torch.linspace(-1, 1, 30).unsqueeze(1)
    net = stochens.MLP(1, 8, 1)
    posterior = fit(net, (x, x.sin()), likelihood="gaussian")
    net.load_state_dict(posterior.member(1))
    p = posterior.predict(x)
    torch.testing.assert_close(net(x).detach(), p.draw_means[1], **CLOSE)
