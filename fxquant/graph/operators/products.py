"""The operator table's products of tensors, alone and with a sum."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F

from fxquant.graph.operators.row import Operator


def _named(name: str, *parameters: str, functions: tuple[Any, ...] = (), **options: Any) -> Operator:
    """What torch offers as function and as method, in place too where it adds to its first tensor."""
    inplace = (f"{name}_",) if hasattr(torch.Tensor, f"{name}_") else ()
    target = getattr(torch, name)
    return Operator(
        target=target,
        required=parameters,
        functions=functions,
        methods=(name,),
        inplace_methods=inplace,
        **options,
    )


_SCALED: dict[str, Any] = {"beta": 1, "alpha": 1}

PRODUCTS = (
    Operator(
        target=torch.matmul,
        required=("input", "other"),
        # Tensors have no in-place one: Python runs the plain one.
        functions=(operator.matmul, operator.imatmul, torch.linalg.matmul),
        methods=("matmul", "__matmul__"),
    ),
    _named("bmm", "input", "mat2"),
    _named("mm", "input", "mat2"),
    _named("mv", "input", "vec"),
    _named("dot", "input", "tensor"),
    _named("vdot", "input", "other"),
    _named("inner", "input", "other"),
    _named("outer", "input", "vec2", functions=(torch.ger,)),
    Operator(target=torch.tensordot, required=("a", "b"), defaults={"dims": 2}),
    _named("addmm", "input", "mat1", "mat2", keywords=_SCALED),
    _named("baddbmm", "input", "batch1", "batch2", keywords=_SCALED),
    _named("addbmm", "input", "batch1", "batch2", keywords=_SCALED),
    _named("addmv", "input", "mat", "vec", keywords=_SCALED),
    _named("addr", "input", "vec1", "vec2", keywords=_SCALED),
    _named("addcmul", "input", "tensor1", "tensor2", keywords={"value": 1}),
    _named("lerp", "input", "end", "weight"),
    Operator(
        target=F.scaled_dot_product_attention,
        required=("query", "key", "value"),
        defaults={"attn_mask": None, "dropout_p": 0.0, "is_causal": False},
        keywords={"scale": None, "enable_gqa": False},
    ),
)
