"""From torch's names (``dtype``, ``qscheme``, ``quant_min``, ...) to a QScheme."""

from __future__ import annotations

import re
from dataclasses import replace
from types import NoneType

import torch

from fxquant.errors import SpecError, check_type
from fxquant.plan.spec import QScheme, check_number, is_whole
from fxquant.registry import did_you_mean, nearest

# torch is going to remove the dtypes and schemes of its own quantization; what is gone is left out of these tables.
_STORAGE_BITS = {"quint8": 8, "qint8": 8, "quint4x2": 4, "quint2x4": 2, "qint32": 16, "int32": 16}
# 32 bits are only ever used with narrower limits; 16 bits hold the widest of them.
_DTYPES: dict[torch.dtype, tuple[int, bool]] = {
    dtype: (_STORAGE_BITS.get(name) or int(re.sub(r"\D", "", name)), not name.startswith(("u", "qu")))
    for name in (*_STORAGE_BITS, *(f"{sign}int{bits}" for sign in ("u", "") for bits in (2, 3, 4, 5, 6, 7, 8, 16)))
    if isinstance(dtype := getattr(torch, name, None), torch.dtype)
}
# name -> (per channel, symmetric, float qparams)
_QSCHEMES = {
    "per_tensor_affine": (False, False, False),
    "per_tensor_symmetric": (False, True, False),
    "per_channel_affine": (True, False, False),
    "per_channel_symmetric": (True, True, False),
    "per_channel_affine_float_qparams": (True, False, True),
}
_SYNONYMS = {torch.uint8: "quint8", torch.int8: "qint8", torch.int32: "qint32"}


def make_scheme(
    *,
    dtype: torch.dtype | None = None,
    qscheme: object | None = None,
    reduce_range: bool = False,
    quant_min: int | None = None,
    quant_max: int | None = None,
    ch_axis: int | None = None,
    bits: int | None = None,
    group_size: int | None = None,
    scheme: QScheme | None = None,
) -> QScheme:
    """Name a kind of qparams in torch's words, or directly as a QScheme.

    Args:
        dtype: ``torch.quint8``, ``qint8``, ``quint4x2``, ``uint8``, ``int8``, ``int16``, ``uint16``, ``int4``, ...;
            ``torch.qint32`` together with limits that fit 16 bits. None: uint8.
        qscheme: One of torch's five constants, or its name as a string. None: affine, per channel if there is a
            ``ch_axis``, else per tensor.
        reduce_range: Halve both limits (one bit less).
        quant_min, quant_max: Inclusive limits of the quantized values. None: all of ``bits``.
        ch_axis: Dimension with one scale per index; negative counts from the end. None: qparams must be per tensor;
            otherwise it must be per channel.
        bits: Width, 2 to 16, in place of that of ``dtype``; signed or not is taken from ``dtype``.
        group_size: One scale per run of this many values along the dimension after ``ch_axis``.
        scheme: The whole of it, axis included. Nothing else may be given then.

    Raises:
        SpecError: a dtype or qscheme that is not of integers; limits or bits that do not fit; words that contradict
            each other.
    """
    check_type("scheme", scheme, (QScheme, NoneType), "a QScheme, or None")
    if scheme is not None:
        words = (dtype, qscheme, reduce_range or None, quant_min, quant_max, bits, group_size)
        if any(word is not None for word in words):
            raise SpecError(
                "scheme says all there is to say of qparams",
                expected="either scheme, or dtype, qscheme, reduce_range, quant_min, quant_max, bits and group_size",
            )
        _require_granularity(scheme.axis is not None, ch_axis, scheme)
        return _with_zero(scheme)
    for name, limit in (("quant_min", quant_min), ("quant_max", quant_max)):
        if limit is not None:
            check_number(name, limit, is_whole, "a whole number inside the range, or None")
    width, signed = _integers_of(dtype)
    per_channel, symmetric, float_qparams = _kind_of(qscheme, ch_axis)
    _require_granularity(per_channel, ch_axis, qscheme)
    if quant_min is not None and quant_min >= 0 and dtype in (torch.int32, getattr(torch, "qint32", None)):
        signed = False
    full = QScheme(bits=width if bits is None else bits, signed=signed)
    low = full.quant_min if quant_min is None else quant_min
    high = full.quant_max if quant_max is None else quant_max
    if reduce_range:
        low, high = low // 2, high // 2
    return _with_zero(
        replace(
            full,
            symmetric=symmetric,
            axis=ch_axis,
            group_size=group_size,
            limits=None if (low, high) == full.full_range else (low, high),
            float_qparams=float_qparams,
        )
    )


def torch_dtype(scheme: QScheme) -> torch.dtype:
    """Return torch's dtype for the integers of ``scheme``: ``quint8`` and ``qint8`` as long as it has them."""
    return getattr(torch, _SYNONYMS.get(scheme.dtype, ""), scheme.dtype)


def torch_qscheme(scheme: QScheme) -> object:
    """Return torch's name for the kind of ``scheme``; None once it has no such names any more."""
    kind = (scheme.axis is not None, scheme.symmetric, scheme.float_qparams)
    return next((getattr(torch, name, None) for name, value in _QSCHEMES.items() if value == kind), None)


def _integers_of(dtype: torch.dtype | None) -> tuple[int, bool]:
    if dtype is None:
        return 8, False
    if not isinstance(dtype, torch.dtype) or dtype not in _DTYPES:
        near = nearest(dtype, [str(known).removeprefix("torch.") for known in _DTYPES])
        raise SpecError(
            "not an integer dtype to quantize to",
            got=repr(dtype),
            expected=", ".join(map(str, _DTYPES)),
            hint=f"did you mean torch.{near}?" if near else "",
        )
    return _DTYPES[dtype]


def _kind_of(qscheme: object | None, ch_axis: int | None) -> tuple[bool, bool, bool]:
    if qscheme is None:
        return ch_axis is not None, False, False
    if isinstance(qscheme, QScheme):
        raise SpecError("a QScheme goes into the argument scheme, not qscheme", got=qscheme)
    name = str(qscheme).removeprefix("torch.")
    if name not in _QSCHEMES:
        raise SpecError(
            "not a quantization scheme",
            got=repr(qscheme),
            expected=", ".join(_QSCHEMES),
            hint=did_you_mean(name, list(_QSCHEMES)),
        )
    return _QSCHEMES[name]


def _require_granularity(per_channel: bool, ch_axis: int | None, shown: object) -> None:
    if per_channel and ch_axis is None:
        hint = "the observers that have PerChannel in their name take it"
        raise SpecError("this observer has one scale for the whole tensor", got=shown, expected="per tensor", hint=hint)
    if ch_axis is not None and not per_channel:
        hint = "the observer of the same name without PerChannel takes it"
        raise SpecError("this observer has a scale per channel", got=shown, expected="per channel", hint=hint)


def _with_zero(scheme: QScheme) -> QScheme:
    """Signed symmetric quantization has its zero point at 0, which the limits must not cut off."""
    if scheme.symmetric and scheme.signed and not scheme.quant_min <= 0 <= scheme.quant_max:
        raise SpecError(
            "limits that are signed and symmetric must hold 0",
            got=f"[{scheme.quant_min}, {scheme.quant_max}]",
            expected="quant_min <= 0 <= quant_max",
        )
    return scheme
