"""Plans run their steps in order, and notice what has changed."""

from __future__ import annotations

import warnings
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.kernels.library import available_isas
from fxquant.nn.quantize import Quantize
from fxquant.plan.spec import QParams, QScheme
from fxquant.runtime import compiling, engine_of
from fxquant.runtime.constant_cache import ConstantCache
from fxquant.runtime.execution_plan import (
    ExecutionPlan,
    ModuleGuard,
    PythonStep,
    ShapesChangedError,
    StateGuard,
    function_of,
    layout_of,
)
from fxquant.runtime.program import Program
from fxquant.runtime.recording import Recording


def step(takes, gives, function, expected=(None,)) -> PythonStep:
    return PythonStep(takes, gives, function, expected, (("erfinv", "aten.erfinv.default is no native loop"),))


def test_values_pass_through_their_places():
    steps = (
        step((0,), (1, 2), lambda module, x: (x + module.number, x * 2), (None, None)),
        step((2, 1), (3,), lambda module, a, b: (a - b,)),
    )
    module = nn.Module()
    module.number = 5
    plan = ExecutionPlan(steps, 4, ((0,), (1, 2)), 3, ())
    assert plan.run(module, [3]) == 3 * 2 - (3 + 5)
    assert str(plan).splitlines() == [
        "0 programs of 0 nodes (0 loops, 0.0 MB), 2 nodes in Python",
        "  in Python    why",
        "  erfinv       aten.erfinv.default is no native loop",
        "  erfinv       aten.erfinv.default is no native loop",
    ]


def test_a_tensor_of_another_shape_ends_the_run():
    x = torch.zeros(2, 3)
    made = step((0,), (1,), lambda module, x: (x + 1,), (layout_of(x),))
    plan = ExecutionPlan((made,), 2, ((0,),), 1, ())
    assert torch.equal(plan.run(nn.Module(), [x]), x + 1)
    for other in (torch.zeros(3, 3), torch.zeros(3, 2).t(), torch.zeros(2, 3, dtype=torch.float64)):
        with pytest.raises(ShapesChangedError):
            plan.run(nn.Module(), [other])


def test_a_negation_that_is_only_noted_down_is_part_of_the_geometry():
    lazy = torch._neg_view(torch.zeros(2, 3))
    assert layout_of(lazy) != layout_of(lazy.clone())


def guarded_module():
    qparams = QParams(QScheme(signed=False), torch.tensor([0.1]), torch.tensor([3], dtype=torch.int32))
    parent = nn.Module()
    parent.add_module("inner", Quantize(qparams))
    parent.inner(torch.zeros(2))
    place = ModuleGuard(parent._modules, "inner", parent.inner)
    return parent, ExecutionPlan((), 0, (), 0, (place, StateGuard(parent.inner, parent.inner._packed)))


def replace(parent):
    parent.inner = nn.Identity()


def set_forward(parent):
    parent.inner.forward = lambda x: x


@pytest.mark.parametrize(
    "change",
    [
        replace,
        set_forward,
        lambda parent: parent.inner.invalidate(),
        lambda parent: parent.load_state_dict(parent.state_dict()),
        lambda parent: parent.inner.register_forward_hook(print),
        lambda parent: parent.inner.register_forward_pre_hook(print),
        lambda parent: parent._modules.pop("inner"),
    ],
)
def test_a_change_of_a_module_is_noticed(change):
    parent, plan = guarded_module()
    assert plan.is_valid()
    change(parent)
    assert not plan.is_valid()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x):
        size = x.size(0)
        y = self.inner(x).reshape(size, 3)
        return {"sum": y + x[:, :3], "all": (y, x)}


def test_a_part_of_a_graph_runs_as_the_graph_does():
    torch.manual_seed(0)
    model = symbolic_trace(Model())
    x, size, inner, y, *_ = model.graph.nodes
    part = function_of([inner, y], [x], (y, inner), {size: 2})
    given = torch.randn(2, 4)
    result, same = part(model, given)
    assert torch.equal(result, model.inner(given))
    assert torch.equal(same, result)


def test_results_keep_their_structure():
    model = symbolic_trace(Model())
    x, *body, output = model.graph.nodes
    whole = function_of(body, [x], output.args[0], {})
    given = torch.randn(2, 4)
    found, wanted = whole(model, given), model(given)
    assert found.keys() == wanted.keys()
    assert torch.equal(found["sum"], wanted["sum"])
    assert found["all"][1] is given


