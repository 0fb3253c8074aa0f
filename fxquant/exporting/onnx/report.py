"""What an export made, and what the runtime does with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fxquant.graph.text_table import PrintedTable, shortened

NAME_WIDTH, KINDS_WIDTH = 30, 26


@dataclass(frozen=True, slots=True)
class OnnxRow:
    """One unit: what stands between quantized values."""

    name: str
    """Of the value that it gives, as in the plan."""
    operators: tuple[str, ...]
    """Types of its nodes in the file."""
    unrounded: str
    """Name in the file of the floats that are rounded to the result; empty where it is float."""
    kernels: tuple[str, ...]
    """Types of the nodes that the runtime makes of it."""
    is_integer: bool
    """Whether one of these computes on integers, or all of them only move integers."""
    values: int
    """Number of values that were compared."""
    unfused_different: int
    """Values that differ from fxquant's, with the runtime's optimizations off."""
    unfused_beyond_ties: int
    """Of these, those that did not lie near the middle between two integers."""
    unfused_steps: float
    """Largest difference, in steps; of a float result, as a part of its largest value."""
    fused_different: int
    """As ``unfused_different``, with the runtime's optimizations on."""
    fused_steps: float
    """As ``unfused_steps``."""
    reason: str = ""
    """Why no kernel computes on integers."""


@dataclass(frozen=True, slots=True)
class OnnxReport(PrintedTable[OnnxRow]):
    """What :func:`export_onnx` made. With ``check=True`` it has a row for each unit: print it."""

    _HEAD = ("unit", "in the file", "unfused", "steps", "fused", "steps", "kernel", "why float")
    _ALIGN = "llrrrrll"

    rows: tuple[OnnxRow, ...] = ()
    path: str = ""
    target: str = ""
    opset: int = 0
    size: int = 0
    """Bytes that were written, without a second file for large weights."""
    kernels: Mapping[str, int] = field(default_factory=dict)
    """Type of a node -> how many of it the runtime makes of the whole file; empty if nothing was checked."""
    runtime: str = "ONNX Runtime"
    """What the units were run in, if they were."""

    @property
    def integer_kernels(self) -> int:
        """Count the units that the runtime computes on integers; what only quantizes is none."""
        return sum(row.is_integer and bool(row.operators) for row in self.rows)

    @property
    def breaches(self) -> tuple[OnnxRow, ...]:
        """Return the units that differ, with the runtime's optimizations off, where no tie explains it."""
        return tuple(row for row in self.rows if row.unfused_beyond_ties)

    def _cells(self, rows: Sequence[OnnxRow]) -> Iterable[tuple[str, ...]]:
        return map(_cells, rows)

    def _sentences(self) -> list[str]:
        lines = [f"{self.path}: opset {self.opset}, {self.size / 1e6:.1f} MB, for {self.target}."]
        if not self.rows:
            return [*lines, "Nothing was run; check=True compares each unit in ONNX Runtime."]
        units = [row for row in self.rows if row.operators]
        kernels = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kernels.items()))
        return [
            *lines,
            f"{self.integer_kernels} of {len(units)} units run on integers in {self.runtime}: {kernels}.",
            *self._legend(),
        ]

    def _legend(self) -> list[str]:
        if self.runtime != "ONNX Runtime":
            return [
                f"unfused, fused: values that differ from fxquant's in ONNX Runtime with its optimizations off, and in"
                f" {self.runtime}, each unit on fxquant's inputs."
            ]
        return [
            "unfused, fused: values that differ from fxquant's with the runtime's optimizations off and on, each unit"
            " on fxquant's inputs."
        ]


def _cells(row: OnnxRow) -> tuple[str, ...]:
    return (
        shortened(row.name, NAME_WIDTH),
        shortened(" ".join(row.operators) or "QuantizeLinear", KINDS_WIDTH),
        _share(row.unfused_different, row.values),
        _steps(row.unfused_steps),
        _share(row.fused_different, row.values),
        _steps(row.fused_steps),
        shortened(" ".join(row.kernels), KINDS_WIDTH),
        row.reason,
    )


def _share(count: int, of: int) -> str:
    return "equal" if not count else f"{100 * count / of:.2g} %"


def _steps(steps: float) -> str:
    return "" if not steps else f"{steps:.2g}"
