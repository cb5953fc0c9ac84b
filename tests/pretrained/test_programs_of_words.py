"""Networks of transformers with input_ids and attention_mask have programs: those of the loop."""

import logging
from typing import Any

import pytest
import torch
from tests.program import counting
from tests.program.counting import counted
from tests.tolerance import close
from tests.torchvision_on_cpu import let_torchvision_import
from torch import nn

import stochens
from stochens.adapter import Adapter
from stochens.posterior import streaming
from stochens.program import choice
from stochens.program.choice import Workload, distance_to_members, gradient_distance
from stochens.program.program import build
from stochens.randomness.seeds import seeded
from stochens.trees import InputTree

SMALL = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL |= {"intermediate_size": 32, "max_position_embeddings": 20, "pad_token_id": 0}
OTHER: dict[str, dict[str, Any]] = {
    "DistilBert": {"vocab_size": 30, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32},
    "GPT2": {"vocab_size": 30, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 16}
    | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Llama": SMALL | {"num_key_value_heads": 1},
}


@pytest.fixture(scope="module")
def transformers() -> Any:
    let_torchvision_import()
    reason = "needs transformers: pip install 'stochens[pretrained]'"
    return pytest.importorskip("transformers", reason=reason)


def network(transformers: Any, name: str) -> nn.Module:
    config = getattr(transformers, f"{name}Config")(**OTHER.get(name, SMALL))
    with seeded(0):
        made: nn.Module = getattr(transformers, f"{name}ForSequenceClassification")(config)
    return made.double().eval()  # without its own dropout


def sentences(rows: int) -> dict[str, torch.Tensor]:
    """Eight words, of which the last two are padding."""
    ids = torch.randint(3, 30, (rows, 8), generator=torch.Generator().manual_seed(0))
    mask = (torch.arange(8) < 6).long().expand(rows, 8)
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("name", ["Bert", "Roberta", "DistilBert", "GPT2", "Llama"])
def test_the_program_is_the_loop(transformers: Any, name: str) -> None:
    net, x = Adapter(network(transformers, name), "logits"), InputTree(sentences(4))
    program = build(net, x)
    task = Workload(batch=4, examples=1.0, own_rows=True, engine="loop")
    bound = close(torch.float64, terms=32, depth=30)["rtol"]  # ten operators a layer, and back
    with seeded(0):
        assert distance_to_members(program, net, x, task) <= bound
        off, _ = gradient_distance(program, net, x, task)
    assert off <= bound / choice.SMALL  # relative to a gradient of at least that share


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fit_takes_it(transformers: Any, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(choice, "ON_CPU_FROM", 0.0)
    caplog.set_level(logging.INFO, "stochens")
    data = {**sentences(6), "labels": torch.arange(6) % 2}
    options: dict[str, Any] = {"members": 2, "epochs": 1, "batch_size": 3, "start": "module"}
    stochens.fit(network(transformers, "Bert"), data, method="regular", **options)
    assert "members run by one program" in caplog.text


class Counting(nn.Module):
    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return counted(ids)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    "layers", [(), ("bert.encoder.layer.1.*", "bert.pooler*", "classifier")], ids=["last", "block"]
)
def test_ten_members_share_one_pass_of_bert(
    transformers: Any, layers: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the block that members own, the mask is needed after the frozen part."""
    net, x = network(transformers, "Bert"), sentences(700)
    inside: Any = net
    parts = inside.bert.embeddings
    parts.word_embeddings = nn.Sequential(Counting(), parts.word_embeddings)
    x["attention_mask"] = (torch.arange(8) < 2 + torch.arange(700)[:, None] % 7).long()
    data = {**x, "labels": torch.arange(700) % 2}
    method = [stochens.LastLayer(layers=layers), stochens.Gaussian(0.1)]
    options: dict[str, Any] = {"members": 10, "epochs": 1, "batch_size": 100, "method": method}
    counting.begin()
    ours = stochens.fit(net, data, **options)
    assert counting.passes(x["input_ids"]) <= 1.1
    counting.begin()
    probs = ours.predict(x).probs
    assert counting.passes(x["input_ids"]) <= 1.1
    monkeypatch.setattr(streaming, "_behind_frozen", lambda net, x, *_: (net, x))
    within = close(torch.float64, terms=32, depth=30)
    torch.testing.assert_close(probs, ours.predict(x).probs, **within)
