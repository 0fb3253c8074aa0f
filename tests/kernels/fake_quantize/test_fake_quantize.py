"""``fxquant::fake_quantize_*``: native = reference, ATen's results where they are sound, and the gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fxquant.kernels import fake_quantize_per_channel_affine, fake_quantize_per_tensor_affine
from fxquant.kernels.fake_quantize.fake_quantize import (
    backward_reference,
    channel_mask_reference,
    channel_reference,
    tensor_mask_reference,
    tensor_qparams_mask_reference,
    tensor_qparams_reference,
    tensor_reference,
)

OPS = torch.ops.fxquant
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
SPECIAL = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38, -3e38, 1e-45, 0.05, 0.15, -0.25])
"""With scale 0.1: values without a step, far outside the grid, next to nothing, and close to ties."""


def image(dtype: torch.dtype, device: str) -> Tensor:
    """[3, 5, 17, 9], more than one row of any loop, with special values at both ends."""
    x = torch.randn(3, 5, 17, 9, generator=torch.Generator().manual_seed(1)) * 10
    x.view(-1)[: len(SPECIAL)] = SPECIAL
    x.view(-1)[-len(SPECIAL) :] = SPECIAL
    return x.to(dtype).to(device)


def qparams(channels: int, device: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    scale = torch.rand(channels, generator=generator) + 0.03
    zero_point = torch.randint(-7, 8, (channels,), generator=generator, dtype=torch.int32)
    return scale.to(device), zero_point.to(device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_native_is_the_reference_per_tensor(
    device: str, dtype: torch.dtype, view: Callable[[Tensor], Tensor], assert_same: Callable[..., None]
) -> None:
    x = view(image(dtype, device))
    y, mask = tensor_mask_reference(x, 0.1, 3, -128, 127)
    assert_same(fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127), y)
    tensors = torch.tensor([0.1], device=device), torch.tensor([3], device=device)
    assert_same(fake_quantize_per_tensor_affine(x, *tensors, -128, 127), y)
    for result in (
        OPS.fake_quantize_per_tensor_affine_cachemask.default(x, 0.1, 3, -128, 127),
        OPS.fake_quantize_per_tensor_affine_cachemask.tensor_qparams(x, *tensors, -128, 127),
    ):
        assert_same(result[0], y)
        assert_same(result[1], mask)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_native_is_the_reference_per_channel(
    device: str, dtype: torch.dtype, view: Callable[[Tensor], Tensor], axis: int, assert_same: Callable[..., None]
) -> None:
    x = view(image(dtype, device))
    arguments = (*qparams(x.shape[axis], device), axis, -128, 127)
    y, mask = channel_mask_reference(x, *arguments)
    assert_same(fake_quantize_per_channel_affine(x, *arguments), y)
    result = OPS.fake_quantize_per_channel_affine_cachemask.default(x, *arguments)
    assert_same(result[0], y)
    assert_same(result[1], mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("channels", [1, 2, 3, 63, 255, 256, 257, 1000])
def test_any_number_of_channels_side_by_side(
    device: str, channels: int, dtype: torch.dtype, assert_same: Callable[..., None]
) -> None:
    """Rows of few channels are strung together, to a row that need not divide the tensor."""
    x = (torch.randn(35, channels, device=device) * 10).to(dtype)
    arguments = (*qparams(channels, device), 1, -128, 127)
    assert_same(fake_quantize_per_channel_affine(x, *arguments), channel_reference(x, *arguments))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tasks_of_several_threads_meet_inside_rows(
    device: str, dtype: torch.dtype, assert_same: Callable[..., None]
) -> None:
    x = (torch.randn(7, 33, 37, 41, device=device) * 10).to(dtype)
    for each in (x, x.contiguous(memory_format=torch.channels_last), x.view(-1)[: 71 * 1027].view(71, 1027)):
        arguments = (*qparams(each.shape[1], device), 1, -128, 127)
        assert_same(fake_quantize_per_channel_affine(each, *arguments), channel_reference(each, *arguments))


def test_every_float16_there_is(device: str) -> None:
    """And results of every kind: subnormal ones, ties, overflow. F16C differs in what a NaN holds."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int16, device=device).view(torch.float16)
    for scale in (2.0**-24, 0.4e-7, 3.3e-6, 0.1, 31.7, float("nan")):
        y, mask = tensor_mask_reference(x, scale, 3, -32768, 32767)
        result = OPS.fake_quantize_per_tensor_affine_cachemask.default(x, scale, 3, -32768, 32767)
        assert torch.equal(result[0].view(torch.int16)[~y.isnan()], y.view(torch.int16)[~y.isnan()])
        assert torch.equal(result[0].isnan(), y.isnan())
        assert torch.equal(result[1], mask)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_scale_that_is_no_number_gives_none(device: str, dtype: torch.dtype) -> None:
    """Whatever its bits: here all are set."""
    x, scale = image(dtype, device), torch.tensor([-1], dtype=torch.int32, device=device).view(torch.float32)
    assert fake_quantize_per_tensor_affine(x, scale, torch.tensor([0], device=device), -128, 127).isnan().all()


