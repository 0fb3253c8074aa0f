"""The operator table's functions of one tensor that are no common activation: signs, powers, waves, shrinkage."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from fxquant.graph.operators.row import Operator, unary

SHRINKAGE = (
    Operator(
        target=F.celu,
        defaults={"alpha": 1.0},
        functions=(torch.celu,),
        modules=(nn.CELU,),
        inplace_functions=(torch.celu_,),
    ),
    Operator(target=F.logsigmoid, modules=(nn.LogSigmoid,)),
    Operator(target=F.softsign, modules=(nn.Softsign,)),
    Operator(target=F.tanhshrink, modules=(nn.Tanhshrink,)),
    Operator(target=F.softshrink, defaults={"lambd": 0.5}, modules=(nn.Softshrink,)),
    Operator(
        target=F.hardshrink,
        defaults={"lambd": 0.5},
        functions=(torch.hardshrink,),
        methods=("hardshrink",),
        modules=(nn.Hardshrink,),
    ),
    Operator(target=F.prelu, required=("input", "weight"), functions=(torch.prelu,), methods=("prelu",)),
    Operator(
        target=torch.clamp_min,
        required=("input", "min"),
        methods=("clamp_min",),
        inplace_functions=(torch.clamp_min_,),
        inplace_methods=("clamp_min_",),
    ),
    Operator(
        target=torch.clamp_max,
        required=("input", "max"),
        methods=("clamp_max",),
        inplace_functions=(torch.clamp_max_,),
        inplace_methods=("clamp_max_",),
    ),
    Operator(
        target=F.threshold,
        required=("input", "threshold", "value"),
        functions=(torch.threshold,),
        modules=(nn.Threshold,),
        inplace_functions=(torch.threshold_,),
    ),
)

ELEMENTARY = (
    *SHRINKAGE,
    unary("neg", torch.negative),
    unary("abs", torch.absolute),
    *(unary(name) for name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "square")),
    unary("atan", torch.arctan),
    unary("asinh", torch.arcsinh),
    unary("erf", torch.special.erf),
    unary("erfc", torch.special.erfc),
)
