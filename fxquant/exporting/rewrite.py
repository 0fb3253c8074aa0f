"""Copies the graph of a converted model, with float operators between quantize and dequantize in place of its units."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.fx import Graph, GraphModule, Node

from fxquant.capture.exported.branches import BRANCHES, Branches
from fxquant.capture.trace_guards import GUARDS
from fxquant.errors import LoweringError
from fxquant.exporting.data_movement import DATA_MOVERS, FLOAT_FUNCTIONS, SPLITS
from fxquant.exporting.qparams import PerTensor, TakenIntegers, operator_of
from fxquant.exporting.table import EXPLICIT, ON_FLOATS
from fxquant.fake_quantize.converted import StaticFakeQuantize, is_calibrated
from fxquant.graph.edit import free_name
from fxquant.graph.module import get_metadata
from fxquant.graph.query import canonical_type, has_hooks, is_shape_query
from fxquant.nn.base import QuantizedModule
from fxquant.nn.fake_quantize import DequantizedWeight, QuantizedWeightLayer


@dataclass(slots=True)
class Rewriting:
    """Copies a graph node by node. Values that are integers stay so; what moves them runs on float values between."""

    model: GraphModule
    graph: Graph = field(default_factory=Graph)
    attributes: dict[str, Any] = field(default_factory=dict)
    """Path -> module or tensor of the new graph."""
    copies: dict[Node, Node] = field(default_factory=dict)
    qparams: dict[Node, PerTensor] = field(default_factory=dict)
    """Node of a quantized value, or of a tuple of such -> its qparams."""
    floats: dict[Node, Node] = field(default_factory=dict)
    """Node of a tuple of quantized values -> the tuple of float values."""
    built: dict[int, nn.Module] = field(default_factory=dict)
    """Identity of a module -> its explicit form."""
    taken: dict[Node, TakenIntegers] = field(default_factory=dict)
    """Input that is given as quantized values -> what looks at its dtype, while that is not yet called."""
    memo: dict[int, Any] = field(default_factory=dict)
    """Of copies: what the model holds twice is held twice by the copy."""

    def add(self, node: Node) -> None:
        """Copy one node, or what stands for it."""
        if self.taken and node.op != "placeholder":  # the last input is copied
            self._look_at_dtypes()
        module = self._get(str(node.target)) if node.op == "call_module" else None
        quantized = [arg for arg in node.all_input_nodes if arg in self.qparams]
        if node.op == "get_attr":
            self.attributes[str(node.target)] = copy.deepcopy(self._get(str(node.target)), self.memo)
        if module is not None:
            self.attributes[str(node.target)] = self._explicit(module, node)
        is_unit = (type(module) in EXPLICIT and type(module) not in ON_FLOATS) or is_converted(module)
        if not quantized or is_unit or node.op == "output" or is_shape_query(node) or node.target in GUARDS:
            self.copies[node] = self.graph.node_copy(node, self._as_it_is)
        else:
            self._on_floats(node, module, quantized[0])
        if isinstance(module, QuantizedModule) and "y" in module._schemes:
            self.qparams[node] = PerTensor(module.qparams("y"))
        taken = (
            (get_metadata(self.model, "integer_inputs") or {}).get(node.target) if node.op == "placeholder" else None
        )
        if taken is not None:
            self.qparams[node] = PerTensor(taken)
            self.taken[node] = TakenIntegers(str(node.target), taken)

    def _look_at_dtypes(self) -> None:
        """Call what refuses other integers, and floats, in the place of quantized values; exported graphs lose it."""
        for node, module in self.taken.items():
            path = free_name(self.model, f"{node.name}_taken")
            self.attributes[path] = module
            self.copies[node] = self.graph.create_node("call_module", path, (self.copies[node],), name=path)
        self.taken.clear()

    def _get(self, path: str) -> Any:
        owner, _, name = path.rpartition(".")
        return getattr(self.model.get_submodule(owner), name)

    def _explicit(self, module: nn.Module, node: Node) -> nn.Module:
        """Build the explicit form of a module, once; a float module is copied."""
        if id(module) not in self.built:
            self.built[id(module)] = self._built(module, node)
        return self.built[id(module)]

    def _built(self, module: nn.Module, node: Node) -> nn.Module:
        build = EXPLICIT.get(type(module))
        if (build is not None or is_converted(module)) and has_hooks(module):
            raise LoweringError(
                "this module has hooks, and no explicit form holds them",
                at=node,
                got=type(module).__name__,
                hint="take the hooks away, or compute what they do in the model's forward",
            )
        if build is not None:
            check_known(module)
            return build(module)
        if isinstance(module, Branches):
            return Branches(*(self._inner(module.get_submodule(name)) for name in BRANCHES))
        quantized = (each for each in module.modules() if isinstance(each, (QuantizedModule, QuantizedWeightLayer)))
        if not is_converted(module) and (inside := next(quantized, None)) is not None:
            raise no_explicit_form(inside, node)
        return self._inner(module)

    def _inner(self, module: nn.Module) -> nn.Module:
        """Rewrite the graph of a model that was converted alone, as branches of ``torch.cond`` and standalone modules
        are; copy what stayed float."""
        if not is_converted(module):
            return copy.deepcopy(module, self.memo)
        assert isinstance(module, GraphModule)
        inner = Rewriting(module)
        for node in module.graph.nodes:
            inner.add(node)
        return GraphModule(inner.attributes, inner.graph)

    def _on_floats(self, node: Node, module: nn.Module | None, source: Node) -> None:
        """Dequantize, run what moves or chooses values on floats, and quantize again: the same integers."""
        function = node.target
        if module is not None:
            known = type(module) in ON_FLOATS or canonical_type(module) in DATA_MOVERS
        else:
            function = FLOAT_FUNCTIONS.get(node.target, node.target)  # type: ignore[arg-type]
            known = function is not node.target or node.target in DATA_MOVERS
        if not known:
            raise no_explicit_form(module if module is not None else node.target, node)
        qparams = self.qparams[source]
        copied = self.graph.node_copy(node, self._as_float)
        copied.target = function
        self.qparams[node] = qparams
        if node.target in SPLITS:
            self.floats[node] = copied
        else:
            self.copies[node] = self._call("quantize_per_tensor", copied, qparams, f"{node.name}_quantize")

    def _as_it_is(self, node: Node) -> Node:
        return self.copies[node] if node in self.copies else self.floats[node]

    def _as_float(self, node: Node) -> Node:
        if node in self.floats:
            return self.floats[node]
        if node not in self.qparams:
            return self.copies[node]
        return self._call("dequantize_per_tensor", self.copies[node], self.qparams[node], f"{node.name}_dequantize")

    def _call(self, name: str, value: Node, qparams: PerTensor, node_name: str) -> Node:
        target = operator_of(name)
        return self.graph.create_node("call_function", target, (value, *qparams.arguments), {}, node_name)


def is_converted(module: nn.Module | None) -> bool:
    """Tell whether a module is a graph that convert gave."""
    return isinstance(module, GraphModule) and get_metadata(module, "quant_form") is not None


def check_known(module: nn.Module) -> None:
    """Refuse a module whose qparams are unknown, as a call of it does.

    Raises:
        CalibrationError: the model was converted without calibration.
    """
    if isinstance(module, QuantizedModule):
        module._check_calibrated()
    elif isinstance(module, DequantizedWeight):
        module.effective_weight(module.weight_scale)
    else:
        for each in module.modules():
            if isinstance(each, StaticFakeQuantize) and not is_calibrated(each.scale):
                each(each.scale)


def no_explicit_form(thing: Any, node: Node) -> LoweringError:
    """Return the error that names a class, or a function, that ``explicit`` does not know."""
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    name = f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"
    what = "module" if isinstance(thing, nn.Module) else "operator on quantized values"
    return LoweringError(
        f"this {what} has no explicit form",
        at=node,
        got=name,
        expected="a class with a row in fxquant.exporting.table.EXPLICIT",
        hint="fxquant.exporting.register_explicit(MyModule, build) adds one",
    )
