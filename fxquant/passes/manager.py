"""Runs passes in order, checks the graph after each, and shows what happened to whoever asked."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from fxquant.errors import CalibrationError, PassError, PlanError, UnknownNameError
from fxquant.graph.printer import format_graph
from fxquant.graph.shapes import run_example
from fxquant.passes.base import Pass, PassContext
from fxquant.passes.instruments import Instrument, Snapshot
from fxquant.passes.pipelines import CONVERT, PREPARE
from fxquant.registry import did_you_mean
from fxquant.settings import Settings, debug_output, read_settings

__all__ = ["Instrument", "PassManager", "Snapshot"]


class PassManager:
    """Runs a pipeline.

    Args:
        passes: The pipeline.
        instruments: Called after each pass, in order.
        settings: What to skip, verify and print; None: what the environment says.
        first: Index of the first snapshot, to count on from an earlier pipeline.

    Raises:
        PassError: a pass stands before one that it must follow, or
            FXQUANT_SKIP_PASSES names one that is required.
        UnknownNameError: FXQUANT_SKIP_PASSES or FXQUANT_PRINT_AFTER names no pass.
    """

    def __init__(
        self,
        passes: tuple[Pass, ...],
        instruments: tuple[Instrument, ...] = (),
        *,
        settings: Settings | None = None,
        first: int = 0,
    ) -> None:
        self.settings = read_settings() if settings is None else settings
        self.instruments = instruments
        self.snapshots: tuple[Snapshot, ...] = ()
        """One per pass that was run, by the last ``run``."""
        self._first = first
        _check_order(passes)
        _check_names(passes, self.settings)
        _check_skipped(passes, self.settings)
        self.passes = tuple(item for item in passes if item.name not in self.settings.skip_passes)

    def run(self, gm: GraphModule, ctx: PassContext) -> GraphModule:
        """Run every pass on ``gm``, which is changed.

        Raises:
            PassError: a pass failed, left an invalid graph, or (FXQUANT_VERIFY=1) changed values that it promised to
                keep. The error that it met is its cause, and the message names the passes that ran before.
            PlanError, CalibrationError: as a pass raised it: the user's request or data is at fault, not the pass.
        """
        self.snapshots = ()
        with debug_output(self.settings):
            text = format_graph(gm)
            for step, item in enumerate(self.passes, start=1):
                before = text
                gm, seconds = self._run_one(item, step, gm, ctx)
                text = format_graph(gm)
                index = self._first + step - 1
                snapshot = Snapshot(index, item.name, before, text, seconds, step, len(self.passes))
                self.snapshots += (snapshot,)
                for instrument in self.instruments:
                    instrument(snapshot, gm, ctx)
        return gm

    def _run_one(self, item: Pass, step: int, gm: GraphModule, ctx: PassContext) -> tuple[GraphModule, float]:
        verify = self.settings.verify and item.keeps_values and ctx.has_example
        try:
            values = run_values(gm, ctx) if verify else {}
            start = time.perf_counter()
            before = _written(gm)
            gm = item(gm, ctx)
            gm.graph.lint()
            # Most passes find nothing to do, and writing code takes longer than looking. Whoever made the graph may
            # have edited it since: the first pass leaves code of all that.
            if step == 1 or not _same(before, _written(gm)):
                gm.recompile()
            seconds = time.perf_counter() - start
            if verify:
                compare(item.name, values, run_values(gm, ctx))
        except (PlanError, CalibrationError):
            raise
        except Exception as error:
            ran = ", ".join(done.name for done in self.passes[: step - 1]) or "nothing"
            where = f"pass {item.name!r} ({step} of {len(self.passes)}, after {ran})"
            raise PassError(
                f"{where} failed: {type(error).__name__}: {error}",
                hint="FXQUANT_DEBUG=2 prints what each pass before it did",
            ) from error
        return gm, seconds


def _written(gm: GraphModule) -> list[tuple[Any, ...]]:
    """Return what the code of a graph is written from: its nodes, and what each of them calls on what.

    The first row has the module and its graph, since a pass may build new ones.
    """
    rows: list[tuple[Any, ...]] = [(gm, gm.graph, gm.graph._codegen)]
    rows += ((node, node.op, node.name, node.target, node.args, node.kwargs, node.type) for node in gm.graph.nodes)
    return rows


def _same(before: list[tuple[Any, ...]], after: list[tuple[Any, ...]]) -> bool:
    """Compare by identity: arguments of a node are replaced, never edited; and ``1 == True``, whose code differs."""
    return len(before) == len(after) and all(
        a is b for old, new in zip(before, after, strict=True) for a, b in zip(old, new, strict=True)
    )


def _check_skipped(passes: tuple[Pass, ...], settings: Settings) -> None:
    if needed := [item.name for item in passes if item.required and item.name in settings.skip_passes]:
        raise PassError(
            f"pass {needed[0]!r} cannot be left out: nothing that comes after works without it",
            got=f"FXQUANT_SKIP_PASSES={','.join(settings.skip_passes)}",
            expected=f"one of {', '.join(item.name for item in passes if not item.required)}",
        )


def _check_order(passes: tuple[Pass, ...]) -> None:
    names = [item.name for item in passes]
    for index, item in enumerate(passes):
        if late := [name for name in item.after if name in names[index + 1 :]]:
            raise PassError(
                f"pass {item.name!r} is placed too early",
                got=" -> ".join(names),
                expected=f"{item.name} after {', '.join(late)}",
            )


def _check_names(passes: tuple[Pass, ...], settings: Settings) -> None:
    known = list(dict.fromkeys(item.name for pipeline in (passes, PREPARE, *CONVERT.values()) for item in pipeline))
    for variable, names in (("SKIP_PASSES", settings.skip_passes), ("PRINT_AFTER", settings.print_after)):
        for name in names:
            if name not in known:
                raise UnknownNameError(
                    f"FXQUANT_{variable} names an unknown pass",
                    got=repr(name),
                    expected=", ".join(known),
                    hint=did_you_mean(name, known),
                )


TOLERANCE = 1e-4
"""Largest difference allowed, as a share of the largest magnitude of the value: folding a batch norm moves a rounding
of float32 (6e-8) from the activations into the weights, in each layer anew."""

Values = dict[str, Any]


def run_values(gm: GraphModule, ctx: PassContext) -> Values:
    """Node name -> a copy of its value on the example inputs; ``"output"`` is what the model gives."""
    values: Values = {}

    def keep(node: Node, value: Any) -> None:
        values[node.name] = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), value)

    run_example(gm, ctx.example_args, ctx.example_kwargs, keep)
    return values


def compare(name: str, before: Values, after: Values) -> None:
    """Compare the outputs.

    Raises:
        PassError: they differ by more than ``TOLERANCE``; the message names the pass, the first node whose value
            differs, and the largest difference of the output.
    """
    worst = difference(before["output"], after["output"])
    if worst <= TOLERANCE:
        return
    first = next(
        (node for node, value in after.items() if node in before and difference(before[node], value) > TOLERANCE),
        "output",
    )
    raise PassError(
        f"pass {name!r} promises to keep values, and changed them",
        at=f"{first}, the first node whose value differs",
        got=f"an output that differs by {worst:.3g} of its largest magnitude",
        expected=f"at most {TOLERANCE:g}",
        hint=f"FXQUANT_SKIP_PASSES={name} leaves the pass out",
    )


def difference(before: Any, after: Any) -> float:
    """Largest difference, as a share of the largest magnitude of ``before``; inf if the two do not compare."""
    old, old_spec = pytree.tree_flatten(before)
    new, new_spec = pytree.tree_flatten(after)
    if old_spec != new_spec:
        return float("inf")
    return max((_difference(a, b) for a, b in zip(old, new, strict=True)), default=0.0)


def _difference(a: Any, b: Any) -> float:
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)):
        return 0.0 if type(a) is type(b) and a == b else float("inf")
    if a.shape != b.shape or a.dtype != b.dtype:
        return float("inf")
    if torch.equal(a, b) or a.numel() == 0:
        return 0.0
    same = (a == b) | ((a != a) & (b != b))  # inf equals inf, and NaN equals NaN
    gap = torch.where(same, 0.0, (a.double() - b.double()).abs()).max()
    if not bool(gap.isfinite()):
        return float("inf")
    return float(gap / a[a.isfinite()].double().abs().max().clamp(min=torch.finfo(torch.float32).tiny))
