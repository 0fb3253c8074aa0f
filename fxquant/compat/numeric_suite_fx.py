"""torch.ao's numeric suite for FX mode: weights and values of a float and of a quantized model, unit by unit.

The units are those of ``fxquant.compare``, which measures more with less: it keeps sums, not values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fxquant.compat.logged_models import Logged, Pair, Shadowed, pair_of
from fxquant.compat.not_offered import refusal_of
from fxquant.errors import InputError, NotOffered

Results = dict[str, dict[str, dict[str, list[dict[str, Any]]]]]
"""Layer -> ``"weight"``, ``"node_output"`` -> name of the model -> a dict for each."""


class OutputLogger(nn.Module):
    """Keeps the values that it is shown, in ``stats``. The arguments are torch.ao's, and become attributes."""

    def __init__(
        self,
        ref_node_name: str,
        prev_node_name: str,
        model_name: str,
        ref_name: str,
        prev_node_target_type: str,
        ref_node_target_type: str,
        results_type: str,
        index_within_arg: int,
        index_of_arg: int,
        fqn: str | None,
        qconfig_str: str | None = "",
    ) -> None:
        super().__init__()
        self.stats: list[Tensor] = []
        self.stats_rnn: list[Any] = []
        self.ref_node_name, self.prev_node_name = ref_node_name, prev_node_name
        self.model_name, self.ref_name = model_name, ref_name
        self.prev_node_target_type, self.ref_node_target_type = prev_node_target_type, ref_node_target_type
        self.results_type = results_type
        self.index_within_arg, self.index_of_arg = index_within_arg, index_of_arg
        self.fqn, self.qconfig_str = fqn, qconfig_str
        self.enabled = self.save_activations = True

    def forward(self, x: Any) -> Any:
        """Keep a tensor, or the results of a recurrent layer, and return it."""
        if self.enabled and self.save_activations:
            if isinstance(x, Tensor):
                self.stats.append(x.detach())
            elif isinstance(x, tuple):
                self.stats_rnn.append(pytree.tree_map(lambda one: one.detach(), x))
        return x


def extract_weights(
    model_name_a: str,
    model_a: nn.Module,
    model_name_b: str,
    model_b: nn.Module,
    base_name_to_sets_of_related_ops: Any = None,
    unmatchable_types_map: Any = None,
    op_to_type_to_weight_extraction_fn: Any = None,
) -> Results:
    """Return the weights of the layers of two models, as floats; batch norms are folded into both.

    Args:
        model_name_a: Name of the first model in the results.
        model_a: A float model, or what ``prepare_fx`` gave, or what ``convert_fx`` gave.
        model_name_b: Name of the second.
        model_b: The other one: one of the two is what ``convert_fx`` gave.
        base_name_to_sets_of_related_ops: Refused, as the others: units are matched by the names of their nodes.
        unmatchable_types_map: The same.
        op_to_type_to_weight_extraction_fn: The same.

    Raises:
        InputError: none of the models is quantized, or both are, or no layer of one is found in the other.
        NotOffered: a table of operators is given.
    """
    _refuse(base_name_to_sets_of_related_ops, unmatchable_types_map, op_to_type_to_weight_extraction_fn)
    pair = pair_of(model_a, model_b)
    results: Results = {}
    for point in pair.points:
        if (weights := point.weights) is None:
            continue
        values = {pair.float_name(model_name_a, model_name_b): weights.exact}
        values[pair.quantized_name(model_name_a, model_name_b)] = weights.given
        ordered = {name: [_row("weight", point, pair, [values[name]])] for name in (model_name_a, model_name_b)}
        results[point.name] = {"weight": ordered}
    return results


