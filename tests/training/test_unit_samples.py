"""Outputs computed one by one are those of the layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn
from torch.fx import GraphModule, Tracer

from fxquant.graph.interpreter import BoundInterpreter
from fxquant.nn.weight_forms import with_fake_quantized_weight
from fxquant.training import unit_samples
from fxquant.training.resumable_run import Memory, ResumableRun
from fxquant.training.unit_samples import RowSamples, UnitNodes, WholeSamples, patches

ORDER = 1e-5
"""Of the largest value: float32 sums in another order."""

CONVOLUTIONS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "plain": (nn.Conv2d(4, 6, 3), (2, 4, 7, 9)),
    "strided": (nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0)), (2, 4, 7, 9)),
    "dilated groups": (nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2), (2, 4, 7, 9)),
    "depthwise": (nn.Conv2d(4, 4, 3, padding=1, groups=4, bias=False), (2, 4, 7, 9)),
    "same, even": (nn.Conv2d(4, 6, 4, padding="same"), (2, 4, 7, 9)),
    "reflected": (nn.Conv2d(4, 6, 3, padding=(2, 1), padding_mode="reflect"), (2, 4, 7, 9)),
    "circular": (nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular"), (2, 4, 7, 9)),
    "unbatched": (nn.Conv2d(4, 6, 3, padding=1), (4, 7, 9)),
    "1d": (nn.Conv1d(4, 6, 3, stride=2, groups=2), (2, 4, 11)),
    "3d": (nn.Conv3d(2, 4, (1, 3, 2), padding=(1, 0, 1), groups=2), (2, 2, 3, 5, 4)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_patches_are_what_the_weight_is_multiplied_with(name: str) -> None:
    conv, shape = CONVOLUTIONS[name]
    if conv.groups > 1:
        conv = type(conv)(conv.in_channels, 6, conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    x = torch.randn(shape)
    y = conv(x).detach()
    channels_last = y.movedim(-1 - len(conv.kernel_size), -1).reshape(-1, 6)
    chosen = torch.randperm(len(channels_last))[:20]
    weight = conv.weight.detach().movedim(1, -1).flatten(1)
    rows = patches(x, conv, y.shape, chosen) @ weight.t()
    expected = channels_last[chosen] - (0 if conv.bias is None else conv.bias.detach())
    assert torch.allclose(rows, expected, rtol=0, atol=ORDER * float(y.abs().max()))


class Unit(nn.Module):
    """A layer, a tensor that is added, a clamp."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = with_fake_quantized_weight(layer, nn.Identity())

    def forward(self, x: Tensor, residual: Tensor) -> Tensor:
        return F.relu(torch.add(self.layer(x), residual))


class Leaves(Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def unit(layer: nn.Module, *shapes: tuple[int, ...], memory: Memory) -> tuple[UnitNodes, ResumableRun, list[Tensor]]:
    """A unit, the batches that it reads, and what it should give: something else than it does."""
    model = Unit(layer)
    gm = GraphModule(model, Leaves().trace(model))
    x, residual, called, *after, _ = gm.graph.nodes
    nodes = UnitNodes((called, *after), called)
    inputs, targets = [], []
    for shape in shapes:
        batch = torch.randn(shape)
        with torch.no_grad():
            y = layer(batch)
        inputs.append({"x": batch, "residual": torch.randn(y.shape[-1:])})
        targets.append(y + torch.randn(y.shape))
    lane = ResumableRun(BoundInterpreter(gm, {}), list(gm.graph.nodes)[:-1], inputs, memory)
    for batch_index in range(len(shapes)):
        lane.advance(batch_index, 2)
    assert nodes.read == (x, residual)
    return nodes, lane, targets


@pytest.mark.filterwarnings("ignore:Using padding='same' with even")
@pytest.mark.parametrize("name", [*CONVOLUTIONS, "linear"])
def test_rows_and_whole_values_have_one_error_and_one_gradient(name: str) -> None:
    layer, shape = CONVOLUTIONS.get(name, (nn.Linear(5, 6), (3, 4, 5)))
    weight = (layer.weight.detach() + 0.1).requires_grad_()
    results = []
    with Memory(1 << 30) as memory:
        nodes, lane, targets = unit(layer, shape, shape, memory=memory)
        assert nodes.is_row_by_row
        for found in (
            RowSamples(nodes, lane, targets, memory, Generator()),
            WholeSamples(nodes, lane, targets),
        ):
            parts = [(found.loss(weight, drawn), rows) for drawn, rows in found.all()]
            loss = torch.stack([part * rows for part, rows in parts]).sum() / sum(rows for _, rows in parts)
            assert found.mean_loss(weight) == pytest.approx(loss.item(), rel=ORDER)
            results.append((loss.item(), *torch.autograd.grad(loss, weight)))
    (one, slope), (other, other_slope) = results
    assert one == pytest.approx(other, rel=ORDER)
    assert torch.allclose(slope, other_slope, rtol=0, atol=10 * ORDER * float(slope.abs().max()))


def test_batches_of_other_sizes_are_drawn_from_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unit_samples, "LARGEST_SAMPLE", 100 * (4 * 9 + 12))
    monkeypatch.setattr(unit_samples, "ROWS_AT_ONCE", 16)
    with Memory(1 << 30) as memory:
        nodes, lane, targets = unit(nn.Conv2d(4, 6, 3), (2, 4, 12, 12), (2, 4, 7, 7), memory=memory)
        found = RowSamples(nodes, lane, targets, memory, Generator().manual_seed(0))
        assert [rows for _, rows in found.all()] == [16] * 6 + [4]
        rows = torch.cat([drawn.target for drawn, _ in found.all()])
        values = [target.movedim(1, -1).reshape(-1, 6) for target in targets]
        first = sum(any(torch.equal(row, value) for value in values[0]) for row in rows)
        assert first == 100 * len(values[0]) // (len(values[0]) + len(values[1]))
        drawn = found.draw(7, Generator().manual_seed(1))
        assert [len(drawn.inputs), len(drawn.target), *map(len, drawn.added.values())] == [7, 7, 7]


def test_whole_values_are_drawn_by_items() -> None:
    with Memory(1 << 30) as memory:
        nodes, lane, targets = unit(nn.ConvTranspose2d(4, 6, 2), (8, 4, 5, 5), memory=memory)
        assert not nodes.is_row_by_row
        residual = {"residual": torch.randn(8, 1, 1, 6)}
        lane._values[0].update({node: residual[node.name] for node in lane._values[0] if node.name in residual})
        found = WholeSamples(nodes, lane, targets)
        for rows, items in ((1, 1), (3 * 36, 3), (10_000, 8)):
            values, target = found.draw(rows, Generator().manual_seed(0))
            assert [len(target), *(len(value) for value in values.values())] == [items] * 3


def test_errors_of_half_precision_are_summed_in_float32() -> None:
    layer = nn.ConvTranspose2d(4, 6, 2, bias=False)
    error = 100.0  # of each of 288 outputs: the sum of their squares is no float16
    with Memory(1 << 30) as memory:
        nodes, lane, _ = unit(layer, (2, 4, 3, 3), memory=memory)
        layer.half()
        nodes.module.half()
        lane._values[0] = {node: value.half() for node, value in lane.values(0).items()}
        y = nodes.run(lane.values(0), nodes.module).detach()
        found = WholeSamples(nodes, lane, [y + error])
        squared = found.unit**2 * found.mean_loss(nodes.module.weight.detach())
        assert squared == pytest.approx(6 * error**2, rel=1e-2)
