"""``torch.export`` of the explicit form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.exporting.decomposed import HOME, NAMESPACE
from fxquant.exporting.explicit import explicit
from fxquant.graph.inputs import keywords_in_order

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
        InputError: the keyword inputs do not fit, or cannot be exported by position.
        InputError, CalibrationError, LoweringError: as of :func:`explicit`.
    """
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    made = explicit(model)
    kwargs = keywords_in_order(made, args, example_kwargs or {})
    program = torch.export.export(made, args, kwargs, dynamic_shapes=dynamic_shapes)
    for node in program.graph.nodes:
        if getattr(node.target, "namespace", "") == NAMESPACE:  # the first is where loading fails
            node.meta["custom"] = {**node.meta.get("custom", {}), "fxquant": TO_LOAD}
            break
    return program
