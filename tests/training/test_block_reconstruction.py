"""``reconstruct``: errors fall, every form and every file has what was learned, and a resumed run is the same."""

from __future__ import annotations

import copy
import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError, PlanError, StateError, UnknownNameError
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.measure.parity import plan_of
from fxquant.nn.fake_quantize import FakeQuantizedWeight
from fxquant.plan.spec import TensorRef
from fxquant.training.block_learning import BlockLearning
from fxquant.training.block_parts import Masks, _RoundedInPart
from fxquant.training.block_table import LearnedBlock, LearnedBlocks
from fxquant.training.block_values import BlockValues
from fxquant.training.checkpoint import Checkpoint, Learned
from fxquant.training.resumable_run import Memory
from fxquant.training.weighted_units import Left

FEW = 10


class Net(nn.Module):
    """A residual block with a depthwise layer, one without a batch norm, a join, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6), nn.ReLU6())
        self.block = nn.Sequential(
            nn.Conv2d(6, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU6(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8),
            nn.ReLU6(),
            nn.Conv2d(8, 6, 1),
        )
        self.left, self.right = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 3, padding=1)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.block(x)
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], 1)
        return self.head(x.mean((2, 3)))


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Net()
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_var.uniform_(0.5, 2.0)
        return net.eval()


def images(seed: int) -> Tensor:
    return torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def data() -> list[Tensor]:
    return [images(seed) for seed in (1, 2)]


@functools.cache
def prepared(weight_bits: int = 3, activation_bits: int = 6, ends: int | None = None) -> fxq.Quantizer:
    qconfig = fxq.low_bit_qconfig(weight_bits, activation_bits, ends=ends)
    return fxq.calibrate(fxq.prepare(model(), images(1), qconfig), data(), progress=False)


def learned(start: fxq.Quantizer | None = None, **options: Any) -> fxq.Quantizer:
    options = {"iterations": FEW, "batch": 8, "progress": False} | options
    return fxq.reconstruct(prepared() if start is None else start, data(), **options)


def states_equal(one: fxq.Quantizer, other: fxq.Quantizer) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


@pytest.fixture(scope="module")
def result() -> fxq.Quantizer:
    return learned(iterations=200)


def test_errors_fall(result: fxq.Quantizer) -> None:
    rows = result.reconstruction.rows
    assert [row.block for row in rows] == ["stem.0", "block", "cat", "head"]
    assert [len(row.units) for row in rows] == [1, 3, 2, 1]
    assert all(row.learned <= row.before for row in rows)
    assert all(row.unchanged == (row.learned == row.before) for row in rows)
    assert sum(not row.unchanged for row in rows) >= 3
    x, net = (
        torch.cat([images(seed) for seed in range(20, 40)]),
        model(),
    )  # few images say nothing: noise is unlike on each
    with torch.no_grad():
        before, after = ((fxq.convert(each)(x) - net(x)).square().mean() for each in (prepared(), result))
    assert after < before


def test_all_forms_give_what_was_learned(result: fxq.Quantizer) -> None:
    x = images(7)
    simulated, reference = fxq.convert(result, to="fake_quant"), fxq.convert(result, to="reference")
    assert torch.equal(simulated(x), reference(x))
    assert fxq.convert(result, check=x).parity.breaches == ()
    qparams = simulated.quant_plan.qparams
    assert all(torch.equal(qparams[ref].scale, each.scale) for ref, each in result.learned_qparams.items())
    assert any(
        not torch.equal(each.scale, result.observers[ref.name].qparams().scale)
        for ref, each in result.learned_qparams.items()
    )
    biases = [module.bias for module in simulated.modules() if isinstance(module, FakeQuantizedWeight)]
    for layer in result.weight_layers.values():
        assert any(torch.equal(layer.learned_bias, bias) for bias in biases if bias.shape == layer.learned_bias.shape)


def test_the_float_model_is_known_still(result: fxq.Quantizer) -> None:
    table = fxq.compare(model(), fxq.convert(result, to="fake_quant"), [images(9)], progress=False)
    again = fxq.reconstruct(result, data(), iterations=1, blocks=["head"], progress=False)
    assert again.reconstruction.rows[0].before > 0
    assert len(table.rows) > 0


@pytest.mark.slow
def test_it_travels(result: fxq.Quantizer, tmp_path: Path) -> None:
    x = images(7)
    expected = fxq.convert(result)(x)
    for other in (copy.deepcopy(result), pickle.loads(pickle.dumps(result))):
        assert torch.equal(fxq.convert(other)(x), expected)
    fxq.save(result, tmp_path / "a.fxq")
    loaded = fxq.load(tmp_path / "a.fxq")
    assert torch.equal(fxq.convert(loaded)(x), expected)
    assert loaded.learned_qparams.keys() == result.learned_qparams.keys()
    other = copy.deepcopy(result)
    other.learned_qparams = {}
    for layer in other.weight_layers.values():
        layer.learned_bias.zero_()
    other.load_state_dict(result.state_dict())
    assert torch.equal(fxq.convert(other)(x), expected)
    with pytest.raises(StateError, match="weight_layers"):
        prepared().load_state_dict(result.state_dict())
    fxq.qparams(result).save(tmp_path / "qparams.json")
    applied = fxq.apply_qparams(result, tmp_path / "qparams.json")
    assert torch.equal(fxq.convert(applied)(x), expected)


def test_nothing_else_is_touched() -> None:
    start, batches = prepared(), data()
    before, copies, random = copy.deepcopy(start), [batch.clone() for batch in batches], torch.get_rng_state()
    found = fxq.reconstruct(start, batches, iterations=3, progress=False)
    assert torch.equal(torch.get_rng_state(), random)
    assert states_equal(start, before)
    assert all(map(torch.equal, batches, copies))
    assert torch.equal(fxq.convert(start)(images(1)), fxq.convert(before)(images(1)))
    assert start.reconstruction is None
    assert not start.learned_qparams
    assert found.graph_module is not start.graph_module


@pytest.mark.slow
def test_the_seed_decides_and_files_do_not() -> None:
    whole = learned(iterations=4)
    assert states_equal(learned(iterations=4, memory=0), whole)
    assert not states_equal(learned(iterations=4, seed=1), whole)


@pytest.mark.slow
def test_an_interrupted_run_goes_on_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = learned(iterations=6)
    save = Checkpoint.save

    def stopped(self: Checkpoint, index: int, found: Learned) -> None:
        if index == 2:
            raise KeyboardInterrupt
        save(self, index, found)

    monkeypatch.setattr(Checkpoint, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        learned(iterations=6, checkpoint=tmp_path / "run")
    monkeypatch.undo()
    assert len(list((tmp_path / "run").glob("*.pt"))) == 2
    resumed = learned(iterations=6, checkpoint=tmp_path / "run")
    assert states_equal(resumed, whole)
    assert resumed.reconstruction == whole.reconstruction
    assert states_equal(learned(iterations=6, checkpoint=tmp_path / "run"), whole)
    with pytest.raises(InputError, match="the checkpoint is of another run: choices differ"):
        learned(iterations=7, checkpoint=tmp_path / "run")


def test_a_block_whose_error_does_not_fall_stays_as_it_was() -> None:
    start = prepared()
    found = learned(start, iterations=1, learning_rate=0.0, step_rate=30.0, bias_rate=3.0)
    rows = found.reconstruction.rows
    assert all(row.unchanged for row in rows)
    assert states_equal(found, start)
    assert torch.equal(fxq.convert(found)(images(1)), fxq.convert(start)(images(1)))
    assert str(found.reconstruction).count("as before") == len(rows)


@pytest.mark.slow
def test_which_scales_are_learned_and_which_weights() -> None:
    rows = learned(prepared(2, 8), iterations=2).reconstruction.rows
    assert [row.scales for row in rows] == [0, 0, 0, 0]
    rows = learned(prepared(2, 8), iterations=2, steps=True).reconstruction.rows
    assert [row.scales for row in rows] == [2, 3, 1, 1], "the input is one, and the branches of the join share one"
    found = learned(prepared(2, 6, ends=8), iterations=2)
    assert {row.block for row in found.reconstruction} == {"block", "cat"}
    assert "stem_2 was not learned: its weight has 8 bits or more" in str(found.reconstruction)
    rows = learned(prepared(8, 6), iterations=2).reconstruction.rows
    assert [row.weights for row in rows] == [0, 0, 0, 0]


def test_scales_that_are_powers_of_two_stay() -> None:
    scheme = fxq.QScheme(bits=6, signed=False, power_of_two=True)
    weight = prepared().config.global_qconfig.weight
    qconfig = fxq.QConfig(activation=fxq.MinMaxObserver.with_args(scheme=scheme), weight=weight)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).eval()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    start = fxq.calibrate(fxq.prepare(net, x, qconfig), [x], progress=False)
    found = fxq.reconstruct(start, [x], iterations=3, steps=True, progress=False)
    assert not found.learned_qparams
    scales = [each.scale for each in plan_of(fxq.convert(found)).qparams.values() if each.scheme.power_of_two]
    assert len(scales) >= 2
    assert all(torch.equal(each.log2().round(), each.log2()) for each in scales)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_layers_of_half_precision_learn_their_biases(dtype: torch.dtype) -> None:
    """The smallest divisor of Adam is 0 in float16: what is learned is float32."""
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4)).to(dtype).eval()
    batch = torch.randn(64, 8, generator=generator).to(dtype)
    start = fxq.calibrate(fxq.prepare(net, batch, fxq.low_bit_qconfig(4, 4, ends=None)), [batch], progress=False)
    found = fxq.reconstruct(start, [batch], iterations=30, progress=False)
    assert all(not row.unchanged and row.learned < row.before for row in found.reconstruction.rows)
    biases = [layer.bias for layer in fxq.convert(found, to="fake_quant").children() if hasattr(layer, "bias")]
    assert [bias.dtype for bias in biases] == [dtype, dtype]
    assert all(bias.isfinite().all() for bias in biases)
    assert not any(torch.equal(bias, layer.bias) for bias, layer in zip(biases, (net[0], net[2]), strict=True))


def test_blocks_by_choice() -> None:
    units = learned(iterations=2, blocks="unit").reconstruction.rows
    assert [len(row.units) for row in units] == [1] * 7
    found = learned(iterations=2, blocks=["stem", "head"])
    assert [row.block for row in found.reconstruction] == ["stem", "head"]
    assert "was not learned: it lies in none of the blocks" in str(found.reconstruction)


@pytest.mark.slow
def test_weights_that_round_in_their_own_way_go_on() -> None:
    first = fxq.adaround(prepared(), data(), iterations=2, progress=False)
    found = learned(first)
    assert all(row.learned <= row.before for row in found.reconstruction)
    assert fxq.convert(found, check=images(1)).parity.breaches == ()


def test_batches_that_cannot_be_drawn_item_by_item() -> None:
    class Mixed(nn.Module):
        """Items of a batch are put together on the way."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 4)

        def forward(self, x: Tensor) -> Tensor:
            x = F.relu(self.a(x))
            return self.b(x - x.mean(0, keepdim=True))

    batches = [torch.randn(5, 4, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]
    start = fxq.prepare(Mixed().eval(), batches[0], fxq.low_bit_qconfig(3, 4, ends=None))
    found = fxq.reconstruct(fxq.calibrate(start, batches, progress=False), batches, iterations=5, progress=False)
    assert all(row.learned <= row.before for row in found.reconstruction)


def test_memory_is_bounded() -> None:
    values: dict[Any, Tensor] = {}
    with Memory(1 << 14) as memory:
        batches = [torch.randn(16, 8, 8, 8) for _ in range(4)]
        node: Any = nn.Module()
        node.op, node.end, node.nodes, node.read = "call_module", node, (node,), (node,)
        stored = BlockValues(node, [{node: each} for each in batches], [{}] * 4, batches, True, memory)
        assert memory.held <= 1 << 14
        assert memory.files == 2
        for part in stored.all(16):
            values[len(values)] = part.target
        assert torch.equal(torch.cat(list(values.values())), torch.cat(batches))
        drawn = stored.draw(5, torch.Generator().manual_seed(0))
        assert torch.equal(drawn.target, drawn.quantized[node])
        assert drawn.target.is_contiguous(memory_format=torch.channels_last)
    assert not drawn.exact


def test_values_that_are_dropped_pass_and_the_others_move_the_scale() -> None:
    x = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0)).requires_grad_()
    scale, zero_point = torch.tensor([0.3], requires_grad=True), torch.tensor([4.0])
    mask = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    y = _RoundedInPart.apply(x, scale, zero_point, mask, 0, 15)
    weight = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    (y * weight).sum().backward()
    of_x, of_scale = x.grad, scale.grad
    x.grad = scale.grad = None
    whole = fxq.kernels.fake_quantize_learnable_per_tensor_affine(x, scale, zero_point, 0, 15)
    expected = torch.where(mask, whole, x)
    (expected * weight).sum().backward()
    assert torch.equal(y, expected)
    assert torch.equal(of_x, x.grad)
    assert torch.allclose(of_scale, scale.grad)


