"""The contract between int8 operators, integer reference and simulation, measured on whole models."""

from __future__ import annotations

import html

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.backends.base import BACKENDS, Lower, LoweringRule
from fxquant.errors import FxQuantWarning, InputError, LoweringError
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.graph.module import set_metadata
from fxquant.measure.noise import dequantized, integers, sqnr
from fxquant.measure.parity import measure_parity
from fxquant.measure.parity_table import LEAST_OUTPUT, LEGEND, NO_REFERENCE, Parity
from tests.outputs import rounding_outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.fc = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn(self.conv(x)))
        z = torch.cat([torch.max_pool2d(y, 2), torch.nn.functional.avg_pool2d(y, 2)], 1)
        return self.fc((z * z).mean((2, 3)).view(-1, 2, 8).mean(1) + 1.0)


@pytest.fixture
def prepared() -> fxq.Quantizer:
    torch.manual_seed(0)
    x = torch.randn(4, 3, 8, 8)
    return fxq.calibrate(fxq.prepare(Net().eval(), x, rounding_outputs()), [x], progress=False)


def test_every_unit_keeps_the_contract(prepared, capsys):
    x = torch.randn(2, 3, 8, 8)
    int8 = fxq.convert(prepared, check=x)
    assert [row.pattern for row in int8.parity] == [
        "conv_bn_act",
        "max_pool2d",
        "avg_pool2d",
        "cat",
        "mul",
        "mean",
        "mean",
        "add_number",
        "linear",
    ]
    assert int8.parity.breaches == ()
    print(int8.parity)
    assert capsys.readouterr().out == f"{int8.parity}\n"  # and nothing while it was measured
    (output,) = int8.parity.outputs
    assert (output.name, output.sqnr) == ("output", pytest.approx(sqnr(prepared(x), int8(x)), abs=0.01))
    said = f"9 units measured, 0 break the contract; output has {output.sqnr:.1f} dB."
    assert str(int8.parity).endswith(said)
    shown = int8.parity._repr_html_()
    assert shown.count("<tr>") == 10
    assert said in shown


