from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fxquant.plan.spec import Observed, TensorRef


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda x, y: x + y, "add"),
        (lambda x, y: F.relu(torch.add(x, y)), "add_act"),
        (lambda x, y: x - y, "sub"),
        (lambda x, y: F.relu(y.sub(x)), "sub_act"),
        (lambda x, y: x.mul(y), "mul"),
        (lambda x, y: F.relu6(y * x), "mul_act"),
    ],
)
def test_of_two_tensors(plan_of, body, pattern):
    plan = plan_of(lambda m, x: body(x, F.max_pool2d(x, 1)))
    unit = plan.units[-1]
    assert (unit.pattern, unit.inputs) == (pattern, ("a", "b"))
    assert isinstance(plan.policies[unit.roles["y"]], Observed)


def test_concatenation_has_one_grid_for_all(plan_of):
    plan = plan_of(lambda m, x: torch.cat([m.a(x), m.b(x)], 1), a=nn.Conv2d(4, 2, 1), b=nn.Conv2d(4, 2, 1))
    unit = plan.units[-1]
    assert (unit.pattern, unit.inputs) == ("cat", ("x0", "x1"))
    assert {plan.qparams_owner(ref) for ref in unit.roles.values()} == {TensorRef("cat")}


def test_a_stack_has_one_grid_for_all(forms_of):
    a, b = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 2, 1)
    forms = forms_of(lambda m, x: torch.stack([m.a(x), m.b(x).tanh(), m.a(x) - m.b(x)], 2), a=a, b=b)
    plan = forms.prepared.plan
    unit = plan.units[-1]
    assert (unit.pattern, unit.inputs) == ("stack", ("x0", "x1", "x2"))
    owners = {role: plan.qparams_owner(ref).name for role, ref in unit.roles.items()}
    assert owners == {"x0": "stack", "x1": "tanh", "x2": "stack", "y": "stack"}
    assert torch.equal(forms.got, forms.simulated)


@pytest.mark.parametrize(
    ("body", "pattern", "reason"),
    [
        (lambda x: torch.add(x, x, alpha=0.5), "add", "alpha=0.5: only a plain sum has an integer form"),
        (lambda x: torch.sub(x, x, alpha=2), "sub", "alpha=2: only a plain difference has an integer form"),
        (lambda x: x * x.size(2), "mul", "its operand 'b' is a number, not a tensor"),
        (lambda x: torch.cat([x, x.long()]), "cat", "its operand 'x1' is a tensor of int64"),
        (lambda x: x + (x > 0), "add", "its operand 'b' is a tensor of bool"),
    ],
)
def test_what_stays_float(plan_behind_conv, body, pattern, reason):
    plan = plan_behind_conv(body)
    assert [unit.pattern for unit in plan.units] == ["conv"]
    assert (plan.rejections[-1].pattern, plan.rejections[-1].reason) == (pattern, reason)
