"""The source of generated code is there as long as the code is, and in tracebacks."""

from __future__ import annotations

import gc
import inspect
import keyword
import linecache
import pickle
import traceback

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import graph_module

import fxquant as fxq
from fxquant.capture.tracing import trace
from tests.sampling import one_of

X = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x).relu()


def test_the_source_is_there_as_long_as_the_code_is() -> None:
    gm = trace(Net().eval(), example_args=(X,))
    forward = inspect.unwrap(type(gm).forward)
    name, old = forward.__code__.co_filename, gm.code
    gm.recompile()
    gm.recompile()
    assert "".join(linecache.getlines(name)).strip() == old.strip()
    del forward
    gm.recompile()
    assert name not in linecache.cache
    assert name not in graph_module._loader.eval_cache
    now = inspect.unwrap(type(gm).forward).__code__.co_filename
    assert "".join(linecache.getlines(now)).strip() == gm.code.strip()


def test_a_traceback_shows_the_lines_of_a_model_that_is_gone() -> None:
    def failed() -> BaseException:
        gm = trace(Net().eval(), example_args=(X,))
        with pytest.raises(RuntimeError) as caught:
            type(gm).forward(gm, torch.rand(2, 5, 8, 8))
        return caught.value

    error = failed()
    gc.collect()
    trace(Net().eval(), example_args=(X,))
    assert "conv = self.conv(" in "".join(traceback.format_exception(error))


class Keywords(nn.Module):
    """Modules, a parameter, a buffer and a plain tensor under keywords of Python, at several depths."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({name: nn.Linear(4, 4) for name in keyword.kwlist})
        inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.parts["global"] = nn.ModuleDict({"is": inner, "0x": nn.Linear(4, 4)})
        self.register_parameter("yield", nn.Parameter(torch.eye(4)))
        self.register_buffer("None", torch.full((4,), 0.5))
        setattr(self, "True", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = sum(self.parts[name](x) for name in keyword.kwlist if name != "global")
        y = y + self.parts["global"]["is"](x) + self.parts["global"]["0x"](x)
        return F.linear(y, getattr(self, "yield")) * getattr(self, "None") + getattr(self, "True")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("form", one_of(3, ["int8", "fake_quant", "reference", "training"]))
def test_keywords_of_python_are_names_as_others_are(form: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(8, 4)
    model = Keywords().eval()
    if form == "training":
        trained = fxq.prepare_qat(model, x)
        trained(x).sum().backward()
        made = fxq.convert(trained)
    else:
        rules = fxq.get_default_qconfig_mapping().set_module_name("parts.in", None)  # a step of a plan in float
        made = fxq.convert(fxq.calibrate(fxq.prepare(model, x, rules), [x], progress=False), to=form)
    expected = made(x)
    assert 10 * torch.log10(model(x).var() / (expected - model(x)).var()) > 25
    for _ in range(3):
        assert torch.equal(made(x), expected)
    assert torch.equal(pickle.loads(pickle.dumps(made))(x), expected)
    assert 'getattr(self.parts, "in")(' in made.code
    assert made.graph._codegen._body_transformer is None
