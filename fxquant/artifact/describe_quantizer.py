"""Writes what a Quantizer is beside its float graph: as plain data and tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from fxquant.artifact.configuration import encode_configuration
from fxquant.artifact.example import encode_example
from fxquant.artifact.makers import Makers
from fxquant.artifact.plan import encode_plan
from fxquant.artifact.rounding import encode_rounding
from fxquant.artifact.values import encode
from fxquant.errors import ArtifactError, error_context, listing
from fxquant.graph.query import WEIGHT, qualified_name
from fxquant.patterns.defaults import DEFAULT_PATTERNS
from fxquant.patterns.registry import known_patterns
from fxquant.plan.spec import Means, Observed
from fxquant.quantizer.data import PreparedModel

STATE = "#state/"
"""What the names of tensors of observers and of statistics begin with."""


def describe_quantizer(prepared: PreparedModel) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write plan, configuration, observers and all that they measured.

    Raises:
        ArtifactError: something of it is code: a handler, an observer of the user's, a pattern that is not registered.
    """
    prepared.weight_checksums.warn_if_changed(prepared.graph_module, prepared.run_state.buffers)
    makers, trained = Makers(), prepared.trained
    with error_context(at="the configuration"):
        configuration = encode_configuration(prepared.config, makers, _paths(prepared))
    given = prepared.input_observer
    plan, tensors = encode_plan(_plan_of(prepared), makers)
    rounding, integers = encode_rounding(prepared)
    with error_context(at="the example inputs"):
        example = [encode_example(prepared.example_args), encode_example(prepared.example_kwargs)]
    data = {
        "backend": prepared.backend.name,
        "configuration": configuration,
        "input_observer": None if given is None else makers.number_of(given),
        "patterns": _patterns(prepared),
        "example": example,
        "plan": plan,
        "fake_quants": [[encode(ref), path] for ref, path in prepared.plan.fake_quants.items()],
        "trained": trained is not None,
        "joins": [
            [name, [[part.name, encode(part.low), encode(part.high)] for part in parts]]
            for name, parts in prepared.trained_joins.items()
        ],
        "rounding": rounding,
        "warned": sorted(map(list, prepared.warned)),
        "integers": [encode(prepared.integer_inputs), encode(prepared.integer_outputs)],
        "makers": makers.data,
    }
    return data, {**tensors, **integers, **_measured(prepared)}


def _plan_of(prepared: PreparedModel) -> Any:
    """Return the plan, with the qparams of training, or those of activations that were learned."""
    plan = prepared.plan
    qparams = prepared.learned_qparams if prepared.trained is None else prepared.trained
    if not qparams:
        return plan
    return type(plan)(units=plan.units, policies=plan.policies, refusals=plan.refusals, qparams=qparams)


def _paths(prepared: PreparedModel) -> set[str]:
    """Return all that a rule of the configuration may mean by a path."""
    nodes = prepared.graph_module.graph.nodes
    named = {str(node.meta[WEIGHT]) for node in nodes if WEIGHT in node.meta}
    return {*map(qualified_name, nodes), *dict(prepared.graph_module.named_modules()), *named}


def _patterns(prepared: PreparedModel) -> list[str]:
    """Return the names of the patterns of units that not everybody has.

    Raises:
        ArtifactError: one is code, or is not registered.
    """
    own = {pattern.name: pattern for pattern in prepared.patterns}
    used = [own[name] for name in dict.fromkeys(unit.pattern for unit in prepared.plan.units)]
    registered = {id(pattern) for pattern in known_patterns()}
    code = [f"{pattern.name}: a handler" for pattern in used if pattern.handler is not None]
    code += [f"{pattern.name}: not registered" for pattern in used if id(pattern) not in registered]
    if code:
        raise ArtifactError(
            "patterns of this model cannot be written",
            got=listing(code),
            expected="patterns without a handler, made known by register_pattern here and where the file is read",
        )
    default = {id(pattern) for pattern in DEFAULT_PATTERNS}
    return [pattern.name for pattern in used if id(pattern) not in default]


def _measured(prepared: PreparedModel) -> dict[str, Tensor]:
    if prepared.trained is not None and not len(prepared.observers):  # what was trained has no statistics either
        return {}
    observers = nn.ModuleDict()
    for ref, policy in prepared.plan.policies.items():  # adaround leaves observers that its plan needs no more
        if ref.name in prepared.observers._modules and isinstance(policy, (Observed, Means)):
            observers._modules[ref.name] = prepared.observers._modules[ref.name]
    parts = {"observers": observers, "statistics": prepared.calibration_statistics}
    return {
        f"{STATE}{part}.{name}": value for part, module in parts.items() for name, value in module.state_dict().items()
    }
