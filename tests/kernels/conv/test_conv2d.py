"""``fxquant::conv2d``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fxquant.kernels.conv.conv import conv2d
from fxquant.kernels.conv.conv import conv2d_reference as reference
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.packing import pack_weight
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa

BYTES = (torch.uint8, torch.int8)
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)


@dataclass(frozen=True)
class Case:
    """A convolution of random quantized values, whose results spread over the quantization range."""

    batch: int = 2
    depth: int = 20
    channels: int = 24
    size: tuple[int, int] = (9, 11)
    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    x_dtype: torch.dtype = torch.uint8
    y_dtype: torch.dtype = torch.uint8
    residual: torch.dtype | None = None
    bits: int = 8
    bias: bool = True
    narrower: int = 0
    mode: str = "zeros"
    one_scale: bool = False
    depthwise: bool = False
    split: int = 1
    """Groups that are no depthwise ones: of so many times as many channels."""

    def __post_init__(self) -> None:
        if self.depthwise:
            object.__setattr__(self, "depth", self.channels)

    @property
    def groups(self) -> int:
        return self.channels if self.depthwise else self.split

    @property
    def inputs(self) -> int:
        """Channels of x."""
        return self.depth

    def geometry(self) -> ConvGeometry:
        walk = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "padding_mode": self.mode}
        return ConvGeometry.of(nn.Conv2d(self.inputs, self.channels, self.kernel, groups=self.groups, **walk))

    def epilogue(self, device: str = "cpu") -> Epilogue:
        generator = torch.Generator().manual_seed(1)
        products = self.inputs // self.groups * self.kernel[0] * self.kernel[1]
        spread = 73 * 2 ** (self.bits - 2) * products**0.5  # of the sums
        low = 0 if self.y_dtype == torch.float32 else torch.iinfo(self.y_dtype).min
        count = 1 if self.one_scale else self.channels
        return Epilogue(
            x_scale=0.02,
            weight_scale=(0.5 + torch.rand(count, generator=generator)).to(device) * 50 / spread,
            bias=torch.randn(self.channels, generator=generator).to(device) * 0.3 if self.bias else None,
            y_scale=0.02,
            y_zero_point=low + 120,
            quant_min=low + self.narrower,
            quant_max=low + 255 - self.narrower,
            dtype=self.y_dtype,
            residual_scale=0.01,
            residual_zero_point=0 if self.residual is None else torch.iinfo(self.residual).min + 130,
        )

    def tensors(self, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(0)

        def stored(dtype: torch.dtype, *shape: int) -> Tensor:
            low = torch.iinfo(dtype).min
            return torch.randint(low, low + 256, shape, dtype=dtype, generator=generator).to(device)

        x = stored(self.x_dtype, self.batch, self.inputs, *self.size).contiguous(memory_format=torch.channels_last)
        half = 2 ** (self.bits - 1)
        shape = (self.channels, self.inputs // self.groups, *self.kernel)
        weight = torch.randint(-half, half, shape, dtype=torch.int8, generator=generator).to(device)
        if self.residual is None:
            return x, weight, None
        out = self.geometry().output_size(self.size)
        return x, weight, stored(self.residual, self.batch, self.channels, *out)

    @property
    def x_zero_point(self) -> int:
        return torch.iinfo(self.x_dtype).min + 117

    def native(self, device: str = "cpu") -> NativeConv:
        weight = self.tensors(device)[1]
        return NativeConv(weight, self.x_dtype, self.x_zero_point, self.geometry(), self.epilogue(device))

    def expected(self) -> Tensor:
        x, weight, residual = self.tensors()
        q = conv_reference(x, self.x_zero_point, weight, NO_ZERO_POINT, self.geometry(), self.epilogue(), residual)
        return torch.empty(q.shape, dtype=q.dtype, memory_format=torch.channels_last).copy_(q)


CASES = {
    "1x1": Case(),
    "1x1 strided": Case(stride=(2, 3), residual=torch.uint8),
    "tails": Case(depth=21, channels=131, size=(5, 5), batch=1, residual=torch.int8),
    "one of each": Case(depth=1, channels=1, size=(1, 1), batch=1),
    "one row": Case(depth=130, channels=70, size=(1, 1), batch=1),
    "signed": Case(x_dtype=torch.int8, y_dtype=torch.int8, residual=torch.int8, narrower=1),
    "signed input": Case(x_dtype=torch.int8, padding=(1, 1), kernel=(3, 3), depth=18),
    "4 bit": Case(bits=4, narrower=40, bias=False, one_scale=True),
    "3x3": Case(kernel=(3, 3), padding=(1, 1), residual=torch.uint8),
    "3x5 strided, dilated": Case(kernel=(3, 5), padding=(2, 3), stride=(2, 1), dilation=(2, 2), depth=17),
    "few channels": Case(depth=3, kernel=(7, 7), padding=(3, 3), stride=(2, 2), size=(30, 29)),
    "few channels, wide": Case(depth=13, kernel=(2, 4), padding=(1, 1), dilation=(1, 2), x_dtype=torch.int8),
    "few channels, long run": Case(depth=11, kernel=(3, 5), size=(6, 9)),
    "padding only": Case(depth=16, kernel=(2, 2), size=(1, 1), padding=(3, 3)),
    "several tasks": Case(depth=64, channels=200, size=(40, 40), kernel=(2, 2), batch=1),
    "much weight": Case(depth=400, channels=400, size=(4, 5), batch=1),
    "more than 1024 products": Case(depth=1061, channels=70, size=(5, 5), residual=torch.int8),
    "128 rows, as they lie": Case(depth=1088, channels=80, size=(8, 16), batch=1),
    "taps across 1024 products": Case(depth=130, kernel=(3, 3), padding=(1, 1), size=(9, 11), x_dtype=torch.int8),
    "groups of many products": Case(depth=192, channels=144, split=2, kernel=(2, 2), stride=(2, 1), size=(12, 13)),
    "depthwise": Case(depthwise=True, channels=64, kernel=(3, 3), padding=(1, 1), stride=(2, 2)),
    "depthwise, tails": Case(
        depthwise=True, channels=37, kernel=(5, 3), padding=(2, 1), residual=torch.int8, x_dtype=torch.int8, size=(7, 7)
    ),
    "depthwise, few channels": Case(depthwise=True, channels=3, kernel=(3, 3), dilation=(2, 1), padding=(2, 2)),
    "depthwise, one tap": Case(depthwise=True, channels=19),
    "depthwise, two rows at once": Case(depthwise=True, channels=70, kernel=(3, 3), padding=(1, 1), size=(7, 9)),
    "depthwise, two rows of two": Case(depthwise=True, channels=20, kernel=(2, 2), x_dtype=torch.int8, size=(6, 5)),
    "depthwise, dilated": Case(depthwise=True, channels=70, kernel=(3, 2), dilation=(2, 3), padding=(2, 3)),
    "depthwise, far apart": Case(depthwise=True, channels=20, kernel=(2, 2), stride=(3, 5), size=(9, 70), batch=1),
    "depthwise, long rows": Case(depthwise=True, channels=80, kernel=(5, 5), padding=(2, 2), size=(6, 53), batch=1),
    "depthwise, widest window": Case(depthwise=True, channels=40, kernel=(1, 256), size=(2, 260), stride=(1, 2)),
    "depthwise, highest window": Case(depthwise=True, channels=70, kernel=(128, 2), size=(130, 4), batch=1),
    "groups of four": Case(depth=64, channels=64, split=16, kernel=(3, 3), padding=(1, 1), residual=torch.uint8),
    "groups, tails": Case(depth=30, channels=42, split=6, kernel=(3, 2), x_dtype=torch.int8, y_dtype=torch.int8),
    "groups of many channels": Case(depth=72, channels=140, split=2, stride=(2, 2)),
    "groups, prime": Case(depth=21, channels=14, split=7, kernel=(2, 2)),
    "depthwise, several results each": Case(depth=12, channels=36, split=12, kernel=(3, 3), padding=(1, 1)),
    "one group of one": Case(depth=5, channels=5, split=5, size=(3, 3)),
    "few channels, far apart": Case(depth=3, kernel=(2, 2), stride=(3, 4), size=(12, 70), padding=(1, 1)),
    "few channels, most taps": Case(depth=15, kernel=(2, 128), size=(3, 150), batch=1),
    "float values": Case(y_dtype=torch.float32, channels=37, kernel=(3, 3), padding=(1, 1), residual=torch.uint8),
    "depthwise, float values": Case(y_dtype=torch.float32, depthwise=True, channels=37, kernel=(3, 3), bias=False),
    "circular": Case(kernel=(3, 3), padding=(1, 2), mode="circular"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_native_is_the_definition_to_the_bit(vnni_device: str, assert_same, name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors(vnni_device)

    got = case.native(vnni_device)(x, residual)

    assert_same(got.cpu(), case.expected())
    if got.numel() > 500:
        assert got.unique().numel() > 60


PARTS = (
    "1x1", "1x1 strided", "tails", "one row", "signed", "3x3", "3x5 strided, dilated", "few channels", "padding only",
    "groups of many products", "depthwise", "depthwise, tails", "depthwise, few channels", "depthwise, far apart",
    "depthwise, two rows at once", "depthwise, long rows", "depthwise, highest window",
)  # fmt: skip


@pytest.mark.one_in(3)
@pytest.mark.parametrize("before", [0, 5])
@pytest.mark.parametrize("name", PARTS)
def test_part_of_the_channels_of_a_tensor(vnni_device: str, assert_same, name: str, before: int) -> None:
    case = CASES[name]
    x, _, residual = case.tensors(vnni_device)
    shape = (case.batch, before + case.inputs + 11 - before, *case.size)
    around = torch.full(shape, 77, dtype=case.x_dtype, device=x.device).contiguous(memory_format=torch.channels_last)
    part = around[:, before : before + case.inputs]
    part.copy_(x)

    assert_same(case.native(vnni_device)(part, residual).cpu(), case.expected())


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mode == "zeros"])
def test_the_reference_is_the_definition(assert_same, name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors()
    native = case.native()

    assert_same(reference(x, *native._leading, residual, *native._trailing), case.expected())


pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


def grouped(case: Case) -> st.SearchStrategy[Case]:
    """The case itself, or with groups; some of each group's channels are taken off, so that they divide."""
    if case.depthwise:
        return st.just(case)
    return st.integers(1, min(case.depth, case.channels)).map(
        lambda split: replace(
            case, split=split, depth=case.depth // split * split, channels=case.channels // split * split
        )
    )


