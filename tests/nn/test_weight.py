"""What becomes of float weights, biases and grids, and what is refused."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import nn

from fxquant.errors import KernelError, LoweringError
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.library import available_isas, native_status
from fxquant.nn import conv as conv_module
from fxquant.nn import weight as kernel_selection
from fxquant.nn.base import byte_qparams
from fxquant.nn.batch_norm import QuantizedBatchNorm
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.conv_transpose import QuantizedConvTranspose
from fxquant.nn.linear import QuantizedDynamicLinear, QuantizedLinear
from fxquant.nn.weight import (
    LARGEST_FAN_IN,
    WeightedModule,
    float_bias,
    integer_weight,
    kernel_of,
    why_not_native,
)
from fxquant.plan.spec import Dynamic, QParams, QScheme
from fxquant.settings import Settings


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
        "int8 operators cannot take the qparams of this weight\n"
        f"  got:      {qparams.scheme}\n"
        "  expected: at most 8 bits, one scale and zero point for the tensor or for each output channel"
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
        "int8 operators cannot take the qparams of the input\n"
        f"  got:      {scheme}\n"
        "  expected: at most 8 bits, one scale and zero point for the whole tensor"
    )


def test_a_byte_grid_is_passed_through() -> None:
    qparams = params(QScheme(bits=4, signed=False))

    assert byte_qparams("x", qparams) is qparams


needs_native = pytest.mark.skipif(not available_isas(), reason="no kernel packs weights")

X = QParams(QScheme(signed=False), torch.tensor([0.02]), torch.tensor([100], dtype=torch.int32))
Y = QParams(QScheme(signed=False), torch.tensor([0.03]), torch.tensor([120], dtype=torch.int32))
WEIGHT = QParams(QScheme(symmetric=True), torch.tensor([0.005]), torch.tensor([0], dtype=torch.int32))

Make = Callable[[], WeightedModule]


def conv(float_conv: nn.Module) -> Make:
    return lambda: QuantizedConv(float_conv, x=X, weight=WEIGHT, y=Y)


def transposed(float_conv: nn.Module) -> Make:
    return lambda: QuantizedConvTranspose(float_conv, x=X, weight=WEIGHT, y=Y)


LINEAR = nn.Linear(19, 21)
KINDS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "conv": (conv(nn.Conv2d(19, 21, 3)), (2, 19, 7, 6)),
    "conv1d": (conv(nn.Conv1d(16, 16, 5)), (2, 16, 9)),
    "few channels": (conv(nn.Conv2d(3, 16, (3, 5), bias=False)), (2, 3, 9, 8)),
    "grouped": (conv(nn.Conv2d(12, 24, 3, groups=4)), (2, 12, 5, 5)),
    "depthwise": (conv(nn.Conv2d(21, 21, 3, groups=21)), (2, 21, 5, 5)),
    "transposed": (transposed(nn.ConvTranspose2d(6, 8, (4, 3), stride=(2, 3))), (2, 6, 5, 4)),
    "transposed, places that nothing reaches": (transposed(nn.ConvTranspose1d(6, 8, 2, stride=3)), (2, 6, 5)),
    "transposed, dilated groups": (transposed(nn.ConvTranspose1d(6, 8, 4, 4, groups=2, dilation=2)), (2, 6, 5)),
    "linear": (lambda: QuantizedLinear(LINEAR, x=X, weight=WEIGHT, y=Y), (5, 19)),
    "batch norm": (lambda: QuantizedBatchNorm(nn.BatchNorm2d(7).eval(), x=X, y=Y), (2, 7, 3, 3)),
    "dynamic linear": (lambda: QuantizedDynamicLinear(LINEAR, x=Dynamic(QScheme()), weight=WEIGHT), (5, 19)),
}


class Case:
    """A module, an input, the result and the weight before anything was packed."""

    def __init__(self, kind: str) -> None:
        make, shape = KINDS[kind]
        self.module = make()
        x = torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(0))
        self.x = x.float() if isinstance(self.module, QuantizedDynamicLinear) else x.to(torch.uint8)
        self.weight = self.module.weight.clone()
        self.y = self.module.reference(self.x)

    @property
    def packed(self) -> bool:
        return "weight" not in self.module._buffers

    def check(self, module: WeightedModule) -> None:
        assert torch.equal(module(self.x), self.y)


@pytest.fixture(params=[pytest.param(kind, marks=needs_native) for kind in KINDS])
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def test_the_first_call_leaves_the_packed_order_alone(case: Case) -> None:
    module = case.module
    before = weakref.ref(module.weight)
    assert before() is module.weight
    names = list(module.state_dict())

    case.check(module)

    assert before() is None
    assert "weight" not in dict(module.named_buffers())
    state = module.state_dict()
    assert list(state) == names
    assert torch.equal(state["weight"], case.weight)
    assert case.packed
    repr(module)
    module.reference(case.x)
    module.state_dict()
    assert case.packed  # none of them brings it back


def test_reading_the_weight_brings_it_back(case: Case) -> None:
    module = case.module
    case.check(module)

    weight = module.weight

    assert weight is module.weight
    assert torch.equal(weight, case.weight)
    assert weight.is_contiguous()
    weight.neg_()
    case.check(module)
    module.invalidate()
    assert torch.equal(module.weight, case.weight.neg())
    assert torch.equal(module(case.x), module.reference(case.x))
    assert case.packed
    assert torch.equal(module.weight, case.weight.neg())


def test_a_weight_that_is_set_counts_after_forgetting(case: Case) -> None:
    module = case.module
    case.check(module)

    module.weight = case.weight.neg()
    module.invalidate()

    assert torch.equal(module(case.x), module.reference(case.x))
    assert torch.equal(module.state_dict()["weight"], case.weight.neg())


@pytest.mark.parametrize("assign", [False, True])
def test_states_are_loaded_into_packed_modules(case: Case, assign: bool) -> None:
    module = case.module
    case.check(module)
    other = copy.deepcopy(module)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["weight"].neg_()

    other.load_state_dict(state, assign=assign)

    assert torch.equal(other(case.x), other.reference(case.x))
    assert torch.equal(other.weight, case.weight.neg())
    case.check(module)
    incomplete = {name: value for name, value in state.items() if name != "weight"}
    module.load_state_dict(incomplete, strict=False)
    case.check(module)


def by_torch_save(module: WeightedModule) -> WeightedModule:
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda module: pickle.loads(pickle.dumps(module)), by_torch_save]
)
def test_copies_hold_the_weight_as_it_was(case: Case, copied: Callable[[WeightedModule], WeightedModule]) -> None:
    case.check(case.module)

    other = copied(case.module)

    assert case.packed
    assert torch.equal(other._buffers["weight"], case.weight)
    case.check(other)
    case.check(case.module)
    other.weight.zero_()
    assert torch.equal(case.module.weight, case.weight)


def test_moves_and_casts_leave_the_weight_as_it_is(case: Case) -> None:
    case.check(case.module)
    for move in (lambda m: m.to("cpu"), lambda m: m.double(), lambda m: m.float()):
        move(case.module)
        case.check(case.module)
    assert case.module.to("meta").weight.device.type == "meta"


def test_what_inference_mode_made_can_be_written_to_outside(case: Case) -> None:
    with torch.inference_mode():
        case.check(case.module)
        state = {name: value.clone() for name, value in case.module.state_dict().items()}

    case.module.weight.neg_()
    case.module.load_state_dict(state)

    case.check(case.module)


def test_threads_may_save_while_others_call(case: Case) -> None:
    def use(i: int) -> bool:
        if i % 2:
            return torch.equal(case.module.state_dict()["weight"], case.weight)
        return torch.equal(case.module(case.x), case.y)

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(use, range(40)))


def test_a_module_that_nothing_packs_keeps_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case("conv")
    monkeypatch.setattr(conv_module, "why_not_native", lambda *_: "not today")

    case.check(case.module)

    assert not case.packed


@pytest.mark.one_in(2)
def test_the_exported_program_and_the_compiled_module_stay_right(case: Case) -> None:
    case.check(case.module)

    exported = torch.export.export(case.module, (case.x,)).module() if not case.x.is_floating_point() else case.module

    assert torch.equal(exported(case.x), case.y)
    assert torch.equal(torch.compile(case.module, backend="eager")(case.x), case.y)
    assert case.packed


ZERO = torch.zeros(1, dtype=torch.int32)
LOADED = replace(native_status(), devices=("cpu",), reason="")


@pytest.mark.parametrize(
    ("conv", "reason"),
    [
        (nn.Conv2d(4, 4, 3, padding=1, dilation=2, padding_mode="circular"), ""),
        (nn.Conv1d(4, 4, 256), ""),
        (nn.Conv2d(4, 4, 3, groups=4), ""),
        (nn.Conv2d(4, 4, 3, groups=2), ""),
        (nn.Conv2d(4, 8, 3, groups=4), ""),
        (nn.Conv3d(4, 4, (7, 7, 7)), ""),
        (nn.Conv2d(1, 1, (256, 256)), ""),
        (nn.Conv1d(1, 1, 65537), "the int8 operators take windows of at most 65536 elements"),
    ],
)
def test_geometry_that_the_native_operator_takes(monkeypatch: pytest.MonkeyPatch, conv: nn.Conv2d, reason: str) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)
    assert why_not_native(ZERO, ConvGeometry.of(conv)) == reason


def test_a_zero_point_of_the_weight_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    assert why_not_native(ZERO) == ""
    assert why_not_native(torch.ones(1, dtype=torch.int32)) == "the int8 operators take no zero point of the weight"


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    assert why_not_native(ZERO.to("meta")) == "no native kernels for meta"


def test_what_runs_is_named() -> None:
    assert kernel_of("") == "native"
    assert kernel_of("not built") == "reference: not built"


def test_without_a_native_library_its_reason_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_selection, "native_status", lambda: replace(LOADED, devices=(), reason="not built"))
    assert why_not_native(ZERO) == "not built"


INPUT = QParams(QScheme(signed=False), torch.ones(1), ZERO)
WITH_ZERO_POINT = QParams(QScheme(), torch.ones(1), torch.ones(1, dtype=torch.int32))
REFUSAL = "the int8 operators take no zero point of the weight"
LEFT_TO_THE_REFERENCE = {
    "conv": (
        QuantizedConv(nn.Conv3d(2, 2, 1), x=INPUT, weight=WITH_ZERO_POINT, y=INPUT),
        torch.ones(1, 2, 1, 1, 1, dtype=torch.uint8),
    ),
    "linear": (
        QuantizedLinear(nn.Linear(2, 2), x=INPUT, weight=WITH_ZERO_POINT, y=INPUT),
        torch.ones(1, 2, dtype=torch.uint8),
    ),
}


@pytest.mark.parametrize("case", LEFT_TO_THE_REFERENCE)
def test_the_reference_stands_in_only_where_kernels_are_not_insisted_on(
    monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    module, x = LEFT_TO_THE_REFERENCE[case]
    module.unit = "features.3"
    monkeypatch.setattr(kernel_selection, "native_status", lambda: LOADED)

    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings())
    module.invalidate()
    assert torch.equal(module(x), module.reference(x))

    monkeypatch.setattr(kernel_selection, "SETTINGS", Settings(kernels="native"))
    module.invalidate()
    with pytest.raises(KernelError) as error:
        module(x)
    assert str(error.value) == (
        "no kernel runs this layer, only the Python reference does\n"
        "  at:       features.3\n"
        "  got:      FXQUANT_KERNELS=native\n"
        f"  expected: a layer that a kernel takes; but {REFUSAL}\n"
        "  hint:     FXQUANT_KERNELS=auto runs the Python reference where a kernel is missing"
    )
    assert module.reference(x).dtype == torch.uint8  # who asks for the reference gets it
