"""Which units choose together, and why; what they multiply and store."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.precision.groups import INPUT, JOIN, QPARAMS, WEIGHT, precision_groups
from fxquant.quantizer.run_passes import pass_context

X = torch.randn(2, 4, 6, 6, generator=torch.Generator().manual_seed(0))
QCONFIG = fxq.QConfig(
    activation=fxq.MinMaxObserver,
    weight=fxq.MinMaxObserver.with_args(dtype=torch.int8, qscheme="per_tensor_symmetric"),
)


class Net(nn.Module):
    """Layers of 4 channels that keep the size, put together by ``run``."""

    def __init__(self, run) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(4, 4, 1) for _ in range(3))
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def tied(net: Net) -> Net:
    net.b.weight = net.a.weight
    return net


def groups_of(model: nn.Module, backend: str = "cpu", mapping=None):
    prepared = fxq.prepare(model.eval(), X, QCONFIG if mapping is None else mapping, backend=backend)
    return precision_groups(prepared.graph_module, pass_context(prepared, prepared.plan))


CHAIN = Net(lambda n, x: n.c(n.b(n.a(x))))
CASES = {
    "each for itself": (CHAIN, "cpu", [("a", ""), ("b", ""), ("c", "")]),
    "a layer called twice": (Net(lambda n, x: n.b(n.a(n.a(x)))), "cpu", [("a", WEIGHT), ("b", "")]),
    "two layers with one parameter": (
        tied(Net(lambda n, x: n.c(n.b(n.a(x))))),
        "cpu",
        [("a, b", WEIGHT), ("c", "")],
    ),
    "what only moves values": (
        Net(lambda n, x: n.b(F.max_pool2d(n.a(x), 2))),
        "cpu",
        [("a", QPARAMS), ("b", "")],
    ),
    "readers of the model's input": (
        Net(lambda n, x: n.c(n.a(x) + n.b(x))),
        "cpu",
        [("b, a", INPUT), ("c", "")],  # the sum is fused with a,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_chooses_together(name):
    model, backend, expected = CASES[name]
    assert [(group.name, group.reason) for group in groups_of(model, backend)] == expected


def test_what_is_joined_alone_has_the_scale_of_the_join():
    model = Net(lambda n, x: n.c(torch.cat([n.b(n.a(x)), n.b(n.a(x))], 2)))
    found = {group.reason for group in groups_of(model)}
    assert any(QPARAMS in reason for reason in found)


def test_a_back_end_with_one_scale_for_joins():
    def run(n: Net, x: Tensor) -> Tensor:
        a = n.a(x)
        return n.c(torch.cat([a, n.b(a)], 2))

    apart = groups_of(Net(run), "cpu")
    joined = groups_of(Net(run), "openvino")
    assert len(joined) < len(apart)
    assert any(JOIN in group.reason for group in joined)


def test_units_that_stay_float_are_in_no_group():
    mapping = fxq.QConfigMapping().set_global(QCONFIG).set_module_name("b", None)
    assert [group.name for group in groups_of(CHAIN, mapping=mapping)] == ["a", "c"]


def test_work_is_counted_once():
    first, second = groups_of(CASES["a layer called twice"][0])
    assert [work.weights for work in first.work] == [16, 0]  # one parameter
    assert [work.macs for work in first.work] == [2 * 36 * 16] * 2
    assert [work.values for work in (*first.work, *second.work)] == [2 * 4 * 36, 2 * 4 * 36, 0]  # the last is float
    pooled = groups_of(CASES["what only moves values"][0])[0]
    assert [work.values for work in pooled.work] == [2 * 4 * 36, 0]
