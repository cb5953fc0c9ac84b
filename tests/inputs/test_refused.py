"""What is refused of inputs, targets and outputs: one error, that names the remedy."""

import pytest
import torch
from tests.inputs.networks import Attending, Twin, TwoArguments, parts
from tests.tolerance import trained
from torch import nn
from torch.utils.data import DataLoader

import stochens
from stochens import Data, InputError
from stochens.adapter import Adapter, pick

OPTIONS = {"members": 2, "epochs": 1, "method": "regular"}
A, B, Y = parts()


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ({"a": A, "b": B}, {}, "no target: it has 'a', 'b'.*Data.data, target='name'. says"),
        ({"a": A, "y": Y, "label": Y}, {}, "several targets, 'label' and 'y'"),
        (
            Data({"a": A, "b": B, "y": Y}, target="z"),
            {},
            "target='z' is not in the data.*'a', 'b', 'y'",
        ),
        (Data(((A, B), Y), target="y"), {}, "target='y' is the name of y in a dictionary.*tuple"),
        (
            {"a": A, "b": B[1:], "y": Y},
            {},
            r"same number of rows, got a \(30, 2\) float32, b \(29, 3\) float32",
        ),
        (
            {"a": A, "b": B, "y": Y[1:]},
            {},
            r"same number of rows, got a \(30, 2\).*; y has 29",
        ),
        ({"y": Y}, {}, "x holds no tensor"),
        (
            {"a": A, "b": B, "c": A, "y": Y},
            {},
            "forward takes no 'c', which is among the inputs a, b, c; it takes a, b",
        ),
        ({"a": A, "y": Y}, {}, "forward needs 'b', which is not among the inputs a"),
        (((A, B, A), Y), {}, r"x has 3 parts, and the network's forward takes \(a"),
        ({"a": A, "b": [["word"]] * 30, "y": Y}, {}, "b holds no numbers"),
        ({"a": A.where(A > 0, torch.nan), "b": B, "y": Y}, {}, r"x.a must be finite; x.a\[\d+, "),
        ({"a": A, "b": torch.tensor(1.0), "y": Y}, {}, r"same number of rows, got .* b \(\)"),
        ({"a": A[:0], "b": B[:0], "y": Y[:0]}, {}, "x.a is empty"),
        (5, {}, "data must be .x, y., a dictionary that holds y as 'labels', 'label' or 'y'"),
        (
            {"a": A.double(), "b": B, "y": Y},
            {},
            r"fails on x a \(4, 2\) float64, b .* use .to\(torch.float32\) for a: ",
        ),
    ],
)
def test_data_that_does_not_fit(data, options, message):
    with pytest.raises(InputError, match=message):
        stochens.fit(TwoArguments(), data, **OPTIONS, **options)


def test_the_kernel_for_one_tensor_says_so():
    with pytest.raises(InputError, match="not this network"):
        stochens.fit(TwoArguments(), ((A, B), Y), run=stochens.Run(engine="fused"), **OPTIONS)


def test_inputs_of_prediction_are_those_of_training():
    posterior = stochens.fit(TwoArguments(), {"a": A, "b": B, "y": Y}, **OPTIONS)
    for x in ({"a": A}, {"a": A, "b": B, "c": A}, (A, B), A):
        with pytest.raises(InputError, match="the network was trained on a, b, and x has"):
            posterior.predict(x)
    # whatever the order of the entries
    assert torch.equal(
        posterior.predict({"labels": Y, "b": B, "a": A}).mean,
        posterior.predict({"a": A, "b": B}).mean,
    )
    one = stochens.fit(Twin(), (torch.cat([A, B], 1), Y), **OPTIONS)
    with pytest.raises(InputError, match="fails on x"):
        one.predict({"a": A, "b": B})


def test_batches_may_have_their_entries_in_any_order():
    posterior = stochens.fit(TwoArguments(), {"a": A, "b": B, "y": Y}, **OPTIONS)
    rows = [{"a": A[k], "b": B[k]} if k % 2 else {"b": B[k], "a": A[k]} for k in range(30)]
    p = posterior.predict(DataLoader(rows, batch_size=1))
    # one row at a time, in float32
    torch.testing.assert_close(p.mean, posterior.predict({"a": A, "b": B}).mean)


class Many(Twin):
    """Several outputs in one of many forms."""

    def __init__(self, form):
        super().__init__()
        self.form = form

    def forward(self, x):
        return self.form(super().forward(x), x)


class Said:
    def __init__(self, logits, hidden):
        self.logits, self.hidden = logits, hidden


X = torch.cat([A, B], 1)


def second(outputs):
    return outputs[1]