class Normed(nn.Module):
    """A layer whose result only a float operator reads."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(64, 32), nn.RMSNorm(32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.norm(torch.relu(self.a(x))))


@pytest.fixture
def forms() -> tuple[torch.fx.GraphModule, torch.fx.GraphModule, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(16, 64)
    prepared = fxq.calibrate(fxq.prepare(Normed().eval(), x), [x], progress=False)
    return fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), x


def test_real_numbers_are_compared_as_such(forms):
    row, last = measure_parity(*forms[:2], (forms[2],))
    assert (row.unit, row.gives, last.gives) == ("relu", "float", "float")
    assert (row.native_equal, row.native_steps, row.simulation_equal, row.simulation_far) == (1.0, 0, 1.0, 0)
    assert row.breach == ""


def test_real_numbers_that_are_off_are_a_breach(forms, monkeypatch):
    int8, simulated, x = forms
    right = int8.a.forward
    monkeypatch.setattr(int8.a, "forward", lambda x: right(x) * 1.0001)
    (breach,) = measure_parity(int8, simulated, (x,)).breaches
    assert (breach.unit, breach.breach) == ("relu", "the int8 operator differs from the integer reference")
    monkeypatch.undo()
    simulated.a.bias.data.add_(1e-3)
    (breach,) = measure_parity(int8, simulated, (x,)).breaches
    assert (breach.unit, breach.breach) == ("relu", "the simulation differs from the integer reference")


def test_a_breach_names_its_unit(prepared):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    int8.fc.weight.add_(3)
    int8.fc.invalidate()
    (breach,) = measure_parity(int8, simulated, (torch.randn(2, 3, 8, 8),)).breaches
    assert breach.unit == "fc"
    assert breach.breach == "the simulation differs from the integer reference"
    assert breach.native_steps <= 1


def test_a_wrong_operator_is_told_from_a_wrong_simulation(prepared, monkeypatch):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    right = int8.fc.forward
    monkeypatch.setattr(int8.fc, "forward", lambda x: right(x) ^ 4)
    (breach,) = measure_parity(int8, simulated, (torch.randn(2, 3, 8, 8),)).breaches
    assert (breach.unit, breach.breach) == ("fc", "the int8 operator differs from the integer reference")


@pytest.mark.parametrize(("places", "steps", "broken"), [(1, 1, False), (2, 1, True), (1, 2, True)])
def test_of_a_small_result_one_value_may_round_the_other_way(prepared, monkeypatch, places, steps, broken):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    right = int8.fc.forward

    def off(x: Tensor) -> Tensor:
        y = right(x)
        y[0, :places] ^= steps
        return y

    monkeypatch.setattr(int8.fc, "forward", off)
    breaches = measure_parity(int8, simulated, (torch.randn(2, 3, 8, 8),)).breaches
    assert [row.unit for row in breaches] == ["fc"] * broken


def test_convert_warns_of_a_breach(prepared, monkeypatch):
    monkeypatch.setattr(fxq.nn.QuantizedMean, "reference", lambda self, x: self.forward(x) ^ 4)
    with pytest.warns(FxQuantWarning) as caught:
        fxq.convert(prepared, check=torch.randn(2, 3, 8, 8))
    assert {str(warning.message).splitlines()[1] for warning in caught} == {"  at:       mean", "  at:       mean_1"}


def test_only_converted_models_can_be_measured(prepared):
    with pytest.raises(InputError) as caught:
        measure_parity(prepared.graph_module, prepared.graph_module, ())
    assert str(caught.value) == "this model was not made by convert\n  got:      Net"


def test_a_simulation_that_rounds_to_another_grid_is_found(prepared):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    for module in simulated.modules():
        if isinstance(module, StaticFakeQuantize) and module.scale.numel() == 1:
            module.scale.mul_(8)
    parity = measure_parity(int8, simulated, (torch.randn(2, 3, 8, 8),))
    assert {row.unit for row in parity.breaches} >= {"relu", "fc", "mean"}


def test_a_simulation_that_forgets_to_round_is_found(prepared):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    rounding = next(node for node in simulated.graph.nodes if node.target == "fc_fake_quant")
    rounding.replace_all_uses_with(rounding.args[0])
    simulated.graph.erase_node(rounding)
    assert [row.unit for row in measure_parity(int8, simulated, (torch.randn(2, 3, 8, 8),)).breaches] == ["fc"]


def test_keyword_inputs_are_bound_by_name():
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x: Tensor, scale: float = 1.0, y: Tensor | None = None) -> Tensor:
            return self.a(x) + self.b(y) * scale

    x = torch.rand(4, 3)
    prepared = fxq.prepare(Two().eval(), x, example_kwargs={"y": x})
    fxq.calibrate(prepared, [{"x": x, "y": x}], progress=False)
    assert fxq.convert(prepared, check={"x": x, "y": x}).parity.breaches == ()


def test_a_model_without_its_units_is_refused(prepared):
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    bare = torch.fx.GraphModule(nn.Module(), torch.fx.Graph())
    bare.graph.output(None)
    bare.recompile()
    set_metadata(bare, quant_plan=int8.quant_plan)
    with pytest.raises(InputError) as caught:
        measure_parity(bare, simulated, ())
    assert str(caught.value).startswith("no unit of the plan is found in the int8 model")


def test_a_model_whose_units_are_all_dead_code():
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x):
            self.linear(x)
            return torch.sin(x)

    x = torch.rand(2, 4)
    int8 = fxq.convert(fxq.prepare(Unused().eval(), x).calibrate([x], progress=False), check=x)
    assert int8.parity.rows == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_models_of_any_precision_keep_the_contract(dtype):
    torch.manual_seed(0)
    model, x = Net().eval().to(dtype), torch.randn(4, 3, 8, 8, dtype=dtype)
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False), check=x)
    assert len(int8.parity.rows) == 9
    assert int8.parity.breaches == ()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_real_numbers_of_short_dtypes_are_compared_as_exactly_as_these_are(dtype):
    torch.manual_seed(0)
    model, x = Normed().eval().to(dtype), torch.randn(16, 64, dtype=dtype)
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False), check=x)
    assert "float" in {row.gives for row in int8.parity}
    assert int8.parity.breaches == ()


class Tails(nn.Module):
    """Two results: of one, all but one value round to zero, since that one is a thousand times larger."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"boxes": self.a(x), "scores": self.b(torch.relu(x)), "classes": self.a(x).argmax(1)}


