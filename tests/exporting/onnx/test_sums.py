"""The error that sums of products may have in another order, of units with each kind of layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from fxquant.exporting.onnx import check  # noqa: E402
from fxquant.exporting.onnx.runtimes import RUNTIMES  # noqa: E402
from fxquant.exporting.onnx.sums import error_of_sums  # noqa: E402
from fxquant.exporting.onnx.units import units_of  # noqa: E402

LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], int, Any, dict[str, Any]]] = {
    "Gemm": ((3, 40), (5, 40), 40, F.linear, {"transB": 1}),
    "MatMul": ((2, 3, 40), (40, 5), 40, lambda x, w, b: x @ w + b, {}),
    "Conv": ((1, 6, 7, 7), (4, 3, 3, 3), 27, lambda x, w, b: F.conv2d(x, w, b, groups=2), {"group": 2}),
    "ConvTranspose": ((1, 6, 7, 7), (6, 4, 3, 3), 54, F.conv_transpose2d, {}),
}


def unit_of(kind: str, scale: float = 0.5) -> tuple[Any, Any, dict[str, Any], Tensor]:
    """A model of one layer between quantized values, its only unit, its input, and the sums of sizes."""
    x_shape, w_shape, _, run, attributes = LAYERS[kind]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, x_shape, generator=generator, dtype=torch.uint8)
    w = torch.randint(-127, 128, w_shape, generator=generator, dtype=torch.int8)
    bias = torch.randn(5 if kind in ("Gemm", "MatMul") else 4, generator=generator)
    helper, kinds, stored = onnx.helper, onnx.TensorProto, onnx.numpy_helper.from_array
    constants = {"w_q": w, "s": torch.tensor(0.1), "z": torch.tensor(128, dtype=torch.uint8), "b": bias}
    constants |= {"zw": torch.tensor(0, dtype=torch.int8), "sy": torch.tensor(scale)}
    inputs = ["x", "w"] if kind == "MatMul" else ["x", "w", "b"]
    nodes = [
        helper.make_node("DequantizeLinear", ["x_q", "s", "z"], ["x"]),
        helper.make_node("DequantizeLinear", ["w_q", "s", "zw"], ["w"]),
        helper.make_node(kind, inputs, ["sum"], **attributes),
        helper.make_node("Relu", ["sum"], ["y"]),
        helper.make_node("QuantizeLinear", ["y", "sy", "z"], ["y_q"]),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x_q", kinds.UINT8, x_shape)],
        [helper.make_tensor_value_info("y_q", kinds.UINT8, None)],
        [stored(value.numpy(), name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (unit,) = units_of(model, {"y_q": "y"})
    sizes = run(((x.float() - 128) * 0.1).abs(), (w.float() * 0.1).abs(), bias.abs() * (kind != "MatMul"))
    return model, unit, {"x_q": x.numpy()}, sizes


@pytest.mark.parametrize("kind", LAYERS)
def test_it_grows_with_the_sizes_and_the_root_of_their_number(kind: str) -> None:
    model, unit, arrays, sizes = unit_of(kind)
    found = error_of_sums(model, unit, arrays, RUNTIMES["onnxruntime"])
    wanted = 2 * math.sqrt(LAYERS[kind][2]) * 2.0**-24 * float(sizes.max())
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_tie_of_small_steps_is_wider() -> None:
    """With steps of a hundredth, sums in another order may be on either side of a value a tenth away."""
    model, unit, arrays, _ = unit_of("Gemm", scale=1e-2)
    error = error_of_sums(model, unit, arrays, RUNTIMES["onnxruntime"]) / 1e-2
    assert 0.1 < error < 0.2
    found, wanted, distance = torch.tensor([3]), torch.tensor([2]), torch.tensor([0.1])
    assert check.compared(found, wanted, distance) == (1, 1, 1.0)
    assert check.compared(found, wanted, distance, error=error) == (1, 0, 1.0)
