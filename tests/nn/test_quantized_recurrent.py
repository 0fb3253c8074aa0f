"""Recurrent layers in every form: the same order of steps as torch, whatever their shape and their input."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import fxquant as fxq
from fxquant.errors import FxQuantError, InputError
from fxquant.graph.recurrent import RecurrentShape, split_weight, stacked, stacked_bias
from fxquant.nn.quantized_recurrent import QuantizedRecurrent
from fxquant.nn.simulated_recurrent import as_it_is, simulate, values_inside
from fxquant.plan.spec import Dynamic, QParams, QScheme
from tests.sampling import one_of

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

ROUNDED = 30
"""dB: 8 bits of inputs, of hidden states and of weights leave more than that of these small layers."""
CLOSE = 1e-5
"""Float32 sums in another order, and functions of gates that differ in the last bits."""
FORMS = ("int8", "fake_quant", "reference")
LAYERS = {
    "lstm": lambda: nn.LSTM(5, 6),
    "layers": lambda: nn.LSTM(5, 6, num_layers=2, bidirectional=True, batch_first=True),
    "projected": lambda: nn.LSTM(5, 6, proj_size=3, num_layers=2, bidirectional=True),
    "no_bias": lambda: nn.LSTM(5, 6, bias=False),
    "gru": lambda: nn.GRU(5, 6, num_layers=2, bidirectional=True),
    "tanh": lambda: nn.RNN(5, 6),
    "relu": lambda: nn.RNN(5, 6, nonlinearity="relu", bias=False, batch_first=True),
}
CELLS = {
    "lstm": lambda: nn.LSTMCell(5, 6),
    "gru": lambda: nn.GRUCell(5, 6, bias=False),
    "tanh": lambda: nn.RNNCell(5, 6),
    "relu": lambda: nn.RNNCell(5, 6, nonlinearity="relu"),
}
SCHEME = Dynamic(QScheme(signed=False))


class Whole(nn.Module):
    """A layer, with all that it gives."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.eval()

    def forward(self, x: Any, state: Any = None) -> Any:
        return self.layer(x, state)


class Packed(nn.Module):
    """A layer between packing and padding."""

    def __init__(self, layer: nn.Module, **how: Any) -> None:
        super().__init__()
        self.layer, self.how = layer, how
        self.eval()

    def forward(self, x: Tensor, lengths: Tensor) -> Any:
        y, state = self.layer(pack_padded_sequence(x, lengths, self.layer.batch_first, **self.how))
        return pad_packed_sequence(y, self.layer.batch_first)[0], state


