"""QuantizedLinear: the operator against the reference, and the reference against the simulation in float."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.errors import CalibrationError, InputError, LoweringError
from fxquant.kernels.library import available_isas, native_status
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.nn import kernel_selection
from fxquant.nn.linear import QuantizedLinear
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.plan.spec import Clamp, QParams, QScheme

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
