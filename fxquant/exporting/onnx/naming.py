"""Names of the plan in the graph, and of what is in the graph twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from fxquant.errors import ExportError, InputError
from fxquant.exporting.onnx.clamps import ends_behind
from fxquant.exporting.onnx.editing import DEQUANTIZE, QUANTIZE, Editor

ENDINGS = ("_q", "_dq")


def check_names(
    inputs: Sequence[str] | None, outputs: Sequence[str] | None, taken: Sequence[Tensor], given: Sequence[Tensor]
) -> None:
    """Refuse names of inputs and outputs that no graph can have.

    Args:
        inputs, outputs: The names, if any were given.
        taken, given: The tensors that the model takes and gives.

    Raises:
        InputError: they are no names, are more than there are tensors, or stand there twice.
    """
    for what, names, tensors in (("input_names", inputs, taken), ("output_names", outputs, given)):
        if names is None:
            continue
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(map(_is_name, names)):
            raise InputError(f"{what} is no list of names", got=ascii(names)[:120], expected='["image", "mask"]')
        if len(names) > len(tensors):
            raise InputError(f"{what} has too many names", got=", ".join(names), expected=f"at most {len(tensors)}")
    counts = Counter((*(inputs or ()), *(outputs or ())))
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InputError("a name stands for two inputs or outputs", got=", ".join(twice), expected="each its own")


def check_results(outputs: Any) -> None:
    """Refuse what a model returns beside tensors: a file has no place for it.

    Raises:
        ExportError: the message says where it is, and what.
    """
    for path, value in tree_flatten_with_path(outputs)[0]:
        if value is not None and not isinstance(value, Tensor):
            raise ExportError(
                "a model in ONNX returns tensors alone",
                got=f"{type(value).__name__} {value!r:.80} at result{keystr(path)}",
                expected="tensors, or None, which is left out",
                hint="return torch.tensor(value), or nothing in its place",
            )


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name.strip())


def keep_input_names(graph: Any, arguments: Sequence[str], given: Sequence[str]) -> None:
    """Give an input its name back that the exporter took for an output, where the model returns the input as it is.

    Args:
        graph: Of onnx_ir.
        arguments: Names of the inputs before.
        given: Names of outputs that the user chose, which stay.
    """
    outputs = {value.name: value for value in graph.outputs}
    for value in graph.inputs:
        name = str(value.name).removesuffix("_orig")
        if value.name in arguments or name not in arguments or name in given:
            continue
        taken = {each.name for node in graph for each in node.outputs} | {each.name for each in graph.inputs}
        if name in outputs:
            _rename(outputs[name], f"{name}_out", taken | set(graph.initializers))
        value.name = name


def name_values(editor: Editor, names: Mapping[str, str]) -> dict[str, str]:
    """Call the value that is quantized as the plan does, its integers ``NAME_q``, what is read of them ``NAME_dq``.

    Args:
        editor: Of the graph.
        names: Name that the exporter gave the result of a quantize -> name in the plan.

    Returns:
        New name of the integers -> the name that the exporter gave them.
    """
    quantizes = [(node, _clipped(editor, node.outputs[0])) for node in editor.nodes(QUANTIZE)]
    calls = [integers.name for _, integers in quantizes]
    taken = {value.name for value in (*editor.graph.inputs, *editor.graph.outputs)} | set(editor.graph.initializers)
    planned = {f"{name}{end}" for name in names.values() for end in ("", *ENDINGS)}
    inner = [value for node in editor.graph for value in node.outputs if not value.is_graph_output()]
    for value in inner:  # what the exporter gave a name of the plan makes room
        _rename(value, f"{value.name}_inner" if value.name in planned else value.name, taken)
    found: dict[str, str] = {}
    for (node, integers), call in zip(quantizes, calls, strict=True):
        source = node.inputs[0]
        name = names.get(call, source.name)
        if call in names and not (source.is_graph_input() or source.is_graph_output()):
            _rename(source, name, taken)
        if integers is not node.outputs[0]:
            _rename(node.outputs[0], f"{name}_unclipped", taken)
        _rename(integers, f"{name}_q", taken)
        if call in names:
            found[integers.name] = call
        for reader in editor.readers(integers):
            if reader.op_type == DEQUANTIZE and not reader.outputs[0].is_graph_output():
                _rename(reader.outputs[0], f"{name}_dq", taken)
    for node in editor.graph:
        node.name = node.outputs[0].name
        node.metadata_props.clear()  # paths of the user's files, classes of modules
        node.doc_string = None
        for value in node.outputs:
            value.metadata_props.clear()
    return found


def _clipped(editor: Editor, integers: Any) -> Any:
    """Return the integers that are left where fewer are used than their type has."""
    readers = editor.readers(integers)
    return readers[0].outputs[0] if len(readers) == 1 and readers[0].op_type == "Clip" else integers


def _rename(value: Any, name: str, taken: set[str]) -> None:
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    value.name = free


def qparams_of(editor: Editor) -> dict[str, dict[str, Any]]:
    """Return the qparams of each value that is quantized per tensor, by its name: plain data.

    Where fewer integers are used than the type has, ``limits`` are the first and the last.
    """
    found: dict[str, dict[str, Any]] = {}
    for node in editor.nodes(QUANTIZE):
        qparams = editor.qparams(node)
        if qparams is not None:
            integers = _clipped(editor, node.outputs[0])
            name = str(integers.name).removesuffix("_q")
            found[name] = {"scale": qparams.scale, "zero_point": qparams.zero_point, "dtype": qparams.dtype.lower()}
            if (ends := ends_behind(editor, node, qparams)) != qparams.ends:
                found[name]["limits"] = list(ends)
    return found
