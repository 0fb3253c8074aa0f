"""What the passes of conversion do to a graph, as text: one small net, every form."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.nn import Quantize, QuantizedConv
from fxquant.passes.cleanup import choose_layout, merge_requantize
from fxquant.passes.fold_conv_bn import fold
from fxquant.passes.pipelines import PREPARE
from tests.outputs import rounding_outputs

FOLDED = 1e-5
"""Largest difference that folding a batch norm may make: float32 rounding of sums of a few products."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu, self.fc = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn(self.conv(x)) + x)
        return self.fc(torch.sin(y).mean((2, 3)))


@pytest.fixture
def prepared() -> fxq.Quantizer:
    torch.manual_seed(0)
    x = torch.rand(2, 3, 4, 4)
    return fxq.calibrate(fxq.prepare(Net().eval(), x, rounding_outputs()), [x], progress=False)


def diffs(converted) -> dict[str, str]:
    """Pass -> its diff, without the shapes on the right."""
    return {
        snapshot.name: "\n".join(line.split("  ")[0].rstrip() for line in snapshot.diff().splitlines())
        for snapshot in converted.snapshots[len(PREPARE) :]
    }


FOLD = """\
- conv = Conv2d(x)
- bn = BatchNorm2d(conv)
+ bn = Conv2d[conv](x)"""

FORMS = {
    "fake_quant": {
        "fold_conv_bn": FOLD,
        "observe_weights": "",
        "correct_bias": "",
        "share_join_qparams": "",
        "round_biases": "",
        "insert_fake_quant": """\
- bn = Conv2d[conv](x)
- add = torch.add(bn, x)
+ x_fake_quant = StaticFakeQuantize(x)
+ bn = FakeQuantizedConv2d[conv](x_fake_quant)
+ add = torch.add(bn, x_fake_quant)
- mean = torch.mean(sin, (2, 3), False)
- fc = Linear(mean)
- return fc
+ sin_fake_quant = StaticFakeQuantize(sin)
+ mean = torch.mean(sin_fake_quant, (2, 3), False)
+ mean_fake_quant = StaticFakeQuantize(mean)
+ fc = FakeQuantizedLinear(mean_fake_quant)
+ fc_fake_quant = StaticFakeQuantize(fc)
+ return fc_fake_quant""",
        "eliminate_dead_code": "",
    },
    "reference": {
        "fold_conv_bn": FOLD,
        "observe_weights": "",
        "correct_bias": "",
        "share_join_qparams": "",
        "round_biases": "",
        "apply_learned_rounding": "",
        "insert_quantize_dequantize": """\
- bn = Conv2d[conv](x)
- add = torch.add(bn, x)
+ x_quantize = Quantize(x)
+ x_dequantize = Dequantize(x_quantize)
+ bn = DequantizedConv2d[conv](x_dequantize)
+ add = torch.add(bn, x_dequantize)
- mean = torch.mean(sin, (2, 3), False)
- fc = Linear(mean)
- return fc
+ sin_quantize = Quantize(sin)
+ sin_dequantize = Dequantize(sin_quantize)
+ mean = torch.mean(sin_dequantize, (2, 3), False)
+ mean_quantize = Quantize(mean)
+ mean_dequantize = Dequantize(mean_quantize)
+ fc = DequantizedLinear(mean_dequantize)
+ fc_quantize = Quantize(fc)
+ fc_dequantize = Dequantize(fc_quantize)
+ return fc_dequantize""",
        "eliminate_dead_code": "",
    },
    "int8": {
        "fold_conv_bn": FOLD,
        "observe_weights": "",
        "correct_bias": "",
        "share_join_qparams": "",
        "round_biases": "",
        "apply_learned_rounding": "",
        "lower_units": """\
- bn = Conv2d[conv](x)
- add = torch.add(bn, x)
- relu = F.relu(add)
+ x_quantize = Quantize(x)
+ relu = QuantizedConv[conv](x_quantize, x_quantize)
- mean = torch.mean(sin, (2, 3), False)
- fc = Linear(mean)
- return fc
+ sin_quantize = Quantize(sin)
+ mean = QuantizedMean(sin_quantize)
+ fc = QuantizedLinear(mean)
+ fc_dequantize = Dequantize(fc)
+ return fc_dequantize""",
        "merge_requantize": "",
        "choose_layout": "",
        "eliminate_dead_code": "",
    },
}


@pytest.mark.parametrize("to", FORMS)
def test_each_pass_as_text(prepared, to):
    assert diffs(fxq.convert(prepared, to=to)) == FORMS[to]


@pytest.mark.parametrize("to", FORMS)
def test_converting_again_gives_the_same_and_leaves_the_prepared_model_alone(prepared, to):
    x = torch.rand(2, 3, 4, 4)
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    text = str(prepared.graph)
    first, second = fxq.convert(prepared, to=to), fxq.convert(prepared, to=to)
    assert torch.equal(first(x), second(x))
    assert str(prepared.graph) == text
    assert prepared.state_dict().keys() == before.keys()
    assert all(torch.equal(value, before[name]) for name, value in prepared.state_dict().items())


