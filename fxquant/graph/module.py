"""The GraphModule of this package: copying and pickling keep the names of its nodes and what is known of them."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.graph import PythonCode
from torch.fx.node import map_arg

from fxquant.errors import FxQuantError, warn
from fxquant.graph.failed_call import explained
from fxquant.graph.failures import in_a_trace, not_scriptable, refuse_tracing, warn_of_no_gradient, wrong_input
from fxquant.graph.generated_source import drop_source_with_code, with_getattr_for_keywords
from fxquant.graph.methods import bound_to_traced
from fxquant.graph.module_state import check_names, unchanged_on_error
from fxquant.graph.own_forwards import copy_own_forwards
from fxquant.graph.packing import holds_integers, pack_modules
from fxquant.graph.query import (
    BY_REQUEST,
    CALLED,
    INPLACE,
    NAMED,
    ONLY_IN_TRAINING,
    ORIGINAL_FUNCTION,
    PRODUCTS,
    REASON,
    REGULARIZER,
    SAME_WHILE_TRAINING,
    VALUE,
    WEIGHT,
    NamedClass,
)
from fxquant.graph.state_format import check_metadata, state_metadata
from fxquant.graph.state_values import check_entries, naming_other_shapes, with_dtypes_of_qparams
from fxquant.graph.switches import own_switch

_SAVED_META = (
    *(VALUE, CALLED, REASON, BY_REQUEST, NAMED, ORIGINAL_FUNCTION, WEIGHT, INPLACE, REGULARIZER, ONLY_IN_TRAINING),
    *(PRODUCTS, SAME_WHILE_TRAINING, "stack_trace"),
)
"""What of ``node.meta`` is pickled: plain data of this package, and the user's lines."""

STACK = "nn_module_stack"
"""Key of ``node.meta``, torch's own: the modules that called each other when the node was traced."""


ENGINE = "fxquant.runtime"
"""Attribute of a converted module: what runs its graph, a ``ProgramEngine`` of ``runtime/program_engine.py``. When the
graph has changed it is told to ``invalidate``, and its ``wrap`` makes the model's ``forward`` of the generated one."""

METADATA = "fxquant.metadata"
"""Attribute of a model that was converted or prepared for training: what is known of it, by name.

No attribute that code can write has a name with a dot, so whatever the user's model holds stays what it is. What the
model has no name of its own for is found as an attribute: ``int8.quant_plan``.
"""

USERS_CLASS = "fxquant.users_class"
"""Attribute of a traced module: the class of the model that it was made from, as a ``UsersClass``."""


def set_metadata(model: nn.Module, **facts: Any) -> None:
    """Keep facts about a model beside its own attributes."""
    vars(model).setdefault(METADATA, {}).update(facts)


def get_metadata(model: object, name: str) -> Any:
    """Return the fact that ``set_metadata`` stored under a name, or None."""
    return getattr(model, "__dict__", {}).get(METADATA, {}).get(name)


