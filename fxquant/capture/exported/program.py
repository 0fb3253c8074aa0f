"""From a program of ``torch.export`` to a graph of layers, functions and methods, as tracing makes it of the model."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from fxquant.capture.exported.attention import Attention, attentions
from fxquant.capture.exported.branches import REASON_OF_BRANCHES, Branches, FlatSpec, branches_of
from fxquant.capture.exported.constants import Snapshots, constant_values
from fxquant.capture.exported.guards import conditions_of, write_guards
from fxquant.capture.exported.inline import check_in_evaluation, inlined
from fxquant.capture.exported.layers import layer_call
from fxquant.capture.exported.names import innermost, is_call_of, stack_of
from fxquant.capture.exported.recurrent import RecurrentCall, recurrent_call, state_of
from fxquant.capture.exported.spelling import Same, gives_first, joined_index, spell
from fxquant.capture.exported.structure import write_inputs, write_output, write_stored
from fxquant.graph.module import STACK, NamedGraphModule
from fxquant.graph.query import CALLED, REASON, attribute_at

_COPY = torch.ops.aten.copy_.default


def is_exported(given: object) -> bool:
    """Tell whether something is a program of ``torch.export``, or the module of one."""
    if isinstance(given, torch.export.ExportedProgram):
        return True
    if not isinstance(given, GraphModule) or not hasattr(given.graph._codegen, "pytree_info"):
        return False
    targets = (node.target for node in given.graph.nodes)
    return any(isinstance(target, torch._ops.OpOverload) and target.namespace == "aten" for target in targets)


def import_program(given: Any) -> NamedGraphModule:
    """Return the module that a program was exported of, as a graph that passes read like one that ``trace`` made.

    Layers are at the user's paths again, with the program's own parameters; everything else is a function or a method.
    Operators that nobody writes by hand stay what they are, and in float. Arguments have the names that they had.

    Args:
        given: An ``ExportedProgram``, or what its ``module()`` gave.

    Raises:
        TracingError: it was exported in training mode, or takes or gives what cannot be put back.
    """
    program = given.module() if isinstance(given, torch.export.ExportedProgram) else given
    spec: Any = program.graph._codegen
    check_in_evaluation(program)
    return _Import(program, spec.pytree_info).run()


def import_branch(branch: GraphModule) -> NamedGraphModule:
    """Do the same for the graph of one branch of ``torch.cond``, whose inputs the program has checked."""
    names = [node.name for node in branch.graph.nodes if node.op == "placeholder"]
    results: Any = branch.graph.output_node().args[0]
    return _Import(branch, FlatSpec(names, len(results)), checks_inputs=False).run()


def _is_aten(value: Any) -> bool:
    return isinstance(getattr(value, "target", None), torch._ops.OpOverload)


def _submodule(root: nn.Module, path: str) -> nn.Module:
    """Return the module at a path; where there is none, an empty one is put there."""
    module = root
    for name in path.split(".") if path else ():
        if name not in module._modules:
            module.add_module(name, nn.Module())
        module = module.get_submodule(name)
    return module


def _map(value: Any, node_of: Any) -> Any:
    """Replace the nodes in an argument; what is no list or tuple of torch.fx's own stays of its type."""
    if isinstance(value, Node):
        return node_of(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_map(one, node_of) for one in value)
    if isinstance(value, dict):
        return {key: _map(one, node_of) for key, one in value.items()}
    if isinstance(value, slice):
        return slice(_map(value.start, node_of), _map(value.stop, node_of), _map(value.step, node_of))
    return value


