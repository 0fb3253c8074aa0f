"""torch.ao's quantized tensors and operators, for ``python -m fxquant conformance --adapter``."""

from __future__ import annotations

import warnings
from typing import Any

import torch
import torch.ao.quantization
from torch import Tensor

from fxquant.conformance.adapter import Refusal
from fxquant.conformance.case import Case

DTYPES = {"uint8": torch.quint8, "int8": torch.qint8}
FULL = {"uint8": [0, 255], "int8": [-128, 127]}


class TorchAo:
    """The operators that ``convert_fx`` puts into a model, with the engine that torch takes by itself on x86."""

    engine = "x86"
    name = "torch.ao x86"
    path = ""

    def __init__(self) -> None:
        self.version = f"torch {torch.__version__}, engine {self.engine}"

    def run(self, case: Case) -> Tensor | Refusal:
        """Run the quantized operator of the same name."""
        before = torch.backends.quantized.engine
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it is deprecated
            torch.backends.quantized.engine = self.engine
            try:
                return getattr(self, f"_{case.operator}")(case)
            finally:
                torch.backends.quantized.engine = before

    def _quantize(self, case: Case) -> Tensor | Refusal:
        at, x = case.attributes, case.inputs["x"]
        if at["limits"] != FULL.get(at["dtype"]):
            return Refusal(f"no quantized tensors of {at['dtype']} with limits {at['limits']}")
        dtype = DTYPES[at["dtype"]]
        if "axis" not in at:
            return torch.quantize_per_tensor(x, at["scale"][0], at["zero_point"][0], dtype).int_repr()
        scale, zero_point = torch.tensor(at["scale"]), torch.tensor(at["zero_point"])
        return torch.quantize_per_channel(x, scale, zero_point, at["axis"] % x.dim(), dtype).int_repr()

    def _dequantize(self, case: Case) -> Tensor:
        at = case.attributes
        return _stored(case, "x", at["scale"][0], at["zero_point"][0], at["dtype"]).dequantize()

    def _fake_quantize(self, case: Case) -> Tensor:
        at = case.attributes
        return torch.fake_quantize_per_tensor_affine(
            case.inputs["x"], at["scale"][0], at["zero_point"][0], *at["limits"]
        )

    def _linear(self, case: Case) -> Tensor | Refusal:
        at = case.attributes
        if (refusal := _refusal(at)) is not None:
            return refusal
        packed = torch.ops.quantized.linear_prepack(_weight(case), torch.tensor(at["bias"], dtype=torch.float32))
        run = torch.ops.quantized.linear_relu if at["activation"] == [0, None] else torch.ops.quantized.linear
        return run(_qparams(case, "x"), packed, at["y_scale"], at["y_zero_point"]).int_repr()

    def _conv2d(self, case: Case) -> Tensor | Refusal:
        at = case.attributes
        if (refusal := _refusal(at)) is not None:
            return refusal
        geometry = at["stride"], at["padding"], at["dilation"], at["groups"]
        bias = torch.tensor(at["bias"], dtype=torch.float32)
        packed = torch.ops.quantized.conv2d_prepack(_weight(case), bias, *geometry)
        run = torch.ops.quantized.conv2d_relu if at["activation"] == [0, None] else torch.ops.quantized.conv2d
        return run(_qparams(case, "x"), packed, at["y_scale"], at["y_zero_point"]).int_repr()

    def _conv_transpose2d(self, case: Case) -> Tensor | Refusal:
        at = case.attributes
        weight = torch._make_per_tensor_quantized_tensor(case.inputs["weight"].to(torch.int8), at["weight_scale"][0], 0)
        geometry = at["stride"], at["padding"], at["output_padding"], at["dilation"], at["groups"]
        packed = torch.ops.quantized.conv_transpose2d_prepack(
            weight, torch.tensor(at["bias"], dtype=torch.float32), *geometry
        )
        return torch.ops.quantized.conv_transpose2d(
            _qparams(case, "x"), packed, at["y_scale"], at["y_zero_point"]
        ).int_repr()

    def _avg_pool2d(self, case: Case) -> Tensor | Refusal:
        at = case.attributes
        if (at["x_scale"], at["x_zero_point"]) != (at["y_scale"], at["y_zero_point"]):
            return Refusal("the result has the qparams of the input")
        window = at["kernel_size"], at["stride"], at["padding"]
        return torch.nn.functional.avg_pool2d(_qparams(case, "x"), *window, False, at["count_include_pad"]).int_repr()

    def _max_pool2d(self, case: Case) -> Tensor:
        at = case.attributes
        return torch.nn.functional.max_pool2d(
            _qparams(case, "x"), at["kernel_size"], at["stride"], at["padding"]
        ).int_repr()

    def _add(self, case: Case) -> Tensor:
        at = case.attributes
        run = torch.ops.quantized.add_relu if at["activation"] == [0, None] else torch.ops.quantized.add
        return run(_qparams(case, "a"), _qparams(case, "b"), at["y_scale"], at["y_zero_point"]).int_repr()

    def _mul(self, case: Case) -> Tensor:
        at = case.attributes
        return torch.ops.quantized.mul(
            _qparams(case, "a"), _qparams(case, "b"), at["y_scale"], at["y_zero_point"]
        ).int_repr()

    def _matmul(self, case: Case) -> Tensor:
        at = case.attributes
        run = torch.ops.quantized.matmul
        return run(_qparams(case, "a"), _qparams(case, "b"), at["y_scale"], at["y_zero_point"]).int_repr()

    def _qparams(self, case: Case) -> Tensor:
        at = case.attributes
        kind = torch.per_tensor_symmetric if at["symmetric"] else torch.per_tensor_affine
        observer = torch.ao.quantization.MinMaxObserver(dtype=DTYPES[at["dtype"]], qscheme=kind)
        observer(case.inputs["x"])
        return torch.cat([value.double().flatten() for value in observer.calculate_qparams()])

    def _cat(self, case: Case) -> Tensor:
        at = case.attributes
        both = [_qparams(case, "a"), _qparams(case, "b")]
        return torch.ops.quantized.cat(both, 0, at["y_scale"], at["y_zero_point"]).int_repr()


class TorchAoFbgemm(TorchAo):
    """The same with the engine that was the usual one before."""

    engine = "fbgemm"
    name = "torch.ao fbgemm"


def _refusal(at: Any) -> Refusal | None:
    if at["x_dtype"] != "uint8" or at["y_dtype"] != "uint8":
        return Refusal("its layers take and give uint8")
    if at["activation"] not in ([None, None], [0, None]):
        return Refusal("no fused operator with this activation")
    return None


def _stored(case: Case, name: str, scale: float, zero_point: int, dtype: str) -> Tensor:
    integers = case.inputs[name].to(getattr(torch, dtype))
    return torch._make_per_tensor_quantized_tensor(integers, scale, zero_point)


def _qparams(case: Case, name: str) -> Tensor:
    at = case.attributes
    return _stored(case, name, at[f"{name}_scale"], at[f"{name}_zero_point"], at.get(f"{name}_dtype", "uint8"))


def _weight(case: Case) -> Tensor:
    scales = torch.tensor(case.attributes["weight_scale"], dtype=torch.float64)
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    integers = case.inputs["weight"].to(torch.int8)
    return torch._make_per_channel_quantized_tensor(integers, scales, zeros, 0)
