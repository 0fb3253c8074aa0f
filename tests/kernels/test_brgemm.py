"""The framework's brgemm: which products go there, that it is left where it refuses, and what its kernels cost."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.library import available_isas, native_status, use_isa
from fxquant.kernels.linear.linear import NativeLinear
from fxquant.kernels.linear.reference import linear_reference
from fxquant.kernels.matmul.matmul import matmul
from fxquant.kernels.matmul.matmul import reference as matmul_reference

needs_brgemm = pytest.mark.skipif("brgemm" not in available_isas(), reason="the framework has no brgemm here")
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)


def layer(channels: int, depth: int, value: int | None = None) -> tuple[NativeLinear, Tensor, Epilogue]:
    """A layer of random weights, or of one weight, whose results are real numbers: each sum as it is."""
    generator = torch.Generator().manual_seed(depth)
    weight = torch.randint(-128, 128, (channels, depth), dtype=torch.int8, generator=generator)
    if value is not None:
        weight.fill_(value)
    epilogue = Epilogue(x_scale=1.0, weight_scale=torch.ones(1), bias=None, dtype=torch.float32)
    return NativeLinear(weight, torch.uint8, 3, epilogue), weight, epilogue


@needs_brgemm
@pytest.mark.parametrize("value", [127, -128])
@pytest.mark.parametrize("depth", [64, 100, 1024, 1028, 2100])
@pytest.mark.parametrize("rows", [8, 16, 17, 48, 49, 64, 127, 128, 129])
def test_the_largest_products_are_exact(rows: int, depth: int, value: int) -> None:
    run, weight, epilogue = layer(33, depth, value)
    x = torch.full((rows, depth), 255, dtype=torch.uint8)
    with use_isa("brgemm"):
        got = run(x)
    assert torch.equal(got, linear_reference(x, 3, weight, NO_ZERO_POINT, epilogue))
    assert (got == float(252 * value * depth)).all()


@needs_brgemm
def test_several_threads_may_multiply() -> None:
    run, weight, epilogue = layer(70, 200)
    x = torch.randint(0, 256, (100, 200), dtype=torch.uint8)
    want = linear_reference(x, 3, weight, NO_ZERO_POINT, epilogue)
    wrong: list[int] = []

    def work(number: int) -> None:
        wrong.extend(number for _ in range(50) if not torch.equal(run(x), want))

    with use_isa("brgemm"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def fresh(program: str, **environment: str) -> list[str]:
    """What a program prints, that runs in a process of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("FXQUANT_")}
    here = Path(__file__)
    lines = (
        f"import sys; sys.path[:0] = [{str(here.parents[2])!r}, {str(here.parent)!r}, {str(here.parent / 'conv')!r}]",
        program,
    )
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        env={**inherited, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


CHOICE = """
import torch
from fxquant.kernels.library import available_isas, native_status
from fxquant.kernels.matmul.matmul import matmul, reference
from test_brgemm import NO_ZERO_POINT, layer, linear_reference

torch.backends.mkldnn.enabled = False  # from here on it refuses, and who asks it notices


def small_and_large(rows, channels, depth):
    run, weight, epilogue = layer(channels, depth)
    x = torch.randint(0, 256, (rows, depth), dtype=torch.uint8)
    assert torch.equal(run(x), linear_reference(x, 3, weight, NO_ZERO_POINT, epilogue))
    print("brgemm" in available_isas())


small_and_large(7, 8, 64)
small_and_large(8, 7, 64)
small_and_large(8, 8, 60)
"""
OF_LAYER = "small_and_large(8, 8, 64)\nsmall_and_large(70, 70, 1100)"
OF_ACTIVATIONS = """
a, b = (torch.randint(0, 256, size, dtype=torch.uint8) for size in ((2, 70, 1100), (2, 1100, 70)))
arguments = (a, 0.1, 3, b, 0.1, 5, 1.0, 0, 0, 255, torch.float32)
assert torch.equal(matmul(*arguments), reference(*arguments))
print("brgemm" in available_isas())
"""
OF_IMAGES = """
from test_conv2d import CASES
case = CASES["taps across 1024 products"]
assert torch.equal(case.native()(case.tensors()[0]), case.expected())
print("brgemm" in available_isas())
"""


@needs_brgemm
@pytest.mark.parametrize(
    "large", [OF_LAYER, *(pytest.param(one, marks=pytest.mark.slow) for one in (OF_ACTIVATIONS, OF_IMAGES))]
)
def test_large_products_go_there_and_are_right_where_it_refuses(large: str) -> None:
    seen = fresh(CHOICE + large, FXQUANT_CPU_ISA="brgemm")
    assert seen[:3] == ["True"] * 3
    assert seen[3:] in (["False"], ["False"] * 2)


@needs_brgemm
def test_it_is_not_there_where_onednn_has_no_vnni() -> None:
    program = "from fxquant.kernels.library import available_isas; print(*available_isas())"
    sets = fresh(program, ONEDNN_MAX_CPU_ISA="AVX512_CORE")[0].split()
    assert "avx512_vnni" in sets
    assert "brgemm" not in sets


def test_it_is_chosen_where_there_are_tiles() -> None:
    status = native_status()
    if available_isas():
        chosen = fresh("from fxquant.kernels.library import native_status; print(native_status().cpu_isa)")
        assert chosen == ["brgemm" if not status.tiles_refusal else status.best_cpu_isa]
        assert (status.best_cpu_isa == "brgemm") == (not status.tiles_refusal)


MEMORY = """
import torch
from fxquant.kernels.matmul.matmul import matmul
from test_brgemm import layer


def compiled():
    with open("/proc/self/maps") as maps:
        parts = [line.split() for line in maps]
    spans = [part[0].split("-") for part in parts if "x" in part[1] and (len(part) < 6 or "jit" in part[5].lower())]
    return sum(int(last, 16) - int(first, 16) for first, last in spans)


def use(sizes):
    for size in sizes:
        layer_of(torch.zeros((size, 200), dtype=torch.uint8))
        a, b = torch.zeros((size, size), dtype=torch.uint8), torch.zeros((size, size + 1), dtype=torch.uint8)
        matmul(a, 0.1, 3, b, 0.1, 5, 1.0, 0, 0, 255, torch.uint8)


layer_of = layer(70, 200)[0]
none = compiled()
use([*range(16, 1200, 8)])
first = compiled()
use([*range(9, 600, 5)])
print(first - none, compiled() - first)
"""


@needs_brgemm
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_sizes_that_change_add_no_kernels() -> None:
    first, more = map(int, fresh(MEMORY, FXQUANT_CPU_ISA="brgemm")[0].split())
    assert first > 0
    assert more == 0


LAYERS = [
    (rows, channels, depth)
    for rows in (8, 15, 16, 17, 63, 64, 65, 130)
    for channels in (8, 16, 31, 48, 64, 65, 130)
    for depth in (64, 65, 127, 128, 1023, 1025, 2050)
]
"""Around every size at which a product is divided: 16 and 64 rows, 16 and 64 columns, 1024 products."""


@needs_brgemm
def test_every_size_of_a_layer_gives_the_same_as_the_reference_each_time() -> None:
    for rows, channels, depth in LAYERS:
        run, weight, epilogue = layer(channels, depth)
        x = torch.randint(0, 256, (rows, depth), dtype=torch.uint8, generator=torch.Generator().manual_seed(rows))
        want = linear_reference(x, 3, weight, NO_ZERO_POINT, epilogue)
        with use_isa("brgemm"):
            for _ in range(2):
                assert torch.equal(run(x), want), (rows, channels, depth)


@needs_brgemm
def test_every_size_of_a_product_of_activations_gives_the_same_as_the_reference_each_time() -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, columns, depth in LAYERS:
        a = torch.randint(0, 256, (2, rows, depth), dtype=torch.uint8, generator=generator)
        b = torch.randint(-128, 128, (2, columns, depth), dtype=torch.int8, generator=generator).mT
        arguments = (a, 0.1, 3, b, 0.1, -5, 1.0, 0, 0, 255, torch.float32)
        want = matmul_reference(*arguments)
        with use_isa("brgemm"):
            for _ in range(2):
                assert torch.equal(matmul(*arguments), want), (rows, columns, depth)
