"""A model that was saved and loaded gives the same bits, in a process that has only the file."""

from __future__ import annotations

import json
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.format import FORMAT
from fxquant.artifact.functions import FUNCTIONS, METHODS
from fxquant.artifact.modules import FORMS, TYPES
from fxquant.artifact.quantized_modules import ROWS
from fxquant.artifact.values import decode, encode
from fxquant.errors import ArtifactError, FxQuantWarning
from fxquant.nn.base import QuantizedModule
from fxquant.nn.weight_forms import LAYERS
from fxquant.plan.spec import Dynamic

FORMATS = ("int8", "reference", "fake_quant", "float")

NETWORKS: dict[str, dict[str, Any]] = {
    "densenet121": {},
    "efficientnet_b0": {},
    "googlenet": {"init_weights": False},
    "mobilenet_v3_small": {},
    "resnet18": {},
    "shufflenet_v2_x0_5": {},
    "squeezenet1_1": {},
    "swin_t": {},
}
"""Networks of eight kinds: joins, swish, branches, squeezes, residuals, shuffles, no batch norm, attention."""
IN_ALL_FORMS = ("mobilenet_v3_small", "resnet18")

FRESH = """
import json, sys
import torch
import fxquant as fxq

folder, names = sys.argv[1], json.loads(sys.argv[2])
fxq.load(f"{folder}/{names[0]}.fxq")  # what the first load imports is not of the file
loaded, seen = set(sys.modules), []

def hook(event, arguments):
    if event == "import" and arguments[0] not in loaded:
        seen.append(f"import {arguments[0]}")
    if event == "pickle.find_class":
        seen.append(f"{event} {arguments}")
    code = f"{arguments[-1]} {getattr(arguments[0], 'co_filename', '')}"
    if event in ("compile", "exec") and "<eval_with_key>" not in code:
        seen.append(f"{event} {arguments}")
    if event == "open" and not str(arguments[0]).startswith(folder):
        seen.append(f"open {arguments[0]}")

sys.addaudithook(hook)
models = {name: fxq.load(f"{folder}/{name}.fxq") for name in names}
found = list(seen)
different = []
for name, model in models.items():
    wanted = torch.load(f"{folder}/{name}.pt")
    for _ in range(3):
        y = model(*wanted["inputs"])
        if not torch.equal(y, wanted["output"]):
            different.append(f"{name}: output")
    state = model.state_dict()
    if list(state) != list(wanted["state"]) or not all(torch.equal(state[k], wanted["state"][k]) for k in state):
        different.append(f"{name}: state")
    if wanted["coverage"] is not None and str(model.quant_coverage) != wanted["coverage"]:
        different.append(f"{name}: coverage")
print(json.dumps({"seen": found, "different": different, "torchvision": "torchvision" in sys.modules}))
"""


def keep(folder: Path, name: str, model: Any, *inputs: Tensor) -> None:
    """Write a model, and beside it what it gives."""
    fxq.save(model, folder / f"{name}.fxq")
    with torch.no_grad():
        output = model(*inputs)
    coverage = str(model.quant_coverage) if "quant_coverage" in dir(model) or hasattr(model, "quant_coverage") else None
    kept = {"inputs": inputs, "output": output, "state": dict(model.state_dict()), "coverage": coverage}
    torch.save(kept, folder / f"{name}.pt")


def check_in_a_fresh_process(fresh: Any, folder: Path, names: list[str]) -> None:
    run = fresh(FRESH, folder, json.dumps(names))
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"seen": [], "different": [], "torchvision": False}


