"""A model that takes and gives quantized values: what it computes, what it says of them, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import ArtifactError, InputError, PlanError, UnknownNameError
from fxquant.fake_quantize.qparams import from_integers, to_integers
from fxquant.nn import Dequantize, Quantize
from fxquant.runtime.program_engine import engine_of

FORMS = ("int8", "reference")


class Net(nn.Module):
    """Two results that units compute, and one that stays float, of an input that units and floats read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3), nn.Linear(4, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> tuple[Tensor, ...]:
        y = torch.relu(self.second(torch.relu(self.first(x))))
        return self.fc(y.mean((2, 3))), y, x.mean() * scale


X = torch.linspace(-2, 2, 2 * 3 * 10 * 10).view(2, 3, 10, 10).sin() * 2


def prepare(net: nn.Module | None = None, x: Any = X, **integers: Any) -> Any:
    torch.manual_seed(0)
    return fxq.prepare((net or Net()).eval(), x, **integers)


def calibrated(net: nn.Module | None = None, x: Any = X, **integers: Any) -> Any:
    return fxq.calibrate(prepare(net, x, **integers), [x], progress=False)


def quantized(model: Any, x: Tensor, name: str = "x") -> Tensor:
    qparams = model.integer_inputs[name]
    return to_integers(x, qparams.scale, qparams.zero_point, qparams.scheme)


def floats(q: Tensor, qparams: Any) -> Tensor:
    return from_integers(q, qparams.scale, qparams.zero_point, qparams.scheme)


@pytest.mark.parametrize("form", FORMS)
def test_integers_go_in_and_come_out(form: str) -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    model = fxq.convert(prepared, to=form)
    q = quantized(model, X)
    assert q.dtype == torch.uint8
    results = model(q)
    assert [result.dtype for result in results] == [torch.uint8, torch.uint8, torch.float32]
    wanted = fxq.convert(prepared, to="fake_quant")(X)
    for place, qparams in model.integer_outputs.items():
        step = qparams.scale.item()
        torch.testing.assert_close(floats(results[place], qparams), wanted[place], rtol=0, atol=1.01 * step)
    qparams = model.integer_inputs["x"]
    torch.testing.assert_close(results[2], floats(q, qparams).mean())
    assert list(model.integer_inputs) == ["x"]
    assert list(model.integer_outputs) == [0, 1]


def test_nothing_is_quantized_at_the_boundaries() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))
    model = fxq.convert(calibrated(net, integer_inputs=True, integer_outputs=True))
    assert not [module for module in model.modules() if isinstance(module, (Quantize, Dequantize))]
    assert str(model.snapshots[-1].name) == "integer_boundaries"
    assert "quantize" in model.snapshots[-1].before
    assert "quantize" not in model.snapshots[-1].after
    assert {row.gives for row in model.quant_coverage} == {"int8"}
    plain = fxq.convert(calibrated(net))
    assert {row.gives for row in plain.quant_coverage} == {"int8", "float"}


def test_the_same_integers_as_inside_of_the_other_model() -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    model, plain = fxq.convert(prepared), fxq.convert(calibrated())
    q = quantized(model, X)
    rounded = floats(q, model.integer_inputs["x"])
    assert torch.equal(floats(model(q)[1], model.integer_outputs[1]), plain(rounded)[1])


def test_the_simulation_takes_and_gives_floats() -> None:
    simulated = fxq.convert(calibrated(integer_inputs=True, integer_outputs=(0, 1)), to="fake_quant")
    results = simulated(X)
    assert all(result.is_floating_point() for result in results)
    assert "integer_inputs" not in dir(simulated)
    with pytest.raises(AttributeError):
        simulated.integer_inputs  # noqa: B018
    x = X.clone().requires_grad_()
    simulated(x)[0].sum().backward()
    assert x.grad is not None


def test_programs_give_the_same_bits() -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    model, graph = fxq.convert(prepared), fxq.convert(prepared, engine="graph")
    q = quantized(model, X)
    for given in (q, q.to(memory_format=torch.channels_last), q[:, :, ::1]):
        for _ in range(3):
            for result, wanted in zip(model(given, 1.0), graph(given, 1.0), strict=True):
                assert torch.equal(result, wanted)
    engine = engine_of(model)
    assert engine is None or engine.plans
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(q)[0], graph(q)[0])
        assert other.integer_inputs["x"].same_qparams(model.integer_inputs["x"])


