"""How the forward of a model is called while it is traced, where torch.fx cannot call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

_STARS: dict[Any, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def called_by_name(
    forward: Callable[..., Any], model: nn.Module, placeholder: Callable[[str, Any, Any, Any], Any]
) -> tuple[Callable[..., Any], list[Any]]:
    """How a decorated forward is traced: called with every argument by its name, as the innermost function names it.

    What is left out of the example, and so fixed to a default that code branches on, is left out of the call.

    Args:
        forward: The forward as its class has it.
        model: Its ``self``.
        placeholder: Makes the input of a name (``"*args"`` for several), given the signature and that function.

    Returns:
        A function of the model and the inputs, and the two.
    """
    inner = inspect.unwrap(forward)
    signature = inspect.signature(inner)
    parameters = list(signature.parameters.values())[1:]
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
        return forward(model, *first, **named)

    return call, [model, *inputs]
