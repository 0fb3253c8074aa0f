"""What a model, a configuration and a plan must be before any work is done, said in the user's terms."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.parameter import is_lazy

from fxquant.backends.base import SIGNED_WEIGHTS, Backend
from fxquant.capture.tracing import check_unscripted, copy_of
from fxquant.errors import DuplicateNameError, InputError, LoweringError, PlanError, SpecError, listing, warn
from fxquant.fake_quantize.defaults import get_default_qat_qconfig_mapping
from fxquant.graph.module import noted
from fxquant.graph.query import called_module, module_of, nodes_by_name
from fxquant.kernels.library import SETTINGS, native_status
from fxquant.measure.coverage import Coverage
from fxquant.nn.weight import all_finite
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.base import PassContext
from fxquant.passes.configure import unused_rules
from fxquant.passes.rounding import weighted_nodes
from fxquant.patterns.pattern import Pattern
from fxquant.patterns.registry import in_own_namespace
from fxquant.plan.qconfig import QConfig, QConfigMapping, UnusedRule
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import Observed

PRODUCED_BY = {"prepared": "prepare", "training": "prepare_qat", "converted": "convert"}
"""Form of a model -> the function that gave it."""

ALREADY = {"prepared": "prepared", "training": "prepared for training", "converted": "converted"}

INSTEAD = {
    "training": "prepare(model, example_inputs) of the float model; what prepare_qat gave observes in its own calls",
    "converted": "give the Quantizer that it was converted from: convert never changes it",
}
"""Form of a model -> what to give where a Quantizer is wanted."""

AFTERWARDS = {
    "prepared": "convert(prepared) makes the int8 model",
    "training": "train it, and convert(model) makes the int8 model",
    "converted": "call it as it is",
}
"""Form of a model -> what comes next."""


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
    """Plans look patterns up by name, so two of one name cannot be told apart.

    One of the user's own that has the name of a default one beside it is called ``own.NAME``.
    """
    if wrong := [item for item in patterns if not isinstance(item, Pattern)]:
        raise InputError("patterns holds something that is no Pattern", got=repr(wrong[0]), expected="Pattern objects")
    names = Counter(pattern.name for pattern in patterns)
    patterns = [in_own_namespace(pattern) if names[pattern.name] > 1 else pattern for pattern in patterns]
    names = Counter(pattern.name for pattern in patterns)
    if twice := [name for name, count in names.items() if count > 1]:
        raise DuplicateNameError("two patterns have the same name", got=", ".join(twice), expected="a name for each")
    return tuple(patterns)


def form_of(model: object) -> str:
    """Form of a model: ``"prepared"``, ``"training"`` or ``"converted"``; empty if nothing of this package made it."""
    attributes = getattr(model, "__dict__", {})
    if isinstance(attributes.get("plan"), QuantPlan):
        return "prepared"
    if not isinstance(model, GraphModule) or not isinstance(noted(model, "quant_plan"), QuantPlan):
        return ""
    return "training" if noted(model, "preparation") is not None else "converted"


def named_by_form(model: object) -> str:
    """The class of a model, and what made it."""
    maker = PRODUCED_BY.get(form_of(model))
    return type(model).__name__ + (f", which {maker} gave" if maker else "")


def check_model(model: object) -> None:
    """Refuse what is no float model with values, in its user's terms.

    Raises:
        InputError: no module; one that this package made; a wrapped one, one without values, or one with an attribute
            whose name cannot stand in code.
        TracingError: it is scripted.
    """
    if form := form_of(model):
        raise InputError(
            f"the model is {ALREADY[form]} already",
            got=named_by_form(model),
            expected="a float model",
            hint=f"{AFTERWARDS[form]}, or give the float model that it was made from",
        )
    if not isinstance(model, nn.Module):
        raise InputError("the model is no torch.nn.Module", got=type(model).__name__, expected="a torch.nn.Module")
    check_unwrapped(model)
    check_unscripted(model)
    tensors = (*model.named_parameters(), *model.named_buffers())
    if lazy := [name for name, tensor in tensors if is_lazy(tensor)]:
        raise InputError(
            "the model has lazy layers, whose weights have no shape yet",
            got=listing(lazy),
            expected="a model that has run once",
            hint="model(*example_inputs) once, before it is given",
        )
    if empty := [name for name, tensor in tensors if tensor.is_meta]:
        raise InputError(
            "the model is on the meta device, where tensors hold no values",
            got=listing(empty),
            expected="a model with its weights",
            hint="model.to_empty(device='cpu'), and load a state dict",
        )
    if unfit := [name for name in _names(model) if not _is_fit_for_code(name)]:
        raise InputError(
            "a name cannot stand in generated code",
            got=repr(unfit[0]),
            expected="names of modules, parameters and buffers without quotes, backslashes and control characters",
            hint="add_module and register_parameter take another name",
        )


def _names(model: nn.Module) -> Iterator[str]:
    """Every name by which generated code may ask for a part of a model."""
    for module in model.modules():
        yield from (*module._modules, *module._parameters, *module._buffers)
        yield from (name for name, value in vars(module).items() if isinstance(value, Tensor))


def _is_fit_for_code(name: str) -> bool:
    """Whether ``getattr(model, "name")`` is what it looks like: torch.fx writes names as they are."""
    return name.isprintable() and not set(name) & set("\"'\\")


def check_unwrapped(model: nn.Module) -> None:
    """Refuse what ``torch.compile`` or ``DistributedDataParallel`` gave, also as a submodule.

    Raises:
        InputError: it says where the module inside is.
    """
    for path, module in model.named_modules():
        if "_orig_mod" in module._modules:
            by, inside = "torch.compile", "_orig_mod"
        elif isinstance(module, nn.parallel.DistributedDataParallel):
            by, inside = "DistributedDataParallel", "module"
        else:
            continue
        in_place = f"model.set_submodule({path!r}, model.get_submodule({path!r}).{inside})"
        raise InputError(
            f"the {f'submodule {path!r}' if path else 'model'} is wrapped by {by}",
            got=type(module).__name__,
            expected="the module inside",
            hint=in_place if path else f"give model.{inside}, and wrap what convert or prepare_qat makes of it",
        )


def not_prepared(given: object, function: str, *, or_training: bool = False) -> InputError:
    """The error to raise where a function was given something else than what ``prepare`` gave.

    Args:
        given: What it was given.
        function: Its name.
        or_training: Whether it takes what ``prepare_qat`` gave, too.
    """
    form = form_of(given)
    hint = INSTEAD.get(form, "")
    if isinstance(given, nn.Module) and not form:
        check_unwrapped(given)
        prepared = "prepare(model, example_inputs)"
        hint = f"calibrate({prepared}, data)" if function == "calibrate" else f"{function}({prepared}), after calibrate"
    return InputError(
        f"{function} takes what prepare{' or prepare_qat' if or_training else ''} gave",
        got=named_by_form(given),
        expected=f"a Quantizer{', or the GraphModule of prepare_qat' if or_training else ''}",
        hint=hint,
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
    warn_of_missing_kernels()


@functools.cache
def warn_of_missing_kernels() -> None:
    """Warn, once in a process, that int8 models are going to run on the Python reference, slowly, unasked."""
    status = native_status()
    if SETTINGS.kernels == "auto" and "cpu" not in status.devices:
        warn(
            "no native kernels are loaded, so int8 models run on the Python reference, slower than float",
            got=status.reason,
            hint="python -m fxquant doctor says more; FXQUANT_KERNELS=reference asks for the reference",
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


def check_plan(plan: QuantPlan, found: Coverage, strict: bool, config: QConfigMapping) -> None:
    if not plan.units:
        reasons = [f"{row.module or row.node}: {row.reason}" for row in found.float_rows[:10]]
        raise PlanError(
            "the model has no operator that can be quantized",
            got=listing(reasons) or "no operator on float tensors",
            hint=_weight_to_write(found, config)
            or "look at the configuration and at the backend; register_pattern adds patterns",
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


def _weight_to_write(found: Coverage, config: QConfigMapping) -> str:
    """The observer of weights that a configuration should name, where the back end refuses the one that it does."""
    if not any(SIGNED_WEIGHTS in row.reason for row in found.float_rows):
        return ""
    for rule in config.rules():
        scheme = None if rule.qconfig is None else rule.qconfig.weight_scheme
        if rule.qconfig is not None and scheme is not None and not (scheme.signed and scheme.symmetric):
            kind = "per_tensor" if scheme.axis is None else "per_channel"
            words = f"dtype=torch.int8, qscheme=torch.{kind}_symmetric"
            return f"QConfig(weight={type(rule.qconfig.weight()).__name__}.with_args({words}), activation=…)"
    return ""


def check_groups(gm: GraphModule, ctx: PassContext) -> None:
    """Refuse a group size that does not divide a weight, before anything is calibrated.

    Raises:
        PlanError: the message names each layer, and what divides it.
    """
    wrong, sizes, asked = [], [], 1
    for node, unit in weighted_nodes(gm, ctx):
        policy, shape = ctx.plan.policies[unit.roles["weight"]], tuple(called_module(node).weight.shape)
        scheme = policy.observer().scheme if isinstance(policy, Observed) else None
        if scheme is None or scheme.group_size is None:
            continue
        dim = scheme.axis % len(shape) + 1
        sizes.append(shape[dim] if dim < len(shape) else 1)
        if sizes[-1] % scheme.group_size:
            asked = scheme.group_size
            divisors = ", ".join(map(str, _divisors(sizes[-1])))
            wrong.append(f"{node.target}: group_size={asked}, weight {list(shape)}; {sizes[-1]} divides by {divisors}")
    if wrong:
        fitting = min(_divisors(math.gcd(*sizes)), key=lambda number: abs(number - asked))
        raise PlanError(
            "group_size does not divide the weights of these layers",
            got=listing(wrong),
            expected="a group_size that divides the dimension behind the axis",
            hint=f"group_size={fitting} divides those of all layers",
        )


def _divisors(number: int) -> list[int]:
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


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
