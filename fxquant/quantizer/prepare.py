"""Prepare: trace the model, plan what becomes int8, and check the plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from fxquant.capture.automatic import captured
from fxquant.capture.training_code import warn_of_code_for_training
from fxquant.graph.inputs import bind
from fxquant.patterns.registry import module_types
from fxquant.quantizer.branches import prepare_branches, unused_rules_of
from fxquant.quantizer.checks import eval_copy_if_training
from fxquant.quantizer.configuration import warn_of_unused_rules
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.integer_requests import check_integer_requests
from fxquant.quantizer.mutation import WeightChecksums
from fxquant.quantizer.plan_checks import check_group_sizes, check_layouts, check_plan, check_weights
from fxquant.quantizer.run_passes import run_prepare_passes


def prepare_model(
    prepared: PreparedModel,
    model: nn.Module,
    leaf_modules: Sequence[type[nn.Module] | str],
    strict: bool,
    capture: str = "auto",
) -> None:
    """Set the graph of a copy of ``model``, and the plan. ``configure`` has set what the user asks for.

    Args:
        prepared: It gets ``graph_module``, ``plan``, ``snapshots``, ``example_bound``, ``branches`` and
            ``weight_checksums``. Its ``config`` is replaced where it is a ``LowBitMapping``.
        model: The float model. It is not changed.
        leaf_modules: As for :func:`fxquant.prepare`, as are the next two and the errors.
        strict: Refuse operators that stay float without need.
        capture: How the model is captured.
    """
    # Trace a copy, by `trace` of capture/tracing.py as a rule.
    # The layers of torch.nn stay calls of modules, as do the classes that patterns name.
    leaves: Any = leaf_modules if isinstance(leaf_modules, (tuple, list)) else (leaf_modules,)
    gm = captured(
        eval_copy_if_training(model),
        capture,
        example_args=prepared.example_args if prepared.has_example else None,
        example_kwargs=prepared.example_kwargs,
        leaf_modules=leaves,
        leaf_types=module_types(prepared.patterns),
        keep_untraceable=not strict,
        trains=prepared.trains,
    )
    if prepared.trains and prepared.has_example:
        warn_of_code_for_training(model, gm, prepared.example_args, prepared.example_kwargs)
    # Find the rules that match nothing while the graph has the names of the user's code, and make the plan.
    unused = unused_rules_of(gm, prepared.config)
    # A LowBitMapping becomes a plain configuration in here, once a first plan says which layers are at the ends.
    run = run_prepare_passes(prepared, gm)
    prepared.graph_module, prepared.plan, prepared.snapshots = run.graph_module, run.context.plan, run.snapshots
    if not prepared.lenient:  # as torch.ao is, which fxquant.compat follows
        warn_of_unused_rules(unused, run.graph_module, prepared.config, prepared.backend.name)
    # Keep the example by names of arguments: calibration refuses batches that lack a tensor of it.
    arguments = prepared.example_args, prepared.example_kwargs
    if prepared.has_example:
        prepared.example_bound = bind(run.graph_module, *arguments, "the example inputs")
    # Prepare the branches of torch.cond as models of their own, and check the plan.
    prepare_branches(prepared)
    if prepared.plan.units or not (prepared.lenient or prepared.branches):
        check_plan(run.graph_module, prepared.plan, strict, prepared.config)
    check_integer_requests(run.graph_module, prepared.plan, prepared.integer_inputs, prepared.integer_outputs)
    check_layouts(run.graph_module, prepared.plan)
    check_group_sizes(run.graph_module, run.context)
    check_weights(run.graph_module, prepared.plan)
    # convert warns if the weights of the user's model have changed since.
    prepared.weight_checksums = WeightChecksums(model)
