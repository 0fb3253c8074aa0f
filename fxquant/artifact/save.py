"""Writes a model to one file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from fxquant.artifact.describe_graph import COND, GRAPH, describe_form, describe_graph, describe_inside, graphs_inside
from fxquant.artifact.format import FORMAT, check_place, path_of, write_file
from fxquant.artifact.graph import check_path
from fxquant.artifact.kinds import written_form
from fxquant.artifact.modules import EXTERNAL, describe, type_of
from fxquant.artifact.tensors import answers_of_tables, stored_once, weight_widths
from fxquant.capture.exported.branches import Branches
from fxquant.commandline import VERSION
from fxquant.errors import ArtifactError, error_context, listing, warn
from fxquant.graph.module import NamedGraphModule
from fxquant.nn.base import QuantizedModule
from fxquant.quantizer.data import PreparedModel


def save(
    model: GraphModule | PreparedModel,
    path: str | os.PathLike[str],
    *,
    notes: Mapping[str, str] | None = None,
    overwrite: bool = False,
) -> None:
    """Write a model to one file, which ``load`` opens without the model's source and without running code.

    Tensors are stored as safetensors, the graph as JSON, functions and classes by names of closed tables. A module of
    the user's own that is kept whole is not in the file, but its state is: a warning names it, and ``load`` is given
    it. Hooks, methods and attributes of the user's class, and what ``check=`` and ``tune=`` measured are not written.

    Args:
        model: What ``convert`` or ``load`` gave: int8, reference or fake_quant; what ``prepare`` gave, calibrated or
            not, or ``prepare_qat``, trained: then ``load`` gives a Quantizer, which ``convert`` takes; or the float
            graph of a Quantizer, its ``graph_module``. Not changed.
        path: Where to; ``.fxq`` by custom. The file appears there whole, or not at all.
        notes: Strings to keep with it. ``inspect_artifact`` shows them.
        overwrite: Whether a file may stand there already.

    Raises:
        ArtifactError: the place cannot be written to, or the model holds what no file can: a function of the user's, a
            module with hooks, a tensor that is sparse.
    """
    place = path_of(path)
    check_place(place, overwrite)
    form, prepared, model = written_form(model)
    kept = _checked_notes(notes or {})
    if model.training:
        raise ArtifactError("the model is in training mode", hint="model.eval(), then save")
    data, tensors = _described(model, facts=prepared is not None)
    for more, named in (describe_form(model, form, prepared), describe_inside(model, prepared)):
        data |= more
        tensors |= named
    stored, data["layouts"] = stored_once(tensors | answers_of_tables(model), weight_widths(model, tensors))
    metadata = {
        "fxquant.format": str(FORMAT),
        "fxquant.kind": form,
        "fxquant.written_by": f"fxquant {VERSION}, torch {torch.__version__}",
        "fxquant.graph": json.dumps(data, separators=(",", ":"), allow_nan=False),
        "fxquant.notes": json.dumps(kept),
    }
    size = sum(tensor.numel() * tensor.element_size() for tensor in stored.values()) + len(metadata["fxquant.graph"])
    check_place(place, overwrite, size)
    write_file(place, stored, metadata)


def _checked_notes(notes: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(notes, Mapping) or not all(isinstance(text, str) for pair in notes.items() for text in pair):
        raise ArtifactError("notes are strings", got=ascii(notes)[:120], expected="a mapping of strings to strings")
    return dict(notes)


def _described(model: GraphModule, *, facts: bool) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Write graph and modules as plain data; return them with the tensors of the model by name."""
    if vars(model).get("_forward_hooks") or vars(model).get("_forward_pre_hooks"):
        raise ArtifactError("a model with hooks cannot be written", hint="remove the hooks; no file holds code")
    called = _called(model)
    modules: dict[str, Any] = {}
    outside: dict[str, nn.Module] = {}
    for name, module, first in _each_module(model, called, outside):
        check_path(name) if name else None
        with error_context(at=f"module {name}"):
            modules[name] = {"same": first} if first is not None else _module(name, module, called, outside)
    if outside:
        warn(
            "modules of this model are of classes that no file holds: their state is written, their code is not",
            got=listing([f"{name} ({_class_of(module)})" for name, module in outside.items()]),
            hint="fxq.load(path, modules={name: module}) is given them",
        )
    data = {**describe_graph(model, facts=facts), "modules": modules}
    tensors: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
    kept_out = {id(module) for module in outside.values()}  # their state dict says what of them is written
    prefixes = tuple(
        f"{name}." for name, module in model.named_modules(remove_duplicate=False) if id(module) in kept_out
    )
    for name, buffer in model.named_buffers(remove_duplicate=False):
        if not name.startswith(prefixes):
            tensors.setdefault(name, buffer)
    _check_calibrated(model)
    return data, tensors


def _called(model: GraphModule) -> set[str]:
    """Return the paths of the modules that run: those that the graph calls, and those that graphs inside call."""
    graphs = {"": model, **dict(graphs_inside(model))}
    return {
        (f"{path}.{node.target}" if path else str(node.target))
        for path, gm in graphs.items()
        for node in gm.graph.nodes
        if node.op == "call_module"
    }


def _each_module(
    model: nn.Module, called: set[str], outside: dict[str, nn.Module]
) -> Iterator[tuple[str, nn.Module, str | None]]:
    """Yield path, module, and the path under which the same one came before; nothing inside of what is not written."""
    seen: dict[int, str] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if not any(name.startswith(f"{path}.") for path in outside):
            yield name, module, seen.get(id(module))
            seen.setdefault(id(module), name)


def _module(name: str, module: nn.Module, called: set[str], outside: dict[str, nn.Module]) -> dict[str, Any]:
    runs = any(name == path or name.startswith(f"{path}.") for path in called)
    if name and runs and isinstance(module, (NamedGraphModule, Branches)):
        return describe(module, "torch.nn.Module") | {"type": COND if isinstance(module, Branches) else GRAPH}
    kind = "torch.nn.Module" if not name else type_of(module)
    if kind is None and not runs:
        kind = "torch.nn.Module"
    if kind is None:
        outside[name] = module
        state = [[key, "buffer"] for key in module.state_dict()]
        return {"type": EXTERNAL, "of": _class_of(module), "tensors": state}
    return describe(module, kind)


def _class_of(module: nn.Module) -> str:
    return f"{type(module).__module__}.{type(module).__qualname__}"


def _check_calibrated(model: nn.Module) -> None:
    """Refuse a model without ranges: it has no qparams to write."""
    for module in model.modules():
        if isinstance(module, QuantizedModule):
            module._check_calibrated()
    for name, buffer in model.named_buffers():
        if name.rsplit(".", 1)[-1] in ("scale", "weight_scale") and bool(buffer.isnan().any()):
            raise ArtifactError("this model was converted without calibration", at=name, got="nan")
