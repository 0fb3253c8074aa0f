"""Modules of a graph that trains: frozen batch norms, ranges of joined values, and dropout that follows the mode."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.errors import warn
from fxquant.graph.query import KEEPS_STATISTICS
from fxquant.graph.switches import SWITCHES
from fxquant.observers.base import keeping_dtype

STATE = "statistics_frozen"
"""Key in the state of a training model, after the name of a batch norm that is frozen; in its metadata, of each."""


class FrozenStatistics(nn.Module):
    """Normalizes by the running statistics and leaves them alone; weight and bias train on."""

    mode_if_thawed: bool
    """The training mode that it would be in."""

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.mode_if_thawed, self.training = mode, False
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


def freeze_what_keeps_statistics(module: nn.Module) -> None:
    """For ``model.apply``: freeze a batch norm whose call said ``training=False`` in any mode."""
    if _keeps_statistics(module):
        freeze_bn_stats(module)


def _keeps_statistics(module: nn.Module) -> bool:
    return bool(vars(module).get(KEEPS_STATISTICS))


@SWITCHES.register("freeze_bn_stats")
def freeze_bn_stats(module: nn.Module) -> None:
    """For ``model.apply``: batch norms normalize by their running statistics, which no longer change.

    This holds until ``update_bn_stats``, whatever ``train()`` is called. Weight and bias still get gradients. A class
    derived from a batch norm, of which nobody here knows what it does with statistics, is left alone, with a warning.
    """
    if type(module) in FROZEN:
        module.__class__ = FROZEN[type(module)]
        module.train(module.training)
    elif isinstance(module, _BatchNorm) and type(module) not in _THAWED:
        warn(
            "the statistics of this kind of batch norm are not frozen",
            got=type(module).__name__,
            expected=", ".join(kind.__name__ for kind in FROZEN),
            hint="freeze it yourself, by eval() after each train()",
        )


@SWITCHES.register("update_bn_stats")
def update_bn_stats(module: nn.Module) -> None:
    """For ``model.apply``: undo ``freeze_bn_stats``; batch norms are then in training mode.

    One whose call says ``training=False`` stays frozen.
    """
    if type(module) in _THAWED and not _keeps_statistics(module):
        thaw(module)
        module.train()


def thaw(module: nn.Module) -> None:
    """Do ``update_bn_stats`` in the mode that ``train()`` and ``eval()`` last asked for."""
    if type(module) in _THAWED and not _keeps_statistics(module):
        mode = module.mode_if_thawed
        module.__class__ = _THAWED[type(module)]
        module.train(bool(mode))


def keep_frozen_state(module: nn.Module) -> None:
    """For ``model.apply``: let the state of a batch norm say whether it is frozen, and be restored from it.

    The state of a float model, which cannot tell, changes nothing.
    """
    if type(module) in FROZEN or type(module) in _THAWED:
        module.register_state_dict_post_hook(_save)
        module.register_load_state_dict_pre_hook(_restore)


def forget_frozen_state(module: nn.Module) -> None:
    """For ``model.apply``: undo ``keep_frozen_state``, and thaw: for a model that trains no more."""
    vars(module).pop(KEEPS_STATISTICS, None)
    thaw(module)
    for hooks, own in ((module._state_dict_hooks, _save), (module._load_state_dict_pre_hooks, _restore)):
        for key, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) is own:
                del hooks[key]


def _save(module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any]) -> None:
    local_metadata[STATE] = type(module) in _THAWED
    if type(module) in _THAWED:
        state_dict[prefix + STATE] = torch.tensor(True)


def _restore(
    module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *_: Any
) -> None:
    frozen = state_dict.pop(prefix + STATE, local_metadata.get(STATE))
    if frozen is not None:
        (freeze_bn_stats if bool(frozen) else thaw)(module)


AVERAGING = 0.01
"""Weight of a batch, as in moving averages of ranges."""


class JoinedRange(nn.Module):
    """Gives back its input, and keeps a moving average of the smallest and the largest value of each call.

    Buffer: ``ends`` float32 [2]; NaN before the first call.
    """

    ends: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ends", torch.full((2,), torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        """Measure ``x``, float of any shape. A call with values that are not finite leaves the average as it is."""
        if x.numel():
            with torch.no_grad():
                ends = torch.stack(torch.aminmax(x.detach())).to(self.ends)
                averaged = torch.where(self.ends.isnan(), ends, torch.lerp(self.ends, ends, AVERAGING))
                self.ends.copy_(torch.where(ends.isfinite().all(), averaged, self.ends))
        return x

    def pool(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Take the mean of what several copies have averaged; ``states`` is the ``state_dict()`` of each."""
        seen = [ends for state in states if bool((ends := state["ends"]).isfinite().all())]
        if seen:
            self.ends.copy_(torch.stack(seen).mean(0))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> JoinedRange:
        super()._apply(keeping_dtype(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        if f"{prefix}ends" in state_dict:  # states from before these were kept lack them
            super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


class Regularizer(nn.Module):
    """Calls a function such as ``F.dropout`` with the training mode of this module as its argument ``training``.

    Args:
        function: Takes a tensor, ``arguments`` and ``training``.
        arguments: Its other arguments, by name.
    """

    def __init__(self, function: Callable[..., Tensor], arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.arguments = dict(arguments)

    def forward(self, input: Tensor) -> Tensor:
        return self.function(input, **self.arguments, training=self.training)

    def extra_repr(self) -> str:
        return ", ".join([self.function.__name__, *(f"{name}={value!r}" for name, value in self.arguments.items())])
