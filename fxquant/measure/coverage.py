"""Tables that people read: what becomes int8, what stays float, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch.fx import GraphModule, Node

from fxquant.capture.attempts import Capture, captured_sentences
from fxquant.errors import user_line
from fxquant.graph.macs import multiply_accumulates, uncounted
from fxquant.graph.module import get_metadata
from fxquant.graph.query import WEIGHT, module_path, nodes_by_name, operator_name, reason_of, value_of
from fxquant.graph.text_table import PrintedTable
from fxquant.plan.quant_plan import QuantPlan, QuantUnit, Refusal

_FATES = ("int8", "weight", "float")
_NAMED = 3
"""Of what the total leaves out, so many are named."""

NO_FLOAT_VALUES = "its result holds no float values, which alone are quantized"


@dataclass(frozen=True, slots=True)
class CoverageRow:
    """The fate of one unit, or of one operator that is in none."""

    node: str
    """Name of the node; of a unit, its root."""
    module: str
    """Path of the user's module, or of the weight that a function took; empty at top level."""
    operator: str
    """Name of the pattern, or of the operator that stays float."""
    fate: Literal["int8", "weight", "float"]
    """``weight``: only its weight is stored in integers; nothing is multiplied in them."""
    macs: int
    """Multiply-accumulates on the example inputs; of what is kept whole and in float, all that ran inside."""
    reason: str = ""
    """Why it stays float."""
    excused: bool = False
    """Float because the configuration says so, or because nothing is lost by it."""
    line: str = ""
    """``path:line`` of the user's code."""
    gives: Literal["int8", "float"] = "int8"
    """Of a unit: whether its result is quantized, or float values straight from its accumulators."""
    uncounted: str = ""
    """What ran in it whose multiply-accumulates nobody knows, and ``macs`` does not hold; empty if they are all."""


@dataclass(frozen=True, slots=True)
class Coverage(PrintedTable[CoverageRow]):
    """Shows what becomes int8, what stays float, and why. Print it, or read ``rows``.

    A unit whose handler may still decline, or answer with floats, counts as int8: only ``convert`` asks it. So does a
    join whose ranges may turn out to differ much.
    """

    _HEAD = ("unit", "count", "MACs", "becomes", "where, and why not")
    _ALIGN = "lrrll"

    rows: tuple[CoverageRow, ...]
    captures: tuple[Capture, ...] = ()
    """The attempts to make graphs of parts that torch.fx cannot trace; none where it traced all."""

    @property
    def int8_macs(self) -> float:
        """Return the share of the multiply-accumulates that becomes int8, 0 to 1; 1 for a model that has none.

        Of those that were counted: see ``uncounted_rows``.
        """
        total = sum(row.macs for row in self.rows)
        return sum(row.macs for row in self.rows if row.fate == "int8") / total if total else 1.0

    @property
    def float_rows(self) -> tuple[CoverageRow, ...]:
        """Return what stays float."""
        return tuple(row for row in self.rows if row.fate == "float")

    @property
    def uncounted_rows(self) -> tuple[CoverageRow, ...]:
        """Return what runs code whose multiply-accumulates nobody knows: the total leaves them out."""
        return tuple(row for row in self.rows if row.uncounted)

    def _cells(self, rows: Sequence[CoverageRow]) -> list[tuple[Any, ...]]:
        total = sum(row.macs for row in rows) or 1
        alike: dict[tuple[str, str, str], list[CoverageRow]] = defaultdict(list)
        for row in sorted(rows, key=lambda row: _FATES.index(row.fate)):
            becomes = "int8 → float" if (row.fate, row.gives) == ("int8", "float") else row.fate
            alike[becomes, row.operator, row.reason].append(row)
        return [
            (operator, len(group), _share(group, total), becomes, _where(group, reason))
            for (becomes, operator, reason), group in alike.items()
        ]

    def _sentences(self) -> list[str]:
        total = sum(row.macs for row in self.rows) or 1
        done, stored = (sum(row.fate == fate for row in self.rows) for fate in ("int8", "weight"))
        weights = f"{stored} keep their weight in integers, " if stored else ""
        return [
            f"{done} units become int8, {weights}{len(self.float_rows)} operators stay float;"
            f" {100 * self.int8_macs:.2f} % of {total / 1e6:,.1f} M multiply-accumulates become int8."
            f"{self.left_out()}",
            *captured_sentences(self.captures),
        ]

    def left_out(self) -> str:
        """Return a sentence about what the total leaves out; empty if that is nothing."""
        rows = self.uncounted_rows
        if not rows:
            return ""
        shown = ", ".join(f"{row.module or row.node} ({row.uncounted})" for row in rows[:_NAMED])
        more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
        return f" Those of {shown}{more} could not be counted, and are left out."


