"""``fxquant::linear``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.conv.packing import pack_weight
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.linear import NativeLinear, linear, reference
from fxquant.kernels.linear.reference import linear_reference

BYTES = (torch.uint8, torch.int8)
RESULTS = (*BYTES, torch.float32)
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)


def integers(dtype: torch.dtype, *shape: int, seed: int = 0, bits: int = 8) -> Tensor:
    low = 0 if dtype == torch.uint8 else -(2 ** (bits - 1))
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, low + 2**bits, shape, dtype=dtype, generator=generator)


def epilogue_for(weight: Tensor, dtype: torch.dtype, *, bias: bool = True, narrower: int = 0) -> Epilogue:
    channels, depth = weight.shape
    generator = torch.Generator().manual_seed(1)
    low = 0 if dtype == torch.float32 else torch.iinfo(dtype).min
    spread = 1 + 73 * float(weight.float().std(correction=0)) * depth**0.5
    return Epilogue(
        x_scale=0.02,
        weight_scale=(0.5 + torch.rand(channels, generator=generator)) * 50 / spread,
        bias=torch.randn(channels, generator=generator) * 0.3 if bias else None,
        y_scale=0.02,
        y_zero_point=low + 120,
        quant_min=low + narrower,
        quant_max=low + 255 - narrower,
        dtype=dtype,
        residual_scale=0.01,
        residual_zero_point=100,
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.integers(1, 5), max_size=3),
    depth=st.integers(1, 300),
    channels=st.integers(1, 130),
    dtypes=st.tuples(st.sampled_from(BYTES), st.sampled_from(RESULTS)),
    bits=st.integers(2, 8),
    bias=st.booleans(),
    narrower=st.integers(0, 100),
)
def test_any_shape_on_every_instruction_set(
    rows: list[int], depth: int, channels: int, dtypes: tuple[torch.dtype, ...], bits: int, bias: bool, narrower: int
) -> None:
    x_dtype, y_dtype = dtypes
    x, weight = integers(x_dtype, *rows, depth), integers(torch.int8, channels, depth, seed=1, bits=bits)
    zero_point = torch.iinfo(x_dtype).min + 90
    epilogue = epilogue_for(weight, y_dtype, bias=bias, narrower=narrower)
    want = linear_reference(x, zero_point, weight, NO_ZERO_POINT, epilogue)
    run = NativeLinear(weight, x_dtype, zero_point, epilogue)

    assert torch.equal(reference(x, *run._arguments), want)
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(run(x), want), isa


@pytest.mark.one_in(3)
@pytest.mark.parametrize("rows", [1, 2, 7, 300])
@pytest.mark.parametrize("x_dtype", BYTES)
def test_large_layers(vnni_device: str, assert_same, rows: int, x_dtype: torch.dtype) -> None:
    x, weight = integers(x_dtype, rows, 1030), integers(torch.int8, 700, 1030, seed=1)
    epilogue = epilogue_for(weight, torch.uint8)
    want = linear_reference(x, 3, weight, NO_ZERO_POINT, epilogue)
    bias = None if epilogue.bias is None else epilogue.bias.to(vnni_device)
    there = replace(epilogue, weight_scale=epilogue.weight_scale.to(vnni_device), bias=bias)

    got = NativeLinear(weight.to(vnni_device), x_dtype, 3, there)(x.to(vnni_device))

    assert_same(got.cpu(), want)
    assert got.unique().numel() > 100


@pytest.mark.parametrize(
    "take",
    [
        lambda x: x[..., :50],
        lambda x: x[..., 7:57],
        lambda x: x[:, 1, :50],
        lambda x: x[:, 1:3, 5:55],  # the steps between rows differ
        lambda x: x[:1, :1, 9:59],
        lambda x: x[1, 2, 3:53].expand(4, 50),
        lambda x: x[..., :50].transpose(0, 1),
        lambda x: x[..., ::2][..., :50],
    ],
)
@pytest.mark.parametrize("x_dtype", BYTES)
def test_parts_of_a_tensor(
    vnni_device: str, assert_same, x_dtype: torch.dtype, take: Callable[[Tensor], Tensor]
) -> None:
    weight = integers(torch.int8, 21, 50, seed=1)
    epilogue = epilogue_for(weight, torch.uint8)
    native = NativeLinear(weight, x_dtype, 9, epilogue)
    there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in native._arguments]
    x = integers(x_dtype, 3, 7, 101)

    got = linear(take(x.to(vnni_device)), *there)

    assert_same(got.cpu(), linear_reference(take(x), 9, weight, NO_ZERO_POINT, epilogue))


@pytest.mark.parametrize("y_dtype", [torch.uint8, torch.float32])
def test_a_residual(vnni_device: str, assert_same, y_dtype: torch.dtype) -> None:
    x, weight = integers(torch.uint8, 3, 7, 50), integers(torch.int8, 21, 50, seed=1)
    epilogue = epilogue_for(weight, y_dtype)
    residual = integers(torch.uint8, 3, 7, 21, seed=2)
    native = NativeLinear(weight, torch.uint8, 9, epilogue)
    arguments = [value if value is not None else residual for value in (x, *native._arguments)]
    there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in arguments]

    want = linear_reference(x, 9, weight, NO_ZERO_POINT, epilogue, residual)

    assert_same(linear(*there).cpu(), want)
    assert_same(reference(*arguments), want)


@pytest.mark.parametrize("shape", [(0, 12), (3, 0, 12), (12,)])
def test_shapes_of_no_row_and_of_one(vnni_device: str, assert_same, shape: tuple[int, ...]) -> None:
    weight = integers(torch.int8, 40, 12)
    native = NativeLinear(weight, torch.uint8, 9, epilogue_for(weight, torch.int8))
    x = integers(torch.uint8, *shape)
    there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in native._arguments]

    assert_same(linear(x.to(vnni_device), *there).cpu(), reference(x, *native._arguments))


def test_views_that_are_not_contiguous(assert_same) -> None:
    weight = integers(torch.int8, 40, 12)
    run = NativeLinear(weight, torch.uint8, 9, epilogue_for(weight, torch.int8))
    x = integers(torch.uint8, 5, 24, 6)

    for view in (x.transpose(1, 2)[:, :, ::2], x[:, :12].mT, x[:1, :12].mT.expand(3, -1, -1)):
        assert_same(run(view), run(view.contiguous()))


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "x": torch.zeros((3, 4), dtype=torch.int8), "x_zero_point": 0,
        "weight": pack_weight(torch.zeros((2, 4), dtype=torch.int8)),
        "zero_point_correction": torch.zeros(2, dtype=torch.int32), "scale": torch.ones(2), "bias": torch.zeros(2),
        "residual": None, "residual_scale": 1.0, "residual_zero_point": 0, "y_scale": 1.0, "y_zero_point": 0,
        "quant_min": 0, "quant_max": 255, "dtype": torch.uint8,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(3, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        ({"x": torch.tensor(1, dtype=torch.uint8)}, "x has the wrong shape", "[]", "[..., in_features]"),
        ({"x_zero_point": 128}, "x_zero_point is out of range", "128", "-128 to 127"),
        (
            {"x": torch.zeros((3, 5), dtype=torch.int8)},
            "weight has the wrong shape",
            "[1, 16, 4]",
            "[2, 16, 4], as pack_weight gives it",
        ),
        (
            {"residual": torch.zeros((3, 4), dtype=torch.int8)},
            "residual has the wrong shape",
            "[3, 4]",
            "[3, 2], as the result",
        ),
        ({"y_scale": -1.0}, "scale is unusable", "-1", "a positive, normal float32"),
    ],
)
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (linear, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::linear: {what}", got, expected)


def test_real_numbers_need_no_grid() -> None:
    weight, x = integers(torch.int8, 21, 50, seed=1), integers(torch.uint8, 3, 50)
    stored = NativeLinear(weight, torch.uint8, 9, epilogue_for(weight, torch.float32))._arguments
    *arguments, _, _, _, _, dtype = (x, *stored)
    assert dtype == torch.float32
    assert torch.equal(linear(*arguments, 0.0, 999, 5, -5, dtype), linear(x, *stored))
    assert torch.equal(reference(*arguments, 0.0, 999, 5, -5, dtype), linear(x, *stored))


def test_opcheck() -> None:
    weight = integers(torch.int8, 21, 50)
    native = NativeLinear(weight, torch.uint8, 9, epilogue_for(weight, torch.int8))

    for shape in ((50,), (3, 50), (2, 3, 50)):
        torch.library.opcheck(torch.ops.fxquant.linear.default, (integers(torch.uint8, *shape), *native._arguments))


def test_compiles_in_one_graph() -> None:
    weight = integers(torch.int8, 21, 50)
    run = NativeLinear(weight, torch.uint8, 9, epilogue_for(weight, torch.int8))
    x = integers(torch.uint8, 3, 50)

    compiled = torch.compile(lambda x: run(x) + 1, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(x), run(x) + 1)