cases = st.builds(
    Case,
    batch=st.integers(1, 3),
    depth=st.integers(1, 130),
    channels=st.integers(1, 130),
    size=st.tuples(st.integers(7, 12), st.integers(7, 12)),
    kernel=st.one_of(st.just((1, 1)), pairs),
    stride=pairs,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=pairs,
    x_dtype=st.sampled_from(BYTES),
    y_dtype=st.sampled_from((*BYTES, torch.float32)),
    residual=st.sampled_from([None, *BYTES]),
    bits=st.integers(2, 8),
    bias=st.booleans(),
    narrower=st.integers(0, 100),
    one_scale=st.booleans(),
    depthwise=st.booleans(),
).flatmap(grouped)


@settings(max_examples=60, deadline=None)
@given(cases)
def test_any_shape_on_every_instruction_set(case: Case) -> None:
    x, _, residual = case.tensors()
    run, want = case.native(), case.expected()

    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(run(x, residual), want), isa


def test_largest_products_do_not_saturate(vnni_device: str) -> None:
    """Pairs of 255 * 127 pass 16 bits, where CPUs without VNNI saturate in their quickest instruction."""
    for sign in (1, -1):
        x = torch.full((1, 64, 2, 2), 255, dtype=torch.uint8, device=vnni_device)
        weight = torch.full((16, 64, 1, 1), 127 * sign, dtype=torch.int8, device=vnni_device)
        epilogue = Epilogue(
            x_scale=1 / 255, weight_scale=torch.full((1,), 1 / 127, device=vnni_device), bias=None, y_scale=1.0,
            y_zero_point=128, quant_min=0, quant_max=255, dtype=torch.uint8,
        )  # fmt: skip
        got = NativeConv(weight, torch.uint8, 0, Case().geometry(), epilogue)(x)
        assert (got == 128 + sign * 64).all()