def add_loggers(
    name_a: str,
    model_a: nn.Module,
    name_b: str,
    model_b: nn.Module,
    logger_cls: Callable[..., Any],
    should_log_inputs: bool = False,
    base_name_to_sets_of_related_ops: Any = None,
    unmatchable_types_map: Any = None,
) -> tuple[nn.Module, nn.Module]:
    """Return two models that run as the given ones, and show what each unit gives, as floats, to loggers.

    Arguments and errors are those of ``extract_weights``; the models are not changed.

    Args:
        logger_cls: ``OutputLogger``, or a class of its arguments.
        should_log_inputs: Refused: what a unit reads is what others give.
    """
    _refuse(base_name_to_sets_of_related_ops, unmatchable_types_map)
    _refuse_inputs(should_log_inputs)
    pair = pair_of(model_a, model_b)
    names = pair.float_name(name_a, name_b), pair.quantized_name(name_a, name_b)
    floats = Logged(pair.floats, {p.source: (_logger(logger_cls, names[0], p, pair), _as_it_is) for p in pair.points})
    quantized = Logged(
        pair.quantized, {p.node: (_logger(logger_cls, names[1], p, pair), p.readers_value) for p in pair.points}
    )
    return (floats, quantized) if pair.quantized_is_second else (quantized, floats)


def extract_logger_info(
    model_a: nn.Module, model_b: nn.Module, logger_cls: type[nn.Module], model_name_to_use_for_layer_names: str
) -> Results:
    """Return what the loggers of two models have kept, by the names of nodes, which are the same in both.

    Raises:
        InputError: no logger has the name of the model that layers are to be named by.
    """
    return _collected((model_a, model_b), logger_cls, model_name_to_use_for_layer_names)


def add_shadow_loggers(
    name_a: str,
    model_a: nn.Module,
    name_b: str,
    model_b: nn.Module,
    logger_cls: Callable[..., Any],
    should_log_inputs: bool = False,
    base_name_to_sets_of_related_ops: Any = None,
    node_type_to_io_type_map: Any = None,
    unmatchable_types_map: Any = None,
) -> nn.Module:
    """Return a model that runs as the quantized one, with every float unit beside it, on the quantized model's values.

    Arguments and errors are those of ``add_loggers``.
    """
    _refuse(base_name_to_sets_of_related_ops, node_type_to_io_type_map, unmatchable_types_map)
    _refuse_inputs(should_log_inputs)
    pair = pair_of(model_a, model_b)
    names = pair.float_name(name_a, name_b), pair.quantized_name(name_a, name_b)
    loggers = {
        point: (_logger(logger_cls, names[0], point, pair), _logger(logger_cls, names[1], point, pair))
        for point in pair.points
        if point.floats is not None
    }
    return Shadowed(pair, loggers)


def extract_shadow_logger_info(
    model_a_shadows_b: nn.Module, logger_cls: type[nn.Module], model_name_to_use_for_layer_names: str
) -> Results:
    """Return what the loggers of a model of ``add_shadow_loggers`` have kept."""
    return _collected((model_a_shadows_b,), logger_cls, model_name_to_use_for_layer_names)


def extend_logger_results_with_comparison(
    results: Results,
    model_name_1: str,
    model_name_2: str,
    comparison_fn: Callable[[Tensor, Tensor], Any],
    comparison_name: str,
) -> None:
    """Add, in place, to what is known of the second model, ``comparison_fn(first, second)`` of each kept value."""
    for found in results.values():
        for by_model in found.values():
            for first, second in zip(by_model[model_name_1], by_model[model_name_2], strict=True):
                pairs = zip(first["values"], second["values"], strict=True)
                second[comparison_name] = [comparison_fn(one, other) for one, other in pairs]


def loggers_set_enabled(model: nn.Module, enabled: bool) -> None:
    """Let the loggers of a model keep values, or not."""
    for module in model.modules():
        if hasattr(module, "ref_node_name") and hasattr(module, "enabled"):
            vars(module)["enabled"] = enabled


def loggers_set_save_activations(model: nn.Module, save_activations: bool) -> None:
    """Let the loggers of a model keep values, or do all else but that."""
    for module in model.modules():
        if hasattr(module, "ref_node_name") and hasattr(module, "save_activations"):
            vars(module)["save_activations"] = save_activations


def compute_sqnr(x: Any, y: Any) -> Any:
    """Return the signal to noise ratio of ``y`` against ``x`` in dB; of lists and tuples, one for each pair."""
    return _each(x, y, lambda a, b: 20 * torch.log10(torch.linalg.vector_norm(a) / torch.linalg.vector_norm(a - b)))


