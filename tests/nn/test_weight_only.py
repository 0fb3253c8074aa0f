"""Linear layers on floats with a packed weight, against torch's own on the weight that was rounded to the grid."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.kernels.library import available_isas
from fxquant.nn import QuantizedWeightOnlyLinear
from fxquant.nn.fake_quantize import DequantizedLinear
from fxquant.nn.weight_forms import with_dequantized_weight
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import QParams, QScheme
from fxquant.runtime import engine_of

FLOAT_SUMS = 1e-5
"""Float32 sums of up to 64 products near 1, in two orders, relative and absolute."""

needs_native = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")

GROUPS = QScheme(bits=4, symmetric=True, axis=0, group_size=32)
SCHEMES = (
    GROUPS,
    QScheme(bits=4, symmetric=True, axis=0),
    QScheme(bits=8, symmetric=True, axis=0, group_size=64),
    QScheme(bits=8, signed=False, axis=-2),
    QScheme(bits=4, signed=False, axis=0, group_size=16),
    QScheme(bits=3, signed=False),
    QScheme(bits=5, symmetric=True, limits=(-12, 12)),
)


def qparams_of(weight: Tensor, scheme: QScheme) -> QParams:
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(weight.detach())
    return observer.qparams()


def linear(in_features: int = 64, out_features: int = 21, *, bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(in_features, out_features, bias=bias)


def rounded(layer: nn.Linear, qparams: QParams) -> nn.Linear:
    twin = copy.deepcopy(layer)
    twin.weight.data = fake_quantize(layer.weight.detach(), qparams.scale, qparams.zero_point, qparams.scheme)
    return twin


def module_of(layer: nn.Linear, scheme: QScheme = GROUPS) -> QuantizedWeightOnlyLinear:
    return QuantizedWeightOnlyLinear(layer, qparams_of(layer.weight, scheme))


X = torch.linspace(-2, 3, 6 * 64).sin().reshape(2, 3, 64)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@torch.no_grad()
def test_results_are_those_of_the_rounded_weight(scheme: QScheme, bias: bool) -> None:
    layer = linear(bias=bias)
    module = module_of(layer, scheme)
    want = rounded(layer, qparams_of(layer.weight, scheme))
    for x in (X, X[0, 0], X[:0], X.repeat(9, 4, 1), X.transpose(0, 1)):
        y = module(x)
        torch.testing.assert_close(y, want(x), rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
        assert torch.equal(y, module.reference(x))


@needs_native
def test_the_first_call_leaves_the_packed_order_alone() -> None:
    layer = linear(64, 32)
    module = module_of(layer)
    weight = module.weight.clone()
    y = module(X)
    assert module.kernel() == "native"
    assert "weight" not in module._buffers
    values, scale, zero_point, *_ = module._packed.arguments
    assert values.numel() == 64 * 32 // 2
    assert (scale.shape, zero_point) == ((2, 32), None)
    assert list(module.state_dict()) == ["weight", "bias", "weight_scale", "weight_zero_point"]
    assert torch.equal(module.state_dict()["weight"], weight)
    assert torch.equal(module(X), y)
    module.weight.neg_()
    module.invalidate()
    assert torch.equal(module.weight, -weight)


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
def test_state_travels(scheme: QScheme) -> None:
    module, fresh = module_of(linear(), scheme), module_of(nn.Linear(64, 21), scheme)
    y = module(X)
    assert not torch.equal(fresh(X), y)
    fresh.load_state_dict(module.state_dict())
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(X), y)


def test_it_takes_the_states_of_layers_that_made_a_float_weight() -> None:
    layer = linear()
    old = with_dequantized_weight(layer, qparams_of(layer.weight, GROUPS))
    module = module_of(nn.Linear(64, 21))
    module.load_state_dict(old.state_dict())
    assert torch.equal(module(X), module_of(layer)(X))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_results_have_the_dtype_of_the_float_layer(dtype: torch.dtype) -> None:
    layer = linear()
    x = X.to(dtype)
    cast = module_of(layer).to(dtype)
    assert cast.weight_scale.dtype == torch.float32
    assert torch.equal(cast(x), module_of(layer)(x.float()).to(dtype))
    assert module_of(copy.deepcopy(layer).to(dtype))(x).dtype == dtype


def test_the_gradient_reaches_the_input() -> None:
    layer = linear()
    module, want = module_of(layer), rounded(layer, qparams_of(layer.weight, GROUPS))
    grads = []
    for run in (module, want):
        x = X.clone().requires_grad_()
        run(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(*grads, rtol=FLOAT_SUMS, atol=FLOAT_SUMS)


def test_an_input_of_other_length() -> None:
    with pytest.raises(InputError) as error:
        module_of(linear())(torch.zeros(2, 63))
    assert str(error.value) == (
        "the input of a quantized linear layer has the wrong shape\n"
        "  at:       QuantizedWeightOnlyLinear\n"
        "  got:      63 features in [2, 63]\n"
        "  expected: 64 features: [..., 64]"
    )


def test_without_calibration() -> None:
    scheme = QScheme(bits=4, symmetric=True)
    module = QuantizedWeightOnlyLinear(linear(), QParams(scheme, torch.tensor([torch.nan]), torch.zeros(1).int()))
    with pytest.raises(CalibrationError, match="this unit was converted without calibration"):
        module(X)


@pytest.mark.parametrize(
    ("scheme", "fits"),
    [
        *((scheme, True) for scheme in SCHEMES),
        (QScheme(bits=9, symmetric=True), False),
        (QScheme(axis=1), False),
        (QScheme(signed=False, axis=0, float_qparams=True), False),
    ],
    ids=str,
)
def test_which_weights_are_packed(scheme: QScheme, fits: bool) -> None:
    assert QuantizedWeightOnlyLinear.takes(scheme) == fits
    assert not QuantizedWeightOnlyLinear.takes(scheme, torch.float64)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 96), nn.Linear(96, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.silu(self.first(x)))


def converted(qconfig: fxq.QConfig, dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return fxq.convert(fxq.prepare(Net().eval().to(dtype), X.to(dtype), qconfig))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group_size", [32, None])
@torch.no_grad()
def test_a_model_in_every_form_and_file(tmp_path: Path, bits: int, group_size: int | None) -> None:
    int8 = converted(fxq.weight_only_qconfig(bits=bits, group_size=group_size))
    assert isinstance(int8.first, QuantizedWeightOnlyLinear)
    y = int8(X)
    fxq.save(int8, tmp_path / "model.fxq")
    loaded = fxq.load(tmp_path / "model.fxq")
    assert isinstance(loaded.last, QuantizedWeightOnlyLinear)
    for other in (loaded, copy.deepcopy(int8), pickle.loads(pickle.dumps(int8)), int8, int8):
        assert torch.equal(other(X), y)
    torch.testing.assert_close(fxq.explicit(int8)(X), y, rtol=FLOAT_SUMS, atol=FLOAT_SUMS)
    exported = torch.export.export(int8, (X,)).module()
    assert torch.equal(exported(X), y)


@needs_native
@torch.no_grad()
def test_programs_run_it() -> None:
    int8 = converted(fxq.weight_only_qconfig())
    ys = [int8(X) for _ in range(4)]
    assert all(torch.equal(y, ys[0]) for y in ys)
    assert "it gives" not in str(engine_of(int8))
    assert "2 programs of 2 nodes" in str(engine_of(int8))


def test_layers_in_float64_keep_their_precision() -> None:
    assert isinstance(converted(fxq.weight_only_qconfig(), torch.float64).first, DequantizedLinear)


@pytest.mark.parametrize(
    "move", [lambda m: m.to("meta"), lambda m: m.half(), lambda m: m.to("cpu")], ids=["meta", "half", "cpu"]
)
def test_moves_bring_the_weight_back(move: Callable[[nn.Module], nn.Module]) -> None:
    module = module_of(linear())
    module(X)
    moved = move(copy.deepcopy(module))
    assert moved.weight.dtype == torch.int8
    assert moved.weight.shape == (21, 64)
