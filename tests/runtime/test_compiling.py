"""What of a converted graph becomes programs, and what stays Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.kernels.library import available_isas
from fxquant.runtime import engine_of, without_engine
from fxquant.runtime.compiling import compile_graph
from fxquant.runtime.execution_plan import ProgramStep, ShapesChangedError
from fxquant.runtime.recording import TRANSLATED, Recording

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Net(nn.Module):
    """Two convolutions, and between them what a test wants."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.between = between

    def forward(self, x):
        return self.last(self.between(F.relu(self.first(x))))


def converted(between: Callable[[Tensor], Tensor], **how: Any):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 8, 8)
    prepared = fxq.prepare(Net(between).eval(), x, **how)
    gm = fxq.convert(fxq.calibrate(prepared, [x], progress=False), engine="graph")
    gm(x)
    return gm, x


def kinds(plan) -> list[str]:
    return ["program" if isinstance(step, ProgramStep) else "Python" for step in plan.steps]


def check(gm, plan, x) -> None:
    with torch.no_grad():
        for other in (x, torch.randn_like(x), torch.zeros_like(x)):
            found = plan.run(gm, [other])
            wanted = gm(other)
            assert torch.equal(found, wanted)
            assert found.stride() == wanted.stride()


class Towers(nn.Module):
    """Layers that measure their inputs, and joins of real numbers between them."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(12, 7), nn.Linear(12, 9), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([F.relu(self.left(x)), F.relu(self.right(x))], -1)
        return torch.stack([self.last(x), self.last(x.flip(-1))], 1)


@torch.no_grad()
def test_a_model_without_calibration_is_one_program_in_spite_of_its_joins() -> None:
    torch.manual_seed(0)
    model, x = Towers().eval(), torch.randn(5, 12)
    gm = fxq.convert(fxq.prepare(model, x, fxq.default_dynamic_qconfig), engine="graph")
    gm(x)
    plan, result = compile_graph(gm, [x])
    assert torch.equal(result, gm(x))
    assert kinds(plan) == ["program"]
    check(gm, plan, x)


def shuffle(x):
    n, c, h, w = x.shape
    return x.reshape(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


@pytest.mark.parametrize(
    "between",
    [
        lambda x: x,
        F.hardswish,
        lambda x: F.max_pool2d(x, 2) + F.avg_pool2d(x, 2),
        lambda x: x * F.adaptive_avg_pool2d(x, 1).sigmoid(),
        lambda x: torch.cat((x.chunk(2, 1)[1], x.chunk(2, 1)[0]), 1),
        lambda x: F.pad(x, (1, 1, 0, 1)),
        shuffle,
    ],
)
def test_a_graph_of_native_loops_and_views_is_one_program(between):
    gm, x = converted(between)
    plan, result = compile_graph(gm, [x])
    assert torch.equal(result, gm(x))
    assert kinds(plan) == ["program"]  # Python does not hand the result out
    assert plan.only_program is not None
    check(gm, plan, x)


def test_what_stays_float_runs_in_python_between_two_programs():
    gm, x = converted(lambda x: torch.erfinv(x.clamp(-0.9, 0.9)))
    plan, result = compile_graph(gm, [x])
    assert torch.equal(result, gm(x))
    assert kinds(plan) == ["program", "Python", "program"]
    assert plan.only_program is None
    assert str(plan).startswith("2 programs of 3 nodes (")
    assert [name for name, _ in plan.in_python] == ["relu", "clamp", "erfinv"]
    check(gm, plan, x)


class Count(nn.Module):
    def forward(self, x):
        return x * int((x > 0.5).sum())


def test_sizes_are_known_and_numbers_that_tensors_hold_are_not():
    gm, x = converted(lambda x: x * x.shape[1])
    assert kinds(compile_graph(gm, [x])[0]) == ["program"]
    gm, x = converted(Count(), leaf_modules=(Count,))
    plan, result = compile_graph(gm, [x])
    assert torch.equal(result, gm(x))
    assert "Python" in kinds(plan)
    check(gm, plan, x)


class SomeRows(nn.Module):
    def forward(self, x):
        return torch.erfinv(x[: 1 + int(x[0].mean() > x[1].mean())].clamp(-0.9, 0.9))


def test_a_plan_refuses_inputs_whose_values_change_shapes():
    gm, x = converted(SomeRows(), leaf_modules=(SomeRows,))
    with torch.no_grad():
        plan, result = compile_graph(gm, [x])
        assert torch.equal(result, gm(x))
        assert torch.equal(plan.run(gm, [x]), result)
        with pytest.raises(ShapesChangedError):
            plan.run(gm, [x.flip(0)])


def test_values_are_dropped_when_nobody_reads_them_any_more():
    gm, x = converted(lambda x: torch.erfinv(x.clamp(-0.9, 0.9)))
    plan, _ = compile_graph(gm, [x])
    dropped = [place for places in plan.unused for place in places]
    assert sorted([*dropped, plan.result]) == list(range(plan.slots))


class Containers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        y = self.layer(x)
        return {"y": y, "parts": [y[:, :2], (y[:, 2:], {"again": [y]})]}


def containers(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value), [containers(item) for item in value.values()]
    if isinstance(value, (list, tuple)):
        return type(value), [containers(item) for item in value]
    return type(value)


def test_every_call_gives_the_containers_of_the_model():
    torch.manual_seed(0)
    x = torch.randn(3, 6)
    model = fxq.quantize(Containers().eval(), [x], progress=False)
    wanted = containers(Containers()(x))
    for _ in range(4):
        assert containers(model(x)) == wanted


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.last(self.first(x).flip(0))


def stale(recording: Recording, x: Tensor, dims: Any) -> Tensor:
    """A copy past the recording, as of a binding that forgets to make a step of it."""
    return recording._track_result(x.flip(dims))


def frozen(recording: Recording, x: Tensor, dims: Any) -> Tensor:
    """The same, taken for a constant."""
    return x.flip(dims)


def rows_with(monkeypatch: pytest.MonkeyPatch, planted: Callable[..., Tensor]) -> tuple[nn.Module, Tensor, Tensor]:
    """A model whose flips are recorded by ``planted`` from its second call on, an input, and what it gives for that."""
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = fxq.quantize(Rows().eval(), [x], progress=False)
    wanted = model(x)
    monkeypatch.setitem(TRANSLATED, torch.ops.aten.flip.default, planted)
    return model, x, wanted


def test_a_result_that_no_step_fills_is_not_recorded(monkeypatch):
    model, x, wanted = rows_with(monkeypatch, stale)
    negated = without_engine(model)(-x)
    for _ in range(3):
        assert torch.equal(model(x), wanted)
        assert torch.equal(model(-x), negated)


def test_a_program_that_gives_other_values_is_dropped_with_a_warning(monkeypatch):
    model, x, wanted = rows_with(monkeypatch, frozen)
    with pytest.warns(FxQuantWarning, match=r"a program gave other values(.*\n)+ *at: +x_quantize to last"):
        assert torch.equal(model(x), wanted)
    for _ in range(3):
        assert torch.equal(model(x), wanted)
    (plan,) = engine_of(model).plans
    assert plan.programs == ()
    assert {why for _, why in plan.in_python} == {"the program gave other values"}
    other = torch.randn(4, 6)
    assert torch.equal(model(other), model.__class__.forward.__wrapped__(model, other))


@dataclass
class Scores:
    """What torch takes no container of tensors for, until it is registered."""

    logits: Tensor
    hidden: Tensor | None = None


class Holder:
    """A class of the user's that holds a tensor."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


