"""What is computed once for all calls, and when that would be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.kernels.library import available_isas
from fxquant.runtime.compiling import compile_graph
from fxquant.runtime.constant_cache import LARGEST_CACHED
from fxquant.runtime.execution_plan import PythonStep
from fxquant.runtime.program_engine import engine_of

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")

Between = Callable[["Net", Tensor], Tensor]


class Net(nn.Module):
    """Two convolutions, and between them what a test wants."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.between = between
        self.table = nn.Parameter(torch.rand(8, 8))
        self.register_buffer("state", torch.zeros(8, 8))

    def forward(self, x):
        return self.last(self.between(self, F.relu(self.first(x))))


def converted(between: Between, engine: str = "program"):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(Net(between).eval(), x)
    return fxq.convert(fxq.calibrate(prepared, [x], progress=False), engine=engine), x


def mask_of_sizes(net, x):
    """As shifted windows have it."""
    mask = x.new_zeros((x.shape[2], x.shape[3]))
    mask[:3, 2:] = 5.0
    mask[4:, :3] = -1.0
    mask = mask.unsqueeze(0) - mask.unsqueeze(1)
    return x + mask.masked_fill(mask != 0, -2.0).mean(0)


def looked_up(net, x):
    rows = net.table.view(-1)[torch.arange(64) % 7]
    return x + rows.view(8, 8).contiguous()


@pytest.mark.parametrize("between", [mask_of_sizes, looked_up])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_what_follows_from_shapes_and_parameters_does_not_run_again(between, mode):
    gm, x = converted(between, "graph")
    with mode():
        wanted = gm(x)
        plan, result = compile_graph(gm, [x])
        other = torch.randn_like(x)
        assert torch.equal(result, wanted)
        assert torch.equal(plan.run(gm, [other]), gm(other))
        kept = sum(step.nodes for step in plan.steps if isinstance(step, PythonStep))
        all_run, _ = compile_graph(gm, [x], fold_constants=False)
        assert kept < sum(step.nodes for step in all_run.steps if isinstance(step, PythonStep))
        assert torch.equal(all_run.run(gm, [other]), gm(other))
    assert kept <= 2  # the float addition, and handing the result out


def test_a_parameter_that_is_written_to_counts():
    gm, x = converted(looked_up)
    graph, _ = converted(looked_up, "graph")
    with torch.no_grad():
        for _ in range(3):
            gm(x)
        assert len(engine_of(gm).plans) == 1
        for model in (gm, graph):
            model.table.mul_(3.0)
        for _ in range(3):
            assert torch.equal(gm(x), graph(x))
        for model in (gm, graph):
            model.table = nn.Parameter(torch.ones(8, 8))
        for _ in range(3):
            assert torch.equal(gm(x), graph(x))


def test_gradients_reach_a_parameter():
    gm, x = converted(looked_up)
    gm.table.requires_grad_()
    for _ in range(3):
        gm(x)  # autograd on: nothing of the table may be kept
    (plan,) = engine_of(gm).plans
    assert all(not tensor.requires_grad for _, tensor in plan.constants if isinstance(tensor, Tensor))


def draws(net, x):
    return x + torch.rand(x.shape[2], x.shape[3])


def draws_from_shape(net, x):
    return x + torch.zeros_like(x).uniform_(0.0, 50.0)


@pytest.mark.parametrize("between", [draws, draws_from_shape])
def test_random_numbers_are_drawn_in_each_call(between):
    gm, x = converted(between)
    with torch.no_grad():
        results = [gm(x) for _ in range(5)]
    assert all(not torch.equal(results[-1], result) for result in results[:-1])


def test_what_the_graph_changes_later_is_not_kept():
    """``uses`` is read before the last write, which a value that is kept would hold already."""

    def between(net, x):
        mask = torch.zeros(8, 8)
        mask[0] = 1.0
        uses = x * mask
        mask[0] = -3.0
        return uses + mask

    gm, x = converted(between)
    graph, _ = converted(between, "graph")
    with torch.no_grad():
        for other in (x, torch.randn_like(x), torch.randn_like(x), torch.randn_like(x)):
            assert torch.equal(gm(other), graph(other))
    assert len(engine_of(gm).plans) == 1


def test_what_values_are_written_into_is_not_kept():
    def between(net, x):
        mask = torch.zeros(8, 8)
        mask[1:] = x[0, 0, 1:]
        return x * mask

    gm, x = converted(between)
    graph, _ = converted(between, "graph")
    with torch.no_grad():
        for other in (x, torch.randn_like(x), torch.randn_like(x), torch.randn_like(x)):
            assert torch.equal(gm(other), graph(other))
    assert len(engine_of(gm).plans) == 1


class Hands(nn.Module):
    """Gives a value of shapes alone to its user."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        positions = torch.arange(x.shape[-1]) * 2
        return self.layer(x), positions[:4]


def test_what_the_user_gets_is_the_users():
    x = torch.randn(1, 3, 8, 8)
    gm = fxq.convert(fxq.calibrate(fxq.prepare(Hands().eval(), x), [x], progress=False))
    with torch.no_grad():
        for _ in range(5):
            positions = gm(x)[1]
            assert positions.tolist() == [0, 2, 4, 6]
            positions.zero_()


def test_large_values_are_made_in_each_call():
    count = LARGEST_CACHED // 4 + 1

    def between(net, x):
        return x + torch.ones(count).sum() / count

    gm, x = converted(between)
    with torch.no_grad():
        for _ in range(3):
            gm(x)
    (plan,) = engine_of(gm).plans
    assert all(tensor.untyped_storage().nbytes() <= LARGEST_CACHED for _, tensor in plan.constants)
