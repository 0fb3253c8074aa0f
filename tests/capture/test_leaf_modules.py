"""Models that are traced already."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrizations

import fxquant as fxq
from fxquant.errors import InputError, TracingError

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def net() -> nn.Module:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    return nn.Sequential(block, nn.Flatten(), nn.Linear(8 * 36, 4))


def test_a_plain_graph_trains_and_converts():
    float_model = net().train()
    traced = torch.fx.symbolic_trace(float_model)
    qat, twin = fxq.prepare_qat(traced, X), fxq.prepare_qat(float_model, X)
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in twin.named_parameters()]
    for each in (qat, twin):
        each(X).square().mean().backward()
        each.eval().apply(fxq.disable_observer)
    assert torch.equal(fxq.convert(qat, check=X)(X), fxq.convert(twin)(X))


def test_a_plain_graph_computes_weights_while_training():
    model = nn.Sequential(nn.Linear(4, 8), parametrizations.weight_norm(nn.Linear(8, 4))).train()
    qat = fxq.prepare_qat(torch.fx.symbolic_trace(model), torch.randn(8, 4))
    assert [name for name, _ in qat.named_parameters()] == [name for name, _ in model.named_parameters()]
    qat(torch.randn(8, 4)).sum().backward()
    assert all(parameter.grad is not None for parameter in qat.parameters())
    assert fxq.convert(qat.eval())(torch.randn(8, 4)).shape == (8, 4)


def test_leaf_modules_are_calls_of_the_graph():
    traced = torch.fx.symbolic_trace(net()).eval()
    rows = fxq.prepare(traced, X, leaf_modules=["2"]).coverage().float_rows
    assert ("2", "kept whole and in float by leaf_modules") in [(row.module, row.reason) for row in rows]
    with pytest.raises(InputError) as caught:
        fxq.prepare(traced, X, leaf_modules=["0"])
    assert str(caught.value).splitlines() == [
        "the model is traced already, and its graph has taken apart what leaf_modules names",
        "  got:      '0'",
        "  expected: a module that the graph calls",
        "  hint:     give the model that was traced, or trace it with a Tracer whose is_leaf_module keeps that whole",
    ]


@pytest.mark.filterwarnings("ignore:the model is in training mode")  # which make_fx says of what it gives
@pytest.mark.parametrize("make", [fxq.prepare, fxq.prepare_qat])
def test_a_graph_of_torch_export_without_its_program_is_refused(make):
    exported = make_fx(net().eval())(X)
    with pytest.raises(TracingError) as caught:
        make(exported, X)
    lines = str(caught.value).splitlines()
    assert lines[0] == "the model is a graph of torch.export, which calls operators of ATen in place of modules"
    assert lines[1] == "  got:      aten.convolution.default"
    assert lines[-1].startswith("  hint:     give the ExportedProgram, its module(), or the model")
