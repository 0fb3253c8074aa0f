"""``fxquant::fake_quantize_folded``: native = reference, integers of the folded weight, exact gradients."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fxquant.kernels import fake_quantize_per_channel_affine, quantize
from fxquant.kernels.fake_quantize.fake_quantize_folded import backward_reference, fake_quantize_folded, reference

OPS = torch.ops.fxquant
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
ONE_ROUNDING = 2e-7
"""Sums are float64 in another order than the reference's; then they are rounded to float32 once."""


def values(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> tuple[Tensor, Tensor]:
    """A weight with values without a step at both ends, and a gradient for it."""
    generator = torch.Generator().manual_seed(1)
    x, grad = torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)
    special = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0, 3e38, 0.05, 0.15, -0.25])
    count = min(len(special), x.numel())
    x.view(-1)[:count] = special[:count]
    return x.to(dtype).to(device), grad.to(dtype).to(device)


def qparams(channels: int, per_channel: bool, device: str) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(channels)
    factor = torch.randn(channels, generator=generator) * 2
    scale = torch.rand(channels if per_channel else 1, generator=generator) + 0.03
    zero_point = torch.randint(-8, 8, scale.shape, generator=generator).int()
    return factor.to(device), scale.to(device), zero_point.to(device)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(7, 3, 3, 3), (5, 1031), (9,), (1, 40), (64, 600)])
@pytest.mark.parametrize("per_channel", [True, False])
def test_native_is_the_reference(
    device: str, dtype: torch.dtype, shape: tuple[int, ...], per_channel: bool, assert_same: Callable[..., None]
) -> None:
    x, grad = values(shape, dtype, device)
    arguments = (*qparams(shape[0], per_channel, device), -8, 7)
    assert_same(fake_quantize_folded(x, *arguments), reference(x, *arguments))
    of_input, of_factor = OPS.fake_quantize_folded_backward(grad, x, *arguments)
    expected = backward_reference(grad, x, *arguments)
    assert_same(of_input, expected[0])
    torch.testing.assert_close(of_factor, expected[1], rtol=ONE_ROUNDING, atol=ONE_ROUNDING, equal_nan=True)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda x: x.transpose(1, 2),
    "every other": lambda x: x[::2],
    "channels_last": lambda x: x.unsqueeze(3).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_any_layout(device: str, view: Callable[[Tensor], Tensor], assert_same: Callable[..., None]) -> None:
    x = view(torch.randn(8, 5, 6, device=device))
    arguments = (*qparams(len(x), True, device), -8, 7)
    assert_same(fake_quantize_folded(x, *arguments), reference(x.contiguous(), *arguments))
    gradients = OPS.fake_quantize_folded_backward(x, x, *arguments)
    assert_same(gradients[0], backward_reference(x.contiguous(), x.contiguous(), *arguments)[0])


def test_integers_are_those_of_the_folded_weight() -> None:
    x = torch.randn(16, 200)
    factor, scale = torch.randn(16), torch.rand(16) * 0.05 + 0.001
    zero_point = torch.zeros(16, dtype=torch.int32)
    y = fake_quantize_folded(x, factor, scale, zero_point, -128, 127)
    stored = quantize(x * factor[:, None], scale, zero_point, -128, 127, torch.int8, 0)
    assert torch.equal(y, stored.float() * scale[:, None] / factor[:, None])
    plain = fake_quantize_per_channel_affine(x * factor[:, None], scale, zero_point, 0, -128, 127)
    assert torch.equal(y, plain / factor[:, None])


def test_gradients_are_those_of_the_three_operators() -> None:
    x, factor = torch.randn(6, 50, dtype=torch.float64), torch.randn(6, dtype=torch.float64) + 2
    scale, zero_point = torch.full((6,), 0.3), torch.zeros(6, dtype=torch.int32)
    grad = torch.randn_like(x)
    found = []
    for compute in (
        lambda a, f: fake_quantize_folded(a, f, scale, zero_point, -8, 7),
        lambda a, f: fake_quantize_per_channel_affine(a * f[:, None], scale, zero_point, 0, -8, 7) / f[:, None],
    ):
        leaves = x.clone().requires_grad_(), factor.clone().requires_grad_()
        compute(*leaves).backward(grad)
        found.append([leaf.grad for leaf in leaves])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_sums_do_not_depend_on_threads_or_instruction_sets(device: str) -> None:
    x = torch.randn(48, 700, generator=torch.Generator().manual_seed(0)).to(device)
    arguments = (*qparams(48, True, device), -8, 7)
    found = []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            found.append(OPS.fake_quantize_folded_backward(x, x, *arguments)[1])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], backward_reference(x, x, *arguments)[1], rtol=ONE_ROUNDING, atol=ONE_ROUNDING)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0,)])
def test_empty(device: str, shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, device=device)
    channels = shape[0]
    factor, scale = torch.ones(channels, device=device), torch.ones(1, device=device)
    arguments = (factor, scale, torch.zeros(1, dtype=torch.int32, device=device), -8, 7)
    assert fake_quantize_folded(x, *arguments).shape == shape
    of_input, of_factor = OPS.fake_quantize_folded_backward(x, x, *arguments)
    assert of_input.shape == shape
    assert torch.equal(of_factor, torch.zeros(channels, device=device))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": torch.tensor(1.0)}, "input has no channels"),
        ({"input": torch.ones(3, 2).int()}, "input"),
        ({"factor": torch.ones(2)}, "factor has the wrong shape"),
        ({"scale": torch.ones(2)}, "scale has the wrong shape"),
        ({"zero_point": torch.zeros(3).int()}, "zero_point has the wrong shape"),
        ({"zero_point": torch.tensor([9])}, "zero point"),
        ({"quant_min": 9}, "quant_min is above quant_max"),
    ],
)
def test_bad_arguments_are_named(device: str, reads_values: bool, change: dict[str, object], message: str) -> None:
    good = {
        "input": torch.ones(3, 2),
        "factor": torch.ones(3),
        "scale": torch.ones(1),
        "zero_point": torch.zeros(1).int(),
        "quant_min": -8,
        "quant_max": 7,
    }
    if not reads_values and message == "zero point":
        pytest.skip("values on a GPU are not read")
    arguments = [a.to(device) if isinstance(a, Tensor) else a for a in (good | change).values()]
    for function in (fake_quantize_folded, reference):
        with pytest.raises(RuntimeError, match=message):
            function(*arguments)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # opcheck's own
def test_the_operators_pass_the_checks_of_the_framework() -> None:
    x = torch.randn(3, 4, requires_grad=True)
    factor = torch.rand(3) + 0.5
    qparams = (torch.full((3,), 0.1), torch.zeros(3, dtype=torch.int32), -8, 7)
    torch.library.opcheck(OPS.fake_quantize_folded.default, (x, factor.requires_grad_(), *qparams))
    torch.library.opcheck(
        OPS.fake_quantize_folded_backward.default, (x.detach(), x.detach(), factor.detach(), *qparams)
    )
