"""Fake quantization with floating zero points: ATen's results and gradient, to the bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.errors import KernelError
from fxquant.fake_quantize.qparams import fake_quantize
from fxquant.kernels import fake_quantize_per_channel_affine
from fxquant.kernels.fake_quantize import float_qparams
from fxquant.plan.spec import QScheme
from fxquant.settings import Settings

SCALE, ZERO = torch.tensor([0.1, 0.25, 0.3]), torch.tensor([3.3, -2.75, 40.5])
"""The last zero point lies outside the limits that the tests use, as it does where a range does not hold 0."""


def image(dtype: torch.dtype = torch.float32) -> Tensor:
    x = torch.randn(2, 3, 5, 7, generator=torch.Generator().manual_seed(0)) * 3
    x[0, 1, 0, :4] = torch.tensor([1e6, -1e6, 0.125, 0.0])  # 0.125: a tie only before the zero point
    return x.to(dtype)


def test_results_and_gradient_are_those_of_the_framework(view: Callable[[Tensor], Tensor]) -> None:
    channels = view(image()).shape[1]
    scale, zero_point = SCALE.repeat(2)[:channels], ZERO.repeat(2)[:channels]
    ours, theirs = view(image()).clone().requires_grad_(), view(image()).clone().requires_grad_()
    y = fake_quantize_per_channel_affine(ours, scale, zero_point, 1, 0, 15)
    expected = torch.fake_quantize_per_channel_affine(theirs, scale, zero_point, 1, 0, 15)
    y.backward(torch.ones_like(y))
    expected.backward(torch.ones_like(expected))

    assert torch.equal(y, expected)
    assert y.stride() == torch.empty_like(ours).stride()
    assert torch.equal(ours.grad, theirs.grad)


def test_what_is_no_number_saturates() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan])
    y = fake_quantize_per_channel_affine(x, torch.ones(3), torch.full((3,), 0.5), 0, 0, 15)
    assert y.tolist() == [14.5, -0.5, -0.5]


def test_the_zero_point_is_added_before_rounding() -> None:
    x, scale = torch.tensor([0.5, 1.5]), torch.ones(2)
    whole = fake_quantize_per_channel_affine(x, scale, torch.tensor([1, 1]), 0, 0, 15)
    real = fake_quantize_per_channel_affine(x, scale, torch.tensor([1.0, 1.0]), 0, 0, 15)
    assert whole.tolist() == [0.0, 2.0]
    assert real.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_the_dtype_is_kept(dtype: torch.dtype) -> None:
    x = image(dtype)
    y = fake_quantize_per_channel_affine(x, SCALE, ZERO, -3, 0, 15)
    assert y.dtype == dtype
    if dtype != torch.float64:
        assert torch.equal(y, fake_quantize_per_channel_affine(x.float(), SCALE, ZERO, 1, 0, 15).to(dtype))


def test_a_scheme_with_float_qparams_goes_here() -> None:
    scheme = QScheme(bits=4, signed=False, axis=1, float_qparams=True)
    assert torch.equal(
        fake_quantize(image(), SCALE, ZERO, scheme),
        torch.fake_quantize_per_channel_affine(image(), SCALE, ZERO, 1, 0, 15),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_there_and_back_is_fake_quantization(view: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    x = view(image(dtype))
    channels = x.shape[1]
    scale, zero_point = SCALE.repeat(2)[:channels], ZERO.repeat(2)[:channels]
    q = float_qparams.quantize_float_qparams("op", x, scale, zero_point, 1, -3, 15, torch.int8)
    assert q.dtype == torch.int8
    assert q.stride() == torch.empty_like(x).stride()
    back = float_qparams.dequantize_float_qparams(q, scale, zero_point, 1)
    assert torch.equal(back.to(dtype), fake_quantize_per_channel_affine(x, scale, zero_point, 1, -3, 15))


def test_it_compiles_without_a_graph_break() -> None:
    def run(x: Tensor) -> Tensor:
        return fake_quantize_per_channel_affine(x, SCALE, ZERO, 1, 0, 15)

    assert torch.equal(torch.compile(run, fullgraph=True, backend="eager")(image()), run(image()))


def test_what_does_not_fit_is_refused(
    monkeypatch: pytest.MonkeyPatch, assert_message: Callable[[BaseException, str, str, str], None]
) -> None:
    op = "fxquant::fake_quantize_per_channel_affine"
    with pytest.raises(KernelError) as error:
        fake_quantize_per_channel_affine(image(), SCALE, ZERO[:2], 1, 0, 15)
    assert_message(error.value, f"{op}: zero_point has the wrong shape", "[2]", "[3]")

    monkeypatch.setattr(float_qparams, "SETTINGS", Settings(kernels="native"))
    with pytest.raises(KernelError) as error:
        fake_quantize_per_channel_affine(image(), SCALE, ZERO, 1, 0, 15)
    assert str(error.value) == (
        f"{op} has no native kernel for floating zero points\n"
        "  got:      FXQUANT_KERNELS=native\n"
        "  hint:     FXQUANT_KERNELS=auto runs it in Python"
    )
