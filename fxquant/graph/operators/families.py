"""Rows of the operator table: what a row holds, and the families of elementary functions and of products."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Function = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One operator. In a normalized graph it is a call of ``target`` with all of ``parameters`` by position."""

    target: Function
    required: tuple[str, ...] = ("input",)
    """Parameters without a default, first to last."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """The parameters after them, in order, with the values that stand in the graph where the user gave none."""
    keywords: Mapping[str, Any] = field(default_factory=dict)
    """Keyword-only parameters: they stay keywords, and are left out where they have the value given here."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Parameters after ``defaults`` that other spellings have: left out; a call with another value is not rewritten."""
    functions: tuple[Function, ...] = ()
    """Other functions with the same parameters."""
    methods: tuple[str, ...] = ()
    """Tensor methods; the tensor is the first parameter."""
    modules: tuple[type[nn.Module], ...] = ()
    """Module types without parameters; the parameters after the first are attributes of the same name."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Parameters that are no attribute of the module, with the value that its ``forward`` gives them."""
    inplace_functions: tuple[Function, ...] = ()
    inplace_methods: tuple[str, ...] = ()
    synonyms: Mapping[str, str] = field(default_factory=dict)
    """Other keyword -> parameter."""
    spread: str = ""
    """Parameter that methods also take as several arguments: ``x.permute(0, 2, 1)``."""
    commutative: bool = False
    """A number may stand first (``2 * x``): the tensor is put first."""
    view: bool = False
    """The result may share memory with the first argument."""
    finish: Callable[[dict[str, Any]], None] | None = None
    """Brings equal argument values to one form, in place."""

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the positional parameters in a normalized graph."""
        return (*self.required, *self.defaults)

    @property
    def all_targets(self) -> tuple[Any, ...]:
        """Return every spelling, the canonical first."""
        return tuple(
            dict.fromkeys(
                (
                    self.target,
                    *self.modules,
                    *self.functions,
                    *self.methods,
                    *self.inplace_functions,
                    *self.inplace_methods,
                )
            )
        )


def unary(name: str, *functions: Function, module: type[nn.Module] | None = None) -> Operator:
    """Return an operator of one tensor that torch offers as function and method, each also in place.

    ``functions`` are further names of it.
    """
    inplace = getattr(torch, f"{name}_", None)
    return Operator(
        target=getattr(torch, name),
        functions=(*functions, *(f for f in (getattr(F, name, None), getattr(operator, name, None)) if f is not None)),
        methods=(name,),
        modules=() if module is None else (module,),
        inplace_functions=() if inplace is None else (inplace,),
        inplace_methods=(f"{name}_",),
    )


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


def _named(name: str, *parameters: str, functions: tuple[Any, ...] = (), **options: Any) -> Operator:
    """Return a product that torch offers as function and as method, in place too where it adds to its first tensor."""
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
