"""The classes of fxquant that a file may hold: what each keeps beside its tensors, and what must hold of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from fxquant import nn as qnn
from fxquant.artifact.functions import ELEMENTWISE
from fxquant.artifact.values import fits
from fxquant.errors import ArtifactError
from fxquant.fake_quantize.adaround import KnownIntegers, OwnIntegersFakeQuantize
from fxquant.fake_quantize.converted import DynamicFakeQuantize, StaticFakeQuantize
from fxquant.graph.affine import ChannelAffine
from fxquant.kernels.conv.reference import ConvGeometry
from fxquant.kernels.embedding.lookup import HALF_BITS
from fxquant.nn.base import FloatResult, QuantizedModule, SameDtypeModule, byte_qparams
from fxquant.nn.conv_transpose import Axis
from fxquant.plan.spec import Clamp, Dynamic, QScheme

_LARGEST_STEP = 2**31
_MOST_DIMENSIONS = 64
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


@dataclass(frozen=True, slots=True)
class Row:
    """Says what a file holds of one class of modules."""

    fields: Mapping[str, Any]
    """Attribute -> its type, as an annotation."""
    tensors: tuple[str, ...] = ()
    """Buffers beside those of the qparams."""
    check: Callable[[Any], bool] = lambda module: True
    """Tells whether fields and tensors fit each other."""
    roles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Tensor -> what it may be to the module, where it is no buffer of the state dict."""
    added: Mapping[str, Any] = field(default_factory=dict)
    """Attribute that files from before it lack -> what it is in them."""


_ACTIVATION = {"activation": Clamp | None}
_PAIR = tuple[int, int]
_OUTPUT_SIZE = {"output_size": tuple[int | None, ...]}
_REDUCTION = {"dim": list[int], "keepdim": bool}


def _convolves(module: Any) -> bool:
    """Tell whether weight, geometry and bias are of one convolution."""
    geometry, weight = module.geometry, module.weight
    sides = (geometry.kernel_size, geometry.stride, geometry.dilation, geometry.before, geometry.after)
    return (
        1 <= geometry.spatial <= 3
        and all(len(side) == geometry.spatial for side in sides)
        and weight.dim() == geometry.spatial + 2
        and tuple(weight.shape[2:]) == geometry.kernel_size
        and all(1 <= n < _LARGEST_STEP for n in (*geometry.stride, *geometry.dilation, *geometry.kernel_size))
        and all(0 <= n < _LARGEST_STEP for n in (*geometry.before, *geometry.after))
        and geometry.padding_mode in _PADDING_MODES
        and 1 <= geometry.groups <= max(len(weight), 1)
        and len(weight) % geometry.groups == 0
        and _scales_rows(module)
    )


def _scales_rows(module: Any) -> bool:
    """Tell whether bias and scales of a weight are one for each of its rows."""
    rows, bias, scheme = len(module.weight), module.bias, module._schemes["weight"]
    return (
        module.weight.dtype == torch.int8
        and module.weight.dim() >= 2
        and scheme.signed
        and scheme.axis in (None, 0)
        and scheme.group_size is None
        and module.weight_scale.numel() in (1, rows)
        and (bias is None or (bias.dtype == torch.float32 and tuple(bias.shape) == (rows,)))
    )


def _is_linear(module: Any) -> bool:
    return module.weight.dim() == 2 and _scales_rows(module)


def _is_recurrent(module: Any) -> bool:
    shape, weight = module.shape, module.weight
    numbers = (shape.input_size, shape.hidden_size, shape.num_layers)
    return (
        all(0 < n < _LARGEST_STEP for n in numbers)
        and shape.num_layers <= len(weight)
        and (shape.proj_size == 0 or (0 < shape.proj_size < shape.hidden_size and shape.mode == "lstm"))
        and (not shape.is_cell or (shape.num_layers == shape.directions == 1 and not shape.proj_size))
        and tuple(weight.shape) == shape.weight_shape
        and (module.x is None) == ("x" in module._schemes)
        and shape.bias == (module.bias is not None)
        and _scales_rows(module)
    )


