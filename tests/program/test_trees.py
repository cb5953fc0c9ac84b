"""Programs of networks with several inputs: they are vmap, and they are the loop."""

import functools
import logging
from typing import Any

import pytest
import torch
from tests.inputs.networks import FORMS, parts
from tests.long import long_but
from tests.program.test_program import IDS, NOISE, SEED, assert_same, results
from tests.tolerance import trained
from torch import Tensor, nn
from torch.nn import functional as F

import stochens
from stochens.adapter import Adapter
from stochens.kernels.noise import words
from stochens.members import Params, forward, forward_each, trainable
from stochens.methods import stochastic
from stochens.program import choice
from stochens.program.apart import Apart
from stochens.program.choice import Workload, choose
from stochens.program.program import build
from stochens.program.trace import trace
from stochens.randomness.noise import member_noise
from stochens.trees import InputTree

# dropout gives none to `scale`
pytestmark = pytest.mark.filterwarnings("ignore::stochens.methods.partial.PartialNoiseWarning")
B, T, WORDS, WIDTH = 4, 6, 11, 8


class Bert(nn.Module):
    """Words, their places, one block of attention in which padding does not count, the first word:
    input_ids and attention_mask [B, T] -> {"logits": [B, 3]}."""

    def __init__(self) -> None:
        super().__init__()
        self.word, self.place = nn.Embedding(WORDS, WIDTH), nn.Embedding(16, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.classifier = nn.Linear(WIDTH, 3)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None
    ) -> dict[str, Tensor]:
        b, t = input_ids.shape
        h = self.norm1(self.word(input_ids) + self.place(torch.arange(t, device=input_ids.device)))
        q, k, v = (
            layer(h).view(b, t, 2, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mask = attention_mask[:, None, None, :].bool()
        mixed = F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(b, t, -1)
        h = self.norm2(h + self.down(F.gelu(self.up(h + mixed))))
        return {"logits": self.classifier(h[:, 0])}


def sentences(rows: int, length: int = T, seed: int = 0) -> InputTree:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(WORDS, (rows, length), generator=generator)
    count = torch.randint(1, length + 1, (rows, 1), generator=generator)
    return InputTree(
        {
            "input_ids": ids,
            "attention_mask": (torch.arange(length) < count).long(),
            "token_type_ids": torch.zeros_like(ids),  # which the network does not look at
        }
    )


def bert(method: str = "regular") -> nn.Module:
    return stochastic(Adapter(Bert().double(), "logits"), method)


def two(net: nn.Module) -> Params:
    return {n: p.detach() + 0.1 * torch.randn(2, *p.shape).to(p) for n, p in trainable(net).items()}


def by_engine(net: nn.Module, params: Params, x: Any, engine: Any, *, own: bool) -> Tensor:
    run = forward_each if own else forward
    with member_noise(IDS, SEED, words):
        return run(net, params, x, engine=engine)


@pytest.mark.parametrize("method", ["regular", "dropout", "dropconnect", "np-dropout", "gaussian"])
def test_a_transformer_of_words_and_a_mask(method: str) -> None:
    net, x = bert(method), sentences(B)
    params, program = two(net), build(net, x)
    each = x.each(lambda t: torch.stack([t, t.flip(0)]))
    for ours in (program, Apart(program)):
        run: Any = ours
        shared = results(lambda p: run(p, x, NOISE), params)  # noqa: B023, called at once
        own = results(lambda p: run.each(p, each, NOISE), params)  # noqa: B023
        for engine in ("vmap", "loop"):
            plain = results(lambda p: by_engine(net, p, x, engine, own=False), params)  # noqa: B023
            assert_same(shared, plain)
            plain = results(lambda p: by_engine(net, p, each, engine, own=True), params)  # noqa: B023
            assert_same(own, plain)


def test_padding_does_not_count() -> None:
    """So that the mask is an input of the program, and no constant of the trace."""
    net, x = bert(), sentences(B)
    params, program = two(net), build(net, x)
    x.tree["attention_mask"][:, T // 2 :] = 0
    short = x.each(lambda t: t[:, : T // 2])
    assert_same([program(params, x)], [program(params, short)])


def test_any_batch_and_any_length_serve() -> None:
    net = bert("dropout")
    params, program = two(net), build(net, sentences(B))
    for rows, length in [(1, T), (2, T), (7, T), (B, 3), (7, 9), (1, 9)]:
        x = sentences(rows, length)
        expected = by_engine(net, params, x, "vmap", own=False)
        assert_same([program(params, x, NOISE)], [expected])


def test_a_dictionary_may_come_in_another_order() -> None:
    net, x = bert("dropout"), sentences(B)
    other = InputTree(dict(reversed(x.tree.items())))
    params, program = two(net), build(net, x)
    assert program.ready_for(other, 1)
    assert_same([program(params, other, NOISE)], [program(params, x, NOISE)])


def test_the_rows_of_all_inputs_are_free() -> None:
    traced = trace(bert(), sentences(B))
    assert (traced.inputs, traced.least) == (3, 2)
    assert traced.most > 10**6


@pytest.mark.parametrize("form", long_but([*FORMS][::2], FORMS))
def test_trees_of_every_form(form: str, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    """`fit` takes the program, and trains and predicts what vmap does."""
    a, b, y = (t.double() if t.is_floating_point() else t for t in parts())
    net, shape = FORMS[form]
    x = shape(a, b)
    caplog.set_level(logging.INFO, "stochens")

    def fit() -> tuple[stochens.Posterior, Tensor]:
        posterior = stochens.fit(
            net().double(), (x, y), method="np-dropout", members=3, epochs=2, batch_size=8, lr=0.01
        )
        return posterior, posterior.predict(x, draws=2).probs

    plain, expected = fit()
    assert "one program" not in caplog.text
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    monkeypatch.setattr("stochens.program.outputs.ON_CPU_FROM", 0.0)
    ours, probs = fit()
    assert caplog.text.count("members run by one program") == 2  # in training and in prediction
    within = trained(torch.float64, steps=8, rows=8)
    for name, p in plain.params.items():
        torch.testing.assert_close(ours.params[name], p, **within)
    torch.testing.assert_close(probs, expected, **within)


COMPILES = pytest.mark.skipif(
    torch.__version__ < choice.COMPILES_SINCE, reason="older torch is not asked to"
)


@COMPILES
@pytest.mark.parametrize("form", long_but({"nested"}, ["nested", "dataclass"]))
def test_a_compiled_training_of_trees(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of all inputs are taken inside of what torch.compile takes whole. (Its own backend would
    take minutes.)"""
    whole = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")
    a, b, y = (t.double() if t.is_floating_point() else t for t in parts())
    net, shape = FORMS[form]
    options: dict[str, Any] = {"members": 2, "epochs": 1, "batch_size": 10, "lr": 0.01}

    def fit(engine: str) -> stochens.Posterior:
        run = stochens.Run(engine=engine)
        return stochens.fit(net().double(), (shape(a, b), y), method="dropout", run=run, **options)

    plain = fit("vmap")
    monkeypatch.setattr(torch, "compile", whole)
    ours = fit("compile")
    for name, p in plain.params.items():
        within = trained(torch.float64, steps=3, rows=10)
        torch.testing.assert_close(ours.params[name], p, **within)


def test_a_program_is_chosen() -> None:
    task = Workload(batch=B, examples=1e20, own_rows=True)
    assert choose(bert("dropout"), sentences(B), task) is not None
