"""Runs a pipeline of passes for a model that is being quantized."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.fx import GraphModule

from fxquant.calibration.observed_qparams import means_of
from fxquant.observers.low_bit import LowBitMapping
from fxquant.passes.annotate import annotate
from fxquant.passes.base import Pass, PassContext
from fxquant.passes.instruments import Snapshot, instruments_for
from fxquant.passes.manager import PassManager
from fxquant.passes.pipelines import PREPARE
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.region import Region, Split
from fxquant.quantizer.data import PreparedModel
from fxquant.quantizer.ends import with_ends
from fxquant.settings import read_settings


@dataclass(frozen=True, slots=True)
class PassRun:
    """The result of a pipeline."""

    graph_module: GraphModule
    context: PassContext
    """It holds the plan as the passes have left it."""
    snapshots: tuple[Snapshot, ...]
    """Those of all passes since the model was traced."""


def pass_context(prepared: PreparedModel, plan: QuantPlan) -> PassContext:
    """Return what passes share, with this plan."""
    layers: Any = dict(prepared.weight_layers.items())
    return PassContext(
        plan=plan,
        config=prepared.config,
        backend=prepared.backend,
        patterns=prepared.patterns,
        input_observer=prepared.input_observer,
        handlers=prepared.handlers,
        weight_layers=layers,
        means=means_of(plan, dict(prepared.observers.items())),
        example_args=prepared.example_args,
        example_kwargs=prepared.example_kwargs,
        has_example=prepared.has_example,
        integer_inputs=prepared.integer_inputs,
        integer_outputs=prepared.integer_outputs,
        trains=prepared.trains,
    )


def run_passes(
    prepared: PreparedModel,
    passes: Sequence[Pass],
    gm: GraphModule,
    plan: QuantPlan,
    factors: Sequence[tuple[Region, Tensor]] = (),
    splits: Sequence[Split] = (),
) -> PassRun:
    """Run a pipeline on ``gm``, with the instruments that the environment asks for. ``prepared`` stays as it is."""
    context = replace(pass_context(prepared, plan), factors=factors, splits=splits)
    # PassManager runs each pass, and lints and recompiles the graph after it.
    manager = PassManager(tuple(passes), instruments_for(read_settings()), first=len(prepared.snapshots))
    result: Any = manager.run(gm, context)
    return PassRun(result, context, prepared.snapshots + manager.snapshots)


def run_prepare_passes(prepared: PreparedModel, gm: GraphModule) -> PassRun:
    """Run the passes of ``PREPARE``, twice from the plan on where the configuration is a ``LowBitMapping``.

    Then ``prepared.config`` becomes a plain mapping, with rules for both ends.
    """
    if not isinstance(prepared.config, LowBitMapping):
        return run_passes(prepared, PREPARE, gm, prepared.plan)
    place = PREPARE.index(annotate)
    first = run_passes(prepared, PREPARE[: place + 1], gm, prepared.plan)
    prepared.config = with_ends(prepared.config, first.graph_module, first.context.plan)
    prepared.snapshots = first.snapshots
    return run_passes(prepared, PREPARE[place:], first.graph_module, prepared.plan)
