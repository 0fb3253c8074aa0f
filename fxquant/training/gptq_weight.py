"""Finds the integers of one weight by GPTQ, and keeps them where they are better than the nearest ones."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.fake_quantize.adaround import KnownIntegers, OwnIntegersFakeQuantize
from fxquant.fake_quantize.from_policy import has_given_qparams
from fxquant.fake_quantize.qparams import to_integers
from fxquant.nn.weight_forms import with_fake_quantized_weight, without_fake_quantized_weight
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import QParams, QParamsPolicy, QScheme
from fxquant.training.gptq_columns import Choices, round_columns
from fxquant.training.input_products import InputProducts, inputs_of_output
from fxquant.training.rounding_layers import least_error_scale
from fxquant.training.weight_matrix import WeightMatrix, from_matrices
from fxquant.training.weighted_units import Left, refused_kind, split_by_refusal

MOST_INPUTS = 8192
"""Of one output: the products of two inputs are then 512 MB."""

NOT_FINITE = "to nearest: some of its inputs are inf or NaN"
NOT_FACTORED = "to nearest: the products of its inputs cannot be factored"


@dataclass(frozen=True, slots=True)
class Rounded:
    """What was found for a weight."""

    integers: Tensor
    """Of the shape of the weight and the dtype of the scheme."""
    qparams: QParams
    nearest: float
    """The squared error of rounding to nearest: summed over channels, the mean over all else."""
    rounded: float
    """That of the integers."""
    damping: float
    """As it was used: 0 where none was enough, NaN where inputs are not finite."""

    def note(self, choices: Choices) -> str:
        """Say what was done otherwise than asked for."""
        if math.isnan(self.damping):
            return NOT_FINITE
        if self.damping == choices.damping:
            return ""
        return f"damping {self.damping:g}" if self.damping else NOT_FACTORED

    def use(self, module: Any) -> nn.Module:
        """Let a layer of the simulation round so, and return the layer for ``weight_layers``."""
        known = KnownIntegers(self.integers, self.qparams)
        layer = with_fake_quantized_weight(without_fake_quantized_weight(module), known, module.output_axis)
        module.weight_fake_quant = OwnIntegersFakeQuantize(known)
        return layer

    def state(self) -> dict[str, Tensor | float]:
        """Return it as tensors and numbers, for a checkpoint."""
        tensors = {"integers": self.integers, "scale": self.qparams.scale, "zero_point": self.qparams.zero_point}
        return {**tensors, "nearest": self.nearest, "rounded": self.rounded, "damping": self.damping}

    @classmethod
    def like(cls, weight: Tensor, qparams: QParams) -> Rounded:
        """Return one of the shapes that belong to a weight."""
        return cls(torch.empty_like(weight, dtype=qparams.scheme.dtype), qparams, 0.0, 0.0, 0.0)

    def of_state(self, state: Mapping[str, Any]) -> Rounded:
        """Return the one that ``state`` was made of, on the device of this one."""
        integers, scale, zero_point = (
            state[name].to(self.integers.device) for name in ("integers", "scale", "zero_point")
        )
        numbers = (state[name] for name in ("nearest", "rounded", "damping"))
        return Rounded(integers, replace(self.qparams, scale=scale, zero_point=zero_point), *numbers)


def layers_for_gptq(
    simulated: GraphModule, plan: QuantPlan, own: Mapping[str, Any]
) -> tuple[list[QuantUnit], list[Left]]:
    """Return the units whose weight can be rounded column by column, and the others with the reason.

    Args:
        simulated: What ``convert(to="fake_quant")`` gave.
        plan: Its plan, with qparams.
        own: Layers whose integers are known already, under the roots of their units.
    """
    taken, left = split_by_refusal(simulated, plan, own, _refusal)
    return [unit for unit, _ in taken], left


def _refusal(layer: Any, scheme: QScheme, own: Any) -> str:
    """Why the columns of a weight cannot be rounded one by one; empty if they can."""
    if own is not None:
        return f"{type(own.weight_fake_quant).__name__} has integers of its own"
    if reason := refused_kind(layer):
        return reason
    if scheme.float_qparams:
        return "its zero points are no integers"
    if (inputs := inputs_of_output(layer)) > MOST_INPUTS:
        return f"an output has {inputs} inputs, more than {MOST_INPUTS}"
    return ""


def round_weight(
    weight: Tensor, qparams: QParams, policy: QParamsPolicy, products: InputProducts, choices: Choices
) -> Rounded:
    """Find the integers of one weight: those of GPTQ, and where these are worse on the data, the nearest ones.

    Args:
        weight: float [C_out, C_in / groups, *kernel_size]; of a transposed convolution
            [C_in, C_out / groups, *kernel_size].
        qparams: As the observer chose them.
        policy: How they are chosen. Where they are given, integers alone are found.
        products: Of the inputs.
        choices: How columns are rounded.
    """
    if not bool(products.sums.isfinite().all()):
        integers = to_integers(weight, qparams.scale, qparams.zero_point, qparams.scheme)
        return Rounded(integers.contiguous(), qparams, math.nan, math.nan, math.nan)

    # Two ways to round to the nearest step: on the scales of the observer, and on those of least error.
    keep_scales = has_given_qparams(policy)
    fitting = qparams if keep_scales else replace(qparams, scale=least_error_scale(weight, qparams))
    matrices = [WeightMatrix.of(weight, each, products.groups, products.transposed) for each in (qparams, fitting)]
    found = [(each.nearest, each) for each in matrices]
    fitted = matrices[1]

    # GPTQ begins with the second; runs of inputs get scales of their own on the way, unless all are kept.
    matrix = replace(fitted, runs=None if keep_scales else fitted.runs)  # its scales may change
    solved = round_columns(matrix, products.sums, choices.damping, choices.order)
    if solved is not None:
        found.append((solved[0], matrix))

    # The best of them is taken: of each output by itself, where it has a scale of its own.
    errors = torch.stack([each.errors(integers, products.sums) for integers, each in found])
    if fitted.by_row:
        best = errors.argmin(0)
        integers, scale, zero_point = (
            _picked(each, best)
            for each in (
                [integers for integers, _ in found],
                [each.scale for _, each in found],
                [each.zero_point for _, each in found],
            )
        )
        chosen = replace(fitted, scale=scale, zero_point=zero_point).qparams(qparams)
        after = float(_picked(list(errors.unsqueeze(-1)), best).sum())
    else:
        index = int(errors.sum((1, 2)).argmin())
        integers, chosen, after = found[index][0], fitting if index else qparams, float(errors[index].sum())
    count = max(products.count, 1)
    damping = 0.0 if solved is None else solved[1]
    whole = from_matrices(integers, weight.shape, products.transposed).to(qparams.scheme.dtype)
    return Rounded(whole, chosen, float(errors[0].sum()) / count, after / count, damping)


def _picked(candidates: list[Tensor], best: Tensor) -> Tensor:
    """Of several tensors [groups, outputs, n], take the one for each output that ``best`` says."""
    places = best[None, :, :, None].expand(1, *candidates[0].shape)
    return torch.stack(candidates).gather(0, places).squeeze(0)
