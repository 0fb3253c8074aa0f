"""What is recorded gives on other inputs what the operators give on them, on every instruction set."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant import kernels
from fxquant.errors import KernelError
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.dynamic_linear import DynamicLinear
from fxquant.kernels.linear.grouped_weight import PANEL, pack_grouped
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.nn.shape import interpolate, taps_of
from fxquant.runtime.modes import NotRecordableError
from fxquant.runtime.program import last_failure, library
from fxquant.runtime.recording import RECORDED, RECORDED_QUANTIZE, Recording

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")

QPARAMS = (0.1, 7)
OTHER = (0.2, 9)
OUTPUT = (0.17, 3, 0, 255)
SLOPES = torch.linspace(-1, 1, 6)[:, None, None]
ONE_QPARAMS = (torch.tensor([0.05]), torch.tensor([100], dtype=torch.int32))
ALL_QPARAMS = (torch.tensor([0.1, 0.2, 0.3]), torch.tensor([1, 2, 3]))
TABLE = torch.arange(255, -1, -1).to(torch.uint8)
TAPS = (*taps_of(6, 9, None, "bilinear", False, None, False, torch.device("cpu")),
        *taps_of(5, 3, None, "bilinear", False, None, False, torch.device("cpu")))  # fmt: skip


def draw(*shape: int, dtype: torch.dtype = torch.uint8, channels_last: bool = True) -> Tensor:
    x = torch.randint(0, 256, shape, dtype=torch.int32).to(torch.uint8).view(dtype)
    return x.contiguous(memory_format=torch.channels_last) if channels_last and x.dim() == 4 else x


def epilogue(channels: int, dtype: torch.dtype = torch.uint8) -> Epilogue:
    return Epilogue(
        x_scale=0.02, weight_scale=torch.rand(channels) / 10 + 0.01, bias=torch.randn(channels), y_scale=0.3,
        y_zero_point=5, quant_min=0, quant_max=255, dtype=dtype, residual_scale=0.2, residual_zero_point=9,
    )  # fmt: skip


def a_conv(
    *, channels: int = 6, side: int = 3, groups: int = 1, dtype: torch.dtype = torch.uint8, **geometry: Any
) -> NativeConv:
    conv = nn.Conv2d(channels, channels, side, padding=side // 2, groups=groups, **geometry)
    weight = torch.randint(-128, 128, conv.weight.shape).to(torch.int8)
    return NativeConv(weight, torch.uint8, 7, ConvGeometry.of(conv), epilogue(channels, dtype))


CONV, DEPTHWISE, REAL_CONV = a_conv(), a_conv(groups=6, stride=2), a_conv(dtype=torch.float32)
GROUPED = a_conv(groups=2)
VOLUMES = NativeConv(
    torch.randint(-128, 128, (6, 6, 2, 3, 3)).to(torch.int8), torch.uint8, 7,
    ConvGeometry.of(nn.Conv3d(6, 6, (2, 3, 3), padding=1)), epilogue(6),
)  # fmt: skip
LINEAR = NativeLinear(torch.randint(-128, 128, (5, 6)).to(torch.int8), torch.uint8, 7, epilogue(5))

EACH_ROW = (1e-30, 0, 255, None, torch.uint8)
PER_CALL, PER_TOKEN = (
    DynamicLinear(
        torch.randint(-128, 128, (5, 6)).to(torch.int8), torch.linspace(0.01, 0.1, 5), None, EACH_ROW, per_token
    )
    for per_token in (False, True)
)

GROUPED_WEIGHT = pack_grouped(torch.arange(7 * 24).remainder(16).sub(8).to(torch.int8).view(7, 24), 3, 4)
GROUPED_ARGUMENTS = GROUPED_WEIGHT, torch.linspace(0.01, 0.1, 3 * PANEL).view(3, PANEL), None, torch.arange(7.0), 4

SHARES = (1 / 256, 3, 0, 255, torch.uint8)
COEFFICIENTS = (torch.linspace(1, 2, 6), torch.linspace(-1, 1, 6))

CASES: dict[str, tuple[Callable[..., Any], tuple[Callable[[], Tensor], ...]]] = {
    "conv2d": (CONV, (lambda: draw(2, 6, 5, 6),)),
    "conv2d with a residual": (lambda x, r: CONV(x, r), (lambda: draw(2, 6, 5, 6),) * 2),
    "conv2d to real numbers": (REAL_CONV, (lambda: draw(1, 6, 5, 6),)),
    "conv2d of an image that is copied": (CONV, (lambda: draw(2, 6, 5, 6, channels_last=False),)),
    "conv2d of some channels": (lambda x: CONV(x.chunk(2, 1)[1]), (lambda: draw(2, 12, 5, 6),)),
    "conv3d": (VOLUMES, (lambda: draw(2, 6, 3, 5, 6).contiguous(memory_format=torch.channels_last_3d),)),
    "conv3d of volumes that are copied": (
        lambda x, r: VOLUMES(x, r), (lambda: draw(1, 6, 3, 5, 6), lambda: draw(6, 1, 1, 1))
    ),
    "depthwise conv2d": (DEPTHWISE, (lambda: draw(3, 6, 5, 7),)),
    "linear": (LINEAR, (lambda: draw(3, 4, 6),)),
    "dynamic_linear": (PER_CALL, (lambda: torch.randn(3, 4, 6),)),
    "dynamic_linear of tokens": (
        PER_TOKEN, (lambda: torch.randn(3, 4, 6) * torch.tensor([1.0, 9.0, 0.1]).view(3, 1, 1),)
    ),
    "dynamic_linear of many values": (PER_CALL, (lambda: torch.randn(12000, 6),)),
    "dynamic_linear of some values": (PER_CALL, (lambda: torch.randn(3, 4, 12)[..., ::2],)),
    "per_token_linear": (
        lambda x: kernels.per_token_linear(*kernels.quantize_per_token(x, *EACH_ROW), *PER_TOKEN.layer),
        (lambda: torch.randn(3, 4, 6) * torch.tensor([1.0, 9.0, 0.1]).view(3, 1, 1),),
    ),
    "weight_only_linear": (
        lambda x: kernels.weight_only_linear(x, *GROUPED_ARGUMENTS), (lambda: torch.randn(3, 4, 24),)
    ),
    "weight_only_linear of some values": (
        lambda x: kernels.weight_only_linear(x[..., ::2], *GROUPED_ARGUMENTS), (lambda: torch.randn(3, 4, 48),)
    ),
    "matmul": (
        lambda a, b: kernels.matmul(a, *QPARAMS, b, 0.2, 9, *OUTPUT, torch.uint8),
        (lambda: draw(2, 3, 5, 7, channels_last=False), lambda: draw(3, 7, 4)),
    ),
    "matmul of int8": (
        lambda a, b: kernels.matmul(a, 0.1, -3, b.mT, 0.2, 9, *OUTPUT, torch.uint8),
        (lambda: draw(5, 8, dtype=torch.int8), lambda: draw(4, 8, dtype=torch.int8)),
    ),
    "add": (lambda a, b: kernels.add(a, *QPARAMS, b, *OTHER, *OUTPUT), (lambda: draw(2, 6, 5), lambda: draw(2, 1, 1))),
    "mul": (lambda a, b: kernels.mul(a, *QPARAMS, b, *OTHER, *OUTPUT), (lambda: draw(2, 6, 5, 5),) * 2),
    "prelu": (
        lambda x: kernels.prelu(x, *QPARAMS, SLOPES, *OUTPUT),
        (lambda: draw(2, 6, 5, 5),),
    ),
    "table": (lambda x: kernels.table(x, TABLE), (lambda: draw(2, 6, 5, 5),)),
    "cat": (
        lambda a, b: kernels.cat([a, b, a], [0.1, 0.17, 0.1], [7, 3, 7], 1, *OUTPUT),
        (lambda: draw(2, 3, 5, 5), lambda: draw(2, 4, 5, 5)),
    ),
    "max_pool2d": (lambda x: kernels.max_pool2d(x, [3], [2], [1], [1], False), (lambda: draw(2, 6, 7, 7),)),
    "avg_pool2d": (
        lambda x: kernels.avg_pool2d(x, (3, 3), (2, 2), (1, 1), False, True, None, *QPARAMS, *OUTPUT),
        (lambda: draw(2, 6, 7, 7),),
    ),
    "adaptive_avg_pool2d": (
        lambda x: kernels.adaptive_avg_pool2d(x, [3, 2], *QPARAMS, *OUTPUT), (lambda: draw(2, 6, 7, 7),)
    ),
    "mean": (lambda x: kernels.mean(x, [2, 3], False, *QPARAMS, *OUTPUT), (lambda: draw(2, 6, 7, 7),)),
    "resample2d": (lambda x: kernels.resample2d(x, *TAPS, *QPARAMS, *OUTPUT), (lambda: draw(2, 3, 6, 5),)),
    "softmax": (lambda x: kernels.softmax(x, 1.0, False, *SHARES), (lambda: torch.randn(3, 5, 37),)),
    "softmax of integers": (lambda x: kernels.softmax(x, 0.1, True, *SHARES), (lambda: draw(3, 70),)),
    "layer_norm": (
        lambda x: kernels.layer_norm(x, *COEFFICIENTS, 1e-5, 1.0, *SHARES), (lambda: torch.randn(3, 5, 6),)
    ),
    "layer_norm of integers": (
        lambda x: kernels.layer_norm(x, *COEFFICIENTS, 1e-5, 0.1, *SHARES), (lambda: draw(3, 6),)
    ),
    "quantize": (
        lambda x: kernels.quantize(x, *ONE_QPARAMS, 0, 255, torch.uint8), (lambda: torch.randn(3, 70),)
    ),
    "quantize_per_token": (
        lambda x: kernels.quantize_per_token(x, *EACH_ROW)[0], (lambda: torch.randn(5, 9),)
    ),
    "quantize to channels_last": (
        lambda x: kernels.quantize(x, *ONE_QPARAMS, 0, 255, torch.uint8, channels_last=True),
        (lambda: torch.randn(2, 3, 20, 20),),
    ),
    "quantize along an axis": (
        lambda x: kernels.quantize(x, *ALL_QPARAMS, 0, 255, torch.uint8, 1),
        (lambda: torch.randn(5, 3, dtype=torch.float64),),
    ),
    "dequantize": (lambda q: kernels.dequantize(q, *ONE_QPARAMS), (lambda: draw(3, 70),)),
    "a channel shuffle": (
        lambda x: x.reshape(2, 2, 3, 5, 5).transpose(1, 2).reshape(2, 6, 5, 5), (lambda: draw(2, 6, 5, 5),)
    ),
    "padding": (lambda x: F.pad(x, (1, -1, 0, 2), value=7), (lambda: draw(2, 3, 4, 5),)),
    "padding of channels_last": (
        lambda x: F.pad(x.contiguous(memory_format=torch.channels_last), (1, -1)), (lambda: draw(2, 3, 4, 5),)
    ),
    "padding of one channel": (lambda x: F.pad(x, (1, -1), value=7), (lambda: draw(2, 1, 4, 5),)),
    "a roll": (lambda x: torch.roll(x, (-3, 1, 0), (2, 3, 0)), (lambda: draw(2, 3, 4, 5),)),
    "a roll of real numbers": (lambda x: torch.roll(x, 7, 1), (lambda: torch.randn(3, 5),)),
    "a roll of channels_last": (
        lambda x: x.contiguous(memory_format=torch.channels_last).roll(1, 1), (lambda: draw(2, 3, 4, 5),)
    ),
    "a roll of some columns": (lambda x: x[..., 1:].roll((1, 2), (0, -1)), (lambda: draw(2, 3, 4, 5),)),
    "a flip of channels_last": (
        lambda x: x.contiguous(memory_format=torch.channels_last).flip(1), (lambda: draw(2, 3, 4, 5),)
    ),
    "a join of real numbers": (
        lambda x, y: torch.cat([x, y, x[:, :2]], 1), (lambda: torch.randn(3, 5), lambda: torch.randn(3, 4))
    ),
    "a join along the first dimension": (
        lambda x, y: torch.cat([x, y.t()]), (lambda: torch.randn(2, 3), lambda: torch.randn(3, 4))
    ),
    "a join of channels_last": (
        lambda x, y: torch.cat([each.contiguous(memory_format=torch.channels_last) for each in (x, y)], -3),
        (lambda: torch.randn(2, 3, 4, 5), lambda: torch.randn(2, 6, 4, 5)),
    ),
    "a join with nothing": (
        lambda x, y: torch.cat([x.new_empty(0), x, y[:, :0], y], 1),
        (lambda: torch.randn(2, 3), lambda: torch.randn(2, 4)),
    ),
    "a join of numbers": (lambda x: torch.cat([x, x]), (lambda: torch.randint(9, (4,)),)),
    "stacked": (lambda x, y: torch.stack([x, y], 1), (lambda: torch.randn(2, 3), lambda: torch.randn(2, 3))),
    "a flip": (lambda x: x.flip(1, -1), (lambda: draw(2, 3, 4, 5),)),
    "a flip of some real numbers": (lambda x: x[:, ::2].flip(0), (lambda: torch.randn(3, 5),)),
    "the other byte": (lambda x: ~(x.view(torch.uint8) ^ 128).view(torch.int8), (lambda: draw(4, 5),)),
    "writing between": (lambda x: written(x), (lambda: draw(2, 3),)),
}  # fmt: skip


def written(x: Tensor) -> Tensor:
    whole = torch.empty(2, 6, dtype=torch.uint8)
    whole[:, ::2] = x
    whole[:, 1::2] = kernels.table(x, TABLE)
    return whole


@pytest.fixture
def recording() -> Iterator[Recording]:
    made = Recording()
    yield made
    made.drop()


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("case", CASES)
def test_a_program_gives_on_other_inputs_what_the_operators_give(case, grad_mode):
    call, makers = CASES[case]
    torch.manual_seed(1)
    with grad_mode():
        first, others = [make() for make in makers], [[make() for make in makers] for _ in range(3)]
        wanted = [call(*inputs) for inputs in others]
        recording = Recording()
        for x in first:
            recording.add_input(x)
        given = recording.attempt(lambda: call(*first))
        program = recording.finish([given])
        assert torch.equal(given, call(*first))
        for isa in available_isas():
            with use_isa(isa):
                for inputs, result in zip(others, wanted, strict=True):
                    (again,) = program(inputs)
                    assert torch.equal(again, result), isa
                    assert again.stride() == result.stride()


@pytest.mark.parametrize(
    ("call", "loops"),
    [
        (lambda x: kernels.table(CONV(x), TABLE), 1),
        (lambda x: kernels.table(kernels.table(DEPTHWISE(x), TABLE), TABLE), 2),  # a loop has one table
        (lambda x: kernels.table(LINEAR(x.permute(0, 2, 3, 1)), TABLE), 1),
        (lambda x: kernels.table(GROUPED(x), TABLE), 1),
        (lambda x: CONV(kernels.table(x, TABLE), kernels.table(CONV(x), TABLE)), 3),
        (
            lambda x: kernels.cat([y := CONV(x), kernels.table(y, TABLE)], [0.1, 0.2], [7, 9], 1, *OUTPUT),
            3,
        ),  # two read it
        (lambda x: kernels.table(CONV(x)[:, :3].contiguous(), TABLE), 3),  # a copy between
        (lambda x: kernels.table(CONV(x)[1:], TABLE), 2),  # of some of it
    ],
)
def test_convolutions_look_their_bytes_up_at_once(call, loops):
    torch.manual_seed(1)
    x, other = draw(2, 6, 9, 30), draw(2, 6, 9, 30)
    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: call(x))])
    assert program.loops == loops
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(program([other])[0], call(other)), isa


@pytest.mark.parametrize("side", [3, 5, 6])
@pytest.mark.parametrize("stride", [1, 2])
def test_depthwise_convolutions_look_up_what_they_stored(side, stride):
    torch.manual_seed(1)
    conv = a_conv(channels=150, side=side, groups=150, stride=stride)
    x, other = draw(2, 150, 9, 130), draw(2, 150, 9, 130)
    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: kernels.table(conv(x), TABLE))])
    assert program.loops == 1
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(program([other])[0], kernels.table(conv(other), TABLE)), isa


@pytest.mark.parametrize("groups", [1, 2, 24])
def test_convolutions_read_a_part_of_the_channels_where_it_lies(groups):
    torch.manual_seed(1)
    first, conv = a_conv(channels=40), a_conv(channels=24, groups=groups)

    def call(x):
        return conv(first(x)[:, 7:31])

    x, other = draw(2, 40, 9, 30), draw(2, 40, 9, 30)
    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: call(x))])
    assert program.loops == 2
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(program([other])[0], call(other)), isa


def test_linear_layers_read_tokens_and_parts_of_features_where_they_lie():
    torch.manual_seed(1)
    layer = NativeLinear(torch.randint(-128, 128, (12, 20)).to(torch.int8), torch.uint8, 7, epilogue(12))

    def call(x):
        return layer(x[:, 0, :20]), layer(x[:, :, 9:29])

    x, other = draw(3, 5, 31), draw(3, 5, 31)
    recording = Recording()
    recording.add_input(x)
    program = recording.finish(recording.attempt(lambda: call(x)))
    assert program.loops == 2
    for isa in available_isas():
        with use_isa(isa):
            assert all(map(torch.equal, program([other]), call(other))), isa


def test_a_result_that_is_given_out_is_looked_up_by_itself():
    x = draw(2, 6, 5, 6)
    recording = Recording()
    recording.add_input(x)
    results = recording.attempt(lambda: (y := CONV(x), kernels.table(y, TABLE)))
    program = recording.finish(results)
    assert program.loops == 2
    for got, wanted in zip(program([x]), results, strict=True):
        assert torch.equal(got, wanted)


def test_every_recorded_operator_is_tested():
    found = {case.split()[-1] if case.startswith("depthwise") else case.split()[0] for case in CASES}
    assert {op._schema.name.removeprefix("fxquant::") for op in RECORDED | RECORDED_QUANTIZE} <= found


def test_results_may_be_views_of_inputs_of_each_other_and_constants(recording):
    x, constant = draw(2, 6), torch.arange(4)
    recording.add_input(x)
    y = recording.attempt(lambda: kernels.table(x, TABLE))
    results = recording.attempt(lambda: (x[:, 1:4], y, y[1:], y.view(torch.int8)[:, ::2], constant[1:], x))
    program = recording.finish(results)
    other = draw(2, 6)
    wanted = kernels.table(other, TABLE)
    part, whole, row, columns, fixed, same = program([other])
    assert torch.equal(part, other[:, 1:4])
    assert torch.equal(whole, wanted)
    assert torch.equal(row, wanted[1:])
    assert torch.equal(columns, wanted.view(torch.int8)[:, ::2])
    assert torch.equal(fixed, constant[1:])
    assert same.data_ptr() == other.data_ptr() == part.data_ptr() - 1
    assert row.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()


def test_a_result_without_elements_takes_the_place_of_no_other(recording):
    x = draw(2, 6)
    recording.add_input(x)
    y = recording.attempt(lambda: kernels.table(x, TABLE))
    program = recording.finish([y, y[:0], x[:, :0]])
    other = draw(2, 6)
    whole, *empty = program([other])
    assert torch.equal(whole, kernels.table(other, TABLE))
    assert [part.shape for part in empty] == [(0, 6), (2, 0)]


def test_a_view_by_its_place_in_memory_is_refused(recording):
    whole = draw(4, 6)
    recording.add_input(whole[1:])
    assert recording.attempt(lambda: whole[1:].as_strided((2, 2), (6, 1))).shape == (2, 2)
    with pytest.raises(NotRecordableError, match="a view by its place in memory"):
        recording.attempt(lambda: whole[1:].as_strided((2, 2), (6, 1), 7))


def test_a_view_is_one_of_the_input_that_it_lies_in(recording):
    whole = draw(4, 6)
    for part in (whole[:2], whole[2:]):
        recording.add_input(part)
    results = recording.attempt(lambda: (kernels.table(whole[:2], TABLE), whole[2:, 1:4]))
    program = recording.finish(results)
    inputs = draw(2, 6), draw(2, 6)
    table, part = program(inputs)
    assert torch.equal(table, kernels.table(inputs[0], TABLE))
    assert torch.equal(part, inputs[1][:, 1:4])


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (lambda whole: whole[1:3], "a result lies outside of the inputs"),
        (lambda whole: torch._neg_view(whole[:1]), "values are not what lies in memory"),
    ],
)
def test_results_that_no_program_can_give(recording, view, message):
    whole = torch.randn(4, 6)
    recording.add_input(whole[:2])
    result = recording.attempt(lambda: view(whole))
    with pytest.raises(KernelError, match=message):
        recording.finish([result])


def test_inputs_that_share_memory_are_refused(recording):
    x = draw(4, 6)
    recording.add_input(x)
    for other in (x, x[1:], x[:, :3]):
        with pytest.raises(NotRecordableError, match="tensors share memory"):
            recording.add_input(other)


def test_memory_that_comes_from_nowhere_is_refused_where_it_is_read(recording):
    """As a copy would be that a binding makes past the recording: it is gone after the call."""
    x, unknown = draw(4), draw(4)
    recording.add_input(x)
    one = (ctypes.c_int64 * 1)(4), (ctypes.c_int64 * 1)(1), (ctypes.c_int64 * 1)(1)
    for to, source in ((x, unknown), (unknown, x)):
        assert not recording.attempt(lambda to=to, source=source: _copy(to, source, one))
        assert last_failure() == "an operator reads or writes memory that its program does not know"
    assert recording.attempt(lambda: _copy(x, x, one))


def _copy(to: Tensor, source: Tensor, shape: Any) -> bool:
    return library().fxquant_copy(to.data_ptr(), source.data_ptr(), 1, 1, *shape)


CSRC = Path(kernels.__file__).parent / "csrc"
PAST_THE_RECORDING = {
    "copies": r"torch::stable::(clone|contiguous|copy_|fill_|zero_|reshape|flatten|pad)\b",
    "allocations": r"(?<!allocated\()torch::stable::(empty_like|new_empty|empty)\b",
}


@pytest.mark.parametrize("kind", PAST_THE_RECORDING)
def test_bindings_copy_and_allocate_where_a_recording_sees_it(kind):
    """With ``copy_elements`` and ``allocated`` (csrc/common/tensor.h), which are steps and memory of a program."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(CSRC.rglob("*.*"))
        if path.parent.name not in ("cuda", "loops")
        for line in path.read_text().splitlines()
        if re.search(PAST_THE_RECORDING[kind], line)
    ]
    assert found == []


