"""Qparams as JSON: written, edited and applied again, they give the same bits without data."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, FxQuantError, InputError, SpecError, StateError, UnknownNameError
from fxquant.exchange.given import short
from tests.sampling import one_of


class Net(nn.Module):
    """Layers with means, shared qparams, a factor, a join of unequal ranges, and fixed qparams."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.point = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Conv2d(16, 8, 1)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.norm(self.conv(x)))
        x = nn.functional.max_pool2d(x, 2) * 2.0
        x = self.point(torch.cat([x, torch.sigmoid(x)], 1))
        return self.fc(x.mean((2, 3)))


X = torch.linspace(-2, 2, 2 * 3 * 8 * 8).view(2, 3, 8, 8).sin() * 3


def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def prepare(qconfig: Any = None) -> Any:
    return fxq.prepare(model(), X, qconfig)


def calibrated(qconfig: Any = None) -> Any:
    return fxq.calibrate(prepare(qconfig), [X, X * 0.7], progress=False)


def few_bits() -> Any:
    weight = fxq.PerChannelMinMaxObserver.with_args(bits=4, dtype=torch.int8, qscheme="per_channel_symmetric")
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver.with_args(bits=6), weight=weight, correct_bias=True)
    only = fxq.QConfig(activation=fxq.PlaceholderObserver, weight=weight.with_args(group_size=4))
    return fxq.QConfigMapping().set_global(qconfig).set_module_name("fc", only)


LESS_OFTEN = (("reference", "default"), ("fake_quant", "few bits"))


@pytest.mark.parametrize(
    ("form", "qconfig"),
    [
        pytest.param(form, qconfig, id=f"{form}-{name}", marks=pytest.mark.slow if (form, name) in LESS_OFTEN else ())
        for form in ("int8", "reference", "fake_quant")
        for name, qconfig in (("default", None), ("few bits", few_bits()))
    ],
)
def test_another_model_converts_without_data(qconfig: Any, form: str, tmp_path: Path) -> None:
    prepared = calibrated(qconfig)
    fxq.qparams(prepared).save(tmp_path / "a.json")
    applied = fxq.apply_qparams(prepare(qconfig), tmp_path / "a.json")
    wanted, found = fxq.convert(prepared, to=form), fxq.convert(applied, to=form)
    assert torch.equal(found(X), wanted(X))
    assert str(found.quant_coverage) == str(wanted.quant_coverage)
    fxq.qparams(applied).save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    by_table = fxq.apply_qparams(prepare(qconfig), fxq.qparams(prepared))
    assert torch.equal(fxq.convert(by_table, to=form)(X), wanted(X))