@pytest.mark.slow
@pytest.mark.parametrize("networks", [IN_ALL_FORMS[:1], pytest.param(tuple(NETWORKS), marks=pytest.mark.slow)])
def test_networks_in_a_fresh_process(fresh: Any, tmp_path: Path, networks: tuple[str, ...]) -> None:
    names = []
    for network in networks:
        arguments = NETWORKS[network]
        torch.manual_seed(0)
        model = torchvision.models.get_model(network, weights=None, **arguments).eval()
        x = torch.randn(2, 3, 64, 64)
        shuffles = network.startswith("shufflenet")  # its ranges are unequal while weights are random
        with (
            pytest.warns(FxQuantWarning, match="very different size|one channel reaches") if shuffles else nullcontext()
        ):
            prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        for form in FORMATS if network in IN_ALL_FORMS else FORMATS[:1]:
            converted = prepared.graph_module if form == "float" else fxq.convert(prepared, to=form)
            names.append(f"{network}-{form}")
            keep(tmp_path, names[-1], converted, x)
    check_in_a_fresh_process(fresh, tmp_path, names)


class Everything(nn.Module):
    """Operators that the networks lack."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1), nn.BatchNorm2d(4)
        self.slope, self.pool = nn.PReLU(4), nn.AvgPool2d(2)
        self.volume, self.fc = nn.Conv3d(1, 2, 3, padding=1), nn.Linear(8, 8)
        self.offset = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.slope(self.up(x))
        x = self.norm(torch.relu(x) - x * 0.5)
        x = torch.maximum(self.pool(x), torch.nn.functional.max_pool2d(x, 2))
        x = torch.nn.functional.interpolate(x, scale_factor=2.0, mode="bilinear")
        x = torch.nn.functional.pad(x, (1, 1, 1, 1))
        x = torch.cat([x, torch.stack([x, x.tanh()]).sum(0)], 1)
        v = torch.nn.functional.avg_pool3d(self.volume(x.unsqueeze(1)), 2)
        x = x.amax(1).mean(1) + v.mean()
        return self.fc(x[:, :8]) @ (self.fc.weight + self.offset)


def calibrated(model: nn.Module, *inputs: Tensor, qconfig: Any = None) -> Any:
    return fxq.calibrate(fxq.prepare(model.eval(), inputs, qconfig), [inputs], progress=False)


@pytest.fixture(scope="module")
def everything() -> tuple[Any, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 8, 8)
    return calibrated(Everything(), x), x


@pytest.mark.parametrize("form", FORMATS)
def test_other_operators(form: str, everything: tuple[Any, Tensor], tmp_path: Path) -> None:
    prepared, x = everything
    model = prepared.graph_module if form == "float" else fxq.convert(prepared, to=form)
    fxq.save(model, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(loaded(x), model(x))
    assert same_settings(loaded, model) == []
    fxq.save(loaded, tmp_path / "b.fxq")
    assert contents(tmp_path / "a.fxq") == contents(tmp_path / "b.fxq")


def contents(path: Path) -> tuple[Any, bytes]:
    """The header, whose metadata stand in any order, and the tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def same_settings(loaded: nn.Module, model: nn.Module) -> list[str]:
    """The attributes of modules that differ, but for what is packed, tables, and hooks that torch keeps."""
    different = []
    for path, module in model.named_modules():
        other = loaded.get_submodule(path)
        names = set(vars(module)) | set(vars(other)) if path and type(module) is not nn.Module else set()
        for name in names - set(vars(nn.Module())) - {"_packed", "answers"}:
            if type(other) is not type(module) or vars(other).get(name, "missing") != vars(module).get(name, "missing"):
                different.append(f"{path}.{name}")
    return different


