"""``gptq``: rounding in closed form, for a model that was prepared and, where activations are quantized, calibrated."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable
from typing import Any

from fxquant.errors import FxQuantWarning, PlanError, listing
from fxquant.measure.parity import plan_of
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.quantizer import Quantizer, outside_inference_mode
from fxquant.training.bound_batches import bound_batches
from fxquant.training.checkpoint import Checkpoint, run_identity
from fxquant.training.gptq_columns import Choices
from fxquant.training.gptq_layers import LayerByLayer
from fxquant.training.gptq_weight import layers_for_gptq
from fxquant.training.resumable_run import Memory
from fxquant.training.rounded_layers import RoundedLayers
from fxquant.training.rounding_layers import only_modules


@outside_inference_mode
def gptq(
    prepared: Quantizer,
    data: Iterable[Any],
    *,
    damping: float = 0.01,
    order: str = "activation",
    num_batches: int | None = None,
    memory: int = 1 << 30,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Quantizer:
    """Round weights so that layers give what they give in float, by solving for it: no gradients, no iterations.

    Layer by layer, in the order of the graph, on what the quantized layers before it give. The weights of an output are
    rounded one by one, and those that are left make up for the error, as far as the inputs of ``data`` go together.
    Layers with many inputs gain most, and weights of few bits with activations in float. Labels are not needed.

    Args:
        prepared: What :func:`prepare` gave, after :func:`calibrate` where activations are quantized. Not changed.
        data: As for :func:`calibrate`; the same data will do.
        damping: Added to the diagonal of the products of inputs, as a part of its mean; more trusts the data less.
        order: ``"activation"``: inputs with the largest squares are rounded first; ``"given"``: as they stand.
        num_batches: Stop after so many.
        memory: Bytes that stored activations may take; what is more goes to temporary files. Beside them stand the
            products of one layer, three times 8 bytes for the square of the number of inputs of an output.
        checkpoint: A folder, in which each finished layer is written down. A run that finds its own goes on there, and
            ends with the same bits.
        progress: Show a progress bar with the time that is left.

    Returns:
        A new Quantizer, to convert: its ``weight_layers`` hold the integers, with scales of least squared error, and
        ``reconstruction`` is a table of the error of each layer before and after, which is never more. The biases of
        these layers are not corrected any more.

    Raises:
        InputError: an argument or a batch is of the wrong kind, or the checkpoint is of another run.
        CalibrationError: ``prepared`` was not calibrated, or ``data`` holds no batch, or empty ones alone; or a weight
            is not finite, and the message names it.
        PlanError: there is no weight to round.
        UnknownNameError: there is no such order.

    Source:
        Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
        arXiv:2210.17323, algorithm 1.

    Example:
        >>> import torch, fxquant
        >>> model = torch.nn.Sequential(torch.nn.Linear(8, 3)).eval()
        >>> data = [torch.randn(16, 8)]
        >>> prepared = fxquant.prepare(model, data[0], fxquant.weight_only_qconfig(bits=4, group_size=None))
        >>> rounded = gptq(prepared, data, progress=False)
        >>> rounded.reconstruction.rows[0].part <= 1
        True
        >>> int8 = fxquant.convert(rounded)
    """
    choices = _checked(prepared, damping, order)
    rounded = copy.deepcopy(prepared)
    rounded.__dict__.pop("run_state", None)
    planned = rounded.plan
    rounded.plan = planned.without_means()
    simulated = rounded.convert(to="fake_quant")
    units, left = layers_for_gptq(simulated, plan_of(simulated), dict(rounded.weight_layers.items()))
    if not units:
        raise PlanError(
            "no weight can be rounded by gptq",
            got=listing([f"{each.unit}: {each.reason}" for each in left]) or "no unit with a weight",
            hint="it needs linear layers or convolutions",
        )
    rounded.plan = planned.without_means([unit.root for unit in units])
    if any("mean" in unit.roles for unit in rounded.plan.units):  # the biases of others are corrected, as they will be
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FxQuantWarning)  # said above
            simulated = rounded.convert(to="fake_quant")
    inputs = bound_batches(prepared, data, num_batches)
    found = None
    if checkpoint is not None:
        own = dict(rounded.weight_layers.items())
        identity = run_identity(f"gptq, {choices}", rounded.graph_module, plan_of(simulated), own, inputs)
        found = Checkpoint(checkpoint, identity)
    with Memory(memory) as stored:
        run = LayerByLayer(simulated, plan_of(simulated), units, inputs, choices, stored, found)
        rows = run.run(progress)
    rounded.weight_layers = only_modules({**dict(rounded.weight_layers.items()), **run.layers})
    rounded.reconstruction = RoundedLayers(rows, tuple(left))
    return rounded


def _checked(prepared: Quantizer, damping: float, order: str) -> Choices:
    """Refuse arguments that make no sense."""
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, "gptq")
    return Choices(damping, order)
