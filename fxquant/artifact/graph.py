"""A graph as plain data, and back. torch.fx writes source of names, so each of them is checked."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Collection, Mapping
from typing import Any

from torch.fx import Graph, Node
from torch.fx.graph import _custom_builtins

from fxquant.artifact.functions import ATTRIBUTES, FUNCTIONS, METHODS, OF_DEVICES, function_called, name_of
from fxquant.artifact.node_facts import decode_facts, encode_facts
from fxquant.artifact.values import decode, encode
from fxquant.errors import ArtifactError, error_context
from fxquant.graph.query import VALUE, TensorInfo

_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,511}", re.ASCII)
_DUNDER = re.compile(r"__\w*__", re.ASCII)
_PATH_PART = re.compile(r"[\w\-/@]{1,512}", re.ASCII)
_ROOTS = {name.split(".")[0] for name in FUNCTIONS}
_BUILTINS = {name.split(".")[1] for name in FUNCTIONS if name.startswith("builtins.")}
_USED = frozenset({*keyword.kwlist, *_custom_builtins, *_ROOTS, *_BUILTINS, "self"})
"""Names that code made of a graph uses for something else."""
_RESERVED = _USED | frozenset(dir(builtins))
"""Names that torch.fx gives no node. An input may have the name of a builtin that no code uses."""


def check_identifier(name: Any, what: str) -> str:
    """Refuse what torch.fx could not write as a variable, and the names that Python gives a meaning: ``__name__``.

    Raises:
        ArtifactError: it is no plain identifier.
    """
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name) or _DUNDER.fullmatch(name):
        raise ArtifactError(f"{what} is no plain identifier", got=ascii(name)[:120])
    return name


def check_path(path: Any) -> str:
    """Refuse what is no path of a module or a tensor.

    Raises:
        ArtifactError: a part is empty, or has other characters than letters, digits and ``_-/@``.
    """
    parts = path.split(".") if isinstance(path, str) and len(path) <= 512 else [""]
    if not all(_PATH_PART.fullmatch(part) and not part.startswith("__") for part in parts):
        raise ArtifactError("this is no path of a module", got=ascii(path)[:120])
    return str(path)


def encode_graph(graph: Graph, *, facts: bool = False) -> list[dict[str, Any]]:
    """Write the nodes of a graph in their order; with ``facts``, what is known of each beside its value, too.

    Raises:
        ArtifactError: a node calls a function that is in no table, or has an argument that no file can hold.
    """
    nodes = []
    for node in graph.nodes:
        with error_context(at=node):
            nodes.append(_encode_node(node) | ({"facts": encode_facts(node)} if facts else {}))
    return nodes


def _encode_node(node: Node) -> dict[str, Any]:
    target = node.target
    if node.op == "call_function":
        target = name_of(target) or ""
        if not target:
            raise _unknown(f"{getattr(node.target, '__module__', '')}.{getattr(node.target, '__name__', node.target)}")
    if node.op == "call_method" and target not in METHODS:
        raise _unknown(f"Tensor.{target}")
    # what a file may not hold is refused here, not by the one who opens it
    check_identifier(node.name, "the name of a node")
    _target_of(node.op, target, node.args, node.kwargs, {str(target)}, {str(target)})
    data: dict[str, Any] = {"op": node.op, "name": node.name, "target": target}
    # The default of an input that nothing reads may be of any class: it is written as None.
    given = (None,) if node.op == "placeholder" and node.args and not node.users else node.args
    data["args"] = [encode(item) for item in given]
    data["kwargs"] = {name: encode(item) for name, item in node.kwargs.items()}
    if isinstance(value := node.meta.get(VALUE), TensorInfo):
        data["value"] = encode(value)
    return data


def _unknown(name: str) -> ArtifactError:
    return ArtifactError(
        "the graph calls a function that artifacts may not hold",
        got=name,
        expected="one of the functions and methods of torch and math that fxquant/artifact/functions.py lists",
    )


def decode_graph(nodes: Any, modules: Collection[str], tensors: Collection[str]) -> Graph:
    """Make a graph.

    Args:
        nodes: What ``encode_graph`` wrote.
        modules: Paths of the modules that may be called.
        tensors: Paths of the parameters and buffers that may be read.

    Raises:
        ArtifactError: a name, a target or an argument is none that a graph may hold, or the order is wrong.
    """
    graph = Graph()
    known: dict[str, Node] = {}

    def node_of(name: str) -> Node:
        if name not in known:
            raise ArtifactError("a node reads one that does not stand before it", got=ascii(name)[:120])
        return known[name]

    if not isinstance(nodes, list) or not nodes:
        raise ArtifactError("the file holds no graph")
    for index, data in enumerate(nodes):
        with error_context(at=f"node {index}"):
            _decode_node(graph, data, known, node_of, modules, tensors)
            if (data["op"] == "output") != (index == len(nodes) - 1):
                raise ArtifactError("the last node of a graph, and no other, is its output")
    return graph


def _decode_node(
    graph: Graph, data: Any, known: dict[str, Node], node_of: Any, modules: Collection[str], tensors: Collection[str]
) -> None:
    if not isinstance(data, dict) or set(data) - {"value", "facts"} != {"op", "name", "target", "args", "kwargs"}:
        raise ArtifactError("a node has other fields than op, name, target, args and kwargs")
    # The name: an identifier that is not taken.
    op, name = data["op"], check_identifier(data["name"], "the name of a node")
    if (name in _RESERVED and op != "output") or name in known:
        raise ArtifactError("a node has a name that is taken", got=name)
    # The arguments: only nodes that came before.
    if not isinstance(data["args"], list) or not isinstance(data["kwargs"], dict):
        raise ArtifactError("the arguments of a node are no list and no object")
    reader = None if op == "placeholder" else node_of
    args = tuple(decode(item, reader) for item in data["args"])
    kwargs = {check_identifier(key, "a keyword"): decode(item, reader) for key, item in data["kwargs"].items()}
    if any(keyword.iskeyword(key) for key in kwargs):
        raise ArtifactError("a keyword of a call is a word of Python", got=sorted(kwargs))
    # The target: from a list. Then the node, and what is known of its value.
    target = _target_of(op, data["target"], args, kwargs, modules, tensors)
    node = graph.create_node(op, target, args, kwargs, name)
    node.name = name
    if "value" in data:
        value = decode(data["value"])
        if not isinstance(value, TensorInfo):
            raise ArtifactError("the value of a node is described by something else")
        node.meta[VALUE] = value
    decode_facts(node, data.get("facts", {}))
    known[name] = node


def _target_of(
    op: Any,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    modules: Collection[str],
    tensors: Collection[str],
) -> Any:
    if not isinstance(target, str):
        raise ArtifactError("the target of a node is no string", got=ascii(target)[:120])
    # Inputs and the output.
    if op == "placeholder":
        check_identifier(target.lstrip("*"), "the name of an input")
        if target.count("*") > 2 or len(args) > 1 or kwargs or target.lstrip("*") in _USED:
            raise ArtifactError("an input has a name or a default that none may have", got=target)
        return target
    if op == "output":
        if len(args) != 1 or kwargs or target != "output":
            raise ArtifactError("the output of a graph has other arguments than one")
        return target
    # Functions and methods from a list.
    if op == "call_function" and (function := function_called(target)) is not None:
        if function is getattr and not (len(args) == 2 and not kwargs and _may_be_read(*args)):
            raise ArtifactError(
                "the graph reads an attribute that it may not read",
                got=ascii(args[1:])[:120],
                expected=", ".join(sorted(ATTRIBUTES)),
            )
        return function
    if op == "call_method" and target in METHODS and args:
        return target
    # Modules and tensors that the file holds.
    if op in ("call_module", "get_attr"):
        check_path(target)
        if target in (modules if op == "call_module" else tensors):
            return target
        raise ArtifactError("the graph reads a module or a tensor that the file has not", got=target)
    raise _unknown(ascii(target)[:120])


def _may_be_read(source: Any, attribute: Any) -> bool:
    of_device = isinstance(source, Node) and source.target is getattr and source.args[1:] == ("device",)
    allowed = ATTRIBUTES | OF_DEVICES if of_device else ATTRIBUTES
    return isinstance(attribute, str) and attribute in allowed