@pytest.mark.slow
def test_a_step_of_several_parts_is_that_of_one_but_for_its_last_bits() -> None:
    """Without values that are drawn, which each part draws for itself."""
    one, three = (learned(prepared(3, 8), drop=0.0, iterations=3, parts=parts) for parts in (1, 3))
    assert not states_equal(one, three)
    first, second = one.state_dict(), three.state_dict()
    for name in (name for name in first if name.endswith("weight_fake_quant.V")):
        torch.testing.assert_close(first[name], second[name], atol=1e-3, rtol=0)
    assert str(BlockLearning()) == str(BlockLearning(parts=1))  # checkpoints of earlier releases go on
    assert "parts=3" in str(BlockLearning(parts=3))


def test_masks_have_their_share_and_the_layout_of_the_values() -> None:
    masks = Masks(0.25, torch.Generator().manual_seed(0))
    x = torch.zeros(8, 16, 20, 20).to(memory_format=torch.channels_last)
    mask = masks.draw(x)
    assert mask.stride() == x.stride()
    assert abs(float(mask.float().mean()) - 0.75) < 0.01
    assert not torch.equal(masks.draw(x), mask)


def test_rates() -> None:
    assert BlockLearning(iterations=140).rates() == (0.1, pytest.approx(1.5 / 140), 0.003)
    assert BlockLearning(iterations=10_000).rates() == (0.03, 0.001, 0.003)
    assert BlockLearning(learning_rate=0.5, step_rate=0.25, bias_rate=0.125).rates() == (0.5, 0.25, 0.125)
    assert [BlockLearning().drop_for(bits) for bits in (4, 8)] == [0.5, 0.0]
    assert BlockLearning(drop=0.25).drop_for(8) == 0.25


