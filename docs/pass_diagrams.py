"""Drawings of what passes do, for the site: each graph before and after a pass, side by side, as SVG.

A page with the line ``<!-- drawings of passes -->`` gets them. They are made when the site is built: a small network is
prepared and converted, and the text of each graph, which ``fxq.print_passes`` prints too, is laid out. Colours are
those of ``_static/site.css``, light and dark.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.passes.instruments import Snapshot
from fxquant.passes.pipelines import TO_TRAINING
from fxquant.reporting.passes import HELP
from fxquant.reporting.subject import subject_of

MARK = "<!-- drawings of passes -->"
LINE = re.compile(r"(?P<name>\w+) = (?P<call>.*?)(?:  +(?P<value>\S+))?$|return (?P<result>.*?)(  +\S+)?$")
CALL = re.compile(r"(?P<operator>[\w.]+)(?:\[(?P<module>[^\]]+)\])?\((?P<inside>.*)\)$")
WIDTH, HEIGHT, GAP, AROUND = 204, 40, 22, 12
"""Of a node; between two layers; around a graph. Pixels."""
BULGE = 32
"""Between two nodes of a layer; a line that passes by other nodes stays within it."""
LONGEST = 28
"""Letters that a node has room for."""


class Block(nn.Module):
    """A residual block with a classifier: small, and most of what passes do happens to it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)) + x)
        return self.fc(self.drop(y.mean((2, 3))))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A node of a graph, read from its line."""

    name: str
    operator: str
    module: str
    value: str
    """dtype and shape, as ``uint8[1,8,16,16]``."""
    inputs: tuple[str, ...]
    arguments: str = ""

    @property
    def kind(self) -> str:
        return "integer" if self.value.startswith(("uint8", "int8")) else "float"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node is drawn: its upper left corner, in pixels, and its layer from above."""

    x: int
    y: int
    layer: int


def read(text: str) -> list[Drawn]:
    """Return the nodes of a graph as ``graph.printer.format_graph`` prints it.

    Raises:
        ValueError: a line is none of such a text.
    """
    found: list[Drawn] = []
    for line in text.splitlines():
        parts = LINE.match(line)
        if parts is None:
            raise ValueError(f"this line is no node: {line!r}")
        known = {node.name for node in found}
        if parts["result"] is not None:
            used = [word for word in re.findall(r"\w+", parts["result"]) if word in known]
            found.append(Drawn("output", "output", "", "", tuple(dict.fromkeys(used))))
            continue
        if parts["call"] == "input" or parts["call"].startswith("attribute "):
            found.append(Drawn(parts["name"], *[*parts["call"].split(" "), ""][:2], parts["value"] or "", ()))
            continue
        call = CALL.match(parts["call"])
        if call is None:
            raise ValueError(f"this line calls nothing: {line!r}")
        words = re.findall(
            r"\w+", f"{call['operator'].partition('.')[0]} {call['inside']}"
        )  # of a method its tensor too
        used = [word for word in words if word in known]
        shown = call["operator"], call["module"] or "", parts["value"] or ""
        found.append(Drawn(parts["name"], *shown, tuple(dict.fromkeys(used)), call["inside"]))
    return found


def places(nodes: Sequence[Drawn]) -> dict[str, Place]:
    """Lay a graph out: each node right above the first that reads it, and nodes of one layer side by side."""
    from_below = {node.name: 0 for node in nodes}
    for node in reversed(nodes):
        for name in node.inputs:
            from_below[name] = max(from_below[name], from_below[node.name] + 1)
    rows: dict[int, list[str]] = {}
    for node in nodes:
        rows.setdefault(max(from_below.values()) - from_below[node.name], []).append(node.name)
    return {
        name: Place(AROUND + i * (WIDTH + BULGE), AROUND + layer * (HEIGHT + GAP), layer)
        for layer, names in rows.items()
        for i, name in enumerate(names)
    }


