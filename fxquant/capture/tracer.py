"""Runs a forward on proxies: what stays whole, where each node comes from, in-place operators as what they are."""

from __future__ import annotations

import functools
import itertools
import operator
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import FrameType, NoneType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.fx import Graph, Node, Proxy, Tracer
from torch.utils import _pytree as pytree

from fxquant.capture.attributes import (
    Attributes,
    Change,
    NeverRead,
    StateAssignmentError,
    changes_in_place,
    holds_proxy,
    is_from_sizes,
    no_traced_attributes,
    store_at_the_end,
)
from fxquant.capture.factory_tensors import FactoryTensors, TracedFactories
from fxquant.capture.hooks import LostHooks, watched_hooks
from fxquant.capture.leaf_modules import LeafModules, LeafPolicy
from fxquant.capture.modes import (
    EVALUATION,
    asks_for_training,
    gave_back,
    last_of,
    marked_modes,
    note_idle,
    plain_modes,
    without_marks,
)
from fxquant.capture.patches import PatchedNames, traceable_transformers
from fxquant.capture.proxies import KnownTensorProxy, TensorProxy, on_example, proxies_in, remade, with_items
from fxquant.capture.trace_guards import (
    instruction,
    is_fixed,
    read_after_its_trace,
    require_answer,
    require_given,
    require_value,
    source_of_answer,
    user_line,
    user_stack,
)
from fxquant.graph.edit import erase_behind, gather_placeholders
from fxquant.graph.inputs import called_by_name, describe_value, is_decorated, is_given, signature_of, spelled
from fxquant.graph.query import SAME_WHILE_TRAINING, VALUE, attribute_at, described, has_hooks, info_of, own_forward
from fxquant.graph.shapes import run_on_example, unchanged_state

FIXED = (NoneType, bool, str)
"""Inputs of these types are fixed to the example's: code branches on them."""

_JOINS = frozenset(
    getattr(torch, name)
    for name in ["cat", "concat", "concatenate", "stack", "hstack", "vstack", "row_stack", "dstack", "column_stack"]
)
"""What takes a sequence of tensors, which may be what another call gave."""

_NUMBERS = itertools.count(1)
_ONE_AT_A_TIME = threading.RLock()
"""torch.fx traces by patching what all threads use."""