def compute_normalized_l2_error(x: Any, y: Any) -> Any:
    """Return the length of the difference over that of ``x``; of lists and tuples, one for each pair."""
    return _each(x, y, lambda a, b: torch.sqrt(((a - b) ** 2).sum() / (a**2).sum()))


def compute_cosine_similarity(x: Any, y: Any) -> Any:
    """Return the cosine of the angle between two tensors, float [1]; of lists and tuples, one for each pair."""
    return _each(x, y, lambda a, b: nn.functional.cosine_similarity(a.reshape(1, -1), b.reshape(1, -1)))


def _each(x: Any, y: Any, compute: Callable[[Tensor, Tensor], Tensor]) -> Any:
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return [_each(one, other, compute) for one, other in zip(x, y, strict=True)]
    return compute(x, y) if x.dtype == y.dtype == torch.float32 else None


def _as_it_is(value: Any) -> Any:
    return value


def _facts(kind: str, point: Any, pair: Pair) -> dict[str, Any]:
    return {
        "type": kind,
        "ref_node_name": point.name,
        "ref_node_target_type": pair.kind_of(point),
        "prev_node_name": point.name,
        "prev_node_target_type": pair.kind_of(point),
        "index_within_arg": 0,
        "index_of_arg": 0,
        "fqn": point.module or None,
        "qconfig_str": "",
    }


def _row(kind: str, point: Any, pair: Pair, values: list[Any]) -> dict[str, Any]:
    return {**_facts(kind, point, pair), "values": values, "comparisons": [], "comparison_fn_name": ""}


def _logger(logger_cls: Callable[..., Any], model_name: str, point: Any, pair: Pair) -> Any:
    facts = _facts("node_output", point, pair)
    order = "ref_node_name", "prev_node_name"
    return logger_cls(
        *(facts[name] for name in order),
        model_name,
        point.name,
        facts["prev_node_target_type"],
        facts["ref_node_target_type"],
        facts["type"],
        0,
        0,
        facts["fqn"],
    )


_KEPT = (
    *("ref_node_name", "ref_node_target_type", "prev_node_name", "prev_node_target_type"),
    *("index_within_arg", "index_of_arg", "fqn", "qconfig_str"),
)


def _collected(models: tuple[nn.Module, ...], logger_cls: type[nn.Module], name: str) -> Results:
    results: Any = defaultdict(lambda: defaultdict(dict))
    names = set()
    for model in models:
        for module in model.modules():
            if isinstance(module, logger_cls):
                logger: Any = module
                row = {key: getattr(logger, key) for key in _KEPT}
                values = logger.stats_rnn or logger.stats
                row |= {"type": logger.results_type, "values": values, "comparisons": [], "comparison_fn_name": ""}
                results[logger.ref_name][logger.results_type][logger.model_name] = [row]
                names.add(logger.model_name)
    if name not in names:
        raise InputError("no model with loggers has this name", got=repr(name), expected=", ".join(sorted(names)))
    return {layer: {kind: dict(found) for kind, found in kinds.items()} for layer, kinds in results.items()}


def _refuse(*tables: Any) -> None:
    if any(table is not None for table in tables):
        raise NotOffered(
            "tables of operators are not offered",
            hint="units are matched by the names of their nodes; fxquant.compare(float, int8, data) lists them",
        )


def _refuse_inputs(should_log_inputs: bool) -> None:
    if should_log_inputs:
        raise NotOffered(
            "inputs of units are not logged", got="should_log_inputs=True", hint="what a unit reads is what others give"
        )


__all__ = [
    "OutputLogger",
    "add_loggers",
    "add_shadow_loggers",
    "compute_cosine_similarity",
    "compute_normalized_l2_error",
    "compute_sqnr",
    "extend_logger_results_with_comparison",
    "extract_logger_info",
    "extract_shadow_logger_info",
    "extract_weights",
    "loggers_set_enabled",
    "loggers_set_save_activations",
]

__getattr__ = refusal_of