class NamedGraphModule(GraphModule):
    """A ``torch.fx.GraphModule`` whose copies are what it is.

    torch's own, pickled, is generated code that is traced again on loading, with other node names and no metadata;
    copied, it loses its class's name, its hooks and its plain attributes. Plans refer to nodes by name, so all of that
    is kept here. What the class of the user's model has (methods, properties, constants) is found here as well, where
    it does not hide what a module has: ``model.predict(x)`` that calls ``self(x)`` runs this graph.
    """

    def __init__(self, root: Any, graph: Graph, class_name: str = "GraphModule") -> None:
        super().__init__(root, graph, class_name)
        for path, module in self.named_modules():  # before torch 2.14 all buffers become a part of the state
            with suppress(AttributeError):
                hidden = root.get_submodule(path)._non_persistent_buffers_set
                module._non_persistent_buffers_set |= hidden & module._buffers.keys()

    def __getattr__(self, name: str) -> Any:
        modules = self.__dict__.get("_modules", {})
        if name in modules:  # first, since generated code asks for little else
            return modules[name]
        try:
            return super().__getattr__(name)
        except AttributeError:
            users = self.__dict__.get(USERS_CLASS)
            kind = None if users is None or name.startswith("__") else users.find()
            found = inspect.getattr_static(kind, name, None)
            if found is None and name in self.__dict__.get(METADATA, {}):
                return get_metadata(self, name)
            if kind is None or found is None:
                raise
        return bound_to_traced(found, self, name, kind)

    def recompile(self) -> PythonCode:
        """Generate the code of the graph; an engine, where there is one, runs it in its own way from then on."""
        with with_getattr_for_keywords(self.graph):
            code = super().recompile()
        kind = type(self)
        drop_source_with_code(kind.forward)
        if (engine := self.__dict__.get(ENGINE)) is not None:
            engine.invalidate()
            kind.forward = _with_own_code(engine.wrap(kind.forward))
        kind.forward = _with_own_code(_with_input_errors(kind.forward))
        if engine is not None:
            kind.forward = _with_own_code(engine.shortcut(kind.forward, _explained))
        return code

    def __prepare_scriptable__(self) -> NamedGraphModule:
        """Called by ``torch.jit.script``."""
        if get_metadata(self, "quant_plan") is not None:
            raise not_scriptable(self, "torch.jit.script")
        return self

    def apply(self, fn: Callable[[nn.Module], Any]) -> NamedGraphModule:
        """Call a function with each module, as any module does; a switch of torch.ao is that of this package here."""
        return super().apply(own_switch(fn))

    def train(self, mode: bool = True) -> NamedGraphModule:
        """Set the mode, as of any module, with a warning where integers are to train, which they cannot. Modules that
        ``train`` of the user's model keeps in evaluation mode stay in it.
        """
        if mode and not self.training and holds_integers(self):
            warn(
                "an int8 model does not train: only what stayed float in it is in training mode now",
                hint="prepare_qat makes a model that trains as it will be quantized; eval() undoes this",
            )
        super().train(mode)
        for path in get_metadata(self, "in_evaluation") or ():
            self.get_submodule(path).training = False
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load a state dict as ``torch.nn.Module.load_state_dict`` does, but all of it or nothing.

        Raises:
            StateError: names or schemes differ; the message has the first unit that does. Or an entry is no tensor, has
                another shape, numbers of another kind or values that no such model has; the message names the key.
        """
        check_names(self, state_dict, strict=strict, joins=get_metadata(self, "joins") or {})
        if assign:  # copying would cast, once the values are known to fit
            check_entries(self, state_dict)
            state_dict = with_dtypes_of_qparams(self, state_dict)
        with unchanged_on_error(self), naming_other_shapes(self, state_dict):
            found = super().load_state_dict(state_dict, strict, assign)
        pack_modules(self)
        return found

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if (metadata := getattr(destination, "_metadata", None)) is not None:
            metadata[prefix[:-1]].update(state_metadata(self))

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *args: Any) -> None:
        check_metadata(self, local_metadata)
        check_entries(self, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> NamedGraphModule:
        super()._apply(fn, recurse)
        pack_modules(self)
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> NamedGraphModule:
        state = copy.deepcopy(_state(self), memo)
        copy_own_forwards(self, memo)
        return _restore(type(self).__name__, state, copy.deepcopy(self.graph, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (type(self).__name__, _state(self), tuple(_record(node) for node in self.graph.nodes))


def _with_own_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """Copy a function with a code object of its own, since ``torch.compile`` counts recompilations per code object."""
    given: Any = function
    own = types.FunctionType(given.__code__.replace(), given.__globals__, given.__name__, None, given.__closure__)
    return functools.wraps(given.__wrapped__)(own)


def _with_input_errors(forward: Callable[..., Any]) -> Callable[..., Any]:
    """A quantized model says which input is wrong where a call fails, and warns where no gradient can flow."""

    @functools.wraps(forward)
    def run(self: NamedGraphModule, *args: Any, **kwargs: Any) -> Any:
        if get_metadata(self, "quant_plan") is None or torch.compiler.is_compiling():
            return forward(self, *args, **kwargs)
        if torch.jit.is_tracing():
            refuse_tracing(self, observes=get_metadata(self, "preparation") is not None)
        asked = False
        for value in args:
            if isinstance(value, Tensor):
                if value.is_meta and (error := wrong_input(self, args, kwargs, _taken(self))) is not None:
                    raise error
                asked = asked or value.requires_grad
        try:
            result = forward(self, *args, **kwargs)
        except Exception as error:
            if (other := _explained(self, args, kwargs, error)) is error:
                raise
            raise other from error
        if asked and not get_metadata(self, "is_branch"):  # the model around a branch looks at its own inputs
            warn_of_no_gradient(self, args, result)
        return result

    return run


def _explained(gm: NamedGraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception:
    """Return the error that says which input of a call is wrong, or which node fails on it; else the error itself."""
    if (in_trace := in_a_trace(gm, args, kwargs, error)) is not None:
        return in_trace
    wrong = None if isinstance(error, FxQuantError) else wrong_input(gm, args, kwargs, _taken(gm))
    return explained(gm, args, kwargs, error) if wrong is None else wrong


def _taken(gm: NamedGraphModule) -> tuple[str, ...]:
    """Return the names of the arguments that a model takes as quantized values."""
    return tuple(get_metadata(gm, "integer_inputs") or ())


def _state(gm: GraphModule) -> dict[str, Any]:
    """Return all but the graph and what is generated from it."""
    return {name: value for name, value in gm.__dict__.items() if name not in ("_graph", "_code", "_lineno_map")}


def _restore(class_name: str, state: Mapping[str, Any], graph: Graph) -> NamedGraphModule:
    gm = NamedGraphModule.__new__(NamedGraphModule)
    nn.Module.__init__(gm)
    gm.__dict__.update(state)
    type(gm).__name__ = class_name
    gm.graph = graph
    pack_modules(gm)
    return gm


@dataclass(frozen=True, slots=True)
class _NodeName:
    """Stands for a node in the arguments of another."""

    name: str


@dataclass(frozen=True, slots=True)
class _FunctionPath:
    """Stands for a function that pickle does not find under its own name, as ``F.max_pool2d``."""

    module: str
    name: str


@dataclass(frozen=True, slots=True)
class _Record:
    """A node as plain data."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    type: Any
    meta: dict[str, Any]


