"""The backend that simulates: it plans every grid, and says that it has no operators."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.backends.reference import REFERENCE, no_operator
from fxquant.errors import LoweringError
from tests.outputs import rounding_outputs

X = torch.randn(8, 12, generator=torch.Generator().manual_seed(0))

SCHEMES = (
    fxq.QScheme(bits=2, symmetric=True, axis=0),
    fxq.QScheme(bits=3, symmetric=True, axis=0, group_size=4),
    fxq.QScheme(bits=4, signed=False, axis=0, group_size=6),
    fxq.QScheme(bits=6, axis=-2),
    fxq.QScheme(bits=8, symmetric=True, axis=0, group_size=3),
    fxq.QScheme(bits=12),
    fxq.QScheme(bits=16, symmetric=True, axis=0),
)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 5)).eval()


def qconfig(weight: fxq.QScheme, activation_bits: int = 12) -> fxq.QConfig:
    observer = fxq.MinMaxObserver if weight.axis is None else fxq.PerChannelMinMaxObserver
    return fxq.QConfig(fxq.MinMaxObserver.with_args(bits=activation_bits), observer.with_args(scheme=weight))


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_every_grid_is_planned_and_both_forms_agree(scheme):
    net = model()
    prepared = fxq.prepare(net, X, qconfig(scheme), backend="reference").calibrate([X], progress=False)
    assert [unit.pattern for unit in prepared.plan.units] == ["linear_act", "linear"]
    stored, simulated = fxq.convert(prepared, to="reference"), fxq.convert(prepared, to="fake_quant")
    assert stored.get_submodule("2").weight.dtype == scheme.dtype
    assert torch.equal(stored(X), simulated(X))
    assert not torch.equal(stored(X), net(X))
    groups = stored.get_submodule("2").weight_scale.shape
    assert groups == ((5, 12 // scheme.group_size) if scheme.group_size else (1,) if scheme.axis is None else (5,))


def test_groups_keep_large_weights_from_spoiling_a_row():
    errors = []
    for group_size in (None, 3):
        scheme = fxq.QScheme(bits=3, symmetric=True, axis=0, group_size=group_size)
        net = model()
        net[2].weight.data[:, :3] *= 8
        prepared = fxq.prepare(net, X, qconfig(scheme, 16), backend="reference").calibrate([X], progress=False)
        errors.append(F.mse_loss(fxq.convert(prepared, to="fake_quant")(X), net(X)).item())
    assert errors[1] < errors[0]


def test_the_cpu_says_what_it_cannot_run():
    """With the same configuration, a wish that int8 cannot fulfil is a reason in the table, not a silent float."""
    prepared = fxq.prepare(
        nn.Sequential(nn.Linear(12, 12), nn.Sigmoid()).eval(), X, rounding_outputs(qconfig(SCHEMES[1], 8))
    )
    (row,) = prepared.coverage().float_rows
    assert row.reason == (
        "backend 'cpu': weights with one scale per group have no integer operator; backend='reference' simulates them"
    )
    assert not row.excused


def test_int8_is_refused():
    prepared = fxq.prepare(model(), X, backend="reference").calibrate([X], progress=False)
    with pytest.raises(LoweringError) as error:
        fxq.convert(prepared)
    assert str(error.value) == (
        "backend 'reference' has no integer operators\n"
        "  got:      to='int8'\n"
        "  expected: to='reference' (integers between float operators) or to='fake_quant' (their values, in float)\n"
        "  hint:     prepare with backend='cpu' for int8 on this machine"
    )


def test_patterns_that_no_backend_knows_are_simulated():
    mine = fxq.Pattern("sinc", root=fxq.op(torch.sinc)(fxq.tensor("x")))
    net = nn.Sequential(nn.Linear(12, 12), Sinc()).eval()
    prepared = fxq.prepare(net, X, rounding_outputs(), backend="reference", patterns=(*fxq.DEFAULT_PATTERNS, mine))
    assert [unit.pattern for unit in prepared.plan.units] == ["linear", "sinc"]
    prepared.calibrate([X], progress=False)
    assert torch.equal(fxq.convert(prepared, to="reference")(X), fxq.convert(prepared, to="fake_quant")(X))


class Sinc(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sinc(x)


def test_tables_of_any_grid():
    scheme = fxq.QScheme(bits=10, axis=0, group_size=4, signed=False, float_qparams=True)
    observer = fxq.PerChannelMinMaxObserver.with_args(scheme=scheme)
    rules = fxq.get_default_qconfig_mapping().set_object_type(
        nn.Embedding, fxq.QConfig(fxq.PlaceholderObserver, observer)
    )
    net = nn.Sequential(nn.Embedding(9, 8)).eval()
    indices = torch.arange(9)
    prepared = fxq.prepare(net, indices, rules, backend="reference")
    stored, simulated = fxq.convert(prepared, to="reference"), fxq.convert(prepared, to="fake_quant")
    assert stored.get_submodule("0").weight.dtype == torch.int32
    assert torch.equal(stored(indices), simulated(indices))
    assert F.mse_loss(stored(indices), net(indices)) < 1e-5


def test_no_unit_is_built():
    (rule,) = [rule for rule in REFERENCE.rules if "linear" in rule.patterns]
    assert rule.build is no_operator
    view = fxq.UnitView("fc", ("x",), {}, {}, {})
    with pytest.raises(LoweringError, match="this backend has no integer operators\n  at:       fc"):
        no_operator(view)
