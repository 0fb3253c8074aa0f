"""The Quantizer and its functions: what they give, what they keep, what they refuse."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import (
    CalibrationError,
    FxQuantWarning,
    InputError,
    PlanError,
    SpecError,
    TracingError,
    UnknownNameError,
)
from fxquant.patterns.floats import EXPONENTIALS
from tests.outputs import rounding_outputs

NOISE = 1e-3
"""Noise power against signal power, 30 dB: what 8 bits give on two layers; a wrong order of elements gives about 1."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.bn(self.conv(x))), 1).flatten(1))


class Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x if x.mean() > 0 else -x


def gated() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), Gate(), nn.Linear(8, 2)).eval(), torch.rand(16, 4)


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def state_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same_state(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


class TestTheUsersModel:
    def test_is_never_changed(self, model, x):
        before, modes = state_of(model), [module.training for module in model.modules()]
        types = [type(module) for module in model.modules()]
        output = model(x)
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        for to in ("int8", "fake_quant", "reference"):
            fxq.convert(prepared, to=to)
        assert same_state(before, state_of(model))
        assert [module.training for module in model.modules()] == modes
        assert [type(module) for module in model.modules()] == types
        assert torch.equal(model(x), output)

    def test_in_training_mode_is_taken_as_if_in_evaluation_mode(self, model, x):
        expected = model(x)
        model.train()
        before = state_of(model)
        with pytest.warns(FxQuantWarning) as caught:
            prepared = fxq.prepare(model, x)
        assert str(caught[0].message) == (
            "the model is in training mode; it is calibrated and converted as if eval() had been called\n"
            "  got:      4 modules have training=True\n"
            "  hint:     call model.eval() first"
        )
        assert caught[0].filename == __file__
        assert torch.equal(prepared(x), expected)
        assert all(module.training for module in model.modules())
        assert same_state(before, state_of(model))

    def test_may_change_afterwards_without_changing_the_prepared_one(self, model, x):
        prepared = fxq.prepare(model, x)
        expected = prepared(x)
        with torch.no_grad():
            model.fc.weight.add_(1)
        assert torch.equal(prepared(x), expected)


class TestState:
    def test_carries_the_calibration_into_a_fresh_quantizer(self, model, x):
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        buffer = io.BytesIO()
        torch.save(prepared.state_dict(), buffer)
        buffer.seek(0)
        fresh = fxq.prepare(Net().eval(), x)
        fresh.load_state_dict(torch.load(buffer, weights_only=True))
        assert same_state(prepared.state_dict(), fresh.state_dict())
        for to in ("int8", "fake_quant", "reference"):
            assert torch.equal(fxq.convert(prepared, to=to)(x), fxq.convert(fresh, to=to)(x))

    def test_of_a_converted_model_fills_a_shell(self, model, x):
        int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
        shell = fxq.convert(fxq.prepare(Net().eval(), x), allow_uncalibrated=True)
        with pytest.raises(CalibrationError) as caught:
            shell(x)
        assert "converted without calibration" in str(caught.value)
        shell.load_state_dict(int8.state_dict(), strict=True)
        assert torch.equal(shell(x), int8(x))

    def test_no_scale_stands_in_the_code(self, model, x):
        int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
        assert not any(char.isdigit() and "." in word for word in int8.code.split() for char in word if "e-" in word)
        assert "0." not in int8.code

    def test_deepcopy_is_independent(self, model, x):
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        twin = copy.deepcopy(prepared)
        assert torch.equal(fxq.convert(twin)(x), fxq.convert(prepared)(x))
        before = state_of(prepared.observers)
        twin(x * 100)
        assert same_state(before, state_of(prepared.observers))

    def test_pickling_keeps_the_calibration_and_goes_on(self, model, x):
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        twin = pickle.loads(pickle.dumps(prepared))
        assert str(twin.graph) == str(prepared.graph)
        assert twin.plan == prepared.plan
        assert str(twin.coverage()) == str(prepared.coverage())
        for to in ("int8", "fake_quant", "reference"):
            assert torch.equal(fxq.convert(twin, to=to)(x), fxq.convert(prepared, to=to)(x))
        fxq.calibrate(twin, [x * 2], progress=False)
        fxq.calibrate(prepared, [x * 2], progress=False)
        assert torch.equal(fxq.convert(twin)(x), fxq.convert(prepared)(x))

    @pytest.mark.parametrize("to", ["int8", "fake_quant", "reference"])
    def test_converted_models_can_be_copied_and_pickled(self, model, x, to):
        converted = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False), to=to)
        expected = converted(x)
        assert torch.equal(copy.deepcopy(converted)(x), expected)
        assert torch.equal(pickle.loads(pickle.dumps(converted))(x), expected)