def _record(node: Node) -> _Record:
    return _Record(
        node.op,
        node.name,
        _portable(node.target),
        _with_names(node.args),
        _with_names(node.kwargs),
        node.type,
        {key: node.meta[key] for key in _SAVED_META if key in node.meta} | _module_called(node) | _modules_around(node),
    )


def _module_called(node: Node) -> dict[str, Any]:
    """Path and type of the module of the user's that the node calls: of a type that pickle cannot find, its name.

    ``torch.fx`` makes a class of its own for each graph, inside a function: ``GraphModule`` stands for these.
    """
    path, kind = node.meta.get(CALLED, ("", None))
    if kind is None or "<locals>" not in getattr(kind, "__qualname__", ""):
        return {}
    return {CALLED: (path, GraphModule if issubclass(kind, GraphModule) else NamedClass(_name_of(kind)))}


def _modules_around(node: Node) -> dict[str, Any]:
    """Paths of the modules in whose ``forward`` the node stands, and names of their types, as exported programs have
    them: the types may be none that pickle can find."""
    stack = node.meta.get(STACK) or {}
    return {STACK: {key: (path, _name_of(kind)) for key, (path, kind) in stack.items()}} if stack else {}


def _name_of(kind: type | NamedClass | str) -> str:
    if isinstance(kind, NamedClass):
        return kind.path
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__qualname__}"


def _with_names(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: cast(Any, _NodeName(node.name)))


def _portable(target: Any) -> Any:
    """Functions whose ``__qualname__`` leads nowhere are looked up by ``__module__`` and ``__name__``."""
    if isinstance(target, str) or "<locals>" not in getattr(target, "__qualname__", ""):
        return target
    for module in (getattr(target, "__module__", ""), "torch.nn.functional"):
        for name, value in vars(importlib.import_module(module)).items() if module else ():
            if value is target:
                return _FunctionPath(module, name)
    return target


def _unpickle(class_name: str, state: Mapping[str, Any], records: tuple[_Record, ...]) -> NamedGraphModule:
    graph = Graph()
    nodes: dict[str, Node] = {}

    def real(value: Any) -> Any:
        if isinstance(value, _NodeName):
            return nodes[value.name]
        if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
            return type(value)(real(item) for item in value)
        if isinstance(value, tuple):
            return type(value)(*(real(item) for item in value))
        if isinstance(value, dict):
            return {key: real(item) for key, item in value.items()}
        if isinstance(value, slice):
            return slice(real(value.start), real(value.stop), real(value.step))
        return value

    # Make the nodes anew, in their order: arguments are nodes that were made before.
    for record in records:
        target = record.target
        if isinstance(target, _FunctionPath):
            target = getattr(importlib.import_module(target.module), target.name)
        node = graph.create_node(record.op, target, real(record.args), real(record.kwargs), record.name, record.type)
        node.name = record.name
        node.meta = dict(record.meta)
        nodes[record.name] = node
    return _restore(class_name, state, graph)
