"""Modules as plain data, and back, by closed tables of classes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from fxquant.artifact.quantized_modules import ROWS, allows, complete, expected_tensors, fields_of, make_module
from fxquant.artifact.torch_layers import ARGUMENTS, WITH_TENSORS, arguments_of, make_layer
from fxquant.artifact.values import decode, encode, fits
from fxquant.errors import ArtifactError, FxQuantError
from fxquant.fake_quantize.converted import is_calibrated
from fxquant.graph.query import canonical_type, has_hooks
from fxquant.graph.recurrent import RecurrentShape, is_recurrent, without_matrices
from fxquant.graph.state_values import check_integers, check_qparams
from fxquant.nn.fake_quantize import FLOAT_BIAS, DequantizedWeight, FakeQuantizedWeight
from fxquant.nn.weight_forms import LAYERS
from fxquant.plan.spec import QParams, QScheme

EXTERNAL = "external"
"""Type of a module that no file holds: ``load`` is given it."""

FORMS: dict[type[nn.Module], type[nn.Module]] = {form: plain for plain, pair in LAYERS.items() for form in pair}
"""Layer with a quantized weight -> the layer of torch that it stands for."""

TYPES: dict[str, type[nn.Module]] = {
    **{f"torch.nn.{kind.__name__}": kind for kind in ARGUMENTS},
    **{f"fxquant.nn.{kind.__name__}": kind for kind in (*ROWS, *FORMS)},
}
"""Name in a file -> class."""

_NAMES = {kind: name for name, kind in TYPES.items()}
_FORM_FIELDS: dict[type[nn.Module], dict[str, Any]] = {
    FakeQuantizedWeight: {"output_axis": int},
    DequantizedWeight: {"weight_scheme": QScheme, "weight_dtype": torch.dtype},
}
_OF_QPARAMS = ("weight", "weight_scale", "weight_zero_point")
_ROLES = ("parameter", "frozen", "buffer", "unsaved", "no parameter", "no buffer")


def type_of(module: nn.Module) -> str | None:
    """Return the name that a file gives the class of a module; None where no file holds it."""
    if "forward" in vars(module):
        return None
    kind = type(module) if type(module) in _NAMES else canonical_type(module)
    return None if kind is None else _NAMES.get(kind)


def describe(module: nn.Module, name: str) -> dict[str, Any]:
    """Write a module of a class of ``TYPES`` as plain data, without its children and the values of its tensors.

    Raises:
        ArtifactError: it has hooks, or a setting that no file can hold.
    """
    kind = TYPES[name]
    if has_hooks(module):
        raise ArtifactError("a module with hooks cannot be written", hint="remove the hooks; no file holds code")
    if kind in FORMS:
        config = arguments_of(module, FORMS[kind])
        config |= {field: getattr(module, field) for field in _form_fields(kind)}
    elif kind in ROWS:
        config = {field: getattr(module, field) for field in fields_of(kind)}
    else:
        config = arguments_of(module, kind)
    return {"type": name, "config": {key: encode(value) for key, value in config.items()}, "tensors": _roles(module)}


def _roles(module: nn.Module) -> list[list[str]]:
    """List the names of the tensors of a module in their order, and what each is to it."""
    found = []
    for name, parameter in module._parameters.items():
        role = "no parameter" if parameter is None else "parameter" if parameter.requires_grad else "frozen"
        found.append([name, role])
    saved = set(module._buffers) - module._non_persistent_buffers_set
    buffers = {**({"weight": None} if _packs_its_weight(module) else {}), **module._buffers}
    for name, buffer in buffers.items():
        kept = "buffer" if name in saved or name == "weight" else "unsaved"
        found.append([name, "no buffer" if buffer is None and name != "weight" else kept])
    return found


def _packs_its_weight(module: nn.Module) -> bool:
    return hasattr(module, "unpacked_weight")


def _form_fields(kind: type[nn.Module]) -> dict[str, Any]:
    return next(wanted for base, wanted in _FORM_FIELDS.items() if issubclass(kind, base))


def build(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> nn.Module:
    """Make a module of what ``describe`` wrote.

    Args:
        data: Plain data.
        tensors: Its tensors by name.

    Raises:
        ArtifactError: the class is in no table, or settings and tensors are not what it has.
    """
    # Check the class and its settings.
    kind, roles = TYPES.get(data["type"]), _checked_roles(data["tensors"])
    if kind is None:
        raise ArtifactError("the file holds a module of a class that it may not hold", got=ascii(data["type"])[:120])
    if not isinstance(data["config"], dict):
        raise ArtifactError("the settings of a module are no JSON object", got=ascii(data["config"])[:120])
    config = {key: decode(value) for key, value in data["config"].items()}
    # A module of integers checks by itself which tensors it has.
    if kind in ROWS:
        module: Any = make_module(kind, config)
        _hold(module, roles, tensors)
        wanted = expected_tensors(module)
        if {name for name, _ in roles} != wanted or not all(allows(kind, name, role) for name, role in roles):
            raise ArtifactError("a module in the file has other tensors than its class", expected=sorted(wanted))
        complete(module)
        return module
    # A layer with a rounded weight; else a layer of torch, or a container.
    if kind in FORMS:
        return _build_form(kind, config, roles, tensors)
    module = make_layer(kind, config, len(roles))
    if kind in WITH_TENSORS:
        _check_like(module, roles, tensors)
    elif roles and kind is not nn.Module:
        raise ArtifactError("a module in the file has tensors that its class has not", got=roles[0][0])
    _hold(module, roles, tensors)
    return module.eval()


def _build_form(
    kind: type[nn.Module], config: dict[str, Any], roles: list[tuple[str, str]], tensors: Mapping[str, Tensor]
) -> nn.Module:
    """Make a layer whose weight is quantized: first the layer of torch, then its other class."""
    # Take the fields of the form out of the settings of the layer.
    wanted = _form_fields(kind)
    fields = {name: config.pop(name, None) for name in wanted}
    if not all(fits(value, wanted[name]) for name, value in fields.items()):
        raise ArtifactError("a field of a layer has the wrong type", at=kind.__name__)
    # Make the float layer, whose tensors must fit those of the file.
    layer: Any = make_layer(FORMS[kind], config, len(roles))
    of_qparams = _OF_QPARAMS if issubclass(kind, DequantizedWeight) else ()
    if of_qparams and is_recurrent(layer):
        shape = RecurrentShape.of(layer).weight_shape
        without_matrices(layer)
        layer.register_buffer("weight", torch.empty(shape, device="meta"))
    beside = {*of_qparams[1:], *((FLOAT_BIAS,) if FLOAT_BIAS in tensors else ())}
    _check_like(layer, [role for role in roles if role[0] not in beside], tensors)
    if FLOAT_BIAS in tensors and tensors[FLOAT_BIAS].dim() != 1:
        raise ArtifactError("a bias in the file is no vector", got=tuple(tensors[FLOAT_BIAS].shape))
    # Make the form of it, and check the qparams of its weight.
    layer.__class__ = kind
    _hold(layer, roles, tensors)
    vars(layer).update(fields)
    if of_qparams:
        if not {*of_qparams} <= {name for name, role in roles if role == "buffer"}:
            raise ArtifactError("a layer in the file has no qparams for its weight", at=kind.__name__)
        scheme = layer.weight_scheme
        QParams(scheme, layer.weight_scale, layer.weight_zero_point)
        check_qparams(layer._buffers, "weight_scale", "weight_zero_point", scheme)
        check_integers(layer._buffers, "weight", scheme.dtype, scheme)
        layer.weight_is_known = is_calibrated(layer.weight_scale)
    return layer.eval()


def _checked_roles(given: Any) -> list[tuple[str, str]]:
    if not isinstance(given, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair) for pair in given
    ):
        raise ArtifactError("the tensors of a module are no list of names", got=ascii(given)[:120])
    if len({name for name, _ in given}) != len(given) or not all(role in _ROLES for _, role in given):
        raise ArtifactError("the tensors of a module are named twice, or are of no kind", got=ascii(given)[:120])
    return [(name, role) for name, role in given]


def _check_like(layer: nn.Module, roles: list[tuple[str, str]], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of other names or shapes than the constructor made."""
    own = {**layer._parameters, **layer._buffers}
    shapes = {name: None if tensor is None else tuple(tensor.shape) for name, tensor in own.items()}
    given = {name: None if role.startswith("no ") else tuple(tensors[name].shape) for name, role in roles}
    if given != shapes:
        different = sorted(name for name in {*given, *shapes} if given.get(name, ()) != shapes.get(name, ()))
        raise ArtifactError(
            "a layer in the file has other tensors than its class",
            at=type(layer).__name__,
            got=ascii({name: given.get(name) for name in different})[:200],
            expected=ascii({name: shapes.get(name) for name in different})[:200],
        )


