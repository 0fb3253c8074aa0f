"""The smallest inputs of faults that users met, as they were reported, each with the right value."""

from __future__ import annotations

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models.efficientnet import MBConv, MBConvConfig
from torchvision.ops import FrozenBatchNorm2d

import fxquant as fxq
from fxquant.errors import FxQuantWarning, InputError
from fxquant.kernels.library import available_isas
from fxquant.measure.noise import sqnr
from fxquant.runtime import engine_of

NEAR = 30.0
"""dB: 8 bits of values that are spread evenly have about 40."""
CALLS = 5


class Written(nn.Module):
    """A forward that a test writes, and the modules it calls."""

    def __init__(self, forward, **modules: nn.Module) -> None:
        super().__init__()
        self.function = forward
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor):
        return self.function(self, x)


def quantized(model: nn.Module, x: Tensor) -> nn.Module:
    return fxq.quantize(model.eval(), [x], progress=False)


def units(model: nn.Module, x: Tensor) -> list[str]:
    return [unit.pattern for unit in fxq.prepare(model.eval(), x).plan.units]


@torch.no_grad()
def test_a_gated_layer_is_near_float_in_every_call():
    def gated(m, x):
        a, b = m.first(x).chunk(2, -1)
        return m.second(a * F.silu(b))

    x, model = torch.randn(16, 64), Written(gated, first=nn.Linear(64, 64), second=nn.Linear(32, 8))
    for _ in range(4):
        int8 = quantized(model, x)
        results = [int8(x) for _ in range(CALLS)]
        assert all(torch.equal(result, results[0]) for result in results)
        assert sqnr(model(x), results[0]) > NEAR
    if available_isas():
        assert engine_of(int8).plans[0].in_python == ()


@torch.no_grad()
def test_a_layer_that_reads_every_second_column():
    x, model = torch.randn(8, 128)[:, ::2], nn.Linear(64, 64).eval()
    int8 = quantized(model, x.contiguous())
    for _ in range(CALLS):
        assert torch.equal(int8(x), int8(x.contiguous()))
    assert sqnr(model(x), int8(x)) > NEAR


@pytest.mark.parametrize("body", [lambda y: y[..., :32], lambda y: F.relu(y[..., :32]), lambda y: y[..., :32].mean(-1)])
@torch.no_grad()
def test_a_slice_sends_nothing_back_to_python(body):
    x, model = torch.randn(4, 64), Written(lambda m, x: body(m.second(F.relu(m.first(x)))))
    model.first, model.second = nn.Linear(64, 64), nn.Linear(64, 64)
    int8 = quantized(model, x)
    results = [int8(x) for _ in range(CALLS)]
    assert all(torch.equal(result, results[0]) for result in results)
    if available_isas():
        plan = engine_of(int8).plans[0]
        assert plan.programs
        assert not any(name.startswith(("first", "second")) for name, _ in plan.in_python)


@torch.no_grad()
def test_scores_beside_boxes_that_are_larger():
    model = Written(
        lambda m, x: torch.cat([m.boxes(x) * 300, m.scores(x)], 1), boxes=nn.Conv2d(3, 4, 3), scores=nn.Conv2d(3, 2, 3)
    ).eval()
    x = torch.randn(2, 3, 12, 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)
        int8 = quantized(model, x)
    assert sqnr(model(x)[:, 4:], int8(x)[:, 4:]) > NEAR
    assert sqnr(model(x)[:, :4], int8(x)[:, :4]) > NEAR


@torch.no_grad()
def test_a_class_token_beside_tokens_that_are_larger():
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(0.02 * torch.randn(1, 1, 16))
            self.embed, self.norm, self.head = nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            tokens = 50 * self.embed(x)
            return self.head(self.norm(torch.cat((self.token.expand(x.shape[0], -1, -1), tokens), 1)))

    model, x = Tokens().eval(), torch.randn(4, 9, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FxQuantWarning)
        int8 = quantized(model, x)
    assert sqnr(model(x)[:, 0], int8(x)[:, 0]) > 25
    assert sqnr(model(x)[:, 1:], int8(x)[:, 1:]) > 25


