"""Trees on many machines: the same members, and the same predictions."""

import sys

import pytest
import torch
from tests.inputs import networks
from tests.inputs.networks import TwoArguments, parts
from tests.tolerance import trained

import stochens

pytestmark = pytest.mark.xdist_group("ray")  # one process, and so one cluster, for all of them


def test_members_and_predictions_are_those_of_one_machine(ray_cluster):
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[networks.__name__])  # workers have no tests
    a, b, y = parts()
    x = {"a": a.double(), "b": b.double()}
    data = stochens.Data({**x, "is it": y}, "is it", weights=torch.arange(len(y)) % 3)
    options = {"method": "regular", "members": 4, "epochs": 3, "device": "cpu"}
    here = stochens.fit(TwoArguments, data, **options, run=stochens.Run(precision="float64"))
    far = stochens.Run(engine="ray", precision="float64")
    there = stochens.fit(TwoArguments, data, **options, run=far)
    for name, p in here.params.items():
        within = trained(torch.float64, steps=3, rows=len(y))  # in blocks of another size
        torch.testing.assert_close(p, there.params[name], **within)
    far_off = there.predict(data, batch_size=4, run=far)
    torch.testing.assert_close(far_off.mean, there.predict(data, batch_size=4).mean)
