"""One label for each place: pixels and tokens, against a loop over them in float64."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import stochens
from stochens import Categorical, InputError
from stochens.likelihoods import Classes, Predictive
from stochens.members import forward

IGNORED = -100
CLOSE = {"rtol": 1e-12, "atol": 1e-12}  # float64 on both sides, sums of some tens of terms


def labels(*shape: int, classes: int = 3, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, shape, generator=generator)
    return y.masked_fill(torch.rand(shape, generator=generator) < 0.3, IGNORED)


def logits(*shape: int, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("outputs", "y", "axis"),
    [
        (logits(2, 4, 5, 3), labels(2, 4, 5), 3),  # [M, B, T, C]
        (logits(2, 4, 3, 5, 6), labels(2, 4, 5, 6), 2),  # [M, B, C, H, W]
        (logits(2, 4, 3, 2, 5, 6), labels(2, 4, 2, 5, 6), 2),  # volumes
        (logits(2, 4, 3), labels(2, 4), 2),  # [M, B, C], one label each
    ],
    ids=["tokens", "images", "volumes", "one"],
)
@pytest.mark.parametrize("class_weights", [None, (0.5, 1.0, 4.0)])
def test_the_nll_is_the_sum_over_places_as_cross_entropy_has_it(outputs, y, axis, class_weights):
    like = Categorical(ignore_index=IGNORED, class_weights=class_weights)
    weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float64)
    wanted = [
        F.cross_entropy(o.movedim(axis - 1, 1), one, weights, ignore_index=IGNORED, reduction="sum")
        / len(one)
        for o, one in zip(outputs, y, strict=True)
    ]
    torch.testing.assert_close(like.nll(outputs, y), torch.stack(wanted), **CLOSE)
    own = torch.rand(y.shape[:2], dtype=torch.float64)  # a weight for each example
    each = [
        F.cross_entropy(
            o.movedim(axis - 1, 1), one, weights, ignore_index=IGNORED, reduction="none"
        )
        for o, one in zip(outputs, y, strict=True)
    ]
    terms = torch.stack(each).reshape(*y.shape[:2], -1).sum(-1)
    torch.testing.assert_close(like.nll(outputs, y, own), (own * terms).mean(1), **CLOSE)


def test_class_weights_are_sample_weights():
    """sum_b w_(y_b) nll_b either way: N mean(nll) here, sum(w) mean(w / mean(w) nll) there."""
    y, outputs = torch.tensor([[0, 1, 2, 2, 1]]), logits(1, 5, 3)
    w = torch.tensor([0.5, 1.0, 4.0], dtype=torch.float64)
    by_class = 5 * Categorical(class_weights=w).nll(outputs, y)
    each = w[y]
    by_sample = each.sum() * Categorical().nll(outputs, y, each / each.mean())
    torch.testing.assert_close(by_class, by_sample, **CLOSE)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_a_batch_without_labels_adds_nothing(size):
    like = Categorical(ignore_index=IGNORED)
    outputs = torch.full((1, 2, 3, 4, 4), size, requires_grad=True)
    y = torch.full((1, 2, 4, 4), IGNORED)
    like.check_outputs(outputs[0], y[0])
    nll = like.nll(outputs, y)
    nll.sum().backward()
    assert nll.item() == 0
    assert not outputs.grad.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"class_weights": [1.0, -1.0]}, "class_weights must be numbers >= 0"),
        ({"class_weights": [0.0, 0.0]}, "not all 0"),
        ({"class_weights": [1.0, math.nan]}, "class_weights must be numbers >= 0"),
        ({"class_weights": []}, "class_weights must be numbers >= 0"),
        ({"class_axis": 2}, "class_axis must be 1"),
        ({"ignore_index": 0.5}, "ignore_index must be a whole number"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(InputError, match=message):
        Categorical(**options)


def test_labels_out_of_range_name_ignore_index():
    with pytest.raises(InputError, match=r"label -100 is out of range.*ignore_index=-100"):
        Categorical().check_outputs(torch.zeros(2, 3, 4, 4), torch.full((2, 4, 4), IGNORED))
    with pytest.raises(InputError, match="label 3 is out of range: the network has 3 outputs"):
        Categorical(ignore_index=IGNORED).check_outputs(torch.zeros(2, 3), torch.tensor([3, -100]))


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1))


@pytest.fixture(scope="module")
def images():
    """Pixels by their brightness, a third of them without a label."""
    x = torch.randn(12, 1, 6, 5, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0.5).long() + (x[:, 0] > -0.5).long()
    return x, y.where(labels(12, 6, 5) != IGNORED, IGNORED)


@pytest.fixture(scope="module")
def posterior(images):
    return stochens.fit(
        network,
        images,
        likelihood=Categorical(ignore_index=IGNORED, class_weights=[1.0, 2.0, 1.0]),
        method="regular",
        members=3,
        epochs=40,
        lr=0.05,
        device="cpu",
        progress=False,
    )


def test_from_fit_to_a_prediction_in_float64(images, posterior):
    x, y = images
    p = posterior.predict(x, keep_draws=True)
    outputs = forward(posterior.net, posterior.params, x, engine="loop").detach()  # [S, B, C, H, W]
    probs = outputs.double().softmax(2).movedim(2, -1)
    mean = probs.mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    each = -(probs * probs.log()).sum(-1).mean(0)
    float32 = {"rtol": 1e-5, "atol": 1e-6}  # 3 layers of at most 36 products
    torch.testing.assert_close(p.mean.double(), mean, **float32)
    torch.testing.assert_close(p.entropy.double(), entropy, **float32)
    torch.testing.assert_close(p.mutual_information.double(), entropy - each, **float32)
    assert p.labels.shape == (12, 6, 5)
    assert repr(p) == "Predictive(3 draws, 12 examples of 6 x 5, 3 classes)"
    kept = y != IGNORED
    own = p.mean.double().gather(-1, y.where(kept, 0).unsqueeze(-1)).squeeze(-1).log()
    torch.testing.assert_close(p.log_prob(y), (own * kept).sum((1, 2)), **CLOSE)
    assert p.labels[kept].eq(y[kept]).double().mean() > 0.8, "it has learned what there is"


def test_draws_of_dense_predictions_are_kept_only_where_asked(images, posterior):
    x, _ = images
    light, whole = posterior.predict(x, batch_size=5), posterior.predict(x, keep_draws=True)
    assert light.draws is None
    assert whole.draws.shape == (3, 12, 6, 5, 3)
    torch.testing.assert_close(light.mean, whole.mean, rtol=1e-6, atol=1e-7)  # batches of 5 and 12
    torch.testing.assert_close(light.aleatoric, whole.aleatoric, rtol=1e-5, atol=1e-6)
    with pytest.raises(InputError, match="keep_draws=True"):
        _ = light.probs
    drawn = whole.sample(4000, seed=1)  # [n, B, H, W]
    share = F.one_hot(drawn, 3).double().mean(0)
    error = (whole.mean * (1 - whole.mean) / 4000).sqrt() + 1e-3
    assert ((share - whole.mean).abs() / error).max() < 6  # standard errors, of 1080 numbers
    assert whole.quantities().shape == (3, 180 * 2)  # every second of 360 places


def test_measures_are_over_places_and_intervals_over_examples(images, posterior):
    metrics = pytest.importorskip("sklearn.metrics")
    x, y = images
    p = posterior.predict(x)
    rows = stochens.compare({"p": p}, y, resamples=50, show=False).rows["p"]
    kept = y != IGNORED
    truth, guess, probs = y[kept].numpy(), p.labels[kept].numpy(), p.mean[kept].double()
    assert rows["accuracy"].value == pytest.approx(metrics.accuracy_score(truth, guess))
    iou = metrics.jaccard_score(truth, guess, average="macro")
    assert rows["mIoU"].value == pytest.approx(iou)
    f1 = metrics.f1_score(truth, guess, average="macro")
    assert rows["macro F1"].value == pytest.approx(f1)
    flat = Predictive(probs, probs.new_zeros(len(probs)), None)
    one = {k: m[0](*m[1:]) for k, m in flat.measures(y[kept]).items() if k in ("NLL", "Brier")}
    assert {k: rows[k].value for k in one} == pytest.approx(one)
    ece = stochens.metrics.ece(probs, y[kept], binning="equal-width")
    assert rows["ECE"].value == pytest.approx(ece)
    for found in rows.values():
        assert found.low <= found.value <= found.high
    with pytest.raises(InputError, match="no label is left to measure by"):
        p.measures(torch.full_like(y, IGNORED))


def test_scores_of_each_class_are_scikit_learns():
    metrics = pytest.importorskip("sklearn.metrics")
    generator = torch.Generator().manual_seed(0)
    for seed in range(20):  # some with classes that are never there, or never predicted
        probs = torch.rand(7, 5, generator=generator).softmax(-1)
        y = torch.randint(1 + seed % 5, (7,), generator=generator)
        found = stochens.metrics.class_scores(probs, y)
        wanted = metrics.precision_recall_fscore_support(
            y, probs.argmax(1), labels=range(5), zero_division=0
        )
        for a, b in zip(found, wanted, strict=True):
            torch.testing.assert_close(a.double().nan_to_num(0.0), torch.tensor(b).double())
        macro = metrics.precision_recall_fscore_support(
            y, probs.argmax(1), average="macro", zero_division=0
        )
        assert found.macro == pytest.approx(macro[:3])
        table = metrics.confusion_matrix(y, probs.argmax(1), labels=range(5))
        assert stochens.metrics.confusion_matrix(probs, y).tolist() == table.tolist()


def test_saved_joined_and_from_loaders_of_one_length(images, posterior, tmp_path):
    x, _ = images
    posterior.save(tmp_path / "run")
    again = stochens.load(tmp_path / "run", network())
    assert again.likelihood == posterior.likelihood
    assert torch.equal(again.predict(x).mean, posterior.predict(x).mean)
    parts = [posterior.predict(part) for part in (x[:5], x[5:])]
    joined = Predictive.joined(parts)
    assert joined.ignore_index == IGNORED
    assert joined.mean.shape == (12, 6, 5, 3)
    with pytest.raises(InputError, match="pad all inputs to one length"):
        Predictive.joined([posterior.predict(x), posterior.predict(x[..., :4])])


def test_tokens_with_padding():
    """Each padded length is the same function of its own places; padding changes nothing."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(9, (30, 7), generator=generator)
    y = (x % 3).masked_fill(torch.arange(7) >= torch.randint(3, 8, (30, 1)), IGNORED)

    def net() -> nn.Module:
        return nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3))  # [B, T, C]

    like = Categorical(ignore_index=IGNORED)
    options = {"method": "regular", "members": 2, "epochs": 40, "lr": 0.1, "progress": False}
    posterior = stochens.fit(net, (x, y), likelihood=like, device="cpu", **options)
    p = posterior.predict(x)
    assert p.mean.shape == (30, 7, 3)
    assert (p.labels == y)[y != IGNORED].double().mean() > 0.95
    other = y.where(y != IGNORED, 0).masked_fill(y == IGNORED, -1)
    again = stochens.fit(
        net, (x, other), likelihood=Categorical(ignore_index=-1), device="cpu", **options
    )
    assert torch.equal(again.params["1.weight"], posterior.params["1.weight"])


def test_what_a_likelihood_adds_to_the_measures():
    def more(p: Predictive, y: Tensor):
        return {"right": (torch.mean, (p.labels == y).double())}

    p = Classes(torch.rand(2, 5, 3).softmax(-1), more=more)
    found = p.averaged(tuple(t.mean(0, keepdim=True) for t in p.terms()), (), None)
    assert "right" in found.measures(torch.zeros(5).long())
