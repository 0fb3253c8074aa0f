"""Reads the data that something is learned from: the inputs of each batch, by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from fxquant.calibration.batches import batches
from fxquant.calibration.interpreter import check_like_example
from fxquant.errors import error_context
from fxquant.graph.inputs import bind
from fxquant.quantizer.data import PreparedModel


def bound_batches(prepared: PreparedModel, data: Iterable[Any], num_batches: int | None) -> list[dict[str, Any]]:
    """Return the inputs of each batch by name.

    Args:
        prepared: Its graph says which inputs there are.
        data: As for :func:`calibrate`.
        num_batches: Stop after so many.

    Raises:
        InputError: a batch does not bind the inputs of the model.
        CalibrationError: there is no batch, or empty ones alone.
    """
    inputs, example = [], prepared.example_args if prepared.has_example else None
    found = batches(data, example, prepared.graph_module, num_batches=num_batches, progress=False)
    for index, (args, kwargs) in enumerate(found):
        with error_context(f"calibration batch {index}"):
            bound = bind(prepared.graph_module, args, kwargs, "the inputs")
            check_like_example(bound, prepared.example_bound, "the inputs")
        inputs.append(tree_map_only(Tensor, _ordinary, bound))
    return inputs


def _ordinary(x: Tensor) -> Tensor:
    """Return a tensor that gradients can flow through: one that was made under ``torch.inference_mode`` is copied."""
    return x.clone() if x.is_inference() else x
