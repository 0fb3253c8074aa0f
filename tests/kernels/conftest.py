"""What the tests of the operators share: instruction sets, random integers, comparison to the bit."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from fxquant.kernels.library import available_isas, native_status, use_isa


# avx512_vnni runs the loops of avx512
@pytest.fixture(params=[isa for isa in available_isas() if isa != "avx512_vnni"] or ["none"])
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once with every instruction set that this machine has."""
    if request.param == "none":
        pytest.skip("no native CPU library is loaded")
    with use_isa(request.param):
        yield request.param


@pytest.fixture
def stored(request: pytest.FixtureRequest) -> Callable[..., Tensor]:
    """Makes tensors of random stored integers: ``stored(2, 3, 4, 4, dtype=torch.int8, channels_last=True)``.

    They lie on the device of a test that runs on several, else on the CPU.
    """
    device = request.getfixturevalue("device") if "device" in request.fixturenames else "cpu"
    generator = torch.Generator().manual_seed(0)

    def make(*shape: int, dtype: torch.dtype = torch.uint8, channels_last: bool = False) -> Tensor:
        low = torch.iinfo(dtype).min
        q = torch.randint(low, low + 256, shape, dtype=dtype, generator=generator).to(device)
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


@pytest.fixture
def framework_tensor() -> Callable[[Tensor, float, int], Tensor]:
    """Makes the q-dtype tensor of a uint8 one, for the framework's own operators; its deprecation is not our matter."""

    def make(q: Tensor, scale: float, zero_point: int) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch._make_per_tensor_quantized_tensor(q, scale, zero_point)

    return make


def _places(*, vnni: bool = False) -> list[object]:
    """Where native kernels run. A GPU whose kernels were not built is a skipped test; no GPU is no test."""
    isas: list[object] = [isa for isa in available_isas() if vnni or isa != "avx512_vnni"]
    built = pytest.mark.skipif("cuda" not in native_status().devices, reason="the CUDA kernels were not built")
    return [*isas, pytest.param("cuda", marks=[pytest.mark.gpu, built])] if torch.cuda.is_available() else isas


@pytest.fixture(params=_places())
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the CPU with every instruction set that has loops of its own, and on the GPU if there is one."""
    if request.param == "cuda":
        yield "cuda"
    else:
        with use_isa(request.param):
            yield "cpu"


@pytest.fixture(params=_places(vnni=True))
def vnni_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """As ``device``, for operators that have loops for VNNI too."""
    if request.param == "cuda":
        yield "cuda"
    else:
        with use_isa(request.param):
            yield "cpu"


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(0, 3),
    "every_other_channel": lambda x: x[:, ::2],
    "with_offset": lambda x: x[:, 1:, 2:],
    "expanded": lambda x: x[:1].expand(3, -1, -1, -1),
    "one_channel": lambda x: x[:, :1],
    "empty": lambda x: x[:0],
}
"""From a dense [N, C, H, W] to views of it in every kind of memory order."""


@pytest.fixture(params=LAYOUTS)
def view(request: pytest.FixtureRequest) -> Callable[[Tensor], Tensor]:
    """Runs the test with every layout of an image."""
    return LAYOUTS[request.param]


@pytest.fixture
def assert_message() -> Callable[[BaseException, str, str, str], None]:
    """Compares a whole error message: what, got, expected."""

    def compare(error: BaseException, what: str, got: str, expected: str) -> None:
        assert str(error) == f"{what}\n  got:      {got}\n  expected: {expected}"

    return compare
