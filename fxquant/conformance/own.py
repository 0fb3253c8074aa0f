"""fxquant's own operators: native, with each instruction set of this CPU, and the Python reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.conformance.adapter import Refusal
from fxquant.conformance.case import Case
from fxquant.kernels import dequantize, fake_quantize_per_tensor_affine, quantize
from fxquant.kernels.fake_quantize.fake_quantize import tensor_reference
from fxquant.kernels.library import available_isas, use_isa
from fxquant.kernels.quantize.dequantize import reference as dequantize_reference
from fxquant.kernels.quantize.quantize import reference as quantize_reference
from fxquant.nn import (
    QuantizedAdd,
    QuantizedAvgPool2d,
    QuantizedCat,
    QuantizedConv,
    QuantizedConvTranspose,
    QuantizedLinear,
    QuantizedMatmul,
    QuantizedMaxPool2d,
    QuantizedModule,
    QuantizedMul,
)
from fxquant.observers.qparams import choose_qparams
from fxquant.plan.spec import Clamp, QParams, QScheme

Attributes = Mapping[str, Any]

STORED = {"uint4": torch.uint8, "int4": torch.int8, "int2": torch.int8}
"""What holds integers that torch has no dtype for."""


class Own:
    """One way through fxquant.

    Args:
        path: An instruction set, or ``reference``.
    """

    name = "fxquant"
    version = fxq.__version__

    def __init__(self, path: str) -> None:
        self.path = path

    def run(self, case: Case) -> Tensor | Refusal:
        """Never refuses."""
        with nullcontext() if self.path == "reference" else use_isa(self.path):
            if case.operator in CONVERSIONS:
                return CONVERSIONS[case.operator](case, self.path == "reference")
            module, inputs = MODULES[case.operator](case)
            with torch.no_grad():
                return module.reference(*inputs) if self.path == "reference" else module(*inputs)


def own_adapters() -> tuple[Own, ...]:
    """Return all ways that this machine has."""
    return (*map(Own, available_isas()), Own("reference"))


def _stored(dtype: str) -> torch.dtype:
    return STORED.get(dtype) or getattr(torch, dtype)


def _quantize(case: Case, reference: bool) -> Tensor:
    at = case.attributes
    scale, zero_point = torch.tensor(at["scale"]), torch.tensor(at["zero_point"])
    run: Any = quantize_reference if reference else quantize
    return run(case.inputs["x"], scale, zero_point, *at["limits"], _stored(at["dtype"]), at.get("axis"))


def _dequantize(case: Case, reference: bool) -> Tensor:
    at = case.attributes
    scale, zero_point = torch.tensor(at["scale"]), torch.tensor(at["zero_point"], dtype=torch.int32)
    return (dequantize_reference if reference else dequantize)(
        case.inputs["x"].to(_stored(at["dtype"])), scale, zero_point
    )


def _fake_quantize(case: Case, reference: bool) -> Tensor:
    at = case.attributes
    run = tensor_reference if reference else fake_quantize_per_tensor_affine
    return run(case.inputs["x"], at["scale"][0], at["zero_point"][0], *at["limits"])


def _qparams(case: Case, reference: bool) -> Tensor:
    """Return one way, in Python, for all."""
    del reference
    at, (low, high) = case.attributes, case.inputs["x"]
    qparams = choose_qparams(low, high, QScheme(signed=at["dtype"] == "int8", symmetric=at["symmetric"]))
    return torch.stack([qparams.scale.double(), qparams.zero_point.double()]).flatten()


def _activation_qparams(at: Attributes, role: str) -> QParams:
    scheme = QScheme(signed=at.get(f"{role}_dtype", "uint8") == "int8")
    scale = torch.tensor([at[f"{role}_scale"]], dtype=torch.float32)
    return QParams(scheme, scale, torch.tensor([at[f"{role}_zero_point"]], dtype=torch.int32))


def _weight_qparams(at: Attributes, axis: int | None) -> QParams:
    scales = at["weight_scale"][: None if axis == 0 else 1]
    zero_points = torch.zeros(len(scales), dtype=torch.int32)
    return QParams(
        QScheme(signed=True, symmetric=True, axis=axis), torch.tensor(scales, dtype=torch.float32), zero_points
    )


def _clamp(at: Attributes) -> Clamp | None:
    low, high = at.get("activation", (None, None))
    return None if low is None and high is None else Clamp(low, high)


def _layer(make: Callable[[Case, Tensor], nn.Module], kind: Any, axis: int | None) -> Callable[[Case], Any]:
    """Return a maker of the lowered module of a float layer whose weight and bias are those of the case."""

    def lower(case: Case) -> tuple[QuantizedModule, tuple[Tensor, ...]]:
        at, integers = case.attributes, case.inputs["weight"]
        scales = torch.tensor(at["weight_scale"]).reshape(-1, *[1] * (integers.dim() - 1))
        weight = integers * (scales if axis == 0 else at["weight_scale"][0])
        layer: Any = make(case, weight)
        layer.weight = nn.Parameter(weight, requires_grad=False)
        layer.bias = nn.Parameter(torch.tensor(at["bias"], dtype=torch.float32), requires_grad=False)
        qparams = {
            "x": _activation_qparams(at, "x"),
            "weight": _weight_qparams(at, axis),
            "y": _activation_qparams(at, "y"),
        }
        return kind(layer, **qparams, activation=_clamp(at)), (_x(case),)

    return lower


def _x(case: Case, name: str = "x") -> Tensor:
    return case.inputs[name].to(_stored(case.attributes.get(f"{name}_dtype", "uint8")))


def _linear(case: Case, weight: Tensor) -> nn.Module:
    return nn.Linear(weight.shape[1], weight.shape[0])


def _conv(case: Case, weight: Tensor) -> nn.Module:
    make: Any = nn.Conv2d
    names = ("stride", "padding", "dilation", "groups")
    geometry = {name: case.attributes[name] for name in names}
    return make(weight.shape[1] * geometry["groups"], weight.shape[0], weight.shape[2:], **geometry)


def _conv_transpose(case: Case, weight: Tensor) -> nn.Module:
    make: Any = nn.ConvTranspose2d
    names = ("stride", "padding", "output_padding", "groups")
    geometry = {name: case.attributes[name] for name in names}
    return make(weight.shape[0], weight.shape[1] * geometry["groups"], weight.shape[2:], **geometry)


def _avg_pool(case: Case) -> Any:
    at = case.attributes
    window = at["kernel_size"], at["stride"], at["padding"]
    return QuantizedAvgPool2d(
        *window, False, at["count_include_pad"], x=_activation_qparams(at, "x"), y=_activation_qparams(at, "y")
    ), (_x(case),)


def _max_pool(case: Case) -> Any:
    at = case.attributes
    return QuantizedMaxPool2d(at["kernel_size"], at["stride"], at["padding"]), (_x(case),)


def _two(make: Callable[[QParams, QParams, QParams, Attributes], QuantizedModule]) -> Callable[[Case], Any]:
    def lower(case: Case) -> tuple[QuantizedModule, tuple[Tensor, ...]]:
        a, b, y = (_activation_qparams(case.attributes, role) for role in ("a", "b", "y"))
        return make(a, b, y, case.attributes), (_x(case, "a"), _x(case, "b"))

    return lower


CONVERSIONS: Mapping[str, Callable[[Case, bool], Tensor]] = {
    "quantize": _quantize,
    "dequantize": _dequantize,
    "fake_quantize": _fake_quantize,
    "qparams": _qparams,
}
MODULES: Mapping[str, Callable[[Case], Any]] = {
    "linear": _layer(_linear, QuantizedLinear, 0),
    "conv2d": _layer(_conv, QuantizedConv, 0),
    "conv_transpose2d": _layer(_conv_transpose, QuantizedConvTranspose, None),
    "avg_pool2d": _avg_pool,
    "max_pool2d": _max_pool,
    "matmul": _two(lambda a, b, y, at: QuantizedMatmul(a, b, y)),
    "add": _two(lambda a, b, y, at: QuantizedAdd(a, b, y, _clamp(at))),
    "mul": _two(lambda a, b, y, at: QuantizedMul(a, b, y, _clamp(at))),
    "cat": _two(lambda a, b, y, at: QuantizedCat([a, b], y)),
}
