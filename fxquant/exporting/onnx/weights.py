"""Weights of 4 bits in half a byte each, where a runtime has kernels for them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from fxquant.exporting.onnx.editing import DEQUANTIZE, Editor

HALF_ENDS = {"INT8": ("INT4", -8, 7), "UINT8": ("UINT4", 0, 15)}
"""Type of a stored weight -> the type of half its width, and what that holds."""


def pack_weights(editor: Editor, packed: bool = False) -> None:
    """Store weights whose values all fit 4 bits in 4 bits.

    Args:
        editor: Of the graph.
        packed: False: only those in blocks, which are multiplied with floats. True: all; a runtime then multiplies
            floats.
    """
    for node in editor.nodes(DEQUANTIZE):
        blocked = node.attributes.get_int("block_size", 0) > 0
        weight = node.inputs[0]
        if not (packed or blocked) or weight.dtype is None or weight.dtype.name not in HALF_ENDS:
            continue
        kind, low, high = HALF_ENDS[weight.dtype.name]
        points = node.inputs[2] if len(node.inputs) > 2 else None
        tensors = [editor.constant(value) for value in (weight, points) if value is not None]
        if not all(tensor is not None and low <= int(tensor.min()) <= int(tensor.max()) <= high for tensor in tensors):
            continue
        node.replace_input_with(0, _in_halves(editor, weight, kind))
        if points is not None:
            node.replace_input_with(2, _in_halves(editor, points, kind))


def _in_halves(editor: Editor, value: Any, kind: str) -> Any:
    tensor = editor.constant(value)
    assert isinstance(tensor, Tensor)  # the caller looked at it
    dtype = editor.ir.DataType[kind]
    stored = editor.ir.tensor(tensor.numpy().astype(dtype.numpy()))
    return editor.initializer(stored, f"{value.name}_{kind.lower()}")
