"""One case: an operator, its inputs, and the only right result."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fxquant.errors import InputError

FLOAT = ("quantize", "fake_quantize", "qparams")
"""Operators whose inputs are float values."""

CASES = Path(__file__).parent / "cases"


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A task for a tool, and its only right result."""

    name: str
    operator: str
    """``quantize``, ``dequantize``, ``fake_quantize``, ``qparams``, ``linear``, ``conv2d``, ``conv_transpose2d``,
    ``avg_pool2d``, ``max_pool2d``, ``matmul``, ``add``, ``mul`` or ``cat``."""
    inputs: Mapping[str, Tensor]
    """float32 for the operators in ``FLOAT`` (``qparams``: smallest and largest value), else int32: quantized."""
    attributes: Mapping[str, Any]
    """Qparams, limits and geometry; ``x_dtype``, ``y_dtype``: how integers are stored. A bias is a float value."""
    expected: Tensor
    """float64, exact: quantized values, or float values where the operator gives these."""
    why: str
    """What goes wrong elsewhere."""
    source: str


def load_cases(folder: Path = CASES) -> tuple[Case, ...]:
    """Return all cases, in the order of the files.

    Raises:
        InputError: there is no case.
    """
    cases = [_case(row) for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text("utf-8"))]
    if not cases:
        raise InputError("there are no conformance cases", got=str(folder), expected="a folder with *.json files")
    return tuple(cases)


def _case(row: Mapping[str, Any]) -> Case:
    floats = row["operator"] in FLOAT
    inputs = {name: _tensor(value, torch.float32 if floats else torch.int32) for name, value in row["inputs"].items()}
    expected = _tensor(row["expected"], torch.float64)
    return Case(row["name"], row["operator"], inputs, row["attributes"], expected, row["why"], row["source"])


def _tensor(value: Mapping[str, Any], dtype: torch.dtype) -> Tensor:
    shape = value["shape"]
    numbers = [value["fill"]] * math.prod(shape) if "fill" in value else [float(number) for number in value["data"]]
    return torch.tensor(numbers, dtype=torch.float64).to(dtype).reshape(shape)
