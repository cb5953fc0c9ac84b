"""Exported files of networks with several inputs, and of sequences of any length."""

import pytest
import torch
from tests.inputs.networks import Attending, Nested, TwoArguments, padded, parts, sentences
from tests.tolerance import close, trained
from torch import nn

import stochens
from stochens.posterior.export_program import OLDEST_TORCH, sequence
from stochens.run.cluster.arrays import pack_input, unpack_input
from stochens.trees import InputTree

pytestmark = pytest.mark.filterwarnings("ignore::stochens.methods.partial.PartialNoiseWarning")
needs_scan = pytest.mark.skipif(
    torch.__version__ < OLDEST_TORCH, reason=f"export needs torch {OLDEST_TORCH}"
)
OPTIONS = {"members": 2, "epochs": 10, "lr": 0.05}
# Attention: sums of 8, 8, 12, 12, 12, 8 and 3 terms, 63 in seven layers. Terms of logits add up to
# less than 2; entropies are of size 1 and are subtracted.
CLOSE = close(torch.float32, terms=9, depth=7, scale=2.0)


def run_onnx(path, feed):
    pytest.importorskip("onnxscript", reason="ONNX needs stochens[onnx]")
    onnxruntime = pytest.importorskip("onnxruntime")
    onnxruntime.set_default_logger_severity(3)  # it warns of inputs that have default values
    session = onnxruntime.InferenceSession(path)
    shapes = {value.name: value.shape for value in session.get_inputs()}
    outputs = session.run(None, {name: t.numpy() for name, t in feed.items()})
    return shapes, [torch.tensor(t) for t in outputs]


@needs_scan
def test_each_tensor_has_its_name(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs stochens[onnx]")
    a, b, y = parts()
    x = {"pair": (a,), "more": {"b": b}}
    posterior = stochens.fit(Nested(), (x, y), method="dropout", **OPTIONS)
    posterior.export(tmp_path / "one.onnx")
    shapes, got = run_onnx(tmp_path / "one.onnx", {"pair.0": a, "more.b": b})
    wanted = posterior.predict(x, noise="shared")
    torch.testing.assert_close(got[0], wanted.mean, **CLOSE)
    torch.testing.assert_close(got[2], wanted.mutual_information, **CLOSE)
    assert shapes["pair.0"] == ["batch", 2]
    assert shapes["more.b"] == ["batch", 3]


@needs_scan
@pytest.mark.long
@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect"])
def test_lengths_stay_free(method, tmp_path):
    data = padded(sentences([9, 4, 7, 5, 3, 8, 6, 9] * 3))
    posterior = stochens.fit(Attending(), data, method=method, **OPTIONS)
    posterior.export(tmp_path / "one.pt2")
    module = torch.export.load(tmp_path / "one.pt2").module()
    for length, batch in ((9, 24), (5, 3), (12, 1)):
        x = padded(sentences([length] * batch))
        del x["label"]
        noise = posterior.noise_inputs(x)
        wanted = posterior.predict(x, noise="shared").mean
        torch.testing.assert_close(module(x, noise)[0], wanted, **CLOSE)


@pytest.mark.long
@needs_scan
def test_lengths_stay_free_in_onnx_with_their_noise(tmp_path):
    pytest.importorskip("onnxscript", reason="ONNX needs stochens[onnx]")
    data = padded(sentences([9, 4, 7, 5, 3, 8, 6, 9] * 3))
    posterior = stochens.fit(Attending(), data, method="dropout", **OPTIONS)
    posterior.export(tmp_path / "one.onnx")
    x = {"tokens": data["tokens"], "mask": data["mask"]}
    shapes, got = run_onnx(tmp_path / "one.onnx", x)  # with the noise that it has
    torch.testing.assert_close(got[0], posterior.predict(x, noise="shared").mean, **CLOSE)
    assert shapes["tokens"] == shapes["mask"] == ["batch", "length"]
    short = {name: t[:2, :6] for name, t in x.items()}
    _, got = run_onnx(tmp_path / "one.onnx", short | posterior.noise_inputs(short))
    torch.testing.assert_close(got[0], posterior.predict(short, noise="shared").mean, **CLOSE)


class Fixed(nn.Module):
    """Takes sequences of one length only."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(20, 2), nn.Linear(10, 2)

    def forward(self, tokens):
        return self.head(self.embed(tokens).flatten(1) * torch.tensor([1.0] * 10))


@needs_scan
def test_a_network_of_one_length_is_exported_for_that(tmp_path):
    tokens = torch.randint(0, 20, (30, 5), generator=torch.Generator().manual_seed(0))
    posterior = stochens.fit(Fixed(), (tokens, tokens[:, 0] % 2), method="dropout", **OPTIONS)
    assert sequence(posterior.net.eval(), tokens[:1]) is None
    noise = posterior.export(tmp_path / "one.pt2")
    module = torch.export.load(tmp_path / "one.pt2").module()
    wanted = posterior.predict(tokens, noise="shared").mean
    torch.testing.assert_close(module(tokens, noise)[0], wanted, **CLOSE)


def test_what_is_a_sequence():
    net, x = Attending().eval(), padded(sentences([9] * 2))
    del x["label"]
    tree = InputTree(x)
    found = sequence(stochens.fit(Attending(), (x, [0, 1]), members=1, epochs=1).net, tree[:1])
    assert found.of_x == {"x.tokens": {1}, "x.mask": {1}}
    assert {0, 1} >= set().union(*found.of_noise)
    assert sequence(net, torch.randn(1, 5)) is None  # numbers are no tokens


def test_a_tree_travels_to_other_machines():
    a, b, _ = parts()
    there = pack_input(InputTree({"a": a, "b": (b.bfloat16(),)}))
    here = unpack_input(there)
    assert torch.equal(here.tree["a"], a)
    assert here.tree["b"][0].dtype == torch.bfloat16
    assert torch.equal(unpack_input(pack_input(a)), a)


def test_an_example_is_known_from_the_file(tmp_path):
    data = padded(sentences([9] * 12))
    posterior = stochens.fit(Attending(), data, **OPTIONS)
    posterior.save(tmp_path / "one")
    example = stochens.load(tmp_path / "one", Attending).inputs.example()
    assert repr(example) == "InputTree(tokens (1, 9) int64, mask (1, 9) float32)"
    assert example.tree["mask"].all()  # where nothing counts, outputs would be no numbers

    class Other(Attending):
        def forward(self, tokens, mask):
            return {"logits": 2 * super().forward(tokens, mask)["logits"]}

    with pytest.raises(stochens.InputError, match=r"outputs up to .* away from the saved ones"):
        stochens.load(tmp_path / "one", Other)


@pytest.mark.usefixtures("float64")
def test_posteriors_of_trees_join():
    a, b, y = parts()
    one, two = (
        stochens.fit(TwoArguments(), ((a, b), y), members=ids, epochs=2) for ids in ([0, 1], [2])
    )
    whole = stochens.fit(TwoArguments(), ((a, b), y), members=3, epochs=2)
    joined = stochens.join([one, two])
    within = trained(torch.float64, steps=2, rows=len(a))  # in blocks of another size
    torch.testing.assert_close(joined.params["scale"], whole.params["scale"], **within)
    assert joined.predict((a, b)).mean.shape == (30, 2)