class Classifier(nn.Module):
    """The last output of two layers, between linear layers."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.first, self.layer, self.last = nn.Linear(4, 5), nn.LSTM(5, 6, 2, batch_first=True, **how), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(self.first(x))[0][:, -1])


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, PackedSequence):
        return [value.data]
    return [value] if isinstance(value, Tensor) else [t for item in value for t in tensors(item)]


def sqnr(exact: Tensor, given: Tensor) -> float:
    return float(10 * torch.log10(exact.square().sum() / (exact - given).square().sum().clamp(min=1e-30)))


def symmetric(layer: Any, share: float = 1.0) -> QParams:
    scale = stacked(layer).detach().abs().amax(1) / 127 * share
    return QParams(QScheme(symmetric=True, axis=0), scale, torch.zeros(len(scale), dtype=torch.int32))


def int8_of(layer: Any) -> QuantizedRecurrent:
    return QuantizedRecurrent(layer, x=SCHEME, weight=symmetric(layer)).eval()


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(params=LAYERS)
def layer(request) -> Any:
    return LAYERS[request.param]().eval()


def sequence(layer: Any, rows: int = 3, steps: int = 7) -> Tensor:
    return torch.randn((rows, steps, 5) if layer.batch_first else (steps, rows, 5))


def first_states(layer: Any, rows: int = 3) -> Any:
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = torch.rand(count, rows, layer.proj_size or 6)
    return (hidden, torch.rand(count, rows, 6)) if isinstance(layer, nn.LSTM) else hidden


def test_matrices_lie_one_below_the_other(layer):
    shape, weight = RecurrentShape.of(layer), stacked(layer)
    assert tuple(weight.shape) == shape.weight_shape
    for parts, matrices in zip(split_weight(weight, shape), shape.matrices(), strict=True):
        assert all(torch.equal(part, getattr(layer, m.name)) for part, m in zip(parts, matrices, strict=True))
    bias = stacked_bias(layer)
    assert (bias is None) == (not layer.bias)
    assert bias is None or len(bias) == len(weight)


@pytest.mark.parametrize("with_states", [False, True])
def test_the_order_of_steps_is_that_of_torch(layer, with_states):
    x, states = sequence(layer), first_states(layer) if with_states else None
    with torch.no_grad():
        given = simulate(layer, stacked(layer), as_it_is, x, states)
        expected = layer(x, states)
    for a, b in zip(tensors(given), tensors(expected), strict=True):
        assert a.shape == b.shape
        assert torch.allclose(a, b, atol=CLOSE)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_stays_near_to_float(layer, form):
    model, inputs = Whole(layer), (sequence(layer), first_states(layer))
    quantizer = fxq.prepare(model, inputs, fxq.default_dynamic_qconfig)
    assert [unit.pattern for unit in quantizer.plan.units] == ["dynamic_recurrent"]
    converted = fxq.convert(quantizer, to=form)
    with torch.no_grad():
        results = [tensors(converted(*inputs)) for _ in range(3)]
        expected = tensors(model(*inputs))
    for first, second, third, exact in zip(*results, expected, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(second, third)
        assert first.shape == exact.shape
        assert sqnr(exact, first) > ROUNDED


@pytest.mark.parametrize("kind", CELLS)
@pytest.mark.parametrize("form", FORMS)
def test_cells_go_a_step(kind, form):
    cell = CELLS[kind]().eval()
    hidden = torch.rand(3, 6)
    inputs = (torch.randn(3, 5), (hidden, torch.rand(3, 6)) if kind == "lstm" else hidden)
    model = Whole(cell)
    for given in (inputs, inputs[:1]):
        converted = fxq.convert(fxq.prepare(model, given, fxq.default_dynamic_qconfig), to=form)
        with torch.no_grad():
            for exact, result in zip(tensors(model(*given)), tensors(converted(*given)), strict=True):
                assert result.shape == exact.shape
                assert sqnr(exact, result) > ROUNDED


@pytest.mark.parametrize("form", one_of(3, FORMS))
@pytest.mark.parametrize(("lengths", "how"), [([3, 7, 5], {"enforce_sorted": False}), ([7, 4, 1], {})])
def test_packed_sequences(layer, form, lengths, how):
    model, inputs = Packed(layer, **how), (sequence(layer), torch.tensor(lengths))
    quantizer = fxq.prepare(model, inputs, fxq.default_dynamic_qconfig)
    assert len(quantizer.plan.units) == 1
    converted = fxq.convert(quantizer, to=form)
    with torch.no_grad():
        for exact, result in zip(tensors(model(*inputs)), tensors(converted(*inputs)), strict=True):
            assert result.shape == exact.shape
            assert sqnr(exact, result) > ROUNDED
            assert not result[exact == 0].any()


def test_unsorted_lengths_are_refused_as_in_float():
    model = Packed(nn.LSTM(5, 6).eval())
    x, lengths = torch.randn(7, 3, 5), torch.tensor([7, 5, 5])
    converted = fxq.convert(fxq.prepare(model, (x, lengths), fxq.default_dynamic_qconfig))
    with pytest.raises(InputError, match=r"must be sorted in decreasing(.|\n)*at: .*pack_padded_sequence"):
        converted(x, lengths.flip(0))


def test_a_sequence_without_a_batch(layer):
    x, module = torch.randn(7, 5), int8_of(layer)
    hidden = first_states(layer, 1)
    states = tuple(h[:, 0] for h in hidden) if isinstance(hidden, tuple) else hidden[:, 0]
    for given in ((x,), (x, states)):
        for exact, result in zip(tensors(layer(*given)), tensors(module(*given)), strict=True):
            assert result.shape == exact.shape
            assert torch.allclose(exact, result, atol=0.02)


def test_rows_without_any(layer):
    x = sequence(layer, 0)
    for exact, result in zip(tensors(layer(x)), tensors(int8_of(layer)(x)), strict=True):
        assert result.shape == exact.shape


def test_the_kernel_is_its_reference(layer):
    module, x = int8_of(layer), sequence(layer)
    packed = pack_sequence([torch.randn(n, 5) for n in (6, 4, 4, 1)])
    for inputs in ((x, first_states(layer)), (x,), (packed,)):
        assert all(map(torch.equal, tensors(module(*inputs)), tensors(module.reference(*inputs))))


@pytest.mark.one_in(2)
def test_int8_follows_its_simulation_over_200_steps(layer):
    """Rounding to another step in one of them must not grow in the next ones."""
    model, x = Whole(layer), sequence(layer, 2, 200)
    quantizer = fxq.prepare(model, x, fxq.default_dynamic_qconfig)
    with torch.no_grad():
        int8, simulated = (tensors(fxq.convert(quantizer, to=form)(x))[0] for form in ("int8", "fake_quant"))
    off = (int8 - simulated).abs()
    off = off.amax((0, 2)) if layer.batch_first else off.amax((1, 2))
    largest = float(simulated.abs().max())
    assert float(off.max()) < 0.02 * largest  # two of 256 steps, and what they make of each other
    assert float(off[-50:].mean()) <= float(off.mean()) * 3 + CLOSE


@pytest.mark.parametrize(
    ("inputs", "lines"),
    [
        ((torch.zeros(0, 3, 5),), ("a sequence without steps", "[0, 3, 5]")),
        (
            (torch.zeros(7, 3, 4),),
            ("the input of a recurrent layer has the wrong shape", "[7, 3, 4]", "[steps, rows, 5]"),
        ),
        ((torch.zeros(5),), ("the input of a recurrent layer has the wrong shape", "[5]")),
        (
            (torch.zeros(7, 3, 5), (torch.zeros(1, 2, 6), torch.zeros(1, 3, 6))),
            ("the first hidden state", "[1, 2, 6]", "[1, 3, 6]"),
        ),
        (
            (torch.zeros(7, 3, 5), (torch.zeros(1, 3, 6), torch.zeros(1, 3, 5))),
            ("the first cell state", "[1, 3, 5]", "[1, 3, 6]"),
        ),
        ((torch.zeros(7, 3, 5), (torch.zeros(1, 3, 6), None)), ("the first cell state", "NoneType")),
        ((pack_sequence([torch.zeros(3, 4)]),), ("the packed sequence does not fit", "[3, 4]", "[values, 5]")),
    ],
    ids=["no steps", "features", "one dimension", "hidden", "cell", "no cell", "packed"],
)
def test_wrong_inputs_are_named(inputs, lines):
    module = int8_of(nn.LSTM(5, 6))
    module.unit = "encoder"
    with pytest.raises(InputError) as caught:
        module(*inputs)
    assert all(line in str(caught.value) for line in (*lines, "encoder"))


def test_states_given_alone_are_refused():
    module = int8_of(nn.LSTM(5, 6))
    with pytest.raises(InputError, match="the first states of an LSTM"):
        module(torch.zeros(7, 3, 5), torch.zeros(1, 3, 6))


@pytest.mark.parametrize("form", FORMS)
def test_state_copies_and_files(form, tmp_path: Path):
    x = torch.randn(2, 5, 4)
    converted = fxq.convert(fxq.prepare(Classifier().eval(), x, fxq.default_dynamic_qconfig), to=form)
    other = fxq.convert(fxq.prepare(Classifier().eval(), x, fxq.default_dynamic_qconfig), to=form)
    with torch.no_grad():
        y = converted(x)
        assert not torch.equal(other(x), y)
        other.load_state_dict(converted.state_dict())
        fxq.save(converted, tmp_path / "model.fxq")
        for same in (
            other,
            copy.deepcopy(converted),
            pickle.loads(pickle.dumps(converted)),
            fxq.load(tmp_path / "model.fxq"),
        ):
            assert torch.equal(same(x), y)


def test_a_quantizer_is_saved(tmp_path: Path):
    x = torch.randn(2, 5, 4)
    quantizer = fxq.prepare(Classifier().eval(), x, fxq.default_dynamic_qconfig)
    fxq.save(quantizer, tmp_path / "quantizer.fxq")
    restored = fxq.load(tmp_path / "quantizer.fxq")
    assert torch.equal(fxq.convert(restored)(x), fxq.convert(quantizer)(x))


@pytest.mark.parametrize("form", one_of(3, FORMS))
def test_the_explicit_form_and_the_exported_graph(form):
    x = torch.randn(2, 5, 4)
    converted = fxq.convert(fxq.prepare(Classifier().eval(), x, fxq.default_dynamic_qconfig), to=form)
    with torch.no_grad():
        y = converted(x)
        assert torch.allclose(fxq.explicit(converted)(x), y, atol=CLOSE)
        assert torch.equal(torch.export.export(converted, (x,)).module()(x), y)


def test_what_is_measured_of_a_layer():
    x = torch.randn(2, 5, 4)
    model = Classifier().eval()
    quantizer = fxq.prepare(model, x, fxq.default_dynamic_qconfig)
    int8 = fxq.convert(quantizer, check=x)
    row = next(row for row in int8.parity.rows if row.pattern == "dynamic_recurrent")
    assert row.breach == ""
    assert row.native_equal == 1
    found = {row.unit: row.isolated.sqnr for row in fxq.compare(quantizer, int8, [x], progress=False).rows}
    assert found["layer"] > ROUNDED
    assert {row.unit for row in fxq.sensitivity(quantizer, [x], progress=False).rows} == {"first", "layer", "last"}


def test_rules_keep_a_layer_in_float():
    x = torch.randn(2, 5, 4)
    rules = fxq.QConfigMapping().set_global(fxq.default_dynamic_qconfig).set_object_type(nn.LSTM, None)
    quantizer = fxq.prepare(Classifier().eval(), x, rules)
    assert {unit.pattern for unit in quantizer.plan.units} == {"dynamic_linear"}
    assert type(fxq.convert(quantizer).layer) is nn.LSTM


def test_float16_values_keep_their_dtype():
    model = Whole(nn.GRU(5, 6).eval()).half()
    x = torch.randn(4, 2, 5).half()
    converted = fxq.convert(fxq.prepare(model, x, fxq.default_dynamic_qconfig))
    assert {t.dtype for t in tensors(converted(x))} == {torch.float16}


def test_training(tmp_path: Path):
    x, target = torch.randn(6, 5, 4), torch.randn(6, 3)
    model = fxq.prepare_qat(Classifier(dropout=0.1).train(), x, fxq.default_dynamic_qconfig)
    assert "layer.weight_hh_l1" in model.state_dict()  # parameters keep the names that they have in torch
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    assert all(bool(p.grad.any()) for name, p in model.named_parameters() if name.startswith("layer.weight"))
    model.eval()
    with torch.no_grad():
        y = model(x)
        for form in FORMS:
            assert torch.allclose(fxq.convert(model, to=form)(x), y, atol=0.01)


def test_a_matrix_that_is_computed_stays_float():
    model = Whole(nn.LSTM(5, 6))
    model.train()
    nn.utils.parametrizations.weight_norm(model.layer, "weight_hh_l0")
    with pytest.raises(FxQuantError, match="weight_hh_l0 is computed in each call"):
        fxq.prepare_qat(model, torch.randn(4, 2, 5), fxq.default_dynamic_qconfig)


# With qparams from calibration.

STATIC = {kind: fxq.get_default_qconfig() for kind in (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)}
SHARED = 25
"""dB: 8 bits of the range that inputs and hidden states share."""


def calibrated(model: nn.Module, *batches: Any) -> fxq.Quantizer:
    kinds = {type(module) for module in model.modules()}
    rules = fxq.QConfigMapping().set_global(fxq.get_default_qconfig())
    for kind in kinds & set(STATIC):
        rules.set_object_type(kind, STATIC[kind])
    return fxq.calibrate(fxq.prepare(model, batches[0], rules), batches, progress=False)


@pytest.mark.parametrize("form", one_of(3, FORMS))
def test_known_qparams_stay_near_to_float(layer, form):
    model, inputs = Whole(layer), (sequence(layer), first_states(layer))
    quantizer = calibrated(model, inputs)
    assert [unit.pattern for unit in quantizer.plan.units] == ["recurrent"]
    converted = fxq.convert(quantizer, to=form)
    with torch.no_grad():
        results = [tensors(converted(*inputs)) for _ in range(3)]
        expected = tensors(model(*inputs))
    for first, second, third, exact in zip(*results, expected, strict=True):
        assert torch.equal(first, second)
        assert torch.equal(second, third)
        assert sqnr(exact, first) > SHARED


def test_one_range_holds_inputs_and_hidden_states(layer):
    model, x = Whole(layer), sequence(layer)
    qparams = calibrated(model, x).plan.policies
    assert [ref.name for ref in qparams if ref.kind == "activation"] == ["layer"]
    seen = values_inside(layer, x)
    int8 = fxq.convert(calibrated(model, x)).layer
    low, high = (float((end - int8.x_zero_point) * int8.x_scale) for end in (0, 255))
    assert low - float(int8.x_scale) <= float(seen.min())
    assert float(seen.max()) <= high + float(int8.x_scale)


@pytest.mark.one_in(2)
def test_known_qparams_follow_their_simulation_over_200_steps(layer):
    model, x = Whole(layer), sequence(layer, 2, 200)
    quantizer = calibrated(model, x)
    with torch.no_grad():
        int8, simulated = (tensors(fxq.convert(quantizer, to=form)(x))[0] for form in ("int8", "fake_quant"))
    off = (int8 - simulated).abs()
    off = off.amax((0, 2)) if layer.batch_first else off.amax((1, 2))
    step = float(fxq.convert(quantizer).layer.x_scale)
    assert float(off.max()) < 3 * step
    assert float(off[-50:].mean()) <= float(off.mean()) * 3 + CLOSE


def test_known_qparams_of_packed_sequences_and_the_kernel():
    layer = nn.LSTM(5, 6, bidirectional=True).eval()
    model, inputs = Packed(layer, enforce_sorted=False), (sequence(layer), torch.tensor([3, 7, 5]))
    int8 = fxq.convert(calibrated(model, inputs), check=inputs)
    assert all(row.breach == "" and row.native_equal == 1 for row in int8.parity.rows)
    with torch.no_grad():
        for exact, result in zip(tensors(model(*inputs)), tensors(int8(*inputs)), strict=True):
            assert sqnr(exact, result) > SHARED


class Read(nn.Module):
    """A cell whose result a linear layer reads."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.last = nn.GRUCell(5, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.cell(x))


