"""ONNX Runtime and OpenVINO on the same ONNX models, for ``python -m fxquant conformance --adapter``.

Layers are written as exporters write them, with QuantizeLinear and DequantizeLinear around float operators, which both
runtimes fuse into integer ones as far as they can.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from fxquant.conformance.adapter import Refusal
from fxquant.conformance.case import Case

OPSET = 21
TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "uint4": TensorProto.UINT4,
    "int4": TensorProto.INT4,
    "int16": TensorProto.INT16,
}
LIMITS = {"uint8": [0, 255], "int8": [-128, 127], "uint4": [0, 15], "int4": [-8, 7], "int16": [-(2**15), 2**15 - 1]}


class Model:
    """An ONNX graph that is being written."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.feed: dict[str, np.ndarray] = {}

    def given(self, name: str, values: np.ndarray) -> str:
        """An input of the model."""
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self.inputs.append(helper.make_tensor_value_info(name, kind, values.shape))
        self.feed[name] = values
        return name

    def constant(self, values: Any, dtype: str) -> str:
        """A constant of one of ``TYPES``, or float32 or int32."""
        name = f"c{len(self.constants)}"
        array = np.asarray(values)
        if dtype in ("uint4", "int4"):
            tensor = helper.make_tensor(name, TYPES[dtype], array.shape, array.flatten().astype(int).tolist())
        else:
            tensor = numpy_helper.from_array(array.astype(dtype), name)
        self.constants.append(tensor)
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """A node; its result."""
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def real(self, q: str, scale: Any, zero_point: Any, dtype: str, axis: int | None = None) -> str:
        """DequantizeLinear."""
        qparams = self.constant(scale, "float32"), self.constant(zero_point, dtype)
        return self.add("DequantizeLinear", q, *qparams, **({} if axis is None else {"axis": axis}))

    def stored(self, x: str, scale: Any, zero_point: Any, dtype: str, axis: int | None = None) -> str:
        """QuantizeLinear."""
        qparams = self.constant(scale, "float32"), self.constant(zero_point, dtype)
        return self.add("QuantizeLinear", x, *qparams, **({} if axis is None else {"axis": axis}))

    def finish(self, y: str, dtype: str, shape: Sequence[int]) -> bytes:
        """The model with the result ``y``."""
        output = helper.make_tensor_value_info(y, TYPES.get(dtype, TensorProto.FLOAT), list(shape))
        graph = helper.make_graph(self.nodes, "case", self.inputs, [output], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
        onnx.checker.check_model(model)
        return model.SerializeToString()


def written(case: Case) -> tuple[bytes, dict[str, np.ndarray]] | Refusal:
    """The case as an ONNX model, and what to feed it with."""
    at, model, shape = case.attributes, Model(), case.expected.shape
    if case.operator in ("quantize", "fake_quantize"):
        dtype = at.get("dtype") or ("int8" if at["limits"][0] < 0 else "uint8")
        if at["limits"] != LIMITS.get(dtype):
            return Refusal(f"QuantizeLinear has no limits, and no such type: {dtype} {at['limits']}")
        qparams = (at["scale"], at["zero_point"]) if "axis" in at else (at["scale"][0], at["zero_point"][0])
        y = model.stored(model.given("x", case.inputs["x"].numpy()), *qparams, dtype, at.get("axis"))
        if case.operator == "fake_quantize":
            y, dtype = model.real(y, *qparams, dtype), "float32"
        elif dtype in ("int4", "uint4"):  # which NumPy does not have
            dtype = dtype.replace("4", "8")
            y = model.add("Cast", y, to=TYPES[dtype])
        return model.finish(y, dtype, shape), model.feed
    if case.operator == "qparams":
        if at["dtype"] != "uint8" or at["symmetric"]:
            return Refusal("DynamicQuantizeLinear chooses qparams for uint8 alone, not symmetric ones")
        return _range(model, case)
    if case.operator == "dequantize":
        x = model.given("x", case.inputs["x"].numpy().astype(at["dtype"]))
        y = model.real(x, at["scale"][0], at["zero_point"][0], at["dtype"])
        return model.finish(y, "float32", shape), model.feed
    names = ("a", "b") if "a" in case.inputs else ("x",)
    real = [_given(model, case, name) for name in names]
    y = _operator(model, case, real)
    if isinstance(y, Refusal):
        return y
    if case.operator == "max_pool2d":
        at = {**at, "y_scale": at["x_scale"], "y_zero_point": at["x_zero_point"]}
    dtype = at.get("y_dtype", "uint8")
    y = model.stored(y, at["y_scale"], at["y_zero_point"], dtype)
    return model.finish(y, dtype, shape), model.feed


def _range(model: Model, case: Case) -> tuple[bytes, dict[str, np.ndarray]]:
    x = model.given("x", case.inputs["x"].numpy())
    model.nodes.append(helper.make_node("DynamicQuantizeLinear", [x], ["q", "scale", "zero_point"]))
    shape = model.constant([1], "int64")
    zero_point = model.add("Cast", model.add("Reshape", "zero_point", shape), to=TensorProto.FLOAT)
    y = model.add("Concat", model.add("Reshape", "scale", shape), zero_point, axis=0)
    return model.finish(y, "float32", [2]), model.feed


def _given(model: Model, case: Case, name: str) -> str:
    at = case.attributes
    dtype = at.get(f"{name}_dtype", "uint8")
    q = model.given(name, case.inputs[name].numpy().astype(dtype))
    return model.real(q, at[f"{name}_scale"], at[f"{name}_zero_point"], dtype)


def _operator(model: Model, case: Case, real: Sequence[str]) -> str | Refusal:
    at = case.attributes
    if case.operator in ("linear", "conv2d", "conv_transpose2d"):
        y = _layer(model, case, real[0])
    elif case.operator in ("avg_pool2d", "max_pool2d"):
        sides = [*at["padding"], *at["padding"]]
        window = {"kernel_shape": at["kernel_size"], "strides": at["stride"], "pads": sides}
        if case.operator == "max_pool2d":
            return model.add("MaxPool", real[0], **window)
        return model.add("AveragePool", real[0], **window, count_include_pad=int(at["count_include_pad"]))
    elif case.operator == "cat":
        return model.add("Concat", *real, axis=0)
    else:
        y = model.add({"add": "Add", "mul": "Mul", "matmul": "MatMul"}[case.operator], *real)
    low, high = at.get("activation", (None, None))
    if high is not None:
        return model.add("Clip", y, model.constant(low, "float32"), model.constant(high, "float32"))
    return y if low is None else model.add("Relu", y)


def _layer(model: Model, case: Case, x: str) -> str:
    at, integers = case.attributes, case.inputs["weight"]
    per_channel = len(set(at["weight_scale"])) > 1
    scale = np.asarray(at["weight_scale"] if per_channel else at["weight_scale"][0], dtype=np.float32)
    q = model.constant(integers.numpy(), "int8")
    zeros = np.zeros_like(scale)
    weight = model.real(q, scale, zeros, "int8", 0 if per_channel else None)
    # As exporters write it: a bias in int32, in steps of the sum.
    steps = np.asarray(at["bias"], dtype=np.float64) / (at["x_scale"] * scale)
    assert np.all(steps == np.round(steps)), case.name
    step = (at["x_scale"] * scale).astype(np.float32)
    bias = model.real(model.constant(steps, "int32"), step, zeros, "int32", 0 if per_channel else None)
    if case.operator == "linear":
        return model.add("Gemm", x, weight, bias, transB=1)
    sides = [*at["padding"], *at["padding"]]
    geometry = {"strides": at["stride"], "pads": sides, "dilations": at["dilation"], "group": at["groups"]}
    if case.operator == "conv2d":
        return model.add("Conv", x, weight, bias, **geometry)
    return model.add("ConvTranspose", x, weight, bias, **geometry, output_padding=at["output_padding"])


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(values).astype(np.float64))