def test_sums_far_beyond_the_quantization_range_saturate(vnni_device: str, assert_same) -> None:
    """Steps beyond 2**31, infinite ones, and NaN, which only huge scales can give."""
    case = Case(residual=torch.uint8)
    x, weight, residual = case.tensors()
    for scale, residual_scale in ((1e6, 1.0), (3e38, 1.0), (3e38, 3e38)):
        epilogue = Epilogue(
            x_scale=scale, weight_scale=torch.tensor([100.0]), bias=None, y_scale=1e-6, y_zero_point=7, quant_min=3,
            quant_max=250, dtype=torch.uint8, residual_scale=residual_scale, residual_zero_point=100,
        )  # fmt: skip
        want = conv_reference(x, 117, weight, NO_ZERO_POINT, case.geometry(), epilogue, residual)
        native = NativeConv(weight.to(vnni_device), torch.uint8, 117, case.geometry(), _on(epilogue, vnni_device))
        got = native(x.to(vnni_device), residual.to(vnni_device))
        assert torch.equal(got.cpu(), want)
        assert got.unique().tolist() == [3, 250]


def _on(epilogue: Epilogue, device: str) -> Epilogue:
    return replace(epilogue, weight_scale=epilogue.weight_scale.to(device))


def test_an_empty_batch(vnni_device: str, assert_same) -> None:
    x = torch.zeros((0, 20, 9, 11), dtype=torch.uint8, device=vnni_device)
    native = Case(kernel=(3, 3)).native(vnni_device)

    got = native(x)

    assert_same(got, reference(x, *native._leading, None, *native._trailing))
    assert got.shape == (0, 24, 7, 9)


