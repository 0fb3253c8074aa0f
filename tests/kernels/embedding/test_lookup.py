"""Two values in a byte, and the numbers that rows stand for; what is refused is tested with the operators."""

from __future__ import annotations

import pytest
import torch

from fxquant.kernels import fake_quantize_per_channel_affine
from fxquant.kernels.embedding.embedding import EmbeddingCall
from fxquant.kernels.embedding.lookup import pack_halves, unpack_halves


@pytest.mark.parametrize("columns", [0, 1, 2, 7, 8])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_halves_come_back(dtype: torch.dtype, columns: int) -> None:
    low = 0 if dtype == torch.uint8 else -8
    rows = torch.randint(low, low + 16, (5, columns), dtype=dtype, generator=torch.Generator().manual_seed(columns))
    packed = pack_halves(rows)
    assert packed.dtype == dtype
    assert packed.shape == (5, (columns + 1) // 2)
    assert torch.equal(unpack_halves(packed, columns), rows)


def test_the_even_column_lies_in_the_lower_half() -> None:
    packed = pack_halves(torch.tensor([[1, 2, 3]], dtype=torch.uint8))
    assert packed.tolist() == [[0x21, 0x03]]
    assert pack_halves(torch.tensor([[-1, -8]], dtype=torch.int8)).view(torch.uint8).tolist() == [[0x8F]]


@pytest.mark.parametrize("bits", [4, 8])
def test_rows_are_those_of_the_simulation(bits: int) -> None:
    """Rounding a float table to its grid and back gives the same bits."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(6, 9, generator=generator) + torch.randn(6, 1, generator=generator)
    high = 2**bits - 1
    scale = (table.amax(1) - table.amin(1)) / high
    zero_point = -table.amin(1) / scale
    simulated = fake_quantize_per_channel_affine(table, scale, zero_point, 0, 0, high)
    steps = torch.round(table * (1 / scale)[:, None] + zero_point[:, None]).clamp(0, high).to(torch.uint8)
    stored = pack_halves(steps) if bits == 4 else steps
    indices = torch.tensor([5, 0, 0, 3])
    call = EmbeddingCall(stored, scale, zero_point, indices, bits, 9)
    assert torch.equal(call.float_rows(indices), simulated[indices])
