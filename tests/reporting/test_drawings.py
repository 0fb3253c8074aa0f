from __future__ import annotations

import fxquant as fxq
from fxquant.reporting.drawings import FATES, drawings
from fxquant.reporting.subject import subject_of


def test_every_node_has_a_fate(calibrated: fxq.Quantizer) -> None:
    graph, int8 = drawings(subject_of(calibrated))
    assert (graph["title"], int8["title"]) == ("float graph", "int8 graph")
    fates = {node["name"]: node["fate"] for node in graph["nodes"]}
    assert fates == {
        "x": "other",
        "conv": "int8",
        "bn": "int8",
        "relu": "int8",
        "side": "int8",
        "add": "int8",
        "relu_1": "int8",
        "mean": "int8",
        "head": "int8",
        "log_softmax": "float",
        "kept": "excused",
        "output": "other",
    }
    lowered = {node["name"]: node["fate"] for node in int8["nodes"]}
    assert lowered["x_quantize"] == "border"
    assert lowered["relu_1"] == "int8"
    assert set(fates.values()) | set(lowered.values()) <= {name for name, *_ in FATES}


def test_what_is_known_of_a_node(calibrated: fxq.Quantizer) -> None:
    graph, _ = drawings(subject_of(calibrated))
    node = next(node for node in graph["nodes"] if node["name"] == "relu_1")
    line = node.pop("line")
    assert line.rpartition(":")[0].endswith("conftest.py")
    assert node.pop("qparams").startswith("uint8 s=")
    assert node == {
        "name": "relu_1",
        "op": "relu",
        "call": "F.relu(add)",
        "value": "float32[2,8,8,8]",
        "module": "side",
        "inputs": ["add"],
        "unit": "relu_1",
        "fate": "int8",
        "bookkeeping": "",
        "reason": "",
        "macs": 2 * 8 * 8 * 8 * 8 * 9,
    }
    kept = next(node for node in graph["nodes"] if node["name"] == "kept")
    assert kept["reason"] == "the configuration leaves it in float: set_module_name('kept')"


def test_a_converted_model_has_its_own_graph_only(calibrated: fxq.Quantizer) -> None:
    (only,) = drawings(subject_of(fxq.convert(calibrated, to="fake_quant")))
    assert only["title"] == "quantized graph"


def test_nodes_that_only_serve_others_are_bookkeeping(halves: fxq.Quantizer) -> None:
    (graph,) = drawings(subject_of(halves))
    assert {node["name"]: node["bookkeeping"] for node in graph["nodes"] if node["bookkeeping"]} == {
        **dict.fromkeys(("size", "eq", "_assert", "getattr_1", "getitem_3", "size_1", "sub"), "plain"),
        **dict.fromkeys(("getitem", "getitem_1"), "item"),
    }
    slices = next(node for node in graph["nodes"] if node["name"] == "getitem_2")
    assert (slices["op"], slices["value"]) == ("getitem", "float32[2,2]")