def test_results_in_huge_pages() -> None:
    """Above 32 MB their memory is treated in another way."""
    x = torch.randn(9, 1024, 1000) * 10
    y = fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127)
    for part in range(9):  # a whole reference would need ten times the memory
        assert torch.equal(y[part], tensor_reference(x[part], 0.1, 3, -128, 127))


@pytest.mark.parametrize("limits", [(0, 0), (-(2**31), 2**31 - 1), (0, 2**24 + 1), (-1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_any_limits(device: str, dtype: torch.dtype, limits: tuple[int, int], assert_same: Callable[..., None]) -> None:
    """Where float32 cannot represent a limit, the nearest one inside is used."""
    x = image(dtype, device) * 1e6
    assert_same(fake_quantize_per_tensor_affine(x, 0.1, 0, *limits), tensor_reference(x, 0.1, 0, *limits))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_aten_gives_the_same_per_tensor(device: str, dtype: torch.dtype) -> None:
    x = image(dtype, device)
    x = x[x.isfinite() & (x.abs() < 1e8)]  # ATen's integers overflow beyond
    for scale, zero_point in ((0.1, 3), (0.0371, -100)):
        expected = torch.fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127)
        assert torch.equal(fake_quantize_per_tensor_affine(x, scale, zero_point, -128, 127), expected)


def test_aten_gives_the_same_per_channel(device: str) -> None:
    x = torch.randn(64, 16, 3, 3, device=device)
    scale, zero_point = qparams(64, device)
    expected = torch.fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7)
    assert torch.equal(fake_quantize_per_channel_affine(x, scale, zero_point, 0, -8, 7), expected)


def test_aten_wraps_per_channel_where_this_saturates(device: str) -> None:
    x = torch.tensor([1e30, -1e30, torch.inf, -torch.inf], device=device)
    one = torch.ones(4, device=device), torch.zeros(4, dtype=torch.int32, device=device)
    assert fake_quantize_per_channel_affine(x, *one, 0, -128, 127).tolist() == [127.0, -128.0, 127.0, -128.0]


def test_float64_is_computed_in_float64(device: str) -> None:
    """ATen multiplies with float32 scales there, so that its results are float32 numbers."""
    x = torch.tensor([0.7], dtype=torch.float64, device=device)
    scale = torch.tensor(0.1).double()
    assert fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).item() == (scale * 7).item()


def test_infinities_saturate_and_nan_is_the_lowest_step(device: str) -> None:
    x = torch.tensor([1.0, torch.inf, torch.nan, -torch.inf, 26.0], device=device).repeat(13).requires_grad_()
    one_channel = torch.tensor([0.1], device=device), torch.zeros(1, dtype=torch.int32, device=device)
    for y in (
        fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127),
        fake_quantize_per_channel_affine(x[None], *one_channel, 0, -128, 127)[0],
    ):
        expected = torch.tensor([10, 127, -128, -128, 127], device=device).repeat(13) * torch.tensor(0.1)
        assert torch.equal(y, expected)
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert torch.equal(grad, torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0], device=device).repeat(13))


def test_ties_go_to_even_before_the_zero_point_is_added(device: str) -> None:
    x = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, -1.25], device=device)
    expected = torch.tensor([0.0, 1.0, 1.0, 0.0, -1.0, -1.0], device=device)
    assert torch.equal(fake_quantize_per_tensor_affine(x, 0.5, 3, 0, 255), expected)


