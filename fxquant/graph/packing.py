"""Packs the int8 modules of a model: in ``convert``, and after a graph module was loaded, moved or copied."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from fxquant.graph.query import move_to_device_of
from fxquant.kernels.conv.packing import deduplicating_weights


class PackingModule(nn.Module):
    """Base of ``QuantizedModule``: computes with what it packed from its state, not with the state itself.

    It stands here so that graph modules can pack without importing ``fxquant.nn``.
    """

    _packed: Any
    """None: nothing is packed."""

    def packed(self) -> Any:
        """Return what is packed; it is packed now if it was not."""
        raise NotImplementedError


def pack_like(gm: nn.Module, model: nn.Module) -> None:
    """Put a converted model into evaluation mode and on the device of ``model``, and pack its weights."""
    gm.eval()  # the modules that passes made, too
    move_to_device_of(gm, model)
    pack_modules(gm)


def pack_modules(model: nn.Module) -> None:
    """Have every module in a model pack what it has not packed yet; equal weights are kept once.

    Where a state is unknown, or cannot be right, it is left to the first call to say so.
    """
    with deduplicating_weights():
        for module in model.modules():
            if isinstance(module, PackingModule) and module._packed is None and _has_values(module):
                with suppress(Exception):
                    module.packed()


def _has_values(module: nn.Module) -> bool:
    """Tell whether the state is known: graphs that ``torch.export`` captures do not know it."""
    return all(type(x) is Tensor and not x.is_meta for x in module.buffers())


def holds_integers(model: nn.Module) -> bool:
    """Tell whether some module of a model computes with integers: gradients end there."""
    return any(isinstance(module, PackingModule) for module in model.modules())
