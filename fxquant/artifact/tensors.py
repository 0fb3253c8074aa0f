"""Tensors as a file holds them: each once, contiguous, with the order that its dimensions had in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.artifact.format import can_hold
from fxquant.artifact.packing import WIDTHS, pack, packed_layout
from fxquant.artifact.plan import is_of_plan
from fxquant.errors import ArtifactError
from fxquant.kernels.embedding.lookup import HALF_BITS
from fxquant.nn.table import QuantizedTable
from fxquant.plan.spec import QScheme

TABLE = "#table/"
"""What the names of the answers of lookup tables begin with."""
_OF_QPARAMS = ("scale", "zero_point")


def stored_once(tensors: Mapping[str, Tensor], widths: Mapping[str, int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Make tensors contiguous, each once; return them with their order in memory by name, or the name of the first.

    Floats are added up in an order that may depend on how a weight lies, so that is kept, too. Qparams of the plan are
    those of a module as a rule: where the values are the same, they are stored once.

    Args:
        tensors: By name.
        widths: Name of a weight -> bits that each of its values takes.
    """
    stored: dict[str, Tensor] = {}
    layouts: dict[str, Any] = {}
    seen: dict[int, str] = {}
    qparams: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
            raise ArtifactError("a tensor cannot be written", at=name, got=f"{type(tensor).__name__}, {tensor.layout}")
        if not can_hold(tensor.dtype):
            raise ArtifactError("a tensor of this dtype cannot be written", at=name, got=tensor.dtype)
        # A tensor with several names is written once.
        if id(tensor) in seen and not name.startswith("#"):
            layouts[name] = seen[id(tensor)]
            continue
        seen.setdefault(id(tensor), name)
        # Write dense values in the order of memory, which the layout names.
        value = tensor.detach().cpu().resolve_conj().resolve_neg()
        strides = value.stride()
        order = [axis for _, axis in sorted((-step, axis) for axis, step in enumerate(strides))]
        turned = value.permute(order)
        if not value.is_contiguous() and turned.is_contiguous():
            layouts[name], value = order, turned
        stored[name] = value.contiguous()
        # Pack integers of few bits.
        if name in widths and value.dtype in (torch.int8, torch.uint8):
            packed = pack(stored[name], widths[name])
            if packed is not None:
                layouts[name] = packed_layout(value, widths[name], layouts.get(name))
                stored[name] = packed
        if name.endswith(_OF_QPARAMS) and name not in layouts:
            values = (value.dtype, value.shape, stored[name].numpy().tobytes())
            if qparams.setdefault(values, name) != name and is_of_plan(name):
                layouts[name] = qparams[values]
                del stored[name]
    return stored, layouts


def weight_widths(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, int]:
    """Map each weight whose values may fit into fewer than 8 bits to the bits that a value then takes."""
    integers = {name: tensor for name, tensor in tensors.items() if name.endswith(".integers_of_weight")}
    found = {name: min(WIDTHS) if _fits(tensor, min(WIDTHS)) else max(WIDTHS) for name, tensor in integers.items()}
    for path, module in model.named_modules(remove_duplicate=False):
        attributes: dict[str, Any] = vars(module)
        scheme = attributes.get("weight_scheme", (attributes.get("_schemes") or {}).get("weight"))
        is_packed = attributes.get("bits") == HALF_BITS  # as tables of embeddings are in memory, too
        if isinstance(scheme, QScheme) and scheme.bits <= max(WIDTHS) and not is_packed:
            found[f"{path}.weight" if path else "weight"] = next(bits for bits in WIDTHS if scheme.bits <= bits)
    return found


def _fits(values: Tensor, bits: int) -> bool:
    """Tell whether each of some integers takes no more bits."""
    low = 0 if values.dtype == torch.uint8 else -(1 << bits - 1)
    return bool(((values >= low) & (values < low + (1 << bits))).all())


def answers_of_tables(model: nn.Module) -> dict[str, Tensor]:
    """Return the 256 answers of each lookup table, by name."""
    tables = {path: module for path, module in model.named_modules() if isinstance(module, QuantizedTable)}
    return {TABLE + path: module.packed() for path, module in tables.items()}