class TestSignatures:
    def test_keyword_inputs_and_defaults_survive(self):
        class Attention(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

            def forward(self, q: Tensor, k: Tensor, bias: float = 0.5) -> Tensor:
                return self.a(q) - self.b(k) * bias

        model, q, k = Attention().eval(), torch.randn(2, 4), torch.randn(2, 4)
        prepared = fxq.prepare(model, (q,), example_kwargs={"k": k})
        with torch.no_grad():
            expected = model(q, k)
        assert torch.equal(prepared(k=k, q=q), expected)
        assert torch.equal(prepared(q, k), expected)
        int8 = fxq.convert(prepared)
        assert torch.equal(int8(k=k, q=q), int8(q, k))

    def test_other_batch_sizes(self, model, x):
        int8 = fxq.quantize(model, [x], progress=False)
        for count in (1, 3, 0):
            assert int8(torch.randn(count, 3, 8, 8)).shape == (count, 2)

    def test_view_with_a_size_after_a_convolution(self):
        class View(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 2)

            def forward(self, x: Tensor) -> Tensor:
                y = self.conv(x)
                return self.fc(y.view(y.size(0), -1))

        model, x = View().eval(), torch.randn(64, 3, 8, 8)
        prepared = fxq.calibrate(fxq.prepare(model, x[:2], rounding_outputs()), [x], progress=False)
        assert set(prepared.observers) == {"x", "conv", "fc", "x@-3", "view@-1"}
        int8 = fxq.convert(prepared)
        assert not any("dequantize" in node.name and "conv" in node.name for node in int8.graph.nodes)
        for batch in (2, 5):
            expected, got = model(x[:batch]).detach(), int8(x[:batch])
            assert got.shape == (batch, 2)
            assert float((got - expected).square().mean() / expected.square().mean()) < NOISE

    def test_an_untouched_input_comes_back_to_the_bit(self):
        class Outputs(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.fc = nn.Linear(4, 2)

            def forward(self, x: Tensor) -> dict:
                return {"logits": self.fc(x), "aux": None, "pair": (self.fc(x), x)}

        x = torch.randn(3, 4)
        prepared = fxq.calibrate(fxq.prepare(Outputs().eval(), x), [x], progress=False)
        for to in ("int8", "fake_quant", "reference"):
            out = fxq.convert(prepared, to=to)(x)
            assert type(out) is dict
            assert out["aux"] is None
            assert torch.equal(out["pair"][1], x)
            assert torch.equal(out["pair"][0], out["logits"])


class TestRefusals:
    def test_no_calibration_names_every_value(self, model, x):
        with pytest.raises(CalibrationError) as caught:
            fxq.convert(fxq.prepare(model, x, rounding_outputs()))
        text = str(caught.value)
        assert text.startswith("4 values have no range: no calibration batch held a finite number for them")
        for line in ("x (conv input)", "relu (conv output, ", "fc (fc output)"):
            assert line in text
        assert "hint:     call calibrate(prepared, data) before convert" in text

    def test_a_non_finite_weight_is_named(self, model, x):
        with torch.no_grad():
            model.fc.weight[0, 0] = float("nan")
            model.bn.running_var[2] = float("inf")
        with pytest.raises(PlanError) as caught:
            fxq.prepare(model, x)
        assert str(caught.value) == (
            "the model holds weights or statistics that are not finite\n"
            "  got:      bn.running_var: 1 of 4 values are inf or NaN\n"
            "            fc.weight: 1 of 8 values are inf or NaN\n"
            "  expected: finite numbers in every layer that is to be quantized\n"
            "  hint:     a training that diverged leaves such weights; "
            "set_module_name(name, None) keeps a layer in float"
        )

    @pytest.mark.filterwarnings("ignore:weights were changed after calibration")
    def test_a_weight_that_becomes_non_finite_later_is_named(self, model, x):
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        with torch.no_grad():
            prepared.graph_module.fc.weight.fill_(float("inf"))
        with pytest.raises(CalibrationError) as caught:
            fxq.convert(prepared)
        assert str(caught.value).startswith("a weight holds values that are not finite\n  at:       %fc")
        assert "got:      8 of 8 values are inf or NaN" in str(caught.value)

    def test_nothing_to_quantize(self):
        with pytest.raises(PlanError) as caught:
            fxq.prepare(nn.Sequential(nn.LogSoftmax(0)).eval(), torch.rand(2))
        assert str(caught.value) == (
            "the model has no operator that can be quantized\n"
            f"  got:      0: {EXPONENTIALS}\n"
            "  hint:     look at the configuration and at the backend; register_pattern adds patterns"
        )

    def test_strict_lists_what_would_stay_float(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.LogSoftmax(1)).eval()
        with pytest.raises(PlanError) as caught:
            fxq.prepare(model, torch.rand(2, 2), strict=True)
        assert str(caught.value) == (
            "strict: 1 operators would stay float\n"
            f"  got:      1 (LogSoftmax): {EXPONENTIALS}\n"
            "  expected: every operator that the configuration asks to quantize becomes int8\n"
            "  hint:     set_module_name(name, None) says that one shall stay float; strict=False only reports them"
        )
        excused = fxq.get_default_qconfig_mapping().set_module_name("1", None)
        assert fxq.prepare(model, torch.rand(2, 2), excused, strict=True).coverage().int8_macs == 1.0

    def test_an_unknown_backend(self, model, x):
        with pytest.raises(UnknownNameError) as caught:
            fxq.prepare(model, x, backend="cpi")
        assert str(caught.value) == (
            "unknown backend\n  got:      'cpi'\n  expected: cpu, reference, onnxruntime, openvino, tensorrt\n"
            "  hint:     did you mean 'cpu'?"
        )

    def test_an_unknown_form(self, model, x):
        with pytest.raises(UnknownNameError) as caught:
            fxq.convert(fxq.prepare(model, x), to="int4")
        assert str(caught.value) == (
            "unknown kind of model to convert to\n"
            "  got:      'int4'\n"
            "  expected: int8, fake_quant, reference\n"
            "  hint:     did you mean 'int8'?"
        )

    def test_an_example_that_does_not_run(self, model):
        with pytest.raises(InputError) as caught:
            fxq.prepare(model, torch.randn(1, 5, 8, 8))
        text = str(caught.value)
        assert text.startswith("the example inputs do not run through the model: ")
        assert "test_quantizer.py:" in text
        assert "expected: Conv2d with 3 input channels" in text

    def test_a_tensor_dependent_branch_stays_float_with_a_warning(self):
        model, x = gated()
        line = Gate.forward.__code__.co_firstlineno + 1
        with pytest.warns(FxQuantWarning) as caught:
            prepared = fxq.prepare(model, x)
        assert str(caught[0].message) == (
            "torch.fx cannot trace the submodule '1' (a Gate)\n"
            f"  at:       {__file__}:{line}: return x if x.mean() > 0 else -x\n"
            "  got:      a branch (if, while, and, or, assert) on the value of a tensor\n"
            "  expected: a forward that does not depend on values\n"
            '  hint:     leaf_modules=("1",) keeps it whole and in float, which was done; '
            "rewriting that line lets its inside be quantized too"
        )
        assert caught[0].filename == __file__
        (row,) = prepared.coverage().float_rows
        assert row.reason.startswith("torch.fx cannot trace it: a branch (if, while, and, or, assert)")
        assert not row.excused
        assert prepared.coverage().int8_macs == 1.0
        int8 = fxq.convert(fxq.calibrate(prepared, [x, -x], progress=False))
        for batch in (x, -x):  # both branches are still taken
            expected, got = model(batch).detach(), int8(batch)
            assert float((got - expected).square().mean() / expected.square().mean()) < NOISE

    def test_a_tensor_dependent_branch_in_strict_mode_is_an_error_in_the_same_words(self):
        model, x = gated()
        with pytest.raises(TracingError) as caught:
            fxq.prepare(model, x, strict=True)
        text = str(caught.value)
        assert text.startswith("torch.fx cannot trace the submodule '1' (a Gate)")
        assert "return x if x.mean() > 0 else -x" in text
        assert 'leaf_modules=("1",)' in text
        with pytest.raises(TracingError) as caught:
            fxq.prepare(model[1], x)
        assert str(caught.value).startswith("torch.fx cannot trace the forward of the model itself (a Gate)")

    def test_a_branch_in_a_leaf_module_is_no_matter(self):
        model, x = gated()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert fxq.prepare(model, x, leaf_modules=("1",), strict=True).coverage().int8_macs == 1.0

    def test_a_rule_that_matches_nothing(self, model, x):
        with pytest.warns(FxQuantWarning) as caught:
            fxq.prepare(model, x, fxq.get_default_qconfig_mapping().set_module_name("fcc", None))
        assert str(caught[0].message) == (
            "a rule of the configuration matches nothing in the model\n"
            "  got:      set_module_name('fcc')\n"
            "  hint:     did you mean 'fc'?"
        )
        assert caught[0].filename == __file__

    def test_rules_that_match_are_not_warned_of(self, model, x):
        rules = (
            fxq.get_default_qconfig_mapping()
            .set_module_name("bn", fxq.get_default_qconfig())
            .set_object_type(nn.Linear, None)
            .set_object_type(F.relu, fxq.get_default_qconfig())
            .set_object_type("flatten", fxq.get_default_qconfig())
        )
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fxq.prepare(model, x, rules)

    @pytest.mark.parametrize("bits", [1, 17])
    def test_bits_out_of_range(self, bits):
        with pytest.raises(SpecError) as caught:
            fxq.QConfig(activation=fxq.MinMaxObserver.with_args(bits=bits), weight=fxq.PerChannelMinMaxObserver)
        assert "bits is out of range" in str(caught.value)
        assert f"got:      {bits}" in str(caught.value)

    def test_something_else_than_a_model(self):
        with pytest.raises(InputError) as caught:
            fxq.prepare(lambda x: x, torch.rand(1))
        assert str(caught.value) == (
            "the model is no torch.nn.Module\n  got:      function\n  expected: a torch.nn.Module"
        )


class Scaled(fxq.Quantizer):
    """Sees every batch at twice its size."""

    def observe(self, *args, **kwargs):
        return super().observe(*(2 * each for each in args), **kwargs)


@pytest.mark.parametrize("observed", ["calibrate", "function", "call", "method"])
def test_a_subclass_observes_in_its_own_way(model, x, observed):
    prepared, expected = Scaled(model, x), fxq.Quantizer(model, x)
    result = {
        "calibrate": lambda: prepared.calibrate([x], progress=False),
        "function": lambda: fxq.calibrate(prepared, [x], progress=False),
        "call": lambda: prepared(x),
        "method": lambda: prepared.observe(x),
    }[observed]()
    assert result is prepared if observed in ("calibrate", "function") else torch.equal(result, model(2 * x))
    expected.observe(2 * x)
    state, wanted = prepared.state_dict(), expected.state_dict()
    assert state.keys() == wanted.keys()
    assert all(torch.equal(state[name], wanted[name]) for name in wanted)


def test_a_wrong_input_of_the_int8_model_names_the_layer():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
    x = torch.randn(2, 3, 8, 8)
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
    for wrong, text in {
        (2, 1, 8, 8): "quantized convolution has the wrong shape\n  at:       0\n  got:      1 channel in",
        (2, 3, 9, 9): "quantized linear layer has the wrong shape\n  at:       3\n  got:      196 features in",
    }.items():
        with pytest.raises(InputError, match=text):
            int8(torch.randn(wrong))
