"""Explains why a call of a model or of one of its nodes fails, in terms of the values that it was given."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node, Proxy
from torch.fx.proxy import Attribute
from torch.utils import _pytree as pytree

from fxquant.errors import InputError, TracingError, warn
from fxquant.graph.inputs import bind, describe_call, describe_value, how_to_tensor, not_dense
from fxquant.graph.packing import holds_integers
from fxquant.graph.query import VALUE, TensorInfo, canonical_type, is_strided, module_of, only_device

_SIZES = (
    ("in_channels", "input channels"),
    ("in_features", "input features (the last dimension)"),
    ("num_features", "channels"),
)
"""Attribute of a layer -> what it counts."""

_OVERLOADS = ", but expected one of:"
"""What torch writes before a list of all the ways to call a function."""


def not_running(
    node: Node, module: nn.Module | None, error: Exception, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> InputError:
    """Return the error to raise where ``node`` (which calls ``module``, if it calls one) fails on the example."""
    return InputError(
        f"the example inputs do not run through the model: {first_line(error)}",
        at=node,
        got=describe_call(args, kwargs),
        expected=_wanted_dtype(module, error, (args, kwargs)) or expectation(module),
        hint="example_inputs (--input of a command) must be inputs that the model itself can run on",
    )


def does_not_run(error: Exception, node: Node, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> InputError:
    """Return the error to raise where a node of the model fails on the values of a batch.

    Args:
        error: What it raised.
        node: The one that failed.
        args, kwargs: What it was called with.
    """
    said = _facts_of(error)
    return InputError(
        f"this batch does not run through the model: {first_line(error)}",
        at=node,
        got=said.get("got", describe_call(args, kwargs)),
        expected=said.get("expected")
        or _wanted_dtype(module_of(node), error, (args, kwargs))
        or expectation(module_of(node)),
        hint="batches must be inputs that the model itself can run on",
    )


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or its class where it has none; without the head of a cut list."""
    text = str(error).strip()
    return text.splitlines()[0].removesuffix(_OVERLOADS) if text else type(error).__name__


def _facts_of(error: Exception) -> dict[str, str]:
    """Return what a native operator got and expected, which its text has in the layout of all messages."""
    first, *further = str(error).splitlines() or [""]
    lines = (line.strip().partition(":") for line in further if first.startswith("fxquant::"))
    return {name: text.strip() for name, _, text in lines if name in ("got", "expected")}


def expectation(module: Any) -> str | None:
    """Describe the input that a layer takes by its class and its number of channels or features."""
    kind = None if module is None else _kind_of(module)
    found = [f"{kind} with {getattr(module, name)} {noun}" for name, noun in _SIZES if hasattr(module, name)]
    return found[0] if kind is not None and found else None


def _wanted_dtype(module: nn.Module | None, error: Exception, given: Any) -> str | None:
    """Return the dtype that the first tensor of a call should have, where torch says that one is wrong."""
    tensors = [value for value in pytree.tree_leaves(given) if isinstance(value, Tensor)]
    if not tensors or "type" not in str(error):
        return None
    first, *others = tensors
    own = () if module is None else tuple(module.parameters(recurse=False))
    dtypes = {value.dtype for value in (*own, *others) if value.is_floating_point()}
    if len(dtypes) != 1 or first.dtype in dtypes:
        return None
    kind = None if module is None else _kind_of(module)
    beside = f"the parameters of this {kind}" if kind else "the other tensors"
    return f"{str(*dtypes).removeprefix('torch.')}, as {beside}"


def _kind_of(module: nn.Module) -> str | None:
    """Return the class that says what a module computes: one of ``torch.nn``, or one of this package."""
    kind = canonical_type(module)
    if kind is None and type(module).__module__.startswith("fxquant."):
        kind = type(module)
    return None if kind is None else kind.__name__


def wrong_input(
    gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], quantized: Collection[str] = ()
) -> InputError | None:
    """Find the first input of a call that differs from the example in kind, and name its argument; None if all fit.

    Args:
        gm: A graph whose placeholders know what the example inputs were.
        args, kwargs: What it was called with.
        quantized: Names of the arguments that it takes as quantized values.
    """
    try:
        bound = bind(gm, args, kwargs, "the inputs")
    except InputError as error:
        return error
    return wrong_bound_input(gm, bound, quantized)


def wrong_bound_input(gm: GraphModule, bound: Mapping[str, Any], quantized: Collection[str] = ()) -> InputError | None:
    """``wrong_input`` for inputs that ``bind`` gave.

    Args:
        gm: A graph whose placeholders know what the example inputs were.
        bound: Argument name -> value.
        quantized: Names of the arguments that it takes as quantized values.
    """
    device = only_device(gm)
    for node in gm.graph.find_nodes(op="placeholder"):
        name = str(node.target).lstrip("*")
        for path, value, known in _inside(name, bound.get(name), node.meta.get(VALUE)):
            if (found := _mismatch(path, value, known, device, name in quantized)) is not None:
                return found
    return None


