"""A prepared model that was saved and loaded becomes what it would have become, and none of it is code."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.artifact.makers import MAKERS, decode_maker, encode_maker
from fxquant.artifact.node_facts import decode_class, encode_class
from fxquant.errors import ArtifactError, CalibrationError, FxQuantWarning
from fxquant.fake_quantize.adaround import KnownIntegers
from fxquant.fake_quantize.base import FakeQuantizeBase
from fxquant.graph.affine import ChannelAffine
from fxquant.graph.query import NamedClass
from fxquant.observers.base import ObserverBase
from tests.sampling import one_of

FORMS = ("int8", "reference", "fake_quant")


def calibrated(model: nn.Module, *inputs: Tensor, qconfig: Any = None, **more: Any) -> Any:
    return fxq.calibrate(fxq.prepare(model.eval(), inputs, qconfig, **more), [inputs], progress=False)


def check(prepared: Any, path: Path, *inputs: Tensor, **modules: nn.Module) -> Any:
    """Save and load; compare the float model and every form to the bit, and the tables as text."""
    fxq.save(prepared, path, overwrite=True)
    loaded = fxq.load(path, modules=modules)
    assert isinstance(loaded, fxq.Quantizer)
    if isinstance(prepared, fxq.Quantizer):
        assert torch.equal(loaded.graph_module(*inputs), prepared.graph_module(*inputs))
        assert str(loaded.coverage()) == str(prepared.coverage())
        assert str(loaded.calibration_report()) == str(prepared.calibration_report())
    for form in FORMS:
        wanted, found = fxq.convert(prepared, to=form), fxq.convert(loaded, to=form)
        assert torch.equal(found(*inputs), wanted(*inputs)), form
        assert str(found.quant_coverage) == str(wanted.quant_coverage)
        assert found.quant_plan.units == wanted.quant_plan.units
    return loaded


@pytest.mark.parametrize(
    "network",
    [
        "squeezenet1_1",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mobilenet_v3_small", "densenet121", "swin_t")),
    ],
)
def test_networks(network: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, 64, 64)
    prepared = calibrated(torchvision.models.get_model(network, weights=None), x)
    loaded = check(prepared, tmp_path / "a.fxq", x)
    loaded.calibrate([2 * x], progress=False)
    prepared.calibrate([2 * x], progress=False)
    assert torch.equal(fxq.convert(loaded)(x), fxq.convert(prepared)(x))


class Block(nn.Module):
    """A class of the user's, which rules name."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x))) + x


