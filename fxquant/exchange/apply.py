"""Gives a prepared model the qparams of a file: it then converts without data."""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fxquant.errors import CalibrationError, InputError, SpecError, UnknownNameError, listing
from fxquant.exchange.formats import read_qparams
from fxquant.exchange.given import Contents, Given, Means
from fxquant.exchange.planned import PlannedTensor, PlannedTensors, planned_tensors
from fxquant.exchange.table import QParamsTable
from fxquant.graph.query import nodes_by_name, value_of
from fxquant.plan.spec import Fixed, Handled, QParams, TensorRef
from fxquant.plan.spec import Means as MeansPolicy
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.quantizer import Quantizer
from fxquant.registry import did_you_mean

_ROUNDED = 1e-6
"""How far apart, relatively, two scales may be that were one before they were multiplied and written as float32."""


def apply_qparams(
    prepared: Quantizer,
    qparams: str | os.PathLike[str] | QParamsTable | Mapping[str, Any],
    strict: bool = True,
    *,
    names: Mapping[str, str] | None = None,
) -> Quantizer:
    """Give a prepared model the qparams of a file, in the place of those that its observers choose.

    Weights that the file does not name are observed by ``convert``: that needs no data. Those that were trained, or
    were given qparams before, keep theirs.

    Args:
        prepared: What ``prepare`` or ``load`` gave, calibrated or not. It is not changed.
        qparams: A file, what was parsed from one, or what :func:`qparams` gave. Read are the JSON of fxquant, ONNX
            Runtime's ``TensorQuantOverrides``, AIMET's encodings 1.0.0 and 2.0.0, and TensorRT's calibration cache
            (symmetric, 8 bits, activations alone).
        strict: Each activation that is quantized is named, and nothing else is. False: names that the model has not
            are passed over, and activations that are not named keep what their observers chose.
        names: Name in the file -> name in the model, where they differ.

    Returns:
        A new Quantizer, to convert. What it observes changes nothing any more.

    Raises:
        InputError: the file cannot be read, is of no known format, or names a tensor twice, or one that shares the
            qparams of another.
        UnknownNameError: it names a tensor that the model has not, or ``names`` one that the file has not.
        SpecError: scales or zero points are none, are too few or too many, or are of a scheme that the back end cannot
            take, or the granularity is not that of the plan.
        CalibrationError: an activation has no qparams.
    """
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "apply_qparams")
    contents = _of_table(qparams) if isinstance(qparams, QParamsTable) else read_qparams(qparams)
    planned = planned_tensors(prepared)
    found = _matched(planned, contents, _checked_names(names, contents, strict), strict)
    activations = [tensor for tensor in planned.owners.values() if tensor.ref.kind == "activation"]
    if missing := [tensor for tensor in activations if tensor.ref not in found]:
        found |= _observed(prepared, missing, strict)
    handled = [ref for ref, policy in prepared.plan.policies.items() if isinstance(policy, Handled)]
    made = copy.deepcopy(prepared)
    made.__dict__.pop("run_state", None)
    learned = {ref: own for ref, own in (prepared.trained or {}).items() if ref.kind == "parameter"}
    made.trained = {**learned, **found, **{ref: made.handlers[ref.name].qparams() for ref in handled}}
    made.learned_qparams = {}
    _set_joined(made, contents.joined, strict)
    _set_means(made, contents.means, strict)
    return made


def _checked_names(names: Any, contents: Contents, strict: bool) -> dict[str, str]:
    """Check a mapping of names against what a file holds.

    Raises:
        InputError: it is none, or gives two tensors of the file one name; or the file names a tensor twice.
        UnknownNameError: the file has not one of its names.
    """
    given = {} if names is None else names
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for pair in given.items() for name in pair):
        raise InputError(
            "names is no mapping of names", got=ascii(names)[:120], expected="{name in the file: in the model}"
        )
    held = [tensor.name for tensor in contents.tensors]
    if strict and (unused := [name for name in given if name not in held]):
        raise UnknownNameError(
            "the file has no tensor of this name",
            got=", ".join(map(repr, unused)),
            hint=did_you_mean(unused[0], held) or "names={theirs: ours} maps names; strict=False passes over it",
        )
    counts = Counter(given.get(name, name) for name in held)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InputError("a tensor has qparams twice in the file", at=twice[0], expected="one entry, or names={...}")
    return dict(given)


def _of_table(table: QParamsTable) -> Contents:
    tensors = []
    for row in table.rows:
        scheme, scale, zero_point = row.qparams.scheme, row.qparams.scale.tolist(), row.qparams.zero_point.tolist()
        tensors.append(Given(row.name, scale, zero_point, scheme.bits, scheme.signed, scheme, row.shared))
    return Contents(tuple(tensors), False, dict(table.joined), dict(table.means))


