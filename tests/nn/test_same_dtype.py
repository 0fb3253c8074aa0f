"""Inputs that come in the other byte type than the output."""

from __future__ import annotations

import pytest
import torch

from fxquant.errors import InputError, LoweringError
from fxquant.nn.elementwise import QuantizedAdd
from fxquant.nn.same_dtype import SameDtypeModule
from fxquant.plan.spec import QParams, QScheme


def qparams(scale: float, zero_point: int, **scheme: object) -> QParams:
    return QParams(QScheme(**scheme), torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    low = torch.iinfo(dtype).min
    return torch.arange(low, low + 256).to(dtype)


@pytest.mark.parametrize("y_signed", [False, True])
@pytest.mark.parametrize("x_signed", [False, True])
def test_an_input_stands_for_the_same_numbers(x_signed: bool, y_signed: bool) -> None:
    module = SameDtypeModule()
    module.add_same_dtype_qparams("y", qparams(0.2, 3, signed=y_signed))
    module.add_same_dtype_qparams("x", qparams(0.1, 7, signed=x_signed))
    q = every_byte(torch.int8 if x_signed else torch.uint8)
    moved = module.take("x", q)
    scale, zero_point = module.numbers("x")
    assert moved.dtype == (torch.int8 if y_signed else torch.uint8)
    assert torch.equal(moved.int() - zero_point, q.int() - 7)
    assert scale == torch.tensor(0.1).item()


@pytest.mark.parametrize("signs", [(False, True, False), (True, True, False), (True, False, True)])
def test_mixed_types_equal_the_formula(signs: tuple[bool, bool, bool]) -> None:
    a_signed, b_signed, y_signed = signs
    a, b, y = qparams(0.1, 3, signed=a_signed), qparams(0.07, 5, signed=b_signed), qparams(0.25, 9, signed=y_signed)
    generator = torch.Generator().manual_seed(0)
    qa, qb = (torch.randint(0, 256, (2, 4, 5, 5), generator=generator, dtype=torch.uint8) for _ in range(2))
    qa, qb = qa.view(a.scheme.dtype), qb.view(b.scheme.dtype)
    module = QuantizedAdd(a, b, y)
    real = (qa.int() - 3) * a.scale + (qb.int() - 5) * b.scale
    expected = (torch.round(real * (1.0 / y.scale)) + 9).clamp(y.scheme.quant_min, y.scheme.quant_max)
    assert module(qa, qb).dtype == y.scheme.dtype
    assert torch.equal(module(qa, qb).float(), expected)
    assert torch.equal(module.reference(qa, qb), module(qa, qb))


def test_an_input_of_another_type_is_refused() -> None:
    module = QuantizedAdd(qparams(0.1, 3, signed=False), qparams(0.1, 3, signed=True), qparams(0.1, 3, signed=False))
    module.unit = "layer1.0.add"
    q = torch.zeros(2, dtype=torch.uint8)
    with pytest.raises(InputError) as error:
        module(q, q)
    assert str(error.value) == (
        "a quantized operator got an input that it was not made for\n"
        "  at:       layer1.0.add\n"
        "  got:      b: torch.uint8\n"
        "  expected: torch.int8"
    )


@pytest.mark.parametrize(
    ("role", "name", "scheme"),
    [("y", "the output", {"bits": 16}), ("x", "input x", {"bits": 8, "axis": 1})],
)
def test_a_grid_that_fits_no_byte_is_refused(role: str, name: str, scheme: dict[str, object]) -> None:
    module = SameDtypeModule()
    with pytest.raises(LoweringError) as error:
        module.add_same_dtype_qparams(role, qparams(0.1, 0, **scheme))
    assert str(error.value) == (
        f"int8 operators cannot take the grid of {name}\n"
        f"  got:      {QScheme(**scheme)}\n"
        "  expected: at most 8 bits, one integer grid for the whole tensor"
    )