class OnnxRuntime:
    """The CPU provider, as it comes."""

    name = "ONNX Runtime"
    path = ""

    def __init__(self) -> None:
        import onnxruntime

        self.runtime = onnxruntime
        self.version = f"onnxruntime {onnxruntime.__version__}, CPU provider"

    def run(self, case: Case) -> Tensor | Refusal:
        """Load the model and run it."""
        made = written(case)
        if isinstance(made, Refusal):
            return made
        options = self.runtime.SessionOptions()
        options.log_severity_level = 4
        session = self.runtime.InferenceSession(made[0], options, providers=["CPUExecutionProvider"])
        return _tensor(session.run(None, made[1])[0])


class OpenVino:
    """The CPU plugin; floats in float32, which it takes for bfloat16 on some CPUs if it is not told."""

    name = "OpenVINO"
    path = ""

    def __init__(self) -> None:
        import openvino

        self.core = openvino.Core()
        self.version = f"openvino {openvino.__version__.partition('-')[0]}, CPU, f32"

    def run(self, case: Case) -> Tensor | Refusal:
        """Read the same ONNX model, compile it and run it."""
        made = written(case)
        if isinstance(made, Refusal):
            return made
        model = self.core.read_model(made[0])
        compiled = self.core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return _tensor(next(iter(compiled(made[1]).values())))
