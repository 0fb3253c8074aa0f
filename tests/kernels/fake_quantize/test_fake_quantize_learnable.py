"""``fxquant::fake_quantize_learnable_*``: native = reference, ATen's results where they are sound, exact gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels import (
    fake_quantize_learnable_per_channel_affine,
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_learnable_per_tensor_affine,
    fake_quantize_learnable_per_tensor_affine_backward,
    fake_quantize_per_channel_affine,
    fake_quantize_per_tensor_affine,
)
from fxquant.kernels.fake_quantize.fake_quantize_learnable import backward_reference, rounded_zero_point

OPS = torch.ops.fxquant
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ONE_ROUNDING = 2e-7
"""Sums are float64 in another order than the reference's; then they are rounded to float32 once."""
ATEN_SUMS = 1e-5
"""ATen sums float32 values in float32."""


def values(dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """A tensor [3, 5, 17, 9] with values without a step at both ends, and a gradient for it."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(3, 5, 17, 9, generator=generator) * 10
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38, 0.05, 0.15, -0.25])
    x.view(-1)[: len(special)] = special
    x.view(-1)[-len(special) :] = special
    return x.to(dtype).to(device), torch.randn(3, 5, 17, 9, generator=generator).to(dtype).to(device)


def qparams(channels: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    return (torch.rand(channels, generator=generator) + 0.03).to(device), torch.randint(
        -8, 8, (channels,), generator=generator
    ).float().to(device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_native_is_the_reference(
    device: str,
    dtype: torch.dtype,
    view: Callable[[Tensor], Tensor],
    axis: int | None,
    assert_same: Callable[..., None],
) -> None:
    x, grad = map(view, values(dtype, device))
    scale, zero_point = qparams(1 if axis is None else x.shape[axis], device)
    arguments = (grad, x, scale, zero_point, axis, -8, 7, 0.5)
    dx, dscale, dzero_point = OPS.fake_quantize_learnable_backward(*arguments)
    expected = backward_reference(*arguments)
    assert_same(dx, expected[0])
    torch.testing.assert_close(dscale, expected[1], rtol=ONE_ROUNDING, atol=ONE_ROUNDING)
    torch.testing.assert_close(dzero_point, expected[2], rtol=ONE_ROUNDING, atol=ONE_ROUNDING)


def test_tasks_meet_inside_odd_rows(device: str) -> None:
    """bfloat16 is taken in pairs, of which the first may be of any channel."""
    generator = torch.Generator().manual_seed(0)
    x, grad = ((torch.randn(71, 1027, generator=generator) * 3).bfloat16().to(device) for _ in range(2))
    arguments = (grad, x, *qparams(1027, device), 1, -8, 7, 0.5)
    for found, expected in zip(
        OPS.fake_quantize_learnable_backward(*arguments), backward_reference(*arguments), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=ONE_ROUNDING, atol=ONE_ROUNDING * len(x))


def test_sums_do_not_depend_on_threads_or_instruction_sets(device: str) -> None:
    x = torch.randn(40, 64, 7, 9, generator=torch.Generator().manual_seed(0)).to(device)
    scale, zero_point = qparams(64, device)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 1):
            torch.set_num_threads(count)
            found.append(OPS.fake_quantize_learnable_backward(x, x, scale, zero_point, 1, -8, 7, 1.0))
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_values_are_those_without_learning(device: str, assert_same: Callable[..., None]) -> None:
    x, _ = values(torch.float32, device)
    scale, zero_point = torch.tensor([0.1], device=device), torch.tensor([2.5], device=device)
    y = fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -8, 7)
    assert_same(y, fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7))  # 2.5 is nearest to the even 2
    scale, zero_point = qparams(5, device)
    y = fake_quantize_learnable_per_channel_affine(x, scale, zero_point + 0.3, 1, -8, 7)
    assert_same(y, fake_quantize_per_channel_affine(x, scale, zero_point.int(), 1, -8, 7))


def test_gradients_by_hand() -> None:
    """Scale 0.5, zero point 1, limits -2 to 3: -9 and 9 are clipped, 0.6 is one step, 0.1 too much."""
    x = torch.tensor([-9.0, 0.6, 9.0], requires_grad=True)
    scale, zero_point = torch.tensor([0.5], requires_grad=True), torch.tensor([1.2], requires_grad=True)
    fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -2, 3, 2.0).backward(
        torch.tensor([1.0, 10.0, 100.0])
    )
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 10.0, 0.0]
    assert scale.grad is not None
    assert scale.grad.item() == pytest.approx(2 * (1 * (-2 - 1) + 10 * (0.5 - 0.6) / 0.5 + 100 * (3 - 1)), rel=1e-6)
    assert zero_point.grad is not None
    assert zero_point.grad.item() == pytest.approx(2 * (1 + 100) * -0.5)


def test_aten_gives_the_same_per_tensor() -> None:
    """Where its backward is sound: it truncates zero point + 0.5, so only for zero points from 0 on, and off ties."""
    x = torch.randn(4, 3, 20, 20, generator=torch.Generator().manual_seed(0)) * 3
    grad, scale, zero_point = torch.randn_like(x), torch.tensor([0.37]), torch.tensor([3.0])
    ours = fake_quantize_learnable_per_tensor_affine_backward(grad, x, scale, zero_point, -8, 7, 0.1)
    theirs = torch.ops.aten._fake_quantize_learnable_per_tensor_affine_backward(grad, x, scale, zero_point, -8, 7, 0.1)
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=ATEN_SUMS, atol=ATEN_SUMS * grad.numel() ** 0.5)


def test_aten_gives_the_same_per_channel() -> None:
    x = torch.randn(4, 3, 20, 20, generator=torch.Generator().manual_seed(0)) * 3
    grad, scale, zero_point = torch.randn_like(x), torch.tensor([0.37, 0.1, 0.21]), torch.tensor([3.0, 0.0, 7.0])
    arguments = (grad, x, scale, zero_point, 1, -8, 7, 0.1)
    ours = fake_quantize_learnable_per_channel_affine_backward(*arguments)
    theirs = torch.ops.aten._fake_quantize_learnable_per_channel_affine_backward(*arguments)
    assert torch.equal(ours[0], theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        torch.testing.assert_close(a, b, rtol=ATEN_SUMS, atol=ATEN_SUMS * grad.numel() ** 0.5)


def test_a_zero_point_is_rounded_to_even_and_clamped() -> None:
    assert rounded_zero_point(torch.tensor([0.5, 1.5, -0.5, 99.0, -99.0]), -8, 7).tolist() == [0.0, 2.0, 0.0, 7.0, -8.0]


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@pytest.mark.parametrize("name", ["tensor", "channel"])
def test_the_operators_pass_the_checks_of_the_framework(name: str) -> None:
    x = torch.randn(3, 4, requires_grad=True)
    axis = (1,) if name == "channel" else ()
    scale = torch.full((4 if axis else 1,), 0.1, requires_grad=True)
    zero_point = torch.zeros_like(scale).requires_grad_()
    operator = getattr(OPS, f"fake_quantize_learnable_per_{name}_affine").default
    torch.library.opcheck(operator, (x, scale, zero_point, *axis, -8, 7, 0.5))


def test_the_backward_operator_passes_the_checks_of_the_framework() -> None:
    x, scale = torch.randn(3, 4), torch.full((4,), 0.1)
    torch.library.opcheck(OPS.fake_quantize_learnable_backward.default, (x, x, scale, torch.zeros(4), 1, -8, 7, 1.0))


@pytest.mark.parametrize("backward", [OPS.fake_quantize_learnable_backward, backward_reference])
def test_bad_arguments(backward: Callable[..., object], assert_message: Callable[..., None]) -> None:
    x, scale, zero_point = torch.ones(2, 3), torch.ones(1), torch.zeros(1)
    op = "fxquant::fake_quantize_learnable_backward"
    with pytest.raises(RuntimeError) as caught:
        backward(x, x, scale, zero_point, None, 1, 7, 1.0)
    assert_message(caught.value, f"{op}: the limits do not hold 0", "1 and 7", "quant_min <= 0 <= quant_max")
    with pytest.raises(RuntimeError) as caught:
        backward(x[:1], x, scale, zero_point, None, -8, 7, 1.0)
    assert_message(caught.value, f"{op}: grad has the wrong shape", "[1, 3]", "[2, 3], as input")
    with pytest.raises(RuntimeError) as caught:
        backward(x.double(), x, scale, zero_point, None, -8, 7, 1.0)
    assert_message(caught.value, f"{op}: grad has the wrong dtype", "torch.float64", "torch.float32, as input")
    with pytest.raises(RuntimeError) as caught:
        backward(x, x, scale, zero_point, 0, -8, 7, 1.0)
    assert_message(caught.value, f"{op}: scale has the wrong shape", "[1]", "[2]")


def test_a_second_derivative_is_refused() -> None:
    x, scale = torch.randn(3, requires_grad=True), torch.tensor([0.1], requires_grad=True)
    y = fake_quantize_learnable_per_tensor_affine(x, scale, torch.zeros(1), -8, 7)
    (first,) = torch.autograd.grad(y.square().sum(), scale, create_graph=True)
    with pytest.raises(RuntimeError, match=r"^fxquant::fake_quantize_learnable_backward has no derivative"):
        first.sum().backward()


def test_in_a_compiled_function() -> None:
    def loss(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        return fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -8, 7).square().sum()

    found = []
    for function in (loss, torch.compile(loss, backend="aot_eager", fullgraph=True)):
        tensors = [torch.linspace(-2, 2, 50), torch.tensor([0.1]), torch.tensor([1.0])]
        for tensor in tensors:
            tensor.requires_grad_()
        function(*tensors).backward()
        found.append([tensor.grad for tensor in tensors])
    for eager, compiled in zip(*found, strict=True):
        assert eager is not None
        assert compiled is not None
        assert torch.equal(eager, compiled)


@pytest.mark.parametrize("axis", [None, 1])
def test_gradients_are_those_of_the_formulas_in_float64(axis: int | None) -> None:
    """Written down again, without the reference: arXiv:1902.08153, eq. 3, and LSQ+ for the zero point."""
    x = torch.randn(6, 5, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3
    grad = torch.randn_like(x)
    scale, zero_point = qparams(1 if axis is None else 5, "cpu")
    shape = (-1, 1) if axis == 1 else (1,)
    s, z = scale.double().reshape(shape), zero_point.double().reshape(shape)
    q = torch.round(x / s) + z
    clipped = q.clamp(-8, 7)
    passes = q == clipped
    of_scale = torch.where(passes, (clipped - z) - x / s, clipped - z) * grad
    of_zero_point = torch.where(passes, 0.0, -s) * grad
    dims = [0, 1, 2] if axis is None else [0, 2]
    dx, dscale, dzero_point = OPS.fake_quantize_learnable_backward(grad, x, scale, zero_point, axis, -8, 7, 0.25)
    assert torch.equal(dx, grad * passes)
    for found, expected in ((dscale, of_scale), (dzero_point, of_zero_point)):
        wanted = (0.25 * expected.sum(dims)).float().reshape(found.shape)
        torch.testing.assert_close(found, wanted, rtol=ONE_ROUNDING, atol=ONE_ROUNDING)
