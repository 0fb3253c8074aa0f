"""QuantizedLinear: the operator against the reference, and the reference against the simulation in float."""

from __future__ import annotations

import copy
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, KernelError, LoweringError
from fxquant.fake_quantize.converted import DynamicFakeQuantize
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.kernels.library import available_isas, native_status
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.nn import QuantizedDynamicLinear
from fxquant.nn import weight as kernel_selection
from fxquant.nn.base import FloatResult
from fxquant.nn.linear import QuantizedLinear
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.observers import MinMaxObserver, PerChannelMinMaxObserver
from fxquant.plan.spec import Clamp, Dynamic, QParams, QScheme
from fxquant.settings import Settings

FROM_A_BOUNDARY = 1e-3
"""Steps. Nearer to a rounding boundary, float sums in another order may fall on its other side (design numerics)."""

UINT8, INT8 = QScheme(bits=8, signed=False), QScheme(bits=8, signed=True)


def qparams(scheme: QScheme, scale: float, zero_point: int) -> QParams:
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


def make(
    *,
    x: QScheme = UINT8,
    y: QScheme = UINT8,
    bits: int = 8,
    bias: bool = True,
    activation: Clamp | None = None,
    weight: QParams | None = None,
    shape: tuple[int, ...] = (50, 120),
) -> tuple[nn.Linear, QuantizedLinear, Tensor]:
    """A float layer, its quantized form and an input that spreads over the grids."""
    generator = torch.Generator().manual_seed(0)
    linear = nn.Linear(120, 40, bias=bias)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    if weight is None:
        scale = linear.weight.detach().abs().amax(1) / ((2**bits - 1) / 2)
        scheme = QScheme(bits=bits, symmetric=True, axis=0)
        weight = QParams(scheme, scale, torch.zeros(40, dtype=torch.int32))
    x_steps = x.quant_max - x.quant_min
    x_qparams = qparams(x, 7.0 / x_steps, x.quant_min + x_steps // 2)
    y_steps = y.quant_max - y.quant_min
    y_qparams = qparams(y, 12.0 / y_steps, (y.quant_min + y.quant_max) // 2 - y_steps // 8)
    real = torch.randn(shape, generator=generator) + 0.3
    return (
        linear,
        QuantizedLinear(linear, x=x_qparams, weight=weight, y=y_qparams, activation=activation),
        Quantize(x_qparams)(real),
    )


def simulated(module: QuantizedLinear, x: Tensor) -> tuple[Tensor, Tensor]:
    """The layer in float32 on dequantized values.

    Returns:
        Its result on the output grid, as a float; and where that is sure, whatever order the sums are taken in.
    """
    weight = (module.weight.int() - module.weight_zero_point.reshape(-1, 1)) * module.weight_scale.reshape(-1, 1)
    real = F.linear(Dequantize(module.qparams("x"))(x), weight, module.bias)
    inverse, scheme, act = 1.0 / module.y_scale, module.qparams("y").scheme, module.activation
    before, after = real * inverse, (real if act is None else real.clamp(act.low, act.high)) * inverse
    sure = (after - after.floor() - 0.5).abs() > FROM_A_BOUNDARY
    sure |= (before - after).abs() > FROM_A_BOUNDARY  # clamped by the activation: the same on both sides
    return (torch.round(after) + module.y_zero_point).clamp(scheme.quant_min, scheme.quant_max), sure


AFFINE = qparams(QScheme(bits=8, signed=False), 0.004, 119)
VARIANTS = {
    "plain": {},
    "no bias": {"bias": False},
    "relu": {"activation": Clamp(0, None)},
    "relu6": {"activation": Clamp(0, 2)},
    "signed": {"x": INT8, "y": INT8},
    "4 bit": {"x": QScheme(bits=4, signed=False), "y": QScheme(bits=4, signed=True), "bits": 4},
    "affine weight": {"weight": AFFINE},
    "three dimensions": {"shape": (5, 7, 120)},
    "a vector": {"shape": (120,)},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_agrees_with_the_simulation(variant: str) -> None:
    _, module, x = make(**VARIANTS[variant])

    q, (want, sure) = module.reference(x), simulated(module, x)

    assert sure.float().mean() > 0.99
    assert torch.equal(q[sure].float(), want[sure])
    assert (q.float() - want).abs().max() <= 1
    assert q.unique().numel() > 5


@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_is_the_reference(variant: str) -> None:
    _, module, x = make(**VARIANTS[variant])

    assert torch.equal(module(x), module.reference(x))


SUMS = 1e-5
"""Of the largest value: float32 sums of 120 products, in another order than the exact ones."""


@pytest.mark.parametrize("activation", [None, Clamp(0, None), Clamp(-0.5, 0.5)])
def test_without_a_grid_it_gives_real_numbers(activation: Clamp | None) -> None:
    linear, module, x = make(activation=activation)
    qparams = {"x": module.qparams("x"), "weight": module.qparams("weight")}
    real = QuantizedLinear(linear, **qparams, y=None, activation=activation)
    weight = module.weight * module.weight_scale.reshape(-1, 1)
    want = F.linear(Dequantize(module.qparams("x"))(x).double(), weight.double(), linear.bias.double())
    want = want if activation is None else activation(want)

    assert real(x).dtype == torch.float32
    assert torch.equal(real(x), real.reference(x)) or not real.kernel().startswith("native")
    for given in (real(x), real.reference(x)):
        assert (given.double() - want).abs().max() <= SUMS * want.abs().max()
    assert torch.equal(Quantize(module.qparams("y"))(real.reference(x)), module.reference(x))
    assert set(module.state_dict()) - set(real.state_dict()) == {"y_scale", "y_zero_point"}
    assert torch.equal(pickle.loads(pickle.dumps(real))(x), real(x))
    assert repr(real).endswith("y: float32\n)")


@pytest.mark.parametrize("shape", [(0, 120), (3, 0, 120)])
def test_an_empty_batch(shape: tuple[int, ...]) -> None:
    _, module, x = make(shape=shape)

    assert module(x).shape == (*shape[:-1], 40)
    assert module.reference(x).shape == (*shape[:-1], 40)


def test_a_view_that_is_not_contiguous() -> None:
    _, module, x = make()
    view = x.t().contiguous().t()

    assert not view.is_contiguous()
    assert torch.equal(module(view), module(x))


def test_what_runs_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    _, module, x = make()
    if available_isas():
        assert module.kernel() == "native"
        assert isinstance(module.packed(), NativeLinear)
        assert torch.equal(module(x), module.reference(x))

        assert make(weight=AFFINE)[1].kernel() == "reference: the int8 operators take no zero point of the weight"

    absent = replace(native_status(), devices=(), reason="the native library was not built")
    monkeypatch.setattr(kernel_selection, "native_status", lambda: absent)
    module.invalidate()

    assert module.kernel() == "reference: the native library was not built"
    assert torch.equal(module(x), module.reference(x))


def test_products_that_would_saturate_in_16_bits_do_not() -> None:
    """64 ones of weight 1 on grids that use 255 and 127: 32 where pairs of products saturate."""
    linear = nn.Linear(64, 4, bias=False)
    nn.init.ones_(linear.weight)
    weight = QParams(QScheme(symmetric=True), torch.tensor([1 / 127]), torch.tensor([0], dtype=torch.int32))
    module = QuantizedLinear(linear, x=qparams(UINT8, 1 / 255, 0), weight=weight, y=qparams(UINT8, 0.5, 0))

    got = module(torch.full((4, 64), 255, dtype=torch.uint8))

    assert (got == 128).all()


def test_state_is_plain_and_copies_give_the_same() -> None:
    _, module, x = make()
    want = module(x)

    state = module.state_dict()

    assert list(state) == [
        "weight",
        "bias",
        "x_scale",
        "x_zero_point",
        "weight_scale",
        "weight_zero_point",
        "y_scale",
        "y_zero_point",
    ]
    assert state["weight"].dtype == torch.int8
    assert torch.equal(copy.deepcopy(module)(x), want)
    assert torch.equal(pickle.loads(pickle.dumps(module))(x), want)


def test_a_loaded_state_is_used() -> None:
    _, module, x = make()
    _, other, _ = make(activation=Clamp(0, None))
    other.weight.neg_()
    other.invalidate()
    before = other(x)
    other.activation = None

    other.load_state_dict(module.state_dict())

    assert torch.equal(other(x), module(x))
    assert not torch.equal(other(x), before)


def test_an_input_of_another_kind_is_refused() -> None:
    _, module, x = make()
    module.unit = "classifier.0"

    for call in (module, module.reference):
        with pytest.raises(InputError) as error:
            call(x.float())
        assert str(error.value) == (
            "a quantized linear layer got an input that it was not made for\n"
            "  at:       classifier.0\n"
            "  got:      torch.float32\n"
            "  expected: torch.uint8"
        )


@pytest.mark.parametrize(
    ("shape", "got"),
    [((2, 1), "1 feature in [2, 1]"), ((0, 4), "4 features in [0, 4]"), ((), "[]")],
)
def test_an_input_of_another_shape_is_refused(shape: tuple[int, ...], got: str) -> None:
    x = qparams(UINT8, 1.0, 0)
    module = QuantizedLinear(nn.Linear(3, 2), x=x, weight=qparams(QScheme(symmetric=True), 1.0, 0), y=x)
    module.unit = "classifier.0"

    for call in (module, module.reference):
        with pytest.raises(InputError) as error:
            call(torch.zeros(shape, dtype=torch.uint8))
        assert str(error.value) == (
            "the input of a quantized linear layer has the wrong shape\n"
            "  at:       classifier.0\n"
            f"  got:      {got}\n"
            "  expected: 3 features: [..., 3]"
        )


def test_a_weight_that_is_not_finite_is_refused() -> None:
    linear = nn.Linear(3, 2)
    with torch.no_grad():
        linear.weight[0, 0] = float("inf")

    with pytest.raises(LoweringError, match="the weight holds values that are not finite"):
        QuantizedLinear(
            linear, x=qparams(UINT8, 1.0, 0), weight=qparams(QScheme(symmetric=True), 1.0, 0), y=qparams(UINT8, 1.0, 0)
        )


def test_an_uncalibrated_shell_runs_once_a_state_is_loaded() -> None:
    linear, module, x = make()
    unknown = qparams(UINT8, float("nan"), 0)
    shell = QuantizedLinear(linear, x=unknown, weight=module.qparams("weight"), y=unknown)

    for call in (shell, shell.reference):
        with pytest.raises(CalibrationError, match="converted without calibration"):
            call(x)

    shell.load_state_dict(module.state_dict())
    assert torch.equal(shell(x), module(x))


def test_printing_shows_sizes_and_grids() -> None:
    module = QuantizedLinear(
        nn.Linear(3, 2, bias=False),
        x=qparams(UINT8, 0.1, 3),
        weight=qparams(QScheme(symmetric=True), 0.5, 0),
        y=qparams(INT8, 0.25, -4),
        activation=Clamp(0, None),
    )

    assert repr(module) == (
        "QuantizedLinear(\n"
        "  3, 2, bias=False, activation=Clamp(low=0, high=None)\n"
        "  x: uint8 scale=0.1 zero_point=3, weight: int8 scale=0.5 zero_point=0, y: int8 scale=0.25 zero_point=-4\n"
        ")"
    )


FLOAT_SUMS = 1e-5
"""Integer sums are exact, float32 sums of 40 products of the simulation are not: relative to the largest result."""

PER_ROW = QScheme(symmetric=True, axis=0)
INPUTS = (QScheme(signed=False), QScheme(symmetric=True), QScheme(bits=5, signed=False))


def layer(bias: bool = True) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(40, 6, bias=bias)


def made(
    linear: nn.Linear, x: QScheme = INPUTS[0], weight: QScheme = PER_ROW, per: Any = "tensor"
) -> QuantizedDynamicLinear:
    return QuantizedDynamicLinear(linear, x=Dynamic(x, per=per), weight=qparams_of(linear.weight, weight))


def qparams_of(weight: torch.Tensor, scheme: QScheme) -> QParams:
    observer = (MinMaxObserver if scheme.axis is None else PerChannelMinMaxObserver)(scheme=scheme)
    observer(weight.detach())
    return observer.qparams()


def data(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, 40, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight", [PER_ROW, QScheme(bits=4, symmetric=True)], ids=str)
@pytest.mark.parametrize("x", INPUTS, ids=str)
@pytest.mark.parametrize("per", ["tensor", "token"])
def test_it_is_the_simulation_and_the_reference(per, x, weight, bias):
    linear = layer(bias)
    module, qparams = made(linear, x, weight, per), qparams_of(linear.weight, weight)
    rounded = fake_quantize(linear.weight.detach(), qparams.scale, qparams.zero_point, weight)
    for shape in ((), (3,), (2, 3), (64,)):
        for factor in (1.0, 30.0):
            inputs = data(*shape) * factor
            y = module(inputs)
            assert y.shape == (*shape, 6)
            assert torch.equal(module.reference(inputs), y)
            expected = nn.functional.linear(
                DynamicFakeQuantize(Dynamic(x, per=per))(inputs), rounded, linear.bias
            ).detach()
            torch.testing.assert_close(y, expected, rtol=0, atol=FLOAT_SUMS * float(expected.abs().max()))


@pytest.mark.parametrize("per", ["tensor", "token"])
def test_the_reference_runs_where_no_kernel_does(monkeypatch, per):
    module = made(layer(), per=per)
    expected = module(data(5))
    monkeypatch.setattr("fxquant.nn.linear.why_not_native", lambda *arguments: "no kernels today")
    module.invalidate()
    assert module.kernel() == "reference: no kernels today"
    assert torch.equal(module(data(5)), expected)
    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings(kernels="native"))
    module.invalidate()
    with pytest.raises(KernelError, match="no kernel runs this layer"):
        module(data(5))


@pytest.mark.parametrize("per", ["tensor", "token"])
def test_no_samples_and_no_numbers(per):
    module = made(layer(), per=per)
    assert module(data(0)).shape == module.reference(data(0)).shape == (0, 6)
    y = module(torch.full((1, 40), math.nan))
    assert torch.equal(y[0], module.bias)


@pytest.mark.parametrize("weight", [PER_ROW, QScheme(bits=5)], ids=str)
def test_the_activation_is_part_of_it(weight):
    """Weights with zero points have no kernel: the reference clamps, too."""
    linear = layer()
    plain = made(linear, weight=weight)
    for clamp in (Clamp(0.0, None), Clamp(None, 0.25), Clamp(-0.5, 0.25), Clamp(1.0, -1.0), Clamp()):
        x, qparams = Dynamic(INPUTS[0]), qparams_of(linear.weight, weight)
        module = QuantizedDynamicLinear(linear, x=x, weight=qparams, activation=clamp)
        assert torch.equal(module(data(5)), clamp(plain(data(5))))
        assert torch.equal(module.reference(data(5)), clamp(plain.reference(data(5))))
    assert "40, 6, activation=Clamp(low=None, high=None)" in repr(module)


def test_results_have_the_form_that_is_asked_for():
    module = made(layer())
    module.float_result = FloatResult(torch.bfloat16)
    assert torch.equal(module(data(3)), made(layer())(data(3)).bfloat16())
    assert made(layer()).double()(data(3).double()).dtype == torch.float64


def test_state_travels():
    module, fresh = made(layer()), made(nn.Linear(40, 6))
    before = module(data(3))
    assert not torch.equal(fresh(data(3)), before)
    fresh.load_state_dict(module.state_dict())
    assert list(module.state_dict()) == ["weight", "bias", "weight_scale", "weight_zero_point"]
    for other in (fresh, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(data(3)), before)


def test_a_weight_grid_that_bytes_do_not_hold_is_refused():
    with pytest.raises(LoweringError, match="int8 operators cannot take the qparams of this weight"):
        made(layer(), weight=QScheme(axis=0, group_size=10, symmetric=True))


def test_printing():
    linear = layer(bias=False)
    linear.weight.data.fill_(1.0)
    assert repr(made(linear, weight=QScheme(symmetric=True))) == (
        "QuantizedDynamicLinear(\n"
        "  40, 6, bias=False\n"
        "  x: uint8 affine per tensor per call, weight: int8 scale=0.007843 zero_point=0, y: float32\n"
        ")"
    )
    assert "x: uint8 affine per token per call" in repr(made(linear, per="token"))


@pytest.mark.parametrize("bias", [True, False])
def test_of_no_rows_and_of_no_columns(bias):
    weight = QParams(QScheme(symmetric=True), torch.ones(1), torch.zeros(1, dtype=torch.int32))
    for linear, x in ((nn.Linear(40, 6, bias=bias), data(0)), (no_columns(bias), torch.zeros(3, 0))):
        module = QuantizedDynamicLinear(linear, x=Dynamic(INPUTS[0]), weight=weight)
        with torch.no_grad():
            assert torch.equal(module(x), linear(x))
            assert torch.equal(module.reference(x), linear(x))


def no_columns(bias: bool) -> nn.Linear:
    linear = layer(bias)
    linear.weight = nn.Parameter(torch.zeros(6, 0))
    return linear


@pytest.mark.parametrize("shape", [(2, 39), (0, 39)])
def test_an_input_of_another_shape_is_refused_of_dynamic_linear(shape):
    module = made(layer())
    module.unit = "head"
    for call in (module, module.reference):
        with pytest.raises(InputError) as caught:
            call(torch.zeros(shape))
        assert str(caught.value) == (
            "the input of a quantized linear layer has the wrong shape\n"
            "  at:       head\n"
            f"  got:      39 features in {list(shape)}\n"
            "  expected: 40 features: [..., 40]"
        )


@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
@pytest.mark.parametrize(
    "qconfig",
    [fxq.default_dynamic_qconfig, fxq.get_default_qconfig()],
    ids=["call", "calibrated"],
)
def test_nan_and_infinities_lie_at_the_ends_of_the_range(qconfig, to):
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 5)).eval(), torch.randn(3, 8).clamp(-2, 2)
    x[0, 3], x[1, 0], x[2, 5] = 0.0, -4.0, 3.0  # the ends are the same with and without the value that is replaced
    prepared = fxq.prepare(model, x, fxq.QConfigMapping().set_object_type(nn.Linear, qconfig))
    prepared(x)
    converted = fxq.convert(prepared, to=to)
    for value, end in ((torch.nan, -4.0), (-torch.inf, -4.0), (torch.inf, 3.0)):
        bad, known = x.clone(), x.clone()
        bad[0, 3], known[0, 3] = value, end
        assert torch.equal(converted(bad), converted(known))
        assert not model(bad).isfinite().all()
