"""Modules that derive from their state what calls need: it is ready before the first call."""

from __future__ import annotations

from torch import nn

from fxquant.kernels.conv.packing import packed_once


class Deriving(nn.Module):
    """A module that computes with what it derived from its state, not with the state itself."""

    def make_ready(self) -> None:
        """Derive it now, where the state is known: graphs that ``torch.export`` captures cannot."""
        raise NotImplementedError


def make_ready(model: nn.Module) -> None:
    """Have every module in a model derive what it has not derived yet; equal weights are kept once."""
    with packed_once():
        for module in model.modules():
            if isinstance(module, Deriving):
                module.make_ready()


def holds_integers(model: nn.Module) -> bool:
    """Whether some module of a model computes with integers: gradients end there."""
    return any(isinstance(module, Deriving) for module in model.modules())
