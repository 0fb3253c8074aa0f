"""``fxquant::embedding_bag``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.kernels import embedding, embedding_bag
from fxquant.kernels.embedding.embedding_bag import MODES, reference

ROWS = 11
FLOAT_SUMS = 1e-6
"""The framework adds rows in an order of its own: float32 sums of about ten numbers below 10, relative."""


def arguments(bits: int = 8, columns: int = 6, device: str = "cpu", dtype: torch.dtype = torch.uint8) -> dict[str, Any]:
    """A table, and bags of 3, 0, 1, 5 and 0 indices."""
    generator = torch.Generator().manual_seed(columns)
    width = columns if bits == 8 else (columns + 1) // 2
    made = {
        "weight": torch.randint(0, 256, (ROWS, width), dtype=torch.uint8, generator=generator).view(dtype),
        "scale": torch.rand(ROWS, generator=generator) / 30,
        "zero_point": 200 * torch.rand(ROWS, generator=generator),
        "indices": torch.tensor([3, 10, 3, 2, 1, 0, 2, 2, 9]),
        "offsets": torch.tensor([0, 3, 3, 4, 9, 9]),
    }
    return {**{name: tensor.to(device) for name, tensor in made.items()}, "bits": bits, "columns": columns, "mode": 0}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("padding_idx", [None, 2, 10])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("columns", [0, 7, 515, 1025])
def test_native_is_the_reference(
    device: str, mode: int, padding_idx: int | None, bits: int, columns: int, assert_same: Callable[..., None]
) -> None:
    for dtype in (torch.uint8, torch.int8):
        given = {**arguments(bits, columns, device, dtype), "mode": mode, "padding_idx": padding_idx}
        assert_same(embedding_bag(**given), reference(**given))


def test_weighted_sums(device: str, assert_same: Callable[..., None]) -> None:
    weights = torch.randn(9, generator=torch.Generator().manual_seed(3)).to(device)
    given = {**arguments(columns=70, device=device), "per_sample_weights": weights}
    assert_same(embedding_bag(**given), reference(**given))


def test_many_bags_in_several_threads(device: str, assert_same: Callable[..., None]) -> None:
    generator = torch.Generator().manual_seed(0)
    given = {
        **arguments(columns=130, device=device),
        "indices": torch.randint(0, ROWS, (6000,), dtype=torch.int32, generator=generator).to(device),
        "offsets": torch.arange(0, 6001, 6, dtype=torch.int32, device=device),
    }
    assert_same(embedding_bag(**given), reference(**given))


@pytest.mark.parametrize("mode", range(3))
@pytest.mark.parametrize("padding_idx", [None, 2])
def test_it_is_the_framework_s_bag_of_the_dequantized_table(mode: int, padding_idx: int | None) -> None:
    given = {**arguments(), "mode": mode, "padding_idx": padding_idx}
    rows = embedding(
        *(given[name] for name in ("weight", "scale", "zero_point")), torch.arange(ROWS), bits=8, columns=6
    )
    expected = F.embedding_bag(
        given["indices"], rows, given["offsets"], mode=MODES[mode], include_last_offset=True, padding_idx=padding_idx
    )
    torch.testing.assert_close(embedding_bag(**given), expected, rtol=FLOAT_SUMS, atol=FLOAT_SUMS)


def test_a_bag_of_padding_alone_gives_zero(device: str) -> None:
    given = {**arguments(device=device), "padding_idx": 2}
    for mode in range(3):
        assert not embedding_bag(**{**given, "mode": mode})[2].any()


def test_the_largest_may_be_negative(device: str) -> None:
    given = {**arguments(device=device), "zero_point": torch.full((ROWS,), 500.0, device=device), "mode": 2}
    y = embedding_bag(**given)
    assert (y[0] < 0).all()
    assert not y[1].any()


def one(**changed: Any) -> dict[str, Any]:
    return changed


ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    (one(mode=3), "mode is out of range", "3", "0 (sum), 1 (mean) or 2 (max)"),
    (one(indices=torch.zeros(2, 2).long()), "indices has the wrong shape", "[2, 2]", "one dimension"),
    (one(offsets=torch.tensor(0)), "offsets has the wrong shape", "[]", "[bags + 1]"),
    (one(offsets=torch.tensor([0.0])), "offsets has the wrong dtype", "torch.float32", "int32 or int64"),
    (
        one(offsets=torch.tensor([1, 9])),
        "offsets are no borders between bags",
        "offsets[0] = 1",
        "0, then ascending, to the number of indices, 9",
    ),
    (
        one(offsets=torch.tensor([0, 5, 4, 9])),
        "offsets are no borders between bags",
        "offsets[2] = 4",
        "0, then ascending, to the number of indices, 9",
    ),
    (
        one(offsets=torch.tensor([0, 8])),
        "offsets are no borders between bags",
        "offsets[1] = 8",
        "0, then ascending, to the number of indices, 9",
    ),
    (one(indices=torch.full((9,), 11)), "an index is out of range", "11", "0 to 10"),
    (one(per_sample_weights=torch.ones(9), mode=1), "only sums take per_sample_weights", "mean", "sum"),
    (one(per_sample_weights=torch.ones(8)), "per_sample_weights has the wrong shape", "[8]", "[9]"),
    (
        one(per_sample_weights=torch.ones(9).double()),
        "per_sample_weights has the wrong dtype",
        "torch.float64",
        "float32",
    ),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), ERRORS)
def test_errors(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    for function in (embedding_bag, reference):
        with pytest.raises(RuntimeError) as error:
            function(**{**arguments(), **changed})
        assert_message(error.value, f"fxquant::embedding_bag: {what}", got, expected)


def test_meta_tensors_give_shapes() -> None:
    y = embedding_bag(**arguments(4, 7, "meta"))
    assert y.shape == (5, 7)
    assert y.dtype == torch.float32


def test_opcheck() -> None:
    given: dict[str, Tensor] = arguments()
    torch.library.opcheck(torch.ops.fxquant.embedding_bag.default, (), given)
    with_all = {**given, "per_sample_weights": torch.ones(9), "padding_idx": 2}
    torch.library.opcheck(torch.ops.fxquant.embedding_bag.default, (), with_all)
