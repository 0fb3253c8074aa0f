"""The control of what 8 bits cost by themselves: the float model, whose weights and operators' results are rounded."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from tests.fuzz.case import without_fast_path
from tests.fuzz.inputs import Values

STEPS = 255
"""From the smallest to the largest value of a result, or to zero if that is further."""
FINEST, COARSEST = 0.8, 1.25
"""By how much a step may differ from that: each draw has other grids, so that no lucky one decides."""
KEPT = frozenset(("clamp", "clamp_min", "linalg_vector_norm", "norm", "pow", "sqrt", "std", "var"))
"""Operators whose results are not rounded: much of what they give is divided by, and must not become zero. Powers are
rounded in every second draw."""
FIXED = {"_softmax": (0.0, 1.0), "hardsigmoid": (0.0, 1.0), "sigmoid": (0.0, 1.0), "tanh": (-1.0, 1.0)}
"""Operator -> the range that the default configuration gives its results, whatever they are."""


Range = tuple[float, float]


class Rounding(TorchDispatchMode):
    """While it is entered, operators round what they give to 8 bits; gradients pass straight through.

    Each result has qparams of its own, with which zero is exact; equal values round alike. What is likely to be divided
    by is not rounded, nor what only moves or chooses values of one tensor, or zeros in their place. What would become
    zero becomes the smallest number of its sign: the gradient of a ReLU asks whether its result is positive.

    Args:
        seed: Of the steps.
        others: The range of each operator's result in another run, in the order of the calls: a range spans it, too.
    """

    def __init__(self, seed: int, others: Sequence[Range] = ()) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._kept = KEPT - {"pow"} if seed % 2 else KEPT
        self._others = others
        self.ranges: list[Range] = []
        """The smallest and largest finite value of each result; zero and the range in `FIXED` if they are further."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        values = result[0] if isinstance(result, (tuple, list)) and result else result
        if isinstance(values, Tensor) and values.is_floating_point() and not is_view(func):
            operands = [x for x in pytree.tree_leaves(args) if isinstance(x, Tensor)]
            if not self._is_exact(func, values, operands):
                self._round(values, FIXED.get(_name(func), (0.0, 0.0)))
        return result

    def _is_exact(self, func: Any, values: Tensor, operands: list[Tensor]) -> bool:
        """Whether a result is not rounded; a number is added to what is divided by, too."""
        name = _name(func)
        if name in self._kept or len(operands) != 1:
            return name in self._kept
        others = operands[0].flatten()
        return name == "add" or bool((torch.isin(values.flatten(), others) | (values.flatten() == 0)).all())

    def of(self, values: Tensor) -> Tensor:
        """An input, rounded."""
        return self._round(values.clone()) if values.is_floating_point() else values

    def _round(self, values: Tensor, least: Range = (0.0, 0.0)) -> Tensor:
        finite = values[values.isfinite()]
        low, high = least
        if finite.numel():
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
        place = len(self.ranges)
        self.ranges.append((low, high))
        if place < len(self._others):
            low, high = min(low, self._others[place][0]), max(high, self._others[place][1])
        return self._to_steps(values, torch.tensor((high - low) / STEPS)) if finite.numel() else values

    def round_weight(self, weight: Tensor) -> None:
        """Round a parameter in place, each channel on a symmetric grid."""
        largest = weight.flatten(1).abs().amax(1)
        self._to_steps(weight, 2 * largest.view(-1, *(1,) * (weight.dim() - 1)) / STEPS)

    def _to_steps(self, values: Tensor, step: Tensor) -> Tensor:
        step = step * (FINEST + (COARSEST - FINEST) * float(torch.rand((), generator=self._generator)))
        nearest = torch.round(values / step) * step
        smallest = torch.copysign(torch.tensor(torch.finfo(values.dtype).tiny), values)
        nearest = torch.where((nearest == 0) & (values != 0), smallest, nearest)
        return values.copy_(torch.where(step > 0, nearest, values))


def _name(func: Any) -> str:
    """The name of an operator, in place or not."""
    return str(func.overloadpacket.__name__).rstrip("_")


def is_view(func: Any) -> bool:
    """Whether an operator gives a tensor in the memory of another one, and changes nothing there."""
    first = func._schema.returns[0].alias_info if func._schema.returns else None
    return (first is not None and not first.is_write) or func is torch.ops.aten._unsafe_view.default


@contextmanager
def rounding(model: nn.Module, seed: int, others: Sequence[Range] = ()) -> Iterator[Rounding]:
    """Round the weights of a model in place, and what operators give inside, also those within an attention.

    Args:
        model: Its parameters of two dimensions or more become other values.
        seed: Of the steps.
        others: See `Rounding`.
    """
    mode = Rounding(seed, others)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1 and parameter.numel():
                mode.round_weight(parameter)
    with without_fast_path(), sdpa_kernel(SDPBackend.MATH), mode:
        yield mode


def rounded(model: nn.Module, values: Values, seed: int, calibrated: Sequence[Values] = ()) -> Any:
    """What a model gives that rounds, without gradients; the model stays as it is.

    Args:
        model: The float model.
        values: Its arguments.
        seed: Of the steps.
        calibrated: Other arguments, whose values the ranges span, too: one that is far out makes all steps coarse.
    """
    others: list[Range] = []
    for each in calibrated:
        ranges = _run(model, each, seed, ())[1]
        others = [(min(a[0], b[0]), max(a[1], b[1])) for a, b in zip(others or ranges, ranges, strict=False)]
    return _run(model, values, seed, others)[0]


def _run(model: nn.Module, values: Values, seed: int, others: Sequence[Range]) -> tuple[Any, list[Range]]:
    model = copy.deepcopy(model)
    with torch.no_grad(), rounding(model, seed, others) as mode:
        return model(*map(mode.of, values)), mode.ranges
