"""Whatever fails while programs are made, the graph answers: one warning says what failed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning
from fxquant.kernels.library import available_isas
from fxquant.runtime import compiling, engine_of
from fxquant.runtime.constant_cache import ConstantCache
from fxquant.runtime.program import Program
from fxquant.runtime.recording import Recording

pytestmark = pytest.mark.skipif(not available_isas(), reason="programs are made of native kernels")


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.last(self.first(x).flip(0))


class PlantedError(Exception):
    """What no part of the engine knows of."""


def raising(error: Exception) -> Callable[..., Any]:
    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    return fails


IN_A_PROGRAM = ((Recording, "finish"), (Program, "__init__"), (Program, "gives"))
AROUND_IT = (
    (compiling._Compiler, "plan"),
    (compiling, "function_of"),
    (ConstantCache, "holds"),
    (compiling._Compiler, "run"),
)


@pytest.mark.parametrize(("owner", "name"), [*IN_A_PROGRAM, *AROUND_IT])
def test_whatever_fails_while_programs_are_made_the_graph_answers(monkeypatch, owner, name):
    """With one warning, which names what failed; the inputs of that shape are not tried again."""
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = fxq.quantize(Rows().eval(), [x], progress=False)
    wanted = model(x)
    part = (owner, name) in IN_A_PROGRAM
    happened = "a program failed while it was made, and was dropped" if part else "no programs could be made"
    with monkeypatch.context() as fault:
        fault.setattr(owner, name, raising(PlantedError("three\nlines\nof it")))
        with pytest.warns(FxQuantWarning, match=rf"{happened}(.*\n)+ *got: +PlantedError: three\n") as warned:
            assert torch.equal(model(x), wanted)
    assert [each.filename for each in warned] == [__file__]
    for _ in range(3):
        assert torch.equal(model(x), wanted)
    (plan,) = engine_of(model).plans
    assert plan.programs == ()
    assert "PlantedError: three" in str(plan)
    run_again = torch.randn(5, 6)
    for _ in range(3):
        assert torch.equal(model(run_again), model.__class__.forward.__wrapped__(model, run_again))
    assert len(engine_of(model).plans[1].programs) == 1


@pytest.mark.parametrize("error", [MemoryError("none left"), KeyboardInterrupt()])
@pytest.mark.parametrize(("owner", "name"), [*IN_A_PROGRAM, *AROUND_IT])
def test_missing_memory_and_an_interrupt_are_raised(monkeypatch, owner, name, error):
    torch.manual_seed(0)
    x = torch.randn(4, 6)
    model = fxq.quantize(Rows().eval(), [x], progress=False)
    wanted = model(x)
    with monkeypatch.context() as fault:
        fault.setattr(owner, name, raising(error))
        with pytest.raises(type(error)):
            model(x)
    for _ in range(3):
        assert torch.equal(model(x), wanted)
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
