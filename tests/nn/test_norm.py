"""Softmax and layer norm on stored integers, as modules and in converted models."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.errors import LoweringError
from fxquant.kernels.library import available_isas
from fxquant.nn import QuantizedLayerNorm, QuantizedSoftmax
from fxquant.passes.unit_choice import READ_AS_FLOAT
from fxquant.plan.spec import QParams, QScheme
from fxquant.runtime import engine_of

UINT8 = QScheme(bits=8, signed=False)
SHARES = QParams(UINT8, torch.tensor([1 / 256]), torch.tensor([0], dtype=torch.int32))
INPUT = QParams(UINT8, torch.tensor([0.05]), torch.tensor([128], dtype=torch.int32))
NORMED = QParams(UINT8, torch.tensor([1 / 40]), torch.tensor([120], dtype=torch.int32))
X = torch.randn(3, 4, 6, generator=torch.Generator().manual_seed(0))
Q = torch.randint(0, 256, (3, 4, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))


def on_qparams(real, qparams):
    return (torch.round(real / qparams.scale) + qparams.zero_point).clamp(0, 255).to(torch.uint8)


@pytest.mark.parametrize("dim", [-1, 1, 0])
def test_softmax(dim):
    module = QuantizedSoftmax(dim, SHARES)
    assert torch.equal(module(X), on_qparams(torch.softmax(X, dim), SHARES))
    assert torch.equal(module(X, dim, dtype=None), module.reference(X))  # called as the function is


def test_softmax_of_stored_integers():
    module = QuantizedSoftmax(-1, SHARES, x=INPUT)
    assert torch.equal(module(Q), on_qparams(torch.softmax((Q.float() - 128) * 0.05, -1), SHARES))
    assert torch.equal(module(Q), module.reference(Q))
    assert "dim=-1" in str(module)


def test_masked_rows():
    x = torch.full((2, 4), -torch.inf)
    y = QParams(UINT8, torch.tensor([1 / 256]), torch.tensor([5], dtype=torch.int32))
    assert (QuantizedSoftmax(-1, y, safe=True)(x) == 5).all()
    assert (QuantizedSoftmax(-1, y)(x) == 0).all()
    assert "safe=True" in str(QuantizedSoftmax(-1, y, safe=True))


@pytest.mark.parametrize("shape", [6, (4, 6)])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(shape, affine, bias):
    layer = nn.LayerNorm(shape, elementwise_affine=affine, bias=bias)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    module = QuantizedLayerNorm(layer, NORMED)
    with torch.no_grad():
        assert torch.equal(module(X), on_qparams(layer(X), NORMED))
        assert torch.equal(module(X.double()), module.reference(X))
        stored = QuantizedLayerNorm(layer, NORMED, x=INPUT)
        assert torch.equal(stored(Q), on_qparams(layer((Q.float() - 128) * 0.05), NORMED))
        assert torch.equal(stored(Q), stored.reference(Q))


def test_copies_and_state():
    layer = nn.LayerNorm(6)
    module = QuantizedLayerNorm(layer, NORMED)
    other = QuantizedLayerNorm(nn.LayerNorm(6, eps=1e-5), SHARES)
    other.load_state_dict(module.state_dict())
    for made in (copy.deepcopy(module), pickle.loads(pickle.dumps(module)), other):
        assert torch.equal(made(X), module(X))
    assert set(module.state_dict()) == {"weight", "bias", "y_scale", "y_zero_point"}
    nn.init.zeros_(layer.weight)
    assert (module.weight == 1).all()


def test_wide_grids_are_refused():
    wide = QParams(QScheme(bits=16), torch.tensor([1.0]), torch.tensor([0], dtype=torch.int32))
    with pytest.raises(LoweringError):
        QuantizedSoftmax(-1, wide)
    with pytest.raises(LoweringError):
        QuantizedLayerNorm(nn.LayerNorm(3), SHARES, x=wide)


class Attention(nn.Module):
    """One head, written out, between two norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        y = self.first(x)
        weights = F.dropout(torch.softmax(self.q(y) @ self.k(y).transpose(-2, -1), -1), 0.1, self.training)
        x = x + weights @ self.v(y)
        return x + self.out(self.second(x))


