"""``fxquant::embedding``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.kernels import embedding
from fxquant.kernels.embedding.embedding import reference

ROWS = 11


def table(
    bits: int, columns: int, dtype: torch.dtype, device: str = "cpu", one_qparams: bool = False
) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(columns)
    width = columns if bits == 8 else (columns + 1) // 2
    weight = torch.randint(0, 256, (ROWS, width), dtype=torch.uint8, generator=generator).view(dtype)
    qparams = 1 if one_qparams else ROWS
    return {
        "weight": weight.to(device),
        "scale": (torch.rand(qparams, generator=generator) + 0.01).to(device),
        "zero_point": (200 * torch.rand(qparams, generator=generator) - 50).to(device),
        "bits": bits,
        "columns": columns,
    }


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [0, 1, 7, 64, 515])
def test_native_is_the_reference(
    device: str, dtype: torch.dtype, bits: int, columns: int, assert_same: Callable[..., None]
) -> None:
    indices = torch.randint(0, ROWS, (3, 5), generator=torch.Generator().manual_seed(1)).to(device)
    for one_qparams in (False, True):
        arguments = table(bits, columns, dtype, device, one_qparams)
        y = embedding(indices=indices, **arguments)
        assert y.shape == (3, 5, columns)
        assert_same(y, reference(indices=indices, **arguments))


@pytest.mark.parametrize("shape", [(), (0,), (4, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_indices_of_any_shape(
    device: str, shape: tuple[int, ...], dtype: torch.dtype, assert_same: Callable[..., None]
) -> None:
    indices = torch.randint(0, ROWS, shape, dtype=dtype, generator=torch.Generator().manual_seed(1)).to(device)
    arguments = table(8, 6, torch.uint8, device)
    y = embedding(indices=indices, **arguments)
    assert y.shape == (*shape, 6)
    assert_same(y, reference(indices=indices, **arguments))


def test_many_rows_in_several_threads(device: str, assert_same: Callable[..., None]) -> None:
    indices = torch.randint(0, ROWS, (2000,), generator=torch.Generator().manual_seed(1)).to(device)
    arguments = table(4, 130, torch.uint8, device)
    assert_same(embedding(indices=indices, **arguments), reference(indices=indices, **arguments))


def test_strided_arguments(device: str) -> None:
    arguments = table(8, 6, torch.uint8, device)
    wide = torch.cat([arguments["weight"], arguments["weight"]], 1)[:, :6]
    indices = torch.arange(8, device=device)[::2]
    assert torch.equal(
        embedding(indices=indices, **{**arguments, "weight": wide}), reference(indices=indices, **arguments)
    )


def test_a_real_zero_point_is_not_rounded(device: str) -> None:
    weight = torch.tensor([[3]], dtype=torch.uint8, device=device)
    scale, zero_point = torch.tensor([0.1], device=device), torch.tensor([1e9 + 0.5], device=device)
    y = embedding(weight, scale, zero_point, torch.tensor([0], device=device), 8, 1)
    assert y.item() == ((3 - zero_point.double()) * scale.double()).float().item()


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"weight": torch.zeros(ROWS, 6)}, "weight has the wrong dtype", "torch.float32", "uint8 or int8"),
    ({"bits": 5}, "bits is out of range", "5", "4 or 8"),
    ({"bits": 4}, "weight has the wrong shape", "[11, 6]", "[rows, 3]"),
    ({"columns": 7}, "weight has the wrong shape", "[11, 6]", "[rows, 7]"),
    ({"scale": torch.ones(ROWS).double()}, "scale has the wrong dtype", "torch.float64", "float32"),
    ({"zero_point": torch.zeros(3)}, "zero_point has the wrong shape", "[3]", "[11] or [1]"),
    ({"scale": torch.ones(1)}, "scale and zero_point have different shapes", "[1] and [11]", "one shape"),
    ({"indices": torch.zeros(2)}, "indices has the wrong dtype", "torch.float32", "int32 or int64"),
    ({"indices": torch.tensor([0, 11])}, "an index is out of range", "11", "0 to 10"),
    ({"indices": torch.tensor([-1, 11])}, "an index is out of range", "-1", "0 to 10"),
    (
        {"weight": torch.zeros(0, 6, dtype=torch.uint8), "scale": torch.ones(0), "zero_point": torch.ones(0)},
        "an index is out of range",
        "0",
        "none: there are no rows",
    ),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    arguments = {**table(8, 6, torch.uint8), "indices": torch.tensor([0]), **changed}
    for function in (embedding, reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::embedding: {what}", got, expected)


def test_meta_tensors_give_shapes() -> None:
    arguments = table(4, 7, torch.uint8, "meta")
    y = embedding(indices=torch.empty(2, 3, dtype=torch.int64, device="meta"), **arguments)
    assert y.shape == (2, 3, 7)
    assert y.dtype == torch.float32


@pytest.mark.parametrize("bits", [4, 8])
def test_opcheck(bits: int) -> None:
    arguments: dict[str, Tensor] = table(bits, 6, torch.int8)
    torch.library.opcheck(torch.ops.fxquant.embedding.default, (), {**arguments, "indices": torch.tensor([[1, 2]])})
