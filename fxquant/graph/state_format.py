"""What a state dict says of itself: its format, and the schemes of the modules that it was taken from.

It stands in ``_metadata``, where torch keeps versions: ``torch.save`` writes it, wrappers carry it along. A state dict
that has lost it (a plain dict, a safetensors file) is taken as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from fxquant.errors import StateError
from fxquant.plan.spec import Dynamic, QScheme

KEY = "fxquant"
"""Of what stands beside the version that torch writes for each module."""
FORMAT = 1
"""What is written, and the newest that is read."""

Schemes = dict[str, dict[str, str]]
"""Path of a module -> role of a tensor -> its scheme, as text."""

_OBSERVER = "activation_post_process"
"""Name of the observer inside a fake-quantize module, which has the same scheme."""


def schemes_of(model: nn.Module) -> Schemes:
    """Describe what each module of a model quantizes to: state that was made for other schemes means other numbers."""
    found = {path: _schemes(module) for path, module in model.named_modules() if not path.endswith(_OBSERVER)}
    return {path: schemes for path, schemes in found.items() if schemes}


def _schemes(module: nn.Module) -> dict[str, str]:
    attributes = vars(module)
    named: dict[str, Any] = dict(attributes.get("_schemes") or {})
    named |= {"values": attributes.get("scheme"), "weight": attributes.get("weight_scheme", named.get("weight"))}
    named |= {
        role: attributes[name]
        for role, name in (("x", "x"), ("values", "policy"))
        if isinstance(attributes.get(name), Dynamic)
    }
    return {role: _text(scheme) for role, scheme in named.items() if isinstance(scheme, (QScheme, Dynamic))}


def _text(scheme: QScheme | Dynamic) -> str:
    has_floats = isinstance(scheme, QScheme) and scheme.float_qparams
    return f"{scheme}, with float zero points" if has_floats else str(scheme)


def state_metadata(model: nn.Module) -> dict[str, Any]:
    """Return what stands under ``KEY``; nothing for a model that quantizes nothing."""
    schemes = schemes_of(model)
    return {KEY: {"format": FORMAT, "schemes": schemes}} if schemes else {}


def check_metadata(model: nn.Module, metadata: Mapping[str, Any]) -> None:
    """Refuse the state of a model that was quantized to other schemes.

    Modules that only one of the two has are not looked at: the names of their state say so.

    Args:
        model: What the state is to be loaded into.
        metadata: Of the state dict, for this model; without ``KEY`` nothing is known.

    Raises:
        StateError: the first module that differs, with both schemes; or the format is newer.
    """
    given = metadata.get(KEY)
    if not isinstance(given, dict) or not isinstance(given.get("schemes"), dict):
        return
    version = given.get("format")
    if not isinstance(version, int) or version > FORMAT:
        raise StateError(
            "the state dict is of a newer format",
            got=version,
            expected=f"at most {FORMAT}",
            hint="pip install -U fxquant",
        )
    own, theirs = schemes_of(model), given["schemes"]
    different = [path for path in own if path in theirs and own[path] != theirs[path]]
    if not different:
        return
    path, more = different[0], len(different) - 1
    here, there = own[path], theirs[path] if isinstance(theirs[path], dict) else {}
    roles = [role for role in {**here, **there} if here.get(role) != there.get(role)]
    raise StateError(
        "the state dict is of a model that was quantized in another way",
        at=f"{path!r}{f', and {more} more' if more else ''}",
        got=", ".join(f"{role}: {there.get(role, 'not quantized')}" for role in roles),
        expected=", ".join(f"{role}: {here.get(role, 'not quantized')}" for role in roles),
        hint="prepare with the configuration that the saved model was prepared with",
    )
