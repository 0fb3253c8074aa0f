"""What a fake-quantize may change of values whose range it has just seen: half a step of 8 bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from fxquant.fake_quantize import FakeQuantizeBase, FixedQParamsFakeQuantize
from fxquant.plan.spec import QScheme

SHARE = 0.502
"""Of a step: half of one, and what float32 rounds."""


@contextmanager
def changed_by_more(trained: nn.Module) -> Iterator[set[str]]:
    """Collect the names of fake-quantize modules that change a value by more, while the block runs.

    In the first step a moving average is the range of the batch, so nothing is clipped by more either. Grids that are
    fixed beforehand do not count.
    """
    found: set[str] = set()

    def look(name: str, module: Any, args: tuple[Tensor, ...], y: Tensor) -> None:
        x = args[0].detach()
        if x.numel() and bool(((y.detach() - x).abs() > SHARE * step_of(x, module.scheme)).any()):
            found.add(name)

    hooks = [
        module.register_forward_hook(partial(look, name))
        for name, module in trained.named_modules()
        if isinstance(module, FakeQuantizeBase) and not isinstance(module, FixedQParamsFakeQuantize)
    ]
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
