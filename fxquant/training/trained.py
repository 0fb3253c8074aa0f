"""From a model that was trained to what ``convert`` takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.calibration.joined_ranges import parts_in_training
from fxquant.errors import CalibrationError, InputError, listing, warn
from fxquant.fake_quantize.adaround import LearnedRounding
from fxquant.fake_quantize.base import FakeQuantizeBase
from fxquant.graph.module import METADATA, get_metadata
from fxquant.nn.training import forget_frozen_state
from fxquant.passes.pipelines import FROM_TRAINING
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.checks import not_prepared
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import run_passes


def quantizer_of(trained: nn.Module, *, allow_uncalibrated: bool = False) -> Quantizer:
    """Make of a model that was trained what ``convert`` takes: its float graph, and the qparams in use.

    ``trained`` is not changed.

    Raises:
        InputError: not what ``prepare_qat`` gave.
        CalibrationError: qparams were never chosen, since their observer saw nothing; the message names it.
    """
    preparation: Any = get_metadata(trained, "preparation")
    if not isinstance(trained, GraphModule) or not isinstance(preparation, Quantizer):
        raise not_prepared(trained, "convert", or_training=True)
    if not preparation.trains:  # of fxquant.compat: its observers stand in the graph
        raise InputError(
            "this model has observers in its graph, as prepare_fx makes them",
            got=type(trained).__name__,
            expected="what fxquant.prepare or fxquant.prepare_qat gave",
            hint="fxquant.compat.quantize_fx.convert_fx(prepared)",
        )
    _refuse_sharded(trained)
    quantizer = copy.copy(preparation)
    fake_quants = dict(_fake_quants(trained, preparation.plan.fake_quants))
    quantizer.trained = _qparams(fake_quants, allow_uncalibrated)
    _warn_of_zeros(trained, fake_quants)
    quantizer.trained_joins = parts_in_training(trained)
    quantizer.weight_layers = _layers_with_learned_rounding(trained, preparation.plan)
    evaluated = copy.deepcopy(trained).eval().apply(forget_frozen_state)  # so that no norm goes on iterating
    done = run_passes(quantizer, FROM_TRAINING, evaluated, preparation.plan)
    quantizer.graph_module, quantizer.snapshots = done.graph_module, done.snapshots
    del vars(quantizer.graph_module)[METADATA]
    return quantizer


def _refuse_sharded(trained: nn.Module) -> None:
    """Refuse parameters of which this process holds a part: ``DTensor``, as FSDP makes them."""
    sharded = [name for name, value in trained.named_parameters() if hasattr(value, "full_tensor")]
    if sharded:
        raise InputError(
            "the parameters of this model are sharded among processes",
            got=listing(sharded[:3]),
            expected="the whole model",
            hint="load get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)) of "
            "torch.distributed.checkpoint.state_dict into a model that prepare_qat gives anew",
        )


def _fake_quants(gm: GraphModule, homes: Mapping[TensorRef, str]) -> Iterator[tuple[TensorRef, Any]]:
    for ref, path in homes.items():
        module = gm.get_submodule(path)
        found: Any = getattr(module, "weight_fake_quant", module)
        if isinstance(found, FakeQuantizeBase):
            yield ref, found


def _layers_with_learned_rounding(gm: GraphModule, plan: QuantPlan) -> nn.ModuleDict:
    """Return the copies of the layers whose weight rounds in its own way, under the roots of their units."""
    layers = nn.ModuleDict()
    for unit in plan.units:
        path = plan.fake_quants.get(unit.roles["weight"]) if "weight" in unit.roles else None
        layer: Any = None if path is None else gm.get_submodule(path)
        if layer is not None and isinstance(layer.weight_fake_quant, LearnedRounding):
            layers._modules[unit.root] = copy.deepcopy(layer)
    return layers


def _qparams(modules: Mapping[TensorRef, Any], allow_uncalibrated: bool) -> dict[TensorRef, QParams]:
    """Return the qparams in use; nothing is observed. Those that training never saw are warned of."""
    qparams: dict[TensorRef, QParams] = {}
    missing, unseen = [], []
    for ref, module in modules.items():
        if module.has_qparams():
            qparams[ref] = module.qparams()
        else:
            missing.append(ref.name)
            if ref.kind == "activation":  # a weight tells its qparams itself, uncalibrated too
                unknown = torch.full((1,), float("nan"), dtype=torch.float32)
                qparams[ref] = QParams(module.scheme, unknown, torch.zeros(1, dtype=torch.int32))
        if module.is_on("observer_enabled") and not module.is_on("fake_quant_enabled"):
            unseen.append(ref.name)
    if missing and not allow_uncalibrated:
        raise CalibrationError(
            f"{len(missing)} fake-quantize modules have no qparams: they never saw a value",
            got=listing(missing),
            hint="train, or run a batch with observers on (enable_observer), before convert",
        )
    if unseen:
        warn(
            "observers went on after fake quantization was turned off, so the qparams are not those of the training",
            got=listing(unseen),
            hint="disable_observer, when fake quantization is turned off",
        )
    return qparams


def _warn_of_zeros(gm: GraphModule, modules: Mapping[TensorRef, Any]) -> None:
    """Warn of inputs that were zero throughout; inside, a layer that is dropped at random gives zeros at times."""
    inputs = {node.name for node in gm.graph.nodes if node.op == "placeholder"}
    given = {ref.name: getattr(module, "activation_post_process", None) for ref, module in modules.items()}
    if zeros := [name for name, observer in given.items() if name in inputs and _saw_zeros_alone(observer)]:
        warn(
            "training saw zeros alone, so nothing else can be held",
            got=listing(zeros),
            hint="train on data, or keep what reads this input in float: set_module_name(name, None)",
        )


def _saw_zeros_alone(observer: Any) -> bool:
    ends = [getattr(observer, name, None) for name in ("min_val", "max_val")]
    return all(isinstance(end, Tensor) and end.numel() > 0 and not bool(end.any()) for end in ends)
