"""Hostile arguments: each argument of a valid call in turn is replaced by what nobody should give."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from calls import Arguments, operator
from torch import Tensor

DTYPES = (
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.uint16,
)  # fmt: skip
INTEGERS = (-1, 0, 1, 2, 3, 255, 256, 2**31 - 1, 2**31, 2**63 - 1, -(2**63))
REALS = (math.nan, math.inf, -math.inf, 0.0, -0.0, -1.0, 1e-45, 1e-320, 1e308, 3e38)
MANY_DIMS = 70


def variants(name: str, given: Arguments) -> Iterator[tuple[str, Arguments]]:
    """What was changed, and the arguments with it."""
    for argument in operator(name)._schema.arguments:
        for label, value in values(str(argument.type), given[argument.name]):
            yield f"{argument.name}={label}", {**given, argument.name: value}


def values(kind: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Hostile ones for an argument of a type of the schema, where a valid call has ``value``."""
    if kind.startswith("Optional"):
        yield "None", None
    if isinstance(value, Tensor):
        yield from tensors(value)
    elif isinstance(value, torch.dtype):
        yield from ((str(dtype), dtype) for dtype in DTYPES)
    elif isinstance(value, bool):
        yield from ((str(each), each) for each in (False, True))
    elif isinstance(value, float):
        yield from ((str(each), each) for each in REALS)
    elif isinstance(value, int) or kind == "Optional[int]":
        yield from ((str(each), each) for each in INTEGERS)
    elif isinstance(value, list):
        yield from lists(value)


def lists(value: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    yield "[]", []
    yield "one more", [*value, value[-1]]
    yield "one less", value[:-1]
    (of_one,) = {type(each) for each in value}
    for label, each in values("", value[0]):
        yield f"[{label}] * n", [each] * len(value)
        if of_one is not Tensor and len(value) > 1:
            yield f"[{label}, ...]", [each, *value[1:]]


def tensors(x: Tensor) -> Iterator[tuple[str, Tensor]]:
    for dtype in DTYPES:
        if dtype != x.dtype:
            yield str(dtype), x.to(dtype)
    yield "no dimension", x.new_zeros(())
    yield "one dimension more", x.unsqueeze(0)
    yield "flat", x.flatten()
    yield f"{MANY_DIMS} dimensions", x[(None,) * (MANY_DIMS - x.dim())]
    yield (
        f"{MANY_DIMS} dimensions of 2, one of 0",
        x.new_empty(0).as_strided([0] + [2] * (MANY_DIMS - 1), [0] * MANY_DIMS),
    )
    yield "meta", x.to("meta")
    if x.numel():
        yield "one place", x.flatten()[:1].reshape([1] * x.dim()).expand(x.shape)
        yield "overlapping", x.new_zeros(x.numel() + sum(x.shape)).as_strided(x.shape, [1] * x.dim())
    for dim, size in enumerate(x.shape):
        yield f"dim {dim} empty", x.narrow(dim, 0, 0)
        yield f"dim {dim} of one", x.narrow(dim, 0, min(size, 1))
        yield f"dim {dim} one less", x.narrow(dim, 0, max(size - 1, 0))
        if size:
            yield f"dim {dim} one more", torch.cat([x, x.narrow(dim, 0, 1)], dim)
            huge = [2**40 if d == dim else n for d, n in enumerate(x.shape)]
            yield f"dim {dim} of 2^40", x.narrow(dim, 0, 1).expand(huge)
    if x.dim() > 1:
        yield "transposed", x.transpose(0, -1)
    for each in extremes(x.dtype):
        yield f"all {each}", torch.full_like(x, each)


def extremes(dtype: torch.dtype) -> tuple[Any, ...]:
    if dtype == torch.bool:
        return (False, True)
    if dtype.is_floating_point:
        return (math.nan, math.inf, -math.inf, torch.finfo(dtype).max, torch.finfo(dtype).tiny, 0.0, -1.0)
    return (torch.iinfo(dtype).min, torch.iinfo(dtype).max, -1 if torch.iinfo(dtype).min else 1)
