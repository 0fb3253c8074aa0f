"""Few bits everywhere, more at both ends: which layers these are, and what of them gets more bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import fxquant as fxq
from fxquant.errors import SpecError
from fxquant.plan.qconfig import QConfigMapping


class Net(nn.Module):
    """The stem is called last by name; the input of the head is pooled and flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 5)
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = x + self.body(x)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


def bits(prepared: fxq.Quantizer) -> dict[str, int]:
    """Name of each tensor that has an observer of its own -> the bits of its scheme."""
    found = {}
    for ref, policy in prepared.plan.policies.items():
        if hasattr(policy, "observer"):
            found[ref.name.partition(".weight@")[0]] = policy.observer().scheme.bits
    return found


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_ends_have_more_bits(x):
    prepared = fxq.prepare(Net().eval(), x, fxq.low_bit_qconfig(3, 4))
    found = bits(prepared)
    weights = {name: number for name, number in found.items() if name in dict(prepared.graph_module.named_modules())}
    assert weights == {"stem.0": 8, "body.0": 3, "head": 8}
    assert found["x"] == found["stem_2"] == found["adaptive_avg_pool2d"] == 8
    assert found["body_2"] == found["add"] == 4
    assert type(prepared.config) is QConfigMapping
    assert [snapshot.name for snapshot in prepared.snapshots].count("annotate") == 2


def test_int8_is_what_is_simulated(x):
    prepared = fxq.calibrate(fxq.prepare(Net().eval(), x, fxq.low_bit_qconfig(4, 4)), [x], progress=False)
    assert fxq.convert(prepared, check=x).parity.breaches == ()


def test_without_ends_all_are_alike(x):
    assert {*bits(fxq.prepare(Net().eval(), x, fxq.low_bit_qconfig(5, 5, ends=None))).values()} == {5}


def test_a_rule_of_the_user_wins(x):
    mapping = fxq.low_bit_qconfig(4, 4)
    mapping.set_module_name("stem.0", mapping.global_qconfig).set_module_name("head", None)
    found = bits(fxq.prepare(Net().eval(), x, mapping))
    assert found["stem.0"] == found["stem_2"] == 4
    assert "head" not in found
    assert found["body.0"] == 8, "the last layer that is quantized"


def test_layers_that_share_a_class_and_a_function_that_takes_a_weight(x):
    class Functional(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kernel, self.conv = nn.Parameter(torch.randn(4, 3, 3, 3)), nn.Conv2d(4, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(F.relu(self.conv(F.relu(F.conv2d(x, self.kernel)))))

    prepared = fxq.prepare(Functional().eval(), x, fxq.low_bit_qconfig(4, 4))
    weights = [unit.roles["weight"] for unit in prepared.plan.units]
    assert [prepared.plan.policies[ref].observer().scheme.bits for ref in weights] == [8, 4, 8]


def test_training_has_the_same_ends(x):
    qat = fxq.prepare_qat(Net(), x, fxq.low_bit_qconfig(4, 4))
    schemes = {name: each.scheme.bits for name, each in qat.named_modules() if isinstance(each, fxq.FakeQuantizeBase)}
    assert schemes["stem.0.weight_fake_quant"] == schemes["head.weight_fake_quant"] == 8
    assert schemes["body.0.weight_fake_quant"] == 4


def test_tables_are_left_to_their_own_rule():
    class Text(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.first, self.last = nn.Embedding(9, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.relu(self.first(self.table(x))))

    found = bits(fxq.prepare(Text().eval(), torch.zeros(1, 3, dtype=torch.long), fxq.low_bit_qconfig(4, 4)))
    assert found["first"] == found["last"] == 8


def test_more_than_eight_bits_of_activations_are_signed():
    assert fxq.low_bit_qconfig(8, 16).global_qconfig.activation_scheme.dtype == torch.int16


@pytest.mark.parametrize("wrong", [{"weight_bits": 1}, {"activation_bits": 17}, {"activation_bits": "8"}, {"ends": 0}])
def test_bits_out_of_range(wrong):
    with pytest.raises(SpecError) as caught:
        fxq.low_bit_qconfig(**{"weight_bits": 4, "activation_bits": 4, **wrong})
    assert str(caught.value).startswith("bits is out of range")
