"""Sums, differences, products and joins against their formulas; state, copies and printing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError
from fxquant.nn.elementwise import QuantizedAdd, QuantizedCat, QuantizedMul, QuantizedStack, QuantizedSub
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
            "this unit was converted without calibration, so its grids are unknown\n"
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