def _is_weight_only(module: Any) -> bool:
    weight, bias, scheme, shape = module.weight, module.bias, module._schemes["weight"], module.weight_scale.shape
    rows, size = len(weight), scheme.group_size
    scales: list[tuple[int, ...]] = [(1,) if scheme.axis is None else (rows,)]
    if size is not None:
        scales = [(rows, weight.shape[-1] // size)] if weight.shape[-1] % size == 0 else []
    return (
        weight.dim() == 2
        and module.takes(scheme)
        and tuple(shape) in scales
        and (bias is None or (bias.dtype == torch.float32 and tuple(bias.shape) == (rows,)))
    )


def _is_transposed(module: Any) -> bool:
    spatial = module.geometry.spatial
    along = (module.spread, module.axes, module.before, module.after)
    numbers = [n for axis in module.axes for n in (axis.kernel_size, axis.stride, axis.dilation)]
    return (
        all(len(side) == spatial for side in along)
        and tuple(axis.kernel_size for axis in module.axes) == module.geometry.kernel_size
        and tuple(axis.stride for axis in module.axes) == module.spread
        and all(1 <= n < 2**16 for n in numbers)
        and math.prod(module.spread) <= 2**16
        and all(0 <= n < 2**16 for axis in module.axes for n in (axis.padding, axis.output_padding))
        and all(abs(n) < _LARGEST_STEP for n in (*module.before, *module.after))
        and _convolves(module)
    )


def _looks_up(module: Any) -> bool:
    weight, columns = module.weight, module.columns
    stored = (columns + 1) // 2 if module.bits == HALF_BITS else columns
    return (
        module.bits in (HALF_BITS, 8)
        and module._schemes["weight"].bits <= module.bits
        and module._schemes["weight"].group_size is None
        and weight.dim() == 2
        and weight.dtype in (torch.uint8, torch.int8)
        and weight.shape[1] == stored
        and module.weight_scale.numel() in (1, len(weight))
        and getattr(module, "mode", "sum") in ("sum", "mean", "max")
    )


def _norms(module: Any) -> bool:
    count = math.prod(module.normalized_shape)
    held = (module.weight, module.bias)
    return all(tensor.dtype == torch.float32 and tuple(tensor.shape) == (count,) for tensor in held)


def _joins(module: Any) -> bool:
    return len(module.roles) <= len(module._schemes) and set(module._schemes) == {"y", *module.roles}


def _is_elementwise(module: Any) -> bool:
    function = module.function
    if isinstance(function, Clamp):
        return True
    given = (*function.before, *function.after, *function.keywords.values())
    return function.target in ELEMENTWISE and all(isinstance(value, (int, float, str, type(None))) for value in given)


def _scales_channels(module: Any) -> bool:
    held = [value for value in (*module._parameters.values(), *module._buffers.values()) if value is not None]
    return (
        all(value.is_floating_point() and tuple(value.shape) == (module.num_features,) for value in held)
        and 0 <= module.behind < module.rank <= _MOST_DIMENSIONS
        and module.is_centered == ("running_mean" not in module._non_persistent_buffers_set)
    )


def _has_slopes(module: Any) -> bool:
    return module.slope.dtype == torch.float32 and module.slope.dim() == 1


_PARAMETER = ("parameter", "frozen", "no parameter")
_OF_CHANNELS = {
    "weight": _PARAMETER,
    "bias": _PARAMETER,
    "running_mean": ("buffer", "unsaved"),
    "running_var": ("unsaved",),
}
_FUNCTION = {"function": Clamp | qnn.ElementFunction}
_WEIGHT = ("weight", "bias")
_CONVOLUTION = Row(
    _ACTIVATION | {"geometry": ConvGeometry},
    _WEIGHT,
    _convolves,
)
_BINARY = Row(_ACTIVATION)
_JOIN = Row({"dim": int, "roles": tuple[str, ...]}, (), _joins)
_MEAN = Row(_REDUCTION)
_ADAPTIVE = Row(_OUTPUT_SIZE)
_AVERAGE = Row({"arguments": tuple[_PAIR, _PAIR, _PAIR, bool, bool, int | None]})
_TABLE = Row(_FUNCTION, (), _is_elementwise)
_LOOKUP: dict[str, Any] = {"columns": int, "bits": int}

_LINEAR = (qnn.QuantizedLinear, qnn.QuantizedDynamicLinear, qnn.QuantizedWeightOnlyLinear)
_WEIGHTED = (qnn.QuantizedConv, *_LINEAR, qnn.QuantizedRecurrent)

ROWS: dict[type[nn.Module], Row] = {
    qnn.Quantize: Row({"channels_last": bool}),
    qnn.Dequantize: Row({}),
    qnn.Requantize: Row({}),
    qnn.QuantizedConv: _CONVOLUTION,
    qnn.QuantizedBatchNorm: _CONVOLUTION,
    qnn.QuantizedConvTranspose: Row(
        {
            **_CONVOLUTION.fields,
            "spread": tuple[int, ...],
            "axes": tuple[Axis, ...],
            "before": tuple[int, ...],
            "after": tuple[int, ...],
        },
        _WEIGHT,
        _is_transposed,
    ),
    qnn.QuantizedLinear: Row(_ACTIVATION, _WEIGHT, _is_linear),
    qnn.QuantizedDynamicLinear: Row(
        {"x": Dynamic} | _ACTIVATION, _WEIGHT, _is_linear, added=dict.fromkeys(_ACTIVATION)
    ),
    qnn.QuantizedRecurrent: Row({"shape": qnn.RecurrentShape, "x": Dynamic | None}, _WEIGHT, _is_recurrent),
    qnn.QuantizedWeightOnlyLinear: Row({}, _WEIGHT, _is_weight_only),
    qnn.QuantizedAdd: _BINARY,
    qnn.QuantizedSub: _BINARY,
    qnn.QuantizedMul: _BINARY,
    qnn.QuantizedMatmul: Row(_ACTIVATION | {"factor": float}),
    qnn.QuantizedCat: _JOIN,
    qnn.QuantizedStack: _JOIN,
    qnn.QuantizedPad: Row({"widths": list[int] | None, "value": float}),
    qnn.QuantizedMaxPool2d: Row({"arguments": tuple[_PAIR, _PAIR, _PAIR, _PAIR, bool]}),
    qnn.QuantizedMaxValues: Row({"dim": int, "keepdim": bool, "largest": bool}),
    qnn.QuantizedMaximum: Row({"largest": bool}),
    qnn.QuantizedAvgPool1d: _AVERAGE,
    qnn.QuantizedAvgPool2d: _AVERAGE,
    qnn.QuantizedAvgPool3d: Row(
        {
            "kernel_size": list[int],
            "stride": list[int],
            "padding": list[int],
            "ceil_mode": bool,
            "count_include_pad": bool,
            "divisor_override": int | None,
        },
    ),
    qnn.QuantizedAdaptiveAvgPool1d: _ADAPTIVE,
    qnn.QuantizedAdaptiveAvgPool2d: _ADAPTIVE,
    qnn.QuantizedAdaptiveAvgPool3d: _ADAPTIVE,
    qnn.QuantizedMean: _MEAN,
    qnn.QuantizedSum: _MEAN,
    qnn.QuantizedSoftmax: Row({"dim": int, "safe": bool}),
    qnn.QuantizedLayerNorm: Row({"normalized_shape": tuple[int, ...], "eps": float}, _WEIGHT, _norms),
    qnn.QuantizedPReLU: Row({}, ("slope",), _has_slopes),
    qnn.QuantizedInterpolate: Row(
        {
            "size": int | tuple[int, ...] | list[int] | None,
            "scale_factor": float | tuple[float, ...] | list[float] | None,
            "mode": str,
            "how": tuple[bool | None, bool | None, bool],
        },
    ),
    qnn.QuantizedEmbedding: Row(_LOOKUP, ("weight",), _looks_up),
    qnn.QuantizedEmbeddingBag: Row(
        _LOOKUP | {"mode": str, "padding_idx": int | None, "include_last_offset": bool}, ("weight",), _looks_up
    ),
    qnn.QuantizedTable: _TABLE,
    qnn.QuantizedFunction: _TABLE,
    DynamicFakeQuantize: Row({"policy": Dynamic}),
    StaticFakeQuantize: Row({"scheme": QScheme}, ("scale", "zero_point")),
    OwnIntegersFakeQuantize: Row({}),
    KnownIntegers: Row({"scheme": QScheme}, ("integers_of_weight", "scale", "zero_point")),
    ChannelAffine: Row(
        {"num_features": int, "behind": int, "rank": int, "is_centered": bool},
        tuple(_OF_CHANNELS),
        _scales_channels,
        _OF_CHANNELS,
    ),
}
"""Class -> what a file holds of it."""

COMMON: dict[str, Any] = {"unit": str, "float_result": FloatResult | None, "_schemes": dict[str, QScheme]}
"""What every ``QuantizedModule`` keeps."""


def fields_of(kind: type[nn.Module]) -> dict[str, Any]:
    """Return the attributes that a file holds of a class, with their types."""
    return {**(COMMON if issubclass(kind, QuantizedModule) else {}), **ROWS[kind].fields}


def make_module(kind: type[nn.Module], values: Mapping[str, Any]) -> Any:
    """Make a module that has its fields, and no tensors yet.

    Raises:
        ArtifactError: fields are missing, are others, or are of the wrong type.
    """
    wanted, values = fields_of(kind), {**ROWS[kind].added, **values}
    if set(values) != set(wanted):
        raise ArtifactError("a module in the file has other fields", at=kind.__name__, got=ascii(sorted(values))[:200])
    for name, value in values.items():
        schemes = value.values() if name == "_schemes" and isinstance(value, dict) else ()
        if not fits(value, wanted[name]) or not all(isinstance(scheme, QScheme) for scheme in schemes):
            raise ArtifactError(
                "a field of a module has the wrong type", at=f"{kind.__name__}.{name}", got=ascii(value)[:120]
            )
    module: Any = kind.__new__(kind)
    (QuantizedModule if issubclass(kind, QuantizedModule) else nn.Module).__init__(module)
    vars(module).update(values)
    return module


def expected_tensors(module: Any) -> set[str]:
    """Return the names of the buffers that such a module has."""
    roles = module._schemes if isinstance(module, QuantizedModule) else ()
    return {*ROWS[type(module)].tensors, *(f"{role}_{part}" for role in roles for part in ("scale", "zero_point"))}


def allows(kind: type[nn.Module], name: str, role: str) -> bool:
    """Tell whether a tensor may be this to a module of a class."""
    return role in ROWS[kind].roles.get(name, ("buffer", "no buffer") if name == "bias" else ("buffer",))


def complete(module: Any) -> None:
    """Derive what follows from fields and tensors, and refuse what no converted model has.

    Raises:
        ArtifactError: fields and tensors do not fit each other.
        FxQuantError: qparams that no module takes.
    """
    kind = type(module)
    if isinstance(module, (StaticFakeQuantize, KnownIntegers)):
        module._load_from_state_dict({**module._buffers}, "", {}, True, [], [], [])
        module.qparams()
        return
    if not isinstance(module, QuantizedModule):
        _check_fit(module)
        return
    for role in module._schemes:
        qparams = module.qparams(role)
        if role != "weight" and kind not in (qnn.Quantize, qnn.Dequantize, qnn.Requantize):
            byte_qparams(f"input {role}", qparams)
    held = {name: tensor for name, tensor in module._buffers.items() if tensor is not None}
    module._check_state(held, "")
    vars(module).update(_computed_fields(module))
    _check_fit(module)


def _check_fit(module: Any) -> None:
    kind = type(module)
    if not ROWS[kind].check(module):
        where = getattr(module, "unit", "") or kind.__name__
        raise ArtifactError("tensors and settings of a module do not fit each other", at=where)


def _computed_fields(module: Any) -> dict[str, Any]:
    """Compute the attributes that follow from fields and tensors."""
    schemes, found = module._schemes, {}
    if isinstance(module, SameDtypeModule):
        found["y_dtype"] = schemes["y"].dtype
    if isinstance(module, qnn.Requantize):
        x, y = schemes["x"], schemes["y"]
        found["by_table"] = x.bits <= 8 and y.bits <= 8 and x.axis is None and y.axis is None
    if isinstance(module, _WEIGHTED):
        found["weight_shape"] = module.weight.shape
    if isinstance(module, (qnn.QuantizedConv, qnn.QuantizedLinear)):
        found["x_dtype"] = schemes["x"].dtype
    if isinstance(module, qnn.QuantizedTable):
        found["answers"] = None
    if isinstance(module, qnn.QuantizedConv):
        found["has_residual"] = "residual" in schemes
        found["in_channels"] = module.weight.shape[1] * module.geometry.groups
    if isinstance(module, _LINEAR):
        found["in_features"] = module.weight.shape[1]
    return found