def test_weights_of_few_bits_and_tables(tmp_path: Path) -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.bag, self.fc = nn.Embedding(10, 7), nn.EmbeddingBag(10, 7), nn.Linear(7, 3)

        def forward(self, ids: Tensor) -> Tensor:
            return self.fc(self.table(ids).mean(1) + self.bag(ids))

    torch.manual_seed(0)
    ids = torch.randint(0, 10, (4, 5))
    for rows in (fxq.float_qparams_weight_only_qconfig, fxq.float_qparams_weight_only_qconfig_4bit):
        mapping = fxq.get_default_qconfig_mapping().set_object_type(nn.Linear, fxq.default_dynamic_qconfig)
        mapping = mapping.set_object_type(nn.Embedding, rows).set_object_type(nn.EmbeddingBag, rows)
        for form in FORMATS[:3]:
            model = fxq.convert(calibrated(Words(), ids, qconfig=mapping), to=form)
            fxq.save(model, tmp_path / "a.fxq", overwrite=True)
            loaded = fxq.load(tmp_path / "a.fxq")
            assert torch.equal(loaded(ids), model(ids))
            assert same_settings(loaded, model) == []


def test_a_loaded_model_is_converted_no_less_than_the_first(everything: tuple[Any, Tensor], tmp_path: Path) -> None:
    model = fxq.convert(everything[0])
    fxq.save(model, tmp_path / "a.fxq")
    loaded: Any = fxq.load(tmp_path / "a.fxq")
    plan, own = loaded.quant_plan, model.quant_plan
    assert plan.units == own.units
    assert plan.refusals == own.refusals
    assert {ref: q.scale.tolist() for ref, q in plan.qparams.items()} == {
        ref: q.scale.tolist() for ref, q in own.qparams.items()
    }
    loaded.load_state_dict(model.state_dict())
    with pytest.raises(fxq.FxQuantError, match="the inputs"):
        loaded(1, 2, 3)


def test_one_parameter_of_two_layers_stays_one(tmp_path: Path) -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.c(self.b(self.a(x)))

    x = torch.randn(2, 4)
    model: Any = calibrated(Tied(), x).graph_module
    model.a.weight.data = model.a.weight.data.t().contiguous().t()
    fxq.save(model, tmp_path / "a.fxq")
    loaded: Any = fxq.load(tmp_path / "a.fxq")
    assert loaded.a.weight is loaded.b.weight
    assert loaded.a.weight.stride() == model.a.weight.stride() == (1, 4)
    assert torch.equal(loaded(x), model(x))


class Gate(nn.Module):
    """Cannot be traced: it looks at values."""

    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > self.level else x * self.level


