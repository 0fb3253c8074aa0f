"""Files that are none, that are damaged, or that somebody wrote to do harm: ``ArtifactError``, and nothing else."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.format import FORMAT, KINDS
from fxquant.errors import ArtifactError

MUTATIONS = Path(__file__).parent / "mutations.py"
CODE = "x); import os; os.system('touch harmed'); ("


class Net(nn.Module):
    """An example of most of what a graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.up = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 4, 2, stride=2)
        self.fc, self.rest = nn.Linear(4, 4), nn.LayerNorm(4)
        self.shift = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, scale: float = 1.5) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = torch.cat([self.up(x), self.up(x).tanh()], 1)[:, :4]
        return self.rest(self.fc(x.mean((2, 3))).view(x.shape[0], 4) + self.shift).softmax(-1) * scale


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is right."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    path = tmp_path_factory.mktemp("artifact") / "right.fxq"
    fxq.save(fxq.convert(fxq.calibrate(fxq.prepare(Net().eval(), x), [x], progress=False)), path)
    return path


def parts(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["fxquant.graph"]), data[8 + length :]


def refused(path: Path, **arguments: Any) -> str:
    with pytest.raises(ArtifactError) as caught:
        fxq.load(path, **arguments)
    assert type(caught.value) is ArtifactError
    return str(caught.value)


