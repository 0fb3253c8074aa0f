"""Loops on tiles: every size at which they divide a product, how they read images, several threads, programs.

They run on emulated tiles everywhere, and on those of AMX where there are some. Without AMX, what was compiled for it
runs in a process that emulates its instructions.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor, nn

from fxquant import kernels
from fxquant.kernels.conv.native import NativeConv
from fxquant.kernels.conv.reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.kernels.linear.reference import linear_reference
from fxquant.kernels.matmul.matmul import matmul
from fxquant.kernels.matmul.matmul import reference as matmul_reference
from fxquant.runtime.recording import Recording

NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
BYTES = (torch.uint8, torch.int8)
needs_native = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")
PLACES = [
    pytest.param("amx", marks=pytest.mark.skipif("amx" not in available_isas(), reason="no AMX may run here")),
    pytest.param("amx_emulated", marks=needs_native),
]


@pytest.fixture(params=PLACES)
def tiles(request: pytest.FixtureRequest) -> Iterator[str]:
    """The set whose loops run on tiles."""
    with use_isa(request.param):
        yield request.param


def stored(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    low = torch.iinfo(dtype).min
    return torch.randint(low, low + 256, shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def sums(channels: int, dtype: torch.dtype = torch.float32) -> Epilogue:
    """Results that tell each sum apart: float values, or bytes of a fine grid."""
    generator = torch.Generator().manual_seed(1)
    return Epilogue(
        x_scale=1.0, weight_scale=torch.ones(1), bias=torch.randn(channels, generator=generator), dtype=dtype,
        **({} if dtype == torch.float32 else {"y_scale": 300.0, "y_zero_point": 90, "quant_min": 3, "quant_max": 250}),
    )  # fmt: skip


LAYERS = [
    *((rows, 33, 68) for rows in (1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 300)),
    *((17, channels, 64) for channels in (1, 15, 16, 17, 32, 33, 48, 64, 65, 97, 130)),
    *((18, 50, depth) for depth in (1, 3, 4, 5, 60, 63, 64, 65, 68, 72, 127, 128, 132, 136, 140, 192, 300, 1061)),
]
"""Around every size at which a product is divided: rows, channels and bytes of a tile, K groups that do not divide."""


@pytest.mark.parametrize("dtype", BYTES)
def test_layers_of_every_size(tiles: str, dtype: torch.dtype) -> None:
    for rows, channels, depth in LAYERS:
        weight, x = stored(torch.int8, channels, depth, seed=2), stored(dtype, rows, depth)
        got = NativeLinear(weight, dtype, 3, sums(channels))(x)
        assert torch.equal(got, linear_reference(x, 3, weight, NO_ZERO_POINT, sums(channels))), (rows, channels, depth)


@pytest.mark.parametrize("dtype", BYTES)
def test_products_of_activations_of_every_size(tiles: str, dtype: torch.dtype) -> None:
    for rows, columns, depth in LAYERS:
        a, b = stored(dtype, 2, rows, depth), stored(torch.int8, 2, columns, depth, seed=2).mT
        arguments = (a, 0.1, 3, b, 0.1, -5, 1.0, 0, 0, 255, torch.float32)
        assert torch.equal(matmul(*arguments), matmul_reference(*arguments)), (rows, columns, depth)


@pytest.mark.parametrize("value", [127, -128])
@pytest.mark.parametrize("dtype", BYTES)
def test_the_largest_products_are_exact(tiles: str, dtype: torch.dtype, value: int) -> None:
    """Neither bytes nor pairs of their products saturate, and partial sums may pass int32 while they are added."""
    weight = torch.full((20, 1088), value, dtype=torch.int8)
    for each in (torch.iinfo(dtype).min, torch.iinfo(dtype).max):
        x = torch.full((18, 1088), each, dtype=dtype)
        epilogue = replace(sums(20), bias=None)
        got = NativeLinear(weight, dtype, 3, epilogue)(x)
        assert (got == float((each - 3) * value * 1088)).all()


IMAGES = {
    "as it lies": ((2, 64, 9, 11), nn.Conv2d(64, 40, 1)),
    "as it lies, windows": ((2, 20, 9, 40), nn.Conv2d(20, 33, 3)),
    "as it lies, rows apart": ((2, 20, 9, 41), nn.Conv2d(20, 33, 3, stride=2)),
    "as it lies, narrow": ((3, 64, 9, 5), nn.Conv2d(64, 33, 3, stride=(1, 2))),
    "as it lies, less than a tile": ((1, 64, 4, 5), nn.Conv2d(64, 17, 3)),
    "with a border": ((2, 17, 9, 11), nn.Conv2d(17, 40, 3, padding=1)),
    "with a border, K groups that do not divide": ((1, 76, 9, 11), nn.Conv2d(76, 40, 3, padding=1)),
    "with a border, rows apart": ((2, 33, 12, 37), nn.Conv2d(33, 20, 3, padding=1, stride=2)),
    "wide window": ((1, 18, 20, 25), nn.Conv2d(18, 20, (1, 7), padding=(0, 3), dilation=(1, 2))),
    "long rows": ((1, 8, 1, 3000), nn.Conv2d(8, 20, (1, 5), padding=(0, 2))),
    "long rows, apart": ((1, 8, 2, 2500), nn.Conv2d(8, 20, (1, 5), padding=(0, 2), stride=(1, 2))),
    "rows of taps": ((2, 3, 30, 29), nn.Conv2d(3, 70, 7, padding=3, stride=2)),
    "rows of taps, dilated": ((2, 3, 15, 29), nn.Conv2d(3, 70, 3, padding=2, dilation=2)),
    "windows far apart": ((2, 19, 40, 41), nn.Conv2d(19, 20, 2, stride=7, padding=1)),
    "far apart, groups": ((2, 40, 30, 31), nn.Conv2d(40, 80, 2, stride=9, padding=1, groups=2)),
    "taps far apart": ((1, 16, 40, 33), nn.Conv2d(16, 20, 3, padding=12, dilation=12)),
    "nothing but padding": ((2, 16, 1, 1), nn.Conv2d(16, 24, 2, padding=3)),
    "groups": ((2, 64, 7, 7), nn.Conv2d(64, 96, 3, padding=1, groups=2)),
    "small groups": ((2, 24, 7, 7), nn.Conv2d(24, 36, 3, padding=1, groups=6)),
    "many strips": ((2, 64, 30, 30), nn.Conv2d(64, 70, 3, padding=1)),
    "much input": ((1, 900, 8, 40), nn.Conv2d(900, 16, 3, padding=1)),
    "one dimension": ((3, 20, 70), nn.Conv1d(20, 33, 5, padding=2, stride=2)),
    "volume": ((2, 20, 4, 6, 7), nn.Conv3d(20, 33, 3, padding=1)),
    "volume, as it lies": ((2, 16, 5, 6, 7), nn.Conv3d(16, 33, (2, 3, 3), dilation=(2, 1, 1))),
    "volume, rows apart": ((2, 3, 5, 8, 9), nn.Conv3d(3, 33, 3, padding=(1, 0, 1), stride=(2, 1, 2))),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", IMAGES)
def test_images_are_read_in_every_way(tiles: str, name: str, dtype: torch.dtype) -> None:
    shape, conv = IMAGES[name]
    x, weight = stored(dtype, *shape), stored(torch.int8, *conv.weight.shape, seed=2)
    geometry, epilogue = ConvGeometry.of(conv), sums(conv.out_channels)
    got = NativeConv(weight, dtype, 3, geometry, epilogue)(x)
    assert torch.equal(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


def test_several_threads_may_multiply(tiles: str) -> None:
    """Tiles are configured and released by each thread for itself."""
    weight, x = stored(torch.int8, 70, 200, seed=2), stored(torch.uint8, 100, 200)
    run, want = NativeLinear(weight, torch.uint8, 3, sums(70)), linear_reference(x, 3, weight, NO_ZERO_POINT, sums(70))
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(20) if not torch.equal(run(x), want))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tasks_are_divided_among_threads(tiles: str, threads: int) -> None:
    x, conv = stored(torch.uint8, 1, 32, 40, 40), nn.Conv2d(32, 70, 3, padding=1)
    weight, geometry, epilogue = stored(torch.int8, *conv.weight.shape, seed=2), ConvGeometry.of(conv), sums(70)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        got = NativeConv(weight, torch.uint8, 3, geometry, epilogue)(x)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


def test_a_program_of_tiles_runs_on_every_set(tiles: str) -> None:
    """The table is looked up in the bytes that a strip stored, once; without VNNI other loops emulate tiles."""
    table = torch.arange(255, -1, -1).to(torch.uint8)
    convs = nn.Conv2d(20, 40, 3, padding=1), nn.Conv2d(40, 64, 3)
    layers = [
        NativeConv(stored(torch.int8, *each.weight.shape, seed=2), torch.uint8, 3, ConvGeometry.of(each),
                   sums(each.out_channels, torch.uint8))
        for each in convs
    ]  # fmt: skip
    linear = NativeLinear(stored(torch.int8, 20, 64, seed=3), torch.uint8, 3, sums(20, torch.uint8))

    def call(x: Tensor) -> Tensor:
        maps = kernels.table(layers[1](kernels.table(layers[0](x), table)), table)
        rows = linear(maps.permute(0, 2, 3, 1).reshape(-1, 64))
        return matmul(rows, 0.1, 3, rows.mT, 0.1, 5, 40.0, 100, 0, 255, torch.uint8)

    x, other = (stored(torch.uint8, 2, 20, 9, 11, seed=seed).contiguous(memory_format=torch.channels_last)
                for seed in (4, 5))  # fmt: skip
    recording = Recording()
    recording.add_input(x)
    program = recording.finish([recording.attempt(lambda: call(x))])
    with use_isa("portable"):
        want = call(other)
    assert want.unique().numel() > 50
    for isa in available_isas():
        with use_isa(isa):
            assert torch.equal(program([other])[0], want), isa


@pytest.mark.skipif(
    sys.platform != "linux" or "avx512_vnni" not in available_isas(), reason="the loops of amx have AVX-512 VNNI too"
)
@pytest.mark.skipif(os.environ.get("FXQUANT_SANITIZE") == "1", reason="it links objects without sanitizers")
def test_the_instructions_of_amx_give_the_bits_of_emulated_tiles(builder: ModuleType, tmp_path: Path) -> None:
    """Configurations, shapes and encodings are what the CPU takes, and tiles are given back as they were configured."""
    cxx = builder.find_cxx()
    if cxx is None:
        pytest.skip("no C++ compiler")
    stems = {f"{isa}-{loop}_tiles" for isa in ("amx", "avx512_vnni") for loop in ("conv2d", "matmul")}
    steps = [step for step in builder.cpu_steps(cxx, builder.torch_folder()) if step.stem in stems]
    if len(steps) < len(stems):
        pytest.skip("this compiler knows no AMX")
    source, program = Path(__file__).parent / "amx_traps.cpp", tmp_path / "traps"
    command = [cxx, "-std=c++17", "-O1", "-DFXQ_X86=1", "-DFXQ_AMX=1", *builder.OUR_HEADERS, str(source)]
    builder.run([*command, *map(str, builder.compile_all(steps)), "-o", str(program)])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("0 differences\n", 0)
