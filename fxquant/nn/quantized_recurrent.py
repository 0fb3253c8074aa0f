"""Recurrent layers on quantized values: inputs and hidden states have qparams from each call, or from calibration."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from fxquant.graph.recurrent import RecurrentShape, stacked_bias, weight_of
from fxquant.nn.base import FloatResult, byte_qparams
from fxquant.nn.packed_recurrent import PackedRecurrent, Results
from fxquant.nn.recurrent import is_backward, run_recurrent
from fxquant.nn.weight import (
    WeightedModule,
    check_reference_may_run,
    float_bias,
    integer_weight,
    kernel_of,
    why_not_native,
)
from fxquant.patterns.pattern import UnitView
from fxquant.plan.spec import Dynamic, QParams


class QuantizedRecurrent(WeightedModule):
    """A recurrent layer of torch whose matrices are int8, called as that layer is; its values are floats.

    The input of each layer is quantized as a whole, and multiplied for all steps at once. In each step, the hidden
    states are quantized and multiplied by ``fxquant::recurrent_steps``, which defines the gates to the bit. Without
    qparams ``x``, each of these ranges is that of the values at hand; with them, input and hidden states share them.
    Cell states stay float32.

    Args:
        layer: ``nn.LSTM``, ``nn.GRU``, ``nn.RNN``, or the cell of one.
        x: How inputs and hidden states are quantized: a scheme of at most 8 bits, or qparams.
        weight: Qparams of the matrices, which lie one below the other as ``graph.recurrent.stacked`` says.

    Raises:
        LoweringError: qparams that int8 operators cannot take, a weight or a bias that is not finite.
    """

    bias: Tensor | None
    weight_scale: Tensor
    weight_zero_point: Tensor

    def __init__(self, layer: Any, *, x: Dynamic | QParams, weight: QParams) -> None:
        super().__init__()
        self.shape = RecurrentShape.of(layer)
        integers, weight_qparams = integer_weight(weight_of(layer), weight)
        self.add_weight(integers)
        self.register_buffer("bias", float_bias(stacked_bias(layer)))
        self.x: Dynamic | None = x if isinstance(x, Dynamic) else None
        if isinstance(x, QParams):
            self.add_qparams("x", byte_qparams("the input", x))
        self.add_qparams("weight", weight_qparams)
        self.add_result(None)

    @classmethod
    def from_unit(cls, unit: UnitView) -> QuantizedRecurrent:
        """Build the module of a unit, from its layer ``recurrent``."""
        x = unit.per_call["x"] if "x" in unit.per_call else unit.qparams["x"]
        return cls(unit.modules["recurrent"], x=x, weight=unit.qparams["weight"])

    def forward(self, input: Tensor | PackedSequence, hx: Any = None) -> Any:
        return self._run(self._packed or self.packed(), input, hx, by_reference=False)

    def reference(self, *inputs: Any) -> Any:
        input, hx = inputs if len(inputs) > 1 else (inputs[0], None)
        return self._run(self._packed or self.packed(), input, hx, by_reference=True)

    def _run(self, packed: PackedRecurrent, input: Any, hx: Any, by_reference: bool) -> Any:
        shape = self.shape

        def run(index: int, x: Tensor, hidden: Tensor, cell: Tensor, counts: list[int] | None) -> Results:
            direction, reverse = packed.directions[index], is_backward(shape, index)
            return direction.run(x, hidden, cell, counts, reverse, by_reference)

        return self._finished(run_recurrent(shape, input, hx, run, self.unit or type(self).__name__))

    def kernel(self) -> str:
        """Return what runs: ``native``, or ``reference`` and why."""
        return kernel_of(why_not_native(self.weight_zero_point))

    def pack(self) -> PackedRecurrent:
        if reason := why_not_native(self.weight_zero_point):
            check_reference_may_run(self.unit or type(self).__name__, reason)
        x = self.qparams("x") if self.x is None else self.x
        return PackedRecurrent.of(self.shape, self.unpacked_weight(), self.weight_scale, self.bias, x)

    def _finished(self, result: Any) -> Any:
        """Bring every tensor of a result into the form that the float layer gives."""
        form = self.float_result or FloatResult()
        if isinstance(result, PackedSequence):
            return result._replace(data=form.of(result.data))
        if isinstance(result, tuple):
            return tuple(self._finished(each) for each in result)
        return result.to(form.dtype)

    def extra_repr(self) -> str:
        shape = self.shape
        parts = [f"{shape.mode}, {shape.input_size}, {shape.hidden_size}"]
        parts += [f"num_layers={shape.num_layers}"] if shape.num_layers != 1 else []
        parts += ["bidirectional=True"] if shape.bidirectional else []
        parts += [f"proj_size={shape.proj_size}"] if shape.proj_size else []
        parts += ["bias=False"] if not shape.bias else []
        x = "" if self.x is None else f"x: {self.x.scheme} per call, "
        return f"{', '.join(parts)}\n{x}{super().extra_repr()}"
