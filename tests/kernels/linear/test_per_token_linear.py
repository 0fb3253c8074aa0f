"""``fxquant::per_token_linear``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.conv.packing import pack_weight
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.dynamic_linear import DynamicLinear
from fxquant.kernels.linear.per_token_linear import per_token_linear, reference
from fxquant.kernels.linear.reference import linear_reference, per_token_reference

BYTES = (torch.uint8, torch.int8)
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)


def integers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    low = 0 if dtype == torch.uint8 else -128
    return torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def of_rows(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Scales and zero points of which each is another one."""
    low = 0 if x.dtype == torch.uint8 else -128
    scale = torch.logspace(-3, 3, max(rows, 1))[:rows]
    return scale, (low + torch.arange(rows).mul(37).remainder(256)).to(torch.int32)


def layer(channels: int, depth: int, dtype: torch.dtype, *, bias: bool = True) -> tuple[DynamicLinear, tuple[Any, ...]]:
    weight = integers(torch.int8, channels, depth, seed=1)
    scale = torch.linspace(0.001, 0.1, channels)
    added = torch.linspace(-3, 3, channels) if bias else None
    low = 0 if dtype == torch.uint8 else -128
    made = DynamicLinear(weight, scale, added, (1e-30, low, low + 255, None, dtype), per_token=True)
    return made, (weight, NO_ZERO_POINT, scale, added)


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.integers(1, 7), max_size=3),
    depth=st.integers(1, 300),
    channels=st.integers(1, 130),
    dtype=st.sampled_from(BYTES),
    bias=st.booleans(),
)
def test_any_shape_on_every_instruction_set(
    rows: list[int], depth: int, channels: int, dtype: torch.dtype, bias: bool
) -> None:
    x = integers(dtype, *rows, depth)
    qparams = of_rows(x, torch.Size(rows).numel())
    made, plain = layer(channels, depth, dtype, bias=bias)
    want = per_token_reference(x, *qparams, *plain)

    assert torch.equal(reference(x, *qparams, *made.layer), want)
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(per_token_linear(x, *qparams, *made.layer), want), isa


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("rows", [1, 7, 300])
def test_each_row_is_multiplied_as_if_it_were_alone(
    vnni_device: str, assert_same, rows: int, dtype: torch.dtype
) -> None:
    """By the reference of layers with one scale for their whole input, which is the definition of a row."""
    x = integers(dtype, rows, 1030)
    scale, zero_point = of_rows(x, rows)
    made, (weight, _, weight_scale, bias) = layer(133, 1030, dtype)
    there = [each.to(vnni_device) for each in (x, scale, zero_point, *made.layer)]

    got = per_token_linear(*there).cpu()

    for row in (0, rows // 2, rows - 1):
        epilogue = Epilogue(x_scale=float(scale[row]), weight_scale=weight_scale, bias=bias, dtype=torch.float32)
        assert_same(got[row], linear_reference(x[row], int(zero_point[row]), weight, NO_ZERO_POINT, epilogue))


@pytest.mark.parametrize("shape", [(0, 12), (3, 0, 12), (12,)])
def test_shapes_of_no_row_and_of_one(vnni_device: str, assert_same, shape: tuple[int, ...]) -> None:
    made, _ = layer(40, 12, torch.uint8)
    x = integers(torch.uint8, *shape)
    given = (x, *of_rows(x, torch.Size(shape[:-1]).numel()), *made.layer)

    assert_same(per_token_linear(*(each.to(vnni_device) for each in given)).cpu(), reference(*given))


def test_views_that_are_not_contiguous(vnni_device: str, assert_same) -> None:
    made, _ = layer(40, 12, torch.uint8)
    x = integers(torch.uint8, 5, 24, 6)
    scale, zero_point = of_rows(x, 60)
    for view, rows in ((x.transpose(1, 2)[:, :, ::2], 30), (x[:, :12].mT, 30)):
        given = (view, scale[: 2 * rows : 2], zero_point[: 2 * rows : 2], *made.layer)
        assert_same(per_token_linear(*(each.to(vnni_device) for each in given)).cpu(), reference(*given))


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "x": torch.zeros((3, 4), dtype=torch.int8), "x_scale": torch.ones(3),
        "x_zero_point": torch.zeros(3, dtype=torch.int32),
        "weight": pack_weight(torch.zeros((2, 4), dtype=torch.int8)),
        "zero_point_correction": torch.zeros(2, dtype=torch.int32), "weight_sums": torch.zeros(2, dtype=torch.int32),
        "scale": torch.ones(2), "bias": torch.zeros(2),
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"x": torch.zeros(3, 4)}, "x has the wrong dtype", "torch.float32", "uint8 or int8"),
        ({"x": torch.tensor(1, dtype=torch.uint8)}, "x has the wrong shape", "[]", "[..., in_features]"),
        ({"x_scale": torch.ones(2)}, "x_scale has the wrong shape", "[2]", "[3]"),
        ({"x_scale": torch.ones(3, 1)}, "x_scale has the wrong shape", "[3, 1]", "[3]"),
        ({"x_zero_point": torch.zeros(3)}, "x_zero_point has the wrong dtype", "torch.float32", "int32"),
        ({"weight_sums": torch.zeros(3, dtype=torch.int32)}, "weight_sums has the wrong shape", "[3]", "[2]"),
        (
            {"x": torch.zeros((3, 5), dtype=torch.int8)},
            "weight has the wrong shape",
            "[1, 16, 4]",
            "[2, 16, 4], as pack_weight gives it",
        ),
    ],
)
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (per_token_linear, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::per_token_linear: {what}", got, expected)


def test_opcheck() -> None:
    made, _ = layer(21, 50, torch.uint8)
    for shape in ((50,), (2, 3, 50)):
        x = integers(torch.uint8, *shape)
        given = (x, *of_rows(x, torch.Size(shape[:-1]).numel()), *made.layer)
        torch.library.opcheck(torch.ops.fxquant.per_token_linear.default, given)


def test_compiles_in_one_graph() -> None:
    made, _ = layer(21, 50, torch.int8)
    x = torch.randn(3, 50)

    compiled = torch.compile(lambda x: made(x) + 1, fullgraph=True, backend="aot_eager")

    assert torch.equal(compiled(x), made(x) + 1)
