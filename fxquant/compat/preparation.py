"""Plans a model, and makes of it one that measures or trains."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.capture.copies import copy_of
from fxquant.compat.backend_patterns import allowed_by
from fxquant.compat.configuration import mapping_of
from fxquant.compat.observed_graph import insert_observers, rename_fake_quants
from fxquant.errors import InputError, PlanError, warn
from fxquant.graph.inputs import signature_of
from fxquant.graph.module import get_metadata, set_metadata
from fxquant.passes.pipelines import TO_TRAINING
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import run_passes
from fxquant.quantizer.state import drop_graph
from fxquant.training.carry_over import carry_over


class Observing(Quantizer):
    """A Quantizer that is as lenient as torch.ao is."""

    lenient = True
    why_branches_stay_float = "prepare_fx keeps the branches of torch.cond in float; fxquant.prepare quantizes inside"


class Training(Observing):
    """The same, of a model that trains."""

    trains = True


def is_prepared(module: nn.Module) -> bool:
    """Tell whether ``prepare_fx`` or ``prepare_qat_fx`` gave a module."""
    return get_metadata(module, "rules") is not None


def stays_float(module: nn.Module) -> bool:
    """Tell whether a model was prepared in which nothing can be quantized."""
    return get_metadata(module, "preparation") is None


@torch.inference_mode(False)
def observe(
    model: nn.Module,
    rules: Mapping[str, Any],
    example_inputs: Any,
    custom: Any,
    whole: tuple[Any, ...],
    backend: Any,
    refine: Callable[[Any], Any],
    *,
    trains: bool,
) -> GraphModule:
    """Return a graph with observers, or with fake-quantize modules.

    Args:
        model: The float model. It is not changed.
        rules: The dict form of a ``QConfigMapping``.
        example_inputs: Tuple of the positional inputs.
        custom: A ``PrepareCustomConfig``.
        whole: Paths and classes of what stays whole.
        backend: A ``BackendConfig``, or None.
        refine: Returns, of a Quantizer that has observed nothing, the one to go on with.
        trains: Whether it is going to be trained.
    """
    # Plan the units.
    names = list(signature_of(model).parameters)
    config = mapping_of(rules)
    float_model = copy_of(model).eval() if trains else model
    make = Training if trains else Observing

    def planned(inputs: Any) -> Quantizer:
        return make(
            float_model,
            inputs,
            config,
            leaf_modules=tuple(whole),
            integer_inputs=tuple(names[index] for index in custom.input_quantized_indexes) or False,
            integer_outputs=tuple(custom.output_quantized_indexes) or False,
        )

    try:
        quantizer = planned(tuple(example_inputs) if isinstance(example_inputs, (list, tuple)) else example_inputs)
    except InputError:
        quantizer = planned(None)  # torch.ao never runs them
    except PlanError as error:
        if not custom.output_quantized_indexes:
            raise
        warn("results that no quantized operator computes stay float", got=str(error))
        custom = copy.copy(custom).set_output_quantized_indexes([])
        quantizer = planned(example_inputs)
    if backend is not None:
        quantizer.plan = allowed_by(quantizer.graph_module, quantizer.plan, config, backend)
    quantizer = refine(quantizer)

    # Put modules into the graph that measure or round.
    passes = TO_TRAINING if trains else (insert_observers,)
    done = run_passes(quantizer, passes, quantizer.graph_module, quantizer.plan)
    made = done.graph_module
    quantizer.snapshots = done.snapshots
    quantizer.plan = rename_fake_quants(made, done.context.plan) if trains else done.context.plan
    reasons = quantizer.coverage() if not quantizer.plan.units else None
    drop_graph(quantizer)
    set_metadata(made, rules=dict(rules))
    if reasons is not None:
        warn("nothing in the model can be quantized, so it stays float", got=str(reasons))
    else:
        set_metadata(made, preparation=quantizer, quant_plan=quantizer.plan, snapshots=done.snapshots)
    if trains:
        carry_over(model, made)
    else:
        made.eval()  # the observers, too
    return made