class _Import:
    """One import: the program, and the graph that is made of it."""

    def __init__(self, program: GraphModule, spec: Any, checks_inputs: bool = True) -> None:
        self._program = program
        self._checks_inputs = checks_inputs
        self._spec = spec
        self._source = inlined(program)
        self._state: nn.Module = self._source
        self._graph = Graph()
        self._nodes: dict[Node, Any] = {}
        self._layers: dict[str, tuple[Any, ...]] = {}
        self._constants: dict[int, Node] = {}
        self._holder = nn.Module()
        self._calls: dict[Attention, Node] = {}
        self._recurrent: dict[Node, nn.Module] = {}

    def run(self) -> NamedGraphModule:
        self._write_inputs()
        attention = attentions(self._source)
        constants, snapshots = constant_values(self._source, self._program, attention)
        first_read = {  # a mask that is a constant
            (attention[reader], source): value
            for (reader, source), value in reversed(snapshots.items())
            if reader in attention
        }
        stored: list[tuple[str, Node]] = []
        for node in self._source.graph.nodes:
            if node.op == "placeholder" or node.target == "_guards_fn" or node in constants:
                continue
            if node.op == "output":
                flat = [self._mapped(value, node, snapshots) for value in node.args[0]]
                self._graph.output(write_output(self._graph, flat, self._spec.out_spec))
            elif node in attention:
                self._write_attention(node, attention[node], first_read)
            elif node.target is _COPY and getattr(node.args[0], "op", "") == "get_attr" and not node.users:
                stored.append((str(node.args[0].target), self._mapped(node.args[1], node, snapshots)))
            else:
                self._nodes[node] = self._written(node, snapshots)
        write_stored(self._graph, stored)
        self._erase_unread()
        return self._finished()

    def _write_inputs(self) -> None:
        names = list(self._spec.orig_args)
        leaves = write_inputs(self._graph, names, self._spec.in_spec)
        flat = [node for node in self._source.graph.nodes if node.op == "placeholder"]
        self._nodes |= dict(zip(flat, leaves, strict=True))
        if not self._checks_inputs:
            return
        examples = [node.meta.get("val") for node in flat]
        write_guards(self._graph, names, self._spec.in_spec, leaves, examples, conditions_of(self._program))

    def _mapped(self, value: Any, reader: Node, snapshots: Snapshots) -> Any:
        def node_of(source: Node) -> Any:
            constant = snapshots.get((reader, source))
            return self._nodes[source] if constant is None else self._constant(constant)

        return _map(value, node_of)

    def _constant(self, value: Tensor) -> Node:
        if id(value) not in self._constants:
            name = f"_tensor_constant{len(self._constants)}"
            self._holder.register_buffer(name, value, persistent=False)
            self._constants[id(value)] = self._graph.get_attr(name)
        return self._constants[id(value)]

    def _written(self, node: Node, snapshots: Snapshots) -> Any:
        """Write one node, and return what stands for it."""
        if node.op == "get_attr":
            return self._attribute(node)
        # The first of several results, where the layer gives only that.
        source = node.args[0] if node.args else None
        item = node.args[1] if getattr(node.target, "__name__", "") == "getitem" else None
        if item == 0 and isinstance(source, Node) and gives_first(source) and not _is_aten(self._nodes[source]):
            return self._nodes[source]
        # What has graphs of its own: branches and recurrent layers.
        if (branches := branches_of(node, self._source)) is not None:
            graphs, given = branches
            first, second = (import_branch(graph) for graph in graphs)
            return self._branches(node, Branches(first, second), given, snapshots)
        found = recurrent_call(node, self._source)
        if found is not None and self._layers.get(found.path, found.key) == found.key:
            return self._recurrent_layer(node, found, snapshots)
        if isinstance(item, int) and isinstance(source, Node) and source in self._recurrent:
            return self._result_of(self._recurrent[source], item, self._nodes[source])
        # All else is written as users spell it.
        spelled = spell(node)
        if isinstance(spelled, Same):
            return self._mapped(spelled.value, node, snapshots)
        op, target, args, kwargs = spelled
        args, kwargs = (self._mapped(given, node, snapshots) for given in (args, kwargs))
        if target is operator.getitem and isinstance(source, Node) and len(source.users) == 1:
            args = self._with_slices_joined(args)
        written = self._graph.create_node(op, target, args, kwargs, self._name(node, target))
        self._describe(written, node)
        return self._as_layer(written, node)

    def _with_slices_joined(self, args: Any) -> Any:
        """``x[1:, ::2]`` is two operators in a program, one for each dimension."""
        inner = args[0]
        if not isinstance(inner, Node) or inner.target is not operator.getitem:
            return args
        joined = joined_index(inner.args[1], args[1])
        return args if joined is None else (inner.args[0], joined)

    def _branches(self, node: Node, module: Branches, given: tuple[Any, ...], snapshots: Snapshots) -> Node:
        self._put(node.name, module)
        call = self._graph.create_node("call_module", node.name, self._mapped(given, node, snapshots), {}, node.name)
        self._describe(call, node)
        call.meta |= {CALLED: (node.name, Branches), REASON: REASON_OF_BRANCHES}
        return call

    def _recurrent_layer(self, node: Node, found: RecurrentCall, snapshots: Snapshots) -> Node:
        if found.path not in self._layers:
            self._put(found.path, found.layer)
            self._layers[found.path] = found.key
        args = self._mapped(found.args, node, snapshots)
        call = self._graph.create_node("call_module", found.path, args, {}, found.path.replace(".", "_"))
        self._describe(call, node)
        call.meta[CALLED] = found.path, type(found.layer)
        self._recurrent[node] = found.layer
        return call

    def _result_of(self, layer: nn.Module, item: int, call: Node) -> Node:
        state = state_of(layer, item)
        result = self._graph.call_function(operator.getitem, (call, item if state is None else 1))
        return result if state is None else self._graph.call_function(operator.getitem, (result, state))

    def _attribute(self, node: Node) -> Node:
        path = str(node.target)
        value = attribute_at(self._source, path)
        if isinstance(value, Tensor):
            parent, _, name = path.rpartition(".")
            holder = _submodule(self._holder, parent)
            module = self._program.get_submodule(parent)
            if not hasattr(holder, name):
                if isinstance(value, nn.Parameter):
                    holder.register_parameter(name, value)
                else:
                    persistent = name in module._buffers and name not in module._non_persistent_buffers_set
                    holder.register_buffer(name, value, persistent=persistent)
        return self._graph.get_attr(path)

    def _name(self, node: Node, target: Any) -> str | None:
        """Return the name that tracing gives a call: that of the module, where it is one of ``torch.nn``."""
        inside = innermost(node)
        if inside and is_call_of(target, inside[1]):
            return inside[0].replace(".", "_")
        return target.rstrip("_") if isinstance(target, str) else None

    def _describe(self, written: Node, node: Node) -> None:
        written.meta = {STACK: stack_of(node)}
        if node.stack_trace:
            written.stack_trace = node.stack_trace
        inside = innermost(node)
        if inside and is_call_of(written.target, inside[1]):
            written.meta[CALLED] = inside
            written.meta[STACK] = dict(list(written.meta[STACK].items())[:-1])

    def _as_layer(self, written: Node, node: Node) -> Node:
        first: Any = node.args[0] if node.args else None
        known = first.meta.get("val") if isinstance(first, Node) else None
        second = written.args[0] if written.args else None
        rank = known.dim() if isinstance(known, Tensor) else 0
        found = layer_call(written, node, self._source, rank) if isinstance(second, Node) else None
        if found is None or self._holds_more(found.path, found.layer):
            return written
        if found.path not in self._layers:
            self._put(found.path, found.layer)
            self._layers[found.path] = found.key
        elif self._layers[found.path] != found.key:
            return written
        with self._graph.inserting_before(written):
            name = found.path.replace(".", "_")
            call = self._graph.create_node("call_module", found.path, found.inputs, {}, name)
        inside = innermost(node)
        call.meta = dict(written.meta)
        call.meta[CALLED] = found.path, inside[1] if inside and inside[0] == found.path else type(found.layer)
        self._graph.erase_node(written)
        return call

    def _holds_more(self, path: str, layer: nn.Module) -> bool:
        """Tell whether the user's layer is of a class with tensors of its own, which the graph may read beside."""
        module = self._program.get_submodule(path)
        return any(not hasattr(layer, name) for name in (*module._parameters, *module._buffers, *module._modules))

    def _put(self, path: str, layer: nn.Module) -> None:
        """Put a layer where the holder has, at most, the layer's own tensors."""
        parent, _, name = path.rpartition(".")
        _submodule(self._holder, parent).add_module(name, layer)

    def _write_attention(self, node: Node, found: Attention, constants: Mapping[Any, Tensor]) -> None:
        if node not in found.results:
            return
        if found not in self._calls:
            self._put(found.path, found.module)

            def node_of(source: Node) -> Any:
                constant = constants.get((found, source))
                return self._nodes[source] if constant is None else self._constant(constant)

            args, kwargs = _map((found.args, dict(found.kwargs)), node_of)
            name = found.path.replace(".", "_")
            call = self._graph.create_node("call_module", found.path, args, kwargs, name)
            call.meta = {STACK: stack_of(node), CALLED: (found.path, nn.MultiheadAttention)}
            call.stack_trace = node.stack_trace
            self._calls[found] = call
        self._nodes[node] = self._graph.call_function(operator.getitem, (self._calls[found], found.results[node]))

    def _erase_unread(self) -> None:
        for node in reversed(self._graph.nodes):
            is_size = getattr(node.target, "__module__", "") == "_operator" and node.target is not operator.setitem
            is_question = node.op == "call_method" and node.target in ("size", "stride", "numel")
            is_zeros = node.target is torch.zeros  # first states of a recurrent layer, which makes its own
            if not node.users and (node.op == "get_attr" or is_question or is_size or is_zeros):
                self._graph.erase_node(node)

    def _finished(self) -> NamedGraphModule:
        roots = [kind for node in self._source.graph.nodes for path, kind in stack_of(node).values() if not path]
        name = roots[0].__name__ if roots else type(self._program).__name__
        gm = NamedGraphModule(self._holder, self._graph, name)
        for path, module in gm.named_modules():
            original = self._holder.get_submodule(path)
            module._non_persistent_buffers_set |= original._non_persistent_buffers_set & module._buffers.keys()
        return gm.eval()
