"""A converted model as a graph of float operators between quantize and dequantize, which other tools read."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from fxquant.errors import InputError
from fxquant.exporting.decomposed import register
from fxquant.exporting.qparams import ExplicitQParams, FloatZeroPoints
from fxquant.exporting.rewrite import Rewriting
from fxquant.quantizer.checks import named_by_stage, stage_of
from fxquant.training.trained import quantizer_of

EXPLICIT_FORM = "fxquant.explicit"
"""Key of ``GraphModule.meta``: True for what :func:`explicit` gave."""


class ExplicitModel(GraphModule):
    """The explicit form, whose float dtype is part of its graph."""

    def _apply(self, fn: Any, recurse: bool = True) -> ExplicitModel:
        """Move all tensors, as ``to`` and ``cuda`` do.

        Raises:
            InputError: it is to become of another float dtype: casts in the graph and units would stay what they are.
        """
        plain = [module for module in self.modules() if not isinstance(module, (ExplicitQParams, FloatZeroPoints))]
        own = [tensor for module in plain for tensor in (*module._parameters.values(), *module._buffers.values())]
        for dtype in {tensor.dtype for tensor in own if tensor is not None and tensor.is_floating_point()}:
            cast = fn(torch.zeros(1, dtype=dtype)).dtype
            if cast != dtype:
                raise InputError(
                    "the dtype of an explicit model is part of its graph",
                    got=f"a cast to {str(cast).removeprefix('torch.')}",
                    hint="cast the converted model first: fxq.explicit(converted.half())",
                )
        super()._apply(fn, recurse)
        return self


def explicit(model: nn.Module) -> GraphModule:
    """Return a converted model as float operators between operators of ``quantized_decomposed``.

    Compilers and runtimes read this form: torchao, OpenVINO and ExecuTorch by the names of its operators. Each unit is
    ``dequantize``, the float operator, and ``quantize``; weights are integers that are dequantized in each call. On the
    CPU it computes what ``convert(to="reference")`` computes.

    Args:
        model: What ``convert`` or ``load`` gave: int8, reference or fake_quant; or what ``prepare_qat`` gave, which is
            converted first. Not changed.

    Raises:
        InputError: another model.
        CalibrationError: the qparams are unknown, since it was converted without calibration.
        LoweringError: it holds a module without an explicit form, see :func:`register_explicit`, or a zero point that
            is no whole number.
    """
    if isinstance(model, GraphModule) and model.meta.get(EXPLICIT_FORM):
        return model
    converted = _converted(model)
    register()
    rewriting = Rewriting(converted)
    for node in converted.graph.nodes:
        rewriting.add(node)
    made = ExplicitModel(rewriting.attributes, rewriting.graph, type(model).__name__)
    made.meta[EXPLICIT_FORM] = True
    return made.eval()


def _converted(model: nn.Module) -> GraphModule:
    stage = stage_of(model)
    if stage == "training":
        return quantizer_of(model).convert(to="reference")
    if stage != "converted" or not isinstance(model, GraphModule):
        raise InputError(
            "explicit takes a model that convert gave",
            got=named_by_stage(model),
            expected="the result of fxq.convert or fxq.load",
            hint="fxq.convert(prepared)",
        )
    return model
