"""``correct_statistics``: mean and variance of what each layer gives, as in the float model."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

from fxquant.errors import PlanError, listing
from fxquant.measure.parity import plan_of
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode
from fxquant.training.bound_batches import bound_batches
from fxquant.training.correctable_layers import correctable_layers
from fxquant.training.corrected_layers import CorrectedLayers, LayersInTurn
from fxquant.training.resumable_run import Memory
from fxquant.training.rounding_layers import only_modules


@outside_inference_mode
def correct_statistics(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    num_batches: int | None = None,
    memory: int = 1 << 30,
    progress: bool = True,
) -> Quantizer:
    """Give each output channel of the quantized layers the mean and the variance that it has in the float model.

    Layer by layer, in the order of the graph: ``y' = (y - mean(y)) * std(float y) / std(y) + mean(float y)``, on what
    the quantized layers before it give. The factor goes into the scales of the weight, the rest into the bias, so
    nothing is computed that was not computed before. Integers stay as they are. Labels are not needed.

    Args:
        prepared: What :func:`prepare` and :func:`calibrate` gave. It is not changed. Layers with integers that were
            learned (``adaround``, ``gptq``) stay as they are.
        data: As for :func:`calibrate`; the same data will do.
        num_batches: Stop after so many.
        memory: Bytes that stored activations may take; what is more goes to temporary files.
        progress: Show a progress bar with the time that is left.

    Returns:
        A new Quantizer, to convert: its ``corrected_statistics`` is a table of factors and noise, layer by layer. A
        factor is used where the error falls by it, and where a weight has scales for each output channel. The mean is
        corrected wherever zeros need not stay zero: a linear layer without a bias, or with one of zeros, and one that
        reads nothing but padding somewhere, gets the mean square instead, by its factor. All this takes the place of
        ``correct_bias``, which knows of the weights' errors alone.

    Raises:
        InputError: an argument or a batch is of the wrong kind.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch, or empty ones alone;
            or a layer gives values that are not finite, and the message names it with the batch.
        PlanError: there is no layer to correct.

    Source:
        Hubara et al., "Improving Post Training Neural Quantization: Layer-wise Calibration and Integer Programming",
        arXiv:2006.10518, batch normalization tuning; Banner et al., arXiv:1810.05723, bias correction. Statistics of
        each layer, and the check of the error, are ours.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2)).eval()
        >>> data = [torch.randn(16, 4)]
        >>> prepared = fxquant.calibrate(fxquant.prepare(model, data[0]), data, progress=False)
        >>> corrected = correct_statistics(prepared, data, progress=False)
        >>> [row.channels for row in corrected.corrected_statistics]
        [3, 2]
    """
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "correct_statistics")
    corrected = copy.deepcopy(prepared)
    corrected.__dict__.pop("run_state", None)
    simulated = corrected.convert(to="fake_quant")
    simulated.requires_grad_(False)
    own = dict(corrected.weight_layers.items())
    layers, left = correctable_layers(simulated, plan_of(simulated), own)
    if not layers:
        raise PlanError(
            "no layer can be corrected",
            got=listing([f"{each.unit}: {each.reason}" for each in left]) or "no unit with a weight",
            hint="correct_statistics needs linear layers or convolutions that are rounded to nearest",
        )
    inputs = bound_batches(prepared, data, num_batches)
    with Memory(memory) as stored:
        run = LayersInTurn(simulated, layers, inputs, stored)
        rows = run.run(progress)
    corrected.plan = corrected.plan.without_means([layer.unit.root for layer in layers])
    corrected.weight_layers = only_modules({**own, **run.found})
    corrected.corrected_statistics = CorrectedLayers(rows, tuple(left))
    return corrected
