"""``torch.export`` of the explicit form."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.errors import ExportError, FxQuantError, InputError
from fxquant.exporting.decomposed import HOME, NAMESPACE
from fxquant.exporting.explicit import explicit
from fxquant.graph.failures import first_line
from fxquant.graph.inputs import bind, check_no_data, describe_call, describe_value, example_tuple, keywords_in_order

TO_LOAD = f"before torch.export.load: import fxquant.exporting.operators, or {HOME} where torch has it"
"""What a file says, in the error of torch, to a process that lacks the operators."""


def export(
    model: nn.Module,
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Export a converted model as float operators between operators of ``quantized_decomposed``.

    ``torch.export.export(int8, args)`` exports the int8 operators of this package instead. A process that loads a file
    of the result imports ``fxquant.exporting.operators`` first.

    Args:
        model: As :func:`explicit` takes it, or what that gave.
        example_inputs: Tuple of the positional inputs; a lone tensor is taken as a one-tuple.
        example_kwargs: Keyword inputs, in any order; none in front of one that is given may be left to its default.
        dynamic_shapes: As ``torch.export.export`` takes it: ``({0: torch.export.Dim("batch")},)`` leaves the batch of
            one input open.

    Raises:
        InputError: the example inputs do not fit, or do not run; or keyword inputs cannot be exported by position.
        ExportError: ``torch.export`` refuses: ``dynamic_shapes`` do not fit, say.
        InputError, CalibrationError, LoweringError: as of :func:`explicit`.
    """
    made = explicit(model)
    args, kwargs = example_of(made, example_inputs, example_kwargs)
    program = exported(made, args, kwargs, dynamic_shapes)
    for node in program.graph.nodes:
        if getattr(node.target, "namespace", "") == NAMESPACE:  # the first is where loading fails
            node.meta["custom"] = {**node.meta.get("custom", {}), "fxquant": TO_LOAD}
            break
    return program


def example_of(
    model: GraphModule, example_inputs: Any, example_kwargs: Mapping[str, Any] | None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and the keyword inputs to export an explicit model with.

    Raises:
        InputError: there are none, they do not fit, or cannot be exported by position.
    """
    if example_kwargs is not None and not isinstance(example_kwargs, Mapping):
        got = describe_value(example_kwargs)
        raise InputError("example_kwargs is no dict of keyword inputs", got=got, expected="{name: tensor}")
    args = example_tuple(example_inputs, example_kwargs)
    kwargs = keywords_in_order(model, args, example_kwargs or {})
    bind(model, args, kwargs, "the example inputs")
    check_no_data((args, kwargs), "the example inputs")
    return args, kwargs


def exported(
    model: GraphModule, args: Sequence[Any], kwargs: Mapping[str, Any], dynamic_shapes: Any
) -> torch.export.ExportedProgram:
    """Export an explicit model.

    Raises:
        InputError: the example inputs do not run.
        ExportError: ``torch.export`` refuses.
    """
    try:
        with torch.no_grad(), quiet():
            return torch.export.export(model, tuple(args), dict(kwargs), dynamic_shapes=dynamic_shapes, strict=False)
    except FxQuantError as error:
        raise error.within() from error  # without the trace that torch's interpreter writes into the message
    except Exception as error:
        with running(args, kwargs), torch.no_grad():
            model(*args, **kwargs)
        raise ExportError(
            "torch.export cannot export this model",
            got=first_lines(error),
            hint=_hint(error),
        ) from error


_CONTAINERS = re.compile(r"Found <class '([^']+)'> in output|Unsupported (?:in|out)put type <class '([^']+)'>")
"""torch.export's words for inputs and outputs of classes that it cannot take apart."""


def _hint(error: Exception) -> str:
    """Say what to do about an error of torch.export."""
    found = _CONTAINERS.search(str(error))
    if found is None:
        return "dynamic_shapes must fit the model; a size that is to stay open is 2 or more in the example"
    name = (found[1] or found[2]).rpartition(".")[2]
    return (
        f"torch.export takes {name} apart only where it is registered: torch.export.register_dataclass({name}) does it "
        "for a dataclass, torch.utils._pytree.register_pytree_node for other classes"
    )


@contextmanager
def running(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Say that the example inputs do not run where the body, which runs them, fails.

    Raises:
        InputError: it does.
    """
    try:
        yield
    except FxQuantError:
        raise
    except Exception as error:
        raise InputError(
            f"the example inputs do not run through the model: {first_line(error)}",
            got=describe_call(tuple(args), kwargs),
            hint="example inputs must be inputs that the quantized model itself can run on",
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence exporters: they log and warn of what is no matter of the caller's."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def first_lines(error: BaseException) -> str:
    """Return what an error of an exporter says first: a heading alone says nothing, so that what it lists follows."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    found = " ".join(lines[:2]) if lines and lines[0].endswith((":", '"+dynamic".')) else "".join(lines[:1])
    return found[:300] or type(error).__name__
