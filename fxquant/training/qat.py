"""``prepare_qat``: makes a model that trains as it will be quantized."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule

from fxquant.capture.copies import copy_of
from fxquant.fake_quantize.defaults import get_default_qat_qconfig_mapping
from fxquant.graph.module import set_metadata
from fxquant.passes.pipelines import TO_TRAINING
from fxquant.patterns.pattern import Pattern
from fxquant.plan.qconfig import QConfig, QConfigMapping
from fxquant.quantizer.checks import checked_model
from fxquant.quantizer.quantizer import Quantizer
from fxquant.quantizer.run_passes import run_passes
from fxquant.quantizer.state import drop_graph
from fxquant.training.carry_over import carry_over


class _TrainingQuantizer(Quantizer):
    trains = True


@torch.inference_mode(False)
def prepare_qat(
    model: nn.Module | ExportedProgram,
    example_inputs: Any,
    qconfig: QConfig | QConfigMapping | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    backend: str = "cpu",
    patterns: Sequence[Pattern] | None = None,
    leaf_modules: Sequence[type[nn.Module] | str] = (),
    strict: bool = False,
    capture: str = "auto",
    integer_inputs: bool | str | Sequence[str] = False,
    integer_outputs: bool | int | Sequence[int] = False,
) -> GraphModule:
    """Make a model that trains as it will be quantized, under ``inference_mode`` too. ``model`` is not changed.

    The graph is that of evaluation mode; batch norms and dropouts follow ``train()`` and ``eval()``. Every planned
    value goes through a fake-quantize module as ``qconfig`` makes it (an observer gets a ``FakeQuantize`` around it).
    The weight before a batch norm is quantized as it will be when the batch norm is folded into it, and trained as it
    is: ``bn(conv(x, fake_quantize(w * f) / f))``, with ``f = gamma / sqrt(running_var + eps)``, 1 where below 1e-12.
    A weight that ``forward`` computes (``w * mask``, ``w + a @ b``, a parametrization, a part of a parameter) is
    computed in each call, and rounded after that; ``convert`` takes the value that it has then. Parameters that this
    graph does not hold, as those of heads that only training uses, are named in a warning, and so is the code that only
    training runs.

    Args:
        model: The float model, in the mode in which training goes on; each module keeps its own. Or a program of
            ``torch.export``, as for :func:`prepare`.
        qconfig: None: ``get_default_qat_qconfig_mapping(backend)``.

    All other arguments, and errors, are those of :func:`prepare`.

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
    module = checked_model(model)
    copied = copy_of(module)
    copied.eval()
    preparation = _TrainingQuantizer(
        copied,
        example_inputs,
        get_default_qat_qconfig_mapping(backend) if qconfig is None else qconfig,
        example_kwargs=example_kwargs,
        backend=backend,
        patterns=patterns,
        leaf_modules=leaf_modules,
        strict=strict,
        capture=capture,
        integer_inputs=integer_inputs,
        integer_outputs=integer_outputs,
    )
    done = run_passes(preparation, TO_TRAINING, preparation.graph_module, preparation.plan)
    preparation.plan, preparation.snapshots = done.context.plan, done.snapshots
    drop_graph(preparation)
    trainable = done.graph_module
    set_metadata(trainable, preparation=preparation, quant_plan=preparation.plan, snapshots=done.snapshots)
    carry_over(module, trainable)
    return trainable
