"""Layers between float operators that multiply too little for int8: which are left in float, and which never."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.backends.base import BACKENDS
from tests.outputs import rounding_outputs

IMAGE = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
REASON = "slower in int8 alone: {:.1f} products for each value that it reads or gives, and 13 pay"


class Net(nn.Module):
    """A large layer, and small ones ``a`` to ``c`` with a norm ``n`` that has no integer operator."""

    def __init__(self, body) -> None:
        super().__init__()
        self.body = body
        self.big = nn.Conv2d(3, 16, 3)
        for name in "abc":
            self.add_module(name, nn.Conv2d(3, 3, 1))
        self.bn, self.n = nn.BatchNorm2d(3), nn.GroupNorm(1, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def prepare(body, qconfig=None, **options) -> fxq.Quantizer:
    torch.manual_seed(0)
    return fxq.prepare(Net(body).eval(), IMAGE, qconfig, **options)


def units(prepared: fxq.Quantizer) -> list[str]:
    """The nodes of the layers that become int8."""
    return [unit.captures["conv"] for unit in prepared.plan.units if "conv" in unit.captures]


def lone(m: Net, x: Tensor) -> Tensor:
    return m.big(m.n(F.relu(m.bn(m.a(x)))))


def test_a_lone_layer_is_left_in_float_with_all_of_its_operators():
    prepared = prepare(lone)
    assert units(prepared) == ["big"]
    rows = {row.operator: row for row in prepared.coverage().float_rows}
    reason = REASON.format(1.5)
    assert [rows[name].reason for name in ("Conv2d", "BatchNorm2d", "relu")] == [reason] * 3
    assert all(row.excused for name, row in rows.items() if name != "GroupNorm")
    assert rows["Conv2d"].macs == 9 * 64 * 64
    assert prepared.coverage().int8_macs < 1
    prepared.calibrate([IMAGE], progress=False)
    int8, simulated = fxq.convert(prepared), fxq.convert(prepared, to="fake_quant")
    assert type(int8.get_submodule("a")) is type(simulated.get_submodule("a")) is nn.Conv2d
    assert fxq.convert(prepared, check=IMAGE).parity.breaches == ()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lambda m, x: m.b(m.a(x)).sum() + m.big(x), ["a", "b", "big"]),
        (lambda m, x: m.big(m.n(m.a(x) + x)), ["big"]),
        (lambda m, x: m.big(F.max_pool2d(m.a(x), 2)), ["a", "big"]),
        (lambda m, x: m.big(m.n(m.a(F.hardswish(m.b(m.n(x)))))), ["b", "a", "big"]),
        (lambda m, x: m.big(m.n(m.a(m.n(x).flip(-1)))), ["big"]),
        (lambda m, x: (m.a(x), m.big(x)), ["big"]),
    ],
    ids=["two that meet", "with a residual", "before a layer", "with a function between", "behind a move", "returned"],
)
def test_neighbours(body, expected):
    assert units(prepare(body)) == expected


def test_the_last_layers_of_a_model_are_never_left_out():
    assert units(prepare(lambda m, x: m.n(m.a(x)))) == ["a"]
    assert units(prepare(lambda m, x: m.b(m.n(m.a(x))))) == ["a", "b"]
    assert len(fxq.prepare(nn.Conv2d(3, 3, 1).eval(), IMAGE).plan.units) == 1


def test_a_rule_that_means_the_layer_wins():
    default = fxq.get_default_qconfig()
    for rules in (
        fxq.get_default_qconfig_mapping().set_module_name("a", default),
        fxq.get_default_qconfig_mapping().set_object_type(nn.Conv2d, default),
        fxq.get_default_qconfig_mapping().set_module_name_regex("a|bn", default),
    ):
        assert units(prepare(lone, rules)) == ["a", "big"]


def test_training_follows_the_same_plan():
    torch.manual_seed(0)
    model = Net(lone).train()
    del model.b, model.c
    trained = fxq.prepare_qat(model, IMAGE)
    assert type(trained.get_submodule("a")) is nn.Conv2d
    trained(IMAGE).square().mean().backward()
    assert trained.get_submodule("a").weight.grad is not None
    assert type(fxq.convert(trained).get_submodule("a")) is nn.Conv2d


def test_other_back_ends_are_not_asked():
    assert units(prepare(lone, backend="reference")) == ["a", "big"]


def test_what_the_user_wants_rounded_is_rounded():
    assert units(prepare(lambda m, x: (m.a(x), m.big(x)), rounding_outputs())) == ["a", "big"]


def test_strict_mode_does_not_complain():
    assert units(prepare(lambda m, x: (m.a(x), m.big(x)), strict=True)) == ["big"]


def test_without_limits_every_layer_is_a_unit(monkeypatch):
    monkeypatch.setitem(BACKENDS._items, "cpu", replace(BACKENDS["cpu"], break_even=None))
    assert units(prepare(lone)) == ["a", "big"]
