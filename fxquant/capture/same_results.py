"""Compares what a trace gave on the example with what the model gives: code may have gone another way on proxies.

Nothing tells Python's ``is``, ``type()`` and ``issubclass()`` what a proxy stands for: ``mode is Mode.FAST`` is False.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.capture.proxies import TensorProxy, on_example
from fxquant.errors import TracingError
from fxquant.graph.inputs import describe_value
from fxquant.graph.query import has_hooks

LARGEST_DIFFERENCE = 1e-3
"""Of results, as a share of the largest value: an attention may sum in another order; other code is not that near."""


def check_results(copies: Callable[[], nn.Module], inputs: tuple[Any, Mapping[str, Any]], result: Any, by: str) -> None:
    """Refuse a graph whose results on the example are not those of the model.

    Models whose results hang on chance are not compared, nor those with hooks, which would see one call more.

    Args:
        copies: Gives a copy of the model, to run.
        inputs: Positional and keyword inputs, the example.
        result: What the graph gives.
        by: What made it: ``"torch.fx"``.

    Raises:
        TracingError: the results differ.
    """
    model = copies()
    if any(has_hooks(module) for module in model.modules()):
        return
    got = list(_tensors(result))
    with torch.no_grad(), torch.random.fork_rng(devices=()):
        expected = _results(model, inputs)
        if expected is None or _are_alike(got, expected):
            return
        again = _results(copies(), inputs)
        if again is None or not _are_alike(again, expected):
            return
    of_other_sizes = [(x.shape, x.dtype) for x in got] != [(x.shape, x.dtype) for x in expected]
    listed = [", ".join(map(describe_value, values)) or "no tensor" for values in (got, expected)]
    error = TracingError(
        f"the graph that {by} makes gives results of other {'sizes' if of_other_sizes else 'values'} than the model",
        got=f"{listed[0]} where the model gives {listed[1]}" if of_other_sizes else listed[0],
        expected="code that compares arguments, and what comes of them, by ==, and asks for kinds by isinstance",
        hint=("capture='export' may do; " if by == "torch.fx" else "")
        + "`is`, type() and issubclass() do not see what stands for a tensor or a number while a graph is made",
    )
    error.submodule = ""
    raise error


def _results(model: nn.Module, bound: tuple[Any, Mapping[str, Any]]) -> list[Tensor] | None:
    args, kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.detach().clone(), bound)
    try:
        return list(_tensors(model(*args, **kwargs)))
    except Exception:  # it is traced, but does not run as it is: nothing can be compared
        return None


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a result, in the order of its containers; of what stands for one, that of the example."""
    if isinstance(value, TensorProxy):
        yield from _tensors(on_example(value))
    elif isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for each in dataclasses.fields(value):
            yield from _tensors(getattr(value, each.name))


def _are_alike(got: list[Tensor], expected: list[Tensor]) -> bool:
    return len(got) == len(expected) and all(map(_is_alike, got, expected))


def _is_alike(got: Tensor, expected: Tensor) -> bool:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    plain = got.layout is torch.strided and not got.is_quantized and not got.is_meta and got.device == expected.device
    if not plain or not (got.is_floating_point() or got.is_complex()):
        return True  # an index follows from the last bits of what is compared
    finite = torch.isfinite(expected)
    if not torch.equal(torch.isfinite(got), finite):
        return False
    a, b = got.detach()[finite], expected.detach()[finite]
    share = max(LARGEST_DIFFERENCE, 16 * torch.finfo(got.dtype).eps)
    return not b.numel() or bool((a - b).abs().max() <= share * b.abs().max())
