"""What a model, a configuration and a plan must be before any work is done, said in the user's terms."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.backends.base import Backend
from fxquant.coverage import Coverage
from fxquant.errors import DuplicateNameError, InputError, LoweringError, PlanError, SpecError, warn
from fxquant.fake_quantize.defaults import get_default_qat_qconfig_mapping
from fxquant.graph.query import module_of, nodes_by_name
from fxquant.graph.tracing import copy_of
from fxquant.nn.weight import all_finite
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.configure import unused_rules
from fxquant.patterns.pattern import Pattern
from fxquant.plan import QuantPlan
from fxquant.qconfig import QConfig, QConfigMapping, UnusedRule

LONGEST_LISTING = 20
"""Lines that a message lists before it says how many more there are."""

RESERVED = (
    "_engine",
    "calibration_statistics",
    "observers",
    "parity",
    "preparation",
    "quant_coverage",
    "quant_plan",
    "snapshots",
    "tuning",
    "weight_layers",
)
"""Names that a converted model or a state dict needs for itself."""


def checked_input_observer(observer: Callable[[], Any] | None) -> Callable[[], Any] | None:
    """An observer for activations with a grid, or None."""
    if observer is None:
        return None
    qconfig = QConfig(activation=observer, weight=observer)
    if qconfig.activation_scheme is None or qconfig.is_dynamic:
        raise SpecError(
            "input_observer chooses no grid",
            got=repr(observer),
            expected="an observer that measures, such as MinMaxObserver",
        )
    return observer


def distinct(patterns: Sequence[Pattern]) -> tuple[Pattern, ...]:
    """Plans look patterns up by name, so two of one name cannot be told apart."""
    if wrong := [item for item in patterns if not isinstance(item, Pattern)]:
        raise InputError("patterns holds something that is no Pattern", got=repr(wrong[0]), expected="Pattern objects")
    names = Counter(pattern.name for pattern in patterns)
    if twice := [name for name, count in names.items() if count > 1]:
        raise DuplicateNameError("two patterns have the same name", got=", ".join(twice), expected="a name for each")
    return tuple(patterns)


def check_model(model: object) -> None:
    """Refuse what is no module, a module without values, and one with an attribute of a reserved name.

    Raises:
        InputError: it is one of these.
    """
    if not isinstance(model, nn.Module):
        raise InputError("the model is no torch.nn.Module", got=type(model).__name__, expected="a torch.nn.Module")
    tensors = (*model.named_parameters(), *model.named_buffers())
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise InputError(
            "the model is on the meta device, where tensors hold no values",
            got=listing(empty),
            expected="a model with its weights",
            hint="model.to_empty(device='cpu'), and load a state dict",
        )
    if taken := [name for name in RESERVED if hasattr(model, name)]:
        raise InputError(
            "the model has an attribute of a name that fxquant needs", got=taken[0], expected="another name for it"
        )


def check_operators(backend: Backend) -> None:
    """Refuse to lower for a backend that only simulates.

    Raises:
        LoweringError: it is one.
    """
    if not backend.has_operators:
        raise LoweringError(
            f"backend {backend.name!r} has no integer operators",
            got="to='int8'",
            expected="to='reference' (integers between float operators) or to='fake_quant' (their values, in float)",
            hint="prepare with backend='cpu' for int8 on this machine",
        )


def in_eval(model: nn.Module) -> nn.Module:
    """The model, or, if it is in training mode, a copy in evaluation mode."""
    training = sum(module.training for module in model.modules())
    if not training:
        return model
    warn(
        "the model is in training mode; it is calibrated and converted as if eval() had been called",
        got=f"{training} modules have training=True",
        hint="call model.eval() first",
    )
    return copy_of(model).eval()


def warn_of_unused_rules(before: Sequence[UnusedRule], gm: GraphModule, config: QConfigMapping, backend: str) -> None:
    """Warn of rules that match nothing: neither in the traced model (``before``), nor in the prepared one.

    A rule may name what only one of them has: an operator that was taken apart, or one of its parts. No warning is
    given of those that the default mapping has: nobody wrote them.
    """
    default = (*get_default_qconfig_mapping(backend).rules(), *get_default_qat_qconfig_mapping(backend).rules())
    after = {(unused.rule.kind, unused.rule.key): unused for unused in unused_rules(gm, config)}
    for unused in before:
        still = after.get((unused.rule.kind, unused.rule.key))
        if unused.rule not in default and still is not None:
            (unused if unused.hint else still).warn()


def check_plan(plan: QuantPlan, found: Coverage, strict: bool) -> None:
    if not plan.units:
        reasons = [f"{row.module or row.node}: {row.reason}" for row in found.float_rows[:10]]
        raise PlanError(
            "the model has no operator that can be quantized",
            got=listing(reasons) or "no operator on float tensors",
            hint="look at the configuration and at the backend; register_pattern adds patterns",
        )
    left = [row for row in found.float_rows if not row.excused]
    if strict and left:
        lines = [f"{row.module or row.node} ({row.operator}): {row.reason}" for row in left]
        raise PlanError(
            f"strict: {len(left)} operators would stay float",
            got=listing(lines),
            expected="every operator that the configuration asks to quantize becomes int8",
            hint="set_module_name(name, None) says that one shall stay float; strict=False only reports them",
        )


def check_weights(gm: GraphModule, plan: QuantPlan) -> None:
    """Find inf and NaN in the model before they are found in its values, where nobody can say where they came from."""
    nodes = nodes_by_name(gm)
    layers = {str(node.target): module for u in plan.units for n in u.nodes if (module := module_of(node := nodes[n]))}
    bad = [
        f"{path}.{name}: {int((~torch.isfinite(tensor)).sum())} of {tensor.numel()} values are inf or NaN"
        for path, module in layers.items()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
        if tensor.is_floating_point() and not all_finite(tensor)
    ]
    if bad:
        raise PlanError(
            "the model holds weights or statistics that are not finite",
            got=listing(bad),
            expected="finite numbers in every layer that is to be quantized",
            hint="a training that diverged leaves such weights; set_module_name(name, None) keeps a layer in float",
        )


def listing(lines: Sequence[str]) -> str:
    """Lines of a message, one below the other, the first twenty."""
    more = [f"and {len(lines) - LONGEST_LISTING} more"] if len(lines) > LONGEST_LISTING else []
    return "\n            ".join([*lines[:LONGEST_LISTING], *more])
