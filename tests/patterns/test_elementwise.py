from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from fxquant.patterns.elementwise import ACTIVATION, CLAMPS, clamp_of, clamped
from fxquant.patterns.pattern import Op, Output, op, tensor
from fxquant.plan.spec import Clamp, Observed, SharedWith, TensorRef


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
    assert (plan.refusals[-1].pattern, plan.refusals[-1].reason) == (pattern, reason)


HALF_A_STEP = 1 / 255
"""All values are one bound, so a step is a 255th of it."""


class Clip(nn.Module):
    def forward(self, x):
        return x.clip(-0.25, 0.5)


@pytest.mark.parametrize(
    ("target", "bounds", "expected"),
    [
        (F.relu, (), Clamp(0.0, None)),
        (F.relu6, (), Clamp(0.0, 6.0)),
        (F.hardtanh, (-1.0, 1.0), Clamp(-1.0, 1.0)),
        (F.hardtanh, (-2, 3), Clamp(-2.0, 3.0)),
        (torch.clamp, (None, 3), Clamp(None, 3.0)),
        (torch.clamp, (0.5, None), Clamp(0.5, None)),
    ],
)
def test_the_bounds_of_a_node(target, bounds, expected):
    graph = Graph()
    node = graph.call_function(target, (graph.placeholder("x"), *bounds))
    assert clamp_of(node) == expected
    assert {type(bound) for bound in (clamp_of(node).low, clamp_of(node).high)} <= {float, type(None)}


def test_every_clamp_has_a_pattern_of_its_own():
    keeping = [pattern for pattern in ACTIVATION if pattern.output is Output.CLAMPED]
    assert {target for pattern in keeping for target in pattern.root.targets} == set(CLAMPS)
    assert [pattern.name for pattern in ACTIVATION if pattern not in keeping] == ["clamp_off_zero"]


@pytest.mark.filterwarnings("ignore:calibration saw one and the same number")
@pytest.mark.parametrize("clamp", [nn.Hardtanh(10.0, 11.0), lambda x: x.clamp(-30, -20), lambda x: torch.clamp(x, 5)])
def test_bounds_without_zero_need_a_grid_of_their_own(forms_behind_conv, clamp):
    """All values are then bounds that the input never reaches: on its grid they would be far off."""
    if isinstance(clamp, nn.Module):
        forms = forms_behind_conv(nn.Sequential(nn.MaxPool2d(2), clamp))
    else:
        forms = forms_behind_conv(lambda x: clamp(F.max_pool2d(x, 2)))
    assert forms.units == ["conv", "max_pool2d", "clamp_off_zero"]
    assert torch.allclose(forms.got, forms.expected, rtol=HALF_A_STEP)


@pytest.mark.parametrize("clamp", [nn.Hardtanh(0.1, 0.2), lambda x: x.clamp(min=0.1), lambda x: torch.clip(x, -1, 0)])
def test_behind_a_convolution_any_constant_clamp_is_fused(forms_behind_conv, clamp):
    assert forms_behind_conv(clamp).units == ["conv_act"]


def test_clamped_means_any_clamp():
    inner = op(nn.Linear)(tensor("x"))
    assert clamped(inner) == Op(
        (F.relu, F.relu6, F.hardtanh, torch.clamp, torch.clamp_min, torch.clamp_max), (inner,), name="act"
    )


@pytest.mark.parametrize(
    ("spelling", "pattern"),
    [
        (nn.ReLU(), "relu"),
        (nn.ReLU6(inplace=True), "relu6"),
        (nn.Hardtanh(-2, 2), "hardtanh"),
        (nn.Hardtanh(0.0, 6.0), "relu6"),
        (Clip(), "clamp"),
    ],
)
def test_alone_it_keeps_the_grid_of_its_input(plan_behind_conv, spelling, pattern):
    plan = plan_behind_conv(nn.Sequential(nn.MaxPool2d(2), spelling))
    assert [unit.pattern for unit in plan.units] == ["conv", "max_pool2d", pattern]
    unit = plan.units[-1]
    assert plan.policies[unit.roles["y"]] == SharedWith(TensorRef("reader_0"))
    assert plan.qparams_owner(unit.roles["y"]) == TensorRef("conv")
