"""``fxquant::conv3d``."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fxquant.kernels.conv.conv import conv3d
from fxquant.kernels.conv.conv import conv3d_reference as reference
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.packing import pack_weight
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue

NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
Three = tuple[int, int, int]


@dataclass(frozen=True)
class Case:
    """A convolution of random stored integers, whose results spread over the output grid."""

    depth: int = 20
    channels: int = 24
    kernel: Three = (1, 1, 1)
    stride: Three = (1, 1, 1)
    padding: Three = (0, 0, 0)
    dilation: Three = (1, 1, 1)
    groups: int = 1
    size: Three = (5, 6, 7)
    batch: int = 2
    x_dtype: torch.dtype = torch.uint8
    y_dtype: torch.dtype = torch.uint8
    residual: torch.dtype | None = None
    narrower: int = 0
    bias: bool = True
    mode: str = "zeros"

    def geometry(self) -> ConvGeometry:
        walk = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "padding_mode": self.mode}
        return ConvGeometry.of(
            nn.Conv3d(self.depth, self.channels, self.kernel, groups=self.groups, device="meta", **walk)
        )

    def epilogue(self) -> Epilogue:
        products = self.depth // self.groups * self.kernel[0] * self.kernel[1] * self.kernel[2]
        low = 0 if self.y_dtype == torch.float32 else torch.iinfo(self.y_dtype).min
        return Epilogue(
            x_scale=0.02,
            weight_scale=torch.linspace(0.5, 1.5, self.channels) / (93 * products**0.5),
            bias=torch.linspace(-0.4, 0.3, self.channels) if self.bias else None,
            y_scale=0.02,
            y_zero_point=low + 120,
            quant_min=low + self.narrower,
            quant_max=low + 255 - self.narrower,
            dtype=self.y_dtype,
            residual_scale=0.01,
            residual_zero_point=0 if self.residual is None else torch.iinfo(self.residual).min + 130,
        )

    @property
    def x_zero_point(self) -> int:
        return torch.iinfo(self.x_dtype).min + 117

    def tensors(self) -> tuple[Tensor, Tensor, Tensor | None]:
        generator = torch.Generator().manual_seed(0)

        def stored(dtype: torch.dtype, *shape: int) -> Tensor:
            low = torch.iinfo(dtype).min
            return torch.randint(low, low + 256, shape, dtype=dtype, generator=generator)

        x = stored(self.x_dtype, self.batch, self.depth, *self.size)
        weight = stored(torch.int8, self.channels, self.depth // self.groups, *self.kernel)
        if self.residual is None:
            return x, weight, None
        return x, weight, stored(self.residual, self.batch, self.channels, *self.geometry().output_size(self.size))

    def native(self) -> NativeConv:
        return NativeConv(self.tensors()[1], self.x_dtype, self.x_zero_point, self.geometry(), self.epilogue())

    def expected(self) -> Tensor:
        x, weight, residual = self.tensors()
        q = conv_reference(x, self.x_zero_point, weight, NO_ZERO_POINT, self.geometry(), self.epilogue(), residual)
        return torch.empty(q.shape, dtype=q.dtype, memory_format=torch.channels_last_3d).copy_(q)


CASES = {
    "groups of one channel and two results": Case(
        depth=2, channels=4, kernel=(1, 2, 3), stride=(1, 1, 2), padding=(0, 1, 1), groups=2, size=(6, 4, 2)
    ),
    "one result, dilated": Case(
        depth=8, channels=1, kernel=(2, 1, 2), stride=(1, 1, 2), padding=(1, 0, 0), dilation=(1, 1, 2), size=(2, 4, 4)
    ),
    "1x1x1": Case(residual=torch.int8),
    "1x1x1 strided in planes": Case(stride=(2, 1, 1)),
    "1x1x1 padded in planes": Case(padding=(1, 0, 0), narrower=30),
    "3x3x3": Case(depth=17, channels=70, kernel=(3, 3, 3), padding=(1, 1, 1), residual=torch.uint8),
    "signed": Case(kernel=(2, 3, 2), x_dtype=torch.int8, y_dtype=torch.int8, residual=torch.int8, padding=(1, 1, 0)),
    "few channels": Case(depth=3, kernel=(3, 5, 5), stride=(1, 2, 2), padding=(1, 2, 2), size=(5, 13, 14)),
    "few channels, 343 taps": Case(depth=3, kernel=(7, 7, 7), padding=(3, 3, 3), stride=(2, 2, 2), size=(8, 9, 9)),
    "few channels, dilated": Case(depth=5, kernel=(2, 2, 3), dilation=(2, 1, 2), padding=(1, 1, 2)),
    "343 taps": Case(depth=16, channels=5, kernel=(7, 7, 7), padding=(3, 3, 3), batch=1),
    "depthwise": Case(depth=40, channels=40, groups=40, kernel=(3, 3, 3), padding=(1, 1, 1), residual=torch.uint8),
    "depthwise, flat": Case(depth=70, channels=70, groups=70, kernel=(1, 3, 3), padding=(0, 1, 1), x_dtype=torch.int8),
    "depthwise, planes only": Case(depth=19, channels=19, groups=19, kernel=(3, 1, 1), padding=(1, 0, 0)),
    "depthwise, 1331 taps": Case(
        depth=33, channels=33, groups=33, kernel=(11, 11, 11), padding=(5, 5, 5), size=(7, 8, 9), batch=1
    ),
    "depthwise, strided and dilated": Case(
        depth=20, channels=20, groups=20, kernel=(3, 2, 3), stride=(2, 3, 2), dilation=(2, 1, 3), padding=(2, 1, 3)
    ),
    "groups": Case(depth=24, channels=48, groups=4, kernel=(2, 3, 3), padding=(1, 1, 1)),
    "real numbers": Case(y_dtype=torch.float32, channels=37, kernel=(3, 1, 3), bias=False, residual=torch.int8),
    "padding only": Case(kernel=(2, 2, 2), size=(1, 1, 1), padding=(2, 2, 2)),
    "one plane": Case(kernel=(1, 3, 3), padding=(0, 1, 1), size=(1, 9, 8)),
    "circular": Case(kernel=(3, 3, 2), padding=(1, 1, 1), mode="circular"),
    "more than 1024 products": Case(depth=130, channels=70, kernel=(2, 3, 2), size=(3, 5, 6), batch=1),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", CASES)
def test_native_is_the_definition_to_the_bit(vnni_device: str, assert_same, name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors()

    got = case.native()(x, residual)

    assert_same(got, case.expected())
    assert torch.equal(case.native()(x.contiguous(memory_format=torch.channels_last_3d), residual), got)
    if got.numel() > 500:
        assert got.unique().numel() > 60


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.mode == "zeros"])
def test_the_reference_is_the_definition(assert_same, name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors()
    native = case.native()

    assert_same(reference(x, *native._leading, residual, *native._trailing), case.expected())


def any_case(seed: int) -> Case:
    """A small convolution of any geometry."""
    rng = random.Random(seed)

    def three(most: int, least: int = 1) -> Three:
        return (rng.randint(least, most), rng.randint(least, most), rng.randint(least, most))

    groups = rng.choice((1, 1, 1, 2, 3, 5, 16))
    depth, channels = groups * rng.choice((1, 1, 2, 5, 8, 17)), groups * rng.choice((1, 1, 2, 4, 17, 33))
    kernel, padding, dilation = three(3), three(2, 0), three(2)
    least = [max(1, step * (k - 1) + 1 - 2 * pad) for k, pad, step in zip(kernel, padding, dilation, strict=True)]
    bytes_ = (torch.uint8, torch.int8)
    return Case(
        depth, channels, kernel, three(3), padding, dilation, groups,
        size=tuple(size + rng.randint(0, 4) for size in least), batch=rng.randint(1, 2), x_dtype=rng.choice(bytes_),
        y_dtype=rng.choice((*bytes_, torch.float32)), residual=rng.choice((None, *bytes_)),
        narrower=rng.choice((0, 60)), bias=rng.random() < 0.7,
    )  # fmt: skip


SEEDS = range(250)


def test_any_geometry(vnni_device: str) -> None:
    """Twice each: a result must not hang on what lay in memory before."""
    for seed in SEEDS:
        case = any_case(seed)
        x, _, residual = case.tensors()
        run, want = case.native(), case.expected()
        assert torch.equal(run(x, residual), want), case
        assert torch.equal(run(x, residual), want), case


def test_an_empty_batch(vnni_device: str, assert_same) -> None:
    native = Case(kernel=(3, 3, 3)).native()
    x = torch.zeros((0, 20, 5, 6, 7), dtype=torch.uint8)

    got = native(x)

    assert_same(got, reference(x, *native._leading, None, *native._trailing))
    assert got.shape == (0, 24, 3, 4, 5)


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "x": torch.zeros((1, 4, 3, 3, 3), dtype=torch.uint8), "x_zero_point": 0,
        "weight": pack_weight(torch.zeros((2, 4, 1, 1, 1), dtype=torch.int8)),
        "zero_point_correction": torch.zeros(2, dtype=torch.int32), "scale": torch.ones(2), "bias": torch.zeros(2),
        "kernel_size": [1, 1, 1], "stride": [1, 1, 1], "padding": [0] * 6, "dilation": [1, 1, 1], "groups": 1,
        "residual": None, "residual_scale": 1.0, "residual_zero_point": 0, "y_scale": 1.0, "y_zero_point": 0,
        "quant_min": 0, "quant_max": 255, "dtype": torch.uint8,
    } | changes  # fmt: skip


ERROR_CASES = [
    (
        {"x": torch.zeros((4, 3, 3, 3), dtype=torch.uint8)},
        "x has the wrong shape",
        "[4, 3, 3, 3]",
        "[N, C, D, H, W]",
    ),
    ({"kernel_size": [1, 1]}, "kernel_size is out of range", "[1, 1]", "3 numbers of 1 to 2147483647"),
    ({"kernel_size": [256, 256, 2]}, "kernel_size is too large", "[256, 256, 2]", "at most 65536 elements"),
    ({"kernel_size": [2**31 - 1] * 3}, "kernel_size is too large", str([2**31 - 1] * 3), "at most 65536 elements"),
    ({"padding": [0] * 4}, "padding is out of range", "[0, 0, 0, 0]", "6 numbers of 0 to 2147483647"),
    (
        {"padding": [2**31 - 1] * 6},
        "the result is too large",
        f"[1, 2, {2**32 + 1}, {2**32 + 1}, {2**32 + 1}]",
        "a size that memory has room for",
    ),
    (
        {"kernel_size": [5, 1, 1]},
        "the window does not fit the padded input",
        "5 and 3",
        "a window that is no longer than the input",
    ),
    (
        {"residual": torch.zeros((1, 2, 3, 3, 2), dtype=torch.uint8)},
        "residual has the wrong shape",
        "[1, 2, 3, 3, 2]",
        "[1, 2, 3, 3, 3], as the result",
    ),
]


@pytest.mark.parametrize(("changes", "what", "got", "expected"), ERROR_CASES)
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (conv3d, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::conv3d: {what}", got, expected)


@pytest.mark.parametrize("name", ["3x3x3", "few channels", "depthwise", "real numbers"])
def test_opcheck(name: str) -> None:
    case = CASES[name]
    x, _, residual = case.tensors()
    native = case.native()

    torch.library.opcheck(torch.ops.fxquant.conv3d.default, (x, *native._leading, residual, *native._trailing))