@pytest.mark.parametrize("kernel", [(1, 1), (3, 3)])
def test_layouts(vnni_device: str, view, assert_same, kernel: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    x = view(torch.randint(0, 256, (20, 20, 8, 20), dtype=torch.uint8, generator=generator)).to(vnni_device)
    native = Case(depth=x.shape[1], kernel=kernel, padding=(1, 1)).native(vnni_device)

    assert_same(native(x), reference(x, *native._leading, None, *native._trailing))


@pytest.mark.parametrize("shape", [(1, 24, 9, 11), (2, 24, 1, 1), (24, 1, 1), (2, 1, 9, 11), ()])
def test_a_residual_is_broadcast(vnni_device: str, shape: tuple[int, ...]) -> None:
    case = Case(residual=torch.uint8)
    x, _, full = case.tensors(vnni_device)
    assert full is not None
    residual = full.flatten()[: int(torch.Size(shape).numel())].reshape(shape)
    native = case.native(vnni_device)

    assert torch.equal(native(x, residual), native(x, residual.expand(full.shape).contiguous()))


def test_one_dimension(vnni_device: str) -> None:
    conv = nn.Conv1d(20, 24, 5, padding=2, stride=2)
    case = Case(kernel=(1, 5), residual=torch.uint8)
    x, weight, residual = case.tensors()
    assert residual is not None
    x, weight, residual = x[:, :, 0], weight[:, :, 0], residual[:, :, 0, :6]
    geometry = ConvGeometry.of(conv)
    want = conv_reference(x, 117, weight, NO_ZERO_POINT, geometry, case.epilogue(), residual)

    run = NativeConv(weight.to(vnni_device), torch.uint8, 117, geometry, case.epilogue(vnni_device))

    assert torch.equal(run(x.to(vnni_device), residual.to(vnni_device)).cpu(), want)


def test_the_result_depends_on_no_number_of_threads() -> None:
    case = CASES["several tasks"]
    run, want = case.native(), case.expected()
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3, 7):
            torch.set_num_threads(threads)
            assert torch.equal(run(case.tensors()[0]), want)
    finally:
        torch.set_num_threads(before)


def test_threads_may_call_at_once() -> None:
    case = CASES["3x3"]
    x, _, residual = case.tensors()
    run, want = case.native(), case.expected()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda _: run(x, residual), range(8)))

    assert all(torch.equal(result, want) for result in results)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "x": torch.zeros((1, 4, 3, 3), dtype=torch.uint8), "x_zero_point": 0,
        "weight": pack_weight(torch.zeros((2, 4, 1, 1), dtype=torch.int8)),
        "zero_point_correction": torch.zeros(2, dtype=torch.int32), "scale": torch.ones(2), "bias": torch.zeros(2),
        "kernel_size": [1, 1], "stride": [1, 1], "padding": [0, 0, 0, 0], "dilation": [1, 1], "groups": 1,
        "residual": None, "residual_scale": 1.0, "residual_zero_point": 0, "y_scale": 1.0, "y_zero_point": 0,
        "quant_min": 0, "quant_max": 255, "dtype": torch.uint8,
    } | changes  # fmt: skip


