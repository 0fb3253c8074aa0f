"""Biases as the int32 that integer kernels add them as."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fxquant.errors import ExportError
from fxquant.exporting.onnx.editing import DEQUANTIZE, Editor

MOST = 2**31 - 1


def bias_to_int32(editor: Editor, rounds: bool | None = None) -> None:
    """Store biases of integer layers as int32 with a dequantize, whose scale is that of the products.

    Args:
        editor: Of the graph.
        rounds: True: every bias. False: none. None: those that are whole multiples of that scale already.

    Raises:
        ExportError: a bias does not fit, and it was asked for.
    """
    if rounds is False:
        return
    for node in editor.nodes("Conv", "Gemm", "Add"):
        layer, at = (node, 2) if node.op_type != "Add" else _product_of(editor, node)
        if layer is None or len(node.inputs) <= at or node.inputs[at] is None:
            continue
        bias, scale = editor.constant(node.inputs[at]), product_scale(editor, layer)
        if bias is None or scale is None or bias.dtype != torch.float32 or bias.dim() != 1:
            continue
        steps = (bias.double() / scale.double()).round()
        fits = bool((steps.abs() <= MOST).all())
        is_whole = fits and torch.equal(steps.to(torch.int32).float() * scale, bias)
        if rounds and not fits:
            raise ExportError(
                "a bias does not fit int32",
                at=node.inputs[at].name,
                got=f"up to {float(steps.abs().max()):.3g} steps of {float(scale.min()):.3g}",
                expected=f"at most {MOST:,}",
                hint="bias='float32'; or prepare(..., backend='onnxruntime'), which makes the steps larger",
            )
        if rounds or is_whole:
            _store(editor, node, at, steps.to(torch.int32), scale)


def product_scale(editor: Editor, layer: Any) -> Tensor | None:
    """Return the scale of the products that a layer adds up: float32, [1] or one for each output channel."""
    x, dequantize = editor.source(layer.inputs[0]), layer.inputs[1].producer()
    if x is None or dequantize is None or dequantize.op_type != DEQUANTIZE:
        return None
    weight = editor.constant(dequantize.inputs[1])
    if weight is None or weight.dim() > 1 or editor.constant(dequantize.inputs[0]) is None:
        return None
    return torch.tensor(x.scale, dtype=torch.float32) * weight.reshape(-1)


def _product_of(editor: Editor, add: Any) -> tuple[Any, int]:
    """Return the product of matrices that a sum adds a constant to, and the place of the constant."""
    for at in (1, 0):
        producer = add.inputs[1 - at].producer()
        if producer is not None and producer.op_type == "MatMul" and editor.constant(add.inputs[at]) is not None:
            return producer, at
    return None, 0


def _store(editor: Editor, node: Any, at: int, steps: Tensor, scale: Tensor) -> None:
    bias = node.inputs[at]
    name = bias.name or "bias"
    per_channel = scale.numel() > 1
    inputs = [
        editor.initializer(steps, f"{name}_q"),
        editor.initializer(scale if per_channel else scale.reshape(()), f"{name}_scale"),
        editor.initializer(torch.zeros(scale.shape if per_channel else (), dtype=torch.int32), f"{name}_zero_point"),
    ]
    result = editor.insert(DEQUANTIZE, inputs, {"axis": 0} if per_channel else {}, before=node, like=bias)
    node.replace_input_with(at, result)