def test_every_form_computes_nearly_the_same(prepared):
    x = torch.rand(2, 3, 4, 4)
    simulated, reference, int8 = (
        fxq.convert(prepared, to=to)(x).detach() for to in ("fake_quant", "reference", "int8")
    )
    step = float(fxq.convert(prepared).fc.y_scale)
    assert torch.equal(simulated, reference)
    assert float((int8 - simulated).abs().max()) <= 1.001 * step


def test_the_simulation_is_differentiable(prepared):
    simulated = fxq.convert(prepared, to="fake_quant")
    x = torch.rand(2, 3, 4, 4, requires_grad=True)
    simulated(x).sum().backward()
    assert float(x.grad.abs().sum()) > 0
    assert float(simulated.conv.weight.grad.abs().sum()) > 0


def test_lowered_state_is_plain_tensors_under_the_users_names(prepared):
    state = fxq.convert(prepared).state_dict()
    assert {value.dtype for value in state.values()} == {torch.int8, torch.float32, torch.int32}
    assert state["conv.weight"].dtype == torch.int8
    assert state["fc.weight"].shape == (2, 3)


def test_images_are_quantized_into_channels_last(prepared):
    int8 = fxq.convert(prepared)
    assert int8.x_quantize.channels_last
    assert int8.sin_quantize.channels_last
    assert int8.x_quantize(torch.rand(2, 3, 4, 4)).is_contiguous(memory_format=torch.channels_last)


class TestFold:
    def test_exact_values(self):
        """sqrt(var + eps) is [2, 0.5], so the factors are exactly [0.5, 2]."""
        conv, bn = nn.Conv2d(2, 2, 1, bias=False), nn.BatchNorm2d(2, eps=0.01, affine=False).eval()
        with torch.no_grad():
            conv.weight.copy_(torch.diag(torch.tensor([2.0, 4.0])).reshape(2, 2, 1, 1))
            bn.running_mean.copy_(torch.tensor([1.0, -1.0]))
            bn.running_var.copy_(torch.tensor([3.99, 0.24]))
        folded = fold(conv, bn)
        torch.testing.assert_close(folded.weight.flatten(), torch.tensor([1.0, 0.0, 0.0, 8.0]), atol=1e-6, rtol=0)
        torch.testing.assert_close(folded.bias, torch.tensor([-0.5, 2.0]), atol=1e-6, rtol=0)

    @pytest.mark.parametrize("groups", [1, 2])
    @pytest.mark.parametrize("bias", [True, False])
    def test_equals_conv_then_bn(self, groups, bias):
        conv, bn = nn.Conv2d(4, 6, 3, groups=groups, bias=bias), nn.BatchNorm2d(6)
        _random_statistics(bn)
        x = torch.randn(2, 4, 8, 8)
        before = conv.weight.clone()
        torch.testing.assert_close(fold(conv, bn.eval())(x), bn(conv(x)), atol=FOLDED, rtol=FOLDED)
        assert torch.equal(conv.weight, before)

    @pytest.mark.parametrize(
        ("layer", "axis"),
        [
            (nn.ConvTranspose2d(4, 6, 3, stride=2), 1),
            (nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2), 1),
            (nn.ConvTranspose2d(6, 6, 3, groups=6, bias=False), 1),
            (nn.Linear(4, 6), 0),
        ],
        ids=["transposed", "groups", "depthwise", "linear"],
    )
    def test_along_the_output_channels_of_each_group(self, layer, axis):
        linear = isinstance(layer, nn.Linear)
        bn = nn.BatchNorm1d(6) if linear else nn.BatchNorm2d(6)
        _random_statistics(bn)
        x = torch.randn(5, 4) if linear else torch.randn(2, layer.in_channels, 5, 5)
        torch.testing.assert_close(fold(layer, bn.eval(), axis)(x), bn(layer(x)), atol=FOLDED, rtol=FOLDED)

    def test_a_shared_convolution_keeps_its_meaning(self):
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.conv, self.bn = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3)

            def forward(self, x: Tensor) -> Tensor:
                return self.bn(self.conv(self.conv(x)))

        model = Twice()
        _random_statistics(model.bn)
        model.eval()
        x = torch.randn(2, 3, 8, 8)
        prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
        int8 = fxq.convert(prepared)
        convs = [module for module in int8.modules() if isinstance(module, QuantizedConv)]
        assert len(convs) == 2
        assert not torch.equal(convs[0].weight_scale, convs[1].weight_scale)
        signal, noise = model(x).square().mean(), (int8(x) - model(x)).square().mean()
        assert (10 * torch.log10(signal / noise)).item() > 18

    def test_a_block_left_out_keeps_its_batch_norm(self):
        model = nn.Sequential(
            nn.Conv2d(3, 3, 1),
            nn.Sequential(nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.Identity(), nn.Dropout()),
        ).eval()
        x = torch.randn(1, 3, 4, 4)
        rules = fxq.get_default_qconfig_mapping().set_module_name("1", None)
        int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x, rules), [x], progress=False))
        kept = {name: value for name, value in model.state_dict().items() if name.startswith("1.")}
        state = int8.state_dict()
        assert {name for name in state if name.startswith("1.")} == set(kept)
        assert all(torch.equal(state[name], value) for name, value in kept.items())
        assert isinstance(int8.get_submodule("1.1"), nn.BatchNorm2d)


