"""torch.ao's numeric suite for eager mode: float and quantized weights and values by the paths of layers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.compat.logged_models import Logged, Shadowed, pair_of
from fxquant.compat.not_offered import refusal_of
from fxquant.errors import InputError, NotOffered
from fxquant.nn.conv_transpose import mirrored_weight

Compared = dict[str, dict[str, Any]]
"""Path of a layer with an ending -> ``"float"`` and ``"quantized"``."""


class OutputLogger(nn.Module):
    """Keeps the values that it is shown, in ``stats["tensor_val"]``."""

    def __init__(self) -> None:
        super().__init__()
        self.stats: dict[str, list[Any]] = {"tensor_val": []}

    def forward(self, x: Any) -> Any:
        """Keep a value, and return it."""
        self.stats["tensor_val"].append(x)
        return x


class ShadowLogger(OutputLogger):
    """The same, under the name that torch.ao has for layers that run beside each other."""


def compare_weights(float_dict: Mapping[str, Tensor], quantized_dict: Mapping[str, Tensor]) -> Compared:
    """Return the weights of two state dicts, path by path, both as floats.

    Args:
        float_dict: Of the float model. Batch norms are not folded into its weights.
        quantized_dict: Of the int8 model.

    Returns:
        Key of the quantized weight -> ``"float"`` and ``"quantized"``, in the shape of the float weight. Weights in
        another form than the float model's (two to a byte, with scales of groups of values, or those of recurrent
        layers) are left out. A state dict does not tell which weights an int8 layer stores transposed (those of
        transposed convolutions, and of ``x @ self.weight``): where several orders of the values have the shape, the
        one whose channels are nearest in direction to the float model's is taken.
    """
    found: Compared = {}
    for key, weight in quantized_dict.items():
        scale, zero_point = (quantized_dict.get(f"{key}_{part}") for part in ("scale", "zero_point"))
        exact = float_dict.get(key)
        if scale is None or zero_point is None or exact is None:
            continue
        best, nearest = None, -1.0
        for axis, reorder in _forms(exact, weight, scale):
            shape = [-1 if dim == axis and scale.numel() > 1 else 1 for dim in range(weight.dim())]
            given = (weight.float() - zero_point.reshape(shape)) * scale.reshape(shape)
            near = _likeness(reorder(exact), given, axis)
            if best is None or near > nearest:  # of equal ones the first: as the float layer has it
                best, nearest = reorder(given), near
        if best is not None:
            found[key] = {"float": exact, "quantized": best}
    return found


Reorder = Callable[[Tensor], Tensor]
"""Makes the order in which an int8 layer stores a weight of the float layer's; and, called again, undoes that."""


def _forms(exact: Tensor, weight: Tensor, scale: Tensor) -> Iterator[tuple[int, Reorder]]:
    """Yield the dimensions along which the scales of a weight may lie, and the orders that its values may have."""
    orders: list[Reorder] = [_as_it_is]
    if exact.dim() == weight.dim() == 2:  # of ``x @ self.weight``
        orders.append(torch.t)
    elif exact.dim() == weight.dim() > 2 and weight.numel() > 0 and len(exact) % weight.shape[1] == 0:
        orders.append(partial(mirrored_weight, groups=len(exact) // weight.shape[1]))
    for reorder in orders:
        if reorder(exact).shape == weight.shape:
            axes = (0, 1) if reorder is _as_it_is and weight.dim() > 1 else (0,)
            yield from ((axis, reorder) for axis in axes if scale.shape in ((), (1,), weight.shape[axis : axis + 1]))


def _likeness(exact: Tensor, given: Tensor, axis: int) -> float:
    """Return the mean cosine of the angles between channels, without signs: a batch norm may have scaled them."""
    one, other = (weight.detach().double().movedim(axis, 0).flatten(1) for weight in (exact, given))
    return float(nn.functional.cosine_similarity(one, other).abs().mean())


def compare_model_outputs(
    float_model: nn.Module,
    q_model: nn.Module,
    *data: Any,
    logger_cls: Callable[[], Any] = OutputLogger,
    allow_list: Any = None,
) -> Compared:
    """Run both models on the same inputs, and return what each quantized unit gives in them, as floats.

    Args:
        float_model: The float model, or what ``prepare`` gave.
        q_model: What ``convert`` gave.
        data: Positional inputs of one call.
        logger_cls: Makes the loggers.
        allow_list: Refused: every unit is compared.

    Returns:
        Path of a layer and ``".stats"`` -> lists of values.

    Raises:
        InputError: as ``pair_of``.
        NotOffered: ``allow_list`` is given.
    """
    if allow_list is not None:
        raise NotOffered("allow_list is not offered", got="allow_list=...", hint="every unit is in the result")
    pair = pair_of(float_model, q_model)
    loggers = {point: (logger_cls(), logger_cls()) for point in pair.points}
    with torch.no_grad():
        Logged(pair.floats, {point.source: (one, _as_it_is) for point, (one, _) in loggers.items()})(*data)
        Logged(pair.quantized, {point.node: (one, point.readers_value) for point, (_, one) in loggers.items()})(*data)
    return _by_path(loggers)


def compare_model_stub(
    float_model: nn.Module,
    q_model: nn.Module,
    module_swap_list: Collection[type[nn.Module]],
    *data: Any,
    logger_cls: Callable[[], Any] = ShadowLogger,
) -> Compared:
    """Run the quantized model, and beside its units the float layers on the same values; return what both give.

    Args:
        float_model: The float model, or what ``prepare`` gave.
        q_model: What ``convert`` gave.
        module_swap_list: Classes of the float layers that are compared.
        data: Positional inputs of one call.
        logger_cls: Makes the loggers.

    Returns:
        Path of a layer and ``".stats"`` -> lists of values.

    Raises:
        InputError: as ``pair_of``; or no quantized layer is of these classes.
    """
    pair = pair_of(float_model, q_model)
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in module_swap_list}
    loggers = {
        point: (logger_cls(), logger_cls())
        for point in pair.points
        if point.floats is not None and pair.kind_of(point) in kinds
    }
    if not loggers:
        raise InputError(
            "no quantized layer is of these classes",
            got=", ".join(sorted(kinds)),
            expected=", ".join(sorted({pair.kind_of(point) for point in pair.points})),
            hint="classes of layers, not of blocks around them",
        )
    with torch.no_grad():
        Shadowed(pair, loggers)(*data)
    return _by_path(loggers)


def _by_path(loggers: Mapping[Any, tuple[Any, Any]]) -> Compared:
    def values_of(exact: Any, given: Any) -> dict[str, Any]:
        return {"float": exact.stats["tensor_val"], "quantized": given.stats["tensor_val"]}

    return {f"{point.module or point.name}.stats": values_of(*both) for point, both in loggers.items()}


def _as_it_is(value: Any) -> Any:
    return value


__all__ = ["OutputLogger", "ShadowLogger", "compare_model_outputs", "compare_model_stub", "compare_weights"]

__getattr__ = refusal_of