def test_gradient_passes_where_the_rounded_value_is_on_the_grid(device: str) -> None:
    x = torch.tensor([-32.25, -32.125, -32.0, 31.75, 31.875, 32.0], device=device, requires_grad=True)
    scale = torch.full((6,), 0.25, device=device), torch.zeros(6, dtype=torch.int32, device=device)
    for y in (
        fake_quantize_per_tensor_affine(x, 0.25, 0, -128, 127),
        fake_quantize_per_tensor_affine(x, scale[0][:1], scale[1][:1], -128, 127),
        fake_quantize_per_channel_affine(x, *scale, 0, -128, 127),
        OPS.fake_quantize_per_tensor_affine_cachemask.default(x, 0.25, 0, -128, 127)[0],
        OPS.fake_quantize_per_channel_affine_cachemask.default(x, *scale, 0, -128, 127)[0],
    ):
        (grad,) = torch.autograd.grad(y.sum(), x)
        assert grad.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradient_is_that_of_aten(device: str, dtype: torch.dtype, view: Callable[[Tensor], Tensor]) -> None:
    base = image(dtype, device).nan_to_num(0.0, 0.0, 0.0).clamp(-1e4, 1e4)
    weights = torch.randn(base.shape, generator=torch.Generator().manual_seed(2)).to(base)
    grads = []
    for function in (fake_quantize_per_tensor_affine, torch.fake_quantize_per_tensor_affine):
        x = base.clone().requires_grad_()
        y = function(view(x), 0.1, 3, -128, 127)
        (y * view(weights)).sum().backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


def test_gradient_in_another_memory_order_than_the_input(device: str) -> None:
    x = image(torch.float32, device).requires_grad_()
    y = fake_quantize_per_tensor_affine(x, 0.1, 3, -128, 127)
    weights = torch.randn_like(y).contiguous(memory_format=torch.channels_last)
    (grad,) = torch.autograd.grad(y, x, weights)
    mask = tensor_mask_reference(x.detach(), 0.1, 3, -128, 127)[1]
    assert torch.equal(grad, torch.where(mask, weights, 0.0))
    assert grad.stride() == x.stride()


def test_gradient_accumulates_through_an_expanded_view(device: str) -> None:
    leaf = torch.tensor([[0.1, 0.2, 0.3, 0.4]], device=device, requires_grad=True)
    fake_quantize_per_tensor_affine(leaf.expand(3, 4), 0.1, 0, -128, 127).sum().backward()
    assert torch.equal(leaf.grad, torch.full((1, 4), 3.0, device=device))


def test_a_clipped_element_gets_no_gradient_whatever_comes_in(device: str) -> None:
    x = torch.tensor([0.0, 1e3], device=device, requires_grad=True)
    y = fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    (grad,) = torch.autograd.grad(y, x, torch.tensor([torch.inf, torch.nan], device=device))
    assert grad.tolist() == [torch.inf, 0.0]


def test_second_derivative_of_a_loss(device: str) -> None:
    x = torch.tensor([0.5, 1e3], device=device, requires_grad=True)
    y = fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    (grad,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(grad.sum(), x)
    assert second.tolist() == [2.0, 0.0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_is_its_reference(
    device: str, dtype: torch.dtype, view: Callable[[Tensor], Tensor], assert_same: Callable[..., None]
) -> None:
    grad, mask = image(dtype, device), view(image(torch.float32, device) > 0)
    assert_same(OPS.fake_quantize_backward.default(view(grad), mask), backward_reference(view(grad), mask))
    other = view(grad).contiguous()
    assert_same(OPS.fake_quantize_backward.default(other, mask), backward_reference(other, mask))


def test_input_may_be_changed_in_place_afterwards(device: str) -> None:
    """Only the mask is kept for backward."""
    x = torch.tensor([0.5, 1e3], device=device, requires_grad=True)
    inner = x * 1
    y = fake_quantize_per_tensor_affine(inner, 0.1, 0, -128, 127)
    inner.add_(1e4)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert grad.tolist() == [1.0, 0.0]


def test_no_graph_without_gradients(device: str) -> None:
    x = torch.randn(3, device=device)
    assert fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).grad_fn is None
    with torch.no_grad():
        y = fake_quantize_per_tensor_affine(x.requires_grad_(), 0.1, 0, -128, 127)
    assert not y.requires_grad
    with torch.inference_mode():
        assert fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).is_inference()


