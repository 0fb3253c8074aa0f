"""QuantizedConv: the operator against the reference, and the reference against the simulation in float."""

from __future__ import annotations

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from fxquant.errors import CalibrationError, InputError, LoweringError
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.library import available_isas
from fxquant.nn.conv import QuantizedConv
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.plan.spec import Clamp, QParams, QScheme

FROM_A_BOUNDARY = 1e-3
"""Steps. Nearer to a rounding boundary, float sums in another order may fall on its other side (design numerics)."""

UINT8, INT8 = QScheme(bits=8, signed=False), QScheme(bits=8, signed=True)
UINT4, INT4 = QScheme(bits=4, signed=False), QScheme(bits=4, signed=True)

CONVS = {
    "3x3": (nn.Conv2d(32, 48, 3, padding=1), (2, 32, 20, 20)),
    "1x1": (nn.Conv2d(40, 24, 1, stride=2), (2, 40, 31, 31)),
    "strided, no bias": (nn.Conv2d(16, 24, (5, 3), stride=2, padding=(2, 0), bias=False), (2, 16, 30, 30)),
    "depthwise": (nn.Conv2d(32, 32, 3, padding=1, groups=32), (2, 32, 30, 30)),
    "dilated groups": (nn.Conv2d(16, 24, 3, padding=2, dilation=2, groups=2), (2, 16, 30, 30)),
    "same, uneven": (nn.Conv2d(16, 24, (4, 1), padding="same"), (2, 16, 30, 30)),
    "circular": (nn.Conv2d(16, 24, 3, padding=1, padding_mode="circular"), (2, 16, 30, 30)),
    "1d": (nn.Conv1d(16, 24, 5, padding=2), (3, 16, 200)),
    "3d": (nn.Conv3d(8, 12, 3, padding=1), (2, 8, 7, 8, 9)),
}


needs_native = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")


def qparams_of(values: Tensor, scheme: QScheme) -> QParams:
    """The grid of a range that was observed."""
    low, high = values.min().clamp(max=0), values.max().clamp(min=0)
    scale = ((high - low) / (scheme.quant_max - scheme.quant_min)).reshape(1)
    zero_point = (scheme.quant_min - torch.round(low / scale)).clamp(scheme.quant_min, scheme.quant_max)
    return QParams(scheme, scale, zero_point.int())


def weight_qparams_of(weight: Tensor, bits: int = 8) -> QParams:
    scale = weight.detach().abs().flatten(1).amax(1) / ((2**bits - 1) / 2)
    return QParams(QScheme(bits=bits, symmetric=True, axis=0), scale, torch.zeros(len(scale), dtype=torch.int32))