class Net(nn.Module):
    """Blocks, a join, and values that rules decide on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.blocks, self.fc = nn.Sequential(Block(), Block()), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x))).mean((2, 3))
        return self.fc(torch.cat([x, self.blocks(x).sigmoid()], 1))


def rules() -> fxq.QConfigMapping:
    few = fxq.QConfig(
        activation=fxq.MinMaxObserver.with_args(dtype=torch.quint8, bits=6),
        weight=fxq.MSEObserver.with_args(bits=4, dtype=torch.qint8, qscheme=torch.per_channel_symmetric, ch_axis=0),
        output=fxq.MinMaxObserver.with_args(bits=6),
        correct_bias=True,
    )
    mapping = fxq.get_default_qconfig_mapping().set_object_type(Block, few).set_object_type(torch.sigmoid, None)
    mapping = mapping.set_module_name_regex(r"blocks\.[01]\.sec.*", fxq.default_dynamic_qconfig)
    return mapping.set_module_name("fc", few).set_module_name_object_type_order("blocks.0", nn.Linear, 0, None)


def test_rules(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 6, 6)
    prepared = calibrated(Net(), x, qconfig=rules())
    loaded = check(prepared, tmp_path / "a.fxq", x)
    kept = {rule.key: rule.qconfig for rule in loaded.config.rules()}
    assert kept[NamedClass(f"{__name__}.Block")] == prepared.config.object_type_qconfigs[Block]
    assert kept[torch.sigmoid] is None
    assert {r"blocks\.0\.second\Z", r"blocks\.1\.second\Z"} <= {key for key in kept if isinstance(key, str)}
    fxq.save(loaded, tmp_path / "b.fxq")
    again = fxq.load(tmp_path / "b.fxq")
    assert [rule.qconfig for rule in again.config.rules()] == [rule.qconfig for rule in loaded.config.rules()]
    int8 = fxq.convert(prepared)
    assert torch.equal(fxq.convert(pickle.loads(pickle.dumps(loaded)))(x), int8(x))
    assert torch.equal(pickle.loads(pickle.dumps(fxq.convert(loaded)))(x), int8(x))


class LayerScale(nn.Module):
    """A product per channel that cannot be folded, and a difference, a product and a sum that stand anywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.conv = nn.Linear(8, 8), nn.Conv2d(2, 2, 1)
        self.g = nn.Parameter(torch.rand(8) + 0.5)
        self.register_buffer("mean", torch.rand(2, 1, 1))
        self.register_buffer("std", torch.rand(2, 1, 1) + 0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = (x.view(-1, 2, 2, 2) - self.mean) * self.std + 1.0
        return self.a(x) * self.g + x + self.conv(y).flatten(1)


def test_products_and_sums_per_channel(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 8)
    prepared = calibrated(LayerScale(), x)
    assert any(isinstance(module, ChannelAffine) for module in prepared.graph_module.modules())
    check(prepared, tmp_path / "a.fxq", x)
    fxq.save(prepared.graph_module, tmp_path / "b.fxq")
    assert torch.equal(fxq.load(tmp_path / "b.fxq")(x), prepared.graph_module(x))


@pytest.mark.parametrize(
    "change",
    [{"num_features": 7}, {"behind": -1}, {"behind": 9}, {"rank": 0}, {"rank": 10**9}, {"is_centered": True}],
    ids=str,
)
def test_products_per_channel_that_are_none(change: dict[str, Any], tmp_path: Path) -> None:
    prepared = calibrated(LayerScale(), torch.randn(4, 8))
    fxq.save(prepared, tmp_path / "a.fxq")

    def damage(graph: Any) -> None:
        found = [item for item in graph["modules"].values() if str(item.get("type")).endswith("ChannelAffine")]
        next(item for item in found if not item["config"]["is_centered"])["config"].update(change)

    with pytest.raises(ArtifactError, match="do not fit each other"):
        fxq.load(with_change(tmp_path / "a.fxq", tmp_path, damage))


def test_what_was_never_calibrated(tmp_path: Path) -> None:
    x = torch.randn(4, 3, 6, 6)
    prepared = fxq.prepare(Net().eval(), x)
    fxq.save(prepared, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    with pytest.raises(fxq.FxQuantError, match="values have no range"):
        fxq.convert(loaded)
    for each in (prepared, loaded):
        fxq.calibrate(each, [x], progress=False)
    assert torch.equal(fxq.convert(loaded)(x), fxq.convert(prepared)(x))


@pytest.mark.parametrize(
    "qconfig",
    [
        fxq.default_dynamic_qconfig,
        fxq.default_per_token_qconfig,
        fxq.QConfig(activation=fxq.PlaceholderObserver, weight=fxq.MinMaxObserver),
    ],
    ids=["dynamic", "per token", "weights alone"],
)
def test_what_has_no_observers_of_activations(qconfig: Any, tmp_path: Path) -> None:
    x = torch.randn(4, 8)
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    prepared = fxq.prepare(net, x, qconfig)
    assert not len(prepared.observers)
    fxq.save(prepared, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(fxq.convert(loaded)(x), fxq.convert(prepared)(x))
    applied = fxq.apply_qparams(prepared, fxq.qparams(prepared))
    fxq.save(applied, tmp_path / "b.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "b.fxq"))(x), fxq.convert(prepared)(x))


def test_the_values_of_the_example_are_not_in_the_file(tmp_path: Path) -> None:
    x = torch.full((4, 3, 6, 6), 0.123456)
    fxq.save(fxq.prepare(Net().eval(), x), tmp_path / "a.fxq")
    assert x.numpy().tobytes()[:64] not in (tmp_path / "a.fxq").read_bytes()
    (example,) = fxq.load(tmp_path / "a.fxq").example_args
    assert (example.shape, example.dtype, example.count_nonzero().item()) == (x.shape, x.dtype, 0)


@pytest.mark.slow
def test_learned_rounding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    data = [torch.randn(8, 3, 6, 6) for _ in range(2)]
    learned = fxq.adaround(calibrated(Net(), data[0]), data, iterations=20, progress=False)
    loaded = check(learned, tmp_path / "a.fxq", data[0])
    assert set(loaded.weight_layers._modules) == set(learned.weight_layers._modules)
    for model in (fxq.convert(learned, to="fake_quant"), fxq.convert(loaded, to="fake_quant")):
        names = list(model.state_dict())
        fxq.save(model, tmp_path / "b.fxq", overwrite=True)
        simulated = fxq.load(tmp_path / "b.fxq")
        assert torch.equal(simulated(data[0]), model(data[0]))
        assert str(simulated.quant_coverage) == str(model.quant_coverage)
        assert list(model.state_dict()) == names


class Own(fxq.FakeQuantize):
    """Rounds in its own way: down."""

    def integers(self, x: Tensor) -> Tensor:
        return torch.floor(x.detach() / self.scale.view(-1, *[1] * (x.dim() - 1))).clamp(-128, 127).to(torch.int8)


def trained(model: nn.Module, qconfig: Any, *inputs: Tensor) -> Any:
    qat = fxq.prepare_qat(model.train(), inputs, qconfig)
    optimizer = torch.optim.SGD(qat.parameters(), 0.01)
    for _ in range(2):
        qat(*inputs).square().mean().backward()
        optimizer.step()
        qat.apply(fxq.enable_param_learning) if qconfig is not None else None
    return qat


@pytest.mark.parametrize(
    "qconfig", one_of(2, [None, fxq.get_lsq_qconfig(weight_bits=4)]), ids=["default", "learned qparams"]
)
def test_a_model_that_was_trained(qconfig: Any, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 6, 6)
    qat = trained(Net(), qconfig, x)
    loaded = check(qat, tmp_path / "a.fxq", x)
    assert loaded.trained is not None
    for observe in (loaded, lambda x: fxq.calibrate(loaded, [x], progress=False)):
        with pytest.raises(CalibrationError, match="this model was trained"):
            observe(x)
    fxq.save(loaded, tmp_path / "b.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "b.fxq"))(x), fxq.convert(qat)(x))


def test_rounding_that_was_trained(tmp_path: Path) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 3, 6, 6)
    rounding = fxq.QConfig(activation=fxq.FakeQuantize, weight=fxq.AdaRoundFakeQuantize)
    qat = fxq.prepare_qat(Net().train(), x, rounding)
    qat(x)
    qat.apply(fxq.disable_observer)
    qat(x)
    check(qat, tmp_path / "a.fxq", x)


class Gate(nn.Module):
    """Cannot be traced: it looks at values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


def test_a_module_of_the_users_is_given_back(tmp_path: Path) -> None:
    x = torch.randn(16, 4)
    with pytest.warns(FxQuantWarning, match="cannot trace"):
        prepared = calibrated(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Gate(), nn.Linear(4, 4)), x, capture="fx")
    with pytest.warns(FxQuantWarning, match=r"2 \(.*Gate\)"):
        check(prepared, tmp_path / "a.fxq", x, **{"2": Gate()})


def refused(prepared: Any, path: Path) -> str:
    with pytest.raises(ArtifactError) as caught:
        fxq.save(prepared, path)
    assert not path.exists()
    return str(caught.value)


def test_code_is_refused_by_name(tmp_path: Path) -> None:
    x, path = torch.randn(8, 3, 6, 6), tmp_path / "a.fxq"
    weight = fxq.PerChannelMinMaxObserver.with_args(dtype=torch.int8, qscheme="per_channel_symmetric")
    own = fxq.QConfig(activation=lambda: fxq.MinMaxObserver(), weight=weight)
    text = refused(fxq.prepare(Net().eval(), x, own), path)
    assert "the configuration makes an observer that no file can hold" in text
    assert "<lambda>" in text
    own = fxq.QConfig(activation=fxq.MinMaxObserver, weight=Own.with_args(observer=weight))
    assert f"got:      {__name__}.Own" in refused(fxq.prepare(Net().eval(), x, own), path)
    prepared = fxq.prepare(Net().eval(), x)
    prepared.patterns = tuple(replace(pattern) for pattern in prepared.patterns)
    assert "conv_bn_act: not registered" in refused(prepared, path)
    prepared.patterns = tuple(replace(pattern, handler=Gate) for pattern in prepared.patterns)
    assert "conv_bn_act: a handler" in refused(prepared, path)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is right."""
    torch.manual_seed(0)
    x = torch.randn(4, 3, 6, 6)
    path = tmp_path_factory.mktemp("artifact") / "right.fxq"
    learned = fxq.adaround(calibrated(Net(), x, qconfig=rules()), [x], iterations=2, progress=False)
    fxq.save(learned, path)
    return path


def with_change(file: Path, folder: Path, change: Callable[[Any], object]) -> Path:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    graph = json.loads(header["__metadata__"]["fxquant.graph"])
    change(graph)
    header["__metadata__"]["fxquant.graph"] = json.dumps(graph)
    text = json.dumps(header).encode()
    (folder / "changed.fxq").write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return folder / "changed.fxq"


def preparation(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["preparation"].update(fields)


def plan(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["preparation"]["plan"].update(fields)


def unit(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["preparation"]["plan"]["units"][0].update(fields)


def maker(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["preparation"]["makers"][0].update(fields)


def fact(**fields: Any) -> Callable[[Any], object]:
    return lambda graph: graph["nodes"][1]["facts"].update(fields)


def in_a_circle(graph: Any) -> None:
    refs = [item[0] for item in graph["preparation"]["plan"]["policies"][:2]]
    for item, source in zip(graph["preparation"]["plan"]["policies"], reversed(refs), strict=False):
        item[1] = {"o": "SharedWith", "v": {"source": source, "factor": 1.0}}


HUGE = {"make": "HistogramObserver", "with": {"bins": 65536}}

HOSTILE: dict[str, tuple[Callable[[Any], object], str]] = {
    "another class": (maker(make="Popen"), "an observer that it may not hold"),
    "a module of torch": (maker(make="Linear"), "an observer that it may not hold"),
    "an argument that none takes": (maker(**{"with": {"command": "touch harmed"}}), "cannot be made"),
    "bins without end": (maker(**{"with": {"bins": 2**40}}), "cannot be made"),
    "observers inside each other": (
        preparation(makers=[{"make": "FakeQuantize", "with": {"observer": {"make": "eval", "with": {}}}}]),
        "an observer that it may not hold",
    ),
    "histograms that the file has not": (
        lambda graph: graph["preparation"]["makers"].__setitem__(
            slice(None), [HUGE] * len(graph["preparation"]["makers"])
        ),
        "wants more memory than it is long",
    ),
    "a word of torch that is none": (maker(**{"with": {"dtype": {"word": "load"}}}), "may not hold"),
    "no such observer": (preparation(input_observer=99), "an observer that it does not hold"),
    "an unknown back end": (preparation(backend="os"), "back"),
    "an unknown pattern": (preparation(patterns=["mine"]), "patterns that are not registered here"),
    "a unit of no pattern": (unit(pattern="mine"), "of no pattern"),
    "a unit of other nodes": (unit(nodes={"u": ["nothing"]}), "nodes that the graph has not"),
    "qparams that are shared in a circle": (in_a_circle, "share the qparams of none"),
    "a value that is none": (
        lambda graph: graph["preparation"]["plan"]["policies"][0][0]["v"].update(name="nothing"),
        "the",
    ),
    "a rule of no kind": (preparation(configuration=[["eval", "x", None]]), "of no kind"),
    "an example without end": (
        preparation(example=[{"tuple": [{"tensor": ["float32", [2**62]]}]}, {"dict": {}}]),
        "no example",
    ),
    "an example of another call": (preparation(example=[{"tuple": []}, {"dict": {}}]), "do not fit"),
    "more fields": (preparation(code="import os"), "with other fields"),
    "a class that is code": (fact(called=["x", {"class": "os.system('touch harmed')"}]), "no class or function"),
    "a fact of no kind": (fact(code=1), "facts about a node"),
    "products without end": (fact(products=[2**70, ""]), "no products"),
    "a weight of another unit": (preparation(rounding=[["x", None]]), "a learned weight of no unit"),
    "a reason for nothing": (
        lambda graph: graph["preparation"]["plan"]["rejections"].append(
            {"node": "nothing", "pattern": "", "reason": "", "excused": False}
        ),
        "a node that is none",
    ),
    "joins of nothing": (preparation(joins=[["nothing", []]]), "a join that is none"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_files_that_do_harm(name: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    change, words = HOSTILE[name]
    with pytest.raises(ArtifactError) as caught:
        fxq.load(with_change(file, tmp_path, change))
    assert words in str(caught.value)
    assert not (tmp_path / "harmed").exists()


def test_a_state_of_other_observers(file: Path, tmp_path: Path) -> None:
    def change(graph: Any) -> None:
        graph["preparation"]["makers"][0] = {"make": "MinMaxObserver", "with": {}}

    with pytest.raises(ArtifactError):
        fxq.load(with_change(file, tmp_path, change))


def test_no_observer_is_forgotten() -> None:
    observers = {kind for kind in vars(fxq.observers).values() if isinstance(kind, type)}
    assert {kind for kind in observers if issubclass(kind, ObserverBase)} - {ObserverBase} <= {*MAKERS.values()}
    presets = {kind for kind in vars(fxq.fake_quantize).values() if isinstance(kind, type)}
    fakes = {kind for kind in presets if issubclass(kind, FakeQuantizeBase)} - {FakeQuantizeBase}
    assert fakes <= {*MAKERS.values()}
    for name in vars(fxq.fake_quantize):
        if name.startswith("default_"):
            preset = getattr(fxq.fake_quantize, name)
            assert decode_maker(json.loads(json.dumps(encode_maker(preset)))) == preset


@pytest.mark.parametrize(
    "kind", [nn.Linear, torch.relu, "relu", NamedClass("a.B")], ids=["class", "function", "name", "path"]
)
def test_classes(kind: Any) -> None:
    assert decode_class(json.loads(json.dumps(encode_class(kind)))) == kind


def test_known_integers_are_inside_of_their_scheme() -> None:
    qparams = fxq.QParams(fxq.QScheme(bits=4), torch.ones(1), torch.zeros(1, dtype=torch.int32))
    known = KnownIntegers(torch.tensor([[-8, 7]], dtype=torch.int8), qparams)
    assert torch.equal(known.integers(torch.randn(1, 2)), known.integers_of_weight)
    for name, value in (("integers_of_weight", torch.tensor([[8, 0]], dtype=torch.int8)), ("scale", -torch.ones(1))):
        with pytest.raises(fxq.FxQuantError):
            known.load_state_dict({**known.state_dict(), name: value})


class Inner(nn.Sequential):
    """A class that no file holds, and whose layers do."""


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_a_loaded_model_is_exported(form: str, tmp_path: Path) -> None:
    """Its operators know the classes of the modules that called them by name alone."""
    torch.manual_seed(0)
    model = nn.Sequential(Inner(nn.Conv2d(3, 4, 1), nn.ReLU()), nn.Conv2d(4, 2, 1)).eval()
    x = torch.randn(2, 3, 6, 6)
    fxq.save(fxq.calibrate(fxq.prepare(model, x), [x], progress=False), tmp_path / "a.fxq")
    converted = fxq.convert(fxq.load(tmp_path / "a.fxq"), to=form)
    batch = ({0: torch.export.Dim("batch", min=1, max=8)},)
    for program in (fxq.export(converted, x, dynamic_shapes=batch), torch.export.export(converted, (x,))):
        assert torch.allclose(program.module()(x), converted(x), atol=1e-5)
