"""Programs that were decomposed to core ATen are prepared like the models that they were exported of."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.capture.exported.core_aten import GIVE_FIRST, ROWS
from fxquant.capture.exported.program import import_program
from fxquant.capture.exported.spelling import has_row
from tests.sampling import one_of

IMAGE = torch.randn(2, 8, 12, 12, generator=torch.Generator().manual_seed(0))


class Body(nn.Module):
    """A model of one expression."""

    def __init__(self, body: Callable[[Body, Tensor], Tensor], **modules: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = body
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def net() -> nn.Module:
    """Layers whose operators core ATen has under another name."""
    layers = {
        "conv": nn.Conv2d(8, 16, 3, stride=(1, 2), padding=(1, 0), dilation=(2, 1), groups=2, bias=False),
        "norm": nn.BatchNorm2d(16),
        "up": nn.ConvTranspose2d(16, 8, 3, stride=2, output_padding=1, dilation=2, groups=4),
        "rows": nn.LayerNorm(8),
        "fc": nn.Linear(8, 5),
    }

    def body(m: Body, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(m.norm(m.conv(x))), 3, 2, padding=1, ceil_mode=True)
        x = F.adaptive_avg_pool2d(m.up(x), (3, 2)).flatten(2).transpose(1, 2)
        return m.fc(m.rows(x).mean(1)).softmax(-1)

    model = Body(body, **layers)
    with torch.no_grad():
        model.norm.running_mean.uniform_(-1, 1)
        model.norm.running_var.uniform_(0.5, 2)
    return model.eval()


@torch.no_grad()
def test_integers_are_those_of_the_model() -> None:
    model = net()
    program = torch.export.export(model, (IMAGE,)).run_decompositions()
    found = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert {f"aten.{name}.default" for name in ("convolution", "native_layer_norm", "_softmax")} <= found
    prepared, expected = (fxq.prepare(each, IMAGE) for each in (program, model))
    for each in (prepared, expected):
        each.calibrate([IMAGE], progress=False)
    units, wanted = ([unit.pattern for unit in each.plan.units] for each in (prepared, expected))
    assert units == wanted
    assert prepared.coverage().int8_macs == 1.0
    int8, given = fxq.convert(prepared), fxq.convert(expected)
    assert torch.equal(int8(IMAGE), given(IMAGE))
    assert type(int8.get_submodule("conv")) is type(given.get_submodule("conv"))  # by its path


@torch.no_grad()
@pytest.mark.parametrize(
    ("body", "modules", "x"),
    one_of(
        3,
        [
            (lambda m, x: m.layer(x), {"layer": nn.Conv1d(8, 4, 3, padding=1)}, IMAGE[..., 0]),
            (lambda m, x: m.layer(x), {"layer": nn.Conv3d(2, 4, 2, padding=1)}, IMAGE.view(2, 2, 4, 12, 12)),
            (lambda m, x: m.layer(x), {"layer": nn.ConvTranspose1d(8, 4, 3, stride=2)}, IMAGE[..., 0]),
            (lambda m, x: m.layer(x), {"layer": nn.ConvTranspose3d(2, 4, 2, bias=False)}, IMAGE.view(2, 2, 4, 12, 12)),
            (lambda m, x: m.layer(x), {"layer": nn.GroupNorm(4, 8)}, IMAGE),
            (lambda m, x: m.layer(x), {"layer": nn.MaxPool3d(2)}, IMAGE.view(2, 2, 4, 12, 12)),
            (lambda m, x: m.layer(x), {"layer": nn.AdaptiveAvgPool3d((2, 3, 1))}, IMAGE.view(2, 2, 4, 12, 12)),
            (lambda m, x: x.log_softmax(1), {}, IMAGE),
        ],
    ),
    ids=lambda value: next((type(one).__name__ for one in value.values()), "") if isinstance(value, dict) else "",
)
def test_float_graphs_compute_what_the_model_computes(body, modules, x) -> None:
    model = Body(body, **modules).eval()
    program = torch.export.export(model, (x,)).run_decompositions()
    float_graph = import_program(program)
    assert torch.equal(float_graph(x), model(x))
    left = [str(node.target) for node in float_graph.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    assert left == []


class Indices(nn.Module):
    """Reads the second value of a pooling."""

    def forward(self, x: Tensor) -> Tensor:
        values, indices = F.max_pool2d(x, 2, return_indices=True)
        return values + indices


def test_several_values_that_are_read_stay_what_they_are() -> None:
    program = torch.export.export(Indices(), (IMAGE,)).run_decompositions()
    assert torch.equal(import_program(program)(IMAGE), Indices()(IMAGE))


def test_each_row_is_an_operator() -> None:
    assert all(has_row(getattr(torch.ops.aten, name).default) for name in ROWS)
    several = {name for name in ROWS if len(getattr(torch.ops.aten, name).default._schema.returns) > 1}
    assert several == GIVE_FIRST
