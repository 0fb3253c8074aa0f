"""Forms of layers that runtimes have integer kernels for."""

from __future__ import annotations

from typing import Any

import torch

from fxquant.exporting.onnx.clamps import implies
from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE, Editor

MATRIX = (1, 0)
"""The permutation that transposes a matrix."""


def mean_to_global_pool(editor: Editor) -> None:
    """Make ``GlobalAveragePool`` of a mean over all dimensions after the channels: ``ReduceMean`` is float."""
    for node in editor.nodes("ReduceMean"):
        x = node.inputs[0]
        axes = editor.constant(node.inputs[1]) if len(node.inputs) > 1 else None
        if axes is None or x.shape is None or len(x.shape) < 3:
            continue
        rank = len(x.shape)
        if sorted(int(axis) % rank for axis in axes) != list(range(2, rank)) or editor.source(x) is None:
            continue
        shape = [*x.shape[:2], *[1] * (rank - 2)]
        result = node.outputs[0]
        pooled = editor.insert("GlobalAveragePool", [x], before=node, like=result, shape=shape)
        if node.attributes.get_int("keepdims", 1):
            result.replace_all_uses_with(pooled)
            if not result.is_graph_output():
                editor.graph.remove(node, safe=True)
            continue
        squeezed = editor.insert("Squeeze", [pooled, node.inputs[1]], before=node, like=result)
        result.replace_all_uses_with(squeezed, replace_graph_outputs=True)
        editor.graph.remove(node, safe=True)
        _quantize_first(editor, pooled, squeezed)


def hard_sigmoid_to_sum(editor: Editor) -> None:
    """Make a sum of a ``HardSigmoid`` of integers, ``alpha * x + beta``: there are kernels that add integers.

    The quantize behind it clamps to 0 and 1, where its integers end. ``alpha`` becomes part of the scale of ``x``, and
    ``beta`` a quantized constant.
    """
    for node in editor.nodes("HardSigmoid"):
        x, result = node.inputs[0], node.outputs[0]
        alpha, beta = node.attributes.get_float("alpha", 0.2), node.attributes.get_float("beta", 0.5)
        qparams, readers = editor.source(x), editor.readers(result)
        if qparams is None or not readers or result.is_graph_output() or alpha <= 0 or beta <= 0:
            continue
        if not all(reader.op_type == QUANTIZE and implies(editor, reader, (0.0, 1.0)) for reader in readers):
            continue
        integers, _, zero_point = x.producer().inputs
        slope = editor.initializer(torch.tensor(qparams.scale * alpha), "slope_scale")
        line = editor.insert(DEQUANTIZE, [integers, slope, zero_point], before=node, like=x)
        point, last = editor.constant(zero_point), qparams.ends[1]
        assert point is not None  # its qparams are constants
        # Kernels add integers of one type.
        stored = [torch.full_like(point, last), torch.tensor(beta / last), torch.zeros_like(point)]
        names = ("middle_q", "middle_scale", "middle_zero_point")
        constants = [editor.initializer(tensor, name) for tensor, name in zip(stored, names, strict=True)]
        middle = editor.insert(DEQUANTIZE, constants, before=node, like=x, shape=[])
        result.replace_all_uses_with(editor.insert("Add", [line, middle], before=node, like=result))
        editor.graph.remove(node, safe=True)


def gemm_of_floats_to_product(editor: Editor) -> None:
    """Make ``MatMul`` and ``Add`` of a ``Gemm`` of float values and quantized weights, which no runtime fuses.

    Where a bias is added, the product is of three dimensions: of matrices ONNX Runtime makes a ``Gemm`` again.
    """
    for node in editor.nodes("Gemm"):
        x, weight, *bias = node.inputs
        dequantize = weight.producer()
        if dequantize is None or dequantize.op_type != DEQUANTIZE or editor.constant(dequantize.inputs[0]) is None:
            continue
        flags = {name: node.attributes.get_int(name, 0) for name in ("transA", "transB")}
        factors = [node.attributes.get_float(name, 1.0) for name in ("alpha", "beta")]
        if flags != {"transA": 0, "transB": 1} or factors != [1.0, 1.0] or editor.source(x) is not None:
            continue
        result, turned = node.outputs[0], list(reversed(weight.shape))
        matrix = editor.insert("Transpose", [weight], {"perm": MATRIX}, before=node, like=weight, shape=turned)
        if bias and bias[0] is not None:
            first, rows, outer = editor.initializer(torch.tensor([0]), "first"), list(x.shape)[:1], list(result.shape)
            deep = editor.insert("Unsqueeze", [x, first], before=node, like=x, shape=[1, *x.shape])
            product = editor.insert("MatMul", [deep, matrix], before=node, like=result, shape=[1, *rows, outer[1]])
            added = editor.insert("Add", [product, bias[0]], before=node, like=result, shape=[1, *rows, outer[1]])
            made = editor.insert("Squeeze", [added, first], before=node, like=result)
        else:
            made = editor.insert("MatMul", [x, matrix], before=node, like=result)
        result.replace_all_uses_with(made, replace_graph_outputs=True)
        editor.graph.remove(node, safe=True)


