"""Which argument may want a gradient, and what runs when none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

import fxquant as fxq
from fxquant.errors import KernelError
from fxquant.kernels import (
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams,
    fake_quantize_learnable_per_channel_affine,
    fake_quantize_learnable_per_channel_affine_backward,
    fake_quantize_learnable_per_tensor_affine,
    fake_quantize_per_channel_affine,
    fake_quantize_per_channel_affine_cachemask,
    fake_quantize_per_tensor_affine,
    fake_quantize_per_tensor_affine_cachemask,
    fake_quantize_per_tensor_affine_cachemask_backward,
    fused_moving_avg_obs_fake_quant,
    moving_average_qparams,
)


@pytest.mark.parametrize("wanting", [(), (0,), (1,), (2,), (0, 1, 2)])
def test_any_of_the_first_arguments_may_want_a_gradient(wanting: tuple[int, ...]) -> None:
    tensors = [torch.tensor([0.34, -5.0, 5.0]), torch.tensor([0.1]), torch.tensor([1.0])]
    for index in wanting:
        tensors[index].requires_grad_()
    y = fake_quantize_learnable_per_tensor_affine(*tensors, -8, 7)
    assert y.requires_grad == bool(wanting)
    if wanting:
        y.sum().backward()
    assert [tensor.grad is not None for tensor in tensors] == [index in wanting for index in range(3)]


class Watch(TorchFunctionMode):
    """Notes what is called."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[object] = []

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(function)
        return function(*args, **(kwargs or {}))


def test_who_watches_operators_sees_them() -> None:
    """Otherwise a call that wants a gradient does not go through the dispatcher."""
    x, scale, zero_point = torch.ones(3, requires_grad=True), torch.ones(1), torch.zeros(1)
    with Watch() as watch:
        fake_quantize_per_tensor_affine(x, 0.1, 2, -8, 7)
        fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, -8, 7)
    assert torch.ops.fxquant.fake_quantize_per_tensor_affine.default in watch.seen
    assert torch.ops.fxquant.fake_quantize_learnable_per_tensor_affine.default in watch.seen


def test_no_gradient_is_kept_where_none_is_wanted() -> None:
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not fake_quantize_learnable_per_tensor_affine(x, torch.ones(1), torch.zeros(1), -8, 7).requires_grad


pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch.func itself calls it
SCALE, ZERO_POINT = torch.tensor([0.1]), torch.tensor([2], dtype=torch.int32)
SCALES, ZERO_POINTS = torch.tensor([0.1, 0.2, 0.05]), torch.tensor([0, 1, -2], dtype=torch.int32)
ON = torch.tensor([1])
X = torch.randn(4, 3, 5, generator=torch.Generator().manual_seed(0))
LIMITS = (-8, 7)


def _fused(x: Tensor) -> Tensor:
    ranges = torch.tensor([-1.0]), torch.tensor([1.0])
    return fused_moving_avg_obs_fake_quant(x, ON, ON, *ranges, SCALE.clone(), ZERO_POINT.clone(), 0.1, 0, 255, 0)


STRAIGHT_THROUGH: dict[str, Callable[[Tensor], Tensor]] = {
    "per tensor": lambda x: fake_quantize_per_tensor_affine(x, 0.1, 2, *LIMITS),
    "per tensor, qparams as tensors": lambda x: fake_quantize_per_tensor_affine(x, SCALE, ZERO_POINT, *LIMITS),
    "per channel": lambda x: fake_quantize_per_channel_affine(x, SCALES, ZERO_POINTS, 0, *LIMITS),
    "floating zero points": lambda x: fake_quantize_per_channel_affine(x, SCALES, ZERO_POINTS + 0.5, 0, *LIMITS),
    "with mask": lambda x: fake_quantize_per_tensor_affine_cachemask(x, 0.1, 2, *LIMITS)[0],
    "with mask, per channel": lambda x: fake_quantize_per_channel_affine_cachemask(x, SCALES, ZERO_POINTS, 0, *LIMITS)[
        0
    ],
    "switched": lambda x: _fake_quantize_per_tensor_affine_cachemask_tensor_qparams(x, SCALE, ZERO_POINT, ON, *LIMITS)[
        0
    ],
    "backward": lambda x: fake_quantize_per_tensor_affine_cachemask_backward(x, X[0] > 0),
}
LEARNABLE: dict[str, Callable[[Tensor], Tensor]] = {
    "learnable": lambda x: fake_quantize_learnable_per_tensor_affine(x, SCALE, ZERO_POINT.float(), *LIMITS),
    "learnable, per channel": lambda x: fake_quantize_learnable_per_channel_affine(
        x, SCALES, ZERO_POINTS.float(), 0, *LIMITS
    ),
}
WITHOUT_GRADIENT: dict[str, Callable[[Tensor], Tensor]] = {
    "learnable backward": lambda x: fake_quantize_learnable_per_channel_affine_backward(
        x, x, SCALES, ZERO_POINTS.float(), 0, *LIMITS
    )[1],
    "statistics": lambda x: moving_average_qparams(
        x, torch.tensor(-1.0), torch.tensor(1.0), None, 0.1, 1e-7, 0, 255, None
    )[0],
}
DIFFERENTIABLE = STRAIGHT_THROUGH | LEARNABLE | {"fused": _fused}


