"""Parts of a posterior by themselves, without a training: what it knows, keeps and hands on."""

import copy
import dataclasses

import pytest
import torch
from torch import Tensor, nn

import stochens
from stochens import InputError, Posterior
from stochens.likelihoods import Categorical
from stochens.posterior import calibration
from stochens.posterior.export import _strip
from stochens.posterior.fingerprint import fingerprint
from stochens.posterior.low_rank import LowRankGaussian, params_of_draw
from stochens.posterior.predictive import Sums
from stochens.posterior.recipe import Inputs


def two() -> Posterior:
    torch.manual_seed(0)
    return Posterior.of([nn.Linear(2, 3) for _ in range(2)], example=torch.zeros(1, 2))


def test_an_example_is_zeros():
    """The one number that every embedding takes."""
    assert torch.equal(Inputs((2,), "int64").example(), torch.zeros(1, 2, dtype=torch.int64))


class Scaled(nn.Module):
    """A linear layer with a buffer of some shape, or with none."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 3)
        if shape:
            self.register_buffer("scale", torch.ones(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


@pytest.mark.parametrize(("shape", "here"), [((1,), r"\(1,\)"), ((), "absent")])
def test_another_buffer_is_another_network(shape, here, tmp_path):
    Posterior.of([Scaled(3)] * 2, example=torch.zeros(1, 2)).save(tmp_path / "run")
    said = rf"holds another network: parameter 'scale' is {here} in .* and \(3,\) in the file"
    with pytest.raises(InputError, match=said):
        stochens.load(tmp_path / "run", Scaled(*shape))


def test_without_inputs_there_is_no_fingerprint_and_no_copy(monkeypatch):
    copied: list[object] = []
    monkeypatch.setattr(copy, "deepcopy", copied.append)
    assert fingerprint(nn.Linear(2, 3), {}, None) is None
    assert copied == []


def test_draws_of_whole_parameter_sets_are_exported_and_others_are_not_repeated(monkeypatch):
    written = []
    monkeypatch.setattr(
        "stochens.posterior.posterior.write",
        lambda path, predictor, *_, **__: written.append(predictor),
    )
    plain = two()
    variance = {name: torch.ones_like(p) for name, p in plain.params.items()}
    none = {name: p.new_zeros(2, 0, *p.shape[1:]) for name, p in plain.params.items()}
    spread = dataclasses.replace(plain, low_rank=LowRankGaussian(variance, none))
    for posterior in (plain, spread):
        posterior.export("model.pt2", draws=3, seed=5)
    assert torch.equal(written[0].params["weight"], plain.params["weight"])
    each = [params_of_draw(plain.params, spread.low_rank, k, seed=5)["weight"] for k in range(3)]
    assert torch.equal(written[1].params["weight"], torch.cat(each))


def test_a_temperature_is_measured_in_blocks_of_so_many_outputs(monkeypatch):
    """5 draws of 2 x 3 outputs, at most 12 of them at a time: 2, 2 and 1."""
    sizes = []

    class Watched(Sums):
        def add(self, outputs: Tensor, *, rows: slice, first_draw: int) -> None:
            sizes.append(len(outputs))
            super().add(outputs, rows=rows, first_draw=first_draw)

    outputs, y = torch.arange(30.0).view(5, 2, 3).sin(), torch.tensor([0, 2])
    known = calibration._nll(Categorical(), outputs, y, 2.0)
    monkeypatch.setattr(calibration, "Sums", Watched)
    monkeypatch.setattr(calibration, "BLOCK", 12)
    assert calibration._nll(Categorical(), outputs, y, 2.0) == pytest.approx(known, rel=1e-6)
    assert sizes == [2, 2, 1]


def test_nothing_is_left_of_where_an_operation_came_from():
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Identity", ["x"], ["y"], doc_string="of a file of somebody's")
    graph = onnx.helper.make_graph([node], "g", [], [])
    _strip(graph)
    assert graph.node[0].doc_string == ""
