"""The tracer: leaves, in-place operators, known shapes, fixed arguments, and state that may not be traced."""

from __future__ import annotations

import operator
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor, nn

from fxquant.capture.proxies import KnownTensorProxy
from fxquant.capture.tracer import QuantTracer


class Fn(nn.Module):
    def __init__(self, function, **modules: nn.Module) -> None:
        super().__init__()
        self.function = function
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def targets(model: nn.Module) -> list:
    return [node.target for node in QuantTracer().trace(model).nodes if node.op.startswith("call")]


def test_torch_modules_are_leaves_and_containers_are_not():
    model = nn.Sequential(nn.Sequential(nn.Conv2d(3, 3, 1)), nn.ReLU())
    assert targets(model) == ["0.0", "1"]


def test_in_place_operators_are_recorded_as_what_they_are():
    def forward(self, x):
        y = x
        y += 1
        y *= 2
        y[0] = 3
        return y

    assert targets(Fn(forward)) == [operator.iadd, operator.imul, operator.setitem]


def test_shapes_of_parameters_are_known_while_tracing():
    def forward(self, x):
        weight = self.layer.weight
        assert weight.shape == (2, 3)
        assert (weight.size(0), weight.dim(), weight.numel(), len(weight)) == (2, 2, 6, 2)
        return x @ weight.t() if weight.ndim == 2 and weight.dtype == torch.float32 else x

    graph = QuantTracer().trace(Fn(forward, layer=nn.Linear(3, 2)))
    assert [node.target for node in graph.nodes if node.op == "get_attr"] == ["layer.weight"]
    assert issubclass(KnownTensorProxy, torch.fx.Proxy)


def test_threads_trace_one_at_a_time_and_run_their_models_meanwhile():
    def forward(self, x):
        inside.set()
        assert ran.wait(timeout=30)
        return self.a(x) + 1

    inside, ran = threading.Event(), threading.Event()
    x = torch.ones(1, 2)
    first, second = Fn(forward, a=nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    want = second(x)
    with ThreadPoolExecutor(2) as pool:
        traced = pool.submit(targets, first)
        assert inside.wait(timeout=30)
        also = pool.submit(targets, second)
        assert torch.equal(second(x), want)
        assert not also.done()
        ran.set()
        assert traced.result() == ["a", operator.add]
        assert also.result() == ["0", "1"]
    assert torch.equal(second(x), want)
