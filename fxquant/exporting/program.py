"""``torch.export`` of the explicit form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.exporting.explicit import explicit


def export(
    model: nn.Module,
    example_inputs: Any,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
) -> torch.export.ExportedProgram:
    """Export a converted model as float operators between operators of ``quantized_decomposed``.

    ``torch.export.export(int8, args)`` exports the int8 operators of this package instead.

    Args:
        model: As :func:`explicit` takes it, or what that gave.
        example_inputs: Tuple of the positional inputs; a lone tensor is taken as a one-tuple.
        example_kwargs: Keyword inputs.
        dynamic_shapes: As ``torch.export.export`` takes it: ``({0: torch.export.Dim("batch")},)`` leaves the batch of
            one input open.

    Raises:
        InputError, CalibrationError, LoweringError: as of :func:`explicit`.
    """
    args = (example_inputs,) if isinstance(example_inputs, Tensor) else tuple(example_inputs)
    kwargs = dict(example_kwargs or {})
    return torch.export.export(explicit(model), args, kwargs, dynamic_shapes=dynamic_shapes)