def matrix_products(editor: Editor) -> None:
    """Store the weight of a product as it is multiplied: [K, N], with no transpose in the graph."""
    for node in editor.nodes("MatMul"):
        # Find weight, dequantize, transpose, product.
        transpose = node.inputs[1].producer()
        if transpose is None or transpose.op_type != "Transpose" or not _is_matrix(transpose):
            continue
        dequantize = transpose.inputs[0].producer()
        if dequantize is None or dequantize.op_type != DEQUANTIZE:
            continue
        weight = editor.constant(dequantize.inputs[0])
        qparams = [editor.constant(value) for value in dequantize.inputs[1:]]
        if weight is None or weight.dim() != 2 or any(each is None for each in qparams):
            continue
        # Transpose the integers instead, and what stands for groups of them.
        block = dequantize.attributes.get_int("block_size", 0)
        turned = [each.t().contiguous() if block and each is not None else each for each in qparams]
        name = dequantize.inputs[0].name or "weight"
        inputs = [editor.initializer(weight.t().contiguous(), name)]
        for value, tensor in zip(dequantize.inputs[1:], turned, strict=True):
            inputs.append(editor.initializer(tensor, value.name) if block else value)
        axis = 1 - dequantize.attributes.get_int("axis", 1)
        attributes = {"axis": axis, **({"block_size": block} if block else {})}
        shape = list(transpose.outputs[0].shape)
        result = editor.insert(DEQUANTIZE, inputs, attributes, before=node, like=dequantize.outputs[0], shape=shape)
        node.replace_input_with(1, result)


def product_to_gemm(editor: Editor) -> None:
    """Make ``Gemm`` between two reshapes of a product with a bias: of more than two dimensions it is fused in parts.

    The input must be of integers, and the weight a constant. What quantizes the sum stands right after the ``Gemm``.
    """
    for node in editor.nodes("Add"):
        product, bias = _product_and_bias(editor, node)
        if product is None:
            continue
        x, weight = product.inputs
        dequantize = weight.producer()
        if editor.source(x) is None or dequantize is None or dequantize.op_type != DEQUANTIZE:
            continue
        result = node.outputs[0]
        inner, outer = (int(weight.shape[axis]) for axis in (0, 1))
        flat = editor.initializer(torch.tensor([-1, inner]), "rows")
        rows = editor.insert("Reshape", [x, flat], before=node, like=x, shape=[None, inner])
        sums = editor.insert("Gemm", [rows, weight, bias], before=node, like=result, shape=[None, outer])
        shape = _shape_of(editor, node, x, outer)
        back = editor.insert("Reshape", [sums, shape], before=node, like=result)
        result.replace_all_uses_with(back, replace_graph_outputs=True)
        editor.graph.remove(node, safe=True)
        _quantize_first(editor, sums, back)


def _quantize_first(editor: Editor, value: Any, moved: Any) -> None:
    """Quantize a value by what quantizes it where it was moved to, if nothing else reads it there."""
    readers = editor.readers(moved)
    if readers and all(reader.op_type == QUANTIZE for reader in readers):
        qparams = {editor.qparams(reader) for reader in readers}
        if len(qparams) == 1 and None not in qparams and not moved.is_graph_output():
            editor.quantize_again(value, readers[0])


def _is_matrix(transpose: Any) -> bool:
    return tuple(transpose.attributes.get_ints("perm", ())) == MATRIX


def _product_and_bias(editor: Editor, add: Any) -> tuple[Any, Any]:
    """Return the product of a matrix that a sum adds a constant row to, and the row; or two None."""
    for value, other in (add.inputs, add.inputs[::-1]):
        producer = value.producer()
        bias = editor.constant(other)
        if bias is None or bias.dim() != 1 or producer is None or producer.op_type != "MatMul":
            continue
        weight = producer.inputs[1]
        if weight.shape is not None and len(weight.shape) == 2 and len(editor.readers(value)) == 1:
            return producer, other
    return None, None


def _shape_of(editor: Editor, node: Any, x: Any, outer: int) -> Any:
    """Return a constant with the shape of the result, or what computes it where two sizes are open."""
    sizes = [size if isinstance(size, int) else -1 for size in x.shape[:-1]]
    if sizes.count(-1) <= 1:
        return editor.initializer(torch.tensor([*sizes, outer]), "shape")
    leading = editor.ir.node("Shape", [x], {"start": 0, "end": -1})
    editor.graph.insert_before(node, leading)
    last = editor.initializer(torch.tensor([outer]), "columns")
    return editor.insert(
        "Concat", [leading.outputs[0], last], {"axis": 0}, before=node, like=last, shape=[len(sizes) + 1]
    )
