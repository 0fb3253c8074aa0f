"""Measures, unit by unit, whether int8 operators, their integer reference and the simulation agree; and their noise."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from fxquant.errors import InputError, LoweringError, warn
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.inputs import bind, describe_value
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.graph.module import get_metadata
from fxquant.graph.query import module_of, nodes_by_name
from fxquant.measure.noise import UnitNoise, dequantized, evaluate, integers, sqnr, unit_noise
from fxquant.measure.parity_table import OutputNoise, Parity, ParityRow
from fxquant.measure.runner import ROUNDINGS, all_values, as_taken, first_tensor, float_values
from fxquant.nn.base import QuantizedModule
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Handled, QParams, TensorRef

NEAR = 1e-3
"""Steps from a rounding boundary within which float32 sums of the simulation may round the other way."""
FLOAT_STEP = 1e-5
"""Of the largest value: how far float values may be apart, if their dtype tells so many apart. One step where results
are not rounded to qparams: float32 sums of thousands of products, in another order, differ by up to some hundred times
its precision of 6e-8."""

BLUR = 2**-22
"""Of the largest value that a unit reads: what float32 does not tell apart in its sums. Where values cancel out, a mean
of what was normalized say, the range of the result may be no larger, and the simulation says nothing of its steps."""


def measure_parity(
    int8: GraphModule, simulated: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Parity:
    """Give every unit of the int8 model's run the same integers in three ways: operator, reference, simulation.

    Args:
        int8: What ``convert(prepared)`` gave.
        simulated: What ``convert(prepared, to="fake_quant")`` gave for the same ``prepared``.
        args, kwargs: A batch.

    Returns:
        A row for every unit that computes on integers; those that only move values or store a weight are left out.

    Raises:
        InputError: ``int8`` has none of the planned units.
        LoweringError: the module of a unit gives something else than a tensor of the planned kind and shape.
    """
    plan = plan_of(int8)
    nodes, simulated_nodes = nodes_by_name(int8), nodes_by_name(simulated)
    # Find the units in the int8 model.
    present = [(unit, nodes[unit.root]) for unit in plan.units if unit.root in nodes]
    measured = [(unit, node, module_of(node)) for unit, node in present]
    if not present and any(unit.root in simulated_nodes for unit in plan.units):  # else all of it is dead code
        raise InputError(
            "no unit of the plan is found in the int8 model",
            got=f"{len(plan.units)} units planned, none of them a node of the graph",
            expected="the module that convert gave, with the names of its nodes",
        )
    # Run both models once, and keep all values.
    bound = bind(int8, args, kwargs or {}, "the batch to check parity on")
    values, rounded_values = (
        all_values(BoundInterpreter(int8, as_taken(int8, bound), keep_values=True)),
        float_values(simulated, bound),
    )
    exact, exact_values = nodes_by_name(_in_float32(simulated)), pytree.tree_map_only(Tensor, _single, rounded_values)
    rows, unmeasured = [], []
    with torch.no_grad():
        # Compare each unit on the inputs that the int8 model gave it.
        for unit, node, module in measured:
            has_reference = isinstance(module, QuantizedModule)
            if not has_reference and "y" in unit.roles and isinstance(plan.policies[unit.roles["y"]], Handled):
                unmeasured.append(unit.root)
                continue
            if module is None or not (has_reference or _computes(unit, module, simulated_nodes[unit.root])):
                continue
            arguments = _arguments(module, node, values)
            if isinstance(module, QuantizedModule):
                reference = first_tensor(module.reference(*arguments))
            else:
                reference = _result_of(unit, node, values[node], rounded_values[unit.root])
            read = _read_by(unit, plan, node, simulated_nodes[unit.called], values)
            floats = {
                name: pytree.tree_map_only(Tensor, _single, value)
                if isinstance(value, tuple)
                else value.to(exact_values[name].dtype)
                for name, value in read.items()
            }
            blur = BLUR * max((_largest(first_tensor(value)) for value in floats.values()), default=0.0)
            unrounded, rounded = _simulate(unit, exact, exact_values | floats)
            noise = unit_noise(
                unit, plan, module, values[node], rounded_values, simulated_nodes, arguments[len(unit.inputs) :]
            )
            if "y" in unit.roles:
                y = plan.qparams[unit.roles["y"]]
                row = _compare(unit, values[node], reference, unrounded, rounded, y, noise, blur)
            else:
                row = _compare_floats(unit, first_tensor(values[node]), reference, unrounded, noise, blur)
            rows.append(replace(row, has_reference=has_reference))
    output = next(iter(int8.graph.find_nodes(op="output")))
    return Parity(tuple(rows), output_noise(rounded_values[output.name], values[output]), tuple(unmeasured))


def _computes(unit: QuantUnit, module: nn.Module, simulated: Node) -> bool:
    """Tell whether a back end's own module computes on integers: it is no float module that was kept, and no weight."""
    return type(module) is not type(module_of(simulated)) and not unit.roles.keys() <= {"weight", "mean"}