def test_what_reads_a_cell_has_its_qparams():
    model, x = Read().eval(), torch.randn(16, 5)
    quantizer = calibrated(model, x)
    assert [unit.pattern for unit in quantizer.plan.units] == ["recurrent", "linear"]
    int8, simulated, reference = (fxq.convert(quantizer, to=form) for form in FORMS)
    assert torch.equal(int8.cell.x_scale, int8.cell_quantize.y_scale)
    with torch.no_grad():
        assert torch.allclose(int8(x), simulated(x), atol=0.01)
        assert torch.allclose(reference(x), simulated(x), atol=0.01)
        assert sqnr(model(x), int8(x)) > SHARED


def test_known_qparams_are_asked_for_by_name():
    x = torch.randn(2, 5, 4)
    quantizer = fxq.prepare(Classifier().eval(), x)
    assert "recurrent" not in {unit.pattern for unit in quantizer.plan.units}
    (refusal,) = (each for each in quantizer.plan.refusals if each.pattern == "recurrent")
    assert "share qparams, so only a rule that names it, or its type, quantizes it" in refusal.reason


@pytest.mark.parametrize("form", FORMS)
def test_known_qparams_are_kept(form, tmp_path: Path):
    x = torch.randn(2, 5, 4)
    quantizer = calibrated(Classifier().eval(), x)
    converted = fxq.convert(quantizer, to=form)
    other = fxq.convert(calibrated(Classifier().eval(), x * 2), to=form)
    fxq.save(converted, tmp_path / "model.fxq")
    fxq.save(quantizer, tmp_path / "quantizer.fxq")
    with torch.no_grad():
        y = converted(x)
        other.load_state_dict(converted.state_dict())
        restored = fxq.convert(fxq.load(tmp_path / "quantizer.fxq"), to=form)
        for same in (other, copy.deepcopy(converted), fxq.load(tmp_path / "model.fxq"), restored):
            assert torch.equal(same(x), y)
        assert torch.allclose(fxq.explicit(converted)(x), y, atol=0.01)


