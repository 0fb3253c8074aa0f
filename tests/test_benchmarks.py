"""The benchmarks run and write what they promise; what they measure is not looked at here."""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fxquant.kernels.library import available_isas

Run = Callable[..., tuple[str, dict[str, Any]]]

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    def run_benchmark(name: str, *arguments: str) -> tuple[str, dict[str, Any]]:
        path = tmp_path / "results.json"
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        monkeypatch.setattr(sys, "argv", [name, "--json", str(path), *arguments])
        runpy.run_path(str(BENCHMARKS / name), run_name="__main__")
        return capsys.readouterr().out, json.loads(path.read_text())

    threads = torch.get_num_threads()
    yield run_benchmark
    torch.set_num_threads(threads)


@pytest.mark.slow
@pytest.mark.parametrize("peers", [{"fp32", "fxquant"}, {"fp32", "torch.ao x86", "fxquant"}])
def test_int8(benchmark: Run, peers: set[str]) -> None:
    arguments = ("--rounds", "1", "--threads", "1", "--models", "squeezenet1_1", "--batch", "1")
    text, results = benchmark("int8.py", *arguments, "--peers", *sorted(peers))
    (row,) = results["rows"]
    assert set(row["ms"]) == peers
    assert all(ms > 0 for ms in row["ms"].values())
    assert set(row["sqnr"]) == {"of the calibration", "new"}
    for quality in row["sqnr"].values():
        assert set(quality) == {peer for peer in peers if not peer.startswith("fp32")}
    assert row["failures"] == {}
    assert {"cpu", "torch", "threads", "openvino"} <= set(results["machine"])
    assert "fxquant is faster than" in text
    assert "geometric mean" in text


@pytest.mark.filterwarnings("ignore")  # of torch.ao
def test_migration(benchmark: Run) -> None:
    pytest.importorskip("torch.ao.quantization")
    text, results = benchmark("migration.py", "--only", "equalization", "--rounds", "1", "--threads", "1")
    (row,) = results["rows"]
    assert row["imports"] > 0 == row["others"]
    assert row["after dB"] > row["before dB"]
    assert all(row[f"{kind} ms"] > 0 for kind in ("float", "before", "after"))
    assert "1 of 1 programs change nothing but imports" in text


