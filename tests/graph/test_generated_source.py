"""The source of generated code is there as long as the code is, and in tracebacks."""

from __future__ import annotations

import gc
import inspect
import linecache
import traceback

import pytest
import torch
from torch import Tensor, nn
from torch.fx import graph_module

from fxquant.capture.tracing import trace

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
