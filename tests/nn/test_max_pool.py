"""Maxima of stored integers: what torch gives for the same numbers as floats."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxquant.nn import QuantizedMaxPool2d, max_pool
from fxquant.nn.max_pool import QuantizedMaxValues


def bytes_of(*shape: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator).view(dtype)


POOLS = [
    ("max_pool1d", (2, 3, 17), (3, 2, 1, 1, False)),
    ("max_pool1d", (3, 17), ((2,), (2,), (0,), (3,), True)),
    ("max_pool3d", (2, 3, 6, 9, 7), (2, 2, 1, 1, True)),
    ("max_pool1d", (0, 3, 17), (3, 2, 1)),  # no images
    ("max_pool3d", (0, 3, 6, 9, 7), (2, 2)),
    ("adaptive_max_pool3d", (0, 3, 4, 6, 8), (2,)),
    ("max_pool3d", (3, 6, 9, 7), ((1, 3, 2), (2, 1, 2), (0, 1, 0), (2, 2, 1), False)),
    ("adaptive_max_pool1d", (2, 3, 17), (4,)),
    ("adaptive_max_pool2d", (2, 3, 9, 12), (1,)),
    ("adaptive_max_pool2d", (2, 3, 9, 12), ((4, None),)),
    ("adaptive_max_pool2d", (3, 9, 12), ((2, 5),)),
    ("adaptive_max_pool3d", (2, 3, 5, 6, 7), ((5, 2, 3),)),
]


@pytest.mark.parametrize(("name", "shape", "arguments"), POOLS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_pools(name, shape, arguments, dtype) -> None:
    q = bytes_of(*shape, dtype=dtype)
    y = getattr(max_pool, name)(q, *arguments)
    assert y.dtype == dtype
    assert torch.equal(y.float(), getattr(F, name)(q.float(), *arguments))


@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("largest", [False, True])
def test_values_along_a_dimension(keepdim, largest) -> None:
    q = bytes_of(2, 5, 6)
    module = QuantizedMaxValues(1, keepdim, largest=largest)
    expected = (torch.max if largest else torch.min)(q, 1, keepdim=keepdim)[0]
    assert torch.equal(module(q), expected)
    assert torch.equal(module.reference(q), expected)
    assert repr(module) == f"QuantizedMaxValues(dim=1, keepdim={keepdim}, largest={largest})"


def image() -> Tensor:
    q = torch.randint(0, 256, (2, 5, 9, 11), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return q.contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    "arguments",
    [(2,), ((3, 2),), (3, 2, 1), (3, (2, 1), (1, 0), 1, True), (2, None, 0, (2, 3)), ([3, 3], [2, 2], [1, 1])],
)
def test_max_pool2d(arguments: tuple[object, ...]) -> None:
    x = image()
    module = QuantizedMaxPool2d(*arguments)
    assert torch.equal(module(x).float(), F.max_pool2d(x.float(), *arguments))
    assert torch.equal(module.reference(x), module(x))
    assert module(x).is_contiguous(memory_format=torch.channels_last)


def test_max_pool2d_has_no_state() -> None:
    assert not QuantizedMaxPool2d(2).state_dict()
