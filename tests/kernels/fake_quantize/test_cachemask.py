"""Fake quantization with its mask, under torch's names: torch's results, torch's checks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant import kernels

ATEN = torch.ops.aten
IMAGE = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0)) * 10
SCALES, ZERO_POINTS = torch.tensor([0.1, 0.05, 0.2, 0.3]), torch.tensor([0, 3, -7, 5], dtype=torch.int32)
ONE = torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32)
CALLS: dict[str, tuple[object, ...]] = {
    "fake_quantize_per_tensor_affine_cachemask": (0.1, 3, -8, 7),
    "fake_quantize_per_channel_affine_cachemask": (SCALES, ZERO_POINTS, 1, -8, 7),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": (*ONE, torch.tensor([1]), -8, 7),
}


@pytest.mark.parametrize("name", CALLS)
def test_result_mask_and_gradient_are_those_of_the_framework(name: str) -> None:
    found = []
    for functions in (kernels, ATEN):
        x = IMAGE.clone().requires_grad_()
        y, mask = getattr(functions, name)(x, *CALLS[name])
        y.backward(IMAGE)
        found.append((y.detach(), mask, x.grad))
        assert not mask.requires_grad
    assert mask.any()
    assert not mask.all()
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["per_tensor", "per_channel"])
def test_backward_is_that_of_the_framework(name: str) -> None:
    function = f"fake_quantize_{name}_affine_cachemask_backward"
    mask = IMAGE > 0
    assert torch.equal(getattr(kernels, function)(IMAGE, mask), getattr(ATEN, function)(IMAGE, mask))
    with pytest.raises(RuntimeError, match="mask has the wrong dtype"):
        getattr(kernels, function)(IMAGE, mask.float())
    with pytest.raises(RuntimeError, match="mask has the wrong shape"):
        getattr(kernels, function)(IMAGE, mask[:1])


def test_qparams_may_be_tensors_per_tensor() -> None:
    with_numbers = kernels.fake_quantize_per_tensor_affine_cachemask(IMAGE, 0.1, 3, -8, 7)
    with_tensors = kernels.fake_quantize_per_tensor_affine_cachemask(IMAGE, *ONE, -8, 7)
    assert all(torch.equal(a, b) for a, b in zip(with_numbers, with_tensors, strict=True))


def test_zero_points_may_be_any_real_numbers_per_channel() -> None:
    real = ZERO_POINTS + 0.25
    found = []
    for functions in (kernels, ATEN):
        x = IMAGE.clone().requires_grad_()
        y, mask = functions.fake_quantize_per_channel_affine_cachemask(x, SCALES, real, 1, -8, 7)
        y.sum().backward()
        found.append((y.detach(), mask, x.grad))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(*found, strict=True))


def test_a_mask_alone_asks_for_no_gradient() -> None:
    x = IMAGE.clone().requires_grad_()
    for _, mask in (
        kernels.fake_quantize_per_tensor_affine_cachemask(x, 0.1, 3, -8, 7),
        kernels.fake_quantize_per_channel_affine_cachemask(x, SCALES, ZERO_POINTS + 0.25, 1, -8, 7),
    ):
        assert mask.grad_fn is None


@pytest.mark.parametrize("off", [torch.tensor([0]), torch.tensor(0.0), torch.tensor([False])])
def test_switched_off_it_copies(off: Tensor) -> None:
    x = IMAGE.transpose(0, 1).requires_grad_()
    y, mask = kernels._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, *ONE, off, -8, 7)
    assert torch.equal(y, x)
    assert y.stride() == x.stride()
    assert mask.all()
    y.data.zero_()
    assert x.any(), "the result shares memory with the input"
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.ones_like(x))


def test_the_switch_is_one_number(assert_message: Callable[..., None]) -> None:
    with pytest.raises(RuntimeError) as caught:
        kernels._fake_quantize_per_tensor_affine_cachemask_tensor_qparams(IMAGE, *ONE, torch.tensor([1, 1]), -8, 7)
    what = "fxquant::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams: fake_quant_enabled has the wrong shape"
    assert_message(caught.value, what, "[2]", "[1]")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@pytest.mark.parametrize("on", [0, 1])
def test_the_switched_operator_passes_the_checks_of_the_framework(on: int) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    operator = torch.ops.fxquant._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
    torch.library.opcheck(operator, (x, *ONE, torch.tensor([on]), -8, 7))


def test_the_learnable_operators_have_the_names_of_the_framework() -> None:
    for name in ("per_tensor", "per_channel"):
        for suffix in ("", "_backward"):
            function = f"_fake_quantize_learnable_{name}_affine{suffix}"
            assert getattr(kernels, function) is getattr(kernels, function[1:])
            assert getattr(ATEN, function) is not None
