"""The functions that users call: prepare, calibrate, convert, and all three as quantize."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxquant.calibration.batches import check_iterable
from fxquant.distributed.sharing import active_ranks
from fxquant.errors import CalibrationError
from fxquant.graph.inputs import keywords_of, needed_inputs
from fxquant.patterns.pattern import Pattern
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.quantizer.calibrate_in_ranks import calibrate_in_ranks
from fxquant.quantizer.checks import checked_model, not_prepared
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.trained import quantizer_of


def prepare(
    model: nn.Module | ExportedProgram,
    example_inputs: Any,
    qconfig: QConfig | QConfigMapping | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    backend: str = "cpu",
    patterns: Sequence[Pattern] | None = None,
    leaf_modules: Sequence[type[nn.Module] | str] = (),
    strict: bool = False,
    capture: str = "auto",
    integer_inputs: bool | str | Sequence[str] = False,
    integer_outputs: bool | int | Sequence[int] = False,
) -> Quantizer:
    """Trace a model, find what can be quantized, and make it ready for calibration. ``model`` is not changed.

    Args:
        model: The float model. In training mode it is taken as if ``eval()`` had been called, with a warning. Or a
            program that ``torch.export.export`` gave of one, or its ``module()``: names are those of the model. Of what
            ``torch.compile``, ``DataParallel`` or ``DistributedDataParallel`` gave, the module inside is taken.
        example_inputs: Tuple of the positional inputs (a lone tensor is taken as a one-tuple). They are run once. None:
            nothing is run, and what depends on shapes stays float with that reason: functions that take weights, batch
            norms after linear layers, products of two tensors, attention, residuals inside a convolution.
        qconfig: A ``QConfig`` for everything, or a ``QConfigMapping``; None: the backend's default.
        example_kwargs: Keyword inputs.
        backend: Name of the backend that decides what can be quantized and what is fused.
        patterns: What to look for; None: what was registered, and ``DEFAULT_PATTERNS``.
        leaf_modules: Module types or qualified names that are kept whole and in float.
        strict: Raise if anything that the configuration asks to quantize stays float.
        capture: How the graph is made. ``"fx"``: torch.fx traces. ``"export"``: ``torch.export`` exports the model.
            ``"auto"``: torch.fx; what it cannot trace is exported, that submodule alone if it can be, else the model;
            what neither takes is kept in float. The coverage names what was exported, and why.
        integer_inputs: Names of the arguments that int8 and reference models take as quantized values, on the qparams
            that calibration chooses for them; True: all that are float tensors. Calibration and the simulation go on
            taking floats.
        integer_outputs: Positions of the tensors that they return as quantized values, among all that the model
            returns; True: all float ones. The simulation returns the floats that these stand for.

    Raises:
        InputError: the example inputs do not fit, or do not run.
        TracingError: the model's own forward can neither be traced nor exported, or, if ``strict``, a submodule's.
            Otherwise the smallest such submodule is kept whole and in float, with a warning.
        PlanError: nothing can be quantized; if ``strict``, something stays float; or what is to be taken or given as
            quantized values does.
        UnknownNameError: no backend has that name, or ``leaf_modules`` names what does not exist.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU()).eval()
        >>> prepared = prepare(model, torch.randn(2, 4))
        >>> prepared.coverage().int8_macs
        1.0
    """
    return Quantizer(
        model,
        example_inputs,
        qconfig,
        example_kwargs=example_kwargs,
        backend=backend,
        patterns=patterns,
        leaf_modules=leaf_modules,
        strict=strict,
        capture=capture,
        integer_inputs=integer_inputs,
        integer_outputs=integer_outputs,
    )


def calibrate(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    progress: bool = True,
    until_stable: bool = False,
) -> Quantizer:
    """Run data through the float model, and measure the range of every value that will be quantized.

    Args:
        prepared: What :func:`prepare` gave. Observations add to those it has.
        data: Yields tensors, tuples, dicts (keyword inputs), or the ``(input, label)`` pairs of a DataLoader: as many
            leading elements as the example inputs hold are used.
        num_batches: Stop after so many.
        progress: Show a progress bar.
        until_stable: Stop once all ranges have settled: when in the second half of at least eight batches no end moved
            by more than 5 % of the width; at the latest after ``num_batches``, or 1,000.

    Returns:
        ``prepared``, whose ``calibration_report()`` shows what was found; what looks wrong is
        warned of, once. Buffers that the model writes to from call to call are as they were before. An interrupt keeps
        what was observed until then (inside of :func:`share_work` its ``checkpoint`` keeps it, and without one each
        rank what it observed itself).

    Raises:
        InputError: a batch of the wrong kind; the message shows what came and what was expected.
        CalibrationError: ``data`` holds no batch.
        RankError: inside of :func:`share_work`, another rank does not go on.
    """
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "calibrate")
    if (ranks := active_ranks()) is not None:
        return calibrate_in_ranks(
            prepared, data, ranks, num_batches=num_batches, progress=progress, until_stable=until_stable
        )
    return prepared.calibrate(data, num_batches=num_batches, progress=progress, until_stable=until_stable)


def convert(
    prepared: Quantizer | nn.Module,
    *,
    to: str = "int8",
    check: Any = None,
    allow_uncalibrated: bool = False,
    engine: str | None = None,
    tune: Any = None,
) -> GraphModule:
    """Make the quantized model. ``prepared`` can be converted again: it keeps but a note of what was warned of.

    Args:
        prepared: A calibrated :class:`Quantizer`, or what :func:`prepare_qat` gave: its qparams are then taken as they
            are, and nothing is observed again.
        to: ``"int8"``: integer operators on plain uint8 and int8 tensors. ``"fake_quant"``: the same rounding simulated
            in float, differentiable. ``"reference"``: explicit quantize and dequantize around float operators.
        check: A batch, on which it is measured unit by unit whether the int8 operators, their integer reference and
            the simulation agree. The result's ``parity`` is the table: print it. It is logged, too, at level INFO. A
            unit that breaks the contract is warned of by name.
        allow_uncalibrated: Make a model without ranges, which raises when it is run, until a state dict is loaded.
        engine: What runs an int8 model. ``"graph"``: the code of its graph, operator by operator. ``"program"``: the
            same native loops in the same order, recorded when a shape of the inputs comes the second time, and then run
            without Python and allocations between them; the bits are the same. None: programs, where the native library
            was loaded. Under ``torch.compile``, ``torch.export``, on other devices
            and for arguments that are given by keyword, or are neither plain tensors nor numbers, the graph runs in any
            case.
        tune: A batch, of the size that the model is going to run on, on which every unit is measured on this machine
            with the number of threads that is set: in int8 and in float. What is faster in float, boundaries counted,
            stays float. The result's ``tuning`` is the table: print it. It is logged, too; its ``coverage`` gives the
            reasons. The model as a whole is measured, too: if float is the fastest, all of it stays float.

    Returns:
        A new ``torch.fx.GraphModule`` with the float model's signature, on its device. Its ``quant_plan`` says what was
        done. Integer operators without a kernel for a GPU run as their reference there, slowly: ``.cpu()`` moves an
        int8 model to where it is fast. It is no instance of the float model's class, but has its attributes, and its
        methods where they call the model itself; one that calls layers that are now part of the graph raises a
        ``MethodError``. Threads may call it at once. Results have the dtype of the float model's, whatever float dtype
        the inputs have. No gradient flows through integers, and int8 models do not train: both are warned of where
        they are asked for. ``torch.export`` and ``torch.compile`` take it, before its first call too; TorchScript
        does not.

    Raises:
        InputError: ``prepared`` is neither; or ``tune`` is given for another kind of model, or one without ranges, or
            does not fit the model.
        CalibrationError: a value was never observed, or a weight is not finite; the message names it.
        UnknownNameError: ``to`` is none of the three, or ``engine`` none of the two.
        KernelError: ``engine="program"``, and there is no native library.
    """
    if not isinstance(prepared, Quantizer):
        prepared = quantizer_of(prepared, allow_uncalibrated=allow_uncalibrated)
    return prepared.convert(to=to, check=check, allow_uncalibrated=allow_uncalibrated, engine=engine, tune=tune)


def quantize(
    model: nn.Module | ExportedProgram,
    data: Iterable[Any],
    qconfig: QConfig | QConfigMapping | None = None,
    *,
    num_batches: int | None = None,
    progress: bool = True,
    until_stable: bool = False,
    **same: Any,
) -> GraphModule:
    """Prepare, calibrate and convert in one call. The first batch serves as example.

    Args:
        model: The float model. It is not changed.
        data: As for :func:`calibrate`. Of a batch that is a tuple, as many leading elements are inputs as the
            model's ``forward`` has arguments without a default.
        qconfig: As for :func:`prepare`, as are all further keywords.
        num_batches: Stop after so many.
        progress: Show a progress bar.
        until_stable: As for :func:`calibrate`.

    Returns:
        The int8 model.

    Raises:
        CalibrationError: ``data`` holds no batch.
    """
    module = checked_model(model)
    check_iterable(data)
    batches: Iterable[Any] = data
    first = next(iter(data), None)
    if first is None:
        raise CalibrationError("there is no calibration data", got="no batch", expected="at least one batch")
    if isinstance(data, Iterator):
        batches = chain([first], data)
    args, kwargs = example_of(module, first)
    prepared = prepare(module, args, qconfig, example_kwargs=kwargs, **same)
    calibrate(prepared, batches, num_batches=num_batches, progress=progress, until_stable=until_stable)
    return convert(prepared)


def example_of(model: nn.Module, batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the example inputs in a batch: of a tuple as many as ``forward`` has arguments without a default."""
    if isinstance(batch, Mapping):
        return (), keywords_of(batch, model, "batch 0")
    if not isinstance(batch, (tuple, list)):
        return (batch,), {}
    return tuple(batch[: needed_inputs(model)]), {}
