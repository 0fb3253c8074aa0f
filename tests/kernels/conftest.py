"""What the tests of the operators share: instruction sets, random integers, comparison to the bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fxquant.kernels.library import available_isas, use_isa


@pytest.fixture(params=available_isas() or ("none",))
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once with every instruction set that this machine has."""
    if request.param == "none":
        pytest.skip("no native CPU library is loaded")
    with use_isa(request.param):
        yield request.param


@pytest.fixture
def stored() -> Callable[..., Tensor]:
    """Makes tensors of random stored integers: ``stored(2, 3, 4, 4, dtype=torch.int8, channels_last=True)``."""
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.uint8, channels_last: bool = False) -> Tensor:
        low = torch.iinfo(dtype).min
        q = torch.randint(low, low + 256, shape, dtype=dtype, generator=generator)
        return q.contiguous(memory_format=torch.channels_last) if channels_last else q

    return make


@pytest.fixture
def assert_same() -> Callable[[Tensor, Tensor], None]:
    """Compares dtype, shape, strides and every bit."""

    def compare(actual: Tensor, expected: Tensor) -> None:
        assert actual.dtype == expected.dtype
        assert actual.shape == expected.shape
        assert actual.stride() == expected.stride()
        assert torch.equal(actual, expected)

    return compare
