"""Operators that only move values: they run as they are on quantized values, which keep their qparams."""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Node

from fxquant.graph.query import called_module, value_of
from fxquant.patterns.pattern import Check, Output, Pattern, Reject, op, tensor


def inactive(captures: Mapping[str, Node]) -> Reject | None:
    """``F.dropout`` drops in evaluation mode too, unless it is told ``training=False``; modules follow their mode."""
    node = captures["dropout"]
    if node.op == "call_module":
        return None
    usual = node.target not in (F.alpha_dropout, F.feature_alpha_dropout)
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("training", usual)
    return Reject("it drops values even in evaluation mode (training=True)", node) if training else None


def takes_a_part(captures: Mapping[str, Node]) -> Reject | None:
    """Indexing takes a part of a tensor, or one of the tensors that a split made."""
    source, node = captures["x"], captures["move"]
    if value_of(source) is None and not (source.target in SPLITS and isinstance(node.args[1], int)):
        return Reject("it takes one of several values that an operator made at once", node)
    return None


NEAREST_MODES, WEIGHTED_MODES = ("nearest", "nearest-exact"), ("linear", "bilinear", "bicubic")


def nearest(captures: Mapping[str, Node]) -> Reject | None:
    """Only the mode that repeats values makes no new ones."""
    return _has_mode(captures["move"], NEAREST_MODES)


def weighted(captures: Mapping[str, Node]) -> Reject | None:
    """The other modes make new values, so the result has qparams of its own."""
    return _has_mode(captures["interpolation"], WEIGHTED_MODES)


def _has_mode(node: Node, modes: tuple[str, ...]) -> Reject | None:
    mode: Any = node.args[3]
    return None if mode in modes else Reject(f"mode={mode!r} has no integer operator yet", node)


def padding_value(node: Node) -> Any:
    """Return what a pad in constant mode pads with: a number, or the node that computes it."""
    value: Any = node.args[3] if node.op == "call_function" else getattr(called_module(node), "value", 0)
    return 0 if value is None else value


def pads_with_zeros(captures: Mapping[str, Node]) -> Reject | None:
    """The zero point stands for 0, whatever the qparams are."""
    return _pads_with_numbers(captures["pad"]) or (
        None if padding_value(captures["pad"]) == 0 else Reject("it pads with another number than 0", captures["pad"])
    )


def pads_with_a_number(captures: Mapping[str, Node]) -> Reject | None:
    """Any other number must lie in the quantization range of the output."""
    refused, value = _pads_with_numbers(captures["pad"]), padding_value(captures["pad"])
    if refused is None and isinstance(value, Node):
        return Reject("the number it pads with is computed at run time", captures["pad"])
    if refused is None and not math.isfinite(value):
        return Reject(f"value={value} lies in no quantization range", captures["pad"])
    return refused


def _pads_with_numbers(node: Node) -> Reject | None:
    mode: Any = node.args[2] if node.op == "call_function" else "constant"
    return None if mode == "constant" else Reject(f"mode={mode!r} pads with values of its own", node)


def pads_with_values(captures: Mapping[str, Node]) -> Reject | None:
    mode: Any = captures["move"].args[2]
    return Reject("mode='constant' pads with a number", captures["move"]) if mode == "constant" else None


def known_sizes(captures: Mapping[str, Node]) -> Reject | None:
    """Arguments beside the tensor are numbers, or tensors of indices or masks; another of float values has no place."""
    node = captures["move"]
    others = [value_of(arg) for arg in node.all_input_nodes if arg is not captures["x"]]
    if any(info is not None and info.dtype.is_floating_point for info in others):
        return Reject("it takes a second tensor", node)
    return None


def turns_around(captures: Mapping[str, Node]) -> Reject | None:
    """Refuse the attributes of a tensor that are not the tensor itself with dimensions exchanged."""
    name = captures["move"].args[1]
    return None if name in ("T", "mT", "H", "mH") else Reject(f"attribute {name!r} has no integer form")


def keeps_kind(captures: Mapping[str, Node]) -> Reject | None:
    """Return a conversion that changes nothing but, perhaps, the memory order."""
    before, after = value_of(captures["x"]), value_of(captures["same"])
    if before is None or after is None or (before.dtype, before.device) != (after.dtype, after.device):
        return Reject("it converts to another dtype or device", captures["same"])
    return None


