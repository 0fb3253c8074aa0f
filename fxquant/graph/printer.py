"""Prints a graph: one short line per node, for people and for diffs.

Blocks of a network that read like an earlier one can be folded into one line.
"""

from __future__ import annotations

import difflib
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TextIO

from torch.fx import GraphModule, Node

from fxquant.errors import user_line
from fxquant.graph.query import function_name, module_of, value_of
from fxquant.graph.text_table import format_rows

WIDTH = 100
"""No line of a diff is wider."""
_TEXT_WIDTH = WIDTH - 2  # a diff puts two characters in front
_VALUE_COLUMN = 68

_PREFIXES = {
    "torch.nn.functional": "F.",
    "torch._C._nn": "F.",
    "torch": "torch.",
    "torch.functional": "torch.",
    "_operator": "operator.",
}


def format_graph(gm: GraphModule, notes: Mapping[str, str] | None = None) -> str:
    """Return the graph, one node per line: name, what it calls on what, and shape and dtype of its value where known.

    A node whose line would be wider than 98 columns goes on in indented lines.

    Args:
        gm: Any graph module.
        notes: Node name -> text that is put after the value: its qparams, say.
    """
    beside = notes or {}
    return "\n".join(_line(node, beside.get(node.name, "")) for node in gm.graph.nodes)


def format_table(gm: GraphModule, notes: Mapping[str, str] | None = None) -> str:
    """Return the graph as a table: name, operation, value, note, line of the user's code. As wide as it needs to be."""
    beside = notes or {}
    rows = [
        (node.name, format_call(node), _value(node), beside.get(node.name, ""), user_line(node))
        for node in gm.graph.nodes
    ]
    headers = ("node", "operation", "value", "qparams", "from")
    return format_rows(rows, headers)


def format_call(node: Node) -> str:
    """Write the call of a node: ``F.relu(conv1)``, ``Conv2d[layer1.0.conv1](x)``."""
    if node.op == "placeholder":
        return f"input (default {node.args[0]!r})" if node.args else "input"
    if node.op == "get_attr":
        return f"attribute {node.target}"
    if node.op == "output":
        return f"return {_argument(node.args[0])}"
    arguments = [_argument(arg) for arg in node.args] + [f"{key}={_argument(arg)}" for key, arg in node.kwargs.items()]
    if node.op == "call_method" and arguments:
        return f"{arguments[0]}.{node.target}({', '.join(arguments[1:])})"
    return f"{_called(node)}({', '.join(arguments)})"


def _called(node: Node) -> str:
    if node.op == "call_module":
        kind = type(module_of(node)).__name__
        return kind if str(node.target).replace(".", "_") == node.name else f"{kind}[{node.target}]"
    target: Any = node.target
    module = getattr(target, "__module__", None) or "torch"
    return _PREFIXES.get(module, "") + function_name(target)


def _argument(value: Any) -> str:
    if isinstance(value, Node):
        return value.name
    if isinstance(value, tuple):
        return f"({', '.join(map(_argument, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(_argument, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_argument(item)}" for key, item in value.items()) + "}"
    if isinstance(value, slice):
        ends = [value.start, value.stop] + ([] if value.step is None else [value.step])
        return ":".join("" if end is None else _argument(end) for end in ends)
    return function_name(value) if callable(value) and not isinstance(value, type) else repr(value)


def _value(node: Node) -> str:
    info = value_of(node)
    return "" if info is None else str(info).replace(" ", "")


def _line(node: Node, note: str) -> str:
    call = format_call(node)
    left = call if node.op == "output" else f"{node.name} = {call}"
    right = "  ".join(part for part in (_value(node), note) if part)
    padded = f"{left:<{_VALUE_COLUMN}}  {right}" if right else left
    if len(padded) <= _TEXT_WIDTH:
        return padded
    tight = f"{left}  {right}"
    wrap = textwrap.TextWrapper(_TEXT_WIDTH, subsequent_indent="        ", break_on_hyphens=False)
    return tight if len(tight) <= _TEXT_WIDTH else "\n".join(wrap.wrap(left) + ([f"        {right}"] if right else []))


def diff(before: str, after: str) -> str:
    """Return the lines that differ, each with ``- `` or ``+ `` in front; empty if none does."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)
    return "\n".join(f"{line[0]} {line[1:]}" for line in list(lines)[2:] if not line.startswith("@@"))


def shows_colour(stream: TextIO) -> bool:
    """Tell whether a stream is a terminal whose user has not switched colours off: https://no-color.org."""
    return stream.isatty() and not os.environ.get("NO_COLOR")


def coloured(text: str) -> str:
    """Return a diff with removed lines in red, added ones in green, and what is folded in grey, for a terminal."""
    colours = {"- ": "\x1b[31m", "+ ": "\x1b[32m", "  ": "\x1b[90m"}
    return "\n".join(f"{colours[line[:2]]}{line}\x1b[0m" if line[:2] in colours else line for line in text.splitlines())


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
    """Return the lines, with blocks that read like earlier ones told in one line.

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
    """Runs of lines of one block; what has no such name belongs to the block before it, unless none comes after."""
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
    """Replace what may differ between lines that are alike: numbers in names, shapes, and the nodes that are read."""
    plain = _NODE.sub("%", _SHAPE.sub("[]", _PATH.sub(lambda path: re.sub(r"\d+", "#", path[0]), line)))
    return " ".join(_NAME.sub(lambda name: re.sub(r"\d+", "#", re.sub(r"_\d+$", "", name[0])), plain).split())