def _result_of(unit: QuantUnit, node: Node, given: Any, expected: Tensor) -> Tensor:
    """Return what a back end's own module gave, once it is known to be of the right kind and shape."""
    stored = "y" in unit.roles
    if (
        not isinstance(given, Tensor)
        or given.shape != expected.shape
        or given.is_floating_point() is stored
        or given.is_complex()
    ):
        raise LoweringError(
            f"the module for pattern {unit.pattern!r} gives another value than was planned",
            at=node,
            got=describe_value(given),
            expected=f"{'quantized' if stored else 'float'} values of shape {tuple(expected.shape)}",
            hint="build(unit) gets qparams in unit.qparams; without those of 'y', its module gives float values",
        )
    return given


def simulated_noise(
    simulated: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> tuple[OutputNoise, ...]:
    """Return the noise of what a simulation returns, for which there need be no int8 model; arguments as above."""
    bound = bind(simulated, args, kwargs or {}, "the batch to measure noise on")
    output = next(iter(simulated.graph.find_nodes(op="output")))
    return output_noise(
        float_values(simulated, bound)[output.name],
        all_values(BoundInterpreter(simulated, bound, keep_values=True))[output],
    )


def output_noise(expected: Any, given: Any) -> tuple[OutputNoise, ...]:
    """Measure the noise of each tensor of float values in what a model returns, against the float model."""
    others = dict(_float_tensors(given))
    return tuple(
        OutputNoise(name, sqnr(exact, others[name]))
        for name, exact in _float_tensors(expected)
        if name in others and others[name].shape == exact.shape
    )


def _float_tensors(value: Any) -> Iterator[tuple[str, Tensor]]:
    try:
        found: Any = pytree.tree_flatten_with_path(value)[0]
    except ValueError:  # a class of the user's that does not name its parts
        found = [(f"[{index}]", leaf) for index, leaf in enumerate(pytree.tree_leaves(value))]
    for path, leaf in found:
        if isinstance(leaf, Tensor) and leaf.is_floating_point():
            yield f"output{path if isinstance(path, str) else pytree.keystr(path)}", leaf


def warn_of_breaches(parity: Parity) -> None:
    """Warn of each unit that breaks the contract, by its name."""
    for row in parity.breaches:
        warn(row.breach, at=row.unit, got=row)


def _in_float32(simulated: GraphModule) -> GraphModule:
    """Return the simulation in the precision in which integers are scaled, or more: short floats are too coarse."""
    tensors = (*simulated.parameters(), *simulated.buffers())
    if all(_single(tensor) is tensor for tensor in tensors):
        return simulated
    copied: GraphModule = copy.deepcopy(simulated)._apply(_single)
    return copied


def _single(x: Tensor) -> Tensor:
    """float32 in place of float16 and bfloat16."""
    return x.to(torch.promote_types(x.dtype, torch.float32)) if x.is_floating_point() else x


def _arguments(module: nn.Module, node: Node, values: Mapping[Node, Any]) -> tuple[Any, ...]:
    """Return what a module was called with, in the order of its parameters."""
    args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
    if not kwargs:
        return args
    bound = inspect.signature(module.forward).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.args


def _read_by(
    unit: QuantUnit, plan: QuantPlan, node: Node, simulated: Node, values: Mapping[Node, Any]
) -> dict[str, Any]:
    """Return the values that a unit was given, by their names in the simulation, before it rounds them."""
    if unit.inputs:
        refs = [unit.roles[role] for role in unit.inputs]
        inputs: Any = map_arg(node.args[: len(refs)], values.__getitem__)
        return {ref.name: dequantized(x, plan.qparams[ref]) for ref, x in zip(refs, inputs, strict=True)}
    there = simulated.all_input_nodes
    unrounded = [arg.all_input_nodes[0] if isinstance(module_of(arg), ROUNDINGS) else arg for arg in there]
    return {
        arg.name: values[given]
        if not isinstance(values[given], Tensor) or values[given].is_floating_point()
        else dequantized(values[given], _qparams_of(arg, plan))
        for arg, given in zip(unrounded, node.all_input_nodes, strict=True)
    }


def _qparams_of(node: Node, plan: QuantPlan) -> QParams | None:
    """Return the qparams of a value; None for integers that have none, indices say."""
    return plan.qparams.get(TensorRef(node.name))


def plan_of(converted: GraphModule) -> QuantPlan:
    """Return the plan by which a model was converted.

    Raises:
        InputError: the model was not made by ``convert``.
    """
    plan = get_metadata(converted, "quant_plan")
    if not isinstance(plan, QuantPlan):
        raise InputError("this model was not made by convert", got=type(converted).__name__)
    return plan


def _simulate(unit: QuantUnit, nodes: Mapping[str, Node], floats: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Run the unit's float nodes on given inputs, through the simulation's own modules: before and after rounding."""
    unrounded = evaluate(unit, nodes, floats, rounding=True)
    roundings = [module_of(user) for user in nodes[unit.root].users]
    rounding = next((module for module in roundings if isinstance(module, StaticFakeQuantize)), None)
    return unrounded, unrounded if rounding is None else rounding(unrounded)


def _compare(
    unit: QuantUnit,
    native: Tensor,
    reference: Tensor,
    unrounded: Tensor,
    rounded: Tensor,
    y: QParams,
    noise: UnitNoise,
    blur: float,
) -> ParityRow:
    simulated = integers(rounded, y)
    off, gap = ((other.int() - reference.int()).abs() for other in (native, simulated))
    # The simulation must give quantized values exactly, and the same ones unless rounding was close.
    near_boundary = (_steps_to_qparams(unrounded, y) - 0.5).abs() <= NEAR
    far = ((gap > 0) & ~near_boundary) | (_steps_to_qparams(rounded, y) > NEAR)
    is_blurred = y.scale < 2 * blur
    return _row(unit, off, gap.masked_fill(is_blurred, 0), far.masked_fill(is_blurred, False), noise, "int8")


def _compare_floats(
    unit: QuantUnit, native: Tensor, reference: Tensor, simulated: Tensor, noise: UnitNoise, blur: float
) -> ParityRow:
    expected, relative = reference.double(), max(FLOAT_STEP, torch.finfo(reference.dtype).eps)
    step = max(relative * _largest(expected), blur, torch.finfo(torch.float32).tiny)
    off, gap = (torch.floor((values.double() - expected).abs() / step) for values in (native, simulated))
    return _row(unit, off, gap, gap > 0, noise, "float")


def _row(
    unit: QuantUnit, off: Tensor, gap: Tensor, far: Tensor, noise: UnitNoise, gives: Literal["int8", "float"]
) -> ParityRow:
    """Return the row of a unit.

    Args:
        unit: It is named in the row.
        off: Difference between the operator and its reference, in steps, for each element.
        gap: The same between the simulation and the reference.
        far: Whether this gap is more than a rounding that was close explains.
        noise: That of the unit.
        gives: Whether the elements are quantized or float values.
    """
    count = max(off.numel(), 1)
    return ParityRow(
        unit.root,
        unit.pattern,
        off.numel(),
        1 - int((off > 0).sum()) / count,
        int(off.max()) if off.numel() else 0,
        1 - int((gap > 0).sum()) / count,
        int(gap.max()) if gap.numel() else 0,
        int(far.sum()),
        noise,
        gives,
    )


def _largest(values: Tensor) -> float:
    """Return the largest finite magnitude; 0 where there is none."""
    finite = values[values.isfinite()]
    return float(finite.abs().max()) if finite.numel() else 0.0


def _steps_to_qparams(values: Tensor, qparams: QParams) -> Tensor:
    """Measure how far each value lies from the one that it is rounded to, in steps."""
    return (values - dequantized(integers(values, qparams), qparams)).abs() / qparams.scale
