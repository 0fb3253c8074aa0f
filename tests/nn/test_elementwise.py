"""Sums, differences, products and joins against their formulas; state, copies and printing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError, LoweringError
from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn.elementwise import (
    QuantizedAdd,
    QuantizedCat,
    QuantizedMaximum,
    QuantizedMul,
    QuantizedPReLU,
    QuantizedStack,
    QuantizedSub,
)
from fxquant.plan.spec import Clamp, QParams, QScheme


def qparams(scale: float, zero_point: int, **scheme: object) -> QParams:
    scheme = {"signed": False, **scheme}
    return QParams(QScheme(**scheme), torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


A, B, Y = qparams(0.1, 3), qparams(0.07, 5), qparams(0.25, 100)
MODULES: list[Callable[[], nn.Module]] = [
    lambda: QuantizedAdd(A, B, Y, Clamp(0.0, None)),
    lambda: QuantizedSub(A, B, Y, Clamp(-1.0, 2.0)),
    lambda: QuantizedMul(A, B, Y),
    lambda: QuantizedCat([A, B], Y, 1),
    lambda: QuantizedStack([A, B], Y, -1),
]


def bytes_of(*shape: int, seed: int = 0) -> Tensor:
    q = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    return q.contiguous(memory_format=torch.channels_last)


def to_qparams(real: Tensor, y: QParams) -> Tensor:
    steps = torch.round(real * (1.0 / y.scale)) + y.zero_point
    return steps.clamp(y.scheme.quant_min, y.scheme.quant_max)


@pytest.mark.parametrize("activation", [None, Clamp(0.0, None), Clamp(0.0, 6.0), Clamp(-1.0, 1.0)])
@pytest.mark.parametrize("make", [QuantizedAdd, QuantizedSub, QuantizedMul])
def test_the_activation_is_exact(make: type[nn.Module], activation: Clamp | None) -> None:
    """As limits of the integers it gives what clamping the real number gives."""
    a, b = bytes_of(2, 8, 4, 4), bytes_of(2, 8, 4, 4, seed=1)
    module = make(A, B, Y, activation)
    if make is QuantizedAdd:
        real = (a.int() - 3) * A.scale + (b.int() - 5) * B.scale
    elif make is QuantizedSub:
        real = (a.int() - 3) * A.scale - (b.int() - 5) * B.scale
    else:
        real = ((a.int() - 3) * (b.int() - 5)) * (A.scale * B.scale)
    if activation is not None:
        real = real.clamp(activation.low, activation.high)
    assert torch.equal(module(a, b).float(), to_qparams(real, Y))
    assert torch.equal(module.reference(a, b), module(a, b))
    assert module(a, b).is_contiguous(memory_format=torch.channels_last)


def test_a_gate_is_broadcast() -> None:
    x, gate = bytes_of(2, 8, 4, 4), bytes_of(2, 8, 1, 1)
    y = QuantizedMul(A, B, Y)(x, gate)
    assert torch.equal(y, QuantizedMul(A, B, Y)(x, gate.expand(2, 8, 4, 4)))
    assert y.is_contiguous(memory_format=torch.channels_last)


def test_cat_requantizes_what_is_on_another_grid() -> None:
    a, b = bytes_of(2, 3, 4, 4), bytes_of(2, 5, 4, 4)
    module = QuantizedCat([A, B], A, dim=1)
    y = module(a, b)
    assert torch.equal(y[:, :3], a)
    assert torch.equal(y[:, 3:].float(), to_qparams((b.int() - 5) * B.scale, A))
    assert torch.equal(module.reference(a, b), y)


def test_cat_wants_an_input_for_each_grid() -> None:
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        QuantizedCat([A, B], Y, 1)(bytes_of(1, 2, 2, 2))


def test_limits_of_a_narrow_output_hold() -> None:
    a = bytes_of(2, 8, 4, 4)
    y = QuantizedAdd(A, B, qparams(0.1, 60, limits=(0, 127)))(a, a)
    assert y.max() == 127


@pytest.mark.parametrize("make", MODULES)
def test_state_travels(make: Callable[[], nn.Module]) -> None:
    module = make()
    a, b = bytes_of(1, 4, 3, 3), bytes_of(1, 4, 3, 3, seed=1)
    expected = module(a, b)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(other(a, b), expected)
    other = make()
    with torch.no_grad():
        other.y_scale.fill_(9.0)
    other.invalidate()
    assert not torch.equal(other(a, b), expected)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(a, b), expected)


@pytest.mark.parametrize("make", MODULES)
def test_state_is_scales_and_zero_points(make: Callable[[], nn.Module]) -> None:
    assert {value.dtype for value in make().state_dict().values()} == {torch.float32, torch.int32}


@pytest.mark.parametrize("make", MODULES)
def test_without_calibration_it_does_not_run(make: Callable[[], nn.Module]) -> None:
    module = make()
    module.unit = "features.3"
    with torch.no_grad():
        module.y_scale.fill_(float("nan"))
    q = bytes_of(1, 2, 2, 2)
    for run in (module, module.reference):
        with pytest.raises(CalibrationError) as error:
            run(q, q)
        assert str(error.value) == (
            "this unit was converted without calibration, so its qparams are unknown\n"
            "  at:       features.3\n"
            "  got:      y_scale = nan\n"
            "  expected: scales from calibration\n"
            "  hint:     calibrate before convert, or load a state dict that was saved after calibration"
        )


def test_printing() -> None:
    assert repr(QuantizedAdd(A, B, Y, Clamp(0.0, None))) == (
        "QuantizedAdd(y: uint8 scale=0.25 zero_point=100, a: uint8 scale=0.1 zero_point=3, "
        "b: uint8 scale=0.07 zero_point=5, activation=Clamp(low=0.0, high=None))"
    )
    assert repr(QuantizedCat([A], Y, 1)) == (
        "QuantizedCat(dim=1, y: uint8 scale=0.25 zero_point=100, x0: uint8 scale=0.1 zero_point=3)"
    )


@pytest.mark.parametrize(
    "signs", [(False, False, True), (True, False, False), (False, True, True), (True, True, False)]
)
def test_a_difference_mirrors_what_is_stored_either_way(signs: tuple[bool, bool, bool]) -> None:
    a, b, y = (
        qparams(s, z, signed=signed) for (s, z), signed in zip([(0.1, 3), (0.07, 5), (0.25, 20)], signs, strict=True)
    )
    q_a, q_b = bytes_of(2, 8, 4, 4).view(a.scheme.dtype), bytes_of(2, 1, 4, 4, seed=1).view(b.scheme.dtype)
    module = QuantizedSub(a, b, y)
    expected = to_qparams((q_a.int() - 3) * a.scale - (q_b.int() - 5) * b.scale, y)
    assert torch.equal(module(q_a, q_b).float(), expected)
    assert torch.equal(module.reference(q_a, q_b), module(q_a, q_b))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_a_stack_joins_along_a_new_dimension(dim: int) -> None:
    a, b = bytes_of(2, 3, 4, 4), bytes_of(2, 3, 4, 4, seed=1)
    module = QuantizedStack([A, Y], Y, dim)
    expected = torch.stack([to_qparams((a.int() - 3) * A.scale, Y), b.float()], dim)
    assert torch.equal(module(a, b).float(), expected)
    assert torch.equal(module.reference(a, b), module(a, b))


SLOPE = torch.tensor([0.25, -0.5, 3.0])


def prelu_qparams(scale: float, zero_point: int, *, signed: bool = False, bits: int = 8) -> QParams:
    scheme = QScheme(bits=bits, signed=signed)
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


@pytest.mark.parametrize(
    ("x", "y"),
    [(prelu_qparams(0.1, 100), prelu_qparams(0.07, 60)), (prelu_qparams(0.1, -5, signed=True), prelu_qparams(0.2, 30))],
)
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 7), (2, 3, 4, 5), (2, 3, 2, 4, 5), (3,)])
def test_it_is_the_float_function_between_the_grids(x, y, shape) -> None:
    q = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    q = q.view(x.scheme.dtype)
    norm = nn.PReLU(3 if len(shape) > 1 else 1)
    slope = SLOPE if len(shape) > 1 else SLOPE[:1]
    with torch.no_grad():
        norm.weight.copy_(slope)
        real = norm(from_integers(q, x.scale, x.zero_point, x.scheme))
    module = QuantizedPReLU(slope, x, y)
    assert torch.equal(module(q), to_integers(real, y.scale, y.zero_point, y.scheme))
    assert torch.equal(module.reference(q), module(q))
    assert torch.equal(pickle.loads(pickle.dumps(module))(q), module(q))


def test_slopes_must_be_finite() -> None:
    with pytest.raises(LoweringError) as error:
        QuantizedPReLU(torch.tensor([1.0, float("nan")]), prelu_qparams(0.1, 0), prelu_qparams(0.1, 0))
    assert str(error.value) == (
        "the slopes hold values that are not finite\n"
        "  got:      1 of 2 values are inf or NaN\n"
        "  expected: finite slopes"
    )


def test_printing_of_prelu() -> None:
    assert repr(QuantizedPReLU(SLOPE, prelu_qparams(0.1, 0), prelu_qparams(0.2, 3))) == (
        "QuantizedPReLU(num_parameters=3, y: uint8 scale=0.2 zero_point=3, x: uint8 scale=0.1 zero_point=0)"
    )


def any_bytes(*shape: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(dtype)


@pytest.mark.parametrize("largest", [False, True])
def test_the_larger_of_two_on_other_grids(largest) -> None:
    a, b, y = (
        QParams(QScheme(signed=signed), torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32))
        for signed, scale, zero in ((False, 0.1, 100), (True, 0.07, 5), (False, 0.05, 90))
    )
    qa, qb = any_bytes(3, 40, 1), any_bytes(40, 7, dtype=torch.int8)
    reals = (from_integers(q, g.scale, g.zero_point, g.scheme) for q, g in ((qa, a), (qb, b)))
    expected = (torch.maximum if largest else torch.minimum)(*reals)
    module = QuantizedMaximum(a, b, y, largest=largest)
    assert torch.equal(module(qa, qb), to_integers(expected, y.scale, y.zero_point, y.scheme))
    assert torch.equal(module.reference(qa, qb), module(qa, qb))
    assert repr(module).startswith(f"QuantizedMaximum(largest={largest}, a: uint8")
