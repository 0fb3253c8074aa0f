"""Functions of torch.ao for ``model.apply`` that know its own layers alone, and what does the same here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxquant.registry import Registry

SWITCHES: Registry[Callable[[Any], None]] = Registry("switch")
"""Name in torch.ao -> the function of this package."""

THEIRS = "torch.ao.nn.intrinsic.qat."
"""Where torch.ao has functions of these names."""


def own_switch(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function of this package that stands for one of torch.ao; any other function as it is.

    torch.ao asks for classes of its own, so that its function would pass over every layer and say nothing.
    """
    name = getattr(function, "__name__", "")
    is_theirs = str(getattr(function, "__module__", "")).startswith(THEIRS)
    return SWITCHES[name] if is_theirs and name in SWITCHES else function
