"""Names what a Quantizer holds that was learned, and refuses it where a function would lose it."""

from __future__ import annotations

from typing import Any

import torch

from fxquant.errors import InputError, listing
from fxquant.fake_quantize.adaround import learned_bias
from fxquant.quantizer.attach_observers import planned_weight_layers
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.quantizer import Quantizer


def refuse_learned(
    prepared: object, function: str, *, takes: tuple[str, ...], fits: str, hint: str, or_planned: bool = False
) -> None:
    """Refuse what is no Quantizer, and one with anything that was learned, in this process or from a file.

    Args:
        prepared: Calibrated or not.
        function: Name of the function that would lose it.
        takes: Names of the functions whose result it takes instead, in the order of their calls.
        fits: What the learned values belong to, and the function changes.
        hint: What to do instead.
        or_planned: Refuse layers whose rounding the configuration wants to be learned, too.

    Raises:
        InputError: it is none; qparams were given or trained, or roundings, biases or scales learned.
    """
    if not isinstance(prepared, Quantizer):
        raise not_prepared(prepared, function)
    parts: list[str] = []
    if prepared.trained is not None:
        learned = "qparams that it was given or trained with"
    else:
        parts = learned_parts(prepared)
        tables = (prepared.reconstruction, prepared.corrected_statistics)
        if not parts and tables == (None, None) and not (or_planned and prepared.weight_layers):
            return
        learned = _kinds(prepared)
    got = f"a Quantizer with {learned}, which are those of {fits}"
    raise InputError(
        f"{function} takes what {' and '.join(takes)} gave",
        got=listing([f"{got}; these would be lost:", *parts] if parts else [got]),
        expected=f"a Quantizer as {takes[-1]} gives it",
        hint=hint,
    )


def learned_parts(prepared: PreparedModel) -> list[str]:
    """Return what ``prepared`` holds that was learned for its weights and ranges as they are, one line for each.

    What it holds counts, and not the tables of what has run: files and states have no tables.
    """
    fresh = planned_weight_layers(prepared)
    layers = dict(prepared.weight_layers.items())
    integers = [root for root, layer in layers.items() if root not in fresh or _differs(layer, fresh[root])]
    biases = [root for root, layer in layers.items() if learned_bias(layer) is not None]
    scales = [ref.name for ref in prepared.learned_qparams]
    named = {"the integers of the weight of": integers, "the bias of": biases, "the scale of": scales}
    return [f"{what} {name}" for what, names in named.items() for name in names]


def _kinds(prepared: PreparedModel) -> str:
    """Name the kinds of what was learned."""
    if prepared.learned_qparams and not prepared.weight_layers:
        return "learned scales"
    corrected = prepared.corrected_statistics is not None and prepared.reconstruction is None
    rounding = "corrected statistics" if corrected else "learned roundings"
    return f"{rounding} and scales" if prepared.learned_qparams else rounding


def _differs(layer: Any, fresh: Any) -> bool:
    """Tell whether the weight of a layer rounds to other values than that of one where nothing was learned."""
    own, planned = layer.weight_fake_quant, fresh.weight_fake_quant
    if not torch.equal(own.qparams().scale, planned.qparams().scale):
        return True
    return not torch.equal(own.integers(fresh.weight), planned.integers(fresh.weight))