def _loss(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: (function(x) * X[1]).square().sum()


def _gradient(function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(_loss(function)(leaf), leaf)
    return gradient


@pytest.mark.parametrize("name", STRAIGHT_THROUGH | LEARNABLE | WITHOUT_GRADIENT)
def test_vmap_is_a_loop(name: str) -> None:
    function = (STRAIGHT_THROUGH | LEARNABLE | WITHOUT_GRADIENT)[name]
    assert torch.equal(torch.vmap(function, in_dims=1)(X.transpose(0, 1)), torch.stack([function(x) for x in X]))


def test_vmap_of_an_operator_that_takes_lists() -> None:
    """A convolution takes its stride, padding and dilation as lists."""
    torch.manual_seed(0)
    images = torch.randn(3, 2, 4, 6, 6)
    model = torch.nn.Sequential(torch.nn.Conv2d(4, 3, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(3, 2, 1)).eval()
    int8 = fxq.quantize(model, [images[0]], progress=False)
    assert torch.equal(torch.vmap(int8)(images), torch.stack([int8(batch) for batch in images]))


def test_vmap_over_several_arguments() -> None:
    def function(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        return fake_quantize_per_tensor_affine_cachemask(x, scale, ZERO_POINT, *LIMITS)

    y, mask = torch.vmap(function)(X[:3], SCALES)
    for i in range(3):
        expected = function(X[i], SCALES[i])
        assert torch.equal(y[i], expected[0])
        assert torch.equal(mask[i], expected[1])


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_transforms_give_the_gradient(name: str) -> None:
    function = DIFFERENTIABLE[name]
    expected = _gradient(function, X[0])
    assert expected.any()
    assert torch.equal(torch.func.grad(_loss(function))(X[0]), expected)
    y, pull = torch.func.vjp(function, X[0])
    assert torch.equal(y, function(X[0]))
    assert torch.equal(pull(2 * (y * X[1]) * X[1])[0], expected)


@pytest.mark.parametrize("name", STRAIGHT_THROUGH | LEARNABLE)
def test_gradients_of_each_sample(name: str) -> None:
    function = (STRAIGHT_THROUGH | LEARNABLE)[name]
    expected = torch.stack([_gradient(function, x) for x in X])
    assert torch.equal(torch.vmap(torch.func.grad(_loss(function)))(X), expected)


@pytest.mark.parametrize("name", [*STRAIGHT_THROUGH, "fused"])
def test_second_derivatives(name: str) -> None:
    """Of y times w, squared: the gradient is 2 y w^2 inside the limits, and its own derivative 2 w^2."""
    function = DIFFERENTIABLE[name]
    leaf = X[0].clone().requires_grad_()
    (first,) = torch.autograd.grad(_loss(function)(leaf), leaf, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), leaf)
    passes = _gradient(function, X[0]) != 0
    inside = torch.func.vjp(function, X[0])[1](torch.ones_like(X[0]))[0]
    assert torch.equal(second, 2 * X[1].square() * inside)
    assert (second[passes] != 0).all()
    transformed = torch.func.grad(lambda x: torch.func.grad(_loss(function))(x).sum())(X[0])
    assert torch.equal(transformed, second)


@pytest.mark.parametrize("name", [*(name for name in STRAIGHT_THROUGH if name != "floating zero points"), "fused"])
def test_forward_mode_is_the_straight_through_gradient(name: str) -> None:
    function = DIFFERENTIABLE[name]
    inside = torch.func.vjp(function, X[0])[1](torch.ones_like(X[0]))[0]
    assert torch.equal(torch.func.jvp(function, (X[0],), (X[1],))[1], X[1] * inside)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(function(forward_ad.make_dual(X[0], X[1])))
    assert torch.equal(dual.tangent, X[1] * inside)


@pytest.mark.parametrize("name", [*LEARNABLE, "floating zero points"])
def test_forward_mode_is_refused(name: str) -> None:
    function = DIFFERENTIABLE[name]
    with pytest.raises((NotImplementedError, RuntimeError), match="jvp"):
        torch.func.jvp(function, (X[0],), (X[1],))
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="jvp"):
        function(forward_ad.make_dual(X[0], X[1]))


@pytest.mark.parametrize("name", LEARNABLE)
def test_a_second_derivative_of_a_learned_grid_is_refused(name: str) -> None:
    function = LEARNABLE[name]
    with pytest.raises(KernelError, match=r"^fxquant::fake_quantize_learnable_backward has no derivative"):
        torch.func.grad(lambda x: torch.func.grad(_loss(function))(x).sum())(X[0])


def test_the_backward_operator_has_no_derivative() -> None:
    with pytest.raises(KernelError) as caught:
        torch.func.grad(lambda x: WITHOUT_GRADIENT["learnable backward"](x).sum())(X[0])
    assert str(caught.value) == (
        "fxquant::fake_quantize_learnable_backward has no derivative\n"
        "  hint:     a gradient of a gradient of learned qparams is asked for"
    )
    with pytest.raises(KernelError, match="has no derivative"):
        torch.func.jvp(WITHOUT_GRADIENT["learnable backward"], (X[0],), (X[1],))


def test_statistics_that_change_in_place_are_no_matter_for_vmap() -> None:
    with pytest.raises(KernelError) as caught:
        torch.vmap(_fused)(X)
    assert str(caught.value) == (
        "fxquant::_fused_moving_avg_obs_fq_helper changes its arguments, so torch.vmap cannot run it\n"
        "  hint:     call it in a loop"
    )
