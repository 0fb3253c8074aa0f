"""Binds the inputs of a model to the signature of its forward, and describes them in messages."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Dataset

from fxquant.errors import InputError, is_library_file, warn
from fxquant.graph.query import own_forward
from fxquant.registry import did_you_mean

_VAR_POSITIONAL, _VAR_KEYWORD = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD

LONGEST_LIST = 4
DEEPEST_LIST = 2
"""Lists in lists that a message opens."""


def signature_of(model: nn.Module) -> inspect.Signature:
    """Return the signature of ``forward``, without ``self``."""
    return inspect.signature(model.forward)


def bind(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Argument name -> value, as calling ``model(*args, **kwargs)`` would bind them, with the defaults filled in.

    Args:
        model: Any module, traced or not.
        args: Positional inputs.
        kwargs: Keyword inputs.
        what: What they are, for the message: ``"the example inputs"``, ``"batch 3"``.

    Raises:
        InputError: they do not fit the signature; the message shows both.
    """
    signature = signature_of(model)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InputError(
            f"{what} do not fit the model's forward: {error}",
            got=describe_call(args, kwargs),
            expected=f"{type(model).__name__}.forward{signature}",
            hint=_how_to_bind(signature, args, kwargs, what),
        ) from error
    bound.apply_defaults()
    return dict(bound.arguments)


def _how_to_bind(signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any], what: str) -> str:
    """Write a hint for inputs that do not fit: a name that is nearly right, or how to give them."""
    free = list(signature.parameters)[len(args) :]
    unknown = [name for name in kwargs if name not in signature.parameters]
    if unknown and (hint := did_you_mean(unknown[0], [name for name in free if name not in kwargs])):
        return hint
    if what != "the example inputs":
        return ""
    alone = args[0] if len(args) == 1 and not kwargs else None
    if isinstance(alone, Mapping) and alone and {*alone} <= {*signature.parameters}:
        return "inputs by name are example_kwargs: (model, (), example_kwargs=batch)"
    return (
        "example_inputs is the tuple of positional inputs (--input of a command, once for each), example_kwargs the "
        "dict of keyword inputs"
    )


