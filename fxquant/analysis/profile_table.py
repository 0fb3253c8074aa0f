"""Results of ``profile``, as rows and as a table: the most expensive operator first, and which units lose."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from fxquant.graph.text_table import PrintedTable, short_line, shortened

Kind = Literal["unit", "border", "float"]
WIDTH = 100
"""No line of the table is wider."""
SHOWN = 30
"""Rows that are printed; all of them are in ``rows``."""
NOISE, NOISE_US = 1.1, 1.0
"""What medians of a few rounds differ by on a quiet machine, as a factor and in µs: less is no difference."""
_NAME, _OPERATOR, _LINE = 30, 16, 18
LEGEND = """\
float, int8: as the models run it, weights in the caches; called: an int8 operator by itself, from
Python. share: of the int8 model. A border quantizes or dequantizes, and is in that one only."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """One operator of the int8 model. Times are medians in µs, without what comes before and after it."""

    unit: str
    """Name of its node; of a unit, of its root."""
    name: str
    """What to call it: the path of a layer; of any other value also which one it is."""
    kind: Kind
    """``unit``: becomes int8; ``border``: quantizes or dequantizes; ``float``: is float in both."""
    operator: str
    """Name of the pattern, or of the operator."""
    line: str
    """``path:line`` of the user's code."""
    float_us: float | None
    """In the float model: all operators of a unit together; None for what is not in it."""
    int8_us: float
    """In the int8 model: within a program, where the model runs by programs and this operator can."""
    graph_us: float
    """As a call from Python: what the operator takes where there are no programs."""
    share: float
    """Of the time of all rows, 0 to 1."""

    @property
    def loses(self) -> bool:
        """Tell whether a unit is slower in int8 than in float, by more than medians differ from run to run."""
        return self.kind == "unit" and self.float_us is not None and self.int8_us > self.float_us * NOISE + NOISE_US


@dataclass(frozen=True, slots=True)
class Profile(PrintedTable[ProfileRow]):
    """Shows where the time of an int8 model goes on this machine, and of a float one. Print it, or read ``rows``."""

    _HEAD = ("operator", "is", "float µs", "int8 µs", "called µs", "share", "", "line")
    _ALIGN = "llrrrrll"
    _SHOWN = SHOWN
    _LEGEND = LEGEND

    rows: tuple[ProfileRow, ...]
    """The most expensive in int8 first."""
    threads: int
    float_ms: float
    """A call of the float model, median."""
    graph_ms: float
    """A call of the int8 model as its graph, operator by operator."""
    program_ms: float | None
    """A call of the int8 model by programs; None where it does not run by them."""
    programs: str
    """What of the graph is in programs, in words."""

    @property
    def int8_ms(self) -> float:
        """Return a call of the int8 model as it runs."""
        return self.graph_ms if self.program_ms is None else self.program_ms

    @property
    def losing(self) -> tuple[ProfileRow, ...]:
        """Units that are slower in int8 than in float, the one that loses most first."""
        return tuple(
            sorted((row for row in self.rows if row.loses), key=lambda row: (row.float_us or 0.0) - row.int8_us)
        )

    def milliseconds(self, kind: Kind) -> tuple[float, float]:
        """Return all rows of one kind together: in the float model, and in the int8 model."""
        rows = [row for row in self.rows if row.kind == kind]
        return sum(row.float_us or 0.0 for row in rows) / 1e3, sum(row.int8_us for row in rows) / 1e3

    def _cells(self, rows: Sequence[ProfileRow]) -> Iterable[tuple[str, ...]]:
        return map(_cells, rows)

    def _left_out(self, rows: Sequence[ProfileRow]) -> str:
        return f"and {len(rows)} more, {100 * sum(row.share for row in rows):.1f} % of the time"

    def _sentences(self) -> list[str]:
        times = [(kind, *self.milliseconds(kind)) for kind in ("unit", "border", "float")]
        sums = ", ".join(f"{kind}s {floats:.3f} → {int8:.3f}" for kind, floats, int8 in times if floats or int8)
        program = "" if self.program_ms is None else f", int8 by programs {self.program_ms:.3f}"
        lines = [
            f"ms, float → int8, summed up on {self.threads} thread{'' if self.threads == 1 else 's'}: {sums}",
            f"ms, the whole: float {self.float_ms:.3f}, int8 by its graph {self.graph_ms:.3f}{program}:"
            f" {self._speed()}",
            self.programs,
        ]
        units = sum(row.kind == "unit" for row in self.rows)
        lost = sum(row.int8_us - (row.float_us or 0.0) for row in self.losing)
        names = ", ".join(row.name for row in self.losing[:3])
        found = f", {lost:.1f} µs in all: {names}{', …' if len(self.losing) > 3 else ''}" if self.losing else ""
        lines.append(f"{len(self.losing)} of {units} units are slower in int8 than in float, beyond noise{found}")
        if not self.losing and self.int8_ms > self.float_ms * NOISE:
            lines.append("what makes the whole slower are its borders, what stays float, and the calls in between")
        if self.losing:
            lines.append("convert(prepared, tune=batch) leaves in float what the whole model is faster without")
        return [part for line in lines for part in textwrap.wrap(line, WIDTH, subsequent_indent="    ")]

    def _speed(self) -> str:
        """Say how the int8 model compares with the float model."""
        ratio = self.float_ms / self.int8_ms
        return f"{ratio:.2f} times as fast as float" if ratio >= 1 else f"{1 / ratio:.2f} times as slow as float"

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain data, for JSON."""
        return {
            "threads": self.threads,
            "milliseconds": {"float": self.float_ms, "int8_graph": self.graph_ms, "int8_programs": self.program_ms},
            "programs": self.programs,
            "rows": [{**asdict(row), "loses": row.loses} for row in self.rows],
        }


def _cells(row: ProfileRow) -> tuple[str, ...]:
    return (
        shortened(row.name, _NAME),
        row.kind if row.kind != "unit" else shortened(row.operator, _OPERATOR),
        "" if row.float_us is None else f"{row.float_us:.1f}",
        f"{row.int8_us:.1f}",
        f"{row.graph_us:.1f}",
        f"{100 * row.share:.1f} %",
        "loses" if row.loses else "",
        shortened(short_line(row.line), _LINE),
    )
