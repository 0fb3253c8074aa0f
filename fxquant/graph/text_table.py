"""Prints tables: rows of cells under a head, as text or as HTML, with sentences below."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, ClassVar, Generic, TypeVar

from tabulate import tabulate

_ALIGNMENTS = {"l": "left", "r": "right"}

Row = TypeVar("Row")


def format_rows(rows: Iterable[Sequence[Any]], head: Sequence[str], align: str = "", form: str = "simple") -> str:
    """Format a table. Cells are written as they are: a number is not rounded.

    Args:
        rows: The cells of each row.
        head: The titles of the columns.
        align: A letter for each column, ``l`` or ``r``; the columns that have none are aligned left.
        form: ``simple``, ``plain`` without a line below the head, or ``html``.
    """
    alignments = [_ALIGNMENTS[letter] for letter in align] or None
    return tabulate(rows, headers=head, tablefmt=form, disable_numparse=True, colalign=alignments)


def shortened(text: str, width: int) -> str:
    """Cut a text that is too long. The end stays: the end of a path says more than its start."""
    return text if len(text) <= width else f"…{text[1 - width :]}"


def short_line(line: str) -> str:
    """Shorten ``path/to/file.py:12`` to ``file.py:12``."""
    return PurePath(line).name


@dataclass(frozen=True, slots=True)
class PrintedTable(Generic[Row]):
    """A result that is read as a table: it is printed, shown in a notebook, or read by ``rows``.

    A subclass says what stands in the columns, and what is said below.
    """

    _HEAD: ClassVar[tuple[str, ...]] = ()
    _ALIGN: ClassVar[str] = ""
    _SHOWN: ClassVar[int | None] = None
    """How many rows are printed; None: all. HTML has all of them."""
    _LEGEND: ClassVar[str] = ""

    rows: tuple[Row, ...]

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __str__(self) -> str:
        shown = self.rows[: self._SHOWN]
        more = [self._left_out(self.rows[len(shown) :])] * (len(self.rows) > len(shown))
        legend = [self._LEGEND] * bool(self._LEGEND)
        return "\n".join([self._format(shown, "simple"), *more, *legend, *self._sentences()])

    def _repr_html_(self) -> str:
        lines = [*self._LEGEND.splitlines(), *self._sentences()]
        return self._format(self.rows, "html") + "".join(f"<p>{html.escape(line)}</p>" for line in lines)

    def _format(self, rows: Sequence[Row], form: str) -> str:
        return format_rows(self._cells(rows), self._head(), self._ALIGN, form)

    def _head(self) -> tuple[str, ...]:
        return self._HEAD

    def _cells(self, rows: Sequence[Row]) -> Iterable[Sequence[Any]]:
        """Return the cells of each line of the table."""
        raise NotImplementedError

    def _left_out(self, rows: Sequence[Row]) -> str:
        """Return a sentence about the rows that are not printed."""
        return f"and {len(rows)} more"

    def _sentences(self) -> list[str]:
        """Return the lines below the table and its legend."""
        return []
