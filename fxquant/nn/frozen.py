"""Batch norms whose statistics stay as they are, in training mode too."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.errors import warn


class FrozenStatistics(nn.Module):
    """Normalizes by the running statistics and leaves them alone; weight and bias train on."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.training = False
        return self


class FrozenBatchNorm1d(FrozenStatistics, nn.BatchNorm1d):
    pass


class FrozenBatchNorm2d(FrozenStatistics, nn.BatchNorm2d):
    pass


class FrozenBatchNorm3d(FrozenStatistics, nn.BatchNorm3d):
    pass


class FrozenSyncBatchNorm(FrozenStatistics, nn.SyncBatchNorm):
    pass


FROZEN: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: FrozenBatchNorm1d,
    nn.BatchNorm2d: FrozenBatchNorm2d,
    nn.BatchNorm3d: FrozenBatchNorm3d,
    nn.SyncBatchNorm: FrozenSyncBatchNorm,
}
_THAWED = {frozen: kind for kind, frozen in FROZEN.items()}


def freeze_bn_stats(module: nn.Module) -> None:
    """For ``model.apply``: batch norms normalize by their running statistics, which no longer change.

    This holds until ``update_bn_stats``, whatever ``train()`` is called. Weight and bias still get gradients. A class
    derived from a batch norm, of which nobody here knows what it does with statistics, is left alone, with a warning.
    """
    if type(module) in FROZEN:
        module.__class__ = FROZEN[type(module)]
        module.eval()
    elif isinstance(module, _BatchNorm) and type(module) not in _THAWED:
        warn(
            "the statistics of this kind of batch norm are not frozen",
            got=type(module).__name__,
            expected=", ".join(kind.__name__ for kind in FROZEN),
            hint="freeze it yourself, by eval() after each train()",
        )


def update_bn_stats(module: nn.Module) -> None:
    """For ``model.apply``: undo ``freeze_bn_stats``; batch norms are then in training mode."""
    if type(module) in _THAWED:
        module.__class__ = _THAWED[type(module)]
        module.train()