def test_parity_is_measured_on_floats() -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    model = fxq.convert(prepared, check=X)
    assert len(model.parity) == 4
    assert not model.parity.breaches
    with pytest.raises(InputError, match="cannot be tuned"):
        fxq.convert(prepared, tune=X)


def test_a_float_where_integers_are_taken() -> None:
    model = fxq.convert(calibrated(integer_inputs=True))
    with pytest.raises(InputError) as caught:
        model(X)
    assert "the input 'x' holds float values where the model takes integers" in str(caught.value)
    assert "the model's integer_inputs['x'] has scale and zero point" in str(caught.value)


class Pairs(nn.Module):
    """Inputs and results on every side of a sum, a join and views: no convolution reads or gives them itself."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.d = nn.Conv2d(3, 3, 1), nn.Conv2d(6, 3, 1)

    def forward(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        pooled = self.c(nn.functional.max_pool2d(x, 2))
        return pooled.flatten(1), torch.relu(y + z), self.d(torch.cat([y, x], 1)).permute(0, 2, 3, 1)


@pytest.mark.parametrize("form", FORMS)
def test_what_a_model_without_ranges_says_of_its_boundaries_is_what_it_loads(form: str) -> None:
    x = X, X * 3 + 1, X * 2 - 1
    good = fxq.convert(calibrated(Pairs(), x, integer_inputs=True, integer_outputs=True), to=form)
    shell = fxq.convert(
        prepare(Pairs(), x, integer_inputs=True, integer_outputs=True), to=form, allow_uncalibrated=True
    )
    shell.load_state_dict(good.state_dict())
    for name in ("x", "y", "z"):
        assert shell.integer_inputs[name].same_qparams(good.integer_inputs[name])
        assert not good.integer_inputs[name].scale.isnan().any()
    for place in range(3):
        assert shell.integer_outputs[place].same_qparams(good.integer_outputs[place])
    q = [quantized(good, each, name) for each, name in zip(x, "xyz", strict=True)]
    assert all(torch.equal(given, wanted) for given, wanted in zip(shell(*q), good(*q), strict=True))


def test_the_reference_gives_views_as_integers() -> None:
    x = X, X * 3 + 1, X * 2 - 1
    prepared = calibrated(Pairs(), x, integer_inputs=True, integer_outputs=True)
    model, reference = fxq.convert(prepared), fxq.convert(prepared, to="reference")
    q = [quantized(model, each, name) for each, name in zip(x, "xyz", strict=True)]
    for given, wanted in zip(reference(*q), model(*q), strict=True):
        assert given.dtype == torch.uint8
        assert (given.int() - wanted.int()).abs().max() <= 1
    simulated = fxq.convert(prepared, to="fake_quant")(*x)
    for place, qparams in reference.integer_outputs.items():
        step = qparams.scale.item()
        torch.testing.assert_close(floats(reference(*q)[place], qparams), simulated[place], rtol=0, atol=1.01 * step)


class Two(nn.Module):
    """Two inputs, one of which is integers anyway."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.a, self.b = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, ids: Tensor, input: Tensor) -> dict[str, Tensor]:
        return {"sum": self.a(input) + self.b(self.table(ids)), "other": self.b(input)}


@pytest.mark.parametrize("names", [True, "input", ["input"]], ids=str)
def test_names_of_inputs_and_dicts_of_results(names: Any) -> None:
    ids, x = torch.arange(8).view(2, 4), torch.randn(2, 4, 6)
    prepared = calibrated(Two(), (ids, x), integer_inputs=names, integer_outputs=1)
    model = fxq.convert(prepared)
    q = quantized(model, x, "input")
    results = model(ids, q)
    assert results["sum"].is_floating_point()
    assert results["other"].dtype == torch.uint8
    assert torch.equal(model(ids=ids, input=q)["other"], results["other"])


