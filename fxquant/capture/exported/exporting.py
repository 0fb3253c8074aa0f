"""Exports a module by ``torch.export``, with all sizes left open that can be, and imports the program."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import torch
from torch import nn

from fxquant.capture.copies import carry_over, copy_of
from fxquant.capture.exported.program import import_program
from fxquant.capture.exported.sizes import copies_of, fixed_sizes, gives_the_same, open_sizes, without_ones
from fxquant.capture.exported.state import check_state, check_stored
from fxquant.capture.hooks import hooks_that_compute
from fxquant.capture.same_results import check_results
from fxquant.errors import FxQuantError, TracingError
from fxquant.graph.module import NamedGraphModule, set_metadata


def export_and_import(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str
) -> NamedGraphModule:
    """Export a module with all sizes left open that can be, and import the program.

    Args:
        module: In evaluation mode, as it is before its first call. Attributes that it assigns to may change.
        args: Positional inputs.
        kwargs: Keyword inputs.
        what: The module's name, for the message.

    Returns:
        The graph; its metadata ``fixed_sizes`` are the conditions on sizes that the module itself does not need.

    Raises:
        TracingError: ``torch.export`` refuses, or the program would lose what the forward keeps between calls.
    """
    assigned = check_state(module, args, kwargs, what)
    failure: Exception | None = None
    given = (args, dict(kwargs))
    larger = without_ones(module, args, kwargs)
    for inputs, is_open in ((larger, True), (given, True), (given, False)):
        if inputs is None:
            continue
        copies = copies_of(inputs)  # torch.export marks tensors whose sizes are open, and leaves the marks if it fails
        try:
            with torch.enable_grad(), _quiet():
                shapes = open_sizes(copies) if is_open else None
                program = torch.export.export(module, *copies, dynamic_shapes=shapes, strict=False)
            check_stored(program, assigned, what)
            gm = import_program(program)
            if inputs is larger and not gives_the_same(module, gm, args, kwargs):
                continue
            set_metadata(gm, fixed_sizes=fixed_sizes(gm, module, args, kwargs))
            return gm
        except FxQuantError:
            raise
        except Exception as error:
            failure = failure or error
    lines = str(failure).strip().splitlines() or [""]
    raise TracingError(
        f"torch.export cannot export {what} (a {type(module).__name__})",
        got=f"{type(failure).__name__}: {lines[0]}",
        expected="a forward that torch.export.export takes",
        hint="torch.export.export(model, example_inputs, strict=False) by itself says more",
    ) from failure


def export_model(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> NamedGraphModule:
    """Export a copy of a whole model, and give the graph what the program leaves out.

    Of the hooks of the model itself those that compute are in the program; the others go on running in every call.

    Raises:
        TracingError: as ``export_and_import``.
    """
    exported = copy_of(model)
    own = copy_of(exported, shares_parameters=True)
    with hooks_that_compute(exported) as computing:
        gm = export_and_import(exported, args, kwargs, "the model")
    for hooks in (own._forward_pre_hooks, own._forward_hooks):
        for key in computing & hooks.keys():
            del hooks[key]
    carry_over(own, gm)
    return gm


def check_program(model: nn.Module, gm: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Refuse the graph of a program whose results on the example are not those of the model.

    Raises:
        TracingError: the results differ.
    """
    copied_args, copied_kwargs = copies_of((args, dict(kwargs)))
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        result = copy_of(gm, shares_parameters=True)(*copied_args, **copied_kwargs)
    check_results(partial(copy_of, model, shares_parameters=True), (args, kwargs), result, "torch.export")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch.export from printing and warning of what the error says anyway."""
    loggers = [
        logging.getLogger(f"torch.{name}") for name in _TALKING if not logging.getLogger(f"torch.{name}").disabled
    ]
    for logger in loggers:
        logger.disabled = True
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger in loggers:
            logger.disabled = False


_TALKING = ("fx.experimental.symbolic_shapes", "_export.non_strict_utils", "export._trace", "_subclasses.fake_tensor")
"""Modules of torch that log while they export."""
