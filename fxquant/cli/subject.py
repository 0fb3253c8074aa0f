"""The model of a command, with the weights, the data and the file that the command line names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import fxquant as fxq
from fxquant.api import example_of
from fxquant.cli.command import RANDOM, RANDOM_INPUTS, RANDOM_WEIGHTS
from fxquant.cli.data import Data
from fxquant.cli.models import inputs_from, is_of_zoo, load_model
from fxquant.cli.weights import load_weights
from fxquant.errors import CalibrationError, InputError

Form = Literal["float", "prepared", "converted"]
Weights = Literal["random", "unknown", "given"]
"""``unknown``: a function of the user's made the model, and may have loaded some."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What stands for MODEL on the command line."""

    spec: str
    model: Any
    """A float module, a Quantizer, or a converted model."""
    form: Form
    weights: Weights


def subject_from(options: argparse.Namespace) -> Subject:
    """Make the model that the command line names, or open its file.

    Raises:
        InputError: there is none, or its weights are not in the file that ``--weights`` names.
        ArtifactError: the ``.fxq`` file is no model.
    """
    spec: str = options.model
    if spec.endswith(".fxq"):
        if options.weights is not None:
            raise InputError("a file of fxquant holds its weights", at=spec, got=f"--weights {options.weights}")
        model = fxq.load(spec)
        if isinstance(model, fxq.Quantizer):
            return Subject(spec, model, "prepared", "given")
        form = fxq.inspect_artifact(spec).kind
        return Subject(spec, model, "float" if form == "float" else "converted", "given")
    model = load_model(spec)
    if options.weights is not None:
        load_weights(model, options.weights)
        return Subject(spec, model, "float", "given")
    return Subject(spec, model, "float", "random" if is_of_zoo(spec) else "unknown")


def caution_of(weights: Weights, *, random_inputs: bool) -> str:
    """Say which numbers are random, where some are; empty where none is."""
    if random_inputs:
        return RANDOM_INPUTS if weights == "given" else RANDOM
    return RANDOM_WEIGHTS[weights]


@dataclass(frozen=True, slots=True)
class Ready:
    """A model that was prepared, and what it is calibrated and measured on."""

    quantizer: fxq.Quantizer
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    data: Data | None
    calibrated: bool
    """Whether it came with ranges."""
    weights: Weights

    @property
    def inputs(self) -> Any:
        """Return the first batch, as ``profile`` takes it."""
        return dict(self.kwargs) if self.kwargs else self.args

    @property
    def args_of_file(self) -> tuple[Any, ...]:
        """Return the positional inputs that a file is for: of a folder of images, as many as ``--input`` says."""
        size = None if self.data is None else self.data.written
        return self.args if size is None else tuple(value[:size] for value in self.args)

    def calibrate(self, *, progress: bool = False) -> None:
        """Measure ranges on the data, or, where neither the command line nor the file has any, on random inputs."""
        if self.data is not None:
            fxq.calibrate(self.quantizer, self.data.calibration, progress=progress)
        elif not self.calibrated:
            self.quantizer.observe(*self.args, **self.kwargs)

    def batches(self) -> Iterable[Any]:
        """Return what a report is measured on."""
        if self.data is not None:
            return self.data.calibration
        return [self.inputs]

    def caution(self, *, measured: bool = True) -> str:
        """Say which numbers are random, where some are; empty where none is.

        Args:
            measured: Whether something was measured on the inputs; else they count where they gave the ranges.
        """
        return caution_of(self.weights, random_inputs=self.data is None and (measured or not self.calibrated))


def prepared_from(
    options: argparse.Namespace,
    subject: Subject,
    data: Data | None,
    *,
    backend: str | None = None,
    strict: bool = False,
    qconfig: fxq.QConfigMapping | None = None,
) -> Ready:
    """Prepare the model on its first batch, or on random inputs of the shape that the command line names.

    Args:
        options: Of the command line.
        subject: What ``subject_from`` gave: a float model, or one that was prepared.
        data: What ``data_from`` gave.
        backend: What to plan for; None: ``cpu``, or what the file was planned for.
        strict: Whether it is an error that something stays float.
        qconfig: How to quantize; None: the default. It does not count for a file that was prepared.

    Raises:
        InputError: the inputs do not fit the model; or it was prepared for another back end.
    """
    if subject.form == "prepared":
        return _from_file(options, subject, data, backend, strict)
    model: nn.Module = subject.model
    args, kwargs = inputs_from(options), dict[str, Any]()
    if data is not None:
        args, kwargs = example_of(model, next(iter(data.calibration)))
    quantizer = fxq.prepare(model, args, qconfig, example_kwargs=kwargs, backend=backend or "cpu", strict=strict)
    return Ready(quantizer, args, kwargs, data, False, subject.weights)


def _from_file(
    options: argparse.Namespace, subject: Subject, data: Data | None, backend: str | None, strict: bool
) -> Ready:
    quantizer: fxq.Quantizer = subject.model
    planned = quantizer.backend.name
    if backend is not None and backend != planned:
        raise InputError(
            "this file was planned for another back end",
            at=subject.spec,
            got=repr(planned),
            expected=repr(backend),
            hint="a float file, or the model itself, can be planned for any",
        )
    if strict:
        raise InputError("--strict is for models that are planned now", at=subject.spec, got="a plan")
    args, kwargs = _random_like(quantizer.example_args), _random_like(quantizer.example_kwargs)
    if options.input:
        args, kwargs = inputs_from(options), {}
    if data is not None:
        args, kwargs = example_of(quantizer.graph_module, next(iter(data.calibration)))
    return Ready(quantizer, args, kwargs, data, _has_ranges(quantizer), subject.weights)


def _random_like(values: Any) -> Any:
    """Return values for a file's example inputs, of which it holds shapes and dtypes alone."""

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return torch.randn_like(value) if value.is_floating_point() else torch.zeros_like(value)

    return pytree.tree_map(drawn, values)


def _has_ranges(quantizer: fxq.Quantizer) -> bool:
    try:
        quantizer.convert(to="fake_quant")
    except CalibrationError:
        return False
    return True


def refuse_converted(subject: Subject, command: str) -> None:
    """Refuse a file that holds a converted model alone, where a command starts from the float model.

    Raises:
        InputError: it does.
    """
    if subject.form == "converted":
        raise InputError(
            f"{command} starts from the float model, and this file holds the quantized one alone",
            at=subject.spec,
            got=fxq.inspect_artifact(subject.spec).kind,
            expected="float or prepared",
            hint="fxq.save(prepared, path) keeps a prepared model, from which every other form can be had",
        )
