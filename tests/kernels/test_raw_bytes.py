from __future__ import annotations

import pytest
import torch

from fxquant.kernels.raw_bytes import raw_bytes

VIEWS = {
    "dense": lambda x: x,
    "transposed": lambda x: x.T,
    "columns": lambda x: x[:, ::2],
    "one of a matrix": lambda x: x[1:2, 2:3],
    "one of a column": lambda x: x[:1, 3],
    "a number": lambda x: x[2, 3],
    "nothing": lambda x: x[:0],
    "expanded": lambda x: x.expand(2, 3, 4),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.int8, torch.bfloat16])
def test_bytes_are_those_of_the_values_in_order(view, dtype):
    x = VIEWS[view](torch.arange(12).to(dtype).reshape(3, 4))
    expected = torch.tensor(x.flatten().tolist(), dtype=dtype).view(torch.uint8)
    assert torch.equal(raw_bytes(x), expected)
