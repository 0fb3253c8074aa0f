"""Replaces each unit by the operator of the back end that runs on quantized values."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fxquant.backends.base import AsCalled, Backend, KeepAs, Lower
from fxquant.errors import FxQuantError, LoweringError
from fxquant.graph.edit import add_module, insert_after, rename
from fxquant.graph.query import (
    VALUE,
    is_shape_query,
    module_of,
    module_path,
    nodes_by_name,
    nodes_in,
    tensors_of,
    value_of,
)
from fxquant.nn.base import FloatResult, QuantizedModule
from fxquant.nn.quantize import Dequantize, Quantize
from fxquant.passes.base import PassContext, graph_pass
from fxquant.passes.handlers import HandlerView
from fxquant.patterns.elementwise import CLAMPS, clamp_of
from fxquant.patterns.pattern import Build, Pattern, UnitView
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.plan.spec import Dynamic, TensorRef


@graph_pass(
    after=(
        *("fold_conv_bn", "observe_weights", "correct_bias", "share_join_qparams", "round_biases"),
        "apply_learned_rounding",
    ),
    required=True,
)
def lower_units(gm: GraphModule, ctx: PassContext) -> GraphModule:
    """Replace each unit by what its lowering rule says. All that read a value share its quantize and its dequantize."""
    lowering = _Lowering(gm, ctx.plan, ctx.backend, nodes_by_name(gm))
    for unit in ctx.plan.units:
        pattern = ctx.pattern_of(unit)
        if pattern.handler is not None:
            lowering.by_handler(unit, ctx.handlers[unit.root])
        else:
            lowering.by_rule(unit, pattern)
    lowering.take_float_nodes_out()
    return gm


@dataclass(slots=True)
class _Lowering:
    """First the integer graph grows beside the float nodes, which stay until every unit has been lowered."""

    gm: GraphModule
    plan: QuantPlan
    backend: Backend
    nodes: dict[str, Node]
    integers: dict[str, Node] = field(default_factory=dict)
    """Name of a value of the float graph -> the node that holds its integers."""
    floats: dict[str, Node] = field(default_factory=dict)
    """Name of a value of the float graph -> the node that was made for it, where that is a float."""
    lowered: dict[str, Node] = field(default_factory=dict)
    """Root of a unit -> the node that takes its place."""

    def by_rule(self, unit: QuantUnit, pattern: Pattern) -> None:
        rule = self.backend.rule_for(pattern)
        assert rule is not None  # the annotate pass asked the same question
        inputs = [self.integers_of(unit.roles[role]) for role in unit.inputs]
        root, called = self.nodes[unit.root], self.nodes[unit.called]
        if rule.build is Lower.ELIDE:
            self.integers[unit.root] = inputs[0]
            return
        with self.gm.graph.inserting_before(root):
            if isinstance(rule.build, (Lower, KeepAs)):
                # The call itself, or that of another function, on quantized values.
                # Of a second tensor (``x.expand_as(y)``) only the shape counts, which the integers have too.
                node = self.gm.graph.node_copy(
                    root, lambda n: inputs[0] if n is root.args[0] else self.integers.get(n.name, n)
                )
                node.target = rule.build.function if isinstance(rule.build, KeepAs) else node.target
            else:
                # A module of the back end, at the path of the layer that it takes the place of.
                quantized_arg = None if inputs else self._quantized_argument(called, rule.build)
                module = self._build(unit, rule.build, self._view(unit, quantized_arg))
                members = [self.nodes[name] for name in unit.nodes]
                target = add_module(self.gm, _target_path(members), module, instead_of=members)
                _named(module, target)
                # Its arguments: the quantized inputs, and those that may be computed at run time (a size, say), or
                # those of the float call.
                computed = [root.args[i] for i in rule.takes if i < len(root.args) and nodes_in(root.args[i])]
                if isinstance(rule.build, AsCalled) and not inputs:
                    first = called.args[:1] if quantized_arg is None else (self.integers[quantized_arg.name],)
                    arguments: Any = ((*first, *called.args[1:]), called.kwargs)
                else:
                    arguments = ((*inputs, *computed), {})
                node = self.gm.graph.call_module(target, *arguments)
        self._note_result(unit, node)

    def by_handler(self, unit: QuantUnit, handler: Any) -> None:
        root = self.nodes[unit.root]
        with self.gm.graph.inserting_before(root):
            node = handler.quantize(HandlerView(self.gm, self.plan), root, self.load_arg)
        if not isinstance(node, Node):
            raise LoweringError(
                f"the handler of pattern {unit.pattern!r} answered neither a node nor NotImplemented",
                at=root,
                got=repr(node),
                expected="a node made with quantizer.quantized_graph",
            )
        self._note_result(unit, node)

    def _note_result(self, unit: QuantUnit, node: Node) -> None:
        """Readers find the node among the integers, or among the floats where the unit has no ``y``."""
        (self.integers if "y" in unit.roles else self.floats)[unit.root] = node
        self.lowered[unit.root] = node

    def load_arg(self, arg: Any) -> Any:
        """Map nodes of the model, in any structure, to the nodes of their integers."""
        return map_arg(arg, lambda node: self.integers_of(TensorRef(node.name)))

    def integers_of(self, ref: TensorRef) -> Node:
        """Return the node that holds the integers of a value. It quantizes the value if no unit gives integers."""
        if ref.name not in self.integers:
            target = add_module(self.gm, f"{ref.name}_quantize", _named(Quantize(self.plan.qparams[ref]), ref.name))
            source = self.floats.get(ref.name, self.nodes[ref.name])
            self.integers[ref.name] = insert_after(source, target, users=())  # nobody reads it yet
            self._describe(self.integers[ref.name], ref)
        return self.integers[ref.name]

    def take_float_nodes_out(self) -> None:
        """Let what stays float read ``dequantize`` of the integers; the units' float nodes then have no readers."""
        inside = {self.nodes[name] for unit in self.plan.units for name in unit.nodes}
        dequantized: dict[tuple[Node, float], Node] = {}
        for unit in self.plan.units:
            root = self.nodes[unit.root]
            for reader in [user for user in root.users if user not in inside]:
                reader.replace_input_with(root, self._value_for(reader, unit, dequantized))
        for node in [node for node in reversed(self.gm.graph.nodes) if node in inside]:
            self.gm.graph.erase_node(node)
        for name, node in self.lowered.items():
            if name in self.integers:
                self._describe(node, TensorRef(name))
            else:
                node.meta = {**self.nodes[name].meta, **node.meta}
            rename(node, name)

    def _value_for(self, reader: Node, unit: QuantUnit, dequantized: dict[tuple[Node, float], Node]) -> Node:
        if unit.root in self.floats:
            return self.floats[unit.root]
        node = self.integers[unit.root]
        if is_shape_query(reader):
            return node
        ref = unit.roles["y"]
        key = (node, self.plan.qparams_factor(ref))  # the same integers stand for x and for x * 2
        if key not in dequantized:
            form = _float_form(self.nodes[unit.root])
            dequantize = _named(Dequantize(self.plan.qparams[ref], form.dtype, form.contiguous), ref.name)
            target = add_module(self.gm, f"{ref.name}_dequantize", dequantize)
            dequantized[key] = insert_after(node, target, users=())
            dequantized[key].meta = dict(self.nodes[unit.root].meta)
        return dequantized[key]

    def _describe(self, node: Node, ref: TensorRef) -> None:
        """Give a node of integers what is known of the float value it stands for; only the dtype is another."""
        source = self.nodes[ref.name]
        info = value_of(source)
        dtype = self.plan.qparams[ref].scheme.dtype
        node.meta = {**source.meta, **node.meta, VALUE: None if info is None else replace(info, dtype=dtype)}

    def _quantized_argument(self, called: Node, build: Build | AsCalled) -> TensorRef | None:
        """Return the first argument of a call, if it may be integers and a unit made it so."""
        first = called.args[0] if called.args else None
        if not isinstance(build, AsCalled) or not build.accepts_quantized or not isinstance(first, Node):
            return None
        lowered = any(unit.root == first.name and "y" in unit.roles for unit in self.plan.units)
        return TensorRef(first.name) if lowered else None

    def _view(self, unit: QuantUnit, quantized_arg: TensorRef | None) -> UnitView:
        nodes = {capture: self.nodes[name] for capture, name in unit.captures.items()}
        act = nodes.get("act")
        return UnitView(
            name=unit.root,
            inputs=unit.inputs,
            nodes=nodes,
            modules={capture: module for capture, node in nodes.items() if (module := module_of(node)) is not None},
            qparams={
                role: self.plan.qparams[ref]
                for role, ref in {**unit.roles, **({} if quantized_arg is None else {"x": quantized_arg})}.items()
                if ref in self.plan.qparams
            },
            activation=clamp_of(act) if act is not None and act.target in CLAMPS else None,
            per_call={
                role: policy
                for role, ref in unit.roles.items()
                if isinstance(policy := self.plan.policies.get(ref), Dynamic)
            },
        )

    def _build(self, unit: QuantUnit, build: Build | AsCalled, view: UnitView) -> nn.Module:
        try:
            module = build.build(view) if isinstance(build, AsCalled) else build(view)
        except FxQuantError as error:
            what = f"backend {self.backend.name!r} cannot build pattern {unit.pattern!r}: {error}"
            raise LoweringError(what, at=self.nodes[unit.root]) from error
        if isinstance(module, QuantizedModule) and module.float_result is not None:
            module.float_result = _float_form(self.nodes[unit.root])
        return module


def _target_path(members: list[Node]) -> str:
    """Say where the lowered module lives: at the path of the user's own layer, where the unit begins with one."""
    path, called = module_path(members[0])
    if called is not None:
        return path
    return str(members[0].target) if members[0].op == "call_module" else members[-1].name


def _float_form(node: Node) -> FloatResult:
    """Return the form that a value has in the float model."""
    infos = tensors_of(node)  # of several, as of a recurrent layer, the first is its result
    return FloatResult(infos[0].dtype, infos[0].contiguous) if infos else FloatResult(contiguous=True)


def _named(module: nn.Module, name: str) -> nn.Module:
    """Give a module its path, or the name of the value that it converts, for messages, and set evaluation mode."""
    if isinstance(module, QuantizedModule):
        module.unit = name
    return module.eval()
