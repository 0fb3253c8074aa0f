"""What becomes of float weights, biases and grids, and what is refused."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import LoweringError
from fxquant.nn.weight import LARGEST_FAN_IN, byte_qparams, float_bias, integer_weight
from fxquant.plan.spec import QParams, QScheme


def params(scheme: QScheme, channels: int = 1, scale: float = 0.1, zero_point: int = 0) -> QParams:
    return QParams(scheme, torch.full((channels,), scale), torch.full((channels,), zero_point, dtype=torch.int32))


def test_rounds_each_channel_by_its_scale() -> None:
    weight = torch.tensor([[0.26, -0.34, 20.0], [0.26, -0.34, -20.0]])
    qparams = QParams(QScheme(symmetric=True, axis=0), torch.tensor([0.1, 0.01]), torch.zeros(2, dtype=torch.int32))

    integers, used = integer_weight(weight, qparams)

    assert integers.dtype == torch.int8
    assert integers.tolist() == [[3, -3, 127], [26, -34, -128]]
    assert used.same_qparams(qparams)


def test_ties_go_to_even_on_the_product_with_the_inverse() -> None:
    weight = torch.tensor([[0.5, 1.5, 2.5, -0.5]])

    integers, _ = integer_weight(weight, params(QScheme(symmetric=True), scale=1.0))

    assert integers.tolist() == [[0, 2, 2, 0]]


def test_a_negative_axis_is_counted_from_the_end() -> None:
    _, used = integer_weight(torch.ones(2, 3, 4), params(QScheme(symmetric=True, axis=-3), channels=2))

    assert used.scheme.axis == 0


@pytest.mark.parametrize("limits", [None, (1, 14)])
def test_an_unsigned_grid_is_stored_as_int8(limits: tuple[int, int] | None) -> None:
    weight = torch.linspace(-1, 2, 40).reshape(4, 10)
    qparams = params(QScheme(bits=4, signed=False, limits=limits), scale=0.2, zero_point=5)

    integers, used = integer_weight(weight, qparams)

    steps = (torch.round(weight * (1 / qparams.scale)) + 5).clamp(qparams.scheme.quant_min, qparams.scheme.quant_max)
    assert torch.equal((integers.int() - used.zero_point) * used.scale, (steps.int() - 5) * qparams.scale)
    assert used.scheme.signed
    assert (used.scheme.quant_min, used.scheme.quant_max) == ((limits or (0, 15))[0] - 8, (limits or (0, 15))[1] - 8)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_weight_that_is_not_finite_is_refused(bad: float) -> None:
    with pytest.raises(LoweringError) as error:
        integer_weight(torch.tensor([[1.0, bad], [bad, 2.0]]), params(QScheme(symmetric=True)))

    assert str(error.value) == (
        "the weight holds values that are not finite\n"
        "  got:      2 of 4 values are inf or NaN\n"
        "  expected: finite weights"
    )


def test_a_bias_that_is_not_finite_is_refused() -> None:
    with pytest.raises(LoweringError) as error:
        float_bias(torch.tensor([1.0, float("nan")]))

    assert str(error.value) == (
        "the bias holds values that are not finite\n"
        "  got:      1 of 2 values are inf or NaN\n"
        "  expected: a finite bias; with a batch norm folded in, finite statistics too"
    )


def test_a_bias_becomes_a_float32_copy() -> None:
    bias = torch.tensor([0.5, 1.0], dtype=torch.float64, requires_grad=True)

    got = float_bias(bias)

    assert got is not None
    assert (got.dtype, got.requires_grad, got.tolist()) == (torch.float32, False, [0.5, 1.0])
    assert float_bias(None) is None


def with_shape(scheme: QScheme, *shape: int) -> QParams:
    zero_point = torch.zeros(shape, dtype=torch.float32 if scheme.float_qparams else torch.int32)
    return QParams(scheme, torch.full(shape, 0.1), zero_point)


@pytest.mark.parametrize(
    "qparams",
    [
        with_shape(QScheme(bits=9), 1),
        with_shape(QScheme(axis=0, group_size=2), 2, 2),
        with_shape(QScheme(axis=0, float_qparams=True, signed=False), 2),
    ],
)
def test_grids_without_an_integer_operator_are_refused(qparams: QParams) -> None:
    with pytest.raises(LoweringError) as error:
        integer_weight(torch.ones(2, 4), qparams)

    assert str(error.value) == (
        "int8 operators cannot take this weight grid\n"
        f"  got:      {qparams.scheme}\n"
        "  expected: at most 8 bits, one integer grid for the tensor or one per output channel"
    )


def test_scales_along_another_axis_are_refused() -> None:
    with pytest.raises(LoweringError) as error:
        integer_weight(torch.ones(2, 4), params(QScheme(axis=1), channels=4))

    assert str(error.value) == (
        "int8 operators need one scale per output channel of the weight\n"
        "  got:      axis=1 of a weight of shape [2, 4]\n"
        "  expected: axis=0, or one scale for the whole tensor"
    )


def test_sums_that_int32_may_not_hold_are_refused() -> None:
    weight = torch.ones(1).expand(1, LARGEST_FAN_IN + 1)

    with pytest.raises(LoweringError) as error:
        integer_weight(weight, params(QScheme(symmetric=True)))

    assert str(error.value) == (
        "too many products per output for int32 sums\n"
        f"  got:      {LARGEST_FAN_IN + 1}\n"
        f"  expected: at most {LARGEST_FAN_IN}"
    )
    assert LARGEST_FAN_IN * 255 * 128 < 2**31 <= (LARGEST_FAN_IN + 1) * 255 * 128


@pytest.mark.parametrize("scheme", [QScheme(bits=16), QScheme(axis=1), QScheme(axis=0, float_qparams=True)])
def test_activation_grids_that_are_no_byte_are_refused(scheme: QScheme) -> None:
    with pytest.raises(LoweringError) as error:
        byte_qparams("the input", with_shape(scheme, 1))

    assert str(error.value) == (
        "int8 operators cannot take the grid of the input\n"
        f"  got:      {scheme}\n"
        "  expected: at most 8 bits, one integer grid for the whole tensor"
    )


def test_a_byte_grid_is_passed_through() -> None:
    qparams = params(QScheme(bits=4, signed=False))

    assert byte_qparams("x", qparams) is qparams