def test_exports(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process and on a small network: a contestant with one of its own takes half a minute."""
    pytest.importorskip("openvino")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    exported, exports = importlib.import_module("exported"), importlib.import_module("exports")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)).eval()
    batches = [torch.randn(2, 3, 12, 12)]
    wanted = model(batches[0])
    for name in exports.THEIRS:
        found = exported.EXPORTED[name](model, batches)(batches[0])
        assert (found - wanted).norm() < 0.05 * wanted.norm()
        assert exported.EXPORTED[name](model, batches)(torch.cat(batches * 3)).shape == (6, 4, 8, 8)
    ours, *theirs = ("fxquant in ONNX Runtime", *exports.THEIRS["fxquant in ONNX Runtime"])
    row = {
        "model": "net",
        "runtime": ours,
        "ms": {ours: 2.0, theirs[0]: 3.0, theirs[1]: 9.0},
        "sqnr": {ours: 30.0, theirs[0]: 29.0, theirs[1]: 30.2},
        "median_sqnr": {ours: 33.0, theirs[0]: 31.0, theirs[1]: 30.5},
        "failures": {},
    }
    assert (exports.ratio(row), exports.best_of_theirs(row)) == (1.5, 30.2)
    shown = {"ms": 2.0, "theirs": 3.0, "dB": 30.0, "median image": 33.0, "theirs of it": 31.0}
    assert shown.items() <= exports.line(row).items()
    (summary,) = exports.summary([row, {**row, "ms": {ours: 3.0, theirs[0]: 2.0}}])
    assert [round(value, 3) for value in list(summary.values())[1:]] == [1.0, 0.667, 0.2]


@pytest.mark.slow
def test_a_peer_that_fails_costs_its_column(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    turns = importlib.import_module("turns")
    x = torch.zeros(1, 3, 8, 8)
    contestants, outputs = turns.compete(["fxquant", "fp32"], torch.nn.Conv2d(3, 4, 3), [], {1: x}, x, rounds=1)
    ours, float_model = contestants
    assert ours.failure.strip().endswith("IndexError: list index out of range")  # there is no batch to calibrate with
    assert float_model.failure == ""
    assert set(outputs) == {"fp32"}
    assert turns.median_ms(float_model, 1) > 0


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell a process's memory")
def test_a_contestant_that_ended_has_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    turns = importlib.import_module("turns")
    ours, theirs = Pipe()
    theirs.close()
    contestant = turns.Contestant("gone", SimpleNamespace(), ours)
    for _ in range(2):
        assert contestant.ask("turn", 1) is None
    assert contestant.failure == "the process ended"


@pytest.mark.slow
def test_memory(benchmark: Run) -> None:
    text, results = benchmark("memory.py", "--model", "squeezenet1_1", "--threads", "1")
    assert set(results["results"]) == {"float", "int8"}
    for row in results["results"].values():
        assert row["MB at the peak"] >= row["MB added"] > 0
    assert "float / int8" in text


@pytest.mark.slow
def test_calibration(benchmark: Run) -> None:
    text, results = benchmark("calibration.py", "--rounds", "1", "--threads", "1")
    measured = results["results"]
    assert set(measured) == {
        "mobilenet_v2, batch 16: forward",
        "mobilenet_v2, batch 16: forward with histogram calibration",
        "mobilenet_v2, batch 16: histogram calibration / forward",
        "mobilenet_v2, batch 16: forward with min-max calibration",
        "mobilenet_v2, batch 16: min-max calibration / forward",
        "mobilenet_v2, batch 16: forward with torch.ao's calibration",
        "mobilenet_v2, batch 16: torch.ao's calibration / forward",
        "mobilenet_v2, batch 16: forward with histogram without statistics calibration",
        "mobilenet_v2, batch 16: histogram without statistics calibration / forward",
        "mobilenet_v2, batch 16: the report's statistics / calibration",
        "13 MB, 1 thread: histogram",
        "13 MB, 1 thread: histogram / clone",
        "search for the range",
        "resnet50: prepare",
        "resnet50: convert",
        "resnet50: both",
        "import fxquant, after torch",
    }
    share = measured.pop("mobilenet_v2, batch 16: the report's statistics / calibration")
    assert share > -100  # of one round it may be anything
    assert all(value > 0 for value in measured.values())
    assert all(name in text for name in measured)


@pytest.mark.filterwarnings("ignore:the ranges have not settled")  # of twelve batches
def test_real_weights(benchmark: Run) -> None:
    text, results = benchmark("real_weights.py", "--threads", "1", "--tasks", "rnet")
    (row,) = results["rows"]
    assert row["float"] == row["int8"]["score"] == row["simulation"]["score"] == 200
    assert row["int8"]["agreement"] == 1
    assert row["int8_macs"] == 1
    assert set(row["torch.ao"]) in ({"score", "agreement", "sqnr"}, {"fails"})
    assert "MTCNN RNet" in text


@pytest.mark.slow
def test_zoo(benchmark: Run) -> None:
    arguments = ("--images", "1", "--rounds", "1", "--threads", "1", "--exported", "--models", "shufflenet_v2_x0_5")
    text, results = benchmark("zoo.py", *arguments)
    row = results["rows"]["shufflenet_v2_x0_5"]
    assert row["int8_macs"] == 1
    assert row["float_operators"] == {}
    assert set(row["int8"]) == set(row["simulation"]) == set(row["torch.ao"]) == {"input", "output"}
    assert "of 1 networks meet every target" in text
    assert "the same integers" in text
    assert row["exported"]["equal"]
    assert row["file"]["differs"] == []
    assert 1 < row["file"]["megabytes"] < 3
    assert benchmark("zoo.py", *arguments)[1]["rows"]["shufflenet_v2_x0_5"] == row  # not measured again


@pytest.mark.slow
def test_a_network_that_fails_costs_one_row_of_the_zoo(
    benchmark: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FXQUANT_KERNELS", "nonsense")
    with pytest.raises(SystemExit) as caught:
        benchmark("zoo.py", "--models", "resnet18")
    assert caught.value.code == 1
    text = capsys.readouterr().out
    assert "0 of 1 networks meet every target.\nresnet18: fxquant.errors." in text
    assert "FXQUANT_KERNELS has an unknown value" in text


def test_a_row_of_the_zoo_of_others_that_misses_names_the_layers_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    zoo_others = importlib.import_module("zoo_others")
    row = {
        "control": 30.0,
        "int8": 9.0,
        "prepared": 130.0,
        "warnings": [],
        "guilty": ["conv: 12 dB alone, it is clipped"],
        "file": {"differs": []},
    }
    assert zoo_others.missed(row) == ["9.0 dB, not 10.0; worst: conv: 12 dB alone, it is clipped"]
    assert zoo_others.missed(row | {"int8": 10.0}) == []


@pytest.mark.slow
def test_zoo_of_others(benchmark: Run) -> None:
    name = "segmentation:lraspp_mobilenet_v3_large"
    text, results = benchmark("zoo_others.py", "--threads", "1", "--images", "1", "--models", name)
    row = results["rows"][name]
    assert row["prepared"] > 120
    assert row["int8"] >= min(row["control"], 45) - 20
    assert row["int8_macs"] > 0.99
    assert row["file"]["differs"] == []
    assert "1 of 1 networks meet every target" in text


def test_fake_quantize(benchmark: Run) -> None:
    text, results = benchmark("fake_quantize.py", "--quick", "--sizes", "0.8 MB", "--threads", "1")
    works = [row["work"] for row in results["results"]]
    assert len(works) == len(set(works)) == 7
    assert all(row["us"] > 0 for row in results["results"])
    assert "times faster than torch" in text


def test_capture_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a small network: one of torchvision takes half a minute."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    capture_time = importlib.import_module("capture_time")
    model, x = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval(), torch.ones(2, 4)
    row = capture_time.measure(model, x, 1)
    doors = ("torch.fx", "program", "export", "torch.export, open", "torch.export, fixed")
    assert list(row) == [*doors, *(f"{door} / torch.fx" for door in doors[1:])]
    assert all(value > 0 for value in row.values())


@pytest.mark.slow
def test_qat_step(benchmark: Run) -> None:
    text, results = benchmark("qat_step.py", "--quick", "--threads", "1")
    assert [row["step"] for row in results["results"]] == ["float", "fxquant", "torch.ao"]
    assert all(row["MB kept"] > 0 for row in results["results"])
    assert "times float" in text


def test_int8_layers(benchmark: Run) -> None:
    arguments = ("--models", "squeezenet1_1", "--batch", "1", "--threads", "1", "--rounds", "1")
    text, results = benchmark("int8_layers.py", *arguments)
    (result,) = results["results"]
    *layers, total = result["rows"]
    assert total["layer"] == "all"
    assert total["count"] == sum(row["count"] for row in layers) == 26
    assert all(row["native"] > 0 for row in layers)
    assert "3x3 / 2 3 > 64, 224" in text


@pytest.mark.slow
def test_int8_layers_of_two_checkouts(benchmark: Run) -> None:
    here = str(BENCHMARKS.parent)
    arguments = ("--models", "mobilenet_v3_small", "--batch", "1", "--threads", "1", "--rounds", "1", "--depthwise")
    text, results = benchmark("int8_layers.py", *arguments, "--against", here, "--isa", *available_isas()[:1])
    (result,) = results["results"]
    assert sum(row["count"] for row in result["rows"]) == 11
    assert all(row["before"] > 0 and row["now"] > 0 and row["faster"] > 0 for row in result["rows"])
    assert "3x3 / 2 depthwise 16 > 16, 112" in text
    assert "all: geometric mean" in text


@pytest.mark.slow
def test_int8_borders(benchmark: Run) -> None:
    text, results = benchmark("int8_borders.py", "--models", "mobilenet_v3_small", "--rounds", "1")
    rows = results["results"]["mobilenet_v3_small"]
    assert sum(row["count"] for row in rows) == 12  # the stem, and the depthwise layers
    assert all(row["padded"] > 0 and row["bordered"] > 0 and row["ratio"] > 0 for row in rows)
    assert "3x3 / 2 depthwise 16 > 16, 112" in text


@pytest.mark.slow
def test_the_layers_of_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    found = importlib.import_module("int8_layers").layers_of("vit_b_16")
    names = {layer.name: count for layer, count in found.items()}
    assert names == {
        "16x16 / 16 3 > 768, 224": 1,
        "linear 768 > 768, 197 rows": 48,
        "linear 768 > 3072, 197 rows": 12,
        "linear 3072 > 768, 197 rows": 12,
        "linear 768 > 1000, 1 row": 1,
    }


@pytest.mark.slow
def test_int8_units(benchmark: Run) -> None:
    text, results = benchmark("int8_units.py", "--models", "squeezenet1_1")
    (result,) = results["results"]
    *kinds, total = result["rows"]
    assert total["unit"] == "all"
    assert total["count"] == sum(row["count"] for row in kinds)
    assert [row["int8 µs"] for row in kinds] == sorted((row["int8 µs"] for row in kinds), reverse=True)
    assert sum(row["share %"] for row in kinds) == pytest.approx(100)
    assert result["tuned ms"] <= min(result["int8 ms"], result["float ms"])
    assert "squeezenet1_1, batch 1, threads 1: float" in text


@pytest.mark.slow
def test_single_layers(benchmark: Run) -> None:
    text, results = benchmark("int8_units.py", "--layers", "--rounds", "1")
    assert len(results["results"]) > 10
    for row in results["results"]:
        assert row["layer"] in text
        if row["int8 µs"] is not None:
            assert row["int8 / float"] == row["int8 µs"] / row["float µs"]
    fates = {row["layer"]: row["runs as"] for row in results["results"]}
    assert fates["1x1 3 > 3, 224"] == fates["linear 32 > 64, 1 row"] == fates["trilinear x2 16, 8x14x14"] == "float"
    assert fates["1x1 64 > 64, 56"] == fates["3x3 depthwise 64, 56"] == "int8"


@pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")
def test_weight_only(benchmark: Run) -> None:
    text, results = benchmark("weight_only.py", "--layers", "64x32", "--threads", "1", "--rounds", "1")
    rows = {row["who"]: row for row in results["rows"]}
    assert {"torch float32", "fxquant int4 g32", "fxquant int4 per channel", "fxquant int8 per channel"} <= set(rows)
    assert all(row["ms"] > 0 and row["layer"] == "64x32" for row in rows.values())
    assert {name for name, row in rows.items() if row["of a copy"]} == {name for name in rows if "fxquant" in name}
    assert "of a copy" in text


@pytest.mark.slow
def test_int8_norms(benchmark: Run) -> None:
    text, results = benchmark("int8_norms.py", "--rounds", "1")
    assert len(results["rows"]) == 12
    assert all(row["before"] > 0 and row["now"] > 0 for row in results["rows"])
    assert "layer_norm, 392 x 768 uint8" in text


@pytest.mark.slow
def test_int8_usage(benchmark: Run) -> None:
    arguments = ("--models", "squeezenet1_1", "--batch", "1", "2", "--threads", "1", "--rounds", "1")
    text, results = benchmark("int8_usage.py", *arguments)
    (result,) = results["results"]
    assert set(result["rows"]) == {
        "int8, programs", "int8, programs, channels_last input", "int8, graph", "float"
    }  # fmt: skip
    for times in result["rows"].values():
        assert set(times) == {"batch 1, threads 1", "batch 2, threads 1"}
        assert all(ms > 0 for ms in times.values())
    assert "squeezenet1_1, ms per image" in text


@pytest.mark.slow
def test_checkouts(benchmark: Run) -> None:
    arguments = ("--rounds", "1", "--plan-rounds", "1", "--side", "64")
    text, results = benchmark("checkouts.py", "--models", "shufflenet_v2_x0_5", *arguments)
    (row,) = results["rows"]
    assert row["before dB"] == row["now dB"]
    assert row["before ms"] > 0
    assert row["now ms"] > 0
    assert row["verdict"] in ("", "slower")
    assert row["plan now / before"] > 0
    assert "now / before" in text
    assert results["import now / before"] > 0


@pytest.mark.slow
def test_channel_statistics(benchmark: Run) -> None:
    few = ("--epochs", "0", "--pictures", "32", "--images", "100", "--bits", "4", "--steps", "1", "--batches", "1")
    _, results = benchmark("channel_statistics.py", *few)
    methods = [row["method"] for row in results["rows"]]
    assert methods == ["nearest", "correct_bias", "correct_statistics"] * 3 + ["as trained", "reestimate_batch_norm"]
    assert all(0 <= row["right, %"] <= 100 and row["±"] >= 0 for row in results["rows"])


@pytest.mark.slow
def test_reconstruct(benchmark: Run) -> None:
    few = ("--epochs", "0", "--pictures", "32", "--images", "100", "--iterations", "2", "--batch", "4")
    text, results = benchmark("reconstruct.py", "--net", "fashion", *few)
    names = [(row["setting"], row["weights"]) for row in results["rows"]]
    assert names == [(name, how) for name in ("W4A4 per tensor", "W2A8") for how in ("nearest", "reconstruct")]
    assert all(0 <= row["agreement"] <= 1 and row["±"] >= 0 and row["SQNR, dB"] < 100 for row in results["rows"])
    assert "scales of activations" in text
    assert {"float", "iterations", "items", "machine"} <= set(results)