class QuantTracer(Tracer):
    """A tracer that keeps in-place operators in place, parameters and buffers by name, and the user's lines.

    It runs the example along with the trace: every node knows what its value was, and code may branch on shapes.
    """

    proxy_buffer_attributes = True

    def __init__(
        self,
        leaf_modules: LeafModules = (),
        leaf_types: Sequence[type[nn.Module]] = (),
        bound: Mapping[str, Any] | None = None,
        trace_factories: bool = False,
        marks_training_flag: bool = False,
        left_out: Mapping[str, Any] | None = None,
    ) -> None:
        """Make one.

        Args:
            leaf_modules: Types (subclasses too) or qualified names of what stays whole.
            leaf_types: Types (no subclasses) of what stays whole.
            bound: Argument name -> example value; None: there is no example, so nothing is run.
            trace_factories: Trace ``torch.zeros`` and its like, too, in place of taking what they give as constants.
            marks_training_flag: Tell calls that take ``self.training`` from those that say ``training=False``.
            left_out: Without an example: argument name -> the default that it is fixed to.
        """
        super().__init__()
        # What is asked for.
        self._leaf_policy = LeafPolicy(leaf_modules, leaf_types)
        self._bound = bound
        self._fixed = {name: value for name, value in (bound or left_out or {}).items() if type(value) in FIXED}
        self._names: dict[int, str] = {}
        self._patches = PatchedNames(self)
        self._running, self._thread = False, threading.get_ident()
        self._factory_tensors = FactoryTensors(self)
        self.marks_training_flag = marks_training_flag
        self._factories = TracedFactories(self) if trace_factories else nullcontext()
        # What happens during a trace.
        self.number, self.finished, self.result = next(_NUMBERS), False, None  # the result is that of the example
        self._answered: set[tuple[Any, ...]] = set()
        self._asked: list[tuple[TensorProxy, tuple[int, int], str]] = []
        """Indices that C code asked for: proxy, the instruction that ran it, the user's line."""
        self.failed: tuple[BaseException, str, type[nn.Module]] | None = None
        """The last error that left a submodule: (error, path of the innermost module it left, its type)."""
        self.left: list[Change] = []
        """What the forward changed in attributes; all is put back when the trace ends."""
        self.lost_hooks = LostHooks()
        self._whole: list[nn.Module] = []
        """Modules that became one node: what they keep is their own."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Tell whether the call of ``m`` becomes one node."""
        return self._leaf_policy.is_leaf(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Trace the call of ``m``, and remember where an error came from. Other threads run their modules."""
        if self._running or threading.get_ident() != self._thread:
            return forward(*args, **kwargs)
        depth, last = len(self.module_stack), last_of(self.graph)
        if self.is_leaf_module(m, self.path_of_module(m)):
            self._whole.append(m)
        else:
            self._patches.patch_isinstance(m)
        try:
            with no_traced_attributes(m), self._watched(m), EVALUATION.inside(m, (*args, *kwargs.values())):
                result = super().call_module(m, forward, args, kwargs)
            if asks_for_training(m) and gave_back(result, args, kwargs, last):
                return note_idle(self, "call_module", self.path_of_module(m), args, kwargs)
            return result
        except Exception as error:
            if self.failed is None or self.failed[0] is not error:
                self.failed = (error, self.path_of_module(m), type(m))
            while len(self.module_stack) > depth:
                self.module_stack.popitem()
            raise

    def _watched(self, m: nn.Module) -> AbstractContextManager[None]:
        if self._whole[-1:] == [m] or not has_hooks(m):
            return nullcontext()
        return watched_hooks(m, self.path_of_module(m), self.lost_hooks)

    def proxy(self, node: Node) -> Proxy:
        """Wrap ``node`` in a proxy that records ``x += y`` as what it is."""
        return TensorProxy(node, self)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Give parameters and buffers as proxies whose shape is known."""
        if self._running or threading.get_ident() != self._thread or not isinstance(attr_val, Tensor):
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
        """Trace a model. Buffers that its forward assigns to are assigned to at the end of the graph."""
        with _ONE_AT_A_TIME:
            if not isinstance(root, nn.Module):
                return super().trace(root, concrete_args)
            self._names = {id(tensor): name for name, tensor in (*root.named_parameters(), *root.named_buffers())}
            before = [(module, dict(module._buffers)) for module in root.modules()]
            try:
                graph = self._trace(root, concrete_args)
                assigned = [
                    (f"{path}.{name}" if path else name, value.node)
                    for path, module in root.named_modules()
                    for name, value in module._buffers.items()
                    if isinstance(value, Proxy)
                ]
            finally:
                self.finished = True
                self._factory_tensors.close()
                for module, buffers in before:
                    module._buffers.update(buffers)
            for path, value in assigned:
                if not changes_in_place(value, path):
                    store_at_the_end(graph, path, value)
            # torch.fx puts inputs by keyword before *args
            gather_placeholders(graph, list(signature_of(root).parameters))
            return graph

    def _trace(self, root: nn.Module, concrete_args: dict[str, Any] | None) -> Graph:
        if self._bound is None:
            with traceable_transformers(), no_traced_attributes(root):
                return super().trace(root, concrete_args)
        self._bound = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), dict(self._bound))
        with (
            torch.no_grad(),
            unchanged_state(root),
            traceable_transformers(),
            self._patches.active(),
            self._factories,
            no_traced_attributes(root),
            marked_modes(root) if self.marks_training_flag else nullcontext(),
        ):
            self._patches.patch_isinstance(own_forward(root) or type(root).forward)
            attributes = Attributes(root)
            try:
                graph = super().trace(root, concrete_args)
                self._factory_tensors.close()
                self._note_changes(attributes.changes(self.tensor_attrs.values()))
                return graph
            finally:
                self._factory_tensors.close()
                attributes.put_back(self.tensor_attrs.values())

    def _note_changes(self, changes: list[Change]) -> None:
        whole = {inner for module in self._whole for inner in module.modules()}
        for change in changes:
            if change.module in whole:
                continue
            if holds_proxy(change.after) and all(is_from_sizes(proxy.node) for proxy in proxies_in(change.after)):
                change = replace(change, after=on_example(change.after), of_sizes=True)
            elif holds_proxy(change.after) and not change.was_tensor:
                change = replace(change, after=NeverRead())
            elif holds_proxy(change.after):
                error = StateAssignmentError(change.module, change.name)
                self.failed = (error, change.path, type(change.module)) if change.path else None
                raise error
            self.left.append(change)

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """Make the inputs of the graph, and call a decorated forward by its arguments' names, which torch.fx cannot."""
        if not is_module or (self._bound is None and own_forward(self.root) is None):
            return super().create_args_for_root(root_fn, is_module, concrete_args)
        if is_decorated(root_fn, self.root):
            function, args = called_by_name(root_fn, self.root, self._proxy_placeholder)
        else:
            function, args = super().create_args_for_root(root_fn, is_module, concrete_args)

        @functools.wraps(function)  # torch.fx reads the annotations
        def traced(*args: Any) -> Any:
            result = function(*args)
            self.result = on_example(result)
            return result

        return traced, args

    def _proxy_placeholder(self, name: str, concrete_args: Any, sig: Any, fn_for_analysis: Any) -> Any:
        # concrete_args would do this too, but renames the argument, so that no keyword call works any more.
        proxy = super()._proxy_placeholder(name, None, sig, fn_for_analysis)
        if name not in self._fixed:
            if self._bound is not None and sig.parameters[name.lstrip("*")].default is None:
                example = describe_value(self._bound[name])
                self.create_proxy("call_function", require_given, (proxy, example, name), {})
            return proxy
        value = self._fixed[name]
        self.create_proxy("call_function", require_value, (proxy, value, name), {})
        return value

    def create_node(self, *args: Any, **kwargs: Any) -> Node:
        """Create a node that knows the user's lines which made it."""
        self._write_guards()
        # torch's own recording of stack traces takes seconds, once, to import what it needs.
        node = super().create_node(*args, **kwargs)
        node.stack_trace = user_stack(sys._getframe(1), QuantTracer.trace.__code__)
        if self._bound is not None and node.op == "get_attr":
            node.meta[VALUE] = self._untraced(lambda: info_of(attribute_at(self.root, str(node.target))))
        elif self._bound is not None and node.op == "output":
            node.meta[VALUE] = described(node.args[0])
        return node

    def create_arg(self, a: Any) -> Any:
        """Convert an argument, without asking a proxy whether it is a parameter. Containers keep their classes."""
        if type(a) is torch.Size and self.result is not None:  # it is given back: operators take a tuple as well
            return self.create_node("call_function", torch.Size, (list(a),), {})
        if (made := remade(self, a)) is not None:
            return made
        if isinstance(a, Tensor) and id(a) not in self._names and a not in self.tensor_attrs:
            return super().create_arg(a) if isinstance(a, nn.Parameter) else self._factory_tensors.node_of(a)
        if isinstance(a, TensorProxy) and a.tracer is not self:
            raise read_after_its_trace(user_line(sys._getframe(1), QuantTracer.trace.__code__))
        return a.node if isinstance(a, Proxy) else super().create_arg(a)

    @property
    def wrote_constants(self) -> bool:
        """True if the forward wrote traced values into factory tensors."""
        return self._factory_tensors.any_written

    @property
    def runs_example(self) -> bool:
        """True while a call runs on the example and is not traced."""
        return self._running

    @property
    def traces_now(self) -> bool:
        """True while calls are traced: none runs on the example, and the caller is the thread that traces."""
        return not self._running and threading.get_ident() == self._thread

    def constant(self, value: Tensor) -> Node:
        """Return a node that gives a copy of ``value``."""
        return cast(Node, super().create_arg(value.detach().clone()))  # a node, for a tensor that no module holds

    def proxy_of(self, tensor: Tensor) -> TensorProxy:
        """Return the proxy for a tensor that the forward made, once traced values were written into it."""
        proxy = TensorProxy(self._factory_tensors.node_of(tensor), self)
        proxy.learn(tensor)
        return proxy

    def create_proxy(
        self, kind: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *more: Any, **options: Any
    ) -> Any:
        """Create a node and its proxy, and run it on the example."""
        if self.finished:
            raise read_after_its_trace(user_line(sys._getframe(1), QuantTracer.trace.__code__))
        if target == "__setitem__" and kind == "call_method":
            kind, target = "call_function", operator.setitem
        if kind == "call_function" and target in _JOINS:
            args, kwargs = with_items(args), {name: with_items((value,))[0] for name, value in kwargs.items()}
        args, kwargs, follows = without_marks(args, kwargs) if self.marks_training_flag else (args, kwargs, True)
        proxy: Any = super().create_proxy(kind, target, args, kwargs, *more, **options)
        if not follows:
            proxy.node.meta[SAME_WHILE_TRAINING] = True
        if self._bound is not None and kind != "get_attr":
            shown, named = on_example(args), on_example(kwargs)
            value = self._run(proxy.node, shown, named)
            self._factory_tensors.follow(proxy.node)
            proxy.node.meta[VALUE] = self._untraced(lambda: info_of(value))
            fixed = kind == "placeholder" or is_fixed(target, shown, named, value)
            proxy.learn(value, fixed and all(argument.fixed for argument in proxies_in((args, kwargs))))
            if target is operator.getitem and (value is None or (type(value) in FIXED and is_given(proxy.node))):
                self.create_proxy("call_function", require_value, (proxy, value, spelled(proxy.node)), {})
                return value  # no proxy can answer "is None"
        return proxy

    def _run(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the value of a node on the example, of which ``args`` and ``kwargs`` come."""
        target: Any = node.target
        if node.op == "placeholder":
            return (self._bound or {})[target.lstrip("*")]
        module = self.root.get_submodule(target) if node.op == "call_module" else None

        def call() -> Any:
            if node.op == "call_method":
                return getattr(args[0], target)(*args[1:], **kwargs)
            return (target if module is None else module)(*args, **kwargs)

        with self._patches.suspended(), nullcontext() if module is None else plain_modes(module):
            return self._untraced(lambda: run_on_example(node, module, call, lambda: (args, kwargs)))

    def _untraced(self, call: Callable[[], Any]) -> Any:
        """Run something on the example: what it asks of tensors that the forward made becomes no node."""
        self._running = True
        try:
            return call()
        finally:
            self._running = False

    def answer(self, proxy: TensorProxy, value: Any, frame: FrameType | None, guard: Any = None) -> None:
        """Write a guard: ``proxy`` must give ``value`` on other inputs as well. One of inputs takes a tuple."""
        self._guard(proxy, value, user_line(frame, QuantTracer.trace.__code__), guard)

    def answer_index(self, proxy: TensorProxy, frame: FrameType | None) -> None:
        """Return the same for a number that C code asked for, perhaps only to see whether it is one."""
        self._asked.append((proxy, instruction(frame), user_line(frame, QuantTracer.trace.__code__)))

    def torch_called(self, frame: FrameType | None) -> None:
        """Drop the guards for indices of this call: they become arguments of a node."""
        self._asked = [one for one in self._asked if one[1] != instruction(frame)]

    def _write_guards(self) -> None:
        asked, self._asked = self._asked, []
        for proxy, _, line in asked:
            self._guard(proxy, proxy.example, line)

    def _guard(self, proxy: TensorProxy, value: Any, line: str, guard: Any = None) -> None:
        key = (proxy.node, guard, repr(value))
        if key not in self._answered:
            self._answered.add(key)
            known = (*value, line) if guard else (value, line, source_of_answer(proxy.node))
            self.create_proxy("call_function", guard or require_answer, (proxy, *known), {})

    def forget_nodes_after(self, last: Node) -> None:
        """Erase what a trace wrote before it failed, with the guards for it."""
        self._asked = []
        erased = erase_behind(last)
        self._answered = {key for key in self._answered if key[0] not in erased}
