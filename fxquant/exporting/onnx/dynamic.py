"""Ranges that are measured in each call."""

from __future__ import annotations

from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE, Editor

DYNAMIC = "DynamicQuantizeLinear"


def join_dynamic_quantization(editor: Editor) -> None:
    """Let one node measure and quantize, as ``DynamicQuantizeLinear`` does; the types of its results are its own."""
    ir = editor.ir
    for node in editor.nodes(DYNAMIC):
        q, scale, zero_point = node.outputs
        for value, dtype in ((q, "UINT8"), (scale, "FLOAT"), (zero_point, "UINT8")):
            value.type = ir.TensorType(ir.DataType[dtype])
        q.shape = node.inputs[0].shape
        for value in (scale, zero_point):
            value.shape = ir.Shape([])
        for reader in editor.readers(scale):
            if reader.op_type == QUANTIZE:
                reader.outputs[0].replace_all_uses_with(q)
                editor.graph.remove(reader, safe=True)
            elif reader.op_type == DEQUANTIZE:
                reader.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
