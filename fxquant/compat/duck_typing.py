"""Reads observers of any library by their attributes."""

from __future__ import annotations

from typing import Any

from torch import nn

from fxquant.observers.scheme import make_scheme
from fxquant.plan.spec import QScheme


def scheme_of(observer: Any) -> QScheme | None:
    """Return the scheme of an observer of any library, by its attributes; None if it leaves values in float."""
    if hasattr(observer, "scheme"):
        found: QScheme | None = observer.scheme
        return found
    dtype = getattr(observer, "dtype", None)
    if dtype is None or dtype.is_floating_point:
        return None
    qscheme = getattr(observer, "qscheme", None)
    return make_scheme(
        dtype=dtype,
        qscheme=qscheme,
        quant_min=getattr(observer, "quant_min", None),
        quant_max=getattr(observer, "quant_max", None),
        ch_axis=max(int(getattr(observer, "ch_axis", 0)), 0) if "per_channel" in str(qscheme) else None,
    )


def is_activation_post_process(module: Any) -> bool:
    """Tell whether a module is an observer or a fake-quantize module, of fxquant or of torch.ao."""
    return isinstance(module, nn.Module) and callable(getattr(module, "calculate_qparams", None))
