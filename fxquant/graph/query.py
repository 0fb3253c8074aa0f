"""Questions about one node: which module it calls, which module of the user it belongs to, what value it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

VALUE = "fxquant_value"
"""Key of ``node.meta``: what ``graph.shapes`` recorded of the node's value."""
CALLED = "fxquant_called"
"""Key of ``node.meta``: (qualified name, type) of the module that the user called here, also after ``normalize``."""
REASON = "fxquant_reason"
"""Key of ``node.meta``: why the node must stay float, as a sentence fit for a report."""
BY_REQUEST = "fxquant_by_request"
"""Key of ``node.meta``, beside REASON: True where the user asked for it (``leaf_modules``)."""
NAMED = "fxquant_named"
"""Key of ``node.meta``: True where a pattern names the exact type of the module, so that it must stay a module call."""
ORIGINAL_FUNCTION = "fxquant_written"
"""Key of ``node.meta``: the canonical function that the user called where the node now calls a layer."""
WEIGHT = "fxquant_weight"
"""Key of ``node.meta``, beside ORIGINAL_FUNCTION: path of the parameter or buffer that it took as its weight."""
DECOMPOSED_FROM = "fxquant_decomposed_from"
"""Key of ``node.meta``: of a part of an operator that was taken apart, (the operator's path, the rule that decides)."""
WRAPPED = "is_wrapped"
"""Where torch.fx notes that a function was wrapped; code made from the graph then wraps its target again, for all."""
REGULARIZER = "fxquant_regularizer"
"""Key of ``node.meta``: (function, its other arguments by name) of what drops values while training, a no-op now."""
ONLY_IN_TRAINING = "fxquant_only_in_training"
"""Key of ``node.meta``: True where a module or function of the user's gives its input back in evaluation mode alone."""
SAME_WHILE_TRAINING = "fxquant_same_while_training"
"""Key of ``node.meta``: True where no argument of a call is ``self.training``, so that it does the same in any mode."""
KEEPS_STATISTICS = "fxquant_keeps_statistics"
"""Attribute of a batch norm that is to be frozen, once passes are done, where the graph trains."""
COMPUTED_OF = "fxquant_made_of"
"""Key of ``node.meta``: how what training changes is computed, in place of its value (``graph.constants``)."""
PRODUCTS = "fxquant_products"
"""Key of ``node.meta``: (multiply-accumulates counted on the example, what else ran, of which they are unknown)."""
INPLACE = "inplace"
"""Key of ``node.meta``: True where the user wrote it in place and nobody else reads the first input."""

HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)


class NamedClass(str):
    """A class of which only the name is known: its source is not at hand.

    It is the name, module and qualified name joined by a dot, since torch.export takes classes or strings in the stack
    of the modules that called an operator.
    """

    __slots__ = ()

    @property
    def path(self) -> str:
        """The whole name."""
        return str(self)

    @property
    def __name__(self) -> str:
        return self.rpartition(".")[2]


_HARMLESS_OVERRIDES = {"__init__", "extra_repr", "reset_parameters", "__repr__", "__doc__", "__setstate__"}


class UnknownShape(tuple[int, ...]):
    """Stands for the shape of a tensor of a model that was traced without example inputs. It is empty."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Metadata of a tensor, without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    contiguous: bool = True
    """Whether the elements lay in the order of the dimensions, so that any ``view`` of them exists."""
    strided: bool = True
    """Whether it had strides, as a tensor has that is neither sparse nor nested."""

    @property
    def has_shape(self) -> bool:
        """Tell whether the shape is known: not so without example inputs."""
        return not isinstance(self.shape, UnknownShape)

    def __str__(self) -> str:
        if not self.has_shape:
            return f"{str(self.dtype).removeprefix('torch.')}[?]"
        return f"{str(self.dtype).removeprefix('torch.')}[{', '.join(map(str, self.shape))}]"


Value = TensorInfo | tuple["Value", ...] | Mapping[str, "Value"] | type
"""Of a tensor its TensorInfo, of a list or tuple its items, of a dict its values, of anything else its type."""


def is_strided(value: torch.Tensor) -> bool:
    """Tell whether a tensor has strides: a sparse, a nested and an MKLDNN tensor have none."""
    return value.layout is torch.strided and not value.is_nested


def info_of(value: Any) -> Any:
    """Describe a value: a ``Value``."""
    if isinstance(value, torch.Tensor):
        strided = is_strided(value)
        contiguous = not strided or value.is_contiguous()
        return TensorInfo(tuple(value.shape), value.dtype, value.device, contiguous, strided)
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        return tuple(info_of(item) for item in value)
    if isinstance(value, dict):
        return {str(key): info_of(item) for key, item in value.items()}
    return type(value)


def described(argument: Any) -> Any:
    """Describe the values of a structure of nodes: a ``Value``."""
    if isinstance(argument, Node):
        return argument.meta.get(VALUE)
    if isinstance(argument, (tuple, list)):
        return tuple(described(item) for item in argument)
    if isinstance(argument, dict):
        return {str(key): described(item) for key, item in argument.items()}
    return type(argument)


def only_device(module: nn.Module) -> torch.device | None:
    """Return the one device of all parameters and buffers of a module; None if they lie apart, or there are none."""
    devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
    return devices.pop() if len(devices) == 1 else None


def move_to_device_of(module: nn.Module, model: nn.Module) -> None:
    """Move ``module`` to the one device of ``model``; nothing if that is the CPU, where modules are made, or none."""
    device = only_device(model)
    if device is not None and device.type != "cpu":
        module.to(device)


def value_of(node: Node) -> TensorInfo | None:
    """Return shape, dtype, device and order of the node's value on the example; None if it is not one tensor."""
    value = node.meta.get(VALUE)
    return value if isinstance(value, TensorInfo) else None


