"""Folds what repeats in a printed graph: blocks of a network that read like an earlier one become one line."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from fxquant.graph.printer import WIDTH

LEVELS = 3
"""A block is what shares a name up to its first number, or its second, …: whatever folds most."""
FEWEST = 3
"""Lines that must be saved for a block to be told, and not printed."""
MOST_LIKE = 4
"""Blocks that are named as what others are like."""
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_NODE = re.compile(r"(?<=[(, \[])(?!True|False|None)[A-Za-z_]\w*(?=[,)\]])")
"""What a node reads: which one it is does not count."""
_PATH = re.compile(r"\[[\w.]+\](?=\()")
"""Of the module that is called, where it is not that of the node's name."""
_SHAPE = re.compile(r"\[[\d,]*\]")
_CONTINUED = re.compile(r"[-+]? {8}")
_DEFINED = re.compile(r"(?:[-+] )?([A-Za-z_]\w*) = ")


@dataclass(frozen=True, slots=True)
class _Block:
    """Lines of nodes that share the beginning of their names."""

    name: str
    lines: tuple[str, ...]

    @property
    def key(self) -> tuple[str, ...]:
        return tuple(map(_key, self.lines))


def folded(lines: Sequence[str]) -> list[str]:
    """The lines, with blocks that read like earlier ones told in one line.

    Blocks are alike that differ in nothing but the numbers inside names and shapes, and in which nodes they read.

    Example:
        >>> block = ["a_{0}_x = f(x)", "a_{0}_y = g(a_{0}_x)"]
        >>> print("\\n".join(folded([line.format(k) for k in range(4) for line in block])))
        a_0_x = f(x)
        a_0_y = g(a_0_x)
          × 3 more like a_0: a_1 to a_3 (6 lines)
    """
    return min((_folded_at(lines, level) for level in range(1, LEVELS + 1)), key=len)


def _folded_at(lines: Sequence[str], level: int) -> list[str]:
    first: dict[tuple[str, ...], str] = {}
    marked = []
    for block in _blocks(lines, level):
        again = block.name != "" and block.key in first
        like = first.setdefault(block.key, block.name) if block.name else ""
        marked.append((block, like, again))
    shown: list[str] = []
    for again, group in groupby(marked, key=lambda item: item[2]):
        items = list(group)
        texts = [line for block, *_ in items for line in block.lines]
        if again and len(texts) >= FEWEST:
            shown.append(_told([block.name for block, *_ in items], [like for _, like, _ in items], len(texts)))
        else:
            shown += texts
    return shown


def _told(names: list[str], likes: list[str], lines: int) -> str:
    models = list(dict.fromkeys(likes))
    like = ", ".join(models[:MOST_LIKE]) + (", …" if len(models) > MOST_LIKE else "")
    here = names[0] if names[0] == names[-1] else f"{names[0]} to {names[-1]}"
    text = f"  × {len(names)} more like {like}: {here} ({lines} lines)"
    return textwrap.fill(text, WIDTH, subsequent_indent="      ", break_on_hyphens=False)


def _blocks(lines: Sequence[str], level: int) -> list[_Block]:
    """Runs of lines of one block; what has no such name belongs to the block before it, unless none comes behind."""
    names = [_block_name(line, level) for line in lines]
    after = ""
    following = [after := name or after for name in reversed(names)][::-1]
    owner, owners = "", []
    for line, name, next_name in zip(lines, names, following, strict=True):
        if not _CONTINUED.match(line):
            owner = name or (owner if next_name else "")
        owners.append(owner)
    runs = groupby(zip(owners, lines, strict=True), key=lambda item: item[0])
    return [_Block(name, tuple(line for _, line in run)) for name, run in runs]


def _block_name(line: str, level: int) -> str:
    """``layer1_0`` of ``layer1_0_conv2 = …`` at level 2; empty where a name has fewer numbers, or ends there."""
    defined = _DEFINED.match(line)
    found = re.match(rf"(?:[^\d]*\d+){{{level}}}(?=_)", defined[1]) if defined else None
    return found[0] if found else ""


def _key(line: str) -> str:
    """What two lines have in common that are alike."""
    plain = _NODE.sub("%", _SHAPE.sub("[]", _PATH.sub(lambda path: re.sub(r"\d+", "#", path[0]), line)))
    return " ".join(_NAME.sub(lambda name: re.sub(r"\d+", "#", re.sub(r"_\d+$", "", name[0])), plain).split())
