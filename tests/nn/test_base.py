"""State, derived values and limits of the modules on stored integers."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.errors import CalibrationError, InputError, LoweringError, MethodError
from fxquant.nn.base import QuantizedModule, SameDtypeModule, describe_qparams, integer_limits
from fxquant.nn.elementwise import QuantizedAdd
from fxquant.plan.spec import Clamp, QParams, QScheme

UINT8 = QScheme(bits=8, signed=False)


def qparams(scale: float, zero_point: int, scheme: QScheme = UINT8) -> QParams:
    return QParams(scheme, torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


class Doubler(QuantizedModule):
    """Derives a number, and counts how often."""

    def __init__(self, x: QParams) -> None:
        super().__init__()
        self.add_qparams("x", x)
        self.times = 0

    def pack(self) -> tuple[float, int]:
        self.times += 1
        return self.scalars("x")

    def forward(self, x: Tensor) -> Tensor:
        scale, zero_point = self._packed or self.packed()
        return (x.float() - zero_point) * scale


class Halver(Doubler):
    """Has a result that is quantized, too."""

    def __init__(self, x: QParams, y: QParams) -> None:
        super().__init__(x)
        self.add_qparams("y", y)


BYTES = torch.tensor([0, 7, 255], dtype=torch.uint8)


def test_scale_and_zero_point_are_those_of_the_result() -> None:
    module = Halver(qparams(0.5, 7), qparams(0.25, 9))
    assert (module.scale, module.zero_point) == (0.25, 9)
    assert (type(module.scale), type(module.zero_point)) == (float, int)
    state = {**module.state_dict(), "y_scale": torch.tensor([0.125])}
    module.load_state_dict(state)
    assert copy.deepcopy(module).scale == pickle.loads(pickle.dumps(module)).scale == 0.125
    module.scale = 3.0  # a class of one's own may use the name for something else
    assert module.scale == 3.0


def test_without_one_scale_of_the_result_there_is_no_attribute() -> None:
    module = Doubler(qparams(0.5, 7))
    module.unit = "head"
    assert not hasattr(module, "scale")
    assert getattr(module, "zero_point", None) is None
    with pytest.raises(MethodError) as caught:
        _ = module.zero_point
    assert str(caught.value) == (
        "a unit has no zero_point of its result\n"
        "  at:       head\n"
        "  got:      float values\n"
        "  expected: a result of quantized values, with one scale and zero point\n"
        "  hint:     print(module) shows the qparams that it has"
    )
    per_channel = QParams(QScheme(axis=0), torch.ones(2), torch.zeros(2, dtype=torch.int32))
    with pytest.raises(MethodError, match="got:      int8 affine per channel"):
        _ = Halver(qparams(0.5, 7), per_channel).scale
    with pytest.raises(AttributeError, match="no attribute 'scales'"):
        _ = module.scales


def test_state_is_plain_buffers() -> None:
    module = Doubler(qparams(0.5, 7))
    module(BYTES)

    state = module.state_dict()

    assert {name: value.dtype for name, value in state.items()} == {
        "x_scale": torch.float32,
        "x_zero_point": torch.int32,
    }
    assert list(module.parameters()) == []


def test_the_grid_is_a_copy_that_reads_the_buffers() -> None:
    given_qparams = qparams(0.5, 7)
    module = Doubler(given_qparams)
    given_qparams.scale.fill_(9.0)

    assert module.qparams("x").same_qparams(qparams(0.5, 7))
    assert module.qparams("x").scale is module.x_scale


def test_derives_once_and_again_after_loading_a_state() -> None:
    module, other = Doubler(qparams(0.5, 7)), Doubler(qparams(2.0, 0))
    first = module(BYTES)
    module(BYTES)
    assert module.times == 1

    module.load_state_dict(other.state_dict())

    assert torch.equal(module(BYTES), other(BYTES))
    assert not torch.equal(module(BYTES), first)
    assert module.times == 2


def test_loading_into_a_parent_is_seen() -> None:
    parent, other = torch.nn.Sequential(Doubler(qparams(0.5, 7))), torch.nn.Sequential(Doubler(qparams(2.0, 0)))
    parent(BYTES)

    parent.load_state_dict(other.state_dict(), assign=True)

    assert torch.equal(parent(BYTES), other(BYTES))


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module))])
def test_copies_derive_their_own(copied) -> None:
    module = Doubler(qparams(0.5, 7))
    want = module(BYTES)

    other = copied(module)

    assert other._packed is None
    assert module._packed is not None
    assert torch.equal(other(BYTES), want)


@pytest.mark.parametrize("cast", ["half", "double", "bfloat16"])
def test_casting_a_model_leaves_scales_as_they_are(cast: str) -> None:
    module = torch.nn.Sequential(Doubler(qparams(0.1234567, 7)), torch.nn.Linear(2, 2))

    getattr(module, cast)()

    assert module[1].weight.dtype != torch.float32
    assert torch.equal(module[0].x_scale, torch.tensor([0.1234567]))
    assert module[0].x_zero_point.dtype == torch.int32


def test_moving_drops_what_was_derived() -> None:
    module = Doubler(qparams(0.5, 7))
    module(BYTES)

    module.to("cpu")

    assert module._packed is None


def test_forgetting_makes_a_change_by_hand_seen() -> None:
    module = Doubler(qparams(0.5, 7))
    module(BYTES)
    module.x_scale.fill_(2.0)

    module.invalidate()

    assert torch.equal(module(BYTES), Doubler(qparams(2.0, 7))(BYTES))


def test_threads_that_call_first_at_once_derive_once() -> None:
    module, start = Doubler(qparams(0.5, 7)), threading.Barrier(8)

    def call(_: int) -> Tensor:
        start.wait()
        return module(BYTES)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(call, range(8)))

    assert module.times == 1
    assert all(torch.equal(result, results[0]) for result in results)


def test_an_uncalibrated_module_says_so_until_a_state_is_loaded() -> None:
    module = Doubler(qparams(float("nan"), 0))
    module.unit = "layer1.conv"

    with pytest.raises(CalibrationError) as error:
        module(BYTES)

    assert str(error.value) == (
        "this unit was converted without calibration, so its qparams are unknown\n"
        "  at:       layer1.conv\n"
        "  got:      x_scale = nan\n"
        "  expected: scales from calibration\n"
        "  hint:     calibrate before convert, or load a state dict that was saved after calibration"
    )
    module.load_state_dict(Doubler(qparams(0.5, 7)).state_dict())
    assert torch.equal(module(BYTES), Doubler(qparams(0.5, 7))(BYTES))


def test_float_zero_points_stay_float() -> None:
    scheme = QScheme(bits=8, signed=False, axis=0, float_qparams=True)
    module = Doubler(QParams(scheme, torch.tensor([0.5, 1.0]), torch.tensor([1.5, 2.5])))

    assert module.x_zero_point.tolist() == [1.5, 2.5]


@pytest.mark.parametrize(
    ("activation", "limits"),
    [
        (None, (0, 255)),
        (Clamp(), (0, 255)),
        (Clamp(0, None), (10, 255)),
        (Clamp(0, 6), (10, 70)),
        (Clamp(-1, 1), (0, 20)),
        (Clamp(50, 60), (255, 255)),
        (Clamp(None, float("inf")), (0, 255)),
    ],
)
def test_an_activation_narrows_the_limits(activation: Clamp | None, limits: tuple[int, int]) -> None:
    assert integer_limits(qparams(0.1, 10), activation) == limits


@settings(deadline=None)
@given(
    scale=st.floats(2**-13, 10.0, width=32),
    zero_point=st.integers(-8, 7),
    low=st.one_of(st.none(), st.floats(-5, 1, width=32)),
    high=st.one_of(st.none(), st.floats(1, 9, width=32)),
    signed=st.booleans(),
)
def test_clamping_integers_equals_clamping_reals(
    scale: float, zero_point: int, low: float | None, high: float | None, signed: bool
) -> None:
    """Exactly, ties and all: ``quantize`` never falls."""
    y = qparams(scale, zero_point if signed else zero_point + 8, QScheme(bits=4, signed=signed))
    real = torch.cat([torch.linspace(-20, 20, 401), torch.arange(-20, 21) * scale / 2])

    def quantize(values: Tensor) -> Tensor:
        steps = torch.round(values * (1.0 / y.scale)) + y.zero_point
        return steps.clamp(y.scheme.quant_min, y.scheme.quant_max)

    clamped = real.clamp(low, high) if low is not None or high is not None else real
    limits = integer_limits(y, Clamp(low, high))

    assert torch.equal(quantize(clamped), quantize(real).clamp(*limits))


def test_a_grid_in_a_few_words() -> None:
    symmetric = QScheme(bits=4, signed=True, symmetric=True, axis=0)
    channels = QParams(symmetric, torch.tensor([0.25, 0.5]), torch.zeros(2, dtype=torch.int32))
    affine = QParams(QScheme(axis=0), torch.tensor([0.25, 0.5]), torch.tensor([0, 3], dtype=torch.int32))

    assert describe_qparams(qparams(0.123456, 7)) == "uint8 scale=0.1235 zero_point=7"
    assert describe_qparams(channels) == "int4 scale=[0.25, 0.5] zero_point=0"
    assert describe_qparams(affine) == "int8 scale=[0.25, 0.5] zero_point=per channel"
    assert repr(Doubler(qparams(0.5, 7))) == "Doubler(x: uint8 scale=0.5 zero_point=7)"


def same_dtype_qparams(scale: float, zero_point: int, **scheme: object) -> QParams:
    return QParams(QScheme(**scheme), torch.tensor([scale]), torch.tensor([zero_point], dtype=torch.int32))


def every_byte(dtype: torch.dtype) -> torch.Tensor:
    low = torch.iinfo(dtype).min
    return torch.arange(low, low + 256).to(dtype)


@pytest.mark.parametrize("y_signed", [False, True])
@pytest.mark.parametrize("x_signed", [False, True])
def test_an_input_stands_for_the_same_numbers(x_signed: bool, y_signed: bool) -> None:
    module = SameDtypeModule()
    module.add_same_dtype_qparams("y", same_dtype_qparams(0.2, 3, signed=y_signed))
    module.add_same_dtype_qparams("x", same_dtype_qparams(0.1, 7, signed=x_signed))
    q = every_byte(torch.int8 if x_signed else torch.uint8)
    moved = module.take("x", q)
    scale, zero_point = module.numbers("x")
    assert moved.dtype == (torch.int8 if y_signed else torch.uint8)
    assert torch.equal(moved.int() - zero_point, q.int() - 7)
    assert scale == torch.tensor(0.1).item()


@pytest.mark.parametrize("signs", [(False, True, False), (True, True, False), (True, False, True)])
def test_mixed_types_equal_the_formula(signs: tuple[bool, bool, bool]) -> None:
    a_signed, b_signed, y_signed = signs
    a, b, y = (
        same_dtype_qparams(0.1, 3, signed=a_signed),
        same_dtype_qparams(0.07, 5, signed=b_signed),
        same_dtype_qparams(0.25, 9, signed=y_signed),
    )
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
    module = QuantizedAdd(
        same_dtype_qparams(0.1, 3, signed=False),
        same_dtype_qparams(0.1, 3, signed=True),
        same_dtype_qparams(0.1, 3, signed=False),
    )
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
        module.add_same_dtype_qparams(role, same_dtype_qparams(0.1, 0, **scheme))
    assert str(error.value) == (
        f"int8 operators cannot take the qparams of {name}\n"
        f"  got:      {QScheme(**scheme)}\n"
        "  expected: at most 8 bits, one scale and zero point for the whole tensor"
    )