def keywords_in_order(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Sort keyword inputs as the signature has them: ``torch.export`` hands them to a traced model by position.

    Args:
        model: A traced one.
        args: Positional inputs.
        kwargs: Keyword inputs.

    Raises:
        InputError: they do not fit the signature, leave out an input in front of one that is given, or stand after
            ``*args`` or in ``**kwargs``.
    """
    if not kwargs:
        return {}
    bind(model, args, kwargs, "the example inputs")
    parameters = signature_of(model).parameters.values()
    left = [each.name for each in parameters if each.kind not in (_VAR_POSITIONAL, _VAR_KEYWORD)][len(args) :]
    ordered = {name: kwargs[name] for name in left if name in kwargs}
    skipped = [name for name in left[: len(ordered)] if name not in kwargs]
    if not skipped and len(ordered) == len(kwargs):
        return ordered
    no_position = "inputs behind *args and in **kwargs have no position"
    raise InputError(
        "keyword inputs of a traced model are exported by position, and these cannot be",
        got=describe_call(args, kwargs),
        expected=f"{type(model).__name__}.forward{signature_of(model)}, with no input left out in between",
        hint=f"give the default of {skipped[0]!r}, too" if skipped else no_position,
    )


def example_tuple(example_inputs: Any, example_kwargs: Mapping[str, Any] | None) -> tuple[Any, ...]:
    """Return the tuple of positional inputs that ``prepare`` was given: a lone tensor makes a tuple of one.

    Raises:
        InputError: it was given None, and no keyword inputs.
    """
    if isinstance(example_inputs, (tuple, list)):
        return tuple(example_inputs)
    if example_inputs is not None:
        return (example_inputs,)
    if example_kwargs:
        return ()
    raise InputError(
        "there are no example inputs",
        got="None",
        expected="a tensor, or the tuple of positional inputs, as the model takes them",
        hint="next(iter(loader))[0] is the input of the first batch, where loader yields (input, label) pairs",
    )


def needed_inputs(model: nn.Module) -> int | None:
    """Count the positional inputs without a default that ``forward`` takes; None: it takes any number."""
    parameters = signature_of(model).parameters.values()
    if any(parameter.kind is _VAR_POSITIONAL for parameter in parameters):
        return None
    needed = sum(
        parameter.default is parameter.empty and parameter.kind is not _VAR_KEYWORD for parameter in parameters
    )
    return max(needed, 1)


def optional_inputs(model: nn.Module) -> dict[str, Any]:
    """Return the arguments of ``forward`` that a call may leave out, and their defaults."""
    parameters = signature_of(model).parameters.values()
    return {one.name: one.default for one in parameters if one.default is not one.empty}


def bind_example(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """``bind`` for the example inputs.

    Raises:
        InputError: as ``bind``, or ``args`` is no tuple.
    """
    if not isinstance(args, tuple):
        raise InputError(
            "the example inputs are no tuple",
            got=describe_value(args),
            expected="a tuple of the positional inputs: (x,)",
        )
    check_no_data(args, "the example inputs")
    check_no_data(tuple(kwargs.values()), "the example inputs")
    return bind(model, args, kwargs, "the example inputs")


def check_no_data(values: Any, what: str) -> None:
    """Refuse arrays, loaders and data sets where a model wants tensors. Lists, tuples and dicts are looked into.

    Args:
        values: Inputs of a model.
        what: Their name, for the message.

    Raises:
        InputError: it says how to get tensors out of what was found.
    """
    for value in pytree.tree_leaves(values):
        if (hint := how_to_tensor(value)) is not None:
            raise InputError(f"{what} hold no tensor", got=describe_value(value), expected="tensors", hint=hint)


def check_not_nested(values: Any, what: str) -> None:
    """Refuse nested tensors, which no graph can be made for. Lists, tuples and dicts are looked into.

    Raises:
        InputError: it says how to make a dense tensor.
    """
    for value in pytree.tree_leaves(values):
        if isinstance(value, Tensor) and value.is_nested:
            raise InputError(
                f"{what} hold a nested tensor where the model takes a dense tensor",
                got=describe_value(value),
                expected="dense tensors",
                hint="torch.nested.to_padded_tensor(x, 0.0)",
            )


def not_dense(path: str, value: Tensor, expected: str) -> InputError:
    """Return the error to raise for an input without strides, where the model was prepared with a dense one."""
    kind = "nested" if value.is_nested else str(value.layout).removeprefix("torch.").strip("_")
    return InputError(
        f"the input {path!r} is {kind} where the model takes a dense tensor",
        got=describe_value(value),
        expected=expected,
        hint=f"torch.nested.to_padded_tensor({path}, 0.0)" if value.is_nested else f"{path}.to_dense()",
    )


def how_to_tensor(value: Any) -> str | None:
    """Write a hint that turns an array, an image, a loader or a data set into a tensor; None for everything else."""
    if isinstance(value, (DataLoader, Iterator)):
        batch = "next(iter(loader))" if isinstance(value, DataLoader) else "next(data)"
        return f"one batch: {batch}, or {batch}[0] where it yields (input, label) pairs"
    if isinstance(value, Dataset):
        return "one batch: next(iter(torch.utils.data.DataLoader(dataset, batch_size=8)))[0]"
    if isinstance(value, Tensor) or not hasattr(value, "__array_interface__") or getattr(value, "shape", None) == ():
        return None
    if not hasattr(value, "dtype"):
        return "torchvision.transforms.functional.to_tensor(image)[None] makes a batch of one image"
    return f"torch.from_numpy(array){'.float()' if str(value.dtype) == 'float64' else ''} makes a tensor"


def keywords_of(batch: Mapping[str, Any], model: nn.Module, what: str) -> dict[str, Any]:
    """Select the items of a batch that ``forward`` takes as keyword inputs: a label beside them does no harm.

    Args:
        batch: Name -> value.
        model: Any module, traced or not.
        what: Name of the batch, for messages.

    Raises:
        InputError: the model takes none of it.
    """
    signature = signature_of(model)
    kinds = {name: parameter.kind for name, parameter in signature.parameters.items()}
    if inspect.Parameter.VAR_KEYWORD in kinds.values():
        return dict(batch)
    names = [name for name, kind in kinds.items() if kind not in (inspect.Parameter.POSITIONAL_ONLY, _VAR_POSITIONAL)]
    taken = {name: value for name, value in batch.items() if name in names}
    free = [name for name in names if name not in taken]
    if batch and not taken:
        raise InputError(
            f"{what} holds nothing under a name that the model takes",
            got=describe_value(batch),
            expected=f"{type(model).__name__}.forward{signature}",
            hint=f"yield {{{free[0]!r}: …}}, or tuples of the positional inputs" if free else "",
        )
    for name in batch:
        if name not in taken and (hint := did_you_mean(name, free)):
            warn(
                f"{what} holds something that the model does not take",
                got=repr(name),
                expected=", ".join(free),
                hint=hint,
            )
    return taken


def describe_call(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    """Arguments as a reader needs them: shapes and dtypes of tensors, not their values."""
    parts = [describe_value(value) for value in args]
    parts += [f"{name}={describe_value(value)}" for name, value in kwargs.items()]
    return f"({', '.join(parts)})"


def describe_value(value: Any, depth: int = DEEPEST_LIST) -> str:
    """Return a value in a few words: ``float32[2, 3, 8, 8]``."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if value.is_nested:
            return f"{dtype} in a nested tensor"
        layout = "" if value.layout is torch.strided else f", {str(value.layout).removeprefix('torch.').strip('_')}"
        return f"{dtype}{list(value.shape)}{layout}{', meta' if value.is_meta else ''}"
    if isinstance(value, torch.Size):
        return repr(tuple(value))
    if hasattr(value, "__array_interface__") and hasattr(value, "dtype"):
        return f"numpy.ndarray {value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple, Mapping)) and len(value) and not depth:
        return f"a {type(value).__name__} of {len(value)}"
    if isinstance(value, (list, tuple)):
        inner = ", ".join(describe_value(item, depth - 1) for item in value[:LONGEST_LIST])
        more = ", …" if len(value) > LONGEST_LIST else ""
        return f"[{inner}{more}]" if isinstance(value, list) else f"({inner}{more}{',' if len(value) == 1 else ''})"
    if isinstance(value, Mapping):
        items = list(value.items())[:LONGEST_LIST]
        return "{" + ", ".join(f"{key}: {describe_value(item, depth - 1)}" for key, item in items) + "}"
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(repr(value)) <= 40 else f"{type(value).__name__} of length {len(repr(value))}"
    return f"{'an' if type(value).__name__[0] in 'aeiouAEIOU' else 'a'} {type(value).__name__}"


def is_given(node: Node) -> bool:
    """Tell whether a node is an input, or takes an item of one that is a dict, a tuple or the like."""
    source: Any = node.args[0] if node.target is operator.getitem else None
    return node.op == "placeholder" or (isinstance(source, Node) and is_given(source))


def spelled(node: Node) -> str:
    """``batch['mask']``."""
    if node.target is not operator.getitem:
        return str(node.target).lstrip("*") if node.op == "placeholder" else node.name
    source: Any = node.args[0]
    return f"{spelled(source)}[{node.args[1]!r}]"


_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def is_decorated(forward: Callable[..., Any], model: nn.Module) -> bool:
    """Tell whether a decorator of the user's stands around a forward, which torch.fx cannot call by its signature.

    torch.fx knows nothing of one that was set on the model alone, either.
    """
    if own_forward(model) is not None:
        return True
    code = getattr(forward, "__code__", None)
    return inspect.unwrap(forward) is not forward and code is not None and not is_library_file(code.co_filename)


def _unannotated() -> None: ...


def called_by_name(
    forward: Callable[..., Any], model: nn.Module, placeholder: Callable[[str, Any, Any, Any], Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """Make a function that calls a decorated forward with every argument by the name that the innermost function uses.

    What is left out of the example, and so fixed to a default that code branches on, is left out of the call.

    Args:
        forward: The forward as its class has it, or the one that was set on the model alone.
        model: Its ``self``.
        placeholder: Makes the input of a name (``"*args"`` for several), given the signature and that function.

    Returns:
        A function of the model and the inputs, and the two.
    """
    if (own := own_forward(model)) is None:
        own, inner = functools.partial(forward, model), inspect.unwrap(forward)
        signature = inspect.signature(inner)
        parameters = list(signature.parameters.values())[1:]
    else:
        inner = own if hasattr(own, "__annotations__") else _unannotated  # an object that can be called
        signature = inspect.signature(own)
        parameters = list(signature.parameters.values())
    inputs = [placeholder(_STARS.get(one.kind, "") + one.name, None, signature, inner) for one in parameters]

    def call(model: nn.Module, *inputs: Any) -> Any:
        first: list[Any] = []
        named: dict[str, Any] = {}
        for one, value in zip(parameters, inputs, strict=True):
            if one.kind is one.VAR_KEYWORD:
                named.update({key: value[key] for key in value.keys()})  # noqa: SIM118 - a proxy, which guards its keys
            elif one.kind is one.VAR_POSITIONAL and len(value):
                first = [*first, *named.values(), *value]  # what stands before them can only be given by position
                named = {}
            elif one.kind is one.POSITIONAL_ONLY:
                first.append(value)
            elif one.kind is not one.VAR_POSITIONAL and value is not one.default:
                named[one.name] = value
        return own(*first, **named)

    return call, [model, *inputs]