def test_only_what_runs_in_an_attempt_is_recorded(recording):
    x = draw(2, 6)
    recording.add_input(x)
    other = Recording()
    other.add_input(x)
    kernels.table(x, TABLE)
    recording.attempt(lambda: (kernels.table(x, TABLE), other.attempt(lambda: kernels.table(x, TABLE))))
    recording.attempt(lambda: kernels.table(x, TABLE))
    other.drop()
    kernels.table(x, TABLE)
    with pytest.raises(ZeroDivisionError):
        recording.attempt(lambda: (kernels.table(x, TABLE), 1 // 0))
    kernels.table(x, TABLE)
    assert recording.loops == 2


def test_a_lazy_negation_is_not_read(recording):
    x = torch.randn(2, 6)
    recording.add_input(x)
    with pytest.raises(NotRecordableError, match="values are not what lies in memory"):
        recording.attempt(lambda: torch._neg_view(x).clone())


def test_each_run_gives_tensors_of_its_own(recording):
    x = draw(2, 6)
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: kernels.table(x, TABLE))])
    first, second = program([x])[0], program([x])[0]
    assert first.data_ptr() != second.data_ptr()


def test_what_lies_between_shares_its_place(recording):
    x = draw(100_000)
    recording.add_input(x)

    def chain() -> Tensor:
        y = x
        for _ in range(20):
            y = kernels.table(y, TABLE)
        return y

    program = recording.finish([recording.attempt(chain)])
    assert x.numel() < program.arena_bytes < 3 * x.numel()


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: kernels.table(x, TABLE).sum(),
        lambda x: int(x[0, 0]),
        lambda x: x.fill_(3),
        lambda x: torch.zeros(3).copy_(x[0, :3]),
        lambda x: ~x.float(),
        lambda x: interpolate(x[None, None], (4, 12)),
        lambda x: kernels.quantize(torch.zeros(3), x.view(torch.float32)[0, 0], 0, 0, 255, torch.uint8),
    ],
)
def test_what_is_no_native_loop_is_refused_and_forgotten(recording, compute):
    x = draw(2, 8)
    x.view(torch.float32).fill_(0.5)
    recording.add_input(x)
    recording.attempt(lambda: kernels.table(x, TABLE))
    with pytest.raises((NotRecordableError, RuntimeError)):
        recording.attempt(lambda: compute(x))
    assert recording.loops == 1


