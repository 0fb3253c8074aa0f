"""What a fake-quantize may change of values whose range it has just seen: half a step of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.fake_quantize import FakeQuantizeBase, FixedQParamsFakeQuantize
from fxquant.plan.spec import QScheme

SHARE = 0.502
"""Of a step: half of one, and what float32 rounds."""


class _PassThrough(torch.autograd.Function):
    """Gives a result, and its gradient to the value that it was rounded from where a mask says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, near: Tensor) -> Tensor:
        ctx.save_for_backward(near)
        return y.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (near,) = ctx.saved_tensors
        zero = torch.zeros_like(gradient)
        return torch.where(near, gradient, zero), torch.where(near, zero, gradient), None


@contextmanager
def ends_with_gradients(trained: nn.Module) -> Iterator[None]:
    """While the block runs, values that a fake-quantize changes by half a step or less get the whole gradient.

    A rounded zero point may put the largest value of a range half a step beyond the last one that integers hold. There
    it is clipped, and has no gradient, which is much of all where a layer has few weights, or a clamp gives many values
    that are the largest. What is changed by more keeps the gradient that the fake-quantize gives it.
    """

    def pass_through(module: Any, args: tuple[Tensor, ...], y: Tensor) -> Tensor:
        x = args[0]
        if not x.numel() or not x.requires_grad:
            return y
        near = (y.detach() - x.detach()).abs() <= SHARE * step_of(x.detach(), module.scheme)
        return _PassThrough.apply(x, y, near)

    hooks = [module.register_forward_hook(pass_through) for _, module in _of_ranges(trained)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _of_ranges(trained: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The fake-quantize modules whose qparams come from a range."""
    for name, module in trained.named_modules():
        if isinstance(module, FakeQuantizeBase) and not isinstance(module, FixedQParamsFakeQuantize):
            yield name, module


@contextmanager
def changed_by_more(trained: nn.Module) -> Iterator[set[str]]:
    """Collect the names of fake-quantize modules that change a value by more, while the block runs.

    In the first step a moving average is the range of the batch, so nothing is clipped by more either. Qparams that
    are fixed beforehand do not count.
    """
    found: set[str] = set()

    def look(name: str, module: Any, args: tuple[Tensor, ...], y: Tensor) -> None:
        x = args[0].detach()
        if x.numel() and bool(((y.detach() - x).abs() > SHARE * step_of(x, module.scheme)).any()):
            found.add(name)

    hooks = [module.register_forward_hook(partial(look, name)) for name, module in _of_ranges(trained)]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def step_of(x: Tensor, scheme: QScheme) -> Tensor:
    """Of a grid over the range of values: per tensor, or a size-1 dimension for each that a channel lies along."""
    axis = None if scheme.axis is None else scheme.axis % x.dim()
    dims = [dim for dim in range(x.dim()) if dim != axis]
    low, high = x.amin(dims, keepdim=True).clamp_max(0), x.amax(dims, keepdim=True).clamp_min(0)
    width = 2 * high.maximum(-low) if scheme.symmetric else high - low
    return width / (2**scheme.bits - 1)
