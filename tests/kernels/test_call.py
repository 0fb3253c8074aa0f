"""The record of an operator, the schema that follows from it, and the C++ struct that has its fields."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fxquant import kernels
from fxquant.kernels.call import CALLS, Call, operator_of, schema
from fxquant.kernels.library import COMPOSED

CSRC = Path(kernels.__file__).parent / "csrc"
CPP_TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "std::optional<Tensor>",
    "Sequence[Tensor]": "std::vector<Tensor>",
    "float": "double",
    "Sequence[float]": "std::vector<double>",
    "int": "int64_t",
    "int | None": "std::optional<int64_t>",
    "Sequence[int]": "std::vector<int64_t>",
    "Pair": "std::vector<int64_t>",
    "bool": "bool",
    "torch.dtype": "ScalarType",
}
FIELD = re.compile(r"^  ([\w:<>]+) (\w+);", re.MULTILINE)
SCHEMAS = {
    "add": "(Tensor a, float a_scale, int a_zero_point, Tensor b, float b_scale, int b_zero_point, float scale, "
    "int zero_point, int quant_min, int quant_max) -> Tensor",
    "conv2d": "(Tensor x, int x_zero_point, Tensor weight, Tensor zero_point_correction, "
    "Tensor scale, Tensor bias, int[] kernel_size, "
    "int[] stride, int[] padding, int[] dilation, int groups, Tensor? residual, float residual_scale, "
    "int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, ScalarType dtype) "
    "-> Tensor",
    "linear": "(Tensor x, int x_zero_point, Tensor weight, Tensor zero_point_correction, "
    "Tensor scale, Tensor bias, Tensor? residual, "
    "float residual_scale, int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, "
    "ScalarType dtype) -> Tensor",
    "dequantize": "(Tensor q, Tensor scale, Tensor zero_point, int? axis=None) -> Tensor",
    "embedding": "(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, int bits, int columns) -> Tensor",
    "embedding_bag": "(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, Tensor offsets, int bits, "
    "int columns, int mode, Tensor? per_sample_weights=None, int? padding_idx=None) -> Tensor",
    "fake_quantize_backward": "(Tensor grad, Tensor mask) -> Tensor",
    "fake_quantize_folded": "(Tensor input, Tensor factor, Tensor scale, Tensor zero_point, int quant_min, "
    "int quant_max) -> Tensor",
    "fake_quantize_folded_backward": "(Tensor grad, Tensor input, Tensor factor, Tensor scale, Tensor zero_point, "
    "int quant_min, int quant_max) -> (Tensor, Tensor)",
    "fake_quantize_learnable_backward": "(Tensor grad, Tensor input, Tensor scale, Tensor zero_point, int? axis, "
    "int quant_min, int quant_max, float grad_factor) -> (Tensor, Tensor, Tensor)",
    "fake_quantize_per_channel_affine_cachemask": "(Tensor input, Tensor scale, Tensor zero_point, int axis, "
    "int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
    "fake_quantize_per_tensor_affine_cachemask": "(Tensor input, float scale, int zero_point, int quant_min, "
    "int quant_max) -> (Tensor output, Tensor mask)",
    "fake_quantize_per_tensor_affine_cachemask.tensor_qparams": "(Tensor input, Tensor scale, Tensor zero_point, "
    "int quant_min, int quant_max) -> (Tensor output, Tensor mask)",
    "_fused_moving_avg_obs_fq_helper": "(Tensor input, Tensor observer_on, Tensor fake_quant_on, "
    "Tensor(a!) running_min, Tensor(b!) running_max, Tensor(c!) scale, Tensor(d!) zero_point, "
    "float averaging_const, int quant_min, int quant_max, int ch_axis, bool per_row_fake_quant, "
    "bool symmetric_quant) -> (Tensor output, Tensor mask)",
    "histogram": "(Tensor x, Tensor counts, Tensor low, Tensor high, int? axis=None) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    "moving_average_qparams": "(Tensor x, Tensor running_min, Tensor running_max, int? axis, float averaging_constant, "
    "float eps, int quant_min, int quant_max, int? middle) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "recurrent_steps": "(Tensor of_input, Tensor hidden, Tensor cell, int[] counts, bool reverse, int mode, "
    "Tensor weight, Tensor correction, Tensor weight_scale, Tensor bias, Tensor? projection, "
    "Tensor? projection_correction, Tensor? projection_scale, bool measured, float scale, int zero_point, float eps, "
    "int quant_min, int quant_max, int? middle, ScalarType dtype) -> (Tensor, Tensor, Tensor)",
    "quantize": "(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, "
    "int? axis=None, bool channels_last=False) -> Tensor",
    "quantize_per_token": "(Tensor x, float eps, int quant_min, int quant_max, int? middle, ScalarType dtype) "
    "-> (Tensor, Tensor, Tensor)",
    "dynamic_linear": "(Tensor x, bool per_token, float eps, int quant_min, int quant_max, int? middle, "
    "ScalarType dtype, Tensor weight, Tensor zero_point_correction, Tensor weight_sums, Tensor scale, Tensor bias, "
    "float low, float high) -> Tensor",
    "per_token_linear": "(Tensor x, Tensor x_scale, Tensor x_zero_point, Tensor weight, Tensor zero_point_correction, "
    "Tensor weight_sums, Tensor scale, Tensor bias) -> Tensor",
    "table": "(Tensor x, Tensor table) -> Tensor",
}
"""What graphs and programs that were saved call."""
WRAPPED = {
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": "has torch's documentation",
    "_fused_moving_avg_obs_fq_helper": "gives a mask that nobody asks for",
    "dequantize": "takes qparams as numbers too",
    "fake_quantize_backward": "has two names, as torch has",
    "fake_quantize_folded": "is called by modules",
    "fake_quantize_folded_backward": "is called by autograd",
    "fake_quantize_learnable_backward": "rounds the zero point first",
    "fake_quantize_per_channel_affine_cachemask": "takes floating zero points too",
    "fake_quantize_per_tensor_affine_cachemask": "takes qparams as numbers and as tensors",
    "fake_quantize_per_tensor_affine_cachemask.tensor_qparams": "takes qparams as numbers and as tensors",
    "quantize": "takes qparams as numbers too",
}
"""Operator -> why ``kernels`` has another function for it, or none."""


def declaring(record: type[Call[Any]]) -> type:
    """The class that declares the fields of a record: itself, or its base."""
    return next(
        each for each in record.__mro__ if dataclasses.is_dataclass(each) and "__dataclass_fields__" in vars(each)
    )


def struct_fields(name: str) -> list[tuple[str, str]]:
    """Type and name of each field of a C++ struct below ``csrc``, which has one definition."""
    sources = "\n".join(path.read_text(encoding="utf-8") for path in sorted(CSRC.rglob("*.h")))
    (body,) = re.findall(rf"^struct {name} {{\n(.*?)^}};", sources, re.MULTILINE | re.DOTALL)
    return FIELD.findall(body)


@pytest.mark.parametrize("name", sorted(name for name in CALLS if f"fxquant::{name}" not in COMPOSED))
def test_the_struct_of_the_native_kernel_has_the_same_fields(name: str) -> None:
    record = declaring(CALLS[name])
    assert struct_fields(record.__name__) == [
        (CPP_TYPES[str(field.type)], field.name) for field in dataclasses.fields(record)
    ]


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_schemas_stay(name: str) -> None:
    assert schema(name, CALLS[name]) == name + SCHEMAS[name]
    assert str(operator_of(name)._schema) == f"fxquant::{name}{SCHEMAS[name]}"


@pytest.mark.parametrize("name", sorted(CALLS.keys() - WRAPPED.keys()))
def test_the_operator_has_the_documentation_and_the_signature_of_its_record(name: str) -> None:
    operator, record = getattr(kernels, name), CALLS[name]
    assert inspect.getclosurevars(operator).nonlocals["operator"] is operator_of(name)
    assert inspect.getdoc(operator) == inspect.getdoc(record)
    assert list(inspect.signature(operator).parameters) == [field.name for field in dataclasses.fields(record)]


@pytest.mark.parametrize("name", ["dequantize", "quantize"])
def test_a_function_that_wraps_an_operator_takes_its_arguments(name: str) -> None:
    function, record = getattr(kernels, name), CALLS[name]
    assert f":class:`{record.__name__}`" in inspect.getdoc(function)
    assert list(inspect.signature(function).parameters) == [field.name for field in dataclasses.fields(record)]


@pytest.mark.parametrize("name", sorted(name for name, record in CALLS.items() if record.composed))
def test_an_operator_that_calls_others_has_no_native_kernel_and_is_not_recorded(name: str) -> None:
    assert f"fxquant::{name}" in COMPOSED
    assert not CALLS[name].recordable


def test_an_argument_is_missed_by_its_name() -> None:
    with pytest.raises(RuntimeError, match="missing value for argument 'table'"):
        kernels.table(torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_operator_is_a_function_that_can_be_pickled(name: str) -> None:
    function = getattr(kernels, name)
    assert pickle.loads(pickle.dumps(function)) is function