def with_graph(file: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    header, graph, rest = parts(file)
    change(graph)
    header["__metadata__"]["fxquant.graph"] = json.dumps(graph)
    return with_header(folder, header, rest)


def with_header(folder: Path, header: Any, rest: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = folder / "changed.fxq"
    path.write_bytes(len(text).to_bytes(8, "little") + text + rest)
    return path


CONTAINERS: dict[str, tuple[Callable[[dict[str, Any], bytes], tuple[Any, bytes]], str]] = {
    "no header": (lambda header, rest: (b"", b""), "no fxquant artifact"),
    "no metadata": (lambda header, rest: ({}, b""), "no fxquant artifact"),
    "no JSON": (lambda header, rest: (b"{" * 40, rest), "cannot be parsed"),
    "brackets": (lambda header, rest: (b"[" * 2_000_000, rest), "cannot be parsed"),
    "a list": (lambda header, rest: (b"[]", rest), "no JSON object"),
    "a key twice": (lambda header, rest: (b'{"a":1,"a":2}', rest), "a key stands twice"),
    "NaN": (lambda header, rest: (b'{"a":NaN}', rest), "NaN is no number"),
    "many digits": (lambda header, rest: (b'{"a":' + b"9" * 9000 + b"}", rest), "cannot be parsed"),
    "no text": (lambda header, rest: (b"\xff\xfe{}", rest), "no fxquant artifact"),
    "cut off": (lambda header, rest: (header, rest[:-8]), "want"),
    "longer": (lambda header, rest: (header, rest + b"12345678"), "longer than its tensors"),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_containers(name: str, file: Path, tmp_path: Path) -> None:
    header, _, rest = parts(file)
    change, words = CONTAINERS[name]
    text = refused(with_header(tmp_path, *change(header, rest)))
    assert words in text or "cut off" in text


def test_lengths_and_limits(file: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.fxq"
    path.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    assert "no fxquant artifact" in refused(path)
    assert "larger than allowed" in refused(file, limits=fxq.LoadLimits(file=100))
    assert "header of the file is larger" in refused(file, limits=fxq.LoadLimits(header=100))
    assert "than allowed" in refused(file, limits=fxq.LoadLimits(nodes=5))
    assert "more tensors than allowed" in refused(file, limits=fxq.LoadLimits(tensors=2))
    assert "No such file" in refused(tmp_path / "none.fxq")


def test_metadata(file: Path, tmp_path: Path) -> None:
    for key, value, words in (
        ("fxquant.format", str(FORMAT + 1), "the file is of a newer format"),
        ("fxquant.format", "one", "does not say what format"),
        ("fxquant.kind", "pickle", "metadata of the file are incomplete"),
        ("more", "", "or hold more"),
        ("fxquant.notes", 1, "are no strings"),
    ):
        header, _, rest = parts(file)
        header["__metadata__"][key] = value
        assert words in refused(with_header(tmp_path, header, rest))


def test_what_an_error_says_whole(file: Path, tmp_path: Path) -> None:
    """The layout of the errors that a user is most likely to see."""
    header, graph, rest = parts(file)
    del header["__metadata__"]["fxquant.format"]
    text = refused(with_header(tmp_path, header, rest))
    assert text == "this file is no fxquant artifact\n  got:      no key fxquant.format"
    header["__metadata__"]["fxquant.format"] = "99"
    text = refused(with_header(tmp_path, header, rest))
    lines = ["the file is of a newer format", "  got:      99", f"  expected: at most {FORMAT}"]
    assert text.splitlines() == [*lines, "  hint:     pip install -U fxquant"]
    place = next(index for index, node in enumerate(graph["nodes"]) if node["op"] == "call_function")
    text = refused(with_graph(file, tmp_path, put("call_function", target="os.system")))
    lines = ["the graph calls a function that artifacts may not hold", f"  at:       node {place}"]
    assert text.splitlines()[:3] == [*lines, "  got:      'os.system'"]
    header, _, rest = parts(file)
    name = next(name for name in header if name.endswith("weight"))
    header[name]["shape"] = [2**20, 2**20]
    lines = refused(with_header(tmp_path, header, rest)).splitlines()
    assert lines[0] == "the file wants more memory than it is long"
    assert f"tensor {name} of 2^40 bytes" in lines[1] or name in "".join(lines)


def test_tensors(file: Path, tmp_path: Path) -> None:
    for change, words in (
        ({"shape": [2**20, 2**20]}, "wants more memory than it is long"),
        ({"shape": [2**62, 2**62]}, "2^63 bytes or more"),
        ({"shape": [-1]}, "damaged"),
        ({"dtype": "C32"}, "unknown dtype"),
        ({"data_offsets": [0, 0]}, "overlap, or leave gaps"),
        ({"more": 1}, "damaged"),
    ):
        header, _, rest = parts(file)
        name = next(name for name in header if name.endswith("weight"))
        header[name] |= change
        assert words in refused(with_header(tmp_path, header, rest))
    header, _, rest = parts(file)
    header["__class__ x"] = header.pop("shift")
    assert "a name that no model gives" in refused(with_header(tmp_path, header, rest))


def first(graph: Any, op: str) -> Any:
    return next(node for node in graph["nodes"] if node["op"] == op)


def put(which: str, **fields: Any) -> Callable[[Any], object]:
    return lambda graph: first(graph, which).update(fields)


def module(path: str, **fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["modules"][path].update(fields)


def config(path: str, **fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["modules"][path]["config"].update(fields)


def geometry(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["modules"]["conv"]["config"]["geometry"]["v"].update(fields)


def _nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"u": [value]}
    return value


GRAPHS: dict[str, Callable[[Any], object]] = {
    "code as a name": put("call_module", name=CODE),
    "code as an input": put("placeholder", target=CODE),
    "code as a module": put("call_module", target=CODE),
    "code as a keyword": put("call_function", kwargs={CODE: 1}),
    "code as the class": lambda graph: graph.update({"class": CODE}),
    "a word of Python": put("call_module", name="import"),
    "the name of a module that code uses": put("call_module", name="torch"),
    "a builtin": put("call_module", name="getattr"),
    "a name twice": lambda graph: graph["nodes"].insert(1, graph["nodes"][0]),
    "a function of the system": put("call_function", target="os.system"),
    "eval": put("call_function", target="builtins.eval"),
    "a private function": put("call_function", target="torch.load"),
    "a method that is in no table": put("call_function", op="call_method", target="numpy"),
    "a dunder method": put("call_function", op="call_method", target="__reduce__"),
    "an attribute that is in no table": lambda graph: next(
        node for node in graph["nodes"] if node["target"] == "builtins.getattr"
    ).update(args=[{"n": "x"}, "__class__"]),
    "an attribute that is computed": put("call_function", target="builtins.getattr", args=[{"n": "x"}, {"n": "x"}]),
    "a path of dunders": put("call_module", target="conv.__class__"),
    "a tensor that is none": put("get_attr", target="conv"),
    "a later node": put("call_module", args=[{"n": "output"}]),
    "a node in a default": put("placeholder", args=[{"n": "x"}]),
    "deep arguments": put("call_function", args=[_nested(100)]),
    "a long string": put("call_function", args=["x" * 5000]),
    "an unknown tag": put("call_function", args=[{"py": "os"}]),
    "a record of no kind": put("call_function", args=[{"o": "Popen", "v": {}}]),
    "an unknown operation": put("call_module", op="exec"),
    "two outputs": lambda graph: graph["nodes"].append(graph["nodes"][-1]),
    "no nodes": lambda graph: graph.update(nodes=[]),
    "no root": lambda graph: graph["modules"].pop(""),
    "a class of Python": module("conv", type="subprocess.Popen"),
    "a class of another kind": module("conv", type="torch.nn.LSTM"),
    "an orphan": lambda graph: graph["modules"].update({"a.b": {"same": "conv"}}),
    "a circle": lambda graph: graph["modules"].update(conv={"same": "conv"}),
    "more settings": config("conv", forward=1),
    "settings of other types": config("conv", activation={"u": [1]}),
    "no stride": geometry(stride={"u": [0, 0]}),
    "another kernel": geometry(kernel_size={"u": [2**30, 2**30]}),
    "groups that do not divide": geometry(groups=3),
    "padding below zero": geometry(before={"u": [-1, -1]}),
    "another rank": geometry(kernel_size={"u": [3]}),
    "bits": lambda graph: graph["modules"]["conv"]["config"]["_schemes"]["d"][0][1]["v"].update(bits=64),
    "a layer of other sizes": config("rest", normalized_shape={"u": [2**40]}),
    "an order of no dimensions": lambda graph: graph["layouts"].update({"shift": [1, 0]}),
    "an alias of nothing": lambda graph: graph["layouts"].update({"shift": "nothing"}),
    "qparams of nothing": lambda graph: graph["layouts"].update({"#plan/0.scale": "nothing"}),
    "qparams that are those of others that are others": lambda graph: graph["layouts"].update(
        {"#plan/0.scale": "#plan/1.scale", "#plan/1.scale": "#plan/0.scale"}
    ),
    "qparams of another shape": lambda graph: graph["layouts"].update({"#plan/0.scale": "fc.weight"}),
    "answers that are those of others": lambda graph: graph["layouts"].update({"#table/x": "shift"}),
    "a plan of something else": lambda graph: graph["plan"].update(units=[{"pattern": 1}]),
    "coverage of something else": lambda graph: graph.update(coverage=[1]),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_graphs(name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refused(with_graph(file, tmp_path, GRAPHS[name]))
    assert not (tmp_path / "harmed").exists()


def test_the_function_of_a_table_is_elementwise(file: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        table = next(m for m in graph["modules"].values() if m.get("type") == "fxquant.nn.QuantizedTable")
        table["config"]["function"]["v"].update(target={"c": "torch.tile"}, after={"u": [{"u": [2**40]}]})

    assert "do not fit each other" in refused(with_graph(file, tmp_path, change))


def test_qparams_are_stored_once(file: Path) -> None:
    header, graph, _ = parts(file)
    count = len(graph["plan"]["qparams"])
    same = {name: other for name, other in graph["layouts"].items() if name.startswith("#plan/")}
    assert len(same) == 2 * count  # of each unit a module has them, too
    assert not [name for name in header if name.startswith("#plan/")]
    model = fxq.load(file)
    before = {ref: qparams.scale.clone() for ref, qparams in model.quant_plan.qparams.items()}
    for buffer in model.buffers():
        buffer.zero_()
    assert len(before) == count
    assert all(torch.equal(model.quant_plan.qparams[ref].scale, scale) for ref, scale in before.items())


def test_qparams_that_fill_the_memory(file: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        graph["layouts"] |= {f"#plan/{index}.scale": "shift" for index in range(100, 100_000)}

    assert refused(with_graph(file, tmp_path, change)).startswith("the file wants more memory than it is long")


@pytest.mark.parametrize("kind", ["int8", "prepared"])
def test_mutations(kind: str, file: Path, fresh: Any) -> None:
    """A few, and the seed is fixed; ``make hostile`` draws more."""
    run = fresh.script(MUTATIONS, file if kind == "int8" else kind, "500", "0", strict=False)
    assert run.returncode == 0, run.stderr[-3000:]
    found = json.loads(run.stdout)
    assert found["count"] == 500
    assert found["loaded"] < 250


FILES = sorted((Path(__file__).parent / "files").glob("format-*.fxq"))


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_files_of_every_format_open(path: Path) -> None:
    """Integers are the same everywhere; what is computed in float may have another last bit on another machine."""
    _, number, kind = path.stem.split("-")
    kept = safetensors.torch.load_file(path.with_name(f"format-{number}.safetensors"))
    loaded = fxq.load(path)
    assert fxq.inspect_artifact(path).notes == {"written by": "write_files.py"}
    model = fxq.convert(loaded) if kind == "prepared" else loaded
    x = kept["integers x"] if kind == "integers" else kept["x"]
    torch.testing.assert_close(model(x), kept[kind], rtol=1e-5, atol=1e-5)


def test_layers_from_before_they_had_an_activation_open(tmp_path: Path) -> None:
    x = torch.randn(2, 6)
    model = fxq.convert(fxq.prepare(nn.Sequential(nn.Linear(6, 4)).eval(), x, fxq.default_dynamic_qconfig))
    fxq.save(model, tmp_path / "dynamic.fxq")

    def without_activation(graph: Any) -> None:
        assert graph["modules"]["0"]["config"].pop("activation") is None

    loaded = fxq.load(with_graph(tmp_path / "dynamic.fxq", tmp_path, without_activation))
    assert torch.equal(loaded(x), model(x))


def test_files_hold_the_activation_of_layers_that_measure_their_input(tmp_path: Path) -> None:
    x = torch.randn(2, 6)
    for activation in (nn.ReLU(), nn.ReLU6(), nn.Hardtanh(-0.25, 0.25)):
        layers = nn.Sequential(nn.Linear(6, 4), activation).eval()
        model = fxq.convert(fxq.prepare(layers, x, fxq.default_dynamic_qconfig))
        fxq.save(model, tmp_path / "dynamic.fxq", overwrite=True)
        loaded = fxq.load(tmp_path / "dynamic.fxq")
        assert loaded.get_submodule("0").activation == model.get_submodule("0").activation
        assert torch.equal(loaded(x), model(x))


def test_a_file_of_each_kind_and_format_is_there() -> None:
    kinds = {1: KINDS[:4], 2: (*KINDS, "integers"), 3: (*KINDS, "integers")}
    assert max(kinds) == FORMAT
    assert {path.stem for path in FILES} >= {f"format-{number}-{kind}" for number in kinds for kind in kinds[number]}


def test_mutations_reach_all_parts() -> None:
    spec = importlib.util.spec_from_file_location("mutations", MUTATIONS)
    assert spec is not None
    assert spec.loader is not None
    mutations = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(mutations)
    kinds = (mutations.flipped, mutations.cut, mutations.with_other_header, mutations.with_other_graph)
    data = {"__metadata__": {"fxquant.graph": json.dumps({"nodes": [1, 2, 3]})}}
    for kind in kinds:
        found = {kind(mutations.joined(data, bytes(range(256))), mutations.random.Random(seed)) for seed in range(20)}
        assert len(found) > 5
