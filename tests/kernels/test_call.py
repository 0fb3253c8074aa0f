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
    "conv2d": "(Tensor x, int x_zero_point, Tensor weight, Tensor start, Tensor scale, Tensor bias, int[] kernel_size, "
    "int[] stride, int[] padding, int[] dilation, int groups, Tensor? residual, float residual_scale, "
    "int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, ScalarType dtype) "
    "-> Tensor",
    "linear": "(Tensor x, int x_zero_point, Tensor weight, Tensor start, Tensor scale, Tensor bias, Tensor? residual, "
    "float residual_scale, int residual_zero_point, float y_scale, int y_zero_point, int quant_min, int quant_max, "
    "ScalarType dtype) -> Tensor",
    "dequantize": "(Tensor q, Tensor scale, Tensor zero_point, int? axis=None) -> Tensor",
    "embedding": "(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, int bits, int columns) -> Tensor",
    "embedding_bag": "(Tensor weight, Tensor scale, Tensor zero_point, Tensor indices, Tensor offsets, int bits, "
    "int columns, int mode, Tensor? per_sample_weights=None, int? padding_idx=None) -> Tensor",
    "quantize": "(Tensor x, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, "
    "int? axis=None, bool channels_last=False) -> Tensor",
    "table": "(Tensor x, Tensor table) -> Tensor",
}
"""What graphs and programs that were saved call."""
WRAPPED = {
    "dequantize": "takes qparams as numbers too",
    "quantize": "takes qparams as numbers too",
}
"""Operator -> why its function in ``kernels`` is more than a call of it."""


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


@pytest.mark.parametrize("name", sorted(WRAPPED))
def test_a_function_that_wraps_an_operator_takes_its_arguments(name: str) -> None:
    function, record = getattr(kernels, name), CALLS[name]
    assert f":class:`{record.__name__}`" in inspect.getdoc(function)
    assert list(inspect.signature(function).parameters) == [field.name for field in dataclasses.fields(record)]


def test_an_argument_is_missed_by_its_name() -> None:
    with pytest.raises(RuntimeError, match="missing value for argument 'table'"):
        kernels.table(torch.zeros(2, dtype=torch.uint8))


@pytest.mark.parametrize("name", kernels.__all__)
def test_every_operator_is_a_function_that_can_be_pickled(name: str) -> None:
    function = getattr(kernels, name)
    assert pickle.loads(pickle.dumps(function)) is function
