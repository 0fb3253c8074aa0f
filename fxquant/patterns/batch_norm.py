"""Batch norm: after an operator with a weight it is folded away, alone it is a unit. Some instance norms are one."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torch.fx import Node

from fxquant.graph.affine import BATCH_NORMS, ChannelAffine
from fxquant.graph.query import called_module, value_of
from fxquant.patterns.elementwise import clamped, constant_bounds
from fxquant.patterns.floats import OWN_STATISTICS
from fxquant.patterns.pattern import Op, Pattern, Reject, all_of, op, tensor


def fixed_statistics(captures: Mapping[str, Node]) -> Reject | None:
    """Without running statistics a batch norm normalizes each batch by the batch itself, in evaluation mode too."""
    if called_module(captures["bn"]).running_var is None:
        return Reject("batch norm keeps no running statistics (track_running_stats=False)", captures["bn"])
    return None


def channels_follow_batch(captures: Mapping[str, Node]) -> Reject | None:
    """Alone, the channels are dimension 1."""
    module, value = called_module(captures["bn"]), value_of(captures["bn"])
    if value is not None and not value.has_shape:
        if isinstance(module, (ChannelAffine, nn.SyncBatchNorm)):  # these take inputs of several ranks
            return Reject("the number of dimensions of its input is not known without example inputs", captures["bn"])
        return None
    if value is None:
        return None
    if isinstance(module, ChannelAffine) and len(value.shape) != module.behind + 2:
        return Reject("its channels are not dimension 1", captures["bn"])
    return None


INSTANCE_DIMS: dict[type[nn.Module], int] = {nn.InstanceNorm1d: 3, nn.InstanceNorm2d: 4, nn.InstanceNorm3d: 5}
"""Dimensions of a batch; what has one less is a sample alone."""


def running_statistics(captures: Mapping[str, Node]) -> Reject | None:
    """In evaluation mode an instance norm with running statistics normalizes by them, as a batch norm does."""
    module, value = called_module(captures["bn"]), value_of(captures["bn"])
    if module.running_var is None:
        return Reject(OWN_STATISTICS, captures["bn"])
    dims = next(dims for kind, dims in INSTANCE_DIMS.items() if isinstance(module, kind))
    if value is not None and not value.has_shape:
        return Reject("whether there is a batch dimension is not known without example inputs", captures["bn"])
    if value is not None and len(value.shape) != dims:
        return Reject("without a batch dimension its channels are dimension 0", captures["bn"])
    return None


def normalized(inner: Op) -> Op:
    """``inner`` followed by a batch norm, captured as ``bn``."""
    return op(*BATCH_NORMS)(inner).named("bn")


ALONE = op(*BATCH_NORMS)(tensor("x")).named("bn")

INSTANCE = op(*INSTANCE_DIMS)(tensor("x")).named("bn")

BATCH_NORM = (
    Pattern("bn_act", clamped(ALONE), check=all_of(fixed_statistics, channels_follow_batch, constant_bounds)),
    Pattern("bn", ALONE, check=all_of(fixed_statistics, channels_follow_batch)),
    Pattern("instance_norm", INSTANCE, check=running_statistics),
)
