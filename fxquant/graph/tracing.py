"""From a module to a graph: what stays whole, where each node comes from, and what to do where tracing fails."""

from __future__ import annotations

import copy
import linecache
import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node, Proxy, Tracer
from torch.nn.utils import parametrize

from fxquant.errors import InputError, TracingError, UnknownNameError, is_library_file
from fxquant.graph.inputs import bind_example
from fxquant.graph.query import BY_REQUEST, CALLED, NAMED, REASON, canonical_type, has_hooks
from fxquant.graph.shapes import record_values
from fxquant.graph.untraceable import StateAssignmentError, Untraceable, trace_what_can_be
from fxquant.registry import did_you_mean

LeafModules = Sequence[type[nn.Module] | str]

_ROOT_HOOKS = (
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
)


def trace(
    model: nn.Module,
    *,
    example_args: tuple[Any, ...],
    example_kwargs: Mapping[str, Any] | None = None,
    leaf_modules: LeafModules = (),
    leaf_types: Sequence[type[nn.Module]] = (),
    keep_untraceable: bool = False,
) -> GraphModule:
    """Trace a copy of ``model``, run the example through it once, and record what is known of every value.

    Stays whole, as one ``call_module`` node: a ``torch.nn`` module (containers aside), a subclass of one that computes
    the same, and what ``leaf_modules`` and ``leaf_types`` name. Names of modules, parameters and buffers are the
    user's; modules and parameters that ``forward`` never uses are left out. An argument whose example (or default)
    is None, a bool or a str is fixed to that value, because code branches on it; the traced module refuses another one.
    Parametrized weights become plain ones of the same value.
    Hooks of a module that is traced through run once, while tracing: what they compute becomes part of the graph.

    Args:
        model: Any module, also one that is traced already (whose graph is then taken as it is). It is not changed.
        example_args: Positional inputs.
        example_kwargs: Keyword inputs.
        leaf_modules: Types (subclasses too) or qualified names kept whole and in float.
        leaf_types: Types (no subclasses) that patterns name: kept whole.
        keep_untraceable: Keep the smallest submodules that cannot be traced whole and in float, with a warning.

    Returns:
        A GraphModule with the name of the model's class. ``node.meta`` holds what ``graph.query`` asks for.

    Raises:
        InputError: the example does not fit the signature of ``forward``, or does not run.
        UnknownNameError: ``leaf_modules`` names what the model does not have.
        TracingError: the model cannot be copied or traced; the message names the submodule and the user's line.
    """
    if isinstance(model, torch.jit.ScriptModule):
        raise TracingError(
            "a scripted model cannot be traced",
            got=type(model).__name__,
            expected="the torch.nn.Module that it was made from",
        )
    kwargs = dict(example_kwargs or {})
    bound = bind_example(model, example_args, kwargs)
    _check_leaf_modules(model, leaf_modules)
    own = _copy(model)
    _bake_parametrizations(own)
    kept: tuple[Untraceable, ...] = ()
    if isinstance(own, GraphModule):
        gm = own
    else:
        _, graph, kept = trace_what_can_be(
            lambda paths: QuantTracer((*leaf_modules, *paths), leaf_types, bound),
            own,
            keep_untraceable=keep_untraceable,
        )
        gm = GraphModule(own, graph, type(model).__name__)
        _carry_over(own, gm)
    _mark_module_calls(gm, leaf_modules, leaf_types, {one.path: one.reason for one in kept})
    record_values(gm, example_args, kwargs)
    for one in kept:
        one.warn()
    return gm