def test_known_values_keep_their_classes_and_are_made_anew():
    model = symbolic_trace(Model())
    x, size, inner, *_ = model.graph.nodes
    for known in (
        torch.Size([2]),
        OrderedDict(n=torch.Size([2])),
        deque([2, [3]], maxlen=2),
        {"n": torch.Size([2])},
        [2],
    ):
        part = function_of([inner], [x], (size, inner), {size: known})
        found, again = (part(model, torch.randn(2, 4))[0] for _ in range(2))
        assert (type(found), found) == (type(known), known)
        assert type(known) is torch.Size or found is not again
        if isinstance(known, dict):
            assert type(found["n"]) is torch.Size


def test_the_module_is_asked_for_its_layers_in_each_call():
    model = symbolic_trace(Model())
    x, size, inner, *_ = model.graph.nodes
    part = function_of([inner], [x], inner, {size: 2})
    model.inner = nn.Linear(4, 7)
    assert part(model, torch.randn(2, 4)).shape == (2, 7)


pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return (self.last(self.first(x).flip(0)),)  # a tuple, which Python makes behind the program


class PlantedError(Exception):
    """What no part of the engine knows of."""


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fails


IN_A_PROGRAM = ((Recording, "finish"), (Program, "__init__"), (Program, "reproduces"))
AROUND_IT = (
    (compiling._Compiler, "plan"),
    (compiling, "function_of"),
    (ConstantCache, "stay_constant"),
    (compiling._Compiler, "run"),
)


@pytest.mark.parametrize(("owner", "name"), [*IN_A_PROGRAM, *AROUND_IT])
def test_whatever_fails_while_programs_are_made_the_graph_answers(monkeypatch, owner, name):
    """With one warning, which names what failed; the inputs of that shape are not tried again."""
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = fxq.quantize(Rows().eval(), [x], progress=False)
    (wanted,) = model(x)
    part = (owner, name) in IN_A_PROGRAM
    happened = "a program failed while it was made, and was dropped" if part else "no programs could be made"
    with monkeypatch.context() as fault:
        fault.setattr(owner, name, raising(PlantedError("three\nlines\nof it")))
        with pytest.warns(FxQuantWarning, match=rf"{happened}(.*\n)+ *got: +PlantedError: three\n") as warned:
            assert torch.equal(*model(x), wanted)
    assert [each.filename for each in warned] == [__file__]
    for _ in range(3):
        assert torch.equal(*model(x), wanted)
    (plan,) = engine_of(model).plans
    assert plan.programs == ()
    assert "PlantedError: three" in str(plan)
    run_again = torch.randn(5, 6)
    for _ in range(3):
        assert torch.equal(*model(run_again), *model.__class__.forward.__wrapped__(model, run_again))
    assert len(engine_of(model).plans[1].programs) == 1


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyboardInterrupt()])
@pytest.mark.parametrize(("owner", "name"), [*IN_A_PROGRAM, *AROUND_IT])
def test_missing_memory_and_an_interrupt_are_raised(monkeypatch, owner, name, error):
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = fxq.quantize(Rows().eval(), [x], progress=False)
    (wanted,) = model(x)
    with monkeypatch.context() as fault:
        fault.setattr(owner, name, raising(error))
        with pytest.raises(type(error)):
            model(x)
    for _ in range(3):
        assert torch.equal(*model(x), wanted)
    assert len(engine_of(model).plans[0].programs) == 1


class Refusing(nn.Module):
    """A module that stays float, and that fails from some call on."""

    fails = False

    def forward(self, x):
        if self.fails:
            raise ValueError("too much of it")
        return torch.erfinv(x.clamp(-0.9, 0.9))


def test_an_error_of_the_model_is_raised_as_it_is(monkeypatch):
    x = torch.randn(4, 6)
    float_ = nn.Sequential(nn.Linear(6, 6), Refusing(), nn.Linear(6, 6)).eval()
    model = fxq.quantize(float_, [x], leaf_modules=(Refusing,), progress=False)
    model(x)
    monkeypatch.setattr(Refusing, "fails", True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="too much of it") as raised:
            model(x)
    assert raised.value.__context__ is None