@torch.fx.wrap
def held(tensor: Tensor) -> Holder:
    return Holder(tensor[1:])


@torch.fx.wrap
def taken(holder: Holder) -> Tensor:
    return holder.tensor.sum(1)


class InDataclass(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 16)

    def forward(self, x):
        return Scores(self.layer(x))


class InBoth(InDataclass):
    def forward(self, x):
        hidden = self.layer(x)
        return {"all": Scores(hidden, hidden[:1])}


class InHolder(InDataclass):
    def forward(self, x):
        return taken(held(self.layer(x)))


def tensors_of(value: Any) -> list[Tensor]:
    if isinstance(value, Scores):
        return [each for each in (value.logits, value.hidden) if each is not None]
    return [value] if isinstance(value, Tensor) else [each for item in value.values() for each in tensors_of(item)]


@pytest.mark.parametrize("model", [InDataclass, InBoth, InHolder])
def test_tensors_in_objects_of_the_users_are_those_of_the_call(model):
    torch.manual_seed(0)
    prepared = fxq.calibrate(fxq.prepare(model().eval(), torch.randn(4, 8)), [torch.randn(4, 8)], progress=False)
    int8, graph = fxq.convert(prepared), fxq.convert(prepared, engine="graph")
    for _ in range(5):
        x = torch.randn(4, 8)
        found, wanted = int8(x), graph(x)
        assert type(found) is type(wanted)
        assert tensors_of(wanted)
        for own, other in zip(tensors_of(found), tensors_of(wanted), strict=True):
            assert torch.equal(own, other)