def test_the_table_says_what_was_gained() -> None:
    rows = (
        LearnedBlock("features.1.conv", ("a", "b"), 1234, 3, 0.5, 0.1, False),
        LearnedBlock("fc", ("fc",), 10, 0, 0.25, 0.25, True),
    )
    assert str(LearnedBlocks(rows, (Left("table", "a table is read, not multiplied"),))).splitlines() == [
        "block              layers    weights    scales    error before    learned       part",
        "---------------  --------  ---------  --------  --------------  ---------  ---------",
        "features.1.conv         2      1,234         3             0.5        0.1        20%",
        "fc                      1         10         0            0.25       0.25  as before",
        "scales of activations; errors are mean squares of what a block gives",
        "table was not learned: a table is read, not multiplied",
    ]


WRONG: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "iterations": ({"iterations": 0}, InputError, r"iterations is out of range[\s\S]*got: +0[\s\S]*from 1 on"),
    "batch": ({"batch": 1.5}, InputError, "batch is out of range"),
    "rate": ({"step_rate": -1.0}, InputError, r"step_rate is out of range[\s\S]*a number from 0 on"),
    "drop": ({"drop": 1.0}, InputError, r"drop is no probability[\s\S]*expected: \"auto\", or a number in \[0, 1\)"),
    "steps": ({"steps": "yes"}, InputError, r"steps is no answer[\s\S]*got: +'yes'"),
    "seed": ({"seed": 0.5}, InputError, r"seed is no whole number[\s\S]*got: +0.5"),
    "memory": ({"memory": -1}, InputError, "memory is no number of bytes"),
    "choice": ({"blocks": "all"}, UnknownNameError, r"unknown choice of blocks[\s\S]*'auto', 'unit', or a list"),
    "names": ({"blocks": [3]}, InputError, r"blocks are no paths of modules[\s\S]*got: +\[3\]"),
    "no names": ({"blocks": []}, InputError, "blocks are no paths of modules"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_asked_for_must_make_sense(name: str) -> None:
    options, kind, message = WRONG[name]
    with pytest.raises(kind, match=message):
        learned(**options)


def test_what_there_is_must_be_there() -> None:
    with pytest.raises(InputError, match="reconstruct takes what prepare gave"):
        fxq.reconstruct(nn.Linear(2, 2), data())  # type: ignore[arg-type]
    with pytest.raises(CalibrationError, match="the calibration data holds no values"):
        fxq.reconstruct(prepared(), [images(1)[:0]], progress=False)
    with pytest.raises(CalibrationError, match="have no range"):
        fxq.reconstruct(fxq.prepare(model(), images(1), fxq.low_bit_qconfig(3, 4)), data(), progress=False)
    with pytest.raises(PlanError, match=r"nothing can be learned[\s\S]*its weight has 8 bits or more"):
        learned(prepared(8, 8))


def test_a_bar_shows_the_steps_of_all_blocks(capsys: pytest.CaptureFixture[str]) -> None:
    learned(iterations=2, progress=True)
    assert "reconstruct: 100%" in capsys.readouterr().err
    learned(iterations=2)
    assert capsys.readouterr().err == ""


def test_learned_qparams_are_those_of_values_that_are_observed(result: fxq.Quantizer) -> None:
    assert all(isinstance(ref, TensorRef) and ref.kind == "activation" for ref in result.learned_qparams)
    simulated = fxq.convert(result, to="fake_quant")
    modules = {name: each for name, each in simulated.named_modules() if isinstance(each, StaticFakeQuantize)}
    for ref, qparams in result.learned_qparams.items():
        if f"{ref.name}_fake_quant" in modules:
            assert torch.equal(modules[f"{ref.name}_fake_quant"].scale, qparams.scale)
