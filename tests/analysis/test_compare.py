"""Faults put into one layer of a quantized model: the comparison names that layer first, and says what it is."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.comparison import Comparison
from fxquant.errors import CalibrationError, InputError

FORMS = ("int8", "fake_quant", "reference")
MOST_FORMS = ("int8", "fake_quant", pytest.param("reference", marks=pytest.mark.slow))
"""All three agree, as a test of its own says."""
SMALL = 0.05
"""Share of the signal that a sound layer of 8 bits loses at most."""


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.bn(self.conv(x)))


class Net(nn.Module):
    """Batch norms, a residual, a dropout, a pool, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = Block(3, 8), Block(8, 8), Block(8, 8)
        self.drop, self.fc = nn.Dropout(), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x = self.c(self.b(x)) + x
        return self.fc(self.drop(x.mean((2, 3))))


@pytest.fixture
def data() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3, 12, 12) for _ in range(3)]


@pytest.fixture
def model(data: list[Tensor]) -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def prepared_of(model: nn.Module, data: list[Tensor], qconfig: Any = None) -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model, data[0], qconfig), data, progress=False)


def compared(model: Any, quantized: Any, data: Any) -> Comparison:
    return fxq.compare(model, quantized, data, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("to", MOST_FORMS)
def test_a_sound_model_has_no_fault_and_every_layer_a_row(model: nn.Module, data: list[Tensor], to: str) -> None:
    found = compared(model, fxq.convert(prepared_of(model, data), to=to), data)
    assert {row.name for row in found} == {"x", "a.conv", "b.conv", "c.conv", "add", "mean", "fc"}
    assert found.unmatched == ()
    assert [row.fault for row in found] == [""] * len(found)
    assert max(row.harm for row in found) < SMALL
    assert found["fc"].accumulated.sqnr == pytest.approx(found.output.sqnr)
    assert found.batches == 3
    assert all(row.line.split(":")[0].endswith("test_compare.py") for row in found if row.name != "x")


def test_the_forms_agree(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    int8, *others = (compared(model, fxq.convert(prepared, to=to), data) for to in FORMS)
    for other in others:
        for row in int8:
            assert other[row.unit].isolated.sqnr == pytest.approx(row.isolated.sqnr, abs=3)
            assert (other[row.unit].weight is None) == (row.weight is None)


@pytest.mark.parametrize("to", MOST_FORMS)
def test_alone_is_what_a_layer_adds_to_the_values_it_reads(model: nn.Module, data: list[Tensor], to: str) -> None:
    """By hand: the quantized layer on the float model's rounded values, against the float layer on the same."""
    prepared = prepared_of(model, data)
    quantized, simulated = fxq.convert(prepared, to=to), fxq.convert(prepared, to="fake_quant")
    row = compared(model, quantized, data[:1])["b.conv"]
    with torch.no_grad():
        read = simulated.a_relu_fake_quant(model.a(data[0])) if hasattr(simulated, "a_relu_fake_quant") else None
        if read is None:
            read = next(m for n, m in simulated.named_modules() if n == "relu_fake_quant")(model.a(data[0]))
        exact = model.b(read)
        qparams = quantized.quant_plan.qparams[fxq.TensorRef("relu_1")]
        layer = simulated.b.conv
        rounded = fxq.kernels.fake_quantize_per_tensor_affine(
            torch.relu(layer(read)), qparams.scale, qparams.zero_point, 0, 255
        )
    noise = (exact - rounded).square().sum() / exact.square().sum()
    assert row.isolated.sqnr == pytest.approx(-10 * noise.log10().item(), abs=0.2)


FAULTS: dict[str, tuple[Any, str]] = {
    "a scale of the result": (
        lambda q: q.b.conv.y_scale.mul_(2),
        "b.conv: the scale of its result is 2 times what was",
    ),
    "a scale of the weight": (
        lambda q: q.b.conv.weight_scale.mul_(3),
        "b.conv: the scale of its weight is 3 times what",
    ),
    "a scale of an input": (lambda q: q.b.conv.x_scale.mul_(0.5), "b.conv: the scale of its input x is 0.5 times what"),
    "a zero point": (lambda q: q.fc.x_zero_point.add_(9), "fc: the zero point of its input x is not what was planned"),
    "a weight": (lambda q: q.b.conv.weight.neg_(), "b.conv: its weight is not that of the float model, rounded: 9"),
    "a part of a weight": (
        lambda q: q.b.conv.weight[3].zero_(),
        "b.conv: its weight is not that of the float model, rounded: 12.",
    ),
    "the scale of the input": (
        lambda q: q.x_quantize.y_scale.mul_(4),
        "x: the scale of its result is 4 times what was",
    ),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_broken_int8_layer_is_named_first(model: nn.Module, data: list[Tensor], fault: str) -> None:
    int8 = fxq.convert(prepared_of(model, data))
    break_it, words = FAULTS[fault]
    break_it(int8)
    found = compared(model, int8, data)
    assert words in " ".join(str(found).split())
    worst, *others = found
    assert worst.name == words.partition(":")[0]
    assert worst.fault
    assert [row.fault for row in others] == [""] * len(others)
    assert max(row.harm for row in others) < SMALL  # none of the layers behind it is blamed


@pytest.mark.one_in(2)
@pytest.mark.parametrize("to", ["fake_quant", "reference"])
def test_a_broken_layer_of_a_simulation_is_named_first(model: nn.Module, data: list[Tensor], to: str) -> None:
    simulated = fxq.convert(prepared_of(model, data), to=to)
    broken = copy.deepcopy(simulated)
    qparams = dict(broken.named_modules())
    qparams[f"relu_1_{'fake_quant' if to == 'fake_quant' else 'quantize'}"]._buffers[
        "scale" if to == "fake_quant" else "y_scale"
    ].mul_(2)
    worst, *others = compared(model, broken, data)
    assert (worst.name, worst.fault.startswith("the scale of its result is 2 times")) == ("b.conv", True)
    assert not any(row.fault for row in others)
    simulated.c.conv.weight.data.add_(3)
    worst, *others = compared(model, simulated, data)
    assert worst.name == "c.conv"
    assert worst.fault.startswith("its weight is not that of the float model, rounded: ")
    assert max(row.harm for row in others) < SMALL


def test_a_wrong_range_from_calibration_is_named_first(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(
        model,
        data,
        fxq.QConfig(
            fxq.MinMaxObserver,
            fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric"),
        ),
    )
    prepared.observers["relu_1"].max_val.mul_(0.1)
    worst, *others = compared(model, fxq.convert(prepared), data)
    assert worst.name == "b.conv"
    assert worst.cause.startswith("its result is clipped: ")
    assert "lie beyond its range of 0 to " in worst.cause
    assert max(row.harm for row in others) < SMALL


@pytest.mark.filterwarnings("ignore:one channel reaches so far")
def test_a_channel_with_an_outlier_is_named_first(model: nn.Module, data: list[Tensor]) -> None:
    with torch.no_grad():
        model.b.bn.bias[5] = 1000.0  # type: ignore[union-attr, operator]
    worst, *_ = compared(model, fxq.convert(prepared_of(model, data)), data)
    assert worst.name == "b.conv"
    assert worst.cause.startswith("channel 5 reaches 1")
    assert "times the median channel in its result: the others share few steps" in worst.cause


def test_an_outlier_in_a_weight_of_one_scale_is_named_first(data: list[Tensor]) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    with torch.no_grad():
        model[0].weight[0].zero_()
        model[0].bias[0] = 0.0
        model[1].weight[3, 0] = 1000.0  # meets zeros alone
    per_tensor = fxq.QConfig(
        fxq.MinMaxObserver, fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric")
    )
    x = [torch.randn(64, 8)]
    worst, *_ = compared(model, fxq.convert(prepared_of(model, x, per_tensor)), x)
    assert worst.name == "1"
    assert worst.cause.startswith("channel 3 reaches 1000, ")
    assert worst.cause.endswith("in its weight: the others share few steps of one scale; use a scale per channel")


def test_few_bits_are_named(model: nn.Module, data: list[Tensor]) -> None:
    two = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, bits=2, qscheme="per_channel_symmetric")
    mapping = fxq.get_default_qconfig_mapping().set_module_name("c.conv", fxq.QConfig(fxq.HistogramObserver, two))
    worst, *_ = compared(model, fxq.convert(prepared_of(model, data, mapping)), data)
    assert (worst.name, worst.cause) == ("c.conv", "its weight has 2 bits")


@pytest.mark.slow
def test_a_model_that_was_pickled_or_loaded_into_a_shell(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    int8 = fxq.convert(prepared)
    expected = compared(model, int8, data)
    pickled = compared(model, pickle.loads(pickle.dumps(int8)), data)
    shell = fxq.convert(fxq.prepare(model, data[0]), allow_uncalibrated=True)
    shell.load_state_dict(int8.state_dict())
    for other in (pickled, compared(model, shell, data), compared(prepared, int8, data)):
        assert [(row.name, row.isolated, row.accumulated, row.line) for row in other] == [
            (row.name, row.isolated, row.accumulated, row.line) for row in expected
        ]


def trained(model: nn.Module, data: list[Tensor]) -> Any:
    qat = fxq.prepare_qat(copy.deepcopy(model).train(), data[0])
    optimizer = torch.optim.SGD(qat.parameters(), lr=0.05)
    for x in data:
        optimizer.zero_grad()
        qat(x).square().mean().backward()
        optimizer.step()
    return qat.eval()


def test_a_trained_model_against_what_was_trained(model: nn.Module, data: list[Tensor]) -> None:
    qat = trained(model, data)
    for quantized in (fxq.convert(qat), fxq.convert(qat, to="fake_quant"), qat):
        found = compared(qat, quantized, data)
        assert {"a.conv", "b.conv", "c.conv", "fc"} <= {row.name for row in found}
        assert not any(row.fault for row in found)
        assert found.output.sqnr > 20


def test_a_trained_model_against_what_it_was_before(model: nn.Module, data: list[Tensor]) -> None:
    found = compared(model, fxq.convert(trained(model, data)), data)
    assert "its weight is not that of the float model" in found.worst(1)[0].fault


class Mixed(nn.Module):
    """Units that give real numbers, values that only float operators make, attention, a layer without activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.attn = (
            nn.Linear(16, 16),
            nn.LayerNorm(16),
            nn.MultiheadAttention(16, 2, batch_first=True),
        )
        self.up, self.parts = nn.ConvTranspose1d(16, 16, 2, 2), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.a(x))
        y, _ = self.attn(x, x, x)
        left, right = self.parts(y + x).chunk(2, -1)
        return self.up((x + y).transpose(1, 2)).mean(-1) + torch.cat([left * right] * 4, -1).mean(1)


@pytest.mark.parametrize("to", MOST_FORMS)
def test_transformers_and_float_results(to: str) -> None:
    torch.manual_seed(0)
    model, data = Mixed().eval(), [torch.randn(3, 7, 16) for _ in range(2)]
    found = compared(model, fxq.convert(prepared_of(model, data), to=to), data)
    assert found.unmatched == ()
    assert {"a", "attn.q_proj", "attn.out_proj", "up", "parts"} <= {row.name for row in found}
    assert not any(row.fault for row in found)
    assert found["up"].weight is not None
    assert found["up"].weight.sqnr > 30
    assert max(row.harm for row in found) < 0.2


def test_weight_only_and_dynamic_layers() -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4)).eval(), [torch.randn(16, 8)]
    dynamic = fxq.convert(fxq.prepare(model, data[0], fxq.default_dynamic_qconfig))
    assert {row.name for row in compared(model, dynamic, data)} == {"0", "2"}
    weight_only = fxq.QConfig(
        fxq.PlaceholderObserver,
        fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric"),
    )
    found = compared(model, fxq.convert(fxq.prepare(model, data[0], weight_only)), data)
    assert found["0"].isolated.sqnr == pytest.approx(found["0"].accumulated.sqnr)
    assert found["2"].isolated.sqnr > 30


def test_a_layer_that_the_float_model_lacks_is_named(model: nn.Module, data: list[Tensor]) -> None:
    int8 = fxq.convert(prepared_of(model, data))

    class Other(Net):
        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.drop(self.c(self.b(self.a(x))).mean((2, 3))))

    other = Other().eval()
    other.load_state_dict(model.state_dict())
    found = compared(other, int8, data)
    assert [(each.unit, each.reason) for each in found.unmatched] == [
        ("add", "the float model has no value of the name 'add'; is it the model that was quantized?")
    ]
    assert "not compared: add: the float model has no value of the name 'add'" in str(found)


def test_values_of_another_shape_are_named(model: nn.Module, data: list[Tensor]) -> None:
    int8 = fxq.convert(prepared_of(model, data))
    model.fc = nn.Linear(8, 6)
    found = compared(model, int8, data)
    assert [(each.unit, each.reason) for each in found.unmatched] == [
        ("fc", "its value is [4, 5], that of the float model [4, 6]")
    ]


def test_what_cannot_be_compared_is_refused(model: nn.Module, data: list[Tensor]) -> None:
    prepared = prepared_of(model, data)
    int8 = fxq.convert(prepared)
    with pytest.raises(InputError) as refusal:
        compared(nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU()).eval(), int8, data)
    assert "no layer of the quantized model is found in the float model" in str(refusal.value)
    assert "relu: the float model has no value of the name 'relu'" in str(refusal.value)
    with pytest.raises(InputError, match="takes the float model first, then the quantized one"):
        compared(int8, model, data)
    with pytest.raises(InputError, match="takes a quantized model second"):
        compared(model, prepared, data)
    with pytest.raises(InputError, match="this model was not made by convert"):
        compared(model, model, data)
    with pytest.raises(InputError, match="takes the float model first"):
        compared(3, int8, data)
    with pytest.raises(CalibrationError, match="there is no data to compare on"):
        compared(model, int8, [])
    with pytest.raises(InputError, match="4 channels in"):
        compared(prepared, int8, [torch.randn(2, 4, 8, 8)])


def test_an_interrupt_gives_what_was_measured(model: nn.Module, data: list[Tensor]) -> None:
    def interrupted() -> Any:
        yield data[0]
        raise KeyboardInterrupt

    int8 = fxq.convert(prepared_of(model, data))
    assert compared(model, int8, interrupted()).batches == 1

    def at_once() -> Any:
        raise KeyboardInterrupt
        yield

    with pytest.raises(KeyboardInterrupt):
        compared(model, int8, at_once())


def test_nothing_of_a_batch_is_kept_and_the_models_stay_as_they_are(model: nn.Module, data: list[Tensor]) -> None:
    int8 = fxq.convert(prepared_of(model, data))
    before = {name: value.clone() for name, value in (*model.state_dict().items(), *int8.state_dict().items())}
    kept: list[Any] = []

    def stream() -> Any:
        for x in data:
            again = x.clone()
            kept.append(weakref.ref(again))
            yield again

    found = compared(model, int8, stream())
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3
    after = {**model.state_dict(), **int8.state_dict()}
    assert all(torch.equal(after[name], value) for name, value in before.items())
    assert found.batches == 3


def test_values_are_freed_while_a_batch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """However deep the model: the most tensors that the three runs hold at once are as many."""
    from fxquant.measure import runner

    def most(depth: int) -> int:
        torch.manual_seed(0)
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(depth)]).eval()
        x = [torch.randn(4, 8)]
        int8 = fxq.convert(prepared_of(model, x))
        sizes: list[int] = []
        step = runner.Stepper.step

        def counted(self: Any, node: Any) -> Any:
            value = step(self, node)
            sizes.append(len(self.env))
            return value

        monkeypatch.setattr(runner.Stepper, "step", counted)
        compared(model, int8, x)
        monkeypatch.undo()
        return max(sizes)

    assert most(12) == most(4)


class Drawing(nn.Module):
    """Drops values at random in evaluation, too."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(nn.functional.dropout(torch.relu(self.a(x)), 0.5, training=True))


@pytest.mark.parametrize("to", FORMS)
def test_both_models_draw_the_same_numbers(to: str) -> None:
    torch.manual_seed(0)
    model, data = Drawing().eval(), [torch.randn(64, 8)]
    converted = fxq.convert(prepared_of(model, 32 * data), to=to)  # the range, whatever is drawn
    before = torch.get_rng_state()
    found = compared(model, converted, data)
    assert torch.equal(torch.get_rng_state(), before)
    assert found.output.sqnr > 25  # 8 bits; of other numbers drawn it would be about 0


class Classes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x).argmax(-1)


def test_a_model_that_returns_no_real_numbers_is_told_so() -> None:
    model, data = Classes().eval(), [torch.randn(16, 8)]
    found = compared(model, fxq.quantize(model, data, progress=False), data)
    assert {row.name for row in found} == {"x", "fc"}
    assert "2 layers, 1 batch; what the model returns: no float values." in str(found)


def test_a_model_that_returns_zeros_is_told_so() -> None:
    model, data = nn.Sequential(nn.Linear(8, 4)).eval(), [torch.randn(16, 8)]
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    found = compared(model, fxq.quantize(model, data, progress=False), data)
    assert "1 batch; what the model returns: zeros alone." in str(found)
    assert "inf" not in str(found["0"].accumulated.sqnr)


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("columns", [16, 15])
def test_a_table_of_4_bits_is_blamed_for_its_noise(to: str, columns: int) -> None:
    torch.manual_seed(0)
    model, data = nn.Sequential(nn.Embedding(20, columns), nn.Linear(columns, 4)).eval(), [torch.arange(20)]
    config = fxq.get_default_qconfig_mapping()
    config.set_object_type(nn.Embedding, fxq.float_qparams_weight_only_qconfig_4bit)
    row = compared(model, fxq.convert(prepared_of(model, data, config), to=to), data)["0"]
    assert row.weight is not None
    assert row.weight.sqnr == pytest.approx(row.isolated.sqnr, abs=0.2)
    assert row.cause == "its weight has 4 bits"
    assert row.fault == ""
