"""The product of two activations against its formula; with and without a grid for the result."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

from fxquant.errors import CalibrationError, InputError, LoweringError
from fxquant.nn.matmul import QuantizedMatmul
from fxquant.plan.spec import Clamp, QParams, QScheme


def qparams(scale: float, zero_point: int, **scheme: object) -> QParams:
    scheme = {"signed": False, **scheme}
    return QParams(QScheme(**scheme), torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


A, B, Y = qparams(0.1, 3), qparams(0.07, -5, signed=True), qparams(0.9, 100)
CLAMPS = [None, Clamp(0.0, None), Clamp(-20.0, 30.0)]


def operands() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randint(0, 256, (2, 5, 9), generator=generator, dtype=torch.uint8)
    return a, torch.randint(-128, 128, (2, 7, 9), generator=generator, dtype=torch.int8).mT


def product(a: Tensor, b: Tensor) -> Tensor:
    """Exact sums of integers, then one product in float32."""
    return ((a.double() - 3) @ (b.double() + 5)).float() * (A.scale * B.scale)


@pytest.mark.parametrize("activation", CLAMPS)
def test_the_activation_is_exact(activation: Clamp | None) -> None:
    a, b = operands()
    real = product(a, b) if activation is None else activation(product(a, b))
    module = QuantizedMatmul(A, B, Y, activation)
    expected = (torch.round(real * (1.0 / Y.scale)) + 100).clamp(0, 255)
    assert torch.equal(module(a, b).float(), expected)
    assert torch.equal(module.reference(a, b), module(a, b))
    assert expected.unique().numel() > 5


@pytest.mark.parametrize("activation", CLAMPS)
def test_without_a_grid_the_result_is_float(activation: Clamp | None) -> None:
    a, b = operands()
    module = QuantizedMatmul(A, B, None, activation)
    assert torch.equal(module(a, b), product(a, b) if activation is None else activation(product(a, b)))
    assert torch.equal(module.reference(a, b), module(a, b))


@pytest.mark.parametrize("y", [Y, None])
def test_a_factor_is_part_of_the_scale(y: QParams | None) -> None:
    a, b = operands()
    module = QuantizedMatmul(A, B, y, factor=0.25)
    assert torch.equal(module(a, b), QuantizedMatmul(qparams(0.1 * 0.25, 3), B, y)(a, b))
    assert torch.equal(module.reference(a, b), module(a, b))
    assert repr(module).endswith(", factor=0.25)")


@pytest.mark.parametrize("y", [Y, None])
def test_state_travels(y: QParams | None) -> None:
    module = QuantizedMatmul(A, B, y)
    expected = module(*operands())
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(*operands()), expected)
    unknown = QuantizedMatmul(qparams(float("nan"), 0), B, y)
    with pytest.raises(CalibrationError, match="a_scale = nan"):
        unknown(*operands())
    unknown.load_state_dict(module.state_dict())
    assert torch.equal(unknown(*operands()), expected)


def test_what_it_was_not_made_for() -> None:
    a, b = operands()
    with pytest.raises(InputError) as error:
        QuantizedMatmul(A, B, Y)(a, b.view(torch.uint8))
    assert str(error.value) == (
        "a quantized operator got an input that it was not made for\n"
        "  at:       QuantizedMatmul\n"
        "  got:      b: torch.uint8\n"
        "  expected: torch.int8"
    )
    with pytest.raises(LoweringError, match="input a"):
        QuantizedMatmul(qparams(0.1, 0, bits=12), B, Y)


def test_it_prints_its_grids() -> None:
    text = repr(QuantizedMatmul(A, B, None, Clamp(0.0, None)))
    assert text == (
        "QuantizedMatmul(a: uint8 scale=0.1 zero_point=3, b: int8 scale=0.07 zero_point=-5, y: float32, "
        "activation=Clamp(low=0.0, high=None))"
    )