def coverage(
    gm: GraphModule, plan: QuantPlan, branch_rows: Mapping[str, Sequence[CoverageRow]] | None = None
) -> Coverage:
    """List what became of every unit, of every refused operator, and of others that multiply, in the graph's order.

    Args:
        gm: The prepared float graph.
        plan: Its plan.
        branch_rows: Name of a call of ``torch.cond`` -> the rows of its branches; None: as they were prepared.
    """
    nodes = nodes_by_name(gm)
    order = {name: index for index, name in enumerate(nodes)}
    rows = []
    for unit in plan.units:
        members = [nodes[name] for name in unit.nodes]
        macs = sum(multiply_accumulates(node) for node in members)
        path = _path(members[0])
        gives: Literal["int8", "float"] = "int8" if "y" in unit.roles else "float"
        fate = _fate(unit)
        rows.append(CoverageRow(unit.root, path, unit.pattern, fate, macs, line=user_line(members[0]), gives=gives))
    inside = _multiplying(gm, plan)
    others = [
        Refusal(name, "", reason_of(nodes[name]) or NO_FLOAT_VALUES, excused=True)
        for name, home in inside.items()
        if name == home
    ]
    for refusal in (*plan.refusals, *others):
        node = nodes[refusal.node]
        members = [node, *(nodes[name] for name, home in inside.items() if home == refusal.node != name)]
        rows.append(
            CoverageRow(
                refusal.node,
                _path(node),
                operator_name(node),
                "float",
                sum(map(multiply_accumulates, members)),
                refusal.reason,
                refusal.excused,
                user_line(node),
                uncounted=", ".join(filter(None, map(uncounted, members))),
            )
        )
    captures = get_metadata(gm, "captures") or ()
    ordered = sorted(rows, key=lambda row: order[row.node])
    inside_of_calls = get_metadata(gm, "branch_rows") if branch_rows is None else branch_rows
    return Coverage(tuple(_with_branches(ordered, inside_of_calls or {})), captures)


def _with_branches(rows: Sequence[CoverageRow], inside: Mapping[str, Sequence[CoverageRow]]) -> Iterator[CoverageRow]:
    """Yield rows, and behind that of a call of ``torch.cond`` those of its branches, which count what it multiplies.

    Args:
        rows: In the order of the graph.
        inside: Name of the call's node -> the rows of its branches.
    """
    for row in rows:
        if row.node in inside:
            yield replace(row, macs=0, uncounted="")
            yield from inside[row.node]
        else:
            yield row


def _multiplying(gm: GraphModule, plan: QuantPlan) -> dict[str, str]:
    """Nodes that are in no unit, and were not refused, and multiply all the same -> the row that tells of them.

    That is the node itself, or, of a unit that was left in float as a whole, its root.
    """
    refused = {refusal.node for refusal in plan.refusals if refusal.pattern}
    told = {*plan.unit_of(), *(refusal.node for refusal in plan.refusals)}
    found = {}
    for node in gm.graph.nodes:
        if node.name not in told and (multiply_accumulates(node) or uncounted(node)):
            root = node
            while root.name not in told and len(root.users) == 1:
                root = next(iter(root.users))
            info = value_of(node)
            is_part = root.name in refused and info is not None and info.dtype.is_floating_point
            found[node.name] = root.name if is_part else node.name
    return found


def _share(rows: list[CoverageRow], total: int) -> str:
    macs, unknown = sum(row.macs for row in rows), any(row.uncounted for row in rows)
    return "?" if unknown and not macs else f"{'≥ ' if unknown else ''}{100 * macs / total:.1f} %"


def _path(node: Node) -> str:
    return str(node.meta.get(WEIGHT) or module_path(node)[0])


def _fate(unit: QuantUnit) -> Literal["int8", "weight"]:
    return "weight" if set(unit.roles) == {"weight"} else "int8"


def _where(rows: list[CoverageRow], reason: str) -> str:
    names = [row.module or row.node for row in rows]
    text = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    return f"{text}: {reason}" if reason else text
