"""How far results are apart: to the bit, within a share of the largest, or in dB."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def difference(expected: Any, got: Any, share: float = 0.0) -> str:
    """What differs between two results; empty if nothing does.

    Args:
        expected, got: Tensors, in containers or not.
        share: Of the largest value of a tensor: how far values may be apart. 0: every bit counts, but that of which NaN
            it is.
    """
    ours, theirs = pytree.tree_flatten(got), pytree.tree_flatten(expected)
    if ours[1] != theirs[1]:
        return f"the containers differ: {ours[1]} for {theirs[1]}"
    for number, (one, two) in enumerate(zip(theirs[0], ours[0], strict=True)):
        if found := _leaf(one, two, share):
            return f"result {number}: {found}"
    return ""


def _leaf(expected: Any, got: Any, share: float) -> str:
    if not isinstance(expected, Tensor):
        return "" if type(expected) is type(got) and expected == got else f"{got!r} for {expected!r}"
    if not isinstance(got, Tensor) or got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{facts(got)} for {facts(expected)}"
    off = apart(expected, got, share)
    if not bool(off.any()):
        return ""
    where = tuple(int(index) for index in off.nonzero()[0])
    return (
        f"{int(off.sum())} of {off.numel()} values of {facts(expected)} differ, the first at {where}: "
        f"{got[where].item()!r} for {expected[where].item()!r}"
    )


def apart(expected: Tensor, got: Tensor, share: float) -> Tensor:
    """Where two tensors differ: bool, of their shape."""
    if not expected.is_floating_point():
        return expected != got
    both_nan = expected.isnan() & got.isnan()
    if share == 0:
        dtype = INTEGERS[expected.element_size()]
        return (expected.contiguous().view(dtype) != got.contiguous().view(dtype)) & ~both_nan
    finite = expected[expected.isfinite()].abs()
    bound = share * float(finite.max()) if finite.numel() else 0.0
    return ~((expected - got).abs() <= bound) & (expected != got) & ~both_nan


def facts(value: Any) -> str:
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


def floats_of(result: Any) -> list[Tensor]:
    """The tensors of real numbers in a result."""
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def decibels(signal: float, noise: float) -> float:
    if math.isnan(noise):
        return -math.inf
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else -math.inf


def power(values: Tensor) -> float:
    return float(values.double().square().sum())
