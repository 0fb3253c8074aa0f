"""Products of two activations: which become units, and which do not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from fxquant.kernels.matmul.matmul import MOST_PRODUCTS
from fxquant.patterns.matmul import two_factors
from fxquant.plan.spec import Observed

SEQUENCE = torch.linspace(-2, 3, 2 * 7 * 12).sin().reshape(2, 7, 12)


@pytest.mark.parametrize(
    ("body", "pattern"),
    [
        (lambda x, y: x @ y.transpose(1, 2), "matmul"),
        (lambda x, y: torch.matmul(input=x, other=y.transpose(2, 1)), "matmul"),
        (lambda x, y: x.matmul(y.transpose(-1, -2)[0]), "matmul"),
        (lambda x, y: torch.bmm(x, y.transpose(1, 2)), "matmul"),
        (lambda x, y: x.bmm(mat2=y.permute(0, 2, 1)), "matmul"),
        (lambda x, y: x[0].mm(y[1].t()), "matmul"),
        (lambda x, y: x @ y[0, 0], "matmul"),
        (lambda x, y: x[0, 0] @ y.transpose(1, 2), "matmul"),
        (lambda x, y: x @ y.transpose(1, 2) * 0.3, "matmul_scaled"),
        (lambda x, y: torch.bmm(x, y.transpose(1, 2)) / 12**0.5, "matmul_scaled"),
        (lambda x, y: F.relu(x @ y.transpose(1, 2)), "matmul_act"),
        (lambda x, y: torch.clamp(torch.bmm(x, y.transpose(1, 2)), -1, 1), "matmul_act"),
    ],
)
def test_of_two_tensors(forms_of, body, pattern):
    forms = forms_of(
        lambda m, x: body(m.first(x), m.second(x)), x=SEQUENCE, first=nn.Linear(12, 12), second=nn.Linear(12, 12)
    )
    unit = forms.prepared.plan.units[-1]
    assert (unit.pattern, unit.inputs) == (pattern, ("a", "b"))
    assert isinstance(forms.prepared.plan.policies[unit.roles["y"]], Observed)
    assert not [r for r in forms.prepared.plan.rejections if not r.excused]
    assert forms.sqnr > 30


def test_a_factor_may_be_a_constant_of_the_model(forms_of):
    """On the left it is put on a grid as an activation is; on the right it is the weight of a linear layer."""

    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.basis = nn.Parameter(torch.linspace(-9, 9, 5 * 7).sin().reshape(5, 7))

        def forward(self, x):
            return self.basis @ torch.tanh(x)

    forms = forms_of(lambda m, x: m.inner(x), x=SEQUENCE, inner=Projected())
    assert forms.units[-1] == "matmul"
    assert forms.sqnr > 30


def test_attention_of_any_batch_and_length(forms_of):
    """Softmax takes real numbers from one integer product to another; what was calibrated on does not bind it."""

    def body(m, x):
        q, k, v = m.qkv(x).unflatten(-1, (3, 3, 4)).permute(2, 0, 3, 1, 4).unbind(0)
        weights = ((q @ k.transpose(-2, -1)) * 0.5).softmax(-1)
        return m.out((weights @ v).transpose(1, 2).flatten(2))

    forms = forms_of(body, x=SEQUENCE, qkv=nn.Linear(12, 36), out=nn.Linear(12, 12))
    assert [unit for unit in forms.units if "matmul" in unit] == ["matmul_scaled", "matmul"]
    assert not forms.prepared.coverage().float_rows
    assert "attention_weights" in forms.units
    assert forms.prepared.coverage().int8_macs == 1
    assert forms.sqnr > 25
    longer = SEQUENCE.reshape(1, 14, 12)
    assert forms.int8(longer).shape == longer.shape
    expected = forms.prepared(longer)
    assert (forms.int8(longer) - expected).norm() < 0.1 * expected.norm()


@pytest.mark.parametrize("scaled", [lambda y: y * -0.5, lambda y: y * 0, lambda y: y / 0.5 - y])
def test_other_numbers_are_units_of_their_own(plan_of, scaled):
    plan = plan_of(lambda m, x: scaled(m.first(x) @ x), x=torch.rand(2, 5, 5), first=nn.Linear(5, 5))
    assert "matmul" in [unit.pattern for unit in plan.units]


def test_bounds_that_are_computed_leave_the_product_alone(plan_of):
    plan = plan_of(lambda m, x: (m.first(x) @ x).clamp(max=x.max()), x=torch.rand(2, 5, 5), first=nn.Linear(5, 5))
    assert [unit.pattern for unit in plan.units] == ["linear", "matmul"]
    assert "its bounds are computed at run time" in [rejection.reason for rejection in plan.rejections]


@pytest.mark.parametrize(
    ("extra", "reason"),
    [
        ({"args": (torch.float32,)}, "torch.float32: only a plain product has an integer form"),
        ({"kwargs": {"out_dtype": torch.float64}}, "out_dtype=torch.float64: only a plain product has an integer form"),
    ],
)
def test_further_arguments_are_refused(extra, reason):
    """``out_dtype`` runs on GPUs only, so no model is traced here."""
    graph = Graph()
    a, b = graph.placeholder("a"), graph.placeholder("b")
    node = graph.call_function(torch.bmm, (a, b, *extra.get("args", ())), extra.get("kwargs", {}))
    refused = two_factors({"a": a, "b": b, "matmul": node})
    assert refused is not None
    assert refused.reason == reason


def test_sums_must_fit(plan_of):
    depth = MOST_PRODUCTS + 1

    def body(m, x):
        return F.relu(x @ x.transpose(0, 1)) + 1

    assert [(r.pattern, r.reason) for r in plan_of(body, x=torch.rand(2, depth)).rejections if not r.excused] == [
        ("matmul", "33026 products per output can overflow an int32 sum; 33025 cannot")
    ]
    units = plan_of(body, x=torch.rand(2, depth - 1)).units
    assert [unit.pattern for unit in units] == ["transpose", "matmul_act", "add_number"]