@pytest.mark.parametrize(
    ("form", "output"),
    [
        (lambda y, x: y, None),
        (lambda y, x: {"logits": y, "hidden": x}, None),
        (Said, None),
        (lambda y, x: (y, x), 0),
        (lambda y, x: {"scores": y, "hidden": x}, "scores"),
        (lambda y, x: Said(x, y), "hidden"),
        (lambda y, x: (x, y), second),
        (lambda y, x: y, lambda y: y.clone()),
    ],
)
def test_outputs_are_found_or_picked(form, output, tmp_path):
    x, run = X.double(), stochens.Run(precision="float64")
    wanted = stochens.fit(Twin(), (x, Y), run=run, **OPTIONS)
    net = Many(form)
    got = stochens.fit(net, (x, Y), output=output, run=run, **OPTIONS)
    # one step on all rows; the twin runs as a program, and this one by vmap
    within = trained(torch.float64, steps=1, rows=len(Y))
    torch.testing.assert_close(got.predict(x).mean, wanted.predict(x).mean, **within)
    got.save(tmp_path / "one")
    if callable(output):
        with pytest.raises(InputError, match="a function that picks the output"):
            stochens.load(tmp_path / "one", net)
    given = output if callable(output) else None
    loaded = stochens.load(tmp_path / "one", net, output=given)
    assert torch.equal(loaded.predict(x).mean, got.predict(x).mean)
    if output == "scores":
        with pytest.raises(InputError, match="was made with output='scores', not 'hidden'"):
            stochens.load(tmp_path / "one", net, output="hidden")
    if output is None and form(1, 2) == 1:
        with pytest.raises(InputError, match="was made without output"):
            stochens.load(tmp_path / "one", net, output="logits")


@pytest.mark.parametrize(
    ("form", "output", "message"),
    [
        (lambda y, x: (y, x), None, "must return one tensor, got tuple of 2. Say which.*output=0"),
        (lambda y, x: {"out": y}, None, "must return one tensor, got dict of out. Say which"),
        (lambda y, x: {"out": y}, "logits", "output='logits', but the network returns dict of out"),
        (lambda y, x: y, "logits", r"returns Tensor \(.*\); leave output out"),
        (lambda y, x: (y, x), 2, "output=2, but the network returns tuple of 2"),
        (lambda y, x: (y, None), 1, "output=1 gives no tensor, but NoneType"),
        (lambda y, x: (y, x), len, "output=len gives no tensor, but int"),
    ],
)
def test_outputs_that_are_not_there(form, output, message):
    with pytest.raises(InputError, match=message):
        stochens.fit(Many(form), (X, Y), output=output, **OPTIONS)


def test_a_network_may_be_called_by_hand():
    net = Attending()
    adapter = Adapter(net, "hidden")
    tokens, mask = torch.ones(2, 5, dtype=torch.long), torch.ones(2, 5)
    assert torch.equal(adapter({"mask": mask, "tokens": tokens}), pick(net(tokens, mask), "hidden"))
    for training in (True, False):
        adapter.train(training)
        assert net.training is training
    assert adapter.state_dict().keys() == net.state_dict().keys()
    assert "Attending, output='hidden'" in repr(adapter)


def test_one_entry_is_the_one_input_of_a_plain_network():
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2))
    one = stochens.fit(net, {"image": X, "label": Y}, **OPTIONS)
    two = stochens.fit(net, (X, Y), run=stochens.Run(engine="vmap"), **OPTIONS)
    torch.testing.assert_close(one.params["0.weight"], two.params["0.weight"])


class Lenient(TwoArguments):
    def forward(self, a, b=None, **more):  # type: ignore[override]
        return super().forward(a, more.get("right", B[: len(a)] * 0) if b is None else b)


def test_what_disappears_in_kwargs_is_warned_of(recwarn):
    stochens.fit(Lenient(), {"a": A, "right": B, "y": Y}, **OPTIONS)  # which it looks at
    assert not [w for w in recwarn if "do not depend" in str(w.message)]
    with pytest.warns(UserWarning, match="outputs do not depend on 'rihgt'.*Is the name right"):
        stochens.fit(Lenient(), {"a": A, "rihgt": B, "y": Y}, **OPTIONS)


class FakeHubDict(dict):  # type: ignore[type-arg]
    column_names = ()
    with_format = None


def test_several_data_sets_of_the_hub_are_told_from_one():
    with pytest.raises(InputError, match=r"a FakeHubDict holds several data sets.*'train', 'test'"):
        stochens.fit(TwoArguments(), FakeHubDict(train=1, test=2), **OPTIONS)