class QuantTracer(Tracer):
    """A tracer that keeps in-place operators in place, parameters and buffers by name, and the user's lines."""

    proxy_buffer_attributes = True

    def __init__(
        self,
        leaf_modules: LeafModules = (),
        leaf_types: Sequence[type[nn.Module]] = (),
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        """``bound``: argument name -> example value, to fix those that code branches on."""
        super().__init__()
        self._leaf_names = {item for item in leaf_modules if isinstance(item, str)}
        self._leaf_classes = tuple(item for item in leaf_modules if not isinstance(item, str))
        self._leaf_types = set(leaf_types)
        self._fixed = {name: value for name, value in (bound or {}).items() if type(value) in (NoneType, bool, str)}
        self._names: dict[int, str] = {}
        self.failed: tuple[BaseException, str, type[nn.Module]] | None = None
        """The last error that left a submodule: (error, path of the innermost module it left, its type)."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Whether the call of ``m`` becomes one node."""
        if module_qualified_name in self._leaf_names or isinstance(m, self._leaf_classes):
            return True
        if type(m) in self._leaf_types:
            return True
        kind = canonical_type(m)
        if kind is not None:
            return not issubclass(kind, nn.Sequential)
        return super().is_leaf_module(m, module_qualified_name) and type(m).__module__.startswith("torch.nn.")

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Trace the call of ``m``, and remember where an error came from."""
        depth = len(self.module_stack)
        try:
            with no_traced_state(m):
                return super().call_module(m, forward, args, kwargs)
        except Exception as error:
            if self.failed is None or self.failed[0] is not error:
                self.failed = (error, self.path_of_module(m), type(m))
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            raise

    def proxy(self, node: Node) -> Proxy:
        """Wrap ``node`` in a proxy that records ``x += y`` as what it is."""
        return TensorProxy(node, self)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Give parameters and buffers as proxies whose shape is known."""
        if not isinstance(attr_val, Tensor):
            return attr_val
        name = self._names.get(id(attr_val))
        if name is None:
            return attr_val
        if name not in parameter_proxy_cache:
            parameter_proxy_cache[name] = self.create_proxy(
                "get_attr", name, (), {}, proxy_factory_fn=lambda node: KnownTensorProxy(node, self, attr_val)
            )
        return parameter_proxy_cache[name]

    def trace(self, root: nn.Module | Callable[..., Any], concrete_args: dict[str, Any] | None = None) -> Graph:
        """As ``Tracer.trace``."""
        if isinstance(root, nn.Module):
            named = (*root.named_parameters(), *root.named_buffers())
            self._names = {id(tensor): name for name, tensor in named}
            with no_traced_state(root):
                return super().trace(root, concrete_args)
        return super().trace(root, concrete_args)

    def _proxy_placeholder(self, name: str, concrete_args: Any, sig: Any, fn_for_analysis: Any) -> Any:
        # concrete_args would do this too, but renames the argument, so that no keyword call works any more.
        proxy = super()._proxy_placeholder(name, None, sig, fn_for_analysis)
        if name not in self._fixed:
            return proxy
        value = self._fixed[name]
        self.create_proxy("call_function", require_value, (proxy, value, name), {})
        return value

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Create a node that knows the user's lines which made it."""
        # torch's own recording of stack traces takes seconds, once, to import what it needs.
        node = super().create_node(*args, **kwargs)
        node.stack_trace = _user_stack(sys._getframe(1))
        return node


def _user_stack(frame: FrameType | None) -> str:
    """The user's frames below the call of ``QuantTracer.trace``, innermost last, as Python prints them."""
    lines: list[str] = []
    while frame is not None and frame.f_code is not QuantTracer.trace.__code__:
        code, number = frame.f_code, frame.f_lineno
        if not is_library_file(code.co_filename):
            source = linecache.getline(code.co_filename, number, frame.f_globals).strip()
            lines.append(f'File "{code.co_filename}", line {number}, in {code.co_name}\n    {source}')
        frame = frame.f_back
    return "\n  ".join(reversed(lines))


@contextmanager
def no_traced_state(module: nn.Module) -> Iterator[None]:
    """Find out whether ``module`` is given a traced value to keep; its state is then put back.

    Raises:
        StateAssignmentError: its forward assigned to one of its attributes or buffers.
    """
    stores = (vars(module), module._buffers, module._parameters)
    before = tuple(dict(store) for store in stores)
    yield
    changed = [name for store in stores for name, value in store.items() if isinstance(value, Proxy)]
    for store, values in zip(stores, before, strict=True):
        for name in changed:
            if name in values:
                store[name] = values[name]
            else:
                store.pop(name, None)
    if changed:
        raise StateAssignmentError(module, changed[0])


def require_value(value: Any, expected: Any, name: str) -> None:
    """Stand in a graph for an argument that tracing fixed to one value.

    Raises:
        InputError: the argument has another value.
    """
    if type(value) is not type(expected) or value != expected:
        raise InputError(
            f"the argument {name!r} was fixed when the model was prepared",
            got=repr(value),
            expected=repr(expected),
            hint=f"give {name!r} that value in the example inputs, and prepare again",
        )


class TensorProxy(Proxy):
    """A proxy that also records in-place operators and item assignment.

    Without them Python falls back from ``x += y`` to ``x = x + y``, and other names of ``x`` miss the change.
    """

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tracer.create_proxy("call_function", operator.setitem, (self, key, value), {})


def _record_in_place(name: str) -> Callable[[Any, Any], Any]:
    function = getattr(operator, f"i{name}")

    def method(self: Proxy, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {}, name=name)

    return method


_OPERATORS = "add sub mul matmul truediv floordiv mod pow and or xor lshift rshift"
for _name in _OPERATORS.split():
    setattr(TensorProxy, f"__i{_name}__", _record_in_place(_name))


class KnownTensorProxy(TensorProxy):
    """A parameter or buffer: questions about its shape have an answer while tracing."""

    def __init__(self, node: Node, tracer: Tracer, tensor: Tensor) -> None:
        super().__init__(node, tracer)
        self.known = tensor

    @property
    def shape(self) -> torch.Size:
        return self.known.shape

    @property
    def ndim(self) -> int:
        return self.known.ndim

    @property
    def dtype(self) -> torch.dtype:
        return self.known.dtype

    def size(self, dim: int | None = None) -> Any:
        return self.known.size() if dim is None else self.known.size(dim)

    def dim(self) -> int:
        return self.known.dim()

    def numel(self) -> int:
        return self.known.numel()

    def __len__(self) -> int:
        return len(self.known)


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:
        culprit = _uncopiable(model)
        raise TracingError(
            "the model cannot be copied (copy.deepcopy fails)" + (f" because of {culprit}" if culprit else ""),
            got=f"{type(error).__name__}: {error}",
            expected="a model that copy.deepcopy can copy: your own model is never changed, so a copy is needed",
            hint="delete or replace that attribute first, or give its class a __deepcopy__" if culprit else "",
        ) from error


def _bake_parametrizations(model: nn.Module) -> None:
    """A weight that ``torch.nn.utils.parametrize`` computes anew for each call becomes a plain one of that value.

    ``remove_parametrizations`` would do, but it edits the class, which the user's own module shares with the copy.
    """
    for module in [module for module in model.modules() if parametrize.is_parametrized(module)]:
        parametrizations: Any = module.parametrizations
        values = {name: getattr(module, name).detach().clone() for name in parametrizations}
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module.parametrizations
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value))


