"""What passes over ONNX graphs share: constants, qparams of quantize and dequantize nodes, and insertion of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fxquant.exporting.onnx.extras import onnx_ir

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"

INTEGER_ENDS = {"UINT8": (0, 255), "INT8": (-128, 127), "UINT16": (0, 65535), "INT16": (-32768, 32767)}


@dataclass(frozen=True, slots=True)
class TensorQParams:
    """Constant qparams per tensor of a quantize or dequantize node."""

    scale: float
    zero_point: int
    dtype: str
    """Name of the type of the integers in ONNX."""

    @property
    def ends(self) -> tuple[int, int]:
        """First and last integer of the type."""
        return INTEGER_ENDS[self.dtype]

    def quantize(self, value: float) -> int:
        """Round a number as QuantizeLinear does, without clamping."""
        steps = torch.tensor(value, dtype=torch.float32) / torch.tensor(self.scale, dtype=torch.float32)
        return int(steps.round()) + self.zero_point


class Editor:
    """A graph of onnx_ir, and short ways to read and to change it."""

    def __init__(self, model: Any) -> None:
        self.ir = onnx_ir()
        self.model = model
        self.graph = model.graph

    def nodes(self, *kinds: str) -> list[Any]:
        """Return the nodes of some types of operators, as they are now."""
        return [node for node in self.graph if node.op_type in kinds and node.domain == ""]

    def constant(self, value: Any) -> Tensor | None:
        """Return the numbers of a constant; None for what is computed, and for types that torch does not have."""
        if value is None:
            return None
        found = self.ir.convenience.get_const_tensor(value)
        try:
            return None if found is None else torch.from_numpy(found.numpy().copy())
        except TypeError:
            return None

    def qparams(self, node: Any) -> TensorQParams | None:
        """Qparams of a quantize or dequantize node; None where they are no constants, or not per tensor."""
        if node is None or node.op_type not in (QUANTIZE, DEQUANTIZE) or len(node.inputs) < 3:
            return None
        scale, zero_point = self.constant(node.inputs[1]), self.constant(node.inputs[2])
        if scale is None or zero_point is None or scale.numel() != 1 or node.inputs[2].dtype is None:
            return None
        dtype = node.inputs[2].dtype.name
        return TensorQParams(float(scale), int(zero_point), dtype) if dtype in INTEGER_ENDS else None

    def source(self, value: Any) -> TensorQParams | None:
        """Qparams of a value that a dequantize node gives; None for another."""
        producer = None if value is None else value.producer()
        return self.qparams(producer) if producer is not None and producer.op_type == DEQUANTIZE else None

    def readers(self, value: Any) -> list[Any]:
        """Return the nodes that read a value, each as often as it does."""
        return [usage.node for usage in value.uses()]

    def initializer(self, tensor: Any, name: str) -> Any:
        """Add a constant under a name that no constant, input or output has.

        Args:
            tensor: Of torch, or of onnx_ir.
            name: What to call it.
        """
        stored = self.ir.tensor(tensor.numpy()) if isinstance(tensor, Tensor) else tensor
        taken = {value.name for value in (*self.graph.inputs, *self.graph.outputs)} | set(self.graph.initializers)
        free, number = name, 0
        while free in taken:
            number += 1
            free = f"{name}_{number}"
        kind, shape = self.ir.TensorType(stored.dtype), self.ir.Shape(stored.shape)
        value = self.ir.Value(name=free, type=kind, shape=shape, const_value=stored)
        self.graph.register_initializer(value)
        return value

    def insert(
        self,
        op_type: str,
        inputs: Sequence[Any],
        attributes: Mapping[str, Any] | None = None,
        *,
        before: Any,
        like: Any,
        shape: Any = None,
        dtype: str | None = None,
    ) -> Any:
        """Add a node of one output.

        Args:
            op_type: Of the default domain.
            inputs: Values.
            attributes: By name.
            before: The node in front of which it stands.
            like: A value whose shape and type the result has, unless others are given.
            shape: Of the result.
            dtype: The same.

        Returns:
            The value that it gives.
        """
        node = self.ir.node(op_type, inputs, dict(attributes or {}))
        value = node.outputs[0]
        value.shape = like.shape if shape is None else self.ir.Shape(shape)
        value.type = like.type if dtype is None else self.ir.TensorType(self.ir.DataType[dtype])
        self.graph.insert_before(before, node)
        return value

    def quantize_again(self, value: Any, qparams_of: Any) -> Any:
        """Put a quantize and a dequantize after a value whose numbers lie on qparams already.

        Args:
            value: All that reads it reads the result of these then.
            qparams_of: A quantize or dequantize node with the qparams.

        Returns:
            What the dequantize gives.
        """
        ir, qparams = self.ir, list(qparams_of.inputs[1:])
        q = ir.node(QUANTIZE, [value, *qparams], {})
        q.outputs[0].shape, q.outputs[0].type = value.shape, ir.TensorType(qparams[1].dtype)
        dq = ir.node(DEQUANTIZE, [q.outputs[0], *qparams], {})
        dq.outputs[0].shape, dq.outputs[0].type = value.shape, value.type
        usages = list(value.uses())
        self.graph.insert_after(value.producer(), [q, dq])
        for usage in usages:
            if usage.node is not q:
                usage.node.replace_input_with(usage.idx, dq.outputs[0])
        return dq.outputs[0]
