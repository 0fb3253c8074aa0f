"""What each pass makes of a small graph, node by node."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
import pytest
import torch

from fxquant.errors import ExportError
from fxquant.exporting.onnx.biases import bias_to_int32
from fxquant.exporting.onnx.clamps import drop_implied_clamps
from fxquant.exporting.onnx.data_movement import quantize_data_movement
from fxquant.exporting.onnx.dynamic import join_dynamic_quantization
from fxquant.exporting.onnx.editing import Editor, TensorQParams
from fxquant.exporting.onnx.layers import hard_sigmoid_to_sum, matrix_products, mean_to_global_pool, product_to_gemm
from fxquant.exporting.onnx.naming import name_values, qparams_of
from fxquant.exporting.onnx.passes import Choices, run_passes
from fxquant.exporting.onnx.weights import pack_weights

HEAD = '<ir_version: 10, opset_import: ["" : 21]>\n'
CONSTANTS = "float s = {0.5}, float t = {0.25}, uint8 z0 = {0}, uint8 z9 = {9}, int8 z = {0}"


def graph(inputs: str, outputs: str, body: str, constants: str = "") -> Editor:
    """A graph; ``s``, ``t``, ``z0``, ``z9`` and ``z`` are scales and zero points."""
    known = ", ".join(filter(None, [CONSTANTS, constants]))
    text = f"{HEAD}g ({inputs}) => ({outputs})\n<{known}>\n{{\n{body}\n}}"
    editor = Editor(ir.from_onnx_text(text))
    for name in list(editor.graph.initializers):  # text knows no scalars but by a list of one
        value = editor.graph.initializers[name]
        if name in ("s", "t", "z0", "z9", "z", "low", "high"):
            value.const_value = ir.tensor(value.const_value.numpy().reshape(()))
            value.shape = ir.Shape(())
    return editor


def kinds(editor: Editor) -> str:
    """Types of the nodes, in their order."""
    short = {"QuantizeLinear": "Q", "DequantizeLinear": "DQ"}
    return " ".join(short.get(node.op_type, node.op_type) for node in editor.graph)


def constant(editor: Editor, value: Any) -> torch.Tensor:
    found = editor.constant(value)
    assert found is not None
    return found


class TestImpliedClamps:
    @pytest.mark.parametrize(
        ("clamp", "quantize", "left"),
        [
            ("Relu(x)", "y, s, z0", "Q"),
            ("Relu(x)", "y, s, z9", "Relu Q"),  # 9 integers lie below 0
            ("Clip(x, low, high)", "y, s, z0", "Clip Q"),  # the last integer is 127.5
            ("Clip(x, low, high)", "y, h, z0", "Q"),  # 255 * 0.0235 is 6, but for less than half a step
            ("Clip(x, low)", "y, s, z0", "Q"),
            ("Clip(x, , high)", "y, h, z9", "Q"),  # the last integer is 246 * 0.0235 = 5.8: the range ends before
            ("Max(x, low)", "y, s, z0", "Q"),
            ("Min(x, high)", "y, h, z0", "Q"),
            ("Min(x, high)", "y, s, z0", "Min Q"),
        ],
    )
    def test_only_what_the_range_ends_at(self, clamp, quantize, left):
        constants = "float low = {0.0}, float high = {6.0}, float[1] h = {0.0235}"
        editor = graph("float[4] x", "uint8[4] q", f"y = {clamp}\nq = QuantizeLinear({quantize})", constants)
        drop_implied_clamps(editor)
        assert kinds(editor) == left

    def test_integers_that_are_clipped_end_earlier(self):
        body = "y = Relu(x)\nw = QuantizeLinear(y, s, z9)\nq = Clip(w, first)"
        editor = graph("float[4] x", "uint8[4] q", body, "uint8[1] first = {9}")
        drop_implied_clamps(editor)
        assert kinds(editor) == "Q Clip"

    def test_what_is_read_as_float_too_stays(self):
        body = "y = Relu(x)\nq = QuantizeLinear(y, s, z0)\nf = Neg(y)"
        editor = graph("float[4] x", "uint8[4] q, float[4] f", body)
        drop_implied_clamps(editor)
        assert kinds(editor) == "Relu Q Neg"


class TestDataMovement:
    def test_a_chain_to_a_layer_is_quantized(self):
        body = "x = DequantizeLinear(q, s, z0)\na = Transpose(x)\nb = Reshape(a, shape)\ny = MatMul(b, w)"
        editor = graph("uint8[2,4] q, float[2,3] w", "float[4,3] y", body, "int64[2] shape = {4, 2}")
        quantize_data_movement(editor)
        assert kinds(editor) == "DQ Transpose Q DQ Reshape Q DQ MatMul"
        qparams = {editor.qparams(node) for node in editor.nodes("QuantizeLinear", "DequantizeLinear")}
        assert qparams == {TensorQParams(0.5, 0, "UINT8")}

    def test_a_factor_becomes_part_of_the_scale(self):
        body = "x = DequantizeLinear(q, s, z9)\na = Transpose(x)\nb = Div(a, two)\nc = Transpose(b)\ny = MatMul(c, w)"
        editor = graph("uint8[2,4] q, float[4,3] w", "float[2,3] y", body, "float[1] two = {2.0}")
        quantize_data_movement(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == "DQ Transpose Q DQ Transpose Q DQ MatMul"
        found = [editor.qparams(node).scale for node in editor.nodes("QuantizeLinear", "DequantizeLinear")]
        assert found == [0.5, 0.5, 0.25, 0.25, 0.25]

    @pytest.mark.parametrize(("other", "left"), [("s", "DQ DQ Concat Q DQ MatMul"), ("t", "DQ DQ Concat MatMul")])
    def test_what_joins_values_of_the_same_qparams_moves_them(self, other, left):
        body = (
            f"x = DequantizeLinear(q, s, z0)\nv = DequantizeLinear(p, {other}, z0)\n"
            "a = Concat<axis = 1>(x, v)\ny = MatMul(a, w)"
        )
        editor = graph("uint8[2,4] q, uint8[2,4] p, float[8,3] w", "float[2,3] y", body)
        quantize_data_movement(editor)
        assert kinds(editor) == left

    def test_what_leads_to_floats_is_not(self):
        body = "x = DequantizeLinear(q, s, z0)\na = Transpose(x)\ny = Erf(a)"
        editor = graph("uint8[2,4] q", "float[4,2] y", body)
        quantize_data_movement(editor)
        assert kinds(editor) == "DQ Transpose Erf"

    def test_weighted_interpolation_moves_nothing(self):
        body = (
            'x = DequantizeLinear(q, s, z0)\na = Resize<mode = "linear">(x, , scales)\n'
            "y = AveragePool<kernel_shape = [2, 2]>(a)"
        )
        editor = graph("uint8[1,1,4,4] q", "float[1,1,7,7] y", body, "float[4] scales = {1.0, 1.0, 2.0, 2.0}")
        quantize_data_movement(editor)
        assert kinds(editor) == "DQ Resize AveragePool"


class TestMean:
    @pytest.mark.parametrize(
        ("axes", "keepdims", "left"),
        [
            ("-1, -2", 1, "DQ GlobalAveragePool Q"),
            ("2, 3", 0, "DQ GlobalAveragePool Q DQ Squeeze Q"),
            ("3", 1, "DQ ReduceMean Q"),
            ("1, 2", 0, "DQ ReduceMean Q"),
        ],
    )
    def test_over_all_places_it_is_a_pool(self, axes, keepdims, left):
        body = (
            f"x = DequantizeLinear(q, s, z0)\nm = ReduceMean<keepdims = {keepdims}>(x, axes)\n"
            "r = QuantizeLinear(m, t, z0)"
        )
        editor = graph("uint8[2,3,4,4] q", "uint8 r", body, f"int64[{len(axes.split(','))}] axes = {{{axes}}}")
        editor.nodes("DequantizeLinear")[0].outputs[0].shape = ir.Shape([2, 3, 4, 4])
        mean_to_global_pool(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == left


class TestHardSigmoid:
    @pytest.mark.parametrize(
        ("attributes", "quantize", "left"),
        [
            ("", "y, unit, z0", "DQ DQ Add Q"),
            ("<alpha = 0.1666666716>", "y, unit, z0", "DQ DQ Add Q"),
            ("", "y, t, z0", "DQ HardSigmoid Q"),  # the last integer stands for 63.75
            ("", "y, unit, z9", "DQ HardSigmoid Q"),  # 9 integers lie below 0
        ],
    )
    def test_where_the_range_ends_at_0_and_1_it_is_a_sum(self, attributes, quantize, left):
        body = f"x = DequantizeLinear(q, s, z9)\ny = HardSigmoid{attributes}(x)\nr = QuantizeLinear({quantize})"
        editor = graph("uint8[4] q", "uint8[4] r", body, "float[1] unit = {0.00392156886}")
        hard_sigmoid_to_sum(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == left
        if "Add" in left:
            x, middle = (editor.source(value) for value in editor.nodes("Add")[0].inputs)
            assert x == TensorQParams(pytest.approx(0.5 * (1 / 6 if attributes else 0.2)), 9, "UINT8")
            assert middle == TensorQParams(pytest.approx(0.5 / 255), 0, "UINT8")

    def test_of_floats_it_stays(self):
        editor = graph("float[4] x", "uint8[4] r", "y = HardSigmoid(x)\nr = QuantizeLinear(y, s, z0)")
        hard_sigmoid_to_sum(editor)
        assert kinds(editor) == "HardSigmoid Q"


LINEAR = """x = DequantizeLinear(q, s, z0)
dw = DequantizeLinear<axis = 0>(w, ws)
tw = Transpose<perm = [1, 0]>(dw)
p = MatMul(x, tw)
y = Add(p, b)"""
WEIGHTS = "int8[3,2] w = {1, 2, 3, 4, 5, 6}, float[3] ws = {0.5, 0.25, 1.0}, float[3] b = {1.0, 2.0, 3.0}"


def linear(rest: str = "", outputs: str = "float[2,5,3] y") -> Editor:
    editor = graph("uint8[2,5,2] q", outputs, LINEAR + rest, WEIGHTS)
    shapes = {"x": [2, 5, 2], "dw": [3, 2], "tw": [2, 3], "p": [2, 5, 3], "y": [2, 5, 3]}
    for node in editor.graph:
        for value in node.outputs:
            if value.name in shapes:
                value.shape, value.type = ir.Shape(shapes[value.name]), ir.TensorType(ir.DataType.FLOAT)
    return editor


class TestLinear:
    def test_a_weight_is_stored_as_it_is_multiplied(self):
        editor = linear()
        matrix_products(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == "DQ DQ MatMul Add"
        dequantize = editor.nodes("MatMul")[0].inputs[1].producer()
        assert constant(editor, dequantize.inputs[0]).tolist() == [[1, 3, 5], [2, 4, 6]]
        assert dequantize.attributes.get_int("axis") == 1

    def test_before_floats_it_is_a_gemm(self):
        editor = linear()
        matrix_products(editor)
        product_to_gemm(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == "DQ DQ Reshape Gemm Reshape"
        assert constant(editor, editor.nodes("Reshape")[1].inputs[1]).tolist() == [2, 5, 3]

    def test_it_is_quantized_right_behind_the_gemm(self):
        editor = linear("\nr = QuantizeLinear(y, t, z9)", "uint8[2,5,3] r")
        matrix_products(editor)
        product_to_gemm(editor)
        editor.ir.passes.common.RemoveUnusedNodesPass()(editor.model)
        assert kinds(editor) == "DQ DQ Reshape Gemm Q DQ Reshape Q"


class TestBiases:
    @pytest.mark.parametrize(("rounds", "stored"), [(None, True), (True, True), (False, False)])
    def test_whole_multiples_are_stored_as_int32(self, rounds, stored):
        editor = linear("\nr = QuantizeLinear(y, t, z9)", "uint8[2,5,3] r")
        matrix_products(editor)
        bias_to_int32(editor, rounds)
        dequantize = editor.nodes("Add")[0].inputs[1].producer()
        assert (dequantize is not None) == stored
        if stored:
            assert constant(editor, dequantize.inputs[0]).tolist() == [4, 16, 6]  # 1 / (0.5 * 0.5), …
            assert constant(editor, dequantize.inputs[1]).tolist() == [0.25, 0.125, 0.5]

    def test_others_only_if_that_is_asked_for(self):
        for rounds, stored in ((None, False), (True, True)):
            editor = linear()
            editor.graph.initializers["b"].const_value = ir.tensor(torch.tensor([0.9, 2.0, 3.0]).numpy())
            matrix_products(editor)
            bias_to_int32(editor, rounds)
            assert (editor.nodes("Add")[0].inputs[1].producer() is not None) == stored

    def test_one_that_does_not_fit_is_refused(self):
        editor = linear()
        editor.graph.initializers["b"].const_value = ir.tensor(torch.tensor([1e12, 2.0, 3.0]).numpy())
        matrix_products(editor)
        bias_to_int32(editor, None)
        assert editor.nodes("Add")[0].inputs[1].producer() is None
        with pytest.raises(ExportError) as caught:
            bias_to_int32(editor, True)
        assert str(caught.value).startswith("a bias does not fit int32\n  at:       b\n  got:      up to 4e+12 steps")


class TestWeights:
    @pytest.mark.parametrize(
        ("attributes", "packed", "dtype"),
        [
            ("axis = 0", False, "INT8"),
            ("axis = 0", True, "INT4"),
            ("axis = 1, block_size = 2", False, "INT4"),
        ],
    )
    def test_values_of_4_bits_lie_in_4_bits(self, attributes, packed, dtype):
        scales = "float[2,1] ws = {0.5, 0.5}" if "block" in attributes else "float[2] ws = {0.5, 0.5}"
        editor = graph(
            "float[2,2] x",
            "float[2,2] y",
            f"dw = DequantizeLinear<{attributes}>(w, ws)\ny = MatMul(x, dw)",
            f"int8[2,2] w = {{-8, 7, 0, 1}}, {scales}",
        )
        pack_weights(editor, packed)
        weight = editor.nodes("DequantizeLinear")[0].inputs[0]
        assert weight.dtype.name == dtype
        assert weight.const_value.numpy().astype(int).tolist() == [[-8, 7], [0, 1]]

    def test_wider_values_stay(self):
        body = "dw = DequantizeLinear<axis = 1, block_size = 2>(w, ws)\ny = MatMul(x, dw)"
        constants = "int8[2,2] w = {-9, 7, 0, 1}, float[2,1] ws = {0.5, 0.5}"
        editor = graph("float[2,2] x", "float[2,2] y", body, constants)
        pack_weights(editor, True)
        assert editor.nodes("DequantizeLinear")[0].inputs[0].dtype.name == "INT8"


def test_one_node_measures_and_quantizes():
    body = (
        "a, scale, point = DynamicQuantizeLinear(x)\nq = QuantizeLinear(x, scale, point)\n"
        "y = DequantizeLinear(q, scale, point)"
    )
    editor = graph("float[2,2] x", "float[2,2] y", body)
    join_dynamic_quantization(editor)
    assert kinds(editor) == "DynamicQuantizeLinear DQ"
    measure, dequantize = editor.graph
    assert dequantize.inputs[0] is measure.outputs[0]
    assert [value.dtype.name for value in measure.outputs] == ["UINT8", "FLOAT", "UINT8"]


def test_names_are_those_of_the_plan():
    body = (
        "c = Neg(x)\nq_1 = QuantizeLinear(c, s, z0)\nd = DequantizeLinear(q_1, s, z0)\n"
        "e = Neg(d)\nq_2 = QuantizeLinear(e, s, z0)\nq_3 = Clip(q_2, last)\ny = DequantizeLinear(q_3, s, z0)"
    )
    editor = graph("float[4] x", "float[4] y", body, "uint8[1] last = {7}")
    assert name_values(editor, {"q_1": "conv", "q_3": "conv"}) == {"conv_q": "q_1", "conv_q_1": "q_3"}
    names = [node.outputs[0].name for node in editor.graph]
    assert names == ["conv", "conv_q", "conv_dq", "conv_1", "conv_unclipped", "conv_q_1", "y"]
    assert all(not node.metadata_props and node.name == node.outputs[0].name for node in editor.graph)
    assert qparams_of(editor)["conv"] == {"scale": 0.5, "zero_point": 0, "dtype": "uint8"}


def test_the_whole_pipeline_leaves_a_valid_graph():
    editor = linear("\nm = Relu(y)\nr = QuantizeLinear(m, t, z0)", "uint8[2,5,3] r")
    run_passes(editor.model, Choices())
    assert kinds(editor) == "DQ DQ Reshape Q DQ DQ Gemm Q DQ Reshape Q"
    ir.passes.common.CheckerPass()(editor.model)
