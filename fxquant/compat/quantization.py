"""The names of ``torch.ao.quantization``, whatever module of this package they live in."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from fxquant import freeze_bn_stats, update_bn_stats
from fxquant.compat import (
    backend_config,
    custom_config,
    equalization,
    fake_quantize,
    not_offered,
    observer,
    qconfig,
    qconfig_mapping,
    quant_type,
    quantize_fx,
    stubs,
    utils,
)
from fxquant.compat import fuse_modules as fusing
from fxquant.compat import quantize as eager_mode
from fxquant.compat.migration import NOT_OFFERED
from fxquant.compat.not_offered import refusal_of

_HOMES: tuple[ModuleType, ...] = (
    quantize_fx,
    qconfig_mapping,
    qconfig,
    fake_quantize,
    observer,
    custom_config,
    backend_config,
    quant_type,
    eager_mode,
    equalization,
    fusing,
    stubs,
    utils,
)


def public_names(module: ModuleType) -> dict[str, Any]:
    """Return what a module of this package offers by torch.ao's names: ``__all__``, or what is ours in it."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return {name: getattr(module, name) for name in listed}
    return {name: value for name, value in vars(module).items() if _is_public(module, name, value)}


def _is_public(module: ModuleType, name: str, value: Any) -> bool:
    home = getattr(value, "__module__", module.__name__)
    is_ours = str(home).startswith("fxquant") and home != not_offered.__name__  # which has no name of torch.ao
    return not name.startswith("_") and not isinstance(value, ModuleType) and is_ours


OFFERED: dict[str, Any] = {
    "freeze_bn_stats": freeze_bn_stats,
    "update_bn_stats": update_bn_stats,
    "QConfigAny": qconfig.QConfigAny,
    **{
        name: value
        for module in reversed(_HOMES)
        for name, value in public_names(module).items()
        if not name.isupper() and name not in NOT_OFFERED
    },
}
"""Name -> what it stands for."""

__all__ = sorted(OFFERED)


def __getattr__(name: str) -> Any:
    if name in OFFERED:
        return OFFERED[name]
    return refusal_of(name)


def __dir__() -> list[str]:
    return [*__all__, *NOT_OFFERED]