def test_empty_gives_a_new_empty_tensor(device: str) -> None:
    x = torch.empty(0, 4, device=device)
    y = fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127)
    assert y.shape == x.shape
    assert y is not x
    scale, zero_point = qparams(4, device)
    assert fake_quantize_per_channel_affine(x, scale, zero_point, 1, -128, 127).shape == x.shape


@pytest.mark.parametrize("scale_dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "zero_dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.float32, torch.float16]
)
def test_any_dtype_of_qparams(device: str, scale_dtype: torch.dtype, zero_dtype: torch.dtype) -> None:
    x = torch.linspace(-2, 2, 12, device=device).reshape(4, 3)
    scale = torch.tensor([0.1, 0.2, 0.3], dtype=scale_dtype, device=device)
    zero_point = torch.tensor([1, 0, -1], device=device)
    y = fake_quantize_per_channel_affine(x, scale, zero_point.to(zero_dtype), 1, -128, 127)
    s = scale.float()
    assert torch.equal(y, (torch.clamp(torch.round(x * (1 / s)) + zero_point, -128, 127) - zero_point) * s)


def test_axis_counts_from_the_end(device: str) -> None:
    x = torch.randn(4, 3, device=device)
    scale, zero_point = qparams(3, device)
    assert torch.equal(
        fake_quantize_per_channel_affine(x, scale, zero_point, -1, -128, 127),
        fake_quantize_per_channel_affine(x, scale, zero_point, 1, -128, 127),
    )


ONES, ZEROS = torch.ones(3), torch.zeros(3, dtype=torch.int32)
CHANNEL_ERRORS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"axis": 2}, "axis is out of range", "2", "a dimension of the tensor, which has 2"),
    ({"axis": -3}, "axis is out of range", "-3", "a dimension of the tensor, which has 2"),
    ({"axis": 10**12}, "axis is out of range", "1000000000000", "a dimension of the tensor, which has 2"),
    ({"input": torch.tensor(1.0)}, "axis is out of range", "1", "a dimension of the tensor, which has 0"),
    (
        {"input": torch.zeros(4, 3, dtype=torch.int32)},
        "input has the wrong dtype",
        "torch.int32",
        "float32, float64, float16 or bfloat16",
    ),
    ({"scale": ONES[:2]}, "scale has the wrong shape", "[2]", "[3]"),
    ({"scale": ONES[None]}, "scale has the wrong shape", "[1, 3]", "[3]"),
    ({"zero_point": ZEROS[:2]}, "zero_point has the wrong shape", "[2]", "[3]"),
    ({"quant_min": 5, "quant_max": -5}, "quant_min is above quant_max", "5 and -5", "quant_min <= quant_max"),
    (
        {"quant_max": 2**31},
        "quant_min and quant_max do not fit the integers they limit",
        "-128 and 2147483648",
        "-2147483648 to 2147483647",
    ),
    (
        {"zero_point": torch.tensor([0, 300, 0])},
        "a zero point lies outside [quant_min, quant_max]",
        "300",
        "-128 to 127",
    ),
    (
        {"zero_point": torch.tensor([0, 0.5, 0])},
        "a zero point is no int32",
        "0.5",
        "integers of 32 bits, in any integer or floating dtype",
    ),
    (
        {"zero_point": torch.tensor([0, torch.nan, 0])},
        "a zero point is no int32",
        "nan",
        "integers of 32 bits, in any integer or floating dtype",
    ),
]


