"""``gptq``: errors never rise, integers stay as they were found in all forms and files, and a run can be resumed."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, PlanError, UnknownNameError
from fxquant.nn.conv_transpose import mirrored_weight
from fxquant.training import gptq_weight
from fxquant.training.checkpoint import Checkpoint
from fxquant.training.input_products import InputProducts

WEIGHT = fxq.PerChannelMinMaxObserver.with_args(ch_axis=0, dtype=torch.int8, qscheme="per_channel_symmetric", bits=4)
QCONFIG = fxq.QConfig(activation=fxq.MinMaxObserver.with_args(dtype=torch.uint8), weight=WEIGHT, correct_bias=True)
PER_TENSOR = fxq.QConfig(
    activation=fxq.MinMaxObserver.with_args(dtype=torch.uint8),
    weight=fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric", bits=4),
)


class Residual(nn.Module):
    """Convolutions of all kinds, one after another, and one transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depthwise = nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
        self.shortcut = nn.Conv2d(8, 8, 1, stride=2)
        self.grouped = nn.Conv2d(8, 12, 3, padding=1, groups=2)
        self.up = nn.ConvTranspose2d(12, 6, 2, stride=2)
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = F.relu6(self.depthwise(x) + self.shortcut(x))
        x = self.up(torch.relu(self.grouped(x)))
        return self.head(x.mean((2, 3)))


