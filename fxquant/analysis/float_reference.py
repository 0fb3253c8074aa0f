"""The float model as the graph that a quantized one was made from: the same nodes, under the same names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.nn.modules.batchnorm import _BatchNorm

from fxquant.errors import FxQuantError, FxQuantWarning, InputError
from fxquant.graph.affine import ChannelAffine
from fxquant.graph.macs import TRANSPOSED
from fxquant.graph.module import get_metadata
from fxquant.graph.query import BY_REQUEST, CALLED, canonical_type, module_of, module_path, nodes_by_name
from fxquant.measure.parity import plan_of
from fxquant.measure.runner import run_nodes
from fxquant.observers.defaults import get_default_qconfig_mapping
from fxquant.passes.fold_conv_bn import fold
from fxquant.plan.quant_plan import QuantPlan, QuantUnit
from fxquant.quantizer.quantizer import Quantizer
from fxquant.training.trained import quantizer_of


def is_trainable(model: nn.Module) -> bool:
    """Tell whether ``prepare_qat`` made a model."""
    return isinstance(getattr(model, "preparation", None), Quantizer)


def check_float_model(model: object) -> None:
    """Refuse what cannot be the float model.

    Raises:
        InputError: no module, or one that was converted.
    """
    if isinstance(model, Quantizer):
        return
    if not isinstance(model, nn.Module):
        raise InputError(
            "compare takes the float model first", got=type(model).__name__, expected="a torch.nn.Module or a Quantizer"
        )
    if isinstance(get_metadata(model, "quant_plan"), QuantPlan) and not is_trainable(model):
        raise InputError(
            "compare takes the float model first, then the quantized one",
            got=f"{type(model).__name__}, which convert gave",
            expected="the model that was quantized",
        )


def float_graph(
    model: nn.Module | Quantizer, quantized: GraphModule, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> GraphModule:
    """Return the float model, traced and normalized as it was before it was quantized. It is not changed.

    Args:
        model: A float module; what ``prepare`` gave, whose graph is taken as it is; or what ``prepare_qat`` gave, which
            is then taken without its roundings.
        quantized: The model that is to be compared with it.
        args, kwargs: A batch.

    Raises:
        InputError: it cannot be traced.
    """
    if isinstance(model, Quantizer):
        return model.graph_module
    if is_trainable(model):
        return quantizer_of(model, allow_uncalibrated=True).graph_module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FxQuantWarning)  # all was said when the model was quantized
            prepared = Quantizer(
                model, args, _configuration(quantized), example_kwargs=kwargs, leaf_modules=_asked_for(quantized)
            )
    except FxQuantError as error:
        raise InputError(
            f"the float model cannot be compared: {error}",
            hint="compare(prepared, …) takes the graph that prepare made, in place of the float model",
        ) from error
    return prepared.graph_module


def quantized_graph(model: object) -> GraphModule:
    """Return the graph of the quantized model that ``compare`` was given; of a model in training, what it would become.

    Raises:
        InputError: it is no quantized model.
    """
    if isinstance(model, Quantizer):
        raise InputError(
            "compare takes a quantized model second",
            got="what prepare gave",
            expected="what convert gave",
            hint="convert(prepared), or convert(prepared, to='fake_quant')",
        )
    if isinstance(model, nn.Module) and is_trainable(model):
        return quantizer_of(model).convert(to="fake_quant")
    plan_of(model)  # type: ignore[arg-type]  # raises where it is nothing of the kind
    assert isinstance(model, GraphModule)  # only these have a plan
    return model


def _configuration(quantized: GraphModule) -> Any:
    """Return a configuration that takes apart what was taken apart, and nothing else: names of nodes depend on that."""
    mapping = get_default_qconfig_mapping()
    for node in quantized.graph.nodes:
        module = module_of(node)
        if module is not None and canonical_type(module) is nn.MultiheadAttention:
            mapping.set_module_name(str(node.target), None)
        elif node.target is F.scaled_dot_product_attention:
            mapping.set_object_type(F.scaled_dot_product_attention, None)
    return mapping


def _asked_for(quantized: GraphModule) -> tuple[str, ...]:
    """Return the modules that the user had kept whole."""
    kept = (n for n in quantized.graph.nodes if n.op == "call_module" and n.meta.get(BY_REQUEST))
    return tuple(dict.fromkeys(module_path(node)[0] for node in kept))


@dataclass(frozen=True, slots=True)
class FloatUnit:
    """The nodes of the float graph that a unit stands for."""

    members: tuple[Node, ...]
    """In the order in which they run; the last one's value is the unit's."""
    inputs: tuple[Node, ...]
    """What they read of others."""

    def run(self, values: Mapping[Node, Any], layer: Callable[..., Any] | None = None) -> Any:
        """Return the value of the unit, for these values of ``inputs``.

        Args:
            values: Those of ``inputs``.
            layer: Called in place of the layer with the weight and of a batch norm after it.
        """
        if layer is None:
            return run_nodes(self.members, values)
        norms = [node for node in self.members if isinstance(module_of(node), (_BatchNorm, ChannelAffine))]
        instead: dict[Node, Callable[..., Any]] = {node: lambda x, *_: x for node in norms}
        return run_nodes(self.members, values, instead | ({} if self.layer is None else {self.layer: layer}))

    @property
    def layer(self) -> Node | None:
        """Return the node that calls the layer with the weight."""
        return next((node for node in self.members if is_layer(module_of(node))), None)

    def layer_as_run(self) -> nn.Module | None:
        """Return the layer with the weight, with a batch norm after it folded in."""
        norm = next((m for node in self.members if isinstance(m := module_of(node), (_BatchNorm, ChannelAffine))), None)
        layer = None if self.layer is None else module_of(self.layer)
        if layer is None or norm is None or norm.running_var is None:
            return layer
        return fold(layer, norm, int(isinstance(layer, TRANSPOSED)))

    @property
    def channel_axis(self) -> int | None:
        """Dimension of the unit's value that counts its channels, negative; None where no layer says so."""
        layer: Any = None if self.layer is None else module_of(self.layer)
        if layer is None:
            return None
        return -1 if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) else 1 - layer.weight.dim()


