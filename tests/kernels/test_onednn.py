"""The framework's oneDNN operators: within the contract of the reference, and refused where they would saturate."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from fxquant.kernels import onednn
from fxquant.kernels.conv_reference import ConvGeometry, conv_reference
from fxquant.kernels.epilogue import Epilogue
from fxquant.kernels.linear_reference import linear_reference
from fxquant.kernels.onednn import OnednnConv, OnednnLinear, flip_sign, largest_products, onednn_status, refusal
from fxquant.settings import Settings

UNEQUAL_SHARE = 1e-4
"""The operators scale before they round once more: design numerics, "equal in at least 99.99 %"."""
NO_ZERO_POINT = torch.zeros(1, dtype=torch.int32)
REAL_ERROR = 2 * torch.finfo(torch.float32).eps
"""Of the largest value: a product and a sum, each rounded once, or both at once by oneDNN."""

needs_onednn = pytest.mark.skipif(not onednn_status().usable, reason=onednn_status().reason)


def integers(dtype: torch.dtype, *shape: int, seed: int = 0) -> Tensor:
    info = torch.iinfo(dtype)
    return torch.randint(info.min, info.max + 1, shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def epilogue_for(weight: Tensor, dtype: torch.dtype, **changes: object) -> Epilogue:
    """Scales that spread random sums over the whole output grid."""
    info, channels = torch.iinfo(torch.uint8 if dtype == torch.float32 else dtype), len(weight)
    spread = 0.02 * 0.006 * 74 * 74 * weight[0].numel() ** 0.5
    values: dict = {
        "x_scale": 0.02,
        "weight_scale": torch.linspace(0.002, 0.011, channels),
        "bias": torch.linspace(-spread, spread, channels),
        "y_scale": spread / 41.7,
        "y_zero_point": (info.min + info.max) // 2 + 5,
        "quant_min": info.min,
        "quant_max": info.max,
        "dtype": dtype,
    }
    return Epilogue(**{**values, **changes})


def assert_within_contract(got: Tensor, want: Tensor) -> None:
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    if want.dtype == torch.float32:
        assert float((got - want).abs().max()) <= REAL_ERROR * float(want.abs().max())
        return
    apart = (got.int() - want.int()).abs()
    assert int(apart.max()) <= 1
    assert int((apart > 0).sum()) <= max(1, UNEQUAL_SHARE * apart.numel())
    assert want.unique().numel() > 10  # scales spread the results, so that equality means something


CONVS = {
    "3x3": (nn.Conv2d(64, 64, 3, padding=1), (2, 64, 28, 28)),
    "1x1": (nn.Conv2d(64, 256, 1), (2, 64, 28, 28)),
    "stem": (nn.Conv2d(3, 32, 7, stride=2, padding=3), (1, 3, 64, 64)),
    "depthwise": (nn.Conv2d(96, 96, 3, stride=2, padding=1, groups=96), (2, 96, 28, 28)),
    "groups, dilation": (nn.Conv2d(30, 60, (3, 5), padding=(1, 4), dilation=(1, 2), groups=3), (2, 30, 17, 19)),
    "no bias": (nn.Conv2d(16, 24, (4, 2), bias=False), (2, 16, 20, 20)),
    "same, uneven": (nn.Conv2d(16, 24, (4, 2), padding="same", dilation=(1, 3)), (2, 16, 20, 20)),
    "reflect": (nn.Conv2d(16, 24, 5, padding=2, padding_mode="reflect"), (2, 16, 20, 20)),
    "replicate": (nn.Conv2d(16, 24, 5, padding=2, padding_mode="replicate"), (2, 16, 20, 20)),
    "circular": (nn.Conv2d(16, 24, 5, padding=2, padding_mode="circular"), (2, 16, 20, 20)),
    "1d": (nn.Conv1d(16, 24, 5, stride=2, padding=2), (3, 16, 301)),
    "3d": (nn.Conv3d(8, 16, 3, stride=(1, 2, 1), padding=1), (2, 8, 6, 12, 10)),
}


@needs_onednn
@pytest.mark.parametrize("name", CONVS)
@pytest.mark.parametrize(
    ("x_dtype", "x_zero_point", "y_dtype"),
    [
        (torch.uint8, 0, torch.uint8),
        (torch.uint8, 131, torch.int8),
        (torch.int8, -7, torch.uint8),
        (torch.int8, -7, torch.float32),
    ],
)
def test_conv(name: str, x_dtype: torch.dtype, x_zero_point: int, y_dtype: torch.dtype) -> None:
    conv, shape = CONVS[name]
    x, weight = integers(x_dtype, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    epilogue = epilogue_for(weight, y_dtype, **({} if conv.bias is not None else {"bias": None}))
    geometry, before = ConvGeometry.of(conv), x.clone()

    got = OnednnConv(weight, x_dtype, x_zero_point, geometry, epilogue)(x)

    assert_within_contract(got, conv_reference(x, x_zero_point, weight, NO_ZERO_POINT, geometry, epilogue))
    assert torch.equal(x, before)


@needs_onednn
@pytest.mark.parametrize("name", ["3x3", "1x1", "depthwise", "same, uneven", "reflect", "1d"])
@pytest.mark.parametrize("residual_dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("y_dtype", [torch.uint8, torch.int8, torch.float32])
def test_conv_with_residual(name: str, residual_dtype: torch.dtype, y_dtype: torch.dtype) -> None:
    conv, shape = CONVS[name]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    geometry = ConvGeometry.of(conv)
    residual = integers(residual_dtype, shape[0], len(weight), *geometry.output_size(shape[2:]), seed=2)
    base = epilogue_for(weight, y_dtype)
    epilogue = replace(base, residual_scale=base.y_scale * 0.71, residual_zero_point=11)
    before = residual.clone()

    got = OnednnConv(weight, torch.uint8, 3, geometry, epilogue, residual_dtype)(x, residual)

    assert_within_contract(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue, residual))
    assert torch.equal(residual, before)


@needs_onednn
def test_large_residuals_are_copied_into_memory_of_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """First in inference mode, whose tensors may not be written outside of it; then by threads at once."""
    monkeypatch.setattr(onednn, "_LARGE", 1)
    conv, shape = CONVS["3x3"]
    weight, geometry = integers(torch.int8, *conv.weight.shape, seed=1), ConvGeometry.of(conv)
    base = epilogue_for(weight, torch.uint8)
    epilogue = replace(base, residual_scale=base.y_scale, residual_zero_point=100)
    inputs = [
        (integers(torch.uint8, *shape, seed=seed), integers(torch.uint8, *shape, seed=seed + 50)) for seed in range(8)
    ]
    before = [residual.clone() for _, residual in inputs]
    run = OnednnConv(weight, torch.uint8, 3, geometry, epilogue, torch.uint8)

    with torch.inference_mode():
        run(*inputs[0])
    first = run(*inputs[0])
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda pair: run(*pair), inputs))

    assert torch.equal(first, results[0])
    for (x, residual), result in zip(inputs, results, strict=True):
        assert_within_contract(result, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue, residual))
    assert all(torch.equal(residual, kept) for (_, residual), kept in zip(inputs, before, strict=True))


@needs_onednn
def test_a_residual_that_broadcasts() -> None:
    conv, shape = CONVS["3x3"]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    geometry = ConvGeometry.of(conv)
    base = epilogue_for(weight, torch.uint8)
    epilogue = replace(base, residual_scale=base.y_scale, residual_zero_point=100)
    residual = integers(torch.uint8, shape[0], len(weight), 1, 1, seed=2)

    got = OnednnConv(weight, torch.uint8, 3, geometry, epilogue, torch.uint8)(x, residual)

    assert_within_contract(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue, residual))


@needs_onednn
@pytest.mark.parametrize("limits", [(0, 15), (128, 255), (90, 160)])
def test_output_limits_narrower_than_the_dtype(limits: tuple[int, int]) -> None:
    conv, shape = CONVS["1x1"]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    epilogue = epilogue_for(weight, torch.uint8, quant_min=limits[0], quant_max=limits[1], y_zero_point=limits[0])
    geometry = ConvGeometry.of(conv)

    got = OnednnConv(weight, torch.uint8, 3, geometry, epilogue)(x)

    assert (int(got.min()), int(got.max())) == limits
    assert_within_contract(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


@needs_onednn
@pytest.mark.parametrize("shape", [(64, 300), (2, 33, 300), (300,), (0, 300), (3, 0, 300)])
@pytest.mark.parametrize("x_dtype", [torch.uint8, torch.int8])
@pytest.mark.parametrize("y_dtype", [torch.uint8, torch.float32])
def test_linear(shape: tuple[int, ...], x_dtype: torch.dtype, y_dtype: torch.dtype) -> None:
    x, weight = integers(x_dtype, *shape), integers(torch.int8, 170, 300, seed=1)
    epilogue = epilogue_for(weight, y_dtype, quant_min=20)

    got = OnednnLinear(weight, x_dtype, 7, epilogue)(x)

    want = linear_reference(x, 7, weight, NO_ZERO_POINT, epilogue)
    if 0 in shape:
        assert got.shape == want.shape
    else:
        assert_within_contract(got, want)


@needs_onednn
def test_one_weight_scale_for_all_channels() -> None:
    conv, shape = CONVS["3x3"]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    epilogue = epilogue_for(weight, torch.uint8, weight_scale=torch.tensor([0.006]))
    geometry = ConvGeometry.of(conv)

    got = OnednnConv(weight, torch.uint8, 3, geometry, epilogue)(x)

    assert_within_contract(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


@needs_onednn
@pytest.mark.parametrize("order", ["contiguous", "channels_last", "view"])
def test_any_memory_order(order: str) -> None:
    conv, shape = CONVS["3x3"]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    given = {
        "contiguous": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "view": x.repeat_interleave(2, dim=3)[:, :, :, ::2],
    }[order]
    geometry, epilogue = ConvGeometry.of(conv), epilogue_for(weight, torch.uint8)

    got = OnednnConv(weight, torch.uint8, 3, geometry, epilogue)(given)

    assert got.is_contiguous(memory_format=torch.channels_last)
    assert_within_contract(got, conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


@needs_onednn
def test_weights_are_packed_once_per_shape_and_for_few_shapes() -> None:
    conv, _ = CONVS["1x1"]
    weight = integers(torch.int8, *conv.weight.shape, seed=1)
    run = OnednnConv(weight, torch.uint8, 3, ConvGeometry.of(conv), epilogue_for(weight, torch.uint8))
    sizes = [5, 6, 5, 7, 8, 9, 10]

    for size in sizes:
        run(integers(torch.uint8, 1, 64, size, size))

    assert [shape[2] for shape in run._packed] == [7, 8, 9, 10]


@needs_onednn
def test_threads_may_call_at_once() -> None:
    conv, shape = CONVS["1x1"]
    x, weight = integers(torch.uint8, *shape), integers(torch.int8, *conv.weight.shape, seed=1)
    geometry, epilogue = ConvGeometry.of(conv), epilogue_for(weight, torch.uint8)
    run = OnednnConv(weight, torch.uint8, 3, geometry, epilogue)

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(run, [x] * 8))

    assert all(torch.equal(result, results[0]) for result in results)
    assert_within_contract(results[0], conv_reference(x, 3, weight, NO_ZERO_POINT, geometry, epilogue))


def test_flipping_the_sign_moves_every_value_by_128() -> None:
    every = torch.arange(256, dtype=torch.int32).to(torch.uint8)

    assert torch.equal(flip_sign(every).int(), every.int() - 128)
    assert torch.equal(flip_sign(flip_sign(every)), every)


@pytest.mark.parametrize(
    ("settings", "environ", "reason"),
    [
        (Settings(kernels="reference"), {}, "FXQUANT_KERNELS=reference"),
        (Settings(cpu_isa="avx2"), {}, "FXQUANT_CPU_ISA=avx2 has no VNNI, without which the oneDNN operators saturate"),
        (
            Settings(),
            {"ONEDNN_MAX_CPU_ISA": "avx512_core"},
            "ONEDNN_MAX_CPU_ISA=avx512_core has no VNNI, without which the oneDNN operators saturate",
        ),
        (
            Settings(),
            {"DNNL_MAX_CPU_ISA": "AVX2"},
            "DNNL_MAX_CPU_ISA=AVX2 has no VNNI, without which the oneDNN operators saturate",
        ),
    ],
)
def test_refusals_say_why(settings: Settings, environ: dict[str, str], reason: str) -> None:
    assert refusal(settings, environ) == reason


@needs_onednn
@pytest.mark.parametrize(
    "settings",
    [Settings(), Settings(kernels="native"), Settings(cpu_isa="avx512_vnni"), Settings(cpu_isa="brgemm")],
)
def test_no_refusal_where_vnni_may_be_used(settings: Settings) -> None:
    assert refusal(settings, {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}) == ""


PROBE = """
from fxquant.kernels.onednn import largest_products, onednn_status, refusal
from fxquant.settings import Settings
print(largest_products()["linear"] < 64)
print(onednn_status().reason)
print(refusal(Settings(), {}))
"""


@needs_onednn
def test_the_probe_does_not_depend_on_the_dtype_that_torch_makes_by_default(float64_by_default) -> None:
    assert largest_products() == {"linear": 64, "conv2d": 64}


@needs_onednn
def test_a_machine_without_vnni_is_found_out() -> None:
    """oneDNN itself is held to AVX2; then 255 * 127 twice saturates in 16 bits."""
    environ = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"}

    run = subprocess.run([sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=True)

    saturates, reason, by_probe = run.stdout.splitlines()
    assert saturates == "True"
    assert reason == "ONEDNN_MAX_CPU_ISA=AVX2 has no VNNI, without which the oneDNN operators saturate"
    assert by_probe == "the oneDNN operators saturate: linear gives 32, conv2d gives 32 where 64 is right"