def calibrated(model, x):
    return fxq.calibrate(fxq.prepare(model.eval(), x), [x], progress=False)


def fates(prepared) -> dict[str, str]:
    return {row.node: f"{row.operator}: {row.fate}" for row in prepared.coverage()}


def test_attention_runs_on_integers():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    prepared = calibrated(Attention(), x)
    assert fates(prepared)["softmax"] == "attention_weights: int8"
    assert fates(prepared)["first"] == fates(prepared)["second"] == "layer_norm: int8"
    int8 = fxq.convert(prepared, check=x)
    assert not int8.parity.breaches
    assert {"softmax", "first", "second"} <= {row.unit for row in int8.parity}
    assert isinstance(int8.softmax, QuantizedSoftmax)
    assert "x" not in int8.softmax._schemes  # the product gives real numbers
    assert int8.softmax.qparams("y").scale.item() < 1 / 256  # observed


@pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")
def test_in_programs():
    torch.manual_seed(0)
    x = torch.randn(2, 5, 8)
    prepared = calibrated(Attention(), x)
    program, graph = fxq.convert(prepared, engine="program"), fxq.convert(prepared, engine="graph")
    with torch.no_grad():
        results = [program(x) for _ in range(3)]
        assert all(torch.equal(result, graph(x)) for result in results)
    (plan,) = engine_of(program).plans
    assert sum(step.nodes for step in plan.programs) >= len(prepared.plan.units)


def test_a_softmax_that_no_product_reads_has_the_grid_of_all_shares():
    model = nn.Sequential(nn.Linear(4, 6), nn.Softmax(1), nn.Linear(6, 3))
    prepared = calibrated(model, torch.randn(5, 4))
    (unit,) = [unit for unit in prepared.plan.units if unit.pattern == "softmax"]
    int8 = fxq.convert(prepared)
    qparams = int8.quant_plan.qparams[unit.roles["y"]]
    assert (qparams.scale.item(), qparams.zero_point.item()) == (1 / 256, 0)


def test_what_a_float_operator_reads_too_stays_float():
    class PostNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.linear = nn.LayerNorm(8), nn.Linear(8, 8)

        def forward(self, x):
            y = self.norm(x)
            return self.linear(y) + torch.cumsum(y, 1)

    prepared = calibrated(PostNorm(), torch.randn(3, 8))
    row = next(row for row in prepared.coverage() if row.node == "norm")
    assert (row.fate, row.excused) == ("float", True)
    assert row.reason == READ_AS_FLOAT


def test_the_last_softmax_of_a_model_stays_float():
    prepared = calibrated(nn.Sequential(nn.Linear(4, 6), nn.Softmax(1)), torch.randn(5, 4))
    assert [row.fate for row in prepared.coverage()] == ["int8", "float"]


def test_integers_that_a_unit_made_are_taken_as_they_are():
    class Shared(nn.Module):
        """The sum is integers, since a convolution reads it, and the norm reads it too."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4)
            self.norm = nn.LayerNorm(8)

        def forward(self, x):
            y = torch.relu(self.a(x))
            return self.b(y), self.c(self.norm(y))

    torch.manual_seed(0)
    x = torch.randn(20, 8)
    prepared = calibrated(Shared(), x)
    int8 = fxq.convert(prepared, check=x)
    assert not int8.parity.breaches
    norm = next(module for module in int8.modules() if isinstance(module, QuantizedLayerNorm))
    assert "x" in norm._schemes
    assert not any(isinstance(module, fxq.nn.Dequantize) for name, module in int8.named_modules() if "relu" in name)
    simulated = fxq.convert(prepared, to="fake_quant")
    for real, other in zip(simulated(x), int8(x), strict=True):
        assert torch.allclose(real, other, atol=0.05)