def _hold(module: nn.Module, roles: Collection[tuple[str, str]], tensors: Mapping[str, Tensor]) -> None:
    """Give a module its tensors in this order, and no others."""
    for held in (module._parameters, module._buffers, module._non_persistent_buffers_set):
        held.clear()
    for name, role in roles:
        if role.endswith("parameter"):
            module.register_parameter(name, None if role == "no parameter" else _parameter(tensors[name], True))
        elif role == "frozen":
            module.register_parameter(name, _parameter(tensors[name], False))
        else:
            module._buffers[name] = None if role == "no buffer" else tensors[name]
            if role == "unsaved":
                module._non_persistent_buffers_set.add(name)
    if (renew := getattr(module, "_init_flat_weights", None)) is not None:
        renew()


def _parameter(value: Tensor, trains: bool) -> nn.Parameter:
    return value if isinstance(value, nn.Parameter) else nn.Parameter(value, requires_grad=trains)


def attempt(path: str, make: Callable[[], nn.Module]) -> nn.Module:
    """Make a module, and say of which one an error is.

    Raises:
        ArtifactError: anything went wrong.
    """
    try:
        return make()
    except ArtifactError as error:
        raise error.within(at=f"module {path}") from error
    except FxQuantError as error:
        raise ArtifactError("a module in the file cannot be made", at=f"module {path}", got=error) from error
    except Exception as error:
        got = f"{type(error).__name__}: {ascii(str(error))[:200]}"
        raise ArtifactError("a module in the file cannot be made", at=f"module {path}", got=got) from error