def is_one_tensor(node: Node) -> bool:
    """Tell whether the value of a node is one tensor; False for a tuple, a number, and what was never run."""
    return value_of(node) is not None


def tensors_of(node: Node) -> tuple[TensorInfo, ...]:
    """Return every tensor in the node's value: the value itself, or those in a tuple, list or dict, however deep."""
    found, pending = [], [node.meta.get(VALUE)]
    while pending:
        value: Any = pending.pop()
        if isinstance(value, TensorInfo):
            found.append(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        elif isinstance(value, tuple):
            pending += reversed(value)
    return tuple(found)


def is_tuple_of_tensors(node: Node) -> bool:
    """Tell whether the value of a node is a tuple or list of tensors and of nothing else."""
    value = node.meta.get(VALUE)
    return isinstance(value, tuple) and all(isinstance(item, TensorInfo) for item in value)


def is_number(argument: object) -> bool:
    """Tell whether an argument of a node is a Python number, or a node whose value was one."""
    if isinstance(argument, Node):
        return argument.meta.get(VALUE) in (int, float, bool, complex)
    return isinstance(argument, (int, float, complex))


def module_of(node: Node) -> nn.Module | None:
    """Return the module that a ``call_module`` node calls; None for other nodes."""
    if node.op != "call_module" or node.graph.owning_module is None:
        return None
    module: Any = node.graph.owning_module
    for name in str(node.target).split("."):  # get_submodule does the same with two look-ups more, and passes ask often
        module = module._modules.get(name)
        if module is None:
            return node.graph.owning_module.get_submodule(str(node.target))  # which refuses it, most often
    found: nn.Module = module
    return found


def attribute_at(model: nn.Module, path: str) -> Any:
    """Look up a parameter, a buffer or another attribute of a model by its qualified name."""
    parent, _, name = path.rpartition(".")
    return getattr(model.get_submodule(parent), name)


def called_module(node: Node) -> Any:
    """Return the module of a node that is known to call one (by its pattern, say), whatever its class."""
    module = module_of(node)
    assert module is not None, f"{node.name} calls no module"
    return module


def canonical_type(module: nn.Module) -> type[nn.Module] | None:
    """Return the ``torch.nn`` class whose ``forward`` this module really runs; None for a module with its own forward.

    A subclass that changes nothing of what its ``torch.nn`` base computes counts as that base.
    """
    return None if own_forward(module) is not None else canonical_class(type(module))


def own_forward(module: nn.Module) -> Callable[..., Any] | None:
    """Return the forward that was set on this module alone; None if it runs that of its class.

    A convolution whose ``_conv_forward`` was set runs a forward of its own, too.
    """
    own = vars(module)
    found: Callable[..., Any] | None = own.get("forward")
    return type(module).forward.__get__(module) if found is None and "_conv_forward" in own else found


def called_type(module: nn.Module) -> type[nn.Module] | None:
    """Return ``canonical_type``, or else the class; None for a module that does not run the forward of its class."""
    return None if own_forward(module) is not None else canonical_class(type(module)) or type(module)


def canonical_class(module_type: type[nn.Module]) -> type[nn.Module] | None:
    """``canonical_type`` of the instances of a class."""
    own: set[str] = set()
    for base in module_type.__mro__:
        if base is nn.Module:
            return None
        if getattr(nn, base.__name__, None) is base:
            return base if not own or own.isdisjoint(_computing_names(base)) else None
        if not base.__module__.startswith("torch.nn."):
            own |= _code_of(base) - _HARMLESS_OVERRIDES
    return None


def _computing_names(torch_class: type) -> set[str]:
    """Name the methods that no subclass may override: those between a torch class and ``nn.Module``, and the call."""
    names = {"forward", "__call__", "_call_impl", "__getattr__", "__getattribute__"}
    for base in torch_class.__mro__:
        if base is nn.Module:
            break
        names |= _code_of(base)
    return names


def _code_of(kind: type) -> set[str]:
    kinds = (property, staticmethod, classmethod)
    return {name for name, item in vars(kind).items() if callable(item) or isinstance(item, kinds)}


def has_hooks(module: nn.Module) -> bool:
    """Tell whether a call of the module runs hooks beside its ``forward``."""
    return any(vars(module).get(name) for name in HOOKS)


def module_path(node: Node) -> tuple[str, type[nn.Module] | None]:
    """Locate a node in the user's model.

    Returns:
        If the user called a module here that was not traced through: its qualified name and its type (also after
        ``normalize`` made a function call of it). Else the qualified name of the module whose ``forward`` the node
        stands in (empty at top level), and None.
    """
    called = node.meta.get(CALLED)
    if called is not None:
        return called
    if node.op == "call_module":
        module = module_of(node)
        return str(node.target), None if module is None else type(module)
    stack = node.meta.get("nn_module_stack") or {}
    return (str(list(stack.values())[-1][0]), None) if stack else ("", None)


def qualified_name(node: Node) -> str:
    """Path of the user's module that the node belongs to; empty at top level."""
    return module_path(node)[0]


def reason_of(node: Node) -> str | None:
    """Why the node must stay float, where tracing or normalizing found a reason."""
    return node.meta.get(REASON)


def flat_arguments(node: Node) -> list[Any]:
    """Return all arguments of a node, positional first, lists, tuples and dicts unpacked."""
    flat: list[Any] = []
    pending: list[Any] = [node.kwargs, node.args]
    while pending:
        value = pending.pop()
        if isinstance(value, (list, tuple)):
            pending += reversed(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        else:
            flat.append(value)
    return flat


def nodes_in(argument: Any) -> list[Node]:
    """Return the nodes in an argument of a node: itself, or those in a tuple, list, dict or slice, however deep."""
    found: list[Node] = []
    map_arg(argument, found.append)
    return found


def function_name(target: Callable[..., Any] | str) -> str:
    """Short name of what a node calls."""
    return target if isinstance(target, str) else getattr(target, "__name__", str(target))


def operator_name(node: Node) -> str:
    """Name the operator of a node in a word."""
    module = module_of(node)
    if module is None:
        return function_name(node.target)
    public = canonical_type(module) if type(module).__module__.startswith("torch.") else None
    return (public or type(module)).__name__  # torch has classes that nobody wrote: NonDynamicallyQuantizableLinear


def nodes_by_name(gm: GraphModule) -> dict[str, Node]:
    """Return every node of a graph under its name."""
    return {node.name: node for node in gm.graph.nodes}


_SHAPE_METHODS = {"size", "dim", "numel", "nelement", "ndimension", "stride"}
_SHAPE_ATTRIBUTES = {"shape", "ndim", "device"}


def is_shape_query(node: Node) -> bool:
    """Tell whether a node reads the shape of a tensor, and none of its values."""
    if node.op == "call_method":
        return node.target in _SHAPE_METHODS
    if node.op != "call_function":
        return False
    return node.target is len or (node.target is getattr and node.args[1] in _SHAPE_ATTRIBUTES)


ONLY_SHAPES = frozenset(
    name.format(kind) for name in ("new_{}", "{}_like") for kind in ("zeros", "ones", "empty", "full")
)
"""Methods and functions that read the shape, the dtype and the device of their first argument, and no value of it."""


def values_read_by(node: Node) -> list[Node]:
    """Return the nodes whose values it depends on."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if node.op != "call_module" and name in ONLY_SHAPES and node.args and isinstance(node.args[0], Node):
        return [used for used in node.all_input_nodes if used is not node.args[0]]
    return node.all_input_nodes
