from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, UnknownNameError
from fxquant.measure.noise import sqnr

OF_RESULT = 10
"""dB: what rounding its result may add to the noise of a layer's input and weight."""
GAIN = 10
"""dB: what it helps at least to keep the two bad layers of the test model in float."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*[nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6)])
        self.head = nn.Linear(16, 4)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight)  # or what the first layers do fades

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def data() -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.randn(32, 16) for _ in range(3)]


def bad_layers() -> fxq.QConfigMapping:
    """Two layers on 2 bits."""
    two = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, bits=2, qscheme="per_channel_symmetric")
    qconfig = fxq.QConfig(fxq.HistogramObserver, two)
    mapping = fxq.get_default_qconfig_mapping()
    return mapping.set_module_name("body.1.0", qconfig).set_module_name("body.4.0", qconfig)


def prepared_of(model: nn.Module, data: list[Tensor], mapping: Any = None, backend: str = "cpu") -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model, data[0], mapping, backend=backend), data, progress=False)


def measured(prepared: Any, data: Any, **options: Any) -> fxq.Sensitivity:
    return fxq.sensitivity(prepared, data, progress=False, **options)


def test_the_worst_units_come_first_and_sparing_them_helps(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data, bad_layers())
    found = measured(prepared, data)
    assert {row.name for row in found.worst(2)} == {"body.1.0", "body.4.0"}
    assert found.missing == ()
    assert found.quantized_value == pytest.approx(
        sqnr(model(torch.cat(data)), fxq.convert(prepared, to="fake_quant")(torch.cat(data))), abs=0.1
    )
    assert found.float_value == math.inf
    assert {row.batches for row in found} == {3}
    x = torch.cat(data)
    spared = fxq.convert(prepared_of(model, data, found.mapping(2)))
    assert sqnr(model(x), spared(x)) > found.quantized_value + GAIN
    wide = prepared_of(model, data, found.mapping(2, to="int16"), backend="reference")
    assert sqnr(model(x), fxq.convert(wide, to="fake_quant")(x)) > found.quantized_value + GAIN
    best = measured(prepared, data)
    others = fxq.get_default_qconfig_mapping()
    for row in best.rows[-2:]:
        others.set_module_name(row.name, None)
    assert sqnr(model(x), spared(x)) > sqnr(model(x), fxq.convert(prepared_of(model, data, bad_layers()))(x))


def test_costs_are_those_of_models_with_one_unit(model: nn.Module, data: list[Tensor]) -> None:
    """Against models that were prepared with all but one layer in float."""
    found = measured(prepared_of(model, data), data)
    x = torch.cat(data)
    for name in ("body.0.0", "body.3.0"):
        row = next(row for row in found if row.name == name)
        only = fxq.QConfigMapping()
        for path in (name, name[:-1] + "1"):
            only.set_module_name(path, fxq.get_default_qconfig_mapping().global_qconfig)
        alone = fxq.convert(prepared_of(model, data, only), to="fake_quant")
        without_result = sqnr(model(x), alone(x))  # float operators read it, so that it is not rounded there
        assert without_result - OF_RESULT < row.value < without_result
        assert row.cost == pytest.approx(10 ** (-row.value / 10))


def test_a_metric_of_the_users_on_labels(model: nn.Module, data: list[Tensor]) -> None:
    labelled = [(x, model(x).detach() + 0.01) for x in data]
    seen = []

    def closeness(output: Tensor, labels: Tensor) -> Tensor:
        seen.append(labels)
        return -(output - labels).square().mean()

    found = measured(prepared_of(model, data, bad_layers()), labelled, metric=closeness, against="target")
    assert found.metric == "closeness"
    assert found.float_value == pytest.approx(-1e-4, rel=1e-2)
    assert found.rows[0].cost == pytest.approx(found.float_value - found.rows[0].value)
    assert {row.name for row in found.worst(2)} == {"body.1.0", "body.4.0"}
    assert seen[0] is labelled[0][1]


def test_an_empty_batch_counts_for_nothing(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data, bad_layers())
    labelled = [(batch, model(batch).argmax(1)) for batch in data[:2]]

    def correct(output: Tensor, labels: Tensor) -> Tensor:  # NaN for no item
        return (output.argmax(1) == labels).float().mean()

    with_empty = [labelled[0], (data[0][:0], labelled[0][1][:0]), labelled[1]]
    plain = measured(prepared, labelled, metric=correct, against="target")
    assert measured(prepared, with_empty, metric=correct, against="target") == plain


def test_a_loss_against_the_float_model(model: nn.Module, data: list[Tensor]) -> None:
    def loss(output: Tensor, reference: Tensor) -> float:
        return float((output - reference).abs().mean())

    found = measured(prepared_of(model, data, bad_layers()), data, metric=loss, higher_is_better=False)
    assert found.float_value == 0
    assert {row.name for row in found.worst(2)} == {"body.1.0", "body.4.0"}
    assert found.rows[0].cost == found.rows[0].value > 0


def test_an_interrupt_gives_what_is_done(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    calls = []

    def stop_after(count: int) -> Any:
        def metric(output: Tensor, reference: Tensor) -> float:
            calls.append(1)
            if len(calls) == count:
                raise KeyboardInterrupt
            return 1.0

        return metric

    found = measured(prepared, data, metric=stop_after(5))
    assert len(found) == 2
    assert found.missing == ("body.2.0", "body.3.0", "body.4.0", "body.5.0", "head")
    assert found.mapping(1).module_name_qconfigs
    calls.clear()
    units = len(found) + len(found.missing)
    later = measured(prepared, data, metric=stop_after(units + 2 + 4))
    assert later.missing == ()
    assert sorted({row.batches for row in later}) == [1, 2]
    calls.clear()
    with pytest.raises(KeyboardInterrupt):
        measured(prepared, data, metric=stop_after(1))


def test_data_is_streamed_and_limited(model: nn.Module, data: list[Tensor]) -> None:
    read = []

    def stream() -> Iterator[Tensor]:
        for index, x in enumerate(data):
            read.append(index)
            yield x

    assert measured(prepared_of(model, data), stream(), num_batches=2).batches == 2
    assert read in ([0, 1], [0, 1, 2])


def test_the_bar_counts_units_and_shows_the_time_left(
    model: nn.Module, data: list[Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    fxq.sensitivity(prepared_of(model, data), data, num_batches=1)
    bar = capsys.readouterr().err
    assert "9/9" in bar
    assert "sensitivity: 100%" in bar


def test_the_model_and_the_random_state_stay_as_they_are(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    once, again = measured(prepared, data), measured(prepared, data)
    assert torch.equal(torch.rand(1), expected)
    assert once.rows == again.rows
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())


def test_a_model_in_training(model: nn.Module, data: list[Tensor]) -> None:
    qat = fxq.prepare_qat(model.train(), data[0])
    for x in data:
        qat(x)
    found = measured(qat.eval(), data)
    assert {"body.0.0", "head"} <= {row.name for row in found}
    assert fxq.prepare_qat(model, data[0], found.mapping(1)) is not None


def test_units_that_only_move_values_have_no_row() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2)).eval()
    data = [torch.randn(2, 3, 8, 8)]
    assert {row.name for row in measured(prepared_of(model, data), data)} == {"0", "3"}


def test_what_cannot_be_measured_is_refused(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    with pytest.raises(InputError, match="sensitivity takes what prepare or prepare_qat gave"):
        measured(model, data)
    with pytest.raises(UnknownNameError, match="unknown thing to compare with"):
        measured(prepared, data, metric=max, against="targets")
    with pytest.raises(InputError, match="metric is no function"):
        measured(prepared, data, metric=3)
    with pytest.raises(InputError, match="the default metric compares with the float model"):
        measured(prepared, data, against="target")
    with pytest.raises(InputError, match="batch 0 holds no target"):
        measured(prepared, data, metric=max, against="target")
    with pytest.raises(CalibrationError, match="there is no data to measure on"):
        measured(prepared, [])
    with pytest.raises(InputError, match="must be an iterable of batches"):
        measured(prepared, data[0])
    with pytest.raises(CalibrationError, match="have no range"):
        measured(fxq.prepare(model, data[0]), data)


def test_no_batch_is_read_beyond_those_wanted(model: nn.Module, data: list[Tensor]) -> None:
    read = []

    def stream() -> Iterator[Tensor]:
        for batch in data:
            read.append(batch)
            yield batch

    measured(prepared_of(model, data), stream(), num_batches=2)
    assert len(read) == 2
    with pytest.raises(InputError, match="num_batches is no number of batches"):
        measured(prepared_of(model, data), data, num_batches=-1)


def test_a_data_loader_may_have_no_length(model: nn.Module, data: list[Tensor]) -> None:
    class Rows(IterableDataset):
        def __iter__(self) -> Iterator[Tensor]:
            return iter(data[0])

    loader = DataLoader(Rows(), batch_size=16)
    assert measured(prepared_of(model, data), loader).batches == 2
    int8 = fxq.convert(prepared_of(model, data))
    assert fxq.compare(model, int8, loader, progress=False).batches == 2
