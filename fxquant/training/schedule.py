"""Parts that a training loop of the user's calls: when observers stop, and which parameters are those of qparams."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fxquant.errors import InputError
from fxquant.fake_quantize.base import disable_observer
from fxquant.fake_quantize.learnable import LearnableFakeQuantize
from fxquant.nn.training import freeze_bn_stats


def scale_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield ``scale`` and ``zero_point`` of learnable fake-quantize modules, for an optimizer group.

    Example:
        >>> import torch
        >>> from fxquant.training.schedule import scale_parameters
        >>> model = torch.nn.Linear(2, 2)
        >>> list(scale_parameters(model))
        []

    Raises:
        InputError: ``model`` is no module.
    """
    modules = _checked(model, "scale_parameters").modules()
    return (each for module in modules if isinstance(module, LearnableFakeQuantize) for each in module.parameters())


def _checked(model: object, function: str) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{function} takes the model that trains",
            got=type(model).__name__,
            expected="a torch.nn.Module, as prepare_qat gives it",
        )
    return model


class TrainingSchedule:
    """Says when training stops to choose qparams, and when batch norms stop to average.

    Args:
        disable_observers: First epoch, from 0, in which qparams stay as they are. None: never.
        freeze_bn_stats: First epoch in which the statistics of batch norms stay as they are. None: never.

    Example:
        >>> import torch
        >>> from fxquant.training.schedule import TrainingSchedule
        >>> schedule = TrainingSchedule(disable_observers=2, freeze_bn_stats=3)
        >>> model = torch.nn.Linear(2, 2)
        >>> for epoch in range(4):
        ...     schedule.start_epoch(model, epoch)
    """

    def __init__(self, *, disable_observers: int | None = None, freeze_bn_stats: int | None = None) -> None:
        self.disable_observers = disable_observers
        self.freeze_bn_stats = freeze_bn_stats

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        """To be called at the start of each epoch, before or after ``model.train()``; of a resumed training too.

        Raises:
            InputError: ``model`` is no module.
        """
        _checked(model, "start_epoch")
        if self.disable_observers is not None and epoch >= self.disable_observers:
            model.apply(disable_observer)
        if self.freeze_bn_stats is not None and epoch >= self.freeze_bn_stats:
            model.apply(freeze_bn_stats)
