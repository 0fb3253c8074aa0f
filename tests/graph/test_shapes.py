from __future__ import annotations

import pytest
import torch
from torch import nn

from fxquant.capture.tracing import trace
from fxquant.errors import InputError
from fxquant.graph.query import VALUE, TensorInfo
from fxquant.graph.shapes import run_example, unchanged_state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x):
        y = self.conv(x)
        a, b = y.chunk(2, 1)[0], y.size(0)
        return a.long(), b


def test_every_value_is_described():
    gm = trace(Net(), example_args=(torch.zeros(2, 3, 4, 4),))
    meta = {node.name: node.meta[VALUE] for node in gm.graph.nodes}
    half = TensorInfo((2, 2, 2, 2), torch.float32, torch.device("cpu"), contiguous=False)
    assert meta["chunk"] == (half, half)
    assert meta["getitem"] == half
    assert meta["size"] is int
    assert meta["long"].dtype is torch.int64
    assert meta["output"] == (meta["long"], int)


def test_an_example_that_does_not_run_names_node_line_and_expectation():
    line = Net.forward.__code__.co_firstlineno + 1
    with pytest.raises(InputError) as caught:
        trace(Net(), example_args=(torch.zeros(2, 5, 4, 4),))
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("the example inputs do not run through the model: Given groups=1")
    assert lines[1].startswith("  at:       %conv : ")
    assert lines[1].endswith(f"from {__file__}:{line}")
    assert lines[2:] == [
        "  got:      (float32[2, 5, 4, 4])",
        "  expected: Conv2d with 3 input channels",
        "  hint:     example_inputs (--input of a command) must be inputs that the model itself can run on",
    ]


def test_run_example_visits_in_order_and_leaves_the_inputs_alone():
    class Adds(nn.Module):
        def forward(self, x):
            return x.add_(1)

    x = torch.zeros(2)
    gm = trace(Adds(), example_args=(x,))
    seen: list[str] = []
    out = run_example(gm, (x,), {}, lambda node, value: seen.append(node.name))
    assert seen == ["x", "add_", "output"]
    assert torch.equal(out, torch.ones(2))
    assert torch.equal(x, torch.zeros(2))


def test_unchanged_state_puts_buffers_and_random_state_back_even_after_an_error():
    bn = nn.BatchNorm1d(2)
    state = torch.random.get_rng_state()

    def fail() -> None:
        with unchanged_state(bn):
            bn(torch.rand(4, 2))
            assert not torch.equal(bn.running_mean, torch.zeros(2))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(bn.running_mean, torch.zeros(2))
    assert int(bn.num_batches_tracked) == 0
    assert torch.equal(torch.random.get_rng_state(), state)
