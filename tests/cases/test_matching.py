"""Which operators belong together, and what is no operand: tensors that stand twice, numbers, masks, tuples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxquant as fxq
from fxquant.plan.spec import TensorRef
from tests.outputs import rounding_outputs


class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.conv(x)
        return torch.cat([y + y, torch.add(y, y)], 1)


def test_a_tensor_that_is_both_operands(case):
    found = case(Doubled(), torch.randn(2, 3, 8, 8))
    assert found.units == ["conv", "add", "add", "cat"]
    assert found.sqnr() >= 30
    left, right = found.got.chunk(2, 1)
    assert torch.equal(left, right)
    assert len([node for node in found.int8.graph.nodes if str(node.target).endswith("_quantize")]) == 1
    qparams = found.int8.quant_plan.qparams
    assert float(qparams[TensorRef("add")].scale / qparams[TensorRef("conv")].scale) == pytest.approx(2, rel=0.1)


class Numbers(nn.Module):
    """On values above 0, where a turned sign shows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        y = torch.relu(self.fc(x)) + 0.1
        return 1 - y, 3 * y, y * -2, y / 4, y * 0


@pytest.mark.filterwarnings("ignore:calibration saw one and the same number")  # of what is times 0
def test_numbers_on_either_side(case):
    whole = fxq.QConfig(fxq.MinMaxObserver.with_args(dtype=torch.uint8), fxq.get_default_qconfig().weight)
    found = case(Numbers(), torch.randn(32, 8), qconfig=rounding_outputs(whole))
    numbers = ["add_number", "number_sub", "rescale", "mul_number", "rescale", "mul_number"]
    assert found.units == ["linear_act", *numbers]
    assert min(found.sqnr(lambda value, i=i: value[i]) for i in range(4)) >= 28
    assert torch.equal(found.got[4], torch.zeros(32, 8))
    for index, root in enumerate(("sub", "mul", "mul_1", "truediv")):
        step = float(found.int8.quant_plan.qparams[TensorRef(root)].scale)
        assert found.got[index].min() == pytest.approx(float(found.expected[index].min()), abs=2 * step)
        assert found.got[index].max() == pytest.approx(float(found.expected[index].max()), abs=2 * step)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x, mask):
        return self.fc(x) * mask[:, None]


def test_a_mask_of_integers_is_no_activation(case):
    mask = torch.tensor([1, 0, 1, 1, 0, 1])
    found = case(Masked(), torch.randn(6, 8), mask)
    assert found.units == ["linear"]
    assert torch.equal(found.got[mask == 0], torch.zeros(2, 4))
    assert found.sqnr() >= 30


class HalfThrough(nn.Module):
    """Half of the channels goes through another convolution, as in the blocks of some detectors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x):
        a, b = self.first(x).chunk(2, 1)
        return torch.cat([a, b, self.second(b)], 1)


def test_a_tuple_of_which_one_part_goes_on(case):
    found = case(HalfThrough(), torch.randn(2, 3, 8, 8))
    assert found.units == ["conv", "chunk", "getitem", "getitem", "conv", "cat"]
    assert not {"chunk", "getitem", "getitem_1"} & set(found.prepared.observers)
    assert found.prepared.coverage().float_rows == ()
    assert found.sqnr() >= 25


class Attention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True, bias=bias)
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        return F.gelu(self.fc(self.norm(x + self.attn(x, x, x, need_weights=False)[0])))


@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_quantized_or_reported(case, bias):
    found = case(Attention(bias), torch.randn(2, 5, 16))
    assert any("attn" in row.module or "attn" in row.node for row in found.prepared.coverage())
    assert found.sqnr() >= 20


class OneReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small, self.large, self.last = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        with torch.no_grad():
            self.large.weight.mul_(50)
        self.relu = nn.ReLU()

    def forward(self, x):
        return self.last(self.relu(self.large(self.relu(self.small(x)))))


def test_one_module_at_two_places_has_two_ranges(case):
    found = case(OneReLU(), torch.randn(64, 8))
    first, second, _ = (found.int8.quant_plan.qparams[u.roles["y"]].scale for u in found.prepared.plan.units)
    assert float(first) <= 0.05 * float(second)
    assert found.sqnr() >= 25


class Bounded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.sigmoid, self.tanh = nn.Sigmoid(), nn.Tanh()

    def forward(self, x):
        sigmoids = [self.sigmoid(x), torch.sigmoid(x), x.sigmoid(), F.hardsigmoid(x)]
        return torch.stack([*sigmoids, self.tanh(x), torch.tanh(x), x.tanh()])


def test_bounded_functions_have_the_same_grid_whatever_was_seen():
    x = torch.linspace(-1, 1, 64)
    prepared = fxq.prepare(Bounded().eval(), x, rounding_outputs()).calibrate([x], progress=False)
    plan = fxq.convert(prepared).quant_plan
    found = [
        (unit.pattern, qparams.scale.item(), qparams.zero_point.item(), qparams.scheme.quant_min)
        for unit in plan.units[:-1]
        for qparams in [plan.qparams[unit.roles["y"]]]
    ]
    assert found == [
        *[("sigmoid", 1 / 256, 0, 0)] * 3,
        ("hardsigmoid", 1 / 256, 0, 0),
        *[("tanh", 2 / 256, 128, 0)] * 3,
    ]


class SelfAttention(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(16, 4, batch_first=True, bias=bias)
        self.ln, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x):
        h = x + self.attn(x, x, x, need_weights=False)[0]
        return F.gelu(self.fc(self.ln(h)))


@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_not_skipped_without_a_word(case, bias):
    """Its out_proj is a subclass of Linear, and its other layers are slices of one bare parameter."""
    found = case(SelfAttention(bias), torch.randn(2, 5, 16))
    linears = {row.module: row.fate for row in found.prepared.coverage() if row.operator == "linear"}
    assert linears == dict.fromkeys(("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.out_proj", "fc"), "int8")
    assert found.sqnr() >= 25
    assert found.int8.get_submodule("attn.out_proj").weight.dtype is torch.int8