def _uncopiable(model: nn.Module) -> str | None:
    """A phrase that names the first attribute that cannot be copied by itself."""
    for path, module in model.named_modules():
        for name, value in {**module._parameters, **module._buffers, **vars(module)}.items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            try:
                copy.deepcopy(value)
            except Exception:
                where = f"{path}.{name}" if path else name
                return f"its attribute {where!r}, a {type(value).__name__}"
    return None


def _check_leaf_modules(model: nn.Module, leaf_modules: LeafModules) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    for item in leaf_modules:
        if isinstance(item, str) and item not in modules:
            raise UnknownNameError(
                "leaf_modules names a module that the model does not have",
                got=repr(item),
                expected="the qualified name of a submodule, as model.named_modules() gives it",
                hint=did_you_mean(item, [name for name in modules if name]),
            )
        if not isinstance(item, (str, type)):
            raise InputError(
                "leaf_modules holds something that is neither a type nor a name",
                got=repr(item),
                expected='module types or qualified names: leaf_modules=(Gate, "layer1.gate")',
            )
        if isinstance(item, type) and not any(isinstance(module, item) for module in modules.values()):
            types = {type(module).__name__: module for module in modules.values()}
            raise UnknownNameError(
                "leaf_modules names a type that the model does not have",
                got=item.__name__,
                expected="the type of a submodule",
                hint=did_you_mean(item.__name__, types),
            )


def _carry_over(model: nn.Module, gm: GraphModule) -> None:
    """What GraphModule forgets: hooks of the model, training flags, and which tensors are no part of the state."""
    for name in _ROOT_HOOKS:
        if name in vars(model):
            setattr(gm, name, vars(model)[name])
    originals = dict(model.named_modules(remove_duplicate=False))
    for path, module in gm.named_modules(remove_duplicate=False):
        original = originals.get(path)
        if original is None or original is module:
            continue
        module.training = original.training
        for name in module._buffers:
            if name not in original._buffers:  # a plain tensor attribute, which GraphModule makes a buffer
                module._non_persistent_buffers_set.add(name)


def _mark_module_calls(
    gm: GraphModule,
    leaf_modules: LeafModules,
    leaf_types: Sequence[type[nn.Module]],
    untraceable: Mapping[str, str],
) -> None:
    classes = tuple(item for item in leaf_modules if not isinstance(item, str))
    for node in gm.graph.nodes:
        if node.op != "call_module":
            continue
        module = gm.get_submodule(node.target)
        node.meta.setdefault(CALLED, (node.target, type(module)))
        if node.target in leaf_modules or isinstance(module, classes):
            node.meta[REASON] = "kept whole and in float by leaf_modules"
            node.meta[BY_REQUEST] = True
        elif node.target in untraceable:
            node.meta[REASON] = untraceable[node.target]
        elif has_hooks(module):
            node.meta[REASON] = "it has hooks, which only a float module runs"
        if type(module) in leaf_types and getattr(nn, type(module).__name__, None) is not type(module):
            node.meta[NAMED] = True
