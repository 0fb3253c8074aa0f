"""Quantization-aware training: a trainable model out of a float one, and back to what ``convert`` takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.calibration.joined_ranges import parts_in_training
from fxquant.calibration.statistics import Statistics
from fxquant.capture.hooks import carry_over_gradient_hooks
from fxquant.capture.tracing import copy_of
from fxquant.errors import CalibrationError, listing, warn
from fxquant.fake_quantize.base import FakeQuantizeBase, disable_observer
from fxquant.fake_quantize.defaults import get_default_qat_qconfig_mapping
from fxquant.fake_quantize.learnable import LearnableFakeQuantize
from fxquant.fake_quantize.own import OwnIntegers
from fxquant.graph.edit import order_alike
from fxquant.graph.module import RECORD, NamedGraphModule, note, noted
from fxquant.graph.query import follow
from fxquant.nn.frozen import forget_frozen_state, freeze_bn_stats, keep_frozen_state
from fxquant.passes.instruments import instruments_for
from fxquant.passes.manager import PassManager
from fxquant.passes.pipelines import FROM_TRAINING, TO_TRAINING
from fxquant.patterns.pattern import Pattern
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.plan.quant_plan import QuantPlan
from fxquant.plan.spec import QParams, TensorRef
from fxquant.quantizer.checks import check_model, not_prepared
from fxquant.quantizer.quantizer import Quantizer
from fxquant.settings import read_settings


class _TrainingQuantizer(Quantizer):
    trains = True


@torch.inference_mode(False)
def prepare_qat(
    model: nn.Module,
    example_inputs: Any,
    qconfig: QConfig | QConfigMapping | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    backend: str = "cpu",
    patterns: Sequence[Pattern] | None = None,
    leaf_modules: Sequence[type[nn.Module] | str] = (),
    strict: bool = False,
) -> GraphModule:
    """Make a model that trains as it will be quantized, under ``inference_mode`` too. ``model`` is not changed.

    The graph is that of evaluation mode; batch norms and dropouts follow ``train()`` and ``eval()``. Every planned
    value goes through a fake-quantize module as ``qconfig`` makes it (an observer gets a ``FakeQuantize`` around it).
    The weight before a batch norm is quantized as it will be when the batch norm is folded into it, and trained as it
    is: ``bn(conv(x, fake_quantize(w * f) / f))``, with ``f = gamma / sqrt(running_var + eps)``, 1 where below 1e-12.
    A weight that ``forward`` computes (``w * mask``, ``w + a @ b``, a parametrization, a part of a parameter) is
    computed in each call, and rounded behind that; ``convert`` takes the value that it has then. Parameters that this
    graph does not hold, as those of heads that only training uses, are named in a warning.

    Args:
        model: The float model, in the mode in which training goes on; each module keeps its own.
        qconfig: None: ``get_default_qat_qconfig_mapping(backend)``.

    All other arguments, and errors, are those of :class:`Quantizer`.

    Returns:
        A ``torch.fx.GraphModule`` whose parameters are named as in ``model``, with fake-quantize modules beside them.
        It copies, pickles, and goes through ``convert``. Its state holds all switches, ``freeze_bn_stats`` too. Hooks
        of gradients that parameters of ``model`` have are registered on its own parameters as well.

    Source:
        Jacob et al., arXiv:1712.05877, section 3; Krishnamoorthi, arXiv:1806.08342, section 3.2.2.

    Example:
        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> qat = prepare_qat(model, torch.randn(2, 3, 8, 8))
        >>> [name for name, _ in qat.named_parameters()]
        ['0.weight', '0.bias', '1.weight', '1.bias']
    """
    check_model(model)
    preparation = _TrainingQuantizer(
        copy_of(model).eval(),
        example_inputs,
        get_default_qat_qconfig_mapping(backend) if qconfig is None else qconfig,
        example_kwargs=example_kwargs,
        backend=backend,
        patterns=patterns,
        leaf_modules=leaf_modules,
        strict=strict,
    )
    ctx = preparation.context(preparation.plan)
    manager = PassManager(TO_TRAINING, instruments_for(read_settings()), first=len(preparation.snapshots))
    trainable: Any = manager.run(preparation.graph_module, ctx)
    follow(trainable, model)
    preparation.plan = ctx.plan
    preparation.snapshots += manager.snapshots
    preparation.observers, preparation.weight_layers = nn.ModuleDict(), nn.ModuleDict()
    preparation.graph_module = NamedGraphModule(nn.Module(), torch.fx.Graph())
    preparation.statistics = Statistics(preparation.graph_module, QuantPlan(), preparation.observers)
    note(trainable, preparation=preparation, quant_plan=ctx.plan, snapshots=preparation.snapshots)
    modes = {name: module.training for name, module in model.named_modules()}
    for name, module in trainable.named_modules():
        while name not in modes:  # what passes have made follows what it is in
            name = name.rpartition(".")[0]
        module.training = modes[name]
    order_alike(trainable, model)
    trainable.apply(keep_frozen_state)
    carry_over_gradient_hooks(model, trainable)
    _warn_of_left_out(model, trainable)
    return trainable


def quantizer_of(trained: nn.Module, *, allow_uncalibrated: bool = False) -> Quantizer:
    """What ``convert`` takes, from a model that was trained: its float graph, and the grids in use. It is not changed.

    Raises:
        InputError: not what ``prepare_qat`` gave.
        CalibrationError: a grid was never chosen, since its observer saw nothing; the message names it.
    """
    preparation: Any = noted(trained, "preparation")
    if not isinstance(trained, GraphModule) or not isinstance(preparation, Quantizer):
        raise not_prepared(trained, "convert", or_training=True)
    quantizer = copy.copy(preparation)
    fake_quants = dict(_fake_quants(trained, preparation.plan.fake_quants))
    quantizer.trained = _qparams(fake_quants, allow_uncalibrated)
    quantizer.trained_joins = parts_in_training(trained)
    quantizer.weight_layers = _layers_of_own_integers(trained, preparation.plan)
    ctx = quantizer.context(preparation.plan)
    manager = PassManager(FROM_TRAINING, instruments_for(read_settings()), first=len(preparation.snapshots))
    settled = copy.deepcopy(trained).eval().apply(forget_frozen_state)  # so that no norm goes on iterating
    quantizer.graph_module = manager.run(settled, ctx)
    del vars(quantizer.graph_module)[RECORD]
    quantizer.snapshots += manager.snapshots
    return quantizer


def scale_parameters(model: nn.Module) -> Iterator[nn.Parameter]:
    """The parameters of grids, ``scale`` and ``zero_point`` of learnable fake-quantize modules, for an optimizer group.

    Example:
        >>> import torch
        >>> from fxquant.training.qat import scale_parameters
        >>> model = torch.nn.Linear(2, 2)
        >>> list(scale_parameters(model))
        []
    """
    for module in model.modules():
        if isinstance(module, LearnableFakeQuantize):
            yield from module.parameters()


class TrainingSchedule:
    """When training stops to choose grids, and when batch norms stop to average.

    Args:
        disable_observers: First epoch, from 0, in which grids stay as they are. None: never.
        freeze_bn_stats: First epoch in which the statistics of batch norms stay as they are. None: never.

    Example:
        >>> import torch
        >>> from fxquant.training.qat import TrainingSchedule
        >>> schedule = TrainingSchedule(disable_observers=2, freeze_bn_stats=3)
        >>> model = torch.nn.Linear(2, 2)
        >>> for epoch in range(4):
        ...     schedule.start_epoch(model, epoch)
    """

    def __init__(self, *, disable_observers: int | None = None, freeze_bn_stats: int | None = None) -> None:
        self.disable_observers = disable_observers
        self.freeze_bn_stats = freeze_bn_stats

    def start_epoch(self, model: nn.Module, epoch: int) -> None:
        """To be called at the start of each epoch, before or after ``model.train()``; of a resumed training too."""
        if self.disable_observers is not None and epoch >= self.disable_observers:
            model.apply(disable_observer)
        if self.freeze_bn_stats is not None and epoch >= self.freeze_bn_stats:
            model.apply(freeze_bn_stats)


def _warn_of_left_out(model: nn.Module, trainable: nn.Module) -> None:
    """Name the parameters that trained before, and no longer do."""
    kept = {name for name, _ in trainable.named_parameters(remove_duplicate=False)}
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            names.setdefault(id(parameter), []).append(name)
    left_out = [tied[0] for tied in names.values() if kept.isdisjoint(tied)]
    if left_out:
        warn(
            "parameters of the model are not in the graph of evaluation mode, and will not be trained",
            got=listing(left_out),
            hint="heads that only training runs are left out; what forward makes a number (by item()) is fixed",
        )


def _fake_quants(gm: GraphModule, homes: Mapping[TensorRef, str]) -> Iterator[tuple[TensorRef, Any]]:
    for ref, path in homes.items():
        module = gm.get_submodule(path)
        found: Any = getattr(module, "weight_fake_quant", module)
        if isinstance(found, FakeQuantizeBase):
            yield ref, found


def _layers_of_own_integers(gm: GraphModule, plan: QuantPlan) -> nn.ModuleDict:
    """Copies of the layers whose weight rounds in its own way, under the roots of their units."""
    layers = nn.ModuleDict()
    for unit in plan.units:
        path = plan.fake_quants.get(unit.roles["weight"]) if "weight" in unit.roles else None
        layer: Any = None if path is None else gm.get_submodule(path)
        if layer is not None and isinstance(layer.weight_fake_quant, OwnIntegers):
            layers._modules[unit.root] = copy.deepcopy(layer)
    return layers


def _qparams(modules: Mapping[TensorRef, Any], allow_uncalibrated: bool) -> dict[TensorRef, QParams]:
    """The grids in use; nothing is observed. Those that training never saw are warned of."""
    qparams: dict[TensorRef, QParams] = {}
    missing, unseen = [], []
    for ref, module in modules.items():
        if module.has_qparams():
            qparams[ref] = module.qparams()
        else:
            missing.append(ref.name)
            if ref.kind == "activation":  # of a shell, a weight tells its grid itself
                unknown = torch.full((1,), float("nan"), dtype=torch.float32)
                qparams[ref] = QParams(module.scheme, unknown, torch.zeros(1, dtype=torch.int32))
        if module.is_on("observer_enabled") and not module.is_on("fake_quant_enabled"):
            unseen.append(ref.name)
    if missing and not allow_uncalibrated:
        raise CalibrationError(
            f"{len(missing)} fake-quantize modules have no grid: they never saw a value",
            got=listing(missing),
            hint="train, or run a batch with observers on (enable_observer), before convert",
        )
    if unseen:
        warn(
            "observers went on after fake quantization was turned off, so the grids are not those of the training",
            got=listing(unseen),
            hint="disable_observer, when fake quantization is turned off",
        )
    return qparams
