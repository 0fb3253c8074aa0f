from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fxquant.graph.text_table import PrintedTable, format_rows, short_line, shortened


@dataclass(frozen=True, slots=True)
class Sizes(PrintedTable[tuple[str, int]]):
    """A table of two columns."""

    _HEAD = ("name", "size")
    _ALIGN = "lr"
    _SHOWN = 2
    _LEGEND = "size: in bytes."

    unit: str = ""

    def _cells(self, rows: Sequence[tuple[str, int]]) -> list[tuple[Any, ...]]:
        return [(name, f"{size}{self.unit}") for name, size in rows]

    def _sentences(self) -> list[str]:
        return ["<all> of them"]


ROWS = (("a", 1), ("bc", 20), ("d", 300))


def test_rows_are_printed_under_their_head_and_the_rest_is_counted() -> None:
    assert str(Sizes(ROWS, " B")) == (
        "name      size\n------  ------\na          1 B\nbc        20 B\nand 1 more\nsize: in bytes.\n<all> of them"
    )
    assert "more" not in str(Sizes(ROWS[:2]))


def test_html_has_all_rows_and_escapes_sentences() -> None:
    text = Sizes(ROWS)._repr_html_()
    assert all(name in text for name, _ in ROWS)
    assert text.endswith("<p>&lt;all&gt; of them</p>")


def test_a_table_is_its_rows_and_can_be_stored() -> None:
    table = Sizes(ROWS)
    assert (len(table), list(table)) == (3, list(ROWS))
    assert pickle.loads(pickle.dumps(table)) == table


def test_numbers_are_written_as_they_are() -> None:
    assert format_rows([("1e3", "07")], ("a", "b"), form="plain").split() == ["a", "b", "1e3", "07"]


def test_a_long_text_keeps_its_end() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("layer1.0.conv", 6) == "….conv"
    assert short_line("/a/b/model.py:12") == "model.py:12"
