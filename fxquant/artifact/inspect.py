"""Says what is in a file, without its tensors being read."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType

from fxquant.artifact.format import Header, LoadLimits, parsed, read_header
from fxquant.artifact.integers import check_integers
from fxquant.artifact.modules import EXTERNAL
from fxquant.artifact.packing import check_packed
from fxquant.errors import ArtifactError, check_type
from fxquant.graph.text_table import format_rows


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """Says what the header of a file says. Print it, or read the fields. Nothing of it was checked but its form."""

    kind: str
    """``int8``, ``reference``, ``fake_quant``, ``float`` or ``prepared``."""
    format: int
    written_by: str
    """Versions of fxquant and torch."""
    notes: Mapping[str, str]
    """What ``save`` was given."""
    size: int
    """Bytes of the file."""
    parameters: int
    """Numbers in all tensors, those of qparams included."""
    dtypes: Mapping[str, int]
    """Dtype -> bytes of the tensors that have it."""
    nodes: int
    modules: Mapping[str, int]
    """Class -> how many modules are of it."""
    integer_inputs: tuple[str, ...]
    """Arguments that the model takes as quantized values."""
    integer_outputs: tuple[int, ...]
    """Positions of the tensors that it returns as quantized values."""
    external: Mapping[str, str]
    """Path -> class, of the modules that ``load`` must be given."""

    def __str__(self) -> str:
        rows = [
            ("kind", self.kind),
            ("format", self.format),
            ("written by", self.written_by),
            ("file", f"{self.size:,} bytes"),
            ("tensors", ", ".join(f"{size:,} bytes {name}" for name, size in self.dtypes.items())),
            ("graph", f"{self.nodes} nodes"),
            *(("modules" if not i else "", f"{n} {kind}") for i, (kind, n) in enumerate(self.modules.items())),
            *(("integers in", name) for name in self.integer_inputs),
            *(("integers out", str(place)) for place in self.integer_outputs),
            *(("to be given" if not i else "", f"{path}: {of}") for i, (path, of) in enumerate(self.external.items())),
            *(("notes" if not i else "", f"{key}: {text}") for i, (key, text) in enumerate(self.notes.items())),
        ]
        return format_rows(rows, (), form="plain")


def inspect_artifact(path: str | os.PathLike[str], *, limits: LoadLimits | None = None) -> ArtifactInfo:
    """Read the header of a file that ``save`` wrote.

    Args:
        path: The file.
        limits: What the file may ask for.

    Raises:
        ArtifactError: the file cannot be read, is no artifact, is of a newer format, or its header is damaged.
    """
    check_type("limits", limits, (LoadLimits, NoneType), "LoadLimits(...), or None")
    header = read_header(path, limits or LoadLimits())
    graph, notes = header.graph(), parsed(header.metadata["fxquant.notes"], "the notes")
    modules, nodes = graph.get("modules"), graph.get("nodes")
    if not isinstance(modules, dict) or not isinstance(nodes, list) or not all(map(_is_described, modules.values())):
        raise ArtifactError("the graph in the file has other fields", got=ascii(sorted(graph))[:200])
    if not all(isinstance(text, str) for text in notes.values()):
        raise ArtifactError("the notes of the file are no strings")
    inside = graph.get("inside", {})
    inner = (
        [item.get("nodes") for item in inside.values() if isinstance(item, dict)] if isinstance(inside, dict) else []
    )
    names, places = check_integers(graph.get("integers", [[], []]))
    layouts = graph.get("layouts")
    packed = layouts.items() if isinstance(layouts, dict) else ()
    shapes = {name: stored.shape for name, stored in header.tensors.items()}
    for name, layout in packed:
        if isinstance(layout, dict) and name in header.tensors:
            check_packed(layout, header.tensors[name], name)
            shapes[name] = tuple(layout["shape"])
    kinds = Counter(str(item["type"]) for item in modules.values() if "type" in item and item["type"] != EXTERNAL)
    return ArtifactInfo(
        kind=header.kind,
        format=int(header.metadata["fxquant.format"]),
        written_by=header.metadata["fxquant.written_by"],
        notes=notes,
        size=header.size,
        parameters=sum(math.prod(shape) for shape in shapes.values()),
        dtypes=_bytes_by_dtype(header),
        nodes=sum(len(one) for one in (nodes, *inner) if isinstance(one, list)),
        modules=dict(kinds.most_common()),
        integer_inputs=tuple(names),
        integer_outputs=tuple(places),
        external={path: str(item.get("of")) for path, item in modules.items() if item.get("type") == EXTERNAL},
    )


def _is_described(item: object) -> bool:
    return isinstance(item, dict) and ("same" in item or isinstance(item.get("type"), str))


def _bytes_by_dtype(header: Header) -> dict[str, int]:
    found: Counter[str] = Counter()
    for stored in header.tensors.values():
        found[str(stored.dtype).removeprefix("torch.")] += stored.end - stored.begin
    return dict(found.most_common())
