"""``fxquant::matmul``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.matmul.matmul import MOST_PRODUCTS, matmul, reference

BYTES = (torch.uint8, torch.int8)
RESULTS = (*BYTES, torch.float32)
TIE = 1e-3
"""In steps: float32 rounds three times on the way, by less than 1e-4 each. Further from a tie, nothing may differ."""


def integers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    low = torch.iinfo(dtype).min
    return torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def numbers(a: Tensor, b: Tensor, dtype: torch.dtype, *, narrower: int = 0) -> tuple[Any, ...]:
    """All arguments, on grids whose steps the result fills."""
    low = -128 if dtype == torch.int8 else 0
    zeros = torch.iinfo(a.dtype).min + 117, torch.iinfo(b.dtype).min + 140
    step = 0.6 * max(a.shape[-1], 1) ** 0.5
    return (
        *(a, 0.01, zeros[0], b, 0.02, zeros[1]),
        *(step / 40, low + 130, low + narrower, low + 255 - narrower, dtype),
    )


@settings(max_examples=80, deadline=None)
@given(
    batch=st.sampled_from([((), ()), ((3,), (3,)), ((2, 3), (3,)), ((3,), (2, 1)), ((2, 1, 2), (3, 1)), ((), (2, 2))]),
    rows=st.integers(1, 100),
    depth=st.integers(0, 90),
    columns=st.integers(1, 100),
    turned=st.tuples(st.booleans(), st.booleans()),
    dtypes=st.tuples(st.sampled_from(BYTES), st.sampled_from(BYTES), st.sampled_from(RESULTS)),
    narrower=st.integers(0, 100),
)
def test_any_shape_on_every_instruction_set(
    batch: tuple[tuple[int, ...], tuple[int, ...]],
    rows: int,
    depth: int,
    columns: int,
    turned: tuple[bool, bool],
    dtypes: tuple[torch.dtype, ...],
    narrower: int,
) -> None:
    a = integers(dtypes[0], *batch[0], *((depth, rows) if turned[0] else (rows, depth)))
    b = integers(dtypes[1], *batch[1], *((columns, depth) if turned[1] else (depth, columns)), seed=1)
    arguments = numbers(a.mT if turned[0] else a, b.mT if turned[1] else b, dtypes[2], narrower=narrower)
    want = reference(*arguments)

    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(matmul(*arguments), want), isa


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", RESULTS)
@pytest.mark.parametrize("a_dtype", BYTES)
def test_large_ones(vnni_device: str, assert_same, dtype: torch.dtype, a_dtype: torch.dtype) -> None:
    a, b = integers(a_dtype, 12, 197, 66), integers(torch.uint8, 300, 66, 3, seed=1).permute(2, 1, 0)[:1]
    arguments = numbers(a, b, dtype)
    there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in arguments]

    got = matmul(*there).cpu()

    assert_same(got, reference(*arguments))
    assert got.unique().numel() > 200


def test_more_than_1024_products(vnni_device: str, assert_same) -> None:
    for a_dtype, rows, depth in ((torch.int8, 70, 1061), (torch.uint8, 128, 1088), (torch.uint8, 64, 1090)):
        a, b = integers(a_dtype, 2, rows, depth), integers(torch.uint8, 2, depth, 81, seed=1)
        arguments = numbers(a, b, torch.uint8)
        there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in arguments]
        assert_same(matmul(*there).cpu(), reference(*arguments))


VIEWS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "heads": lambda: (
        integers(torch.uint8, 2, 50, 4, 16).transpose(1, 2),
        integers(torch.uint8, 2, 33, 4, 16, seed=1).permute(0, 2, 3, 1),
    ),
    "expanded": lambda: (integers(torch.uint8, 1, 8).expand(3, 60, 8), integers(torch.uint8, 8, 20).expand(3, -1, -1)),
    "parts": lambda: (integers(torch.uint8, 3, 9, 40)[:, 1:, ::2], integers(torch.uint8, 3, 20, 40)[:, :, 3::2]),
    "end of the memory": lambda: (integers(torch.uint8, 64)[1:].view(9, 7)[8:], integers(torch.uint8, 63).view(7, 9)),
}


@pytest.mark.parametrize("make", VIEWS.values(), ids=VIEWS)
def test_views_are_read_as_they_lie(vnni_device: str, assert_same, make) -> None:
    a, b = (view.to(vnni_device) for view in make())
    got = matmul(*numbers(a, b, torch.uint8))
    assert_same(got, matmul(*numbers(a.contiguous(), b.contiguous(), torch.uint8)))
    assert_same(got.cpu(), reference(*numbers(a.cpu(), b.cpu(), torch.uint8)))


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("a_shape", "b_shape", "shape"),
    [
        ((7,), (7,), ()),
        ((7,), (7, 3), (3,)),
        ((5, 7), (7,), (5,)),
        ((7,), (4, 7, 3), (4, 3)),
        ((2, 4, 5, 7), (7,), (2, 4, 5)),
        ((5, 0), (0, 3), (5, 3)),
        ((0, 7), (7, 3), (0, 3)),
        ((0, 5, 7), (1, 7, 3), (0, 5, 3)),
        ((5, 7), (7, 0), (5, 0)),
    ],
)
@pytest.mark.parametrize("dtype", RESULTS)
def test_shapes_are_those_of_torch(vnni_device: str, assert_same, a_shape, b_shape, shape, dtype) -> None:
    arguments = numbers(integers(torch.uint8, *a_shape), integers(torch.int8, *b_shape), dtype)
    there = [value.to(vnni_device) if isinstance(value, Tensor) else value for value in arguments]
    assert matmul(*there).shape == shape
    assert_same(matmul(*there).cpu(), reference(*arguments))


def test_against_float64(isa: str) -> None:
    a, b = integers(torch.uint8, 3, 40, 70), integers(torch.uint8, 70, 50, seed=1)
    sa, sb, sy = (torch.tensor(value, dtype=torch.float32).double() for value in (0.01, 0.02, 0.1))
    real = (a.double() - 100) @ (b.double() - 130) * (sa * sb)

    floats = matmul(a, 0.01, 100, b, 0.02, 130, 1.0, 0, 0, 0, torch.float32)
    bytes_ = matmul(a, 0.01, 100, b, 0.02, 130, 0.1, 128, 0, 255, torch.uint8)

    assert torch.allclose(floats.double(), real, rtol=2**-22, atol=0)  # two roundings to 24 bits
    steps = real / sy + 128
    far_from_tie = ((steps - steps.floor()) - 0.5).abs() > TIE
    assert torch.equal(bytes_.double()[far_from_tie], steps.round().clamp(0, 255)[far_from_tie])


@pytest.mark.parametrize("byte", [0, 255])
def test_the_largest_sums(vnni_device: str, assert_same, byte: int) -> None:
    """One product more could overflow an int32; the parts of which the sum is made do on the way, and come back."""
    a = torch.full((2, MOST_PRODUCTS), byte, dtype=torch.uint8, device=vnni_device)
    for zeros in ((0, 255), (255, 255), (0, 0)):
        arguments = (a, 1.0, zeros[0], a.mT, 1.0, zeros[1], 1.0, 0, 0, 255, torch.float32)
        assert_same(matmul(*arguments), reference(*arguments))


def test_scales_that_overflow_or_vanish_together(vnni_device: str, assert_same) -> None:
    a, b = integers(torch.uint8, 9, 9).to(vnni_device), integers(torch.uint8, 9, 9, seed=1).to(vnni_device)
    for scale in (1e30, 1e-30):
        arguments = (a, scale, 3, b, scale, 5, 1.0, 7, 1, 254, torch.uint8)
        assert_same(matmul(*arguments), reference(*arguments))


def arguments(**changes: Any) -> dict[str, Any]:
    return {
        "a": torch.zeros((3, 4), dtype=torch.uint8), "a_scale": 1.0, "a_zero_point": 0,
        "b": torch.zeros((4, 2), dtype=torch.int8), "b_scale": 1.0, "b_zero_point": 0, "y_scale": 1.0,
        "y_zero_point": 0, "quant_min": 0, "quant_max": 255, "dtype": torch.uint8,
    } | changes  # fmt: skip


def stored(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("changes", "what", "got", "expected"),
    [
        ({"a": torch.zeros(3, 4)}, "a has the wrong dtype", "torch.float32", "uint8 or int8"),
        ({"b_zero_point": 128}, "b_zero_point is out of range", "128", "-128 to 127"),
        ({"a_scale": 0.0}, "a_scale is unusable", "0", "a positive, normal float32"),
        ({"y_scale": 0.0}, "scale is unusable", "0", "a positive, normal float32"),
        ({"quant_max": 256}, "quant_min and quant_max are out of range", "[0, 256]",
         "quant_min <= quant_max, both in 0 to 255"),
        ({"dtype": torch.float64}, "dtype has the wrong dtype", "torch.float64", "uint8, int8 or float32"),
        ({"a": stored()}, "a and b cannot be multiplied", "[] and [4, 2]", "at least one dimension each"),
        ({"b": stored(5, 2)}, "a and b cannot be multiplied", "[3, 4] and [5, 2]", "[..., M, K] and [..., K, N]"),
        ({"b": stored(3)}, "a and b cannot be multiplied", "[3, 4] and [3]", "[..., M, K] and [..., K, N]"),
        ({"a": stored(2, 3, 4), "b": stored(3, 4, 2)}, "the batches of a and b do not broadcast",
         "[2, 3, 4] and [3, 4, 2]", "leading sizes that are equal or 1"),
        ({"a": stored(1, MOST_PRODUCTS + 1), "b": stored(MOST_PRODUCTS + 1)}, "a sum could leave int32", "K = 33026",
         "at most 33025"),
    ],
)  # fmt: skip
def test_errors(changes: dict[str, Any], what: str, got: str, expected: str, assert_message) -> None:
    for run in (matmul, reference):
        with pytest.raises(RuntimeError) as error:
            run(**arguments(**changes))
        assert_message(error.value, f"fxquant::matmul: {what}", got, expected)


def test_a_float_result_looks_at_no_grid() -> None:
    for run in (matmul, reference):
        y = run(**arguments(y_scale=0.0, y_zero_point=999, quant_min=5, quant_max=-5, dtype=torch.float32))
        assert y.dtype == torch.float32


@pytest.mark.parametrize("dtype", RESULTS)
def test_opcheck(dtype: torch.dtype) -> None:
    for a_shape, b_shape in (((2, 3, 5), (2, 5, 4)), ((5,), (5, 4)), ((3, 5), (5,))):
        a, b = integers(torch.uint8, *a_shape), integers(torch.int8, *b_shape)
        torch.library.opcheck(torch.ops.fxquant.matmul.default, numbers(a, b, dtype))


def test_compiles_in_one_graph() -> None:
    def run(a: Tensor, b: Tensor) -> Tensor:
        return torch.ops.fxquant.matmul(a, 0.1, 3, b, 0.07, 5, 0.2, 7, 0, 255, torch.uint8) + 1

    a, b = integers(torch.uint8, 2, 5), integers(torch.uint8, 5, 3)
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(a, b), run(a, b))