@pytest.mark.slow
@pytest.mark.parametrize(
    "network",
    ["small shufflenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("shufflenet_v2_x0_5", "googlenet"))],
)
def test_networks(network: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    more = {"init_weights": False} if network == "googlenet" else {}
    if network == "small shufflenet":
        net = torchvision.models.ShuffleNetV2([1, 2, 1], [8, 16, 24, 32, 48], num_classes=10).eval()
    else:
        net = torchvision.models.get_model(network, weights=None, **more).eval()
    x = torch.randn(2, 3, 64, 64)
    prepared = fxq.prepare(net, x)
    for batch in (x, x * 0.5):
        prepared(batch)
    fresh = fxq.prepare(net, x)
    prepared.warned |= {(ref.name, kind) for ref in prepared.plan.policies for kind in ("unequal", "outlier", "dead")}
    fxq.qparams(prepared).save(tmp_path / "a.json")
    applied = fxq.apply_qparams(fresh, tmp_path / "a.json")
    int8 = fxq.convert(prepared)
    assert torch.equal(fxq.convert(applied)(x), int8(x))
    fxq.save(applied, tmp_path / "a.fxq")
    assert torch.equal(fxq.convert(fxq.load(tmp_path / "a.fxq"))(x), int8(x))


def test_of_a_converted_model(tmp_path: Path) -> None:
    prepared = calibrated()
    prepared = fxq.calibrate(prepare(), [X], progress=False)
    for form in ("int8", "fake_quant"):
        table = fxq.qparams(fxq.convert(prepared, to=form))
        assert not table.joined
        assert {row.name for row in table} <= {row.name for row in fxq.qparams(prepared)}
        fxq.save(fxq.convert(prepared, to=form), tmp_path / "a.fxq", overwrite=True)
        assert str(fxq.qparams(fxq.load(tmp_path / "a.fxq"))) == str(table)


def test_of_a_model_that_was_trained(tmp_path: Path) -> None:
    qat = fxq.prepare_qat(model().train(), X)
    qat(X)
    fxq.qparams(qat).save(tmp_path / "a.json")
    names = {row.name for row in fxq.qparams(qat)}
    assert {"conv.weight", "point.weight"} <= names


def test_the_table_is_printed() -> None:
    text = str(fxq.qparams(calibrated()))
    assert "tensor" in text
    assert "uint8 affine per tensor" in text
    assert "conv.weight" in text
    assert "max_pool2d" in text


def saved(tmp_path: Path) -> tuple[Path, Any]:
    fxq.qparams(calibrated()).save(tmp_path / "a.json")
    return tmp_path / "a.json", json.loads((tmp_path / "a.json").read_text())


def owner(data: Any, kind: str = "activation") -> str:
    return next(name for name, item in data["tensors"].items() if item["kind"] == kind)


def test_an_edit_counts(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    name = owner(data)
    data["tensors"][name] |= {"scale": [0.5], "zero_point": [3], "range": "whatever"}
    applied = fxq.apply_qparams(prepare(), data)
    qparams = {row.name: row.qparams for row in fxq.qparams(applied)}[name]
    assert (qparams.scale.item(), qparams.zero_point.item()) == (0.5, 3)
    plan = fxq.convert(applied).quant_plan
    assert plan.qparams[fxq.TensorRef(name)].scale.item() == 0.5


def test_other_bits_are_taken_where_the_back_end_can(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    data["tensors"]["conv.weight"] |= {"bits": 4, "limits": None}
    applied = fxq.apply_qparams(prepare(), data)
    weight = fxq.convert(applied).get_submodule("conv").weight
    assert int(weight.min()) >= -8
    assert int(weight.max()) <= 7


def test_a_model_that_was_calibrated_keeps_its_own(tmp_path: Path) -> None:
    prepared = calibrated()
    before = fxq.convert(prepared)(X)
    _, data = saved(tmp_path)
    for item in data["tensors"].values():
        item["scale"] = [2 * scale for scale in item["scale"]]
    fxq.apply_qparams(prepared, data)
    assert torch.equal(fxq.convert(prepared)(X), before)


EDITS: dict[str, tuple[Callable[[Any], object], type[FxQuantError], str]] = {
    "an unknown tensor": (
        lambda data: data["tensors"].update(cobv=data["tensors"].pop(owner(data))),
        UnknownNameError,
        "the model quantizes no tensor of this name",
    ),
    "a near name": (
        lambda data: data["tensors"].update({"conv.weigth": data["tensors"].pop("conv.weight")}),
        UnknownNameError,
        "conv.weight",
    ),
    "a member": (
        lambda data: data["tensors"].update(max_pool2d=data["tensors"][owner(data)]),
        InputError,
        "a tensor shares the qparams of another",
    ),
    "a scale of 0": (
        lambda data: data["tensors"][owner(data)].update(scale=[0.0]),
        SpecError,
        "a scale is no number above 0",
    ),
    "a scale that is no normal number": (
        lambda data: data["tensors"][owner(data)].update(scale=[1e-40]),
        SpecError,
        "a scale is unusable\n  at:       x\n  got:      9.99995e-41\n  expected: a scale from 1.18e-38 to 1.33e+36",
    ),
    "a scale whose range is infinite": (
        lambda data: data["tensors"]["conv.weight"].update(scale=[3e38] * 8),
        SpecError,
        "a scale is unusable\n  at:       conv.weight",
    ),
    "a truth value": (lambda data: data["tensors"][owner(data)].update(scale=[True]), SpecError, "no number"),
    "a name twice": (
        lambda data: data["tensors"][owner(data)].update(shared=["relu", "relu"]),
        InputError,
        "shared names a tensor twice",
    ),
    "its own name": (
        lambda data: data["tensors"][owner(data)].update(shared=[owner(data)]),
        InputError,
        "shared names a tensor twice",
    ),
    "means without an end": (
        lambda data: next(iter(data["means"].values())).update(total=[10**400] * 3),
        InputError,
        "the means of a value are no numbers",
    ),
    "means of more than there can be": (
        lambda data: next(iter(data["means"].values())).update(count=10**30),
        InputError,
        "the means of a value have other fields",
    ),
    "a version that is a truth value": (lambda data: data.update(version=True), InputError, "newer format"),
    "a scale below 0": (lambda data: data["tensors"][owner(data)].update(scale=[-1]), SpecError, "got:      -1"),
    "a scale that is NaN": (lambda data: data["tensors"][owner(data)].update(scale=["nan"]), SpecError, "no number"),
    "a zero point beyond": (
        lambda data: data["tensors"][owner(data)].update(zero_point=[300]),
        SpecError,
        "expected: whole numbers from 0 to 255, for uint8 affine per tensor",
    ),
    "a zero point between": (
        lambda data: data["tensors"][owner(data)].update(zero_point=[1.5]),
        SpecError,
        "a zero point is no quantized value",
    ),
    "a zero point of symmetric weights": (
        lambda data: data["tensors"]["conv.weight"].update(zero_point=[1] * 8),
        SpecError,
        "expected: 0, for int8",
    ),
    "too few channels": (
        lambda data: data["tensors"]["conv.weight"].update(scale=[0.1] * 7),
        SpecError,
        "got:      7\n  expected: 8",
    ),
    "unsigned weights": (
        lambda data: data["tensors"]["conv.weight"].update(signed=False, zero_point=[128] * 8, limits=None),
        SpecError,
        "weights must be signed and symmetric",
    ),
    "16 bits": (
        lambda data: data["tensors"][owner(data)].update(bits=16),
        SpecError,
        "the back end cannot run",
    ),
    "bits that none has": (
        lambda data: data["tensors"][owner(data)].update(bits=99),
        SpecError,
        "bits is out of range",
    ),
    "another granularity": (
        lambda data: data["tensors"]["conv.weight"].update(axis=None, scale=[0.1], zero_point=[0]),
        SpecError,
        "another granularity than the plan",
    ),
    "no zero point": (lambda data: data["tensors"][owner(data)].pop("zero_point"), InputError, "other fields"),
    "another field": (lambda data: data["tensors"][owner(data)].update(min=0), InputError, "got:      ['min']"),
    "a newer version": (lambda data: data.update(version=2), InputError, "newer format"),
    "another section": (lambda data: data.update(code=[]), InputError, "the qparams have other fields"),
    "a missing activation": (
        lambda data: data["tensors"].pop(owner(data)),
        CalibrationError,
        "1 activations have no qparams: the file does not name them",
    ),
    "an unknown join": (lambda data: data["joined"].update(nothing=[0, 1]), UnknownNameError, "joins no value"),
    "a join of nothing": (lambda data: data["joined"].update(nothing=[2, 1]), InputError, "no pair of numbers"),
    "unknown means": (
        lambda data: data["means"].update(nothing={"total": [1.0], "count": 1}),
        UnknownNameError,
        "takes no means",
    ),
    "means of other channels": (
        lambda data: next(iter(data["means"].values())).update(total=[1.0]),
        SpecError,
        "another number of channels",
    ),
    "no known format": (lambda data: data.pop("format"), InputError, "of no known format"),
}


@pytest.mark.parametrize("name", EDITS)
def test_edits_that_are_refused(name: str, tmp_path: Path) -> None:
    change, kind, words = EDITS[name]
    data = copy.deepcopy(saved_once(tmp_path)[1])
    change(data)
    with pytest.raises(kind) as caught:
        fxq.apply_qparams(fresh(), data)
    assert words in str(caught.value)


def test_what_strict_forgives(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    name = owner(data)
    data["tensors"]["nothing"] = data["tensors"].pop(name)
    data["joined"]["nothing"] = [0, 1]
    applied = fxq.apply_qparams(calibrated(), data, strict=False)
    assert torch.equal(fxq.convert(applied)(X), fxq.convert(calibrated())(X))
    with pytest.raises(CalibrationError, match=f"got: +{name}"):
        fxq.apply_qparams(prepare(), data, strict=False)


def test_a_file_without_weights_applied_saved_and_loaded(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    data["tensors"] = {name: item for name, item in data["tensors"].items() if item["kind"] != "weight"}
    applied = fxq.apply_qparams(prepare(), data)
    fxq.save(applied, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(fxq.convert(loaded)(X), fxq.convert(applied)(X))
    assert torch.equal(fxq.convert(loaded)(X), fxq.convert(calibrated())(X))


def test_weights_that_were_trained_keep_what_they_learned(tmp_path: Path) -> None:
    qat = fxq.prepare_qat(model().train(), X, fxq.get_lsq_qconfig())
    for _ in range(2):
        qat(X)
        qat.apply(fxq.enable_param_learning)
    weight = qat.get_submodule("conv").weight_fake_quant
    with torch.no_grad():
        weight.scale.mul_(1.5)
    fxq.save(qat, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    fxq.qparams(loaded).save(tmp_path / "a.json")
    data = json.loads((tmp_path / "a.json").read_text())
    data["tensors"] = {name: item for name, item in data["tensors"].items() if item["kind"] != "weight"}
    applied = fxq.apply_qparams(loaded, data)
    found, wanted = ({row.name: row.qparams.scale.tolist() for row in fxq.qparams(each)} for each in (applied, loaded))
    assert found == wanted
    assert torch.equal(fxq.convert(applied)(X), fxq.convert(loaded)(X))


def test_a_state_dict_does_not_leave_out_what_was_applied(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    for prepared in (prepare(), calibrated()):
        applied = fxq.apply_qparams(prepared, data)
        with pytest.raises(StateError, match=r"cannot hold the qparams[\s\S]*fxq\.save"):
            applied.state_dict()
        assert prepared.state_dict().keys() >= applied.graph_module.state_dict().keys()


def test_names_are_mapped(tmp_path: Path) -> None:
    _, data = saved(tmp_path)
    data["tensors"] = {f"theirs.{name}": item for name, item in data["tensors"].items()}
    names = {f"theirs.{row.name}": row.name for row in fxq.qparams(calibrated())}
    applied = fxq.apply_qparams(prepare(), data, names=names)
    assert torch.equal(fxq.convert(applied)(X), fxq.convert(calibrated())(X))


def test_integers_that_were_learned_keep_their_qparams(tmp_path: Path) -> None:
    learned = fxq.adaround(calibrated(), [X], iterations=2, progress=False)
    fxq.qparams(learned).save(tmp_path / "a.json")
    assert torch.equal(fxq.convert(fxq.apply_qparams(learned, tmp_path / "a.json"))(X), fxq.convert(learned)(X))
    data = json.loads((tmp_path / "a.json").read_text())
    data["tensors"]["conv.weight"]["scale"][0] *= 2
    with pytest.raises(SpecError, match="the integers of this weight were learned"):
        fxq.apply_qparams(learned, data)


def test_files_that_are_none(tmp_path: Path) -> None:
    for text, words in (("{", "cannot be read"), ("[]", "no JSON object"), ('{"a": [], "a": []}', "'a' stands twice")):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(InputError, match=words):
            fxq.apply_qparams(prepare(), tmp_path / "a.json")
    with pytest.raises(InputError, match="No such file"):
        fxq.apply_qparams(prepare(), tmp_path / "none.json")
    with pytest.raises(InputError):
        fxq.apply_qparams(model(), {})  # type: ignore[arg-type]
    with pytest.raises(InputError):
        fxq.qparams(model())


def test_saving(tmp_path: Path) -> None:
    table = fxq.qparams(calibrated())
    table.save(tmp_path / "a.json")
    with pytest.raises(InputError, match="the file exists already"):
        table.save(tmp_path / "a.json")
    table.save(tmp_path / "a.json", overwrite=True)
    with pytest.raises(UnknownNameError, match="unknown format of qparams"):
        table.save(tmp_path / "b.json", format="aimet")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the qparams cannot be written"):
        table.save(tmp_path / "none" / "a.json")
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


SCALES = st.floats(2**-20, 1024, width=32)
CHANNELS = st.lists(SCALES, min_size=8, max_size=8)


@pytest.mark.slow
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    scale=SCALES,
    zero_point=st.integers(0, 255),
    bits=st.integers(2, 8),
    weights=st.lists(SCALES, min_size=8, max_size=8),
)
def test_saved_applied_and_saved_again_the_bytes_are_the_same(
    scale: float, zero_point: int, bits: int, weights: list[float], tmp_path: Path
) -> None:
    _, data = saved_once(tmp_path)
    data = json.loads(json.dumps(data))
    data["tensors"][owner(data)] |= {"scale": [scale], "zero_point": [zero_point]}
    data["tensors"]["conv.weight"] |= {"scale": weights, "bits": bits}
    first = fxq.apply_qparams(fresh(), data)
    fxq.qparams(first).save(tmp_path / "1.json", overwrite=True)
    fxq.qparams(fxq.apply_qparams(fresh(), tmp_path / "1.json")).save(tmp_path / "2.json", overwrite=True)
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()
    again = {row.name: row.qparams for row in fxq.qparams(first)}
    assert again["conv.weight"].scale.tolist() == weights


_KEPT: dict[str, Any] = {}


def saved_once(tmp_path: Path) -> Any:
    if "data" not in _KEPT:
        _KEPT["data"] = saved(tmp_path)
    return _KEPT["data"]


def fresh() -> Any:
    if "prepared" not in _KEPT:
        _KEPT["prepared"] = prepare()
    return _KEPT["prepared"]


@settings(deadline=None)
@given(st.floats(width=32, min_value=0, exclude_min=True, allow_infinity=False))
def test_short_numbers_are_the_same_float32(value: float) -> None:
    assert torch.tensor(short(value), dtype=torch.float32).item() == value


@pytest.mark.parametrize("path", [None, 3, "a\0b", "", [1]])
def test_what_is_no_path(path: Any) -> None:
    prepared = calibrated()
    with pytest.raises(InputError, match="this is no path of a file"):
        fxq.apply_qparams(prepared, path)
    with pytest.raises(InputError, match="this is no path of a file"):
        fxq.qparams(prepared).save(path)


def test_a_name_that_no_system_takes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the qparams cannot be written"):
        fxq.qparams(calibrated()).save(tmp_path / ("a" * 300))


@pytest.mark.parametrize("names", [3, ["a"], {"a": 3}])
def test_names_that_are_none(names: Any) -> None:
    prepared = calibrated()
    with pytest.raises(InputError, match="names is no mapping of names"):
        fxq.apply_qparams(prepared, fxq.qparams(prepared), names=names)


def test_names_that_the_file_has_not(tmp_path: Path) -> None:
    prepared = calibrated()
    table = fxq.qparams(prepared)
    with pytest.raises(UnknownNameError, match="the file has no tensor of this name\n  got:      'theirs'"):
        fxq.apply_qparams(prepared, table, names={"theirs": "ours"})
    fxq.apply_qparams(prepared, table, strict=False, names={"theirs": "ours"})
    first, second = (row.name for row in table.rows[:2])
    with pytest.raises(InputError, match=f"a tensor has qparams twice in the file\n  at:       {first}"):
        fxq.apply_qparams(prepared, table, names={second: first})


@pytest.mark.parametrize("learn", one_of(3, [fxq.adaround, fxq.reconstruct, fxq.gptq]), ids=lambda each: each.__name__)
def test_weights_that_are_learned_afterwards_have_scales_of_their_own(learn: Any) -> None:
    """Their integers were taken for those of the scales that were given."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8)).eval()
    data = [torch.randn(64, 8)]
    start = fxq.calibrate(fxq.prepare(model, data[0], fxq.low_bit_qconfig(3, 8, ends=None)), data, progress=False)
    applied = fxq.apply_qparams(start, fxq.qparams(start))
    options = {} if learn is fxq.gptq else {"iterations": 30}
    learned = [learn(each, data, progress=False, **options) for each in (start, applied)]
    first, second = (fxq.convert(each)(data[0]) for each in learned)
    assert torch.equal(first, second)
    assert fxq.convert(learned[1], check=data[0]).parity.breaches == ()