def not_scriptable(gm: GraphModule, function: str) -> TracingError:
    """Return the error to raise where torch is to make TorchScript or another graph of a quantized model.

    Args:
        gm: The model.
        function: ``"torch.jit.trace"``, ``"torch.jit.script"`` or ``"torch.fx.symbolic_trace"``.
    """
    return TracingError(
        f"{function} takes no quantized model",
        got=f"{type(gm).__name__}, as prepare_qat or convert gave it",
        expected="torch.export or torch.compile, which take it",
        hint="torch.export.export(model, args) captures it; torch.save(model, path) keeps it",
    )


def in_a_trace(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception) -> Exception | None:
    """Return the error to raise where a call failed on values of a trace, not on tensors; None in every other call.

    A trace of this package explains its errors itself: there it is the error that was raised.
    """
    proxies = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Proxy)]
    if any(type(proxy) in (Proxy, Attribute) for proxy in proxies):
        return not_scriptable(gm, "torch.fx.symbolic_trace")
    return error if proxies else None


def refuse_tracing(gm: GraphModule, *, observes: bool) -> None:
    """Refuse to be traced by ``torch.jit``, which would make constants of what depends on values.

    Raises:
        TracingError: it computes with integers, or observes.
    """
    if observes or holds_integers(gm):
        raise not_scriptable(gm, "torch.jit.trace")


def warn_of_no_gradient(gm: GraphModule, args: tuple[Any, ...], result: Any) -> None:
    """Warn where a gradient was asked for, and ends at integers."""
    asking = [value for value in args if isinstance(value, Tensor) and value.requires_grad]
    if not torch.is_grad_enabled() or not asking:
        return
    tensors = [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]
    if holds_integers(gm) and not _leads_to(tensors, asking):
        warn(
            "an input asks for gradients, and none flow through integers",
            got="requires_grad=True",
            hint="convert(prepared, to='fake_quant') is differentiable; torch.no_grad() says that none are wanted",
        )


def _leads_to(results: Sequence[Tensor], inputs: Sequence[Tensor]) -> bool:
    """Tell whether a gradient of a result reaches an input.

    That of a float layer after integers reaches only its weight.
    """
    sources = {id(value) for value in inputs if value.grad_fn is None}
    nodes = {value.grad_fn for value in inputs if value.grad_fn is not None}
    if any(id(result) in sources for result in results):
        return True
    left = [result.grad_fn for result in results if result.grad_fn is not None]
    seen = set(left)
    while left:
        node = left.pop()
        if node in nodes or id(getattr(node, "variable", None)) in sources:
            return True
        following = {each for each, _ in node.next_functions if each is not None} - seen
        seen |= following
        left += following
    return False


def _inside(path: str, value: Any, known: Any) -> Iterator[tuple[str, Any, TensorInfo]]:
    """Return each tensor that the example held at an input, and what is there now."""
    if isinstance(known, TensorInfo):
        yield path, value, known
    elif isinstance(known, dict) and isinstance(value, Mapping):
        for key, item in known.items():
            yield from _inside(f"{path}[{key!r}]", value.get(key), item)
    elif isinstance(known, tuple) and isinstance(value, (tuple, list)) and len(known) == len(value):
        for index, item in enumerate(known):
            yield from _inside(f"{path}[{index}]", value[index], item)


def _mismatch(
    path: str, value: Any, known: TensorInfo, device: torch.device | None, quantized: bool
) -> InputError | None:
    kind = str(known.dtype).removeprefix("torch.")
    if not isinstance(value, Tensor):
        what, hint = "is no tensor", how_to_tensor(value) or ""
    elif value.is_meta:
        what, hint = "is on the meta device, where tensors hold no values", "give a tensor with values"
    elif known.strided and not is_strided(value):
        return not_dense(path, value, _expected(known))
    elif device is not None and value.device.type != device.type:
        what, hint = f"is on {value.device}, the model on {device}", f"{path}.to({str(device)!r})"
    elif known.dtype.is_floating_point and not value.is_floating_point():
        what = f"holds {'complex numbers' if value.is_complex() else 'integers'} where the model takes float values"
        hint = "" if value.is_complex() else f"{path}.float() / 255 of an image, or whatever the float model was given"
    elif value.is_floating_point() and value.dtype.itemsize == 1 and known.dtype.itemsize > 1:
        what, hint = "holds float values of 8 bits, on which torch has no arithmetic", f"{path}.float()"
    elif value.is_floating_point() and not known.dtype.is_floating_point:
        what, hint = "holds float values where the model takes integers", f"{path}.to(torch.{kind})"
        if quantized:
            hint = f"quantize it first: the model's integer_inputs[{path!r}] has scale and zero point"
    else:
        return None
    return InputError(
        f"the input {path!r} {what}",
        got=describe_value(value),
        expected=_expected(known),
        hint=hint,
    )


def _expected(known: TensorInfo) -> str:
    kind = str(known.dtype).removeprefix("torch.")
    return f"{kind}, as {list(known.shape)} when it was prepared" if known.has_shape else kind
