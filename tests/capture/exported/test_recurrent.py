"""Recurrent layers of a program are layers again, at the paths where they were."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import InputError
from fxquant.nn import QuantizedRecurrent
from tests.sampling import one_of

GENERATOR = torch.Generator().manual_seed(0)
X, H = torch.randn(3, 5, 8, generator=GENERATOR), torch.randn(1, 5, 4, generator=GENERATOR)


class Recurrent(nn.Module):
    """Every kind: both ways, several layers, states that are given, states that are returned, one called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(12, 4)
        self.rnn = nn.RNN(4, 4, nonlinearity="relu", bias=False)
        self.last = nn.LSTM(4, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, ...]:
        y, (hidden, cell) = self.lstm(x)
        y, state = self.gru(y)
        y, _ = self.rnn(y, h)
        y, states = self.last(y)
        y, _ = self.last(y, states)
        return self.fc(y), hidden, cell, state


@pytest.fixture(scope="module")
def model() -> Recurrent:
    torch.manual_seed(0)
    return Recurrent().eval()


@pytest.fixture(scope="module")
def program(model: Recurrent) -> torch.export.ExportedProgram:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.export warns of the tensors that recurrent layers keep in a list
        return torch.export.export(model, (X, H), strict=False)


def test_layers_are_those_of_the_model(model, program):
    prepared = fxq.prepare(program, (X, H))
    for got, expected in zip(prepared(X, H), model(X, H), strict=True):
        torch.testing.assert_close(got, expected)
    parameters = dict(model.named_parameters())
    assert {name for name, _ in prepared.root.named_parameters()} == parameters.keys()
    for path in ("lstm", "gru", "rnn", "last"):
        assert repr(prepared.root.get_submodule(path)) == repr(model.get_submodule(path))
    operators = {row.operator for row in prepared.coverage().float_rows}
    assert operators == {"LSTM", "GRU", "RNN"}


def test_integers_are_those_of_the_model(model, program):
    config = fxq.get_default_qconfig_mapping()
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        config.set_object_type(kind, fxq.default_dynamic_qconfig)
    results = []
    for given in (program, model):
        prepared = fxq.prepare(given, (X, H), config)
        prepared.observe(X, H)
        int8 = prepared.convert()
        quantized = [path for path, module in int8.named_modules() if isinstance(module, QuantizedRecurrent)]
        results.append((quantized, int8(X, H)))
    (paths, ours), (expected_paths, expected) = results
    assert paths == expected_paths
    assert {"lstm", "gru", "rnn"} < set(paths)
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


def test_steps_stay_those_of_the_program(program):
    with pytest.raises(InputError, match="exported for inputs of other sizes"):
        fxq.prepare(program, (X, H))(X[:, :4], H[:, :4])


def test_a_layer_of_another_forward_stays_operators():
    class Scaled(nn.LSTM):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[0] * 2

    model = nn.Sequential(Scaled(4, 4), nn.Linear(4, 2)).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (X[..., :4],), strict=False)
    prepared = fxq.prepare(program, X[..., :4])
    torch.testing.assert_close(prepared(X[..., :4]), model(X[..., :4]))
    assert "LSTM" not in {row.operator for row in prepared.coverage().float_rows}


class Cells(nn.Module):
    """One step of each kind, with states of its own and with states that are given."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(8, 6), nn.GRUCell(6, 6)
        self.tanh, self.relu = nn.RNNCell(6, 6), nn.RNNCell(6, 6, nonlinearity="relu", bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden, cell = self.lstm(x)
        hidden, cell = self.lstm(x, (hidden, cell))
        y = self.gru(hidden)
        return self.relu(self.tanh(self.gru(y, hidden)), cell), cell


@pytest.mark.parametrize("x", [X[0], X[0, 0]], ids=["rows", "one row"])
def test_cells_are_layers_with_the_integers_of_the_model(x):
    torch.manual_seed(0)
    model = Cells().eval()
    shapes = ({0: torch.export.Dim.AUTO},) if x.dim() > 1 else None
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=False)
    results = []
    for given in (program, model):
        prepared = fxq.prepare(given, x, fxq.default_dynamic_qconfig)
        for path in ("lstm", "gru", "tanh", "relu"):
            assert repr(prepared.root.get_submodule(path)) == repr(model.get_submodule(path))
        int8 = prepared.convert()
        quantized = {path for path, module in int8.named_modules() if isinstance(module, QuantizedRecurrent)}
        results.append((quantized, int8(x)))
    (paths, ours), (expected_paths, expected) = results
    assert paths == expected_paths
    assert len(paths) == 6  # a module for each call
    assert all(torch.equal(a, b) for a, b in zip(ours, expected, strict=True))


@pytest.mark.filterwarnings("ignore:The tensor attributes self._flat_weights")  # of torch.export, on a bare layer
@pytest.mark.parametrize(
    ("layer", "inputs"),
    one_of(
        3,
        [
            (nn.LSTM(8, 8, batch_first=True), (X,)),
            (nn.LSTM(8, 4), (X, (torch.zeros(1, 5, 4), torch.zeros(1, 5, 4)))),
            (nn.GRU(8, 4, 2, bidirectional=True), (X,)),
            (nn.RNN(8, 4, nonlinearity="relu"), (X, H)),
            (nn.LSTMCell(8, 8), (X[0],)),
            (nn.GRUCell(8, 4), (X[0], H[0])),
            (nn.RNNCell(8, 4, bias=False), (X[0],)),
        ],
    ),
    ids=lambda value: type(value).__name__.lower() if isinstance(value, nn.Module) else "",
)
def test_a_layer_that_is_the_whole_program(layer, inputs):
    layer.eval()
    program = torch.export.export(layer, inputs)
    results = []
    for given in (program, layer):
        converted = fxq.convert(fxq.prepare(given, inputs, fxq.default_dynamic_qconfig))
        name = type(layer).__name__.lower()
        assert [path for path, one in converted.named_modules() if isinstance(one, QuantizedRecurrent)] == [name]
        with torch.no_grad():
            results.append(torch.utils._pytree.tree_flatten(converted(*inputs)))
    (values, structure), (expected, expected_structure) = results
    assert structure == expected_structure
    assert all(torch.equal(value, other) for value, other in zip(values, expected, strict=True))