def _random_statistics(bn: nn.BatchNorm2d) -> None:
    with torch.no_grad():
        for tensor in (bn.running_mean, bn.bias):
            tensor.normal_()
        for tensor in (bn.running_var, bn.weight):
            tensor.uniform_(0.5, 2)


class TestMergeRequantize:
    @pytest.mark.parametrize(("scale", "expected"), [(0.1, []), (0.2, ["Requantize"])])
    def test_a_detour_through_float(self, scale, expected):
        scheme = fxq.QScheme(signed=False)

        def qparams(step: float) -> fxq.QParams:
            return fxq.QParams(scheme, torch.tensor([step]), torch.tensor([3], dtype=torch.int32))

        net = nn.Sequential(Quantize(qparams(0.1)), fxq.nn.Dequantize(qparams(0.1)), Quantize(qparams(scale)))
        gm = torch.fx.GraphModule(net, _Leaves().trace(net))
        x = torch.randn(50)
        before = gm(x)
        gm = merge_requantize(gm, None)
        gm.graph.eliminate_dead_code()
        gm.recompile()
        called = [type(gm.get_submodule(n.target)).__name__ for n in gm.graph.nodes if n.op == "call_module"]
        assert called == ["Quantize", *expected]
        assert torch.equal(gm(x), before)


class _Leaves(torch.fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return not isinstance(m, nn.Sequential)


def test_a_matrix_is_quantized_as_it_lies():
    x = torch.rand(2, 4)
    model = nn.Sequential(nn.Linear(4, 2)).eval()
    int8 = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x], progress=False))
    assert not int8.input_1_quantize.channels_last
    assert choose_layout.after == ("lower_units",)


class FloatTail(nn.Module):
    """A unit, an operator that stays float, and a unit."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.relu = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()
        self.norm, self.fc = nn.RMSNorm(4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.relu(self.bn(self.conv(x))).mean((2, 3))))


ROUNDED = 0.05
"""Largest difference that 8 bits make in the two results, which lie between -1 and 1."""


@pytest.mark.parametrize("to", FORMS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_form_keeps_the_dtype_of_the_model(dtype, to):
    torch.manual_seed(0)
    net, x = FloatTail().eval().to(dtype), torch.rand(2, 3, 6, 6).to(dtype)
    prepared = fxq.calibrate(fxq.prepare(net, x), [x], progress=False)

    y = fxq.convert(prepared, to=to)(x)

    assert any(refusal.node == "norm" for refusal in prepared.plan.refusals)
    assert y.dtype == dtype
    assert (y - net(x)).abs().max() < ROUNDED


class Viewing(nn.Module):
    """Stays whole and in float, since its control flow depends on values; takes only contiguous images."""

    def forward(self, x: Tensor) -> Tensor:
        return x.view(len(x), -1).sin() if x.sum() > 0 else x.view(len(x), -1)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("rank", "to"),
    [
        pytest.param(rank, to, marks=() if rank == 2 or to == "int8" else pytest.mark.slow)
        for rank in (1, 2, 3)
        for to in FORMS
    ],
)
def test_float_code_gets_images_in_the_order_that_they_had(rank, to):
    torch.manual_seed(0)
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    net, x = nn.Sequential(conv(3, 4, 3), nn.ReLU(), Viewing()).eval(), torch.rand(2, 3, *[6, 5, 4][:rank])
    with pytest.warns(fxq.FxQuantWarning):
        prepared = fxq.calibrate(fxq.prepare(net, x), [x], progress=False)
    headless = fxq.calibrate(fxq.prepare(net[:2].eval(), x), [x], progress=False)

    assert (fxq.convert(prepared, to=to)(x) - net(x)).abs().max() < ROUNDED
    assert fxq.convert(headless, to=to)(x).is_contiguous()


def test_a_value_that_lay_channels_last_stays_so():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).eval().to(memory_format=torch.channels_last)
    x = torch.rand(2, 3, 6, 5).contiguous(memory_format=torch.channels_last)
    y = fxq.convert(fxq.calibrate(fxq.prepare(net, x), [x], progress=False))(x)
    assert y.stride() == net(x).stride()
