"""Makes a model of a file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Graph

from fxquant.artifact.describe_graph import COND, GRAPH
from fxquant.artifact.format import Header, LoadLimits, read_header, read_tensors
from fxquant.artifact.graph import check_identifier, check_path, decode_graph
from fxquant.artifact.layouts import check_stored, in_their_order
from fxquant.artifact.make_graph import (
    checked_inside,
    fields_of_kind,
    finish_inside,
    make_quantizers,
    note_plan,
    set_graphs,
)
from fxquant.artifact.modules import EXTERNAL, attempt, build
from fxquant.artifact.tables import give_answers
from fxquant.capture.exported.branches import Branches
from fxquant.errors import ArtifactError, check_type, listing
from fxquant.graph.module import NamedGraphModule
from fxquant.graph.packing import pack_modules
from fxquant.runtime import attach_engine

_FIELDS = {"class", "nodes", "modules", "layouts"}


def load(
    path: str | os.PathLike[str],
    *,
    modules: Mapping[str, nn.Module] | None = None,
    limits: LoadLimits | None = None,
    device: str | torch.device = "cpu",
) -> Any:
    """Open a file that ``save`` wrote. No code of the file is run, and nothing is imported by a name in it.

    Files of strangers may be opened: whatever is no model raises ``ArtifactError``, before memory is taken that the
    file has not. What a model then computes, and for how long, is its author's choice.

    Args:
        path: The file. It is read whole, and not needed afterwards.
        modules: Path -> module, of those that the file cannot hold; ``inspect_artifact`` names them. They are given
            their state, and become part of the model.
        limits: What the file may ask for.
        device: Where the model is put.

    Returns:
        The model in evaluation mode, of the same kind as was saved, with the same bits: its ``quant_coverage`` prints
        the same table, its ``quant_plan`` has the qparams in place of observers. Of a prepared model a Quantizer: its
        ``graph_module`` is the float model, and ``convert`` makes of it what it would have made of the saved one.

    Raises:
        ArtifactError: the file cannot be read, is no artifact, is damaged, is of a newer format, asks for too much, or
            needs modules that were not given.
    """
    check_type("limits", limits, (LoadLimits, NoneType), "LoadLimits(...), or None")
    check_type("modules", modules, (Mapping, nn.ModuleDict, NoneType), "{path: module}, or None")
    header = read_header(path, limits or LoadLimits())
    try:
        model = _model(path, header, modules or {}, limits or LoadLimits(), device)
    except ArtifactError:
        raise
    except Exception as error:
        got = f"{type(error).__name__}: {ascii(str(error))[:200]}"
        raise ArtifactError("no model can be made of this file", at=os.fspath(path), got=got) from error
    return model


def _model(
    path: str | os.PathLike[str], header: Header, given: Mapping[str, nn.Module], limits: LoadLimits, device: Any
) -> Any:
    # Check the header: modules, number of nodes, names.
    data, converted = header.graph(), header.kind not in ("float", "prepared")
    wanted = _FIELDS | (fields_of_kind(header.kind) - (set() if header.format > 1 else {"integers"}))
    if set(data) - {"inside"} != wanted:
        raise ArtifactError("the graph in the file has other fields", got=ascii(sorted(data))[:200])
    described = _checked_modules(data["modules"], given, limits)
    if not isinstance(data["nodes"], list) or len(data["nodes"]) > limits.nodes:
        raise ArtifactError("the graph has more nodes than allowed", expected=f"at most {limits.nodes}")
    inside = checked_inside(data.get("inside", {}), described, header.kind, limits.nodes)
    names = _tensor_names(described)
    # Read the graph, and the tensors.
    graph = decode_graph(data["nodes"], set(described), set(names))
    check_stored(header, data["layouts"], names)
    tensors = in_their_order(read_tensors(path, header), data["layouts"], names)
    # Put the model together.
    classes = {
        path: check_identifier(item["class"], "the name of the model's class")
        for path, item in {"": data, **inside}.items()
    }
    model = _assembled(described, tensors, given, classes)
    set_graphs(model, inside, set(described), set(names))
    model.graph = graph
    # What a converted model knows beside its modules.
    if converted:
        note_plan(model, header.kind, data, tensors, limits.nodes)
    # Check the graph, and make the model ready to be called.
    model.graph.lint()
    model.eval()
    if header.format > 1:
        give_answers(model, tensors)
    pack_modules(model)
    finish_inside(model, inside, tensors, limits.nodes)
    if converted:
        attach_engine(model, None, header.kind)
    model.to(device)
    if header.kind == "prepared":
        return make_quantizers(model, data["preparation"], inside, tensors, limits.nodes, header.size)
    return model


def _checked_modules(data: Any, given: Mapping[str, nn.Module], limits: LoadLimits) -> dict[str, Any]:
    """Return the descriptions of all modules, each after its parent."""
    if not isinstance(data, dict) or len(data) > limits.nodes or "" not in data:
        raise ArtifactError("the file holds no modules, or more than allowed", expected=f"at most {limits.nodes}")
    seen: set[str] = set()
    for path, item in data.items():
        if path:
            check_path(path)
        same = isinstance(item, dict) and set(item) == {"same"}
        wanted = {"type", "of", "tensors"} if isinstance(item, dict) and "of" in item else {"type", "config", "tensors"}
        if not isinstance(item, dict) or (not same and (set(item) != wanted or not isinstance(item["type"], str))):
            raise ArtifactError("a module in the file has other fields", at=f"module {path}")
        if (path and path.rpartition(".")[0] not in seen) or (same and item["same"] not in seen) or (same and not path):
            raise ArtifactError("a module in the file stands before the one that holds it", at=f"module {path}")
        if ("of" in item) != (item.get("type") == EXTERNAL):
            raise ArtifactError("a module in the file is of a class, and of none", at=f"module {path}")
        if not same:
            seen.add(path)
    missing = [path for path, item in data.items() if item.get("type") == EXTERNAL and path not in given]
    if missing:
        raise ArtifactError(
            "the file needs modules that it cannot hold",
            got=listing([f"{path} ({ascii(data[path]['of'])[:80]})" for path in missing]),
            hint="fxq.load(path, modules={name: module}) is given them",
        )
    return data


def _tensor_names(described: Mapping[str, Any]) -> dict[str, str]:
    """Map the name of each tensor of the model to what it is to its module."""
    names: dict[str, str] = {}
    for path, item in described.items():
        own = item.get("tensors", [])
        if not isinstance(own, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in own):
            raise ArtifactError("the tensors of a module are no list of names", at=f"module {path}")
        for name, role in own:
            full = check_path(f"{path}.{name}" if path else name)
            if "same" not in item and isinstance(role, str) and not role.startswith("no "):
                names[full] = role
    for path, item in described.items():
        if "same" in item:
            first = f"{item['same']}."
            names |= {path + "." + name[len(first) :]: role for name, role in names.items() if name.startswith(first)}
    return names


def _assembled(
    described: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    given: Mapping[str, nn.Module],
    classes: Mapping[str, str],
) -> NamedGraphModule:
    """Make a model that has all modules, and no graph yet; ``classes`` are names of the classes of all graphs."""
    # Build each module, in an order in which parents come first.
    model = NamedGraphModule(nn.Module(), Graph(), classes[""])
    built: dict[str, nn.Module] = {}
    for path, item in described.items():
        if "same" in item:
            built[path] = built[item["same"]]
        elif item["type"] == EXTERNAL:
            built[path] = attempt(path, partial(_given, path, item, tensors, given[path]))
        elif item["type"] == COND:
            built[path] = Branches(nn.Module(), nn.Module())
        else:
            prefix = f"{path}." if path else ""
            own = {pair[0]: tensors[prefix + pair[0]] for pair in item["tensors"] if prefix + pair[0] in tensors}
            plain = {**item, "type": "torch.nn.Module"} if item["type"] == GRAPH else item
            built[path] = attempt(path, partial(build, plain, own))
            if item["type"] == GRAPH:
                built[path] = _with_tensors_of(built[path], NamedGraphModule(nn.Module(), Graph(), classes[path]))
        # Put it where its path says.
        parent, _, last = path.rpartition(".")
        if path:
            (model if not parent else built[parent]).add_module(last, built[path])
    if type(built[""]) is not nn.Module:
        raise ArtifactError("the file is of a single layer, which is no model", got=type(built[""]).__name__)
    return _with_tensors_of(built[""], model)


def _with_tensors_of(module: nn.Module, model: NamedGraphModule) -> NamedGraphModule:
    """Give a model the tensors of a module."""
    vars(model).update({key: getattr(module, key) for key in ("_parameters", "_buffers")})
    vars(model)["_non_persistent_buffers_set"] = module._non_persistent_buffers_set
    return model


def _given(path: str, item: Mapping[str, Any], tensors: Mapping[str, Tensor], module: nn.Module) -> nn.Module:
    module.load_state_dict({key: tensors[f"{path}.{key}"] for key, _ in item["tensors"]})
    return module.eval()
