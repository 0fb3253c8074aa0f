"""Observing data: what batches may look like, what is remembered, what the caller keeps."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fxquant as fxq
from fxquant.calibration import CalibrationInterpreter, inputs_of
from fxquant.errors import CalibrationError, InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv(x))
        y += y.mean((2, 3), keepdim=True)
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def ranges(prepared: fxq.Quantizer) -> dict[str, tuple[float, float]]:
    return {
        name: (observer.min_val.item(), observer.max_val.item())
        for name, observer in prepared.observers.items()
        if isinstance(observer, (fxq.HistogramObserver, fxq.MinMaxObserver))
    }


def test_observing_returns_the_float_output_to_the_bit(model):
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(model, x)
    kept = x.clone()
    with torch.no_grad():
        assert torch.equal(prepared(x), model(x))
        assert torch.equal(prepared.observe(x), model(x))
    assert torch.equal(x, kept)


def test_ranges_are_those_of_the_float_model(model):
    seen: dict[str, Tensor] = {}
    x = torch.randn(5, 3, 8, 8)
    with torch.no_grad():
        seen["x"], seen["relu"], seen["fc"] = x, model.conv(x).relu(), model(x)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x[:2], x[2:]], progress=False)
    found = ranges(prepared)
    for name, value in seen.items():
        low, high = found[name]
        assert low == pytest.approx(float(value.min()), abs=1e-5)
        assert high == pytest.approx(float(value.max()), abs=1e-5)


BATCHES = {
    "tensors": lambda x: [x, x],
    "pairs with a label": lambda x: [(x, torch.zeros(len(x)))],
    "lists with a label": lambda x: [[x, torch.zeros(len(x))]],
    "keyword dicts": lambda x: [{"x": x}],
    "a generator": lambda x: (x for _ in range(2)),
    "a data loader": lambda x: DataLoader(TensorDataset(x, torch.zeros(len(x))), batch_size=2),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_kinds_of_batches(model, kind):
    x = torch.randn(4, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x[:1]), BATCHES[kind](x), progress=False)
    assert ranges(prepared)["x"] == (float(x.min()), float(x.max()))


def test_several_inputs_and_a_label():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(4, 2)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return self.a(x) + self.b(y)

    x, y = torch.rand(2, 3), torch.rand(2, 4) + 5
    prepared = fxq.calibrate(fxq.prepare(Two().eval(), (x, y)), [(x, y, torch.zeros(2))], progress=False)
    assert ranges(prepared)["y"][1] == float(y.max())


def test_num_batches_stops_early(model):
    x = torch.randn(1, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x, x * 100], num_batches=1, progress=False)
    assert ranges(prepared)["x"][1] == float(x.max())


def test_an_interrupt_keeps_what_was_observed(model):
    x = torch.randn(1, 3, 8, 8)

    def interrupted():
        yield x
        raise KeyboardInterrupt

    prepared = fxq.prepare(model, x)
    with pytest.raises(KeyboardInterrupt):
        fxq.calibrate(prepared, interrupted(), progress=False)
    assert ranges(prepared)["x"] == (float(x.min()), float(x.max()))
    fxq.convert(prepared)


def test_the_progress_bar_counts_batches(model, capsys):
    x = torch.randn(1, 3, 8, 8)
    fxq.calibrate(fxq.prepare(model, x), [x, x, x])
    assert "3/3" in capsys.readouterr().err
    fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    assert capsys.readouterr().err == ""


def test_an_empty_batch_changes_nothing(model):
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    before = ranges(prepared)
    with torch.no_grad():
        out = model.fc(torch.empty(0, 4))
    linear = fxq.prepare(nn.Sequential(nn.Linear(8, 4)).eval(), torch.rand(3, 8))
    fxq.calibrate(linear, [torch.rand(3, 8)], progress=False)
    seen = ranges(linear)
    assert linear(torch.empty(0, 8)).shape == (0, 4)
    assert ranges(linear) == seen
    assert fxq.convert(linear)(torch.empty(0, 8)).shape == (0, 4)
    assert ranges(prepared) == before
    assert out.shape == (0, 2)


def test_values_are_freed_after_their_last_use(model):
    """At no time does the interpreter hold more than the values that are still to be read."""
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    alive: list[int] = []

    class Counting(CalibrationInterpreter):
        def run_node(self, n):
            alive.append(len(self.env))
            return super().run_node(n)

    with torch.no_grad():
        Counting(prepared.graph_module, {"x": torch.randn(1, 3, 8, 8)}, {}, {}).run()
    assert len(alive) == len(prepared.graph.nodes)
    assert max(alive) <= 3


def test_nothing_is_kept_between_batches(model):
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    batch = torch.randn(2, 3, 8, 8)
    fxq.calibrate(prepared, [batch], progress=False)
    gc.collect()
    before = sum(issubclass(type(o), Tensor) for o in gc.get_objects())
    fxq.calibrate(prepared, [batch] * 5, progress=False)
    gc.collect()
    assert sum(issubclass(type(o), Tensor) for o in gc.get_objects()) <= before


def test_the_callers_tensor_is_not_written_to():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 2)).eval()
    x = torch.randn(3, 4)
    kept = x.clone()
    prepared = fxq.prepare(model, x.clone())
    prepared(x)
    assert torch.equal(x, kept)


ERRORS = {
    "a lone tensor": (
        lambda x: x,
        InputError,
        """\
calibration data must be an iterable of batches
  got:      float32[1, 3, 8, 8]
  expected: a DataLoader, a list, a generator: anything that yields batches
  hint:     [batch] is a list of one batch""",
    ),
    "no batch": (
        lambda x: [],
        CalibrationError,
        """\
there is no calibration data
  got:      no batch
  expected: at least one batch""",
    ),
    "a batch of integers": (
        lambda x: [x.to(torch.uint8)],
        InputError,
        """\
calibration batch 0 is of the wrong kind (input 0)
  got:      uint8[1, 3, 8, 8]
  expected: float32[1, 3, 8, 8]
  hint:     batches must look like the example inputs that prepare was given; their size may differ""",
    ),
    "a path": (
        lambda x: [x, "image.png"],
        InputError,
        """\
calibration batch 1 is of the wrong kind (input 0)
  got:      'image.png'
  expected: float32[1, 3, 8, 8]
  hint:     batches must look like the example inputs that prepare was given; their size may differ""",
    ),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_wrong_data_is_named(model, kind):
    make, error, text = ERRORS[kind]
    x = torch.randn(1, 3, 8, 8)
    with pytest.raises(error) as caught:
        fxq.calibrate(fxq.prepare(model, x), make(x), progress=False)
    assert str(caught.value) == text


def test_too_few_inputs_are_named():
    with pytest.raises(InputError) as caught:
        inputs_of((torch.rand(2),), (torch.rand(2), torch.rand(3)), "batch 7")
    assert str(caught.value) == (
        "batch 7 holds too few inputs\n  got:      (float32[2],)\n  expected: (float32[2], float32[3])"
    )


def test_a_batch_that_does_not_run_names_the_layer_and_the_line(model):
    prepared = fxq.prepare(model, torch.randn(1, 3, 8, 8))
    with pytest.raises(InputError) as caught:
        prepared(torch.randn(1, 5, 8, 8))
    text = str(caught.value)
    assert text.startswith("this batch does not run through the model: ")
    assert "%conv" in text
    assert "test_calibration.py:" in text
    assert "got:      (float32[1, 5, 8, 8])" in text