@pytest.mark.parametrize(("changed", "what", "got", "expected"), CHANNEL_ERRORS)
def test_errors_per_channel(
    changed: dict[str, Any], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    arguments: dict[str, Any] = {
        **{
            "input": torch.zeros(4, 3),
            "scale": ONES,
            "zero_point": ZEROS,
            "axis": 1,
            "quant_min": -128,
            "quant_max": 127,
        },
        **changed,
    }
    # the operator itself: the public function takes floating zero points another way
    for function in (OPS.fake_quantize_per_channel_affine.default, channel_reference):
        with pytest.raises(RuntimeError) as error:
            function(**arguments)
        assert_message(error.value, f"fxquant::fake_quantize_per_channel_affine: {what}", got, expected)


TENSOR_ERRORS: list[tuple[tuple[Any, ...], str, str, str]] = [
    (
        (torch.zeros(2, dtype=torch.bool), 0.1, 0, 0, 255),
        "input has the wrong dtype",
        "torch.bool",
        "float32, float64, float16 or bfloat16",
    ),
    ((torch.zeros(2), 0.1, 300, 0, 255), "a zero point lies outside [quant_min, quant_max]", "300", "0 to 255"),
    ((torch.zeros(2), 0.1, 0, 5, -5), "quant_min is above quant_max", "5 and -5", "quant_min <= quant_max"),
    ((torch.zeros(2), ONES, ZEROS[:1], 0, 255), "scale has the wrong shape", "[3]", "[1]"),
    ((torch.zeros(2), ONES[:1], ZEROS, 0, 255), "zero_point has the wrong shape", "[3]", "[1]"),
    (
        (torch.zeros(2), ONES[:1], ZEROS[:1] - 1, 0, 255),
        "a zero point lies outside [quant_min, quant_max]",
        "-1",
        "0 to 255",
    ),
]


@pytest.mark.parametrize(("arguments", "what", "got", "expected"), TENSOR_ERRORS)
def test_errors_per_tensor(
    arguments: tuple[Any, ...], what: str, got: str, expected: str, assert_message: Callable[..., None]
) -> None:
    scalar = not isinstance(arguments[1], Tensor)
    for function in (fake_quantize_per_tensor_affine, tensor_reference if scalar else tensor_qparams_reference):
        with pytest.raises(RuntimeError) as error:
            function(*arguments)
        assert_message(error.value, f"fxquant::fake_quantize_per_tensor_affine: {what}", got, expected)


def test_errors_of_backward(assert_message: Callable[..., None]) -> None:
    what = "fxquant::fake_quantize_backward: mask has the wrong "
    for function in (OPS.fake_quantize_backward.default, backward_reference):
        with pytest.raises(RuntimeError) as error:
            function(torch.zeros(2), torch.zeros(3, dtype=torch.bool))
        assert_message(error.value, what + "shape", "[3]", "[2], as grad")
        with pytest.raises(RuntimeError) as error:
            function(torch.zeros(2), torch.zeros(2))
        assert_message(error.value, what + "dtype", "torch.float32", "bool")


def test_meta_tensors_give_shapes_and_errors() -> None:
    x = torch.empty(2, 3, 4, 5, device="meta").contiguous(memory_format=torch.channels_last)
    scale, zero_point = torch.empty(3, device="meta"), torch.empty(3, dtype=torch.int32, device="meta")
    y = fake_quantize_per_channel_affine(x, scale, zero_point, 1, -128, 127)
    assert y.stride() == x.stride()
    assert fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).stride() == x.stride()
    with pytest.raises(RuntimeError, match="scale has the wrong shape"):
        fake_quantize_per_channel_affine(x, scale, zero_point, 0, -128, 127)


