"""Matches a float model with the quantized one, and runs them so that loggers see what their units give."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.fx import GraphModule, Node

from fxquant.analysis.comparison_points import ComparisonPoint, comparison_points
from fxquant.analysis.float_reference import float_graph
from fxquant.compat.preparation import is_prepared
from fxquant.compat.reading_observers import quantizer_from
from fxquant.errors import FxQuantWarning, InputError
from fxquant.graph.inputs import bind
from fxquant.graph.interpreter import WatchedRun
from fxquant.graph.module import get_metadata
from fxquant.graph.query import module_of
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import as_taken


@dataclass(frozen=True)
class Pair:
    """A float graph and a quantized graph, and where they can be compared. A copy finds them in its own graphs."""

    floats: GraphModule
    quantized: GraphModule
    by_node: Mapping[Node, ComparisonPoint]
    """Node of the quantized graph -> the unit, or the value that is quantized and that no unit makes."""
    quantized_is_second: bool

    def __reduce__(self) -> tuple[Any, ...]:
        return _matched, (self.floats, self.quantized, self.quantized_is_second)

    @property
    def points(self) -> tuple[ComparisonPoint, ...]:
        """Return the units in the order of the quantized graph."""
        return tuple(point for point in self.by_node.values() if point.unit is not None)

    def float_name(self, name_a: str, name_b: str) -> str:
        """Return the name of the float model, of those of the first and the second model."""
        return name_a if self.quantized_is_second else name_b

    def quantized_name(self, name_a: str, name_b: str) -> str:
        """Return the name of the quantized model."""
        return name_b if self.quantized_is_second else name_a

    def kind_of(self, point: ComparisonPoint) -> str:
        """Return the class or the function of the float layer, as text."""
        module = module_of(point.layer)
        target: Any = point.layer.target if module is None else type(module)
        name = getattr(target, "__qualname__", getattr(target, "__name__", str(target)))
        return f"{getattr(target, '__module__', '')}.{name}"


def pair_of(model_a: nn.Module, model_b: nn.Module) -> Pair:
    """Match two models, of which one was converted, and the other one is the float model or was prepared.

    Raises:
        InputError: none of them was converted, or both were; or no unit of one is found in the other.
    """
    both = model_a, model_b
    converted = [get_metadata(model, "quant_plan") is not None and not is_prepared(model) for model in both]
    if sum(converted) != 1:
        raise InputError(
            "one of the models is to be quantized, and the other one not",
            got="two quantized models" if all(converted) else "no quantized model",
            expected="what convert_fx gave, and the float model or what prepare_fx gave",
        )
    quantized, float_model = (model_b, model_a) if converted[1] else (model_a, model_b)
    assert isinstance(quantized, GraphModule)
    floats = _float_graph(float_model, quantized)
    made = _matched(floats, quantized, converted[1])
    if not made.points:
        raise InputError(
            "no layer of the quantized model is found in the float model", expected="the model that was quantized"
        )
    return made


def _matched(floats: GraphModule, quantized: GraphModule, quantized_is_second: bool) -> Pair:
    points = comparison_points(quantized, plan_of(quantized), floats)
    return Pair(floats, quantized, points.by_node, quantized_is_second)


def _float_graph(model: nn.Module, quantized: GraphModule) -> GraphModule:
    if not isinstance(model, GraphModule) or not is_prepared(model):
        no_example: Any = None
        return float_graph(model, quantized, no_example, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)  # of values that no observer has seen
        return quantizer_from(model).graph_module


def _run(gm: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any], show: Callable[[Node, Any], None]) -> Any:
    bound = as_taken(gm, bind(gm, args, kwargs, "this batch"))
    return WatchedRun(gm, bound, show).run()


def _key(name: str, place: int = 0) -> str:
    """Return the key of a logger among the modules; ``nn.ModuleDict`` refuses some names of nodes: ``keys``."""
    return f"{name}_{place}"


class Logged(nn.Module):
    """Runs a graph, and shows the values of some nodes to loggers.

    Args:
        graph_module: It is not changed.
        loggers: Node -> its logger, and what makes of the value of the node what the logger sees.
    """

    def __init__(
        self, graph_module: GraphModule, loggers: Mapping[Node, tuple[nn.Module, Callable[[Any], Any]]]
    ) -> None:
        super().__init__()
        self.graph_module = graph_module
        self.loggers = nn.ModuleDict({_key(node.name): logger for node, (logger, _) in loggers.items()})
        self._forms = {node.name: form for node, (_, form) in loggers.items()}  # a copy has other nodes
        self.train(graph_module.training)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the graph returns."""

        def show(node: Node, value: Any) -> None:
            if node.name in self._forms:
                self.loggers[_key(node.name)](self._forms[node.name](value))

        return _run(self.graph_module, args, kwargs, show)


class Shadowed(nn.Module):
    """Runs a quantized graph, and beside each of its units the float one on the same values.

    Args:
        pair: The graphs. They are not changed.
        loggers: Unit -> the logger of the float value, and that of the quantized one, which sees floats, too.
    """

    def __init__(self, pair: Pair, loggers: Mapping[ComparisonPoint, tuple[nn.Module, nn.Module]]) -> None:
        super().__init__()
        self.graph_module = pair.quantized
        self.loggers = nn.ModuleDict(
            {_key(point.name, place): one for point, both in loggers.items() for place, one in enumerate(both)}
        )
        self._pair = pair

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the quantized graph returns."""
        seen: dict[str, Any] = {}

        def show(node: Node, value: Any) -> None:
            point = self._pair.by_node.get(node)
            if point is None:
                seen.setdefault(node.name, value)
                return
            seen[point.name] = point.dequantized(value)
            if _key(point.name) not in self.loggers:
                return
            assert point.floats is not None
            to_float, to_quantized = (self.loggers[_key(point.name, place)] for place in (0, 1))
            inputs = {source: self._value(source, seen) for source in point.floats.inputs}
            to_float(point.floats.run(inputs))
            to_quantized(seen[point.name])

        return _run(self.graph_module, args, kwargs, show)

    def _value(self, source: Node, seen: Mapping[str, Any]) -> Any:
        if source.name in seen:
            return seen[source.name]
        value: Any = self._pair.floats
        for name in str(source.target).split("."):  # a parameter
            value = getattr(value, name)
        return value