def _move(name: str, *targets: Any, check: Check | None = known_sizes) -> Pattern:
    return Pattern(name, op(*targets)(tensor("x")).named("move"), output=Output.PICKED, check=check)


TENSOR_SPLITS = (
    *(torch.tensor_split, torch.hsplit, torch.vsplit, torch.dsplit),
    *("tensor_split", "hsplit", "vsplit", "dsplit"),
)
SPLITS = (torch.chunk, torch.split, torch.unbind, "unbind", *TENSOR_SPLITS)
"""Operators that make several tensors of one, in a normalized graph."""

DATA_MOVEMENT = (
    _move("flatten", torch.flatten, torch.ravel, "ravel"),
    _move("reshape", torch.reshape),
    _move("unflatten", torch.unflatten, "unflatten", nn.Unflatten),
    _move("permute", torch.permute),
    _move("transpose", torch.transpose),
    _move("t", torch.t, "t"),
    _move("movedim", torch.movedim, "movedim", torch.moveaxis, "moveaxis"),
    _move("transposed", getattr, check=turns_around),
    _move("adjoint", torch.adjoint, "adjoint"),
    _move("squeeze", torch.squeeze, "squeeze"),
    _move("unsqueeze", torch.unsqueeze),
    _move("expand", "expand", torch.broadcast_to, "broadcast_to"),
    _move("like", "expand_as", "view_as", "reshape_as", check=None),  # of the second tensor only the shape matters
    _move("repeat", "repeat", torch.tile, "tile"),
    _move("repeat_interleave", torch.repeat_interleave, "repeat_interleave"),
    _move("roll", torch.roll, "roll"),
    _move("flip", torch.flip, "flip", torch.fliplr, "fliplr", torch.flipud, "flipud"),
    _move("rot90", torch.rot90, "rot90"),
    _move("diagonal", torch.diagonal, "diagonal"),
    _move("windows", "unfold"),
    _move("narrow", torch.narrow, "narrow"),
    _move("select", torch.select, "select"),
    _move("index_select", torch.index_select, "index_select"),
    _move("gather", torch.gather, "gather", torch.take_along_dim, "take_along_dim", torch.take, "take"),
    _move("chunk", torch.chunk),
    _move("split", torch.split),
    _move("unbind", torch.unbind, "unbind"),
    _move("tensor_split", *TENSOR_SPLITS),
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

WEIGHTED = (Pattern("interpolate_weighted", op(F.interpolate)(tensor("x")).named("interpolation"), check=weighted),)

ZERO_PAD_MODULES = (
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.ConstantPad1d, nn.ConstantPad2d, nn.ConstantPad3d),
)

PAD = op(F.pad, *ZERO_PAD_MODULES)(tensor("x")).named("pad")

ZERO_PADS = (Pattern("pad", PAD, output=Output.PICKED, check=pads_with_zeros),)
"""Here 0 becomes the zero point."""

NUMBER_PADS = (Pattern("pad_number", PAD, check=pads_with_a_number),)
"""Another number must lie in the quantization range, so the result has qparams of its own."""

DROPOUT_FUNCTIONS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
DROPOUT = op(
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
    *DROPOUT_FUNCTIONS,
)(tensor("x")).named("dropout")

CASTS = ("float", "double", "half", "bfloat16")

NOTHING = (
    Pattern("dropout", DROPOUT, output=Output.PICKED, check=inactive),
    Pattern("identity", op(nn.Identity)(tensor("x")), output=Output.PICKED),
    Pattern("contiguous", op("contiguous")(tensor("x")), output=Output.PICKED),
    Pattern(
        "same",
        op("clone", torch.clone, "detach", torch.detach, torch.positive, operator.pos, "to", "type_as", "cpu", *CASTS)(
            tensor("x")
        ).named("same"),
        output=Output.PICKED,
        check=keeps_kind,
    ),
)
"""Nothing is left of them: the memory order of integers is chosen by a pass."""

SHAPE = DATA_MOVEMENT + NEAREST + WEIGHTED + ZERO_PADS + NUMBER_PADS + NOTHING
