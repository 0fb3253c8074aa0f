"""``fxquant::table``."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels import table
from fxquant.kernels.table.table import table_reference as reference

ENTRIES = torch.randint(0, 256, (256,), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("result", [torch.uint8, torch.int8])
def test_native_is_the_reference(
    device: str,
    dtype: torch.dtype,
    result: torch.dtype,
    view: Callable[[Tensor], Tensor],
    assert_same: Callable[..., None],
) -> None:
    x = torch.randint(0, 256, (3, 5, 17, 9), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    x = view(x.view(dtype).to(device))
    entries = ENTRIES.view(result).to(device)
    assert_same(table(x, entries), reference(x, entries))


def test_every_byte(device: str) -> None:
    entries = ENTRIES.to(device)
    every = torch.arange(256, device=device).to(torch.uint8)
    assert torch.equal(table(every, entries), entries)
    assert torch.equal(table(every.view(torch.int8), entries), entries)
    assert table(torch.tensor([-1], dtype=torch.int8, device=device), entries).item() == entries[255]


def test_a_strided_table(device: str) -> None:
    entries = ENTRIES.to(device)
    strided = torch.stack([entries, entries], 1)[:, 0]
    every = torch.arange(256, device=device).to(torch.uint8)
    assert torch.equal(table(every, strided), entries)


def test_errors(assert_message: Callable[..., None]) -> None:
    x = torch.zeros(2, dtype=torch.uint8)
    for function in (table, reference):
        with pytest.raises(RuntimeError) as error:
            function(x.float(), ENTRIES)
        assert_message(error.value, "fxquant::table: x has the wrong dtype", "torch.float32", "uint8 or int8")
        with pytest.raises(RuntimeError) as error:
            function(x, ENTRIES.int())
        assert_message(error.value, "fxquant::table: table has the wrong dtype", "torch.int32", "uint8 or int8")
        with pytest.raises(RuntimeError) as error:
            function(x, ENTRIES[:255])
        assert_message(error.value, "fxquant::table: table has the wrong shape", "[255]", "[256]")


def test_meta_tensors_give_shapes() -> None:
    y = table(torch.empty(2, 3, dtype=torch.int8, device="meta"), torch.empty(256, dtype=torch.uint8, device="meta"))
    assert y.shape == (2, 3)
    assert y.dtype == torch.uint8


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.fxquant.table.default, (torch.zeros(3, 4, dtype=torch.int8), ENTRIES))
