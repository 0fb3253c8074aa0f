"""Any function of one tensor to quantized values: of integers as a table of 256 answers, of float values as it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fxquant.kernels import quantize, table
from fxquant.kernels.quantize.dequantize import reference as dequantize_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.kernels.table.table import table_reference
from fxquant.nn.base import QuantizedModule, byte_qparams
from fxquant.nn.elementwise import QuantizedPReLU
from fxquant.nn.quantize import every_byte, quantize_arguments
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Clamp, QParams


@dataclass(frozen=True, slots=True)
class ElementFunction:
    """A function of one tensor, element by element: a call with everything but the tensor filled in. Can be pickled."""

    target: Callable[..., Tensor]
    before: tuple[Any, ...] = ()
    """Positional arguments before the tensor: the 2 in ``2 / x``."""
    after: tuple[Any, ...] = ()
    """Positional arguments after it."""
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, x: Tensor) -> Tensor:
        return self.target(*self.before, x, *self.after, **self.keywords)

    def __str__(self) -> str:
        keywords = (f"{name}={value!r}" for name, value in self.keywords.items())
        arguments = [*map(repr, self.before), "x", *map(repr, self.after), *keywords]
        return f"{getattr(self.target, '__name__', self.target)}({', '.join(arguments)})"


class QuantizedTable(QuantizedModule):
    """``q_y = quantize(function(dequantize(q_x)))``, looked up: exact, whatever the function costs.

    The table is filled from the float function itself, in float32, when it is first needed; that of a model from a file
    is the one that was saved, ``answers``, until a state dict is loaded.

    Args:
        function: Elementwise, float32 to float32 of the same shape; or a clamp.
        x: Qparams of the input; at most 8 bits, per tensor.
        y: Qparams of the output.

    Shape:
        uint8 or int8, any; memory order is kept.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    answers: Tensor | None
    y_scale: Tensor

    def __init__(self, function: Clamp | Callable[[Tensor], Tensor], x: QParams, y: QParams) -> None:
        super().__init__()
        self.add_qparams("x", byte_qparams("the input", x))
        self.add_qparams("y", byte_qparams("the output", y))
        self.function = function
        self.answers = None

    def pack(self) -> Tensor:
        if self.answers is not None:
            return self.answers.to(self.y_scale.device)
        x, y = self.qparams("x"), self.qparams("y")
        answers = self._apply_function(dequantize_reference(every_byte(x), x.scale, x.zero_point))
        scheme = y.scheme
        return quantize_reference(answers, y.scale, y.zero_point, scheme.quant_min, scheme.quant_max, scheme.dtype)

    def forward(self, x: Tensor) -> Tensor:
        packed = self._packed
        return table(x, self.packed() if packed is None else packed)

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return table_reference(x, self.packed())

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.answers = None

    def _apply_function(self, real: Tensor) -> Tensor:
        if not isinstance(self.function, Clamp):
            return self.function(real)
        if self.function.low is None and self.function.high is None:
            return real
        return torch.clamp(real, self.function.low, self.function.high)

    def extra_repr(self) -> str:
        name = getattr(self.function, "__name__", None) or str(self.function)
        return f"{name}, {super().extra_repr()}"


class QuantizedFunction(QuantizedModule):
    """``q_y = quantize(function(x))`` of float values, which nothing has clipped.

    Args:
        function: Elementwise, float to float of the same shape.
        y: Qparams of the output; at most 8 bits, per tensor.

    Shape:
        Floating point, any; the result is uint8 or int8 of that shape. Memory order is kept.

    Raises:
        LoweringError: qparams do not fit a byte.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], y: QParams) -> None:
        super().__init__()
        self.add_qparams("y", byte_qparams("the output", y))
        self.function = function

    def pack(self) -> dict[str, Any]:
        return quantize_arguments(self.qparams("y"))

    def forward(self, x: Tensor) -> Tensor:
        return quantize(self.function(x), **(self._packed or self.packed()))

    def reference(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return quantize_reference(self.function(x), **self.packed())

    def extra_repr(self) -> str:
        return f"{self.function}, {super().extra_repr()}"


def clamp_of(unit: UnitView) -> QuantizedTable:
    """Build the module of a clamp alone: a table filled from the clamp itself, exact like every function of a byte."""
    assert unit.activation is not None  # the patterns that come here are clamps
    return QuantizedTable(unit.activation, unit.qparams["x"], unit.qparams["y"])


def function_of(unit: UnitView) -> QuantizedModule:
    """Build the module of a function of one tensor, with the numbers that it is called with."""
    node, x = unit.nodes["function"], unit.nodes["x"]
    if (slope := _constant_slope(unit)) is not None:
        computed = ElementFunction(F.leaky_relu, after=(slope,))
    else:
        at = node.args.index(x)
        assert callable(node.target)  # the normalize pass left no method
        computed = ElementFunction(node.target, node.args[:at], node.args[at + 1 :], node.kwargs)
    x_qparams, y = unit.qparams.get("x"), unit.qparams["y"]
    return QuantizedFunction(computed, y) if x_qparams is None else QuantizedTable(computed, x_qparams, y)


def prelu_of(unit: UnitView) -> QuantizedModule:
    """Build the module of a unit, from its PReLU ``function``: of one slope, a table."""
    slopes, x, y = unit.modules["function"].weight.detach(), unit.qparams["x"], unit.qparams["y"]
    if slopes.numel() == 1:
        return QuantizedTable(ElementFunction(F.leaky_relu, after=(slopes.item(),)), x, y)
    return QuantizedPReLU(slopes, x, y)


def _constant_slope(unit: UnitView) -> float | None:
    """Return the slope below 0 of what is a leaky ReLU by another name; None for other functions."""
    module, node = unit.modules.get("function"), unit.nodes["function"]
    if isinstance(module, nn.RReLU):
        return (module.lower + module.upper) / 2
    if node.target in (F.rrelu, torch.rrelu):
        lower, upper = unit.arguments("function", lower=1 / 8, upper=1 / 3)
        return float(lower + upper) / 2
    return None
