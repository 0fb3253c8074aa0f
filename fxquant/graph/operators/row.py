"""What the operator table holds: a row, and the rows that look alike."""

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
        """Names of the positional parameters in a normalized graph."""
        return (*self.required, *self.defaults)

    @property
    def all_targets(self) -> tuple[Any, ...]:
        """Every spelling, the canonical first."""
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
    """An operator of one tensor that torch offers as function and method, each also in place.

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