ERROR_CASES = [
    ({"x": torch.zeros(1, 4, 3, 3)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
    ({"x": torch.zeros((4, 3, 3), dtype=torch.uint8)}, "x has the wrong shape", "[4, 3, 3]", "[N, C, H, W]"),
    ({"x_zero_point": -1}, "x_zero_point is out of range", "-1", "0 to 255"),
    ({"weight": torch.zeros(1, 1, 16, 4)}, "weight has the wrong dtype", "torch.float32", "int8"),
    (
        {"weight": torch.zeros((1, 2, 16, 4), dtype=torch.int8)},
        "weight has the wrong shape",
        "[1, 2, 16, 4]",
        "[1, 16, 4], as pack_weight gives it",
    ),
    ({"zero_point_correction": torch.zeros(2)}, "zero_point_correction has the wrong dtype", "torch.float32", "int32"),
    (
        {"zero_point_correction": torch.zeros(3, dtype=torch.int32)},
        "zero_point_correction has the wrong shape",
        "[3]",
        "[2]",
    ),
    ({"scale": torch.ones(2, dtype=torch.float64)}, "scale has the wrong dtype", "torch.float64", "float32"),
    ({"scale": torch.ones(2, 1)}, "scale has the wrong shape", "[2, 1]", "[output channels]"),
    ({"bias": torch.zeros(2, dtype=torch.int32)}, "bias has the wrong dtype", "torch.int32", "float32"),
    ({"bias": torch.zeros(1)}, "bias has the wrong shape", "[1]", "[2]"),
    ({"kernel_size": [1]}, "kernel_size is out of range", "[1]", "2 numbers of 1 to 2147483647"),
    ({"kernel_size": [256, 257]}, "kernel_size is too large", "[256, 257]", "at most 65536 elements"),
    ({"stride": [0, 1]}, "stride is out of range", "[0, 1]", "2 numbers of 1 to 2147483647"),
    ({"padding": [0, 0, 0, -1]}, "padding is out of range", "[0, 0, 0, -1]", "4 numbers of 0 to 2147483647"),
    ({"dilation": [1, 0]}, "dilation is out of range", "[1, 0]", "2 numbers of 1 to 2147483647"),
    ({"groups": 0}, "groups is out of range", "0", "a divisor of the channels of x and of the result"),
    ({"groups": 3}, "groups is out of range", "3", "a divisor of the channels of x and of the result"),
    ({"groups": 4}, "groups is out of range", "4", "a divisor of the channels of x and of the result"),
    (
        {"kernel_size": [1, 3], "dilation": [1, 2]},
        "the window does not fit the padded input",
        "5 and 3",
        "a window that is no longer than the input",
    ),
    (
        {"residual": torch.zeros((1, 2, 3, 2), dtype=torch.uint8)},
        "residual has the wrong shape",
        "[1, 2, 3, 2]",
        "[1, 2, 3, 3], as the result",
    ),
    ({"residual": torch.zeros(1, 2, 3, 3)}, "residual has the wrong dtype", "torch.float32", "uint8 or int8"),
    (
        {"residual": torch.zeros((1, 2, 3, 3), dtype=torch.uint8), "residual_scale": 0.0},
        "residual_scale is unusable",
        "0",
        "a positive, normal float32",
    ),
    ({"y_scale": 0.0}, "scale is unusable", "0", "a positive, normal float32"),
    ({"y_zero_point": 300}, "zero_point is out of range", "300", "0 to 255"),
    ({"dtype": torch.int32}, "dtype has the wrong dtype", "torch.int32", "uint8, int8 or float32"),
    (
        {"quant_max": 256},
        "quant_min and quant_max are out of range",
        "[0, 256]",
        "quant_min <= quant_max, both in 0 to 255",
    ),
]


@pytest.mark.parametrize(("changes", "what", "got", "expected"), ERROR_CASES)
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (conv2d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::conv2d: {what}", got, expected)


@pytest.mark.parametrize("name", ["1x1 strided", "3x3", "few channels", "signed", "depthwise"])
def test_opcheck(name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors()
    native = case.native()

    torch.library.opcheck(torch.ops.fxquant.conv2d.default, (x, *native._leading, residual, *native._trailing))


def test_compiles_in_one_graph() -> None:
    case = CASES["3x3"]
    x, _, residual = case.tensors()
    run = case.native()

    compiled = torch.compile(lambda x, r: run(x, r) + 1, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(x, residual), run(x, residual) + 1)
