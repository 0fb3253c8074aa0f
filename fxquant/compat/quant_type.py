"""The kinds of quantization that torch.ao names."""

from __future__ import annotations

import enum


class QuantType(enum.IntEnum):
    """Names the kinds: measured in each call, measured beforehand, trained, weights alone."""

    DYNAMIC = 0
    STATIC = 1
    QAT = 2
    WEIGHT_ONLY = 3


_NAMES = {
    QuantType.STATIC: "static",
    QuantType.DYNAMIC: "dynamic",
    QuantType.WEIGHT_ONLY: "weight_only",
    QuantType.QAT: "qat",
}


def _get_quant_type_to_str(quant_type: QuantType) -> str:
    return _NAMES[quant_type]


def _quant_type_from_str(name: str) -> QuantType:
    for quant_type, known in _NAMES.items():
        if known == name:
            return quant_type
    raise ValueError(f"Unknown QuantType name '{name}'")
