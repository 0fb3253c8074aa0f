"""Smallest and largest finite value of a tensor: as a whole, per channel, or per group."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fxquant.errors import InputError
from fxquant.plan.spec import QScheme


def value_range(x: Tensor, scheme: QScheme) -> tuple[Tensor, Tensor, int | Tensor]:
    """Measure a tensor at the granularity of a scheme.

    Args:
        x: Any real dtype, any shape and strides, at least one value.
        scheme: Says which values share a scale.

    Returns:
        Smallest and largest finite value, float32 [] per tensor, [C] per channel, [C, groups] per group; where there
        is no finite value, inf and -inf. Then how many values of ``x`` are NaN or infinite in float32 (a tensor while
        ``torch.compile`` traces).

    Raises:
        InputError: ``x`` has no dimension ``scheme.axis``, or it does not divide into groups.
    """
    if torch.compiler.is_compiling() or x.is_meta:  # no branch on values
        return _finite_extremes(x, scheme)
    low, high = _extremes(x, scheme)
    width = high - low
    if math.isfinite(width.item()) if width.numel() == 1 else bool(width.isfinite().all()):
        return low, high, 0
    # Also taken where only the difference overflows; the result is the same.
    low, high, nonfinite = _finite_extremes(x, scheme)
    return low, high, int(nonfinite)


def _finite_extremes(x: Tensor, scheme: QScheme) -> tuple[Tensor, Tensor, Tensor]:
    x = x.float()
    for_low = x.nan_to_num(nan=torch.inf, posinf=torch.inf, neginf=torch.inf)
    for_high = x.nan_to_num(nan=-torch.inf, posinf=-torch.inf, neginf=-torch.inf)
    low, _ = _extremes(for_low, scheme)
    _, high = _extremes(for_high, scheme)
    return low, high, (for_low == torch.inf).sum()


def _extremes(x: Tensor, scheme: QScheme) -> tuple[Tensor, Tensor]:
    if scheme.axis is None:
        low, high = torch.aminmax(in_memory_order(x))
    else:
        x, kept = split_groups(x, scheme)
        reduced = [dim for dim in range(x.ndim) if dim not in kept]
        low, high = (x.amin(reduced), x.amax(reduced)) if reduced else (x, x)
    # Rounding to float32 keeps the order, so it may come after the reduction, where there is less to convert.
    return low.float(), high.float()


def in_memory_order(x: Tensor) -> Tensor:
    """Return the values of ``x`` as one flat view in the order of memory; ``x`` itself if it has gaps.

    Reductions over a whole channels_last tensor first copy it to the other layout, unless they get this view.
    """
    if x.is_contiguous():
        return x.view(-1)
    strides = x.stride()
    ordered = x.permute(sorted(range(x.ndim), key=lambda dim: (-strides[dim], dim)))
    return ordered.view(-1) if ordered.is_contiguous() else x


def split_groups(x: Tensor, scheme: QScheme) -> tuple[Tensor, tuple[int, ...]]:
    """Return a view of ``x``, and those of its dimensions that have their own scale for each index.

    Per group, the dimension after the axis is split in two, (groups, ``group_size``), and the first one has scales.

    Raises:
        InputError: see ``value_range``.
    """
    axis = scheme.axis or 0
    if axis not in range(-x.ndim, x.ndim):
        raise InputError(
            "the tensor has no such channel dimension",
            got=f"axis {axis}, shape {tuple(x.shape)}",
            expected=f"-{x.ndim} <= axis < {x.ndim}",
        )
    axis %= x.ndim
    if scheme.group_size is None:
        return x, (axis,)
    if axis + 1 == x.ndim or x.shape[axis + 1] % scheme.group_size:
        raise InputError(
            "the tensor does not divide into groups",
            got=f"shape {tuple(x.shape)}",
            expected=f"a multiple of group_size {scheme.group_size} in dimension {axis + 1}, which follows axis {axis}",
        )
    return x.unflatten(axis + 1, (-1, scheme.group_size)), (axis, axis + 1)
