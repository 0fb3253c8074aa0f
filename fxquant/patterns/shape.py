"""Operators that only move values: they run as they are on stored integers, on their input's grid."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.graph.query import called_module, is_number, value_of
from fxquant.patterns.pattern import Check, Output, Pattern, Reject, op, tensor


def inactive(captures: Mapping[str, Node]) -> Reject | None:
    """``F.dropout`` drops in evaluation mode too, unless it is told ``training=False``; modules follow their mode."""
    node = captures["dropout"]
    if node.op == "call_module":
        return None
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", True)
    return Reject("it drops values even in evaluation mode (training=True)", node) if training else None


def takes_a_part(captures: Mapping[str, Node]) -> Reject | None:
    """Indexing takes a part of a tensor, or one of the tensors that a split made."""
    source, node = captures["x"], captures["move"]
    if value_of(source) is None and not (source.target in SPLITS and isinstance(node.args[1], int)):
        return Reject("it takes one of several values that an operator made at once", node)
    return None


def nearest(captures: Mapping[str, Node]) -> Reject | None:
    """Only the mode that repeats values makes no new ones."""
    mode: Any = captures["move"].args[3]
    if mode in ("nearest", "nearest-exact"):
        return None
    return Reject(
        f"mode={mode!r} has no integer operator yet; only 'nearest' and 'nearest-exact' have", captures["move"]
    )


def pads_with_zeros(captures: Mapping[str, Node]) -> Reject | None:
    """0 is on every grid; the zero point stands for it."""
    arguments: Any = captures["pad"].args
    _, widths, mode, value = arguments
    if mode != "constant":
        return Reject(f"mode={mode!r} pads with values of its own", captures["pad"])
    if value not in (None, 0):
        return Reject(f"value={value}: only 0 lies on every grid", captures["pad"])
    if not (isinstance(widths, (tuple, list)) and all(isinstance(width, int) for width in widths)):
        return Reject("its widths are computed at run time", captures["pad"])
    return None


def pads_with_values(captures: Mapping[str, Node]) -> Reject | None:
    mode: Any = captures["move"].args[2]
    return Reject("mode='constant' pads with a number", captures["move"]) if mode == "constant" else None


def module_pads_with_zeros(captures: Mapping[str, Node]) -> Reject | None:
    value = getattr(called_module(captures["pad"]), "value", 0)
    return None if value == 0 else Reject(f"value={value}: only 0 lies on every grid", captures["pad"])


def known_sizes(captures: Mapping[str, Node]) -> Reject | None:
    """Arguments beside the tensor are numbers; tensors would be integers or masks, whose own grid is none."""
    node = captures["move"]
    tensors = [arg for arg in node.all_input_nodes if arg is not captures["x"] and not is_number(arg)]
    if any(value_of(arg) is not None for arg in tensors):
        return Reject("it takes a second tensor", node)
    return None


def _move(name: str, *targets: Any, check: Check | None = known_sizes) -> Pattern:
    return Pattern(name, op(*targets)(tensor("x")).named("move"), output=Output.PICKED, check=check)


SPLITS = (torch.chunk, torch.split, torch.unbind, "unbind")
"""Operators that make several tensors of one, in a normalized graph."""

MOVES = (
    _move("flatten", torch.flatten),
    _move("reshape", torch.reshape),
    _move("unflatten", torch.unflatten, "unflatten", nn.Unflatten),
    _move("permute", torch.permute),
    _move("transpose", torch.transpose),
    _move("t", torch.t, "t"),
    _move("movedim", torch.movedim, "movedim"),
    _move("squeeze", torch.squeeze, "squeeze"),
    _move("unsqueeze", torch.unsqueeze),
    _move("expand", "expand"),
    _move("repeat", "repeat", torch.tile, "tile"),
    _move("roll", torch.roll, "roll"),
    _move("flip", torch.flip, "flip"),
    _move("chunk", torch.chunk),
    _move("split", torch.split),
    _move("unbind", torch.unbind, "unbind"),
    _move("getitem", operator.getitem, check=takes_a_part),
    _move("pixel_shuffle", F.pixel_shuffle),
    _move("pixel_unshuffle", F.pixel_unshuffle),
    _move("channel_shuffle", F.channel_shuffle, nn.ChannelShuffle),
    _move("pad_with_values", F.pad, check=pads_with_values),
    _move(
        "pad_module",
        *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
        *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
        *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
    ),
)
"""These run as they are, whatever is stored."""

NEAREST = (_move("interpolate", F.interpolate, check=nearest),)

ZERO_PAD_MODULES = (
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
)

PADS = (
    Pattern("pad", op(F.pad)(tensor("x")).named("pad"), output=Output.PICKED, check=pads_with_zeros),
    Pattern(
        "zero_pad",
        op(*ZERO_PAD_MODULES)(tensor("x")).named("pad"),
        output=Output.PICKED,
        check=module_pads_with_zeros,
    ),
)
"""Here 0 becomes the zero point."""

DROPOUT = op(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, F.dropout, F.dropout2d)(tensor("x")).named("dropout")

NOTHING = (
    Pattern("dropout", DROPOUT, output=Output.PICKED, check=inactive),
    Pattern("identity", op(nn.Identity)(tensor("x")), output=Output.PICKED),
    Pattern("contiguous", op("contiguous")(tensor("x")), output=Output.PICKED),
)
"""Nothing is left of them: the memory order of integers is chosen by a pass."""

SHAPE = MOVES + NEAREST + PADS + NOTHING
