"""Modules that compute with what they packed from their state, and the call that has all of a model pack."""

from __future__ import annotations

from torch import nn

from fxquant.kernels.conv.packing import deduplicating_weights


class PackingModule(nn.Module):
    """A module that computes with what it packed from its state, not with the state itself."""

    def pack_now(self) -> None:
        """Pack now, where the state is known: graphs that ``torch.export`` captures cannot."""
        raise NotImplementedError


def pack_modules(model: nn.Module) -> None:
    """Have every module in a model pack what it has not packed yet; equal weights are kept once."""
    with deduplicating_weights():
        for module in model.modules():
            if isinstance(module, PackingModule):
                module.pack_now()


def holds_integers(model: nn.Module) -> bool:
    """Tell whether some module of a model computes with integers: gradients end there."""
    return any(isinstance(module, PackingModule) for module in model.modules())