def test_the_noise_of_each_result_is_told_and_marked():
    torch.manual_seed(0)
    x = torch.rand(8, 4)
    quantizer = fxq.calibrate(fxq.prepare(Tails().eval(), x), [x], progress=False)
    clean = fxq.convert(quantizer, check=x).parity
    assert [each.name for each in clean.outputs] == ["output['boxes']", "output['scores']"]
    assert clean.noisy_outputs == ()
    noisy = fxq.convert(quantizer, check=1000 * x).parity  # far beyond what was calibrated
    (boxes, scores) = noisy.outputs
    assert boxes.sqnr < LEAST_OUTPUT > scores.sqnr
    assert noisy.noisy_outputs == (boxes, scores)
    assert str(noisy).endswith(f"; {boxes}; {scores}.")
    assert str(boxes) == f"output['boxes'] has {boxes.sqnr:.1f} dB, mostly noise"
    assert fxq.compare(quantizer, fxq.convert(quantizer), [1000 * x], progress=False).rows


def test_of_a_result_that_is_zero_throughout_nothing_can_be_said():
    """As torchvision's vision transformers begin: their last layer is 0 until it is trained."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    nn.init.zeros_(model[2].weight)
    nn.init.zeros_(model[2].bias)
    x = torch.rand(8, 4)
    parity = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False), check=x).parity
    assert [row.noise.isolated == row.noise.isolated for row in parity] == [True, False]  # NaN is not equal to itself
    assert [row.unit for row in parity.worst()] == ["_1"]
    shown = str(parity)
    assert "inf" not in shown
    assert shown.endswith("; output is 0 throughout on this batch, of which nothing can be said.")


class Centred(nn.Module):
    """A mean of what was normalized: 0 but for the last bits of float32, of which its range is made."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 1)

    def forward(self, x):
        y = torch.nn.functional.layer_norm(x, (4,))
        return self.conv(torch.nn.functional.adaptive_avg_pool2d(y, 1)), y.mean(3)


def test_where_values_cancel_out_float32_tells_no_steps_apart():
    torch.manual_seed(0)
    x = torch.randn(1, 2, 1, 4)
    prepared = fxq.calibrate(fxq.prepare(Centred().eval(), x, rounding_outputs()), [x], progress=False)
    parity = measure_parity(fxq.convert(prepared), fxq.convert(prepared, to="fake_quant"), (x,))
    assert [row.pattern for row in parity] == ["adaptive_avg_pool2d", "conv", "mean"]
    assert parity.breaches == ()


def test_html_has_the_legend_and_a_table_without_rows_is_true(prepared: fxq.Quantizer) -> None:
    shown = fxq.convert(prepared, check=torch.randn(2, 3, 8, 8)).parity._repr_html_()
    assert LEGEND.strip()
    assert all(html.escape(line) in shown for line in LEGEND.splitlines())
    assert Parity(())


class OwnLinear(nn.Module):
    """What somebody's back end may run: integers in, integers out, and no reference."""

    def __init__(self, unit: fxq.UnitView, off: int = 0) -> None:
        super().__init__()
        self.unit, self.off = unit, off

    def forward(self, x: Tensor) -> Tensor:
        layer, qparams = self.unit.modules["linear"], self.unit.qparams
        weight = dequantized(integers(layer.weight.detach(), qparams["weight"]), qparams["weight"])
        result = nn.functional.linear(dequantized(x, qparams["x"]), weight, layer.bias.detach())
        return integers(result, qparams["y"]) + self.off if "y" in qparams else result


