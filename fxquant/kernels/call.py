"""One record for each operator: a dataclass of its arguments. Schema, reference and shape function follow from it."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, ParamSpec

import torch
from torch import Tensor

from fxquant.kernels.library import define

Arguments = ParamSpec("Arguments")

Pair = Sequence[int]
"""Rows and columns. One number stands for both."""

SCHEMA_TYPES = {
    "Tensor": "Tensor",
    "Tensor | None": "Tensor?",
    "Sequence[Tensor]": "Tensor[]",
    "float": "float",
    "Sequence[float]": "float[]",
    "int": "int",
    "int | None": "int?",
    "Sequence[int]": "int[]",
    "Pair": "int[2]",
    "bool": "bool",
    "torch.dtype": "ScalarType",
}
"""Annotation of a field -> the type of the argument in torch's schema language."""


class OperatorCall:
    """The arguments of one call of an operator. Base of the records of all operators that give one tensor.

    A record is a dataclass: its fields are the operator's arguments, in their order. The struct of the same name in
    ``csrc`` has the same fields in the same order; a test compares the two. It is not frozen, and has
    neither ``eq`` nor ``repr``: what dataclasses generate for these takes a tenth of the time of ``import fxquant``.
    """

    op: ClassVar[str]
    """Name of the operator, as errors spell it: ``fxquant::add``."""
    recorded: ClassVar[bool] = True
    """True if the C++ binding only checks shapes and launches a loop: then a program can record the call."""

    def empty_result(self) -> Tensor:
        """Check the arguments, and allocate the result: its shape, dtype and layout, without values."""
        raise NotImplementedError

    def reference(self) -> Tensor:
        """Compute the result in pure torch. It runs where no native kernel is, and tests compare kernels with it."""
        raise NotImplementedError


CALLS: dict[str, type[OperatorCall]] = {}
"""Name of an operator -> its record."""


def define_operator(
    record: Callable[Arguments, OperatorCall],
) -> tuple[Callable[Arguments, Tensor], Callable[Arguments, Tensor]]:
    """Define ``torch.ops.fxquant.<name>`` as its record says.

    Returns:
        The operator, and its reference. Both take the fields of the record as arguments.
    """
    assert isinstance(record, type)
    assert issubclass(record, OperatorCall)
    name = record.op.removeprefix("fxquant::")

    def reference(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        return record(*args, **kwargs).reference()

    def empty_result(*args: Any, **kwargs: Any) -> Tensor:
        return record(*args, **kwargs).empty_result()

    define(schema(name, record), reference=reference, fake=empty_result)
    CALLS[name] = record
    operator = getattr(torch.ops.fxquant, name).default

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        return operator(*args, **kwargs)

    # A function of its module, under its name: it is pickled, and documented, as others are.
    call.__name__ = call.__qualname__ = name
    call.__module__ = record.__module__
    call.__doc__ = record.__doc__
    call.__signature__ = inspect.signature(record).replace(return_annotation=Tensor)  # type: ignore[attr-defined]
    return call, reference


def schema(name: str, record: type[OperatorCall]) -> str:
    """Write an operator's arguments and result in torch's schema language."""
    fields = dataclasses.fields(record)  # type: ignore[arg-type]
    return f"{name}({', '.join(f'{SCHEMA_TYPES[str(field.type)]} {field.name}' for field in fields)}) -> Tensor"
