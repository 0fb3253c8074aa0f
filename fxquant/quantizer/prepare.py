"""Prepare: trace the model, plan what becomes int8, and check the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn
from torch.fx import GraphModule

from fxquant.capture.automatic import captured
from fxquant.graph.inputs import bind
from fxquant.passes.annotate import annotate
from fxquant.passes.pipelines import PREPARE
from fxquant.passes.qconfig_rules import unused_rules
from fxquant.patterns.registry import module_types
from fxquant.quantizer.checks import in_eval
from fxquant.quantizer.configuration import warn_of_unused_rules
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.integer_requests import check_integers
from fxquant.quantizer.low_bit import LowBitMapping, with_ends
from fxquant.quantizer.mutation import WeightChecksums
from fxquant.quantizer.plan_checks import check_groups, check_plan, check_weights
from fxquant.quantizer.run_passes import PassRun, run_passes


def prepare(
    prepared: PreparedModel,
    model: nn.Module,
    leaf_modules: Sequence[type[nn.Module] | str],
    strict: bool,
    capture: str = "auto",
) -> None:
    """Set the graph of a copy of ``model``, and the plan. ``prepared`` is configured already.

    Args:
        prepared: It gets ``graph_module``, ``plan``, ``snapshots``, ``example_bound`` and ``weight_checksums``.
        model: The float model. It is not changed.
        leaf_modules: As for :class:`Quantizer`, as are the errors.
        strict: The same.
        capture: The same.
    """
    leaves: Any = leaf_modules if isinstance(leaf_modules, (tuple, list)) else (leaf_modules,)
    gm = captured(
        in_eval(model),
        capture,
        example_args=prepared.example_args if prepared.has_example else None,
        example_kwargs=prepared.example_kwargs,
        leaf_modules=leaves,
        leaf_types=module_types(prepared.patterns),
        keep_untraceable=not strict,
        trains=prepared.trains,
    )
    unused = unused_rules(gm, prepared.config)
    done = _planned(prepared, gm)
    prepared.graph_module, prepared.plan, prepared.snapshots = done.graph_module, done.context.plan, done.snapshots
    if not prepared.lenient:
        warn_of_unused_rules(unused, done.graph_module, prepared.config, prepared.backend.name)
    arguments = prepared.example_args, prepared.example_kwargs
    if prepared.has_example:
        prepared.example_bound = bind(done.graph_module, *arguments, "the example inputs")
    if prepared.plan.units or not prepared.lenient:
        check_plan(done.graph_module, prepared.plan, strict, prepared.config)
    check_integers(done.graph_module, prepared.plan, prepared.integer_inputs, prepared.integer_outputs)
    check_groups(done.graph_module, done.context)
    check_weights(done.graph_module, prepared.plan)
    prepared.weight_checksums = WeightChecksums(model)


def _planned(prepared: PreparedModel, gm: GraphModule) -> PassRun:
    """Run the passes of ``PREPARE``; where the configuration asks for ends of their own, plan again once they are known."""
    if not isinstance(prepared.config, LowBitMapping):
        return run_passes(prepared, PREPARE, gm, prepared.plan)
    place = PREPARE.index(annotate)
    found = run_passes(prepared, PREPARE[: place + 1], gm, prepared.plan)
    prepared.config = with_ends(prepared.config, found.graph_module, found.context.plan)
    prepared.snapshots = found.snapshots
    return run_passes(prepared, PREPARE[place:], found.graph_module, prepared.plan)