def line(start: Place, end: Place) -> str:
    """Return the path from a node to one that reads it; around the nodes in between, if there are any."""
    if end.layer == start.layer + 1:
        return f"M{start.x + WIDTH // 2} {start.y + HEIGHT}L{end.x + WIDTH // 2} {end.y - 5}"
    x0, y0, x1, y1 = start.x + WIDTH, start.y + HEIGHT // 2, end.x + WIDTH + 5, end.y + HEIGHT // 2
    return f"M{x0} {y0}C{x0 + BULGE} {y0} {x1 + BULGE} {y1} {x1} {y1}"


def graph(nodes: Sequence[Drawn], others: Sequence[Drawn], change: str, left: int) -> tuple[str, int, int]:
    """Draw a graph.

    Args:
        nodes: Of the graph.
        others: Of the graph that it is compared with. A node that this has not in the same form is marked.
        change: The class of marked nodes.
        left: Where it begins.

    Returns:
        Elements of SVG; where the graph ends on the right, and below.
    """
    at, same = places(nodes), set(others)
    parts = [f'<path class="edge" d="{line(at[name], at[node.name])}"/>' for node in nodes for name in node.inputs]
    for node in nodes:
        place = at[node.name]
        marked = "" if node in same else f" {change}"
        middle = WIDTH // 2
        both = f"{node.operator} {node.module or node.name}"
        label = html.escape(both if node.operator != node.name and len(both) <= LONGEST else node.operator)
        parts.append(
            f'<g class="node {node.kind}{marked}" transform="translate({place.x} {place.y})">'
            f'<rect width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
            f'<text x="{middle}" y="{17 if node.value else 25}">{label}</text>'
            f'<text class="value" x="{middle}" y="33">{html.escape(node.value)}</text></g>'
        )
    width = max(place.x for place in at.values()) + WIDTH + BULGE + AROUND
    height = max(place.y for place in at.values()) + HEIGHT + AROUND
    return f'<g transform="translate({left} 24)">{"".join(parts)}</g>', left + width, height + 24


def drawing(snapshot: Snapshot) -> str:
    """Return the SVG of a pass: its graph before on the left, and after on the right."""
    before, after = read(snapshot.before), read(snapshot.after)
    first, middle, low = graph(before, after, "gone", 0)
    second, right, lower = graph(after, before, "new", middle + GAP)
    size = f'viewBox="0 0 {right} {max(low, lower)}" width="{right}" height="{max(low, lower)}"'
    told = html.escape(f"The graph before and after {snapshot.name}: {len(before)} nodes become {len(after)}.")
    titles = (("before", AROUND), ("after", middle + GAP + AROUND))
    heads = "".join(f'<text class="head" x="{x}" y="16">{title}</text>' for title, x in titles)
    arrow = '<marker id="{0}" viewBox="0 0 6 6" refX="3" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
    marker = arrow.format(f"arrow-{snapshot.name}") + '<path class="arrow" d="M0 0L6 3L0 6z"/></marker>'
    body = (first + second).replace('class="edge"', f'class="edge" marker-end="url(#arrow-{snapshot.name})"')
    return f'<svg class="pass" role="img" aria-label="{told}" {size}><defs>{marker}</defs>{heads}{body}</svg>'


def snapshots() -> list[Snapshot]:
    """Quantize the block, and prepare it for training; return the passes that change its graph, each once."""
    torch.manual_seed(0)
    x = torch.rand(1, 8, 16, 16)
    prepared = fxq.prepare(Block().eval(), (x,))
    prepared(x)
    training = fxq.prepare_qat(Block().train(), (x,))
    of_training = {item.name for item in TO_TRAINING}
    kept = [each for each in subject_of(training).snapshots if each.name in of_training]
    return [each for each in (*subject_of(fxq.convert(prepared)).snapshots, *kept) if each.changed]


def drawings() -> str:
    """Return Markdown: of each pass that changes the graph its name, what it is for, and its drawing."""
    parts = []
    for each in snapshots():
        fence = f'```{{raw}} html\n<div class="pass">{drawing(each)}</div>\n```'
        parts.append(f"### {each.name}\n\n{HELP.get(each.name, '')}\n\n{fence}\n")
    return "\n".join(parts)