def test_a_join_that_is_given_as_integers_is_one() -> None:
    class Joined(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3)
            self.b.weight.data *= 100

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([self.a(x), self.b(x)], 1)

    torch.manual_seed(0)
    with pytest.warns(fxq.FxQuantWarning, match="very different size"):
        prepared = calibrated(Joined(), integer_outputs=True)
    assert fxq.convert(prepared)(X).dtype == torch.uint8


@pytest.mark.parametrize("form", FORMS)
def test_in_a_file(form: str, tmp_path: Path) -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    model = fxq.convert(prepared, to=form)
    fxq.save(model, tmp_path / "a.fxq")
    fxq.save(prepared, tmp_path / "b.fxq")
    q = quantized(model, X)
    for loaded in (fxq.load(tmp_path / "a.fxq"), fxq.convert(fxq.load(tmp_path / "b.fxq"), to=form)):
        for result, wanted in zip(loaded(q), model(q), strict=True):
            assert torch.equal(result, wanted)
        assert loaded.integer_inputs["x"].same_qparams(model.integer_inputs["x"])
        assert {place: q.scale for place, q in loaded.integer_outputs.items()} == {
            place: q.scale for place, q in model.integer_outputs.items()
        }
    info = fxq.inspect_artifact(tmp_path / "a.fxq")
    assert (info.integer_inputs, info.integer_outputs) == (("x",), (0, 1))
    assert "integers in" in str(info)
    applied = fxq.apply_qparams(prepare(integer_inputs=True, integer_outputs=(0, 1)), fxq.qparams(prepared))
    assert torch.equal(fxq.convert(applied, to=form)(q)[0], model(q)[0])


def test_a_file_that_names_what_is_not_there(tmp_path: Path) -> None:
    fxq.save(fxq.convert(calibrated(integer_inputs=True)), tmp_path / "a.fxq")
    data = (tmp_path / "a.fxq").read_bytes()
    for old, new in (
        (b'[[\\"x\\"],[]]', b'[[\\"z\\"],[]]'),
        (b'[[\\"x\\"],[]]', b'[[\\"x\\"],[9]]'),
        (b'[[\\"x\\"],[]]', b'[[\\"x\\"],"]'),
    ):
        changed = data.replace(old, new[: len(old)].ljust(len(old)))
        assert changed != data
        (tmp_path / "b.fxq").write_bytes(changed)
        with pytest.raises(ArtifactError):
            fxq.load(tmp_path / "b.fxq")


