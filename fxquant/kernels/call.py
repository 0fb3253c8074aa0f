"""One record for each operator: a dataclass of its arguments. Schema, reference and shape function follow from it."""

from __future__ import annotations

import dataclasses
import inspect
import string
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from fxquant.kernels.library import compose, define

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Pair = Sequence[int]
"""Rows and columns. One number stands for both."""

MutableTensor = Tensor
"""A tensor that the operator changes in place."""

SCHEMA_TYPES = {
    "Tensor": "Tensor",
    "MutableTensor": "Tensor({letter}!)",
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


class Call(Generic[Result]):
    """The arguments of one call of an operator. Base of the records of all operators.

    A record is a dataclass: its fields are the operator's arguments, in their order. The struct in ``csrc``
    that is named like the class that declares the fields (``ConvCall``) has the same fields in the same order; a test
    compares the two. A record is not frozen, and has neither
    ``eq`` nor ``repr``: what dataclasses generate for these takes a tenth of the time of ``import fxquant``.
    """

    op: ClassVar[str]
    """Name of the operator, as errors spell it: ``fxquant::add``."""
    results: ClassVar[str] = "Tensor"
    """The results in torch's schema language."""
    recordable: ClassVar[bool] = False
    """True if the C++ binding only checks shapes and launches a loop: then a program can record the call."""
    composed: ClassVar[bool] = False
    """True if ``reference`` calls other operators and is the kernel of every device: then nothing of it is native."""
    gradient: ClassVar[bool] = False
    """True if a gradient is registered for the operator (:mod:`fxquant.kernels.gradient`)."""

    def empty_result(self) -> Result:
        """Check the arguments, and allocate the result: its shape, dtype and layout, without values."""
        raise NotImplementedError

    def reference(self) -> Result:
        """Compute the result in pure torch. It runs where no native kernel is, and tests compare kernels with it."""
        raise NotImplementedError


class OperatorCall(Call[Tensor]):
    """A call that gives one tensor, and that a program can record."""

    recordable: ClassVar[bool] = True


CALLS: dict[str, type[Call[Any]]] = {}
"""Name of an operator, with its overload -> its record."""


def define_operator(
    record: Callable[Arguments, Call[Result]], name: str = ""
) -> tuple[Callable[Arguments, Result], Callable[Arguments, Result]]:
    """Define ``torch.ops.fxquant.<name>`` as its record says.

    Args:
        record: The dataclass of the operator's arguments.
        name: Name of the operator with its overload. The default is the name in ``record.op``.

    Returns:
        The operator, and its reference. Both take the fields of the record as arguments.
    """
    assert isinstance(record, type)
    assert issubclass(record, Call)
    name = name or record.op.removeprefix("fxquant::")

    def reference(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return record(*args, **kwargs).reference()

    def empty_result(*args: Any, **kwargs: Any) -> Any:
        return record(*args, **kwargs).empty_result()

    if record.composed:
        compose(schema(name, record), kernel=reference, fake=empty_result, gradient=record.gradient)
    else:
        define(schema(name, record), reference=reference, fake=empty_result, gradient=record.gradient)
    CALLS[name] = record
    operator = operator_of(name)

    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return operator(*args, **kwargs)

    # A function of its module, under its name: it is pickled, and documented, as others are.
    call.__name__ = call.__qualname__ = name
    call.__module__ = record.__module__
    call.__doc__ = record.__doc__
    result = Tensor if record.results == "Tensor" else tuple
    call.__signature__ = inspect.signature(record).replace(return_annotation=result)  # type: ignore[attr-defined]
    return call, reference


def operator_of(name: str) -> torch._ops.OpOverload:
    """Return ``torch.ops.fxquant.<name>``; a name without an overload names the default one."""
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.fxquant, packet), overload or "default")


def schema(name: str, record: type[Call[Any]], results: str = "") -> str:
    """Write an operator's arguments and results in torch's schema language."""
    letters = iter(string.ascii_lowercase)  # of tensors that are changed
    arguments = []
    for field in dataclasses.fields(record):  # type: ignore[arg-type]
        kind = SCHEMA_TYPES[str(field.type)]
        if "{letter}" in kind:
            kind = kind.format(letter=next(letters))
        default = "" if field.default is dataclasses.MISSING else f"={field.default}"
        arguments.append(f"{kind} {field.name}{default}")
    return f"{name}({', '.join(arguments)}) -> {results or record.results}"