class Unit:
    """A float convolution, its quantized form and its input."""

    def __init__(
        self,
        name: str,
        *,
        x: QScheme = UINT8,
        y: QScheme = UINT8,
        bits: int = 8,
        activation: Clamp | None = None,
        residual: QScheme | None = None,
        weight: QParams | None = None,
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        float_conv, shape = CONVS[name]
        self.conv, self.activation = copy.deepcopy(float_conv).eval(), activation
        with torch.no_grad():
            for parameter in self.conv.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
            real = torch.randn(shape, generator=generator) + 0.5
            out = self.conv(real)
            added = torch.randn(out.shape, generator=generator)
        x_qparams = qparams_of(real, x)
        self.x = Quantize(x_qparams)(real)
        residual_qparams = None if residual is None else qparams_of(added, residual)
        self.residual = () if residual_qparams is None else (Quantize(residual_qparams)(added),)
        out = out if residual is None else out + added
        y_qparams = qparams_of(self.act(out), y)
        self.weight_qparams = weight_qparams_of(self.conv.weight, bits) if weight is None else weight
        self.module = QuantizedConv(
            self.conv,
            x=x_qparams,
            weight=self.weight_qparams,
            y=y_qparams,
            activation=activation,
            residual=residual_qparams,
        )

    def act(self, real: Tensor) -> Tensor:
        act = self.activation
        return real if act is None or (act.low is None and act.high is None) else real.clamp(act.low, act.high)

    def simulated(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The unit in float on dequantized values.

        Returns:
            Its result on the output grid, as a float; and where that is sure, whatever order the sums are taken in.
        """
        module, conv = self.module, copy.deepcopy(self.conv).to(dtype)
        shape = (-1, *[1] * (module.weight.dim() - 1))
        with torch.no_grad():
            zero_point, scale = module.weight_zero_point.reshape(shape), module.weight_scale.reshape(shape)
            conv.weight.copy_((module.weight.int() - zero_point) * scale)
            real = conv(Dequantize(module.qparams("x"))(self.x).to(dtype))
        for residual in self.residual:
            real = real + Dequantize(module.qparams("residual"))(residual).to(dtype)
        inverse, scheme = 1.0 / module.y_scale, module.qparams("y").scheme
        before, after = real * inverse, self.act(real) * inverse
        sure = (after - after.floor() - 0.5).abs() > FROM_A_BOUNDARY
        sure |= (before - after).abs() > FROM_A_BOUNDARY  # clamped by the activation: the same on both sides
        return (torch.round(after) + module.y_zero_point).clamp(scheme.quant_min, scheme.quant_max), sure


VARIANTS = {
    "plain": {},
    "relu": {"activation": Clamp(0, None)},
    "relu6": {"activation": Clamp(0, 0.6)},
    "hardtanh": {"activation": Clamp(-0.3, 0.3)},
    "signed": {"x": INT8, "y": INT8},
    "4 bit": {"x": UINT4, "y": INT4, "bits": 4, "activation": Clamp(0, None)},
    "limits": {"y": QScheme(bits=8, signed=True, limits=(-127, 127))},
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_reference_agrees_with_the_simulation(name: str, variant: str) -> None:
    unit = Unit(name, **VARIANTS[variant])

    q, (want, sure) = unit.module.reference(unit.x), unit.simulated(torch.float32)

    assert sure.float().mean() > 0.99
    assert torch.equal(q[sure].float(), want[sure])
    assert (q.float() - want).abs().max() <= 1
    assert want.unique().numel() > 5


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("scheme", [UINT8, INT8])
@pytest.mark.parametrize("activation", [None, Clamp(0, None)])
def test_residual_agrees_with_the_simulation(name: str, scheme: QScheme, activation: Clamp | None) -> None:
    unit = Unit(name, residual=scheme, activation=activation)
    before = unit.residual[0].clone()

    q, (want, sure) = unit.module.reference(unit.x, *unit.residual), unit.simulated(torch.float32)
    got = unit.module(unit.x, *unit.residual)

    assert sure.float().mean() > 0.99
    assert torch.equal(q[sure].float(), want[sure])
    assert torch.equal(got, q)
    assert torch.equal(unit.residual[0], before)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_forward_is_the_reference(name: str, variant: str) -> None:
    unit = Unit(name, **VARIANTS[variant])

    assert torch.equal(unit.module(unit.x), unit.module.reference(unit.x))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("residual", [None, INT8])
def test_without_a_grid_it_gives_real_numbers(name: str, residual: QScheme | None) -> None:
    unit = Unit(name, residual=residual, activation=Clamp(-0.3, None))
    qparams = {"x": unit.module.qparams("x"), "residual": unit.module.qparams("residual") if residual else None}
    real = QuantizedConv(unit.conv, **qparams, weight=unit.weight_qparams, y=None, activation=unit.activation)
    want = real.reference(unit.x, *unit.residual)

    assert want.dtype == torch.float32
    assert torch.equal(Quantize(unit.module.qparams("y"))(want), unit.module.reference(unit.x, *unit.residual))
    assert torch.equal(real(unit.x, *unit.residual), want)


def test_a_weight_with_a_zero_point_runs_by_the_reference() -> None:
    qparams = QParams(QScheme(bits=8, signed=False), torch.tensor([0.004]), torch.tensor([121], dtype=torch.int32))
    unit = Unit("3x3", weight=qparams)

    q, (want, sure) = unit.module(unit.x), unit.simulated(torch.float64)

    assert sure.float().mean() > 0.99
    assert torch.equal(q[sure].double(), want[sure])
    if available_isas():
        assert unit.module.kernel() == "reference: the int8 operators take no zero point of the weight"


@needs_native
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize("residual", [None, UINT8, INT8])
def test_the_native_operator_is_the_reference_to_the_bit(name: str, residual: QScheme | None) -> None:
    for x in (UINT8, INT8):
        unit = Unit(name, x=x, residual=residual)

        assert unit.module.kernel() == "native"
        assert isinstance(unit.module.packed(), NativeConv)
        assert torch.equal(unit.module(unit.x, *unit.residual), unit.module.reference(unit.x, *unit.residual))


@pytest.mark.parametrize("name", ["3x3", "1d", "3d"])
def test_an_unbatched_input_is_a_batch_of_one(name: str) -> None:
    unit = Unit(name)

    assert torch.equal(unit.module(unit.x[1]), unit.module(unit.x[1:2])[0])
    assert torch.equal(unit.module.reference(unit.x[1]), unit.module.reference(unit.x[1:2])[0])


def test_an_unbatched_residual() -> None:
    unit = Unit("3x3", residual=UINT8)
    one = [value[1] for value in (unit.x, *unit.residual)]
    batch = [value[1:2] for value in (unit.x, *unit.residual)]

    assert torch.equal(unit.module(*one), unit.module(*batch)[0])
    assert torch.equal(unit.module.reference(*one), unit.module.reference(*batch)[0])


@pytest.mark.parametrize("residual", [None, UINT8])
def test_an_empty_batch(residual: QScheme | None) -> None:
    unit = Unit("3x3", residual=residual)
    inputs = [value[:0] for value in (unit.x, *unit.residual)]

    assert unit.module(*inputs).shape == (0, 48, 20, 20)
    assert unit.module.reference(*inputs).shape == (0, 48, 20, 20)


def test_state_is_plain_and_nothing_packed_is_in_it() -> None:
    unit = Unit("3x3", residual=UINT8)
    unit.module(unit.x, *unit.residual)

    state = unit.module.state_dict()

    qparams = [f"{role}_{part}" for role in ("x", "weight", "y", "residual") for part in ("scale", "zero_point")]
    assert list(state) == ["weight", "bias", *qparams]
    assert state["weight"].dtype == torch.int8
    assert all(value.layout == torch.strided for value in state.values())
    assert list(unit.module.parameters()) == []


def test_a_convolution_without_bias_has_none() -> None:
    unit = Unit("strided, no bias")

    assert unit.module.bias is None
    assert "bias" not in unit.module.state_dict()


def test_copies_and_loaded_states_give_the_same() -> None:
    unit, other = Unit("3x3"), Unit("3x3", activation=Clamp(0, None))
    want = unit.module(unit.x)
    other.module.activation = None
    assert not torch.equal(other.module(unit.x), want)

    other.module.load_state_dict(unit.module.state_dict())

    assert torch.equal(other.module(unit.x), want)
    assert torch.equal(copy.deepcopy(unit.module)(unit.x), want)
    assert torch.equal(pickle.loads(pickle.dumps(unit.module))(unit.x), want)


def test_threads_may_call_first_at_once() -> None:
    unit = Unit("3x3")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(unit.module, [unit.x] * 8))

    assert all(torch.equal(result, results[0]) for result in results)
    assert torch.equal(results[0], unit.module.reference(unit.x))


def test_the_float_module_stays_as_it_is() -> None:
    unit = Unit("3x3")
    before = copy.deepcopy(unit.conv.state_dict())
    unit.module.weight.zero_()
    assert unit.module.bias is not None
    unit.module.bias.zero_()

    assert all(torch.equal(value, before[name]) for name, value in unit.conv.state_dict().items())


@pytest.mark.parametrize(
    ("residual", "given", "got", "expected"),
    [
        (None, ["float"], "torch.float32", "torch.uint8"),
        (None, ["byte", "byte"], "torch.uint8, then a residual", "torch.uint8"),
        (UINT8, ["byte"], "torch.uint8", "torch.uint8, then a residual"),
    ],
)
def test_inputs_of_another_kind_are_refused(
    residual: QScheme | None, given: list[str], got: str, expected: str
) -> None:
    unit = Unit("3x3", residual=residual)
    unit.module.unit = "layer1.conv2"
    values = {"float": unit.x.float(), "byte": unit.x}

    for call in (unit.module, unit.module.reference):
        with pytest.raises(InputError) as error:
            call(*(values[name] for name in given))
        assert str(error.value) == (
            "a quantized convolution got inputs that it was not made for\n"
            "  at:       layer1.conv2\n"
            f"  got:      {got}\n"
            f"  expected: {expected}"
        )


@pytest.mark.parametrize(
    ("shape", "got"),
    [
        ((2, 1, 9, 9), "1 channel in [2, 1, 9, 9]"),
        ((2, 4, 9, 9), "4 channels in [2, 4, 9, 9]"),  # as many quads of channels as 3: the operator cannot tell
        ((2, 9, 9), "2 channels in [2, 9, 9]"),
        ((9, 9), "[9, 9]"),
        ((1, 2, 3, 9, 9), "[1, 2, 3, 9, 9]"),
    ],
)
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...], got: str) -> None:
    x = QParams(UINT8, torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32))
    module = QuantizedConv(nn.Conv2d(3, 4, 3), x=x, weight=weight_qparams_of(torch.ones(4, 3, 3, 3)), y=x)
    module.unit = "layer1.conv2"

    for call in (module, module.reference):
        with pytest.raises(InputError) as error:
            call(torch.zeros(shape, dtype=torch.uint8))
        assert str(error.value) == (
            "the input of a quantized convolution has the wrong shape\n"
            "  at:       layer1.conv2\n"
            f"  got:      {got}\n"
            "  expected: 3 channels: [N, 3, H, W] or [3, H, W]"
        )


def test_a_weight_that_is_not_finite_is_refused() -> None:
    conv = nn.Conv2d(3, 4, 3)
    with torch.no_grad():
        conv.weight[0, 0, 0, 0] = float("nan")
    x = QParams(UINT8, torch.tensor([0.1]), torch.tensor([0], dtype=torch.int32))

    with pytest.raises(LoweringError, match="the weight holds values that are not finite"):
        QuantizedConv(conv, x=x, weight=weight_qparams_of(torch.ones(4, 3, 3, 3)), y=x)


def test_an_uncalibrated_shell_runs_once_a_state_is_loaded() -> None:
    unit = Unit("3x3")
    unknown = QParams(UINT8, torch.tensor([float("nan")]), torch.tensor([0], dtype=torch.int32))
    shell = QuantizedConv(unit.conv, x=unknown, weight=unit.weight_qparams, y=unknown)

    for call in (shell, shell.reference):
        with pytest.raises(CalibrationError, match="converted without calibration"):
            call(unit.x)

    shell.load_state_dict(unit.module.state_dict())
    assert torch.equal(shell(unit.x), unit.module(unit.x))


def test_printing_shows_geometry_and_grids() -> None:
    conv = nn.Conv2d(4, 8, 3, padding="same", dilation=(1, 2), groups=2, bias=False, padding_mode="circular")
    x = QParams(UINT8, torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32))
    weight = QParams(QScheme(bits=4, symmetric=True), torch.tensor([0.5]), torch.tensor([0], dtype=torch.int32))

    text = repr(QuantizedConv(conv, x=x, weight=weight, y=x, activation=Clamp(0, 6)))

    assert text == (
        "QuantizedConv(\n"
        "  4, 8, kernel_size=(3, 3), stride=(1, 1), padding=(1, 2), padding_mode='circular', dilation=(1, 2), "
        "groups=2, bias=False, activation=Clamp(low=0, high=6)\n"
        "  x: uint8 scale=0.1 zero_point=3, weight: int4 scale=0.5 zero_point=0, y: uint8 scale=0.1 zero_point=3\n"
        ")"
    )