def test_training_with_qparams_of_its_own():
    x, target = torch.randn(6, 5, 4), torch.randn(6, 3)
    qconfig = fxq.get_default_qat_qconfig()
    rules = fxq.QConfigMapping().set_global(qconfig).set_object_type(nn.LSTM, qconfig)
    model = fxq.prepare_qat(Classifier().train(), x, rules)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = (model(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
    model.eval().apply(fxq.disable_observer)
    with torch.no_grad():
        y = model(x)
        for form in FORMS:
            converted = fxq.convert(model, to=form)
            assert torch.allclose(converted(x), y, atol=0.02)
    assert torch.equal(converted.layer.activation_fake_quant.scale, model.layer.activation_fake_quant.scale)


@pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_nan_and_infinities_lie_at_the_ends_of_the_range_of_a_call(kind, to):
    torch.manual_seed(0)
    model, x = nn.Sequential(kind(8, 6)).eval(), torch.randn(4, 2, 8).clamp(-2, 2)
    x[0, 0, 3], x[1, 0, 0], x[2, 1, 5] = 0.0, -4.0, 3.0
    prepared = fxq.prepare(model, x, fxq.QConfigMapping().set_global(fxq.default_dynamic_qconfig))
    converted = fxq.convert(prepared, to=to)
    for value, end in ((torch.nan, -4.0), (-torch.inf, -4.0), (torch.inf, 3.0)):
        bad, known = x.clone(), x.clone()
        bad[0, 0, 3], known[0, 0, 3] = value, end
        assert torch.equal(converted(bad)[0], converted(known)[0])
