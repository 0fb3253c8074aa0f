"""The state of a prepared model: what is saved of it and loaded, and what a model in training keeps of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

from fxquant.calibration.statistics import CalibrationStatistics
from fxquant.errors import StateError
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.edit import free_name
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.module_state import check_is_state, check_names, unchanged_on_error
from fxquant.graph.state_format import check_metadata, state_metadata
from fxquant.graph.state_values import check_entries, naming_other_shapes
from fxquant.patterns.registry import by_name, from_names
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed, QParams, TensorRef
from fxquant.quantizer.data import PreparedModel

STATISTICS = "calibration_statistics"
LEARNED = "learned_qparams"


def measured(prepared: PreparedModel) -> nn.Module:
    """Return observers, weight layers, statistics and learned qparams as the children of one module.

    Behind a name that the model has itself stands ``_``, in its state dict too.
    """
    holder = nn.Module()
    parts: list[tuple[str, nn.Module]] = [
        ("observers", prepared.observers),
        ("weight_layers", prepared.weight_layers),
        (STATISTICS, prepared.calibration_statistics),
        (LEARNED, _as_modules(prepared.learned_qparams)),
    ]
    for (path, which), inner in prepared.branches.items():
        parts.append((f"branch_{path.replace('.', '_')}_{which}", measured(inner)))
    for name, part in parts:
        name = free_name(prepared.graph_module, name)
        while hasattr(holder, name):  # of another branch, whose path has a dot where this one has an underscore
            name = free_name(prepared.graph_module, f"{name}_")
        holder.add_module(name, part)
    return holder


def _as_modules(qparams: Mapping[TensorRef, QParams]) -> nn.ModuleDict:
    modules = nn.ModuleDict()
    modules._modules.update({ref.name: StaticFakeQuantize(each) for ref, each in qparams.items()})
    return modules


def _expected(prepared: PreparedModel, names: Iterable[str]) -> dict[TensorRef, QParams]:
    """Return qparams to load the learned ones into: of the values that a state names, where the plan observes them."""
    found: dict[TensorRef, QParams] = {}
    for name in names:
        ref = TensorRef(name)
        policy = prepared.plan.policies.get(ref)
        if isinstance(policy, Observed):
            unknown = torch.ones(1, dtype=torch.float32)
            found[ref] = QParams(policy.observer().scheme, unknown, torch.zeros(1, dtype=torch.int32))
    return found


def state_dict(prepared: PreparedModel) -> dict[str, Tensor]:
    """Return the state of the float model and of what measures it, with the schemes of observers in its metadata.

    Raises:
        StateError: the model has qparams that no observer chose, which a state has no place for.
    """
    if prepared.trained is not None:
        raise StateError(
            "a state dict cannot hold the qparams that this model was given or trained with",
            got=f"qparams of {len(prepared.trained)} tensors",
            hint="fxq.save(quantizer, path) writes them; graph_module.state_dict() is the state of the float model",
        )
    beside = measured(prepared)
    state: Any = OrderedDict({**prepared.graph_module.state_dict(), **beside.state_dict()})
    state._metadata = OrderedDict({"": {"version": 1, **state_metadata(beside)}})
    found: dict[str, Tensor] = state
    return found


def load_state_dict(prepared: PreparedModel, state_dict: Mapping[str, Tensor], strict: bool) -> None:
    """Load all of a state, or nothing.

    Raises:
        StateError: it is no state dict, or keys, schemes, shapes or kinds of numbers differ.
    """
    check_is_state(state_dict)
    beside = measured(prepared)
    statistics = free_name(prepared.graph_module, STATISTICS)
    learned = free_name(prepared.graph_module, LEARNED)
    named = dict.fromkeys(name.split(".")[1] for name in state_dict if name.startswith(f"{learned}."))
    beside.add_module(learned, _as_modules(_expected(prepared, named)))
    if not any(name.startswith(f"{statistics}.") for name in state_dict):
        delattr(beside, statistics)  # a state from before there were any
    prefixes = tuple(f"{name}." for name, _ in beside.named_children())
    own = {name: value for name, value in state_dict.items() if not name.startswith(prefixes)}
    rest = {name: value for name, value in state_dict.items() if name not in own}
    check_names(beside, rest, strict=strict)
    check_metadata(beside, getattr(state_dict, "_metadata", {}).get("", {}))
    check_entries(beside, rest)
    with unchanged_on_error(beside), naming_other_shapes(beside, rest):
        beside.load_state_dict(rest, strict=strict)
        prepared.graph_module.load_state_dict(own, strict=strict)  # which takes all of it, or nothing
    loaded: Any = beside.get_submodule(learned)
    prepared.learned_qparams = {TensorRef(name): module.qparams() for name, module in loaded.items()}
    prepared.weight_checksums.record(prepared.graph_module, anew=True)


def pickled(prepared: PreparedModel) -> dict[str, Any]:
    """Return the attributes to pickle: patterns that are registered go by their names."""
    return {**vars(prepared), "patterns": by_name(prepared.patterns)}


def unpickle(prepared: PreparedModel, state: Mapping[str, Any]) -> None:
    """Set the attributes that ``pickled`` gave."""
    vars(prepared).update({**state, "patterns": from_names(state["patterns"])})


def drop_graph(prepared: PreparedModel) -> None:
    """Leave the configuration, the plan and the snapshots: the model that trains has the graph and its measurements."""
    prepared.graph_module = NamedGraphModule(nn.Module(), Graph())
    prepared.observers, prepared.weight_layers = nn.ModuleDict(), nn.ModuleDict()
    prepared.calibration_statistics = CalibrationStatistics(prepared.graph_module, QuantPlan(), prepared.observers)