class Shared(nn.Module):
    """A linear layer that is called twice, beside another."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.gelu(self.layer(F.gelu(self.layer(x)))))


def data(kind: type[nn.Module] = Residual) -> list[Tensor]:
    shape = (6, 3, 8, 8) if kind is Residual else (40, 8)
    return [torch.randn(shape, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def prepared(kind: type[nn.Module] = Residual, qconfig: Any = QCONFIG) -> fxq.Quantizer:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = kind().eval()
    batches = data(kind)
    return fxq.calibrate(fxq.prepare(model, batches[0], qconfig), batches, progress=False)


def rounded(kind: type[nn.Module] = Residual, qconfig: Any = QCONFIG, **options: Any) -> fxq.Quantizer:
    return fxq.gptq(prepared(kind, qconfig), data(kind), progress=False, **options)


def states_equal(one: Any, other: Any) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


CASES = {
    "W4A8": (Residual, QCONFIG),
    "W4A8 per tensor": (Residual, PER_TENSOR),
    "weight only": (Shared, fxq.weight_only_qconfig(bits=4, group_size=None)),
    "weight only in groups": (Shared, fxq.weight_only_qconfig(bits=4, group_size=4)),
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("case", CASES)
def test_errors_fall_and_all_forms_take_the_integers(case: str, tmp_path: Path) -> None:
    kind, qconfig = CASES[case]
    result = rounded(kind, qconfig)
    table = result.reconstruction
    assert table is not None
    assert all(row.rounded <= row.nearest for row in table)
    assert sum(row.part < 0.9 for row in table) >= len(table) / 2
    assert len(table) == len(result.weight_layers) == (6 if kind is Residual else 3)

    x = data(kind)[0]
    simulated, reference = fxq.convert(result, to="fake_quant"), fxq.convert(result, to="reference")
    assert torch.equal(simulated(x), reference(x))
    int8 = fxq.convert(result, check=x)
    assert int8.parity.breaches == ()
    for node in int8.graph.nodes:
        if node.name in result.weight_layers:
            known = result.weight_layers[node.name].weight_fake_quant.integers_of_weight
            expected = mirrored_weight(known, 1) if node.name == "up" else known
            assert torch.equal(int8.get_submodule(node.target).unpacked_weight(), expected)

    assert torch.equal(fxq.convert(pickle.loads(pickle.dumps(result)))(x), int8(x))
    for saved in (result, int8, simulated):
        fxq.save(saved, tmp_path / "model.fxq", overwrite=True)
        loaded = fxq.load(tmp_path / "model.fxq")
        again = fxq.convert(loaded) if isinstance(loaded, fxq.Quantizer) else loaded
        assert torch.equal(again(x), saved(x) if saved is simulated else int8(x))


def test_outputs_are_nearer_to_float_and_nothing_else_is_touched() -> None:
    start = prepared(Shared, CASES["weight only"][1])
    kept = copy.deepcopy(start.state_dict())
    result = fxq.gptq(start, data(Shared), progress=False)
    assert all(torch.equal(value, start.state_dict()[name]) for name, value in kept.items())
    assert start.reconstruction is None
    x = torch.cat(data(Shared))
    exact = start.graph_module(x).detach()
    noise = [float((fxq.convert(each)(x) - exact).square().sum()) for each in (start, result)]
    assert noise[1] < 0.7 * noise[0]


@pytest.mark.slow
def test_the_table_says_what_is_left() -> None:
    text = str(rounded().reconstruction)
    assert text.splitlines()[0].split() == ["unit", "pattern", "inputs", "nearest", "rounded", "part", "note"]
    assert "first_1 conv_bn_act 27" in " ".join(text.split()) or "27" in text
    assert "rounded as without" not in text
    model, batches = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 4)).eval(), [torch.arange(10)]
    start = fxq.prepare(model, batches[0], fxq.get_default_qconfig_mapping())
    result = fxq.gptq(fxq.calibrate(start, batches, progress=False), batches, progress=False)
    assert "is rounded as without gptq: a table is read, not multiplied" in str(result.reconstruction)


def test_transposed_convolutions_are_rounded_with_scales_of_their_own() -> None:
    rows = {row.unit: row for row in rounded().reconstruction}
    assert rows["up"].inputs == 12 * 4
    assert rows["up"].part < 0.9


def test_biases_of_rounded_layers_are_not_corrected_and_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq_weight, "MOST_INPUTS", 40)
    result = rounded()
    plan = fxq.convert(result).quant_plan
    assert [unit.root for unit in plan.units if "mean" in unit.roles] == ["up"]
    simulated = fxq.convert(result, to="fake_quant")
    assert torch.equal(simulated.get_submodule("head").bias, result.graph_module.get_submodule("head").bias)


def test_each_call_of_a_layer_has_integers_of_its_own() -> None:
    result = rounded(Shared, CASES["weight only in groups"][1])
    first, second = (result.weight_layers[name].weight_fake_quant for name in ("layer", "layer_1"))
    assert not torch.equal(first.integers_of_weight, second.integers_of_weight)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Residual, pytest.param(Shared, marks=pytest.mark.slow)])
def test_values_in_files_and_interrupts_give_the_same_bits(
    kind: type[nn.Module], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    qconfig = QCONFIG if kind is Residual else CASES["weight only in groups"][1]
    whole = rounded(kind, qconfig)
    assert states_equal(rounded(kind, qconfig, memory=0), whole)
    add, calls = InputProducts.add, []

    def stopped(self: InputProducts, x: Tensor) -> None:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        add(self, x)

    monkeypatch.setattr(InputProducts, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        rounded(kind, qconfig, checkpoint=tmp_path / "run")
    monkeypatch.undo()
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["0000.pt", "identity.json"]
    resumed = rounded(kind, qconfig, checkpoint=tmp_path / "run")
    assert states_equal(resumed, whole)
    assert resumed.reconstruction == whole.reconstruction
    monkeypatch.setattr(Checkpoint, "save", None)  # nothing is found anew
    assert states_equal(rounded(kind, qconfig, checkpoint=tmp_path / "run"), whole)
    with pytest.raises(InputError, match="the checkpoint is of another run: choices differ"):
        rounded(kind, qconfig, checkpoint=tmp_path / "run", damping=0.02)


@pytest.mark.parametrize("damping", [1, np.float32(0.5), np.float64(0.5)])
def test_a_checkpoint_takes_numbers_of_all_kinds(damping: Any, tmp_path: Path) -> None:
    case = CASES["weight only"]
    first = rounded(*case, damping=damping, checkpoint=tmp_path)
    again = rounded(*case, damping=float(damping), checkpoint=tmp_path)
    assert states_equal(first, again)
    assert [row.note for row in again.reconstruction] == [row.note for row in first.reconstruction]


def test_an_output_of_too_many_inputs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq_weight, "MOST_INPUTS", 30)
    table = rounded().reconstruction
    assert "relu is rounded as without gptq: an output has 36 inputs, more than 30" in str(table)
    monkeypatch.setattr(gptq_weight, "MOST_INPUTS", 1)
    with pytest.raises(PlanError, match=r"(?s)no weight can be rounded by gptq.*head: an output has 6 inputs"):
        rounded()


def test_what_cannot_be_solved_is_rounded_to_nearest_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gptq_weight, "round_columns", lambda *_: None)
    table = rounded(Shared, CASES["weight only"][1]).reconstruction
    assert table is not None
    assert {row.note for row in table} == {"to nearest: the products of its inputs cannot be factored"}
    monkeypatch.undo()
    batches = data(Shared)
    batches[0][0, 0] = torch.inf
    result = fxq.gptq(prepared(Shared, CASES["weight only"][1]), batches, progress=False)
    assert {row.note for row in result.reconstruction} == {"to nearest: some of its inputs are inf or NaN"}
    plain, x = prepared(Shared, CASES["weight only"][1]), data(Shared)[1]
    assert torch.equal(fxq.convert(result)(x), fxq.convert(plain)(x))


def test_bad_input() -> None:
    start, batches = prepared(), data()
    for bad in (0, -1, 1.5, "a", True, float("nan")):
        with pytest.raises(InputError, match=r"(?s)damping is out of range.*a number above 0, up to 1"):
            fxq.gptq(start, batches, damping=bad)  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match=r"(?s)unknown order of inputs.*activation, given.*did you mean"):
        fxq.gptq(start, batches, order="activations")
    with pytest.raises(InputError, match="gptq takes what prepare gave"):
        fxq.gptq(fxq.convert(start), batches)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="gptq takes what prepare gave"):
        fxq.gptq(fxq.prepare_qat(Residual(), batches[0]), batches)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="memory is no number of bytes"):
        fxq.gptq(start, batches, memory=-1)
    with pytest.raises(CalibrationError, match="no batch"):
        fxq.gptq(start, [], progress=False)
    with pytest.raises(CalibrationError, match=r"(?s)the calibration data holds no values"):
        fxq.gptq(start, [torch.zeros(0, 3, 8, 8)], progress=False)
    with pytest.raises(
        InputError, match=r"(?s)batch 0: the layer multiplies another number of channels.*3 in dimension"
    ):
        fxq.gptq(start, [torch.zeros(1, 2, 8, 8)], progress=False)
    with pytest.raises(PlanError, match="KnownIntegers has integers of its own"):
        fxq.gptq(rounded(Shared, CASES["weight only"][1]), data(Shared))
    with torch.no_grad():
        start.graph_module.get_submodule("head").weight[0, 0] = torch.nan  # type: ignore[operator]
    changed = pytest.warns(fxq.FxQuantWarning, match="weights were changed after calibration")
    with changed, pytest.raises(CalibrationError, match=r"(?s)a weight holds values that are not finite.*head"):
        fxq.gptq(start, batches, progress=False)