@pytest.mark.slow
def test_a_network() -> None:
    torch.manual_seed(0)
    net, x = torchvision.models.resnet18(weights=None).eval(), torch.randn(2, 3, 64, 64)
    prepared = fxq.calibrate(fxq.prepare(net, x, integer_inputs=True, integer_outputs=True), [x], progress=False)
    int8, plain = fxq.convert(prepared), fxq.quantize(net, [x], progress=False)
    (qparams,) = int8.integer_outputs.values()
    wanted = to_integers(plain(x), qparams.scale, qparams.zero_point, qparams.scheme)
    for _ in range(3):
        assert torch.equal(int8(quantized(int8, x)), wanted)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a name that none has": ({"integer_inputs": "xs"}, UnknownNameError, "the model has no input of this name"),
    "no name": ({"integer_inputs": 3}, InputError, "integer_inputs names no inputs"),
    "no position": ({"integer_outputs": "y"}, InputError, "integer_outputs names no results"),
    "a position below 0": ({"integer_outputs": -1}, InputError, "integer_outputs names no results"),
    "a position beyond": ({"integer_outputs": 3}, InputError, "expected: 0 to 2"),
    "a number": ({"integer_inputs": "scale"}, PlanError, "input scale: it is no float tensor"),
    "what stays float": ({"integer_outputs": True}, PlanError, "result mul: "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_integers(name: str) -> None:
    arguments, kind, words = REFUSED[name]
    with pytest.raises(kind) as caught:
        prepare(**arguments)
    assert words in str(caught.value)


def test_an_input_that_no_unit_reads() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(torch.fft.fft(x).real)

    with pytest.raises(PlanError, match="input x: no quantized operator reads it"):
        prepare(Late(), torch.randn(64, 4), integer_inputs=True)


@pytest.mark.parametrize("asked", [True, 0])
def test_results_that_are_several_tensors_in_one_value(asked: bool | int) -> None:
    class Halves(nn.Module):
        def __init__(self, items: bool) -> None:
            super().__init__()
            self.conv, self.items = nn.Conv2d(3, 8, 3), items

        def forward(self, x: Tensor) -> Any:
            halves = torch.chunk(self.conv(x), 2, 1)
            return (halves[0], halves[1]) if self.items else halves

    x = torch.randn(2, 3, 8, 8)
    with pytest.raises(PlanError, match="result chunk: it is several tensors in one value"):
        prepare(Halves(items=False), x, integer_outputs=asked)
    prepared = fxq.calibrate(prepare(Halves(items=True), x, integer_outputs=asked), [x], progress=False)
    assert fxq.convert(prepared)(x)[0].dtype == torch.uint8


@pytest.mark.parametrize("form", ["int8", "reference"])
def test_an_input_that_is_returned_as_it_is_comes_back_as_floats(form: str) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Any:
            return self.conv(x), [x]

    x = torch.randn(2, 3, 8, 8)
    model = fxq.convert(calibrated(Both(), x, integer_inputs=True), to=form)
    _, (given,) = model(quantized(model, x))
    (qparams,) = model.integer_inputs.values()
    assert given.dtype == torch.float32
    assert (given - x).abs().max() <= 0.51 * float(qparams.scale)
    assert model.integer_outputs == {}


def test_analysis_takes_floats_where_the_model_takes_integers() -> None:
    prepared = calibrated(integer_inputs=True, integer_outputs=(0, 1))
    plain = calibrated()
    rows = fxq.compare(prepared, fxq.convert(prepared), [X], progress=False)
    wanted = fxq.compare(plain, fxq.convert(plain), [X], progress=False)
    levels = {row.unit: row.isolated.sqnr for row in rows}
    first = next(row.isolated.sqnr for row in wanted if row.unit == "relu")
    assert levels["relu"] == pytest.approx(first, abs=1.0)
    assert {"relu", "relu_1"} <= set(levels)
    found = fxq.profile(prepared, X, rounds=1)
    assert {"first", "second"} <= {row.name for row in found}
    by_keyword = fxq.profile(prepared, {"x": X}, int8=fxq.convert(prepared), rounds=1)
    assert len(by_keyword) == len(found)


@pytest.mark.parametrize("form", FORMS)
def test_integers_of_another_dtype_are_refused(form: str) -> None:
    model = fxq.convert(calibrated(integer_inputs=True), to=form)
    q = quantized(model, X)
    with pytest.raises(InputError) as caught:
        model((q.int() - 128).to(torch.int8))
    assert "torch.int8" in str(caught.value)
    assert "torch.uint8" in str(caught.value)


def test_a_model_that_trains() -> None:
    torch.manual_seed(0)
    model = fxq.prepare_qat(Net().train(), X, integer_inputs="x", integer_outputs=1)
    model(X)
    int8 = fxq.convert(model.eval())
    assert (list(int8.integer_inputs), list(int8.integer_outputs)) == (["x"], [1])
    _, y, _ = int8(quantized(int8, X))
    assert y.dtype == torch.uint8
    qparams, simulated = int8.integer_outputs[1], fxq.convert(model, to="fake_quant")(X)[1]
    assert torch.allclose(floats(y, qparams), simulated, atol=float(qparams.scale) * 1.01)


@pytest.mark.parametrize("form", FORMS)
def test_qparams_at_the_boundaries_are_those_that_were_loaded(form: str) -> None:
    model = fxq.convert(calibrated(integer_inputs=True, integer_outputs=(0, 1)), to=form)
    empty = fxq.convert(prepare(integer_inputs=True, integer_outputs=(0, 1)), to=form, allow_uncalibrated=True)
    copied = pickle.loads(pickle.dumps(copy.deepcopy(empty)))
    for loaded in (empty, copied):
        loaded.load_state_dict(model.state_dict())
        assert loaded.integer_inputs["x"].same_qparams(model.integer_inputs["x"])
        for place in (0, 1):
            assert loaded.integer_outputs[place].same_qparams(model.integer_outputs[place])
        assert torch.equal(loaded(quantized(loaded, X))[1], model(quantized(model, X))[1])