def _matched(
    planned: PlannedTensors, contents: Contents, names: Mapping[str, str], strict: bool
) -> dict[TensorRef, QParams]:
    """Find the tensor of each name, and check what it is given."""
    found: dict[TensorRef, QParams] = {}
    later: list[tuple[Given, PlannedTensor, float]] = []
    for name in contents.floats:
        if names.get(name, name) in (*planned.owners, *planned.members):
            raise InputError(
                "an encoding is none of integers",
                at=name,
                got="float",
                expected="scale and zero point: the model quantizes this tensor",
                hint="a rule of None in the configuration leaves the layer float",
            )
    # Match by name, and remember those that share the qparams of another.
    for given in contents.tensors:
        name = names.get(given.name, given.name)
        if name in planned.owners:
            tensor = planned.owners[name]
            found[tensor.ref] = tensor.checked(given)
        elif name in planned.members and contents.every_tensor:
            owner, factor = planned.members[name]
            later.append((given, planned.owners[owner], factor))
        elif name in planned.members:
            raise InputError(
                "a tensor shares the qparams of another",
                at=given.name,
                expected=f"qparams of {planned.members[name][0]}",
            )
        elif strict:
            known = [*planned.owners, *planned.members]
            raise UnknownNameError(
                "the model quantizes no tensor of this name",
                got=repr(given.name),
                hint=did_you_mean(name, known) or "strict=False passes over it; names={theirs: ours} maps names",
            )
    # What shares qparams must agree with the owner.
    for given, tensor, factor in later:
        shared = tensor.checked(given, factor)
        if not _are_close(found.setdefault(tensor.ref, shared), shared) and strict:
            own = found[tensor.ref]
            raise InputError(
                "a tensor has other qparams than the one whose qparams it shares",
                at=given.name,
                got=f"scale {float(shared.scale * factor):g}, zero point {int(shared.zero_point)}",
                expected=f"scale {float(own.scale * factor):g}, zero point {int(own.zero_point)}, as {tensor.name} has",
            )
    for given in contents.tensors:  # convert lets values share qparams that have their own before
        others = [planned.owners[name] for name in given.shared if name in planned.owners]
        found |= {tensor.ref: tensor.checked(given) for tensor in others if tensor.ref not in found}
    return found


def _are_close(own: QParams, shared: QParams) -> bool:
    """Tell whether qparams are the same but for how a scale was rounded: ``s * 3 / 3`` may be no ``s`` any more."""
    close = torch.allclose(own.scale, shared.scale, rtol=_ROUNDED, atol=0.0)
    return close and own.same_qparams(replace(shared, scale=own.scale))


def _observed(prepared: Quantizer, missing: list[PlannedTensor], strict: bool) -> dict[TensorRef, QParams]:
    """Find the qparams of activations that a file does not name: known beforehand, or observed."""
    found: dict[TensorRef, QParams] = {}
    unknown: list[str] = []
    observers: Mapping[str, Any] = prepared.observers._modules
    for tensor in missing:
        policy = prepared.plan.policies[tensor.ref]
        if isinstance(policy, Fixed):
            found[tensor.ref] = policy.qparams
        elif strict:
            unknown.append(tensor.name)
        elif prepared.trained is not None:
            found[tensor.ref] = prepared.trained[tensor.ref]
        elif tensor.ref in prepared.learned_qparams:
            found[tensor.ref] = prepared.learned_qparams[tensor.ref]
        else:
            try:
                found[tensor.ref] = observers[tensor.ref.name].qparams()
            except CalibrationError:
                unknown.append(tensor.name)
    if unknown:
        raise CalibrationError(
            f"{len(unknown)} activations have no qparams: the file does not name them",
            got=listing(unknown),
            hint="strict=False keeps what their observers chose" if strict else "calibrate first, or name them",
        )
    return found


def _set_joined(applied: Quantizer, joined: Mapping[str, tuple[float, float]], strict: bool) -> None:
    """Set the ranges that say which joins stay float."""
    extremes: Mapping[str, Any] = applied.calibration_statistics.joined._modules
    for name, ends in joined.items():
        if name in extremes:
            extremes[name].ends.copy_(torch.tensor(ends))
        elif strict:
            raise UnknownNameError(
                "the model joins no value of this name", got=repr(name), hint=did_you_mean(name, list(extremes))
            )


def _set_means(applied: Quantizer, means: Mapping[str, Means], strict: bool) -> None:
    """Set the means that biases are corrected with."""
    nodes = nodes_by_name(applied.graph_module)
    policies = {ref.name: policy for ref, policy in applied.plan.policies.items() if isinstance(policy, MeansPolicy)}
    for name, given in means.items():
        if name not in policies:
            if strict:
                hint = did_you_mean(name, list(policies))
                raise UnknownNameError("the model takes no means of this name", got=repr(name), hint=hint)
            continue
        info = value_of(nodes[policies[name].value])
        if info is not None and len(given.total) != info.shape[policies[name].axis]:
            expected = f"{info.shape[policies[name].axis]} channels"
            raise SpecError("means are of another number of channels", at=name, got=len(given.total), expected=expected)
        observer: Any = applied.observers._modules[name]
        observer.total = torch.tensor(given.total, dtype=torch.float64, device=observer.count.device)
        observer.count.fill_(given.count)