def test_a_module_of_the_users_is_given_back(tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    with pytest.warns(FxQuantWarning):
        model = fxq.convert(calibrated(nn.Sequential(nn.Linear(4, 4), Gate(), nn.Linear(4, 4)), x))
    with pytest.warns(FxQuantWarning, match=r"1 \(.*Gate\)"):
        fxq.save(model, tmp_path / "a.fxq")
    assert list(fxq.inspect_artifact(tmp_path / "a.fxq").external) == ["1"]
    with pytest.raises(ArtifactError, match="the file needs modules that it cannot hold"):
        fxq.load(tmp_path / "a.fxq")
    gate = Gate()
    with torch.no_grad():
        gate.level.fill_(7.0)
    loaded = fxq.load(tmp_path / "a.fxq", modules={"1": gate})
    assert torch.equal(loaded(x), model(x))
    assert gate.level == 0.5


class Scaled(nn.Module):
    """Cannot be traced, and has a buffer that no state dict holds."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(3.0), persistent=False)
        self.register_buffer("level", torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor if x.mean() > self.level else x * self.level


@pytest.mark.parametrize("form", ["int8", "reference", "fake_quant", "prepared"])
def test_a_module_of_the_users_with_a_buffer_that_is_not_saved(form: str, tmp_path: Path) -> None:
    x = torch.randn(2, 4)
    with pytest.warns(FxQuantWarning):
        prepared = calibrated(nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 4)), x)
    with pytest.warns(FxQuantWarning, match=r"1 \(.*Scaled\)"):
        fxq.save(prepared if form == "prepared" else fxq.convert(prepared, to=form), tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq", modules={"1": Scaled()})
    wanted = fxq.convert(prepared, to="int8" if form == "prepared" else form)
    assert torch.equal((fxq.convert(loaded) if form == "prepared" else loaded)(x), wanted(x))


def test_the_header_says_what_is_in_the_file(everything: tuple[Any, Tensor], tmp_path: Path) -> None:
    fxq.save(fxq.convert(everything[0]), tmp_path / "a.fxq", notes={"data": "64 images"})
    info = fxq.inspect_artifact(tmp_path / "a.fxq")
    assert (info.kind, info.format, info.notes) == ("int8", FORMAT, {"data": "64 images"})
    assert info.size == (tmp_path / "a.fxq").stat().st_size
    assert info.modules["fxquant.nn.QuantizedConvTranspose"] == 1
    assert "notes       data: 64 images" in str(info)


def test_no_class_of_converted_models_is_forgotten() -> None:
    public = {getattr(fxq.nn, name) for name in fxq.nn.__all__}
    modules = {kind for kind in public if isinstance(kind, type) and issubclass(kind, QuantizedModule)}
    assert modules - {QuantizedModule} <= set(ROWS)
    assert {form for pair in LAYERS.values() for form in pair} == set(FORMS)
    assert len(TYPES) == len(set(TYPES.values()))


def test_nothing_in_the_tables_leads_out_of_tensors() -> None:
    names = {name.rpartition(".")[2] for name in FUNCTIONS} | METHODS
    assert names.isdisjoint({"eval", "exec", "open", "load", "save", "compile", "apply_", "map_", "numpy", "set_"})
    assert all(callable(function) for function in FUNCTIONS.values())


VALUES: tuple[Any, ...] = (
    *(None, True, 3, -(2**62), 0.1, -0.0, 1e-320, "a", torch.float16, torch.channels_last, torch.device("cpu"), ...),
    *(slice(None, 3, None), [1, (2, [3])], (), {"a": 1, "b": (2,)}, torch.Size([1, 2]), float("inf"), torch.relu),
    *(fxq.QScheme(bits=4, limits=(-7, 7)), fxq.Clamp(0.0, 6.0)),
    *(Dynamic(fxq.QScheme(signed=False)), Dynamic(fxq.QScheme(signed=False), per="token")),
)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values(value: Any) -> None:
    found = decode(json.loads(json.dumps(encode(value))))
    assert type(found) is type(value)
    assert repr(found) == repr(value)


def test_fields_that_came_later_are_written_where_they_say_something() -> None:
    """So files without them stay readable, and older versions read what they know."""
    whole, rows = (encode(Dynamic(fxq.QScheme(), per=per)) for per in ("tensor", "token"))
    assert sorted(whole["v"]) == ["eps", "scheme"]
    assert sorted(rows["v"]) == ["eps", "per", "scheme"]
    rows["v"]["per"] = "row"
    with pytest.raises(ArtifactError, match="a field of a record has the wrong type"):
        decode(rows)
    del whole["v"]["eps"]
    with pytest.raises(ArtifactError, match="a record in the file has other fields"):
        decode(whole)


NO_VALUES: dict[str, Any] = {
    **{"object": object(), "large number": 2**70, "function": print, "long text": "x" * 5000},
    **{"tensor": torch.ones(1), "complex": 1j, "module": Gate()},
}


@pytest.mark.parametrize("value", NO_VALUES.values(), ids=NO_VALUES)
def test_values_that_no_file_holds(value: Any) -> None:
    with pytest.raises(ArtifactError, match="a file cannot hold this value"):
        encode(value)


def test_a_function_of_the_users_is_named(tmp_path: Path, everything: tuple[Any, Tensor]) -> None:
    model = fxq.convert(everything[0])
    node = next(node for node in model.graph.nodes if node.op == "call_function")
    node.target = subprocess.run
    with pytest.raises(ArtifactError) as caught:
        fxq.save(model, tmp_path / "a.fxq")
    assert "the graph calls a function that artifacts may not hold" in str(caught.value)
    assert "got:      subprocess.run" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
