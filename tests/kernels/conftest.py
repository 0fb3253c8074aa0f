"""What the tests of the operators share: instruction sets, random integers, comparison to the bit."""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from fxquant.kernels.library import available_isas, native_status, use_isa

OF_PRODUCTS = ("avx512_vnni", "brgemm", "amx", "amx_emulated", "neon_dotprod", "neon_i8mm")
"""Instruction sets that run the loops of a lower one, but for operators that multiply bytes."""


@pytest.fixture(params=[isa for isa in available_isas() if isa not in OF_PRODUCTS] or ["none"])
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


def _builder() -> ModuleType:
    spec = spec_from_file_location("fxquant_setup", Path(__file__).parents[2] / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def builder() -> ModuleType:
    """``setup.py`` as a module."""
    return _builder()


@pytest.fixture(scope="session")
def cuda_on_host(builder: ModuleType) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """A context in which CPU tensors get the CUDA kernels, compiled for the host (csrc/cuda/host_device.h)."""
    builder.OBJECTS.mkdir(parents=True, exist_ok=True)
    library = builder.OBJECTS / "fxquant_host.so"
    with open(builder.OBJECTS / "host.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # other processes of the same run want it too, and wait
        builder.build_host(library)
    torch.ops.load_library(library)
    definitions = torch.library.Library("fxquant_host", "FRAGMENT")
    kernels = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, name = qualified.partition("::")
        if namespace == "fxquant_host":
            packet, _, overload = name.partition(".")
            schema = str(getattr(getattr(torch.ops.fxquant, packet), overload or "default")._schema)
            definitions.define(schema.removeprefix("fxquant::"))
            kernels[name] = getattr(getattr(torch.ops.fxquant_host, packet), overload or "default")

    @contextmanager
    def use() -> Iterator[None]:
        in_place_of_native = torch.library.Library("fxquant", "IMPL")
        for name, kernel in kernels.items():
            in_place_of_native.impl(name, kernel, "CPU")
        try:
            yield
        finally:
            in_place_of_native._destroy()

    yield use
    definitions._destroy()


def _places(*, vnni: bool = False) -> list[object]:
    """Where native kernels run. A GPU whose kernels were not built is a skipped test; no GPU is no test."""
    places: list[object] = [isa for isa in available_isas() if vnni or isa not in OF_PRODUCTS]
    if _builder().find_cxx() is not None:
        places.append("cuda_on_host")
    built = pytest.mark.skipif("cuda" not in native_status().devices, reason="the CUDA kernels were not built")
    return [*places, pytest.param("cuda", marks=[pytest.mark.gpu, built])] if torch.cuda.is_available() else places


@contextmanager
def _device(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "cuda":
        yield "cuda"
    else:
        with request.getfixturevalue("cuda_on_host")() if request.param == "cuda_on_host" else use_isa(request.param):
            yield "cpu"


@pytest.fixture(params=_places())
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test on the CPU with every instruction set that has loops of its own, there with the kernels of the GPU
    too, and on the GPU if there is one.
    """
    with _device(request) as name:
        yield name


@pytest.fixture(params=_places(vnni=True))
def vnni_device(request: pytest.FixtureRequest) -> Iterator[str]:
    """As ``device``, for operators that have loops for VNNI too."""
    with _device(request) as name:
        yield name


@pytest.fixture
def reads_values(request: pytest.FixtureRequest) -> bool:
    """Whether the kernels of ``device`` check values of tensors; those of a GPU do not, to keep from waiting."""
    return "cuda" not in request.node.callspec.params["device"]


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
