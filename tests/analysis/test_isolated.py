from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.analysis.isolated import UnitsAlone
from fxquant.errors import InputError
from fxquant.fake_quantize.converted import StaticFakeQuantize
from fxquant.measure.noise import sqnr
from fxquant.measure.runner import OrderedNodes

SAME_DRAW = 10
"""dB: of one rounded layer, behind the same random numbers; with other ones the output is another."""
CLOSE = 1e-5
"""Relative: a batch norm that is folded into a convolution rounds elsewhere in float32."""


class Net(nn.Module):
    """A value that two units read, a residual, a float operator."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.b, self.c, self.norm, self.fc = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.a(x)))
        return self.fc(self.norm((self.b(x) + self.c(x)).mean((2, 3))))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


def forms(model: nn.Module, x: Tensor, mapping: Any = None) -> tuple[fxq.Quantizer, Any]:
    prepared = fxq.calibrate(fxq.prepare(model, x, mapping), [x], progress=False)
    return prepared, fxq.convert(prepared, to="fake_quant")


def test_a_unit_alone_is_a_model_with_only_that_unit_quantized(model: nn.Module) -> None:
    """By hand: all roundings of the simulation taken out but those of one unit."""
    x = torch.randn(2, 3, 8, 8)
    _, simulated = forms(model, x)
    plan = simulated.quant_plan
    alone = UnitsAlone(simulated, plan.units, 0)
    found = {unit.root: output for unit, output in alone.run({"x": x})}
    assert list(found) == [unit.root for unit in plan.units]
    for unit in plan.units:
        keep = {f"{ref.name}_fake_quant" for role, ref in unit.roles.items() if role != "weight"}
        by_hand = forms(model, x)[1]
        for name, module in list(by_hand.named_modules()):
            if isinstance(module, StaticFakeQuantize) and "weight_fake_quant" not in name and name not in keep:
                by_hand.set_submodule(name, nn.Identity())
            elif hasattr(module, "weight_fake_quant") and name not in _layers(by_hand, unit):
                module.forward = module.unrounded
        if unit.root in ("add", "c"):  # these read what another unit reads too, rounded for the one and not the other
            continue
        torch.testing.assert_close(found[unit.root], by_hand(x), rtol=CLOSE, atol=CLOSE)


def _layers(gm: Any, unit: Any) -> set[str]:
    return {str(node.target) for node in gm.graph.nodes if node.op == "call_module" and node.name in unit.nodes}


def test_without_a_unit_it_is_the_float_model_and_with_all_the_simulation(model: nn.Module) -> None:
    x = torch.randn(2, 3, 8, 8)
    _, simulated = forms(model, x)
    alone = UnitsAlone(simulated, simulated.quant_plan.units, 0)
    torch.testing.assert_close(alone.float_output({"x": x}), model(x), rtol=CLOSE, atol=CLOSE)
    assert torch.equal(alone.all_quantized({"x": x}), simulated(x))


def test_an_input_is_rounded_for_the_unit_that_is_quantized_and_for_no_other(model: nn.Module) -> None:
    """``b`` and ``c`` read one value; with ``c`` alone, ``b`` reads it as it is."""
    x = torch.randn(2, 3, 8, 8)
    _, simulated = forms(model, x)
    for module in simulated.modules():
        if isinstance(module, StaticFakeQuantize) and module.scale.numel() == 1:
            module.scale.mul_(20)
    outputs = {u.root: y for u, y in UnitsAlone(simulated, simulated.quant_plan.units, 0).run({"x": x})}
    qparams = simulated.relu_fake_quant
    exact = torch.relu(model.bn(model.a(x)))
    rounded = simulated.c_fake_quant(simulated.c(qparams(exact)))
    expected = model.fc(model.norm((model.b(exact) + rounded).mean((2, 3))))
    torch.testing.assert_close(outputs["c"], expected, rtol=CLOSE, atol=CLOSE)
    both = model.fc(model.norm((model.b(qparams(exact)) + rounded).mean((2, 3))))
    assert not torch.allclose(outputs["c"], both, rtol=CLOSE, atol=CLOSE)


def test_what_is_drawn_at_random_is_the_same_in_every_run() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(nn.functional.dropout(self.a(x), 0.5, True))

    torch.manual_seed(0)
    x = torch.randn(8, 4)
    _, simulated = forms(Noisy().eval(), x)
    runs = [UnitsAlone(simulated, simulated.quant_plan.units, seed) for seed in (1, 1, 2)]
    first, same, other = (run.float_output({"x": x}) for run in runs)
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    for unit, output in runs[0].run({"x": x}):
        assert sqnr(first, output) > SAME_DRAW, unit.root
    assert sqnr(first, other) < SAME_DRAW


def test_a_batch_that_does_not_run_is_refused_by_the_node(model: nn.Module) -> None:
    _, simulated = forms(model, torch.randn(2, 3, 8, 8))
    with pytest.raises(InputError, match="this batch does not run through the model"):
        UnitsAlone(simulated, simulated.quant_plan.units, 0).float_output({"x": torch.randn(2, 5, 8, 8)})


def test_memory_does_not_grow_with_the_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    def most(depth: int) -> int:
        torch.manual_seed(0)
        x = torch.randn(4, 8)
        _, simulated = forms(nn.Sequential(*[nn.Linear(8, 8) for _ in range(depth)]).eval(), x)
        alone, sizes = UnitsAlone(simulated, simulated.quant_plan.units, 0), []
        advance = OrderedNodes.advance

        def counted(self: Any, run: Any, env: dict[Any, Any], start: int, stop: int) -> Any:
            value = None
            for place in range(start, stop):
                value = advance(self, run, env, place, place + 1)
                sizes.append(len(env))
            return value

        monkeypatch.setattr(OrderedNodes, "advance", counted)
        assert len(list(alone.run({"input": x}))) == depth
        monkeypatch.undo()
        return max(sizes)

    assert most(12) == most(4) <= 3
