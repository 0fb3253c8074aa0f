"""The data that a search was given, read once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from fxquant.analysis.inputs import target_of
from fxquant.calibration.batches import check_iterable, expected_batches, holds_values, inputs_of
from fxquant.distributed.facts import without_addresses
from fxquant.errors import CalibrationError
from fxquant.graph.inputs import bind
from fxquant.plan.qconfig import QConfig
from fxquant.precision.options import Options
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.checkpoint import Checkpoint, digest, run_identity

Batch = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments."""


@dataclass(frozen=True, slots=True)
class Given:
    """The data, read once."""

    batches: Sequence[Batch]
    inputs: Sequence[Mapping[str, Any]]
    """Of each batch, by the names of the arguments."""
    targets: Sequence[Any]

    def checkpoint(
        self,
        folder: str | os.PathLike[str] | None,
        prepared: Quantizer,
        options: Options,
        qconfigs: Mapping[str, QConfig],
        seed: int,
        estimate: str,
    ) -> Checkpoint | None:
        """Open the folder of a run like this one; None without a folder.

        Args:
            folder: Of the user's.
            prepared: What was calibrated.
            options: Without the choices that the back end refuses: the others decide what is measured.
            qconfigs: Root of a unit -> its configuration, whose observers the choices have.
            seed: Of what is drawn at random.
            estimate: How noise is measured.
        """
        if folder is None:
            return None
        choices = without_addresses(str([str(each) for each in options.choices]))
        text = f"search_precision, candidates={choices}, seed={seed}, estimate={estimate}"
        observed = sorted((name, value) for name, value in prepared.observers.state_dict().items())
        inputs = [self.inputs, [value for _, value in observed]]
        schemes = [(root, str(each.weight_scheme), str(each.activation_scheme)) for root, each in qconfigs.items()]
        left_out = [(each.group, each.choice) for each in options.excluded]
        identity = {
            **run_identity(text, prepared.graph_module, prepared.plan, {}, inputs),
            "backend": f"{prepared.backend.name}, {len(left_out)} choices left out: {digest(left_out)}",
            "configuration": digest([without_addresses(repr(dict(qconfigs))), schemes]),
        }
        return Checkpoint(folder, identity)


def read(prepared: Quantizer, data: Iterable[Any], num_batches: int | None, *, with_targets: bool) -> Given:
    """Read the data, with the targets behind the inputs of each batch.

    Raises:
        InputError: ``data`` is no iterable of batches, or a batch does not fit or lacks its target.
        CalibrationError: there is no batch with a sample in it.
    """
    check_iterable(data)
    expected_batches(data, num_batches)
    found: list[Batch] = []
    targets: list[Any] = []
    example = prepared.example_args if prepared.has_example else None
    for index, batch in enumerate(islice(data, num_batches)):
        what = f"batch {index}"
        inputs = inputs_of(batch, example, what, prepared.graph_module)
        target = target_of(batch, len(inputs[0]), what) if with_targets else None
        if not holds_values(inputs):
            continue
        found.append(inputs)
        if with_targets:
            targets.append(target)
    if not found:
        raise CalibrationError("there is no data to search on", got="no batch", expected="at least one batch")
    bound = [bind(prepared.graph_module, *each, f"batch {index}") for index, each in enumerate(found)]
    return Given(found, bound, targets)