def is_layer(module: Any) -> bool:
    """Tell whether a module multiplies with a weight of more than one dimension."""
    weight = getattr(module, "weight", None)
    return isinstance(weight, Tensor) and weight.dim() > 1


def float_unit(unit: QuantUnit, plan: QuantPlan, floats: GraphModule, quantized: GraphModule) -> FloatUnit | str:
    """Return the nodes that a unit stands for, or why there are none."""
    nodes, there = nodes_by_name(floats), nodes_by_name(quantized)
    if unit.root not in nodes:
        return f"the float model has no value of the name {unit.root!r}; is it the model that was quantized?"
    stops = {unit.roles[role].name for role in unit.inputs} | {u.root for u in plan.units if u.root != unit.root}
    root = nodes[unit.root]
    # Walk back from the root to what the unit reads, or to what another unit makes.
    inside: set[Node] = set()
    inputs: set[Node] = set()

    def visit(node: Node) -> None:
        own = node is root or node.name in unit.nodes or node.name not in there
        if node.name in stops or node.op in ("placeholder", "get_attr") or not own:
            inputs.add(node)
        elif node not in inside:
            inside.add(node)
            for source in node.all_input_nodes:
                visit(source)

    visit(root)
    # Refuse a value that has the same name by chance.
    paths = {module_path(node)[0] for node in inside}
    path = (there[unit.root].meta.get(CALLED) or ("",))[0]
    if path and path not in paths:
        return f"it is made by {path!r}, the value of that name in the float model by {module_path(root)[0]!r}"
    members = tuple(node for node in floats.graph.nodes if node in inside)
    return FloatUnit(members, tuple(node for node in floats.graph.nodes if node in inputs))
