"""Maxima of stored integers: what torch gives for the same numbers as floats."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn import max_ops
from fxquant.nn.max_ops import QuantizedMaximum, QuantizedMaxValues
from fxquant.plan.spec import QParams, QScheme


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
    y = getattr(max_ops, name)(q, *arguments)
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


@pytest.mark.parametrize("largest", [False, True])
def test_the_larger_of_two_on_other_grids(largest) -> None:
    a, b, y = (
        QParams(QScheme(signed=signed), torch.tensor([scale]), torch.tensor([zero], dtype=torch.int32))
        for signed, scale, zero in ((False, 0.1, 100), (True, 0.07, 5), (False, 0.05, 90))
    )
    qa, qb = bytes_of(3, 40, 1), bytes_of(40, 7, dtype=torch.int8)
    reals = (from_integers(q, g.scale, g.zero_point, g.scheme) for q, g in ((qa, a), (qb, b)))
    expected = (torch.maximum if largest else torch.minimum)(*reals)
    module = QuantizedMaximum(a, b, y, largest=largest)
    assert torch.equal(module(qa, qb), to_integers(expected, y.scale, y.zero_point, y.scheme))
    assert torch.equal(module.reference(qa, qb), module(qa, qb))
    assert repr(module).startswith(f"QuantizedMaximum(largest={largest}, a: uint8")