def test_an_error_of_an_operator_reaches_the_caller(recording):
    x = draw(2, 8)
    recording.add_input(x)
    with pytest.raises(RuntimeError, match="fxquant::table: table has the wrong shape"):
        recording.attempt(lambda: kernels.table(x, TABLE[:10]))
    assert recording.loops == 0


@torch.no_grad()
def test_joins_of_other_dtypes_and_those_that_autograd_follows_are_refused(recording):
    x, y = torch.randn(2, 3), torch.randn(2, 3, dtype=torch.float64)
    recording.add_input(x)
    recording.add_input(y)
    with pytest.raises(NotRecordableError, match="a copy to another dtype"):
        recording.attempt(lambda: torch.cat([x, y], 1))
    assert recording.loops == 0
    with torch.enable_grad(), pytest.raises(NotRecordableError, match="a copy that autograd follows"):
        recording.attempt(lambda: torch.cat([x.requires_grad_(), x], 1))
    assert recording.loops == 0


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.float64])
def test_copies_to_another_order_move_tiles(dtype):
    """Sizes around that of a tile, 16, in every order of the dimensions."""
    for sizes in ((2, 15, 3, 17), (1, 48, 2, 33), (3, 16, 1, 16), (1, 3, 5, 70), (2, 65, 31, 1)):
        for order in itertools.permutations(range(4)):
            x, other = (torch.randint(0, 100, sizes).to(dtype).permute(order) for _ in range(2))
            if x.is_contiguous():
                continue
            recording = Recording()
            recording.add_input(x)
            program = recording.finish([recording.attempt(x.contiguous)])
            for isa in available_isas():
                with use_isa(isa):
                    assert torch.equal(program([other])[0], other), (isa, sizes, order)