@pytest.fixture
def on_own_backend():
    """Calibrate a model for a back end whose rule for a linear layer builds what ``build`` gives."""

    def calibrated(build, float_result=True):
        rules = (
            LoweringRule(("linear",), build, float_result=float_result),
            LoweringRule(("flatten", "max_pool2d"), Lower.KEEP),
        )
        fxq.register_backend(fxq.Backend("own", rules))
        torch.manual_seed(0)
        x = torch.randn(8, 3, 8, 8)
        model = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(48, 16), nn.Linear(16, 4)).eval()
        return fxq.calibrate(fxq.prepare(model, x, backend="own"), [x], progress=False), x

    yield calibrated
    BACKENDS.remove("own")


def test_modules_without_a_reference_are_compared_with_the_simulation(on_own_backend):
    prepared, x = on_own_backend(OwnLinear)
    int8 = fxq.convert(prepared, check=x)
    rows = int8.parity.rows
    assert [(row.unit, row.gives, row.has_reference) for row in rows] == [("_2", "int8", False), ("_3", "float", False)]
    assert [(row.simulation_steps, row.simulation_far, row.breach) for row in rows] == [(0, 0, "")] * 2
    assert all(25 < row.noise.isolated < 60 for row in rows)
    text = str(int8.parity)
    assert NO_REFERENCE in text
    assert text.splitlines()[2].split()[:5] == ["_2", "linear", "int8", "-", "-"]


def test_a_wrong_module_without_a_reference_is_a_breach(on_own_backend):
    prepared, x = on_own_backend(lambda unit: OwnLinear(unit, off=2))
    with pytest.warns(FxQuantWarning, match="the simulation differs from the int8 operator"):
        parity = fxq.convert(prepared, check=x).parity
    assert [row.unit for row in parity.breaches] == ["_2"]
    assert parity.rows[0].simulation_steps >= 2


class Deeper(OwnLinear):
    """Gives float values another shape."""

    def forward(self, x: Tensor) -> Tensor:
        result = super().forward(x)
        return result[None] if result.is_floating_point() else result


def test_a_module_that_gives_another_value_than_planned_is_named(on_own_backend):
    prepared, x = on_own_backend(Deeper)
    with pytest.raises(LoweringError) as caught:
        fxq.convert(prepared, check=x)
    assert str(caught.value) == (
        "the batch to check parity on: the module for pattern 'linear' gives another value than was planned\n"
        "  at:       %_3 : [num_users=1] = call_module[target=3](args = (%_2,), kwargs = {})\n"
        "  got:      float32[1, 8, 4]\n"
        "  expected: float values of shape (8, 4)\n"
        "  hint:     build(unit) gets qparams in unit.qparams; without those of 'y', its module gives float values"
    )


class Negated:
    """A handler that lowers to a function."""

    def observe(self, node, env): ...

    def qparams(self):
        return fxq.QParams(fxq.QScheme(signed=False), torch.tensor([0.05]), torch.tensor([128], dtype=torch.int32))

    def quantize(self, quantizer, node, load_arg):
        return quantizer.quantized_graph.call_function(torch.neg, (load_arg(node.args[0]),))


class Negative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(torch.neg(self.a(x)))


def test_what_a_handler_lowered_is_said_to_be_not_measured():
    pattern = fxq.Pattern("negated", fxq.op(torch.neg)(fxq.tensor("x")), inputs=("x",), handler=Negated)
    x = torch.randn(4, 3, 8, 8)
    prepared = fxq.prepare(Negative().eval(), x, patterns=(pattern, *fxq.DEFAULT_PATTERNS))
    parity = fxq.convert(fxq.calibrate(prepared, [x], progress=False), check=x).parity
    assert parity.unmeasured == ("neg",)
    assert str(parity).endswith("Lowered by a handler, and not measured: neg.")
