"""Plans run their steps in order, and notice what has changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.nn.quantize import Quantize
from fxquant.plan.spec import QParams, QScheme
from fxquant.runtime.execution_plan import (
    ExecutionPlan,
    PythonStep,
    ShapesChangedError,
    Watched,
    WatchedPlace,
    geometry_of,
)


def step(takes, gives, function, expected=(None,)) -> PythonStep:
    return PythonStep(takes, gives, function, expected, (("erfinv", "aten.erfinv.default is no native loop"),))


def test_values_pass_through_their_places():
    steps = (
        step((0,), (1, 2), lambda module, x: (x + module.number, x * 2), (None, None)),
        step((2, 1), (3,), lambda module, a, b: (a - b,)),
    )
    module = nn.Module()
    module.number = 5
    plan = ExecutionPlan(steps, 4, ((0,), (1, 2)), 3, ())
    assert plan.run(module, [3]) == 3 * 2 - (3 + 5)
    assert str(plan).splitlines() == [
        "0 programs of 0 nodes (0 loops, 0.0 MB), 2 nodes in Python",
        "  in Python    why",
        "  erfinv       aten.erfinv.default is no native loop",
        "  erfinv       aten.erfinv.default is no native loop",
    ]


def test_a_tensor_of_another_shape_ends_the_run():
    x = torch.zeros(2, 3)
    made = step((0,), (1,), lambda module, x: (x + 1,), (geometry_of(x),))
    plan = ExecutionPlan((made,), 2, ((0,),), 1, ())
    assert torch.equal(plan.run(nn.Module(), [x]), x + 1)
    for other in (torch.zeros(3, 3), torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64)):
        with pytest.raises(ShapesChangedError):
            plan.run(nn.Module(), [other])


def test_a_negation_that_is_only_noted_down_is_part_of_the_geometry():
    lazy = torch._neg_view(torch.zeros(2, 3))
    assert geometry_of(lazy) != geometry_of(lazy.clone())


def watched_module():
    qparams = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32))
    parent = nn.Module()
    parent.add_module("inner", Quantize(qparams))
    parent.inner(torch.zeros(2))
    place = WatchedPlace(parent._modules, "inner", parent.inner)
    return parent, ExecutionPlan((), 0, (), 0, (place, Watched(parent.inner, parent.inner._packed)))


def replace(parent):
    parent.inner = nn.Identity()


def set_forward(parent):
    parent.inner.forward = lambda x: x


@pytest.mark.parametrize(
    "change",
    [
        replace,
        set_forward,
        lambda parent: parent.inner.invalidate(),
        lambda parent: parent.load_state_dict(parent.state_dict()),
        lambda parent: parent.inner.register_forward_hook(print),
        lambda parent: parent.inner.register_forward_pre_hook(print),
        lambda parent: parent._modules.pop("inner"),
    ],
)
def test_a_change_of_a_module_is_noticed(change):
    parent, plan = watched_module()
    assert plan.is_valid()
    change(parent)
    assert not plan.is_valid()