def test_compiles_whole_and_gives_the_same() -> None:
    scale, zero_point = qparams(5, "cpu")

    def function(x: Tensor) -> Tensor:
        y = fake_quantize_per_tensor_affine(x * 2, 0.1, 3, -128, 127)
        return fake_quantize_per_channel_affine(y, scale, zero_point, 1, -128, 127).relu()

    results = []
    for each in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        x = image(torch.float32, "cpu").nan_to_num(0.0, 0.0, 0.0).requires_grad_()
        y = each(x)
        y.sum().backward()
        results.append((y, x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_exports_as_one_operator() -> None:
    class Weighted(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            return x @ fake_quantize_per_tensor_affine(self.weight, 0.1, 0, -128, 127)

    program = torch.export.export(Weighted(), (torch.ones(2, 4),)).run_decompositions()
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert targets[0] is OPS.fake_quantize_per_tensor_affine.default


def test_autocast_keeps_the_dtype_that_comes_in() -> None:
    linear = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        y = fake_quantize_per_tensor_affine(linear(torch.ones(2, 4)), 0.1, 0, -128, 127)
    y.sum().backward()
    assert y.dtype == torch.bfloat16
    assert linear.weight.grad is not None


SCALE, ZERO_POINT = qparams(5, "cpu")
IMAGE = torch.randn(3, 5, 4, 2, requires_grad=True)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
@pytest.mark.parametrize(
    ("operator", "arguments"),
    [
        (OPS.fake_quantize_per_tensor_affine.default, (IMAGE, 0.1, 3, -128, 127)),
        (OPS.fake_quantize_per_tensor_affine.tensor_qparams, (IMAGE, SCALE[:1], ZERO_POINT[:1], -128, 127)),
        (OPS.fake_quantize_per_channel_affine.default, (IMAGE, SCALE, ZERO_POINT, 1, -128, 127)),
        (OPS.fake_quantize_per_tensor_affine_cachemask.default, (IMAGE, 0.1, 3, -128, 127)),
        (OPS.fake_quantize_per_tensor_affine_cachemask.tensor_qparams, (IMAGE, SCALE[:1], ZERO_POINT[:1], -128, 127)),
        (OPS.fake_quantize_per_channel_affine_cachemask.default, (IMAGE, SCALE, ZERO_POINT, -3, -128, 127)),
        (OPS.fake_quantize_backward.default, (IMAGE, IMAGE.detach() > 0)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_opcheck(operator: torch._ops.OpOverload, arguments: tuple[Any, ...]) -> None:
    torch.library.opcheck(operator, arguments)


def test_the_references_agree_with_each_other() -> None:
    x = image(torch.float32, "cpu")
    first = tensor_mask_reference(x, 0.1, 3, -128, 127)
    second = tensor_qparams_mask_reference(x, torch.tensor(0.1), torch.tensor(3), -128, 127)
    third = channel_mask_reference(x[None], torch.tensor([0.1]), torch.tensor([3.0]), 0, -128, 127)
    for a, b, c in zip(first, second, third, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c[0])


FLOATS = st.floats(width=32, allow_nan=False, min_value=-1e6, max_value=1e6)


@settings(max_examples=100, deadline=None)
@given(
    x=st.lists(FLOATS, min_size=1, max_size=70),
    scale=st.floats(width=32, min_value=2.0**-20, max_value=2.0**20),
    zero_point=st.integers(0, 255),
)
def test_properties(x: list[float], scale: float, zero_point: int) -> None:
    """A second time changes nothing; order is kept; what is not clipped moves by at most half a step."""
    values = torch.tensor(x).sort().values
    y = fake_quantize_per_tensor_affine(values, scale, zero_point, 0, 255)
    assert torch.equal(y, tensor_reference(values, scale, zero_point, 0, 255))
    assert torch.equal(fake_quantize_per_tensor_affine(y, scale, zero_point, 0, 255), y)
    assert torch.equal(y.sort().values, y)
    inside = (y > y.new_tensor(-zero_point * scale)) & (y < y.new_tensor((255 - zero_point) * scale))
    # Rounding x * (1 / scale), 1 / scale and the product: three half units in the last place of 256 steps at most
    slack = 256 * scale * 3 * 2.0**-24
    assert ((y - values).abs()[inside] <= scale / 2 + slack).all()


@settings(max_examples=50, deadline=None)
@given(
    x=st.lists(FLOATS, min_size=1, max_size=40),
    scales=st.lists(st.floats(width=32, min_value=2.0**-20, max_value=2.0**20), min_size=2, max_size=3),
    zero_point=st.integers(-8, 7),
)
def test_properties_per_channel(x: list[float], scales: list[float], zero_point: int) -> None:
    """In every channel: 0 stays 0, values lie on the grid's range, a second time changes nothing, order is kept."""
    values = torch.tensor([*x, 0.0]).sort().values
    scale, zero_points = torch.tensor(scales), torch.full((len(scales),), zero_point)
    y = fake_quantize_per_channel_affine(values.expand(len(scales), -1), scale, zero_points, 0, -8, 7)
    assert (y[:, values == 0] == 0).all()
    assert (y >= (scale * (-8 - zero_point))[:, None]).all()
    assert (y <= (scale * (7 - zero_point))[:, None]).all()
    assert torch.equal(fake_quantize_per_channel_affine(y, scale, zero_points, 0, -8, 7), y)
    assert torch.equal(y.sort(dim=1).values, y)
