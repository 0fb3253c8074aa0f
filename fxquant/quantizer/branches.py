"""Prepares, calibrates and converts the branches of ``torch.cond``, each on its own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.capture.exported.branches import BRANCHES, Branches
from fxquant.errors import CalibrationError, FxQuantError, InputError, error_context, warn
from fxquant.graph.macs import multiply_accumulates, uncounted
from fxquant.graph.module import get_metadata, set_metadata
from fxquant.graph.query import module_of
from fxquant.graph.shapes import record_values, run_example
from fxquant.measure.coverage import CoverageRow, coverage
from fxquant.passes.qconfig_rules import unused_rules
from fxquant.plan.qconfig import NOTHING_MATCHES, QConfigMapping, UnusedRule
from fxquant.quantizer.data import PreparedModel

Convert = Callable[..., GraphModule]

_NOT_RUN = "no batch of the calibration has run this branch"
_WHILE_TRAINING = "models that train keep the branches of torch.cond in float"
_NOT_PREPARED = "the branch could not be quantized: {}: {}"


def prepare_branches(prepared: PreparedModel) -> None:
    """Prepare each branch of ``torch.cond`` that has something to quantize. Models that train keep all in float.

    Args:
        prepared: It gets ``branches``; its graph then calls the graphs of these.
    """
    make: Any = type(prepared)
    options = {"backend": prepared.backend.name, "patterns": prepared.patterns}
    calls = list(_calls(prepared.graph_module))
    operands = _operands(prepared, calls) if calls and not prepared.trains else {}
    kept = _WHILE_TRAINING if prepared.trains else prepared.why_branches_stay_float
    left: dict[str, tuple[CoverageRow, ...]] = {}
    for node, module in calls:
        for name in BRANCHES:
            if kept:
                row = _left_in_float(node, name, module.get_submodule(name), operands.get(node.name), kept)
                left[node.name] = (*left.get(node.name, ()), row)
                continue
            try:
                with _without_unused_rules():  # a rule may be for the other branch
                    given = module.get_submodule(name), operands.get(node.name), prepared.config
                    inner = make(*given, input_observer=prepared.input_observer, **options)
            except FxQuantError as error:  # there is nothing to quantize in it, or it does not run on these operands
                reason = _NOT_PREPARED.format(type(error).__name__, str(error).partition("\n")[0])
                row = _left_in_float(node, name, module.get_submodule(name), operands.get(node.name), reason)
                left[node.name] = (*left.get(node.name, ()), row)
                continue
            module.add_module(name, inner.graph_module)
            prepared.branches[str(node.target), name] = inner
    if left:
        set_metadata(prepared.graph_module, float_branches=left)
    note_branch_rows(prepared)


def note_branch_rows(prepared: PreparedModel) -> None:
    """Keep, beside the graph, what becomes of each branch: the coverage shows it."""
    rows: dict[str, tuple[CoverageRow, ...]] = dict(get_metadata(prepared.graph_module, "float_branches") or {})
    for node, _ in _calls(prepared.graph_module) if prepared.branches else ():
        for name, inner in _of_call(prepared, str(node.target)).items():
            found = coverage(inner.graph_module, inner.plan).rows
            rows[node.name] = (*rows.get(node.name, ()), *_below(found, node, name))
    if rows:
        set_metadata(prepared.graph_module, branch_rows=rows)


@contextmanager
def _without_unused_rules() -> Iterator[None]:
    """Hold the warnings of a block back to its end, and then give all but those of rules that match nothing."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    for each in caught:
        if not str(each.message).startswith(NOTHING_MATCHES):
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)


def _left_in_float(call: Node, name: str, branch: Any, operands: tuple[Any, ...] | None, reason: str) -> CoverageRow:
    """Return the row of a branch that stays float as a whole."""
    if operands is not None:
        with suppress(InputError):  # with shapes, what it multiplies can be counted
            record_values(branch, operands, {})
    nodes = list(branch.graph.nodes)
    return CoverageRow(
        _name_in_model(call, name),
        f"{call.target}.{name}",
        "branch",
        "float",
        sum(map(multiply_accumulates, nodes)),
        reason=reason,
        uncounted=", ".join(filter(None, map(uncounted, nodes))),
    )


def _name_in_model(call: Node, name: str) -> str:
    return f"{call.name}.{name}"


def _below(rows: Sequence[CoverageRow], call: Node, name: str) -> Iterator[CoverageRow]:
    """Yield the rows of a branch with the name that its nodes have in the model around it."""
    return (replace(row, node=f"{_name_in_model(call, name)}.{row.node}") for row in rows)


