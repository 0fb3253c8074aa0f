"""Compares a quantized model with its float model, layer by layer: each alone, and with all that came before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.analysis.comparison import Comparison
from fxquant.analysis.comparison_points import comparison_points
from fxquant.analysis.comparison_run import ComparisonRun
from fxquant.analysis.float_reference import check_float_model, float_graph, quantized_graph
from fxquant.analysis.inputs import batches_of
from fxquant.distributed.facts import module_facts
from fxquant.distributed.shared_numbers import SharedNumbers
from fxquant.errors import InputError, error_context
from fxquant.graph.shapes import unchanged_state
from fxquant.measure.parity import plan_of
from fxquant.quantizer.quantizer import Quantizer


def compare(
    float_model: nn.Module | Quantizer,
    quantized_model: nn.Module,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    progress: bool = True,
) -> Comparison:
    """Find the layer that spoils a quantized model: each layer alone, and with all that came before it.

    Both models run side by side, a node at a time. Of every layer sums are kept, not values: memory does not grow with
    the number of batches, and holds about what one batch needs in each model.

    Args:
        float_model: The model that was quantized; or what :func:`prepare` gave of it; or the model of
            :func:`prepare_qat`, which is then run without its roundings.
        quantized_model: What :func:`convert` gave, to whatever, from :func:`prepare` or :func:`prepare_qat`, also if it
            was pickled and loaded since; or the model of :func:`prepare_qat` itself, as it would be converted.
        data: Yields batches, as for :func:`calibrate`.
        num_batches: Stop after so many.
        progress: Show a progress bar.

    Returns:
        A table of the layers, the most harmful first. A layer that differs from the float model by more than rounding
        explains (other weights, a scale that its readers do not know) comes before all others, and is told so.
        An interrupt gives what was measured until then.

    Raises:
        InputError: a model is of the wrong kind, no layer of one is found in the other (the message says which, and
            why), or a batch does not run.
        CalibrationError: ``data`` holds no batch.

    Example:
        >>> import torch, fxquant
        >>> _ = torch.manual_seed(7)
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4)).eval()
        >>> data = [torch.randn(16, 8)]
        >>> int8 = fxquant.quantize(model, data, progress=False)
        >>> found = compare(model, int8, data, progress=False)
        >>> sorted(row.name for row in found), found.worst(1)[0].fault
        (['0', '2', 'input_1'], '')
    """
    check_float_model(float_model)
    quantized = quantized_graph(quantized_model)
    example, batches = batches_of(data, quantized, num_batches=num_batches, progress=progress, what="compare")
    floats = float_graph(float_model, quantized, *example)
    points = comparison_points(quantized, plan_of(quantized), floats)
    if not points.by_node:
        raise InputError(
            "no layer of the quantized model is found in the float model",
            got="\n            ".join(f"{each.unit}: {each.reason}" for each in points.unmatched[:10]) or "no unit",
            expected="the model that was quantized",
            hint="compare(prepared, …) takes the graph that prepare made, in place of the float model",
        )
    run = ComparisonRun(floats, quantized, points)
    share = SharedNumbers("compare", batches, None, lambda: _facts(floats, quantized), run.fold)
    with torch.no_grad(), unchanged_state(floats), unchanged_state(quantized):
        try:
            for index, (args, kwargs) in share.batches():
                with error_context(f"batch {index}"):
                    share.keep(index, "batch", run.measure(args, kwargs))
            share.fold_all()
        except KeyboardInterrupt:
            if not run.batches:
                raise
    return run.result()


def _facts(floats: GraphModule, quantized: GraphModule) -> dict[str, str]:
    return {**module_facts(floats, "float model"), **module_facts(quantized, "quantized model")}