@torch.no_grad()
def test_a_batch_norm_behind_a_linear_layer_with_another_rank_in_calls():
    """[N, L, F] is [N, C, L] to a BatchNorm1d: what is folded into 5 features would be wrong for 5 channels."""
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).eval()
    model[1].running_mean.normal_(), model[1].running_var.uniform_(0.1, 4.0)
    int8 = quantized(model, torch.randn(64, 6))
    x = torch.randn(64, 5, 6)
    with pytest.raises(InputError):
        int8(x)
    with pytest.raises((InputError, RuntimeError)):
        int8(torch.randn(64, 7, 6))  # which float refuses


def test_a_batch_of_zeros_is_warned_of():
    prepared = fxq.prepare(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval(), torch.randn(1, 3, 8, 8)
    )
    with pytest.warns(FxQuantWarning, match="one and the same number"):
        fxq.calibrate(prepared, [torch.zeros(1, 3, 8, 8)], progress=False)


@pytest.mark.parametrize("name", ["HistogramObserver", "PercentileObserver", "EntropyObserver", "MSEObserver"])
def test_complex_values_have_no_range(name):
    with pytest.raises(InputError, match="complex"):
        getattr(fxq, name)()(torch.randn(4, dtype=torch.complex64))


def test_products_of_what_is_kept_whole_count():
    model = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)))
    coverage = fxq.prepare(model.eval(), torch.randn(64, 32), leaf_modules=["1"]).coverage()
    assert coverage.int8_macs == pytest.approx(1 / 3)
    assert "33.33 %" in str(coverage)


def test_learned_rounding_breaks_ties():
    """Four weights of 0.4 steps on equal inputs: to nearest all fall, with an error of 1.6; two that rise leave 0.4."""
    model = nn.Sequential(nn.Linear(4, 2, bias=False)).eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[0.4] * 4, [127.0, 0.0, 0.0, 0.0]]))  # of which one step is 1.0
    weight = fxq.MinMaxObserver.with_args(
        dtype=torch.int8, qscheme=torch.per_tensor_symmetric, quant_min=-127, quant_max=127
    )
    config = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.uint8), weight)
    x = torch.linspace(0.1, 1, 64)[:, None].expand(64, 4).contiguous()
    prepared = fxq.calibrate(fxq.prepare(model, x, config), [x], progress=False)
    learned = fxq.adaround(prepared, [x], iterations=200, progress=False)
    assert int(fxq.convert(learned).get_submodule("0").weight[0].sum()) == 2


class BatchNormAct2d(nn.BatchNorm2d):
    """timm's: a batch norm with the activation inside, and a dropout that does nothing."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.drop, self.act = nn.Identity(), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.1, self.eps)
        return self.act(self.drop(x))


@pytest.mark.parametrize(
    "between",
    [
        lambda m, y: m.identity(y),
        lambda m, y: F.dropout(y, training=False),
        lambda m, y: y.contiguous(),
        lambda m, y: y.clone(),
        lambda m, y: y.float(),
    ],
    ids=["identity", "dropout", "contiguous", "clone", "float"],
)
def test_what_does_nothing_stops_no_fusion(between):
    model = Written(lambda m, x: m.last(F.relu(m.bn(between(m, m.conv(x))))), identity=nn.Identity())
    model.conv, model.bn, model.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)
    found = units(model, torch.randn(1, 3, 8, 8))
    assert [name for name in found if name != "contiguous"] == ["conv_bn_act", "conv"]  # that one runs no operator


def test_norms_of_other_libraries_are_folded():
    x = torch.randn(1, 3, 8, 8)
    for norm, folded in ((BatchNormAct2d(4), "conv_bn_act"), (FrozenBatchNorm2d(4), "conv_bn")):
        model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), norm, nn.Conv2d(4, 2, 1))
        assert len(units(model, x)) == 2, folded


def test_residual_sums_of_efficientnet_are_fused():
    block = MBConv(MBConvConfig(2, 3, 1, 8, 8, 1), 0.2, nn.BatchNorm2d)
    patterns = units(nn.Sequential(nn.Conv2d(3, 8, 1), block, nn.Conv2d(8, 2, 1)), torch.randn(1, 3, 8, 8))
    assert "conv_bn_add" in patterns
    assert "add" not in patterns


def test_layers_that_nothing_reads_have_no_parity():
    """All units are dead code: nothing runs on integers, and there is nothing to compare."""
    model = Written(lambda m, x: (m.first(x), x + 1)[1], first=nn.Linear(4, 4)).eval()
    x = torch.randn(2, 4)
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    int8 = fxq.convert(prepared, check=x)
    assert torch.equal(int8(x), x + 1)
    assert int8.parity.breaches == ()