def unused_rules_of(gm: GraphModule, config: QConfigMapping) -> tuple[UnusedRule, ...]:
    """Return the rules that match nothing in a graph, nor in any branch inside."""
    unused = unused_rules(gm, config)
    for _, module in _calls(gm) if unused else ():
        for name in BRANCHES:
            inner: Any = module.get_submodule(name)
            left = {(one.rule.kind, one.rule.key) for one in unused_rules_of(inner, config)}
            unused = tuple(one for one in unused if (one.rule.kind, one.rule.key) in left)
    return unused


def _calls(gm: GraphModule) -> Iterator[tuple[Node, Branches]]:
    for node in gm.graph.nodes:
        module = module_of(node)
        if isinstance(module, Branches):
            yield node, module


def _operands(prepared: PreparedModel, calls: list[tuple[Node, Branches]]) -> dict[str, tuple[Any, ...]]:
    """Run the example, and return what each call of ``torch.cond`` hands to its branches."""
    found: dict[str, tuple[Any, ...]] = {}
    if not prepared.has_example:
        return found
    handles = [
        module.register_forward_pre_hook(lambda _, given, name=node.name: found.setdefault(name, given[1:]) and None)
        for node, module in calls
    ]
    try:
        run_example(prepared.graph_module, prepared.example_args, prepared.example_kwargs, lambda *_: None)
    finally:
        for handle in handles:
            handle.remove()
    return found


class ObservedBranches:
    """Shows the operands of a call of ``torch.cond`` to the branch that it runs, as a handler does.

    Args:
        inner: Name of a branch -> what was prepared of it.
    """

    def __init__(self, inner: Mapping[str, PreparedModel]) -> None:
        self._inner = inner

    def observe(self, node: Node, values: Mapping[Any, Any]) -> None:
        """Run the branch, and show its values to its observers."""
        condition, *operands = (values[given] if isinstance(given, Node) else given for given in node.args)
        taken = self._inner.get(BRANCHES[0] if condition else BRANCHES[1])
        if taken is not None:
            taken.observe(*operands)


def observed_branches(prepared: PreparedModel) -> dict[str, ObservedBranches]:
    """Return what shows a branch its operands, by the name of each call of ``torch.cond`` with a prepared branch."""
    calls = _calls(prepared.graph_module) if prepared.branches else ()
    return {node.name: ObservedBranches(_of_call(prepared, str(node.target))) for node, _ in calls}


def _of_call(prepared: PreparedModel, path: str) -> dict[str, PreparedModel]:
    return {name: inner for (at, name), inner in prepared.branches.items() if at == path}


def convert_branches(
    prepared: PreparedModel, converted: GraphModule, convert: Convert, **options: Any
) -> dict[str, list[CoverageRow]]:
    """Put, in place, the quantized branches into a converted model. One that no batch has run stays float.

    Args:
        prepared: With the observers of the branches.
        converted: What passes made of its graph.
        convert: Converts what was prepared of one branch.
        options: Keyword arguments for it.

    Returns:
        Name of each call of ``torch.cond`` -> the fate of what its branches hold.

    Raises:
        FxQuantError: a branch that batches have run cannot be converted; the message names the branch.
    """
    calls = list(_calls(prepared.graph_module))
    left = get_metadata(prepared.graph_module, "float_branches") or {}
    fates = {node.name: list(left.get(node.name, ())) for node, _ in calls}
    for (path, name), inner in prepared.branches.items():
        called_by = [node for node, _ in calls if node.target == path]
        try:
            with error_context(f"the branch {path}.{name}"):
                quantized: nn.Module = convert(inner, **options)
        except CalibrationError as error:
            if int(inner.calibration_statistics.history.batches):  # it has run, and something else is wrong
                raise
            if (path, name) not in prepared.warned:
                prepared.warned.add((path, name))
                warn(
                    "a branch of torch.cond stays float: no batch of the calibration has run it",
                    got=f"{path}.{name}: {error.summary}",
                    hint="calibrate with data that takes both branches",
                )
            planned = coverage(inner.graph_module, inner.plan).rows
            found = [row if row.fate == "float" else replace(row, fate="float", reason=_NOT_RUN) for row in planned]
        else:
            set_metadata(quantized, is_branch=True)
            converted.get_submodule(path).add_module(name, quantized)
            found = list(get_metadata(quantized, "quant_coverage").rows)
        for node in called_by:
            fates[node.name].extend(_below(found, node, name))
    return {name: rows for name, rows in fates.items() if rows}
