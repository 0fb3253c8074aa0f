"""Models that are prepared, converted, copied and run again and again leave nothing behind."""

from __future__ import annotations

import copy
import ctypes
import gc
import linecache
import pickle
import traceback
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import graph_module

import fxquant as fxq
from fxquant.capture.tracing import trace

X = torch.linspace(-1, 1, 384).reshape(2, 3, 8, 8)
TIMES = 12

KEPT_BY_TORCH = 0
"""Objects that torch itself keeps of each call: none, once the sources of generated code are let go."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.relu(self.conv(x)).mean((2, 3)))


torch.manual_seed(3)
NET = Net().eval()
LIVING = trace(NET, example_args=(X,))


@pytest.fixture(scope="module")
def prepared() -> fxq.Quantizer:
    found = fxq.prepare(NET, example_inputs=(X,))
    fxq.calibrate(found, [(X,)], progress=False)
    return found


@pytest.fixture(scope="module", autouse=True)
def nothing_but_new_objects() -> Iterator[None]:
    """What was there before is neither searched nor counted: in a process that has run other tests, that takes long."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def by_count_alone() -> Iterator[None]:
    """Objects go when nothing refers to them, or not at all."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def held() -> tuple[int, int, int]:
    """Objects, kept sources, and entries of linecache, once a further ``recompile`` has removed what is unused."""
    gc.collect()
    LIVING.recompile()
    gc.collect()
    return len(gc.get_objects()), len(graph_module._loader.eval_cache), len(linecache.cache)


def run(model: nn.Module) -> None:
    with torch.no_grad():
        for _ in range(3):
            model(X)


def prepare_and_calibrate(prepared: Any) -> None:
    fxq.calibrate(fxq.prepare(NET, example_inputs=(X,)), [(X,)], progress=False)


def train(prepared: Any) -> None:
    fxq.prepare_qat(Net().train(), example_inputs=(X,))(X).sum().backward()


def fail(prepared: Any) -> None:
    """A call that fails fills the entry of linecache."""
    gm = trace(Net().eval(), example_args=(X,))
    try:
        gm(torch.rand(2, 5, 8, 8))
    except RuntimeError:
        traceback.format_exc()


REPEATED: dict[str, Callable[[Any], Any]] = {
    "convert": fxq.convert,
    "convert to reference": lambda prepared: fxq.convert(prepared, to="reference"),
    "run by programs": lambda prepared: run(fxq.convert(prepared)),
    "run by the graph": lambda prepared: run(fxq.convert(prepared, engine="graph")),
    "copy": lambda prepared: copy.deepcopy(fxq.convert(prepared)),
    "pickle": lambda prepared: pickle.loads(pickle.dumps(fxq.convert(prepared))),
    "prepare and calibrate": prepare_and_calibrate,
    "train": train,
    "fail": fail,
}


LESS_OFTEN = ("convert to reference", "run by the graph", "copy")
"""Of what others do, too: conversion, a run, and a copy, which pickle takes as well."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LESS_OFTEN else ()) for name in REPEATED]
)
def test_repeated_calls_leave_nothing(name: str, prepared: fxq.Quantizer) -> None:
    for _ in range(3):
        REPEATED[name](prepared)
    before = held()
    for _ in range(TIMES):
        REPEATED[name](prepared)
    objects, sources, lines = (now - then for now, then in zip(held(), before, strict=True))
    assert sources <= 0
    assert lines <= 0
    assert objects // TIMES <= KEPT_BY_TORCH


MADE: dict[str, Callable[[Any], Any]] = {
    "int8": fxq.convert,
    "graph": lambda prepared: fxq.convert(prepared, engine="graph"),
    "reference": lambda prepared: fxq.convert(prepared, to="reference"),
    "trained": lambda prepared: fxq.prepare_qat(Net().train(), example_inputs=(X,)),
}


@pytest.mark.parametrize("name", MADE)
def test_the_only_cycle_of_a_model_is_the_owner_of_its_graph(
    name: str, prepared: fxq.Quantizer, by_count_alone: None
) -> None:
    """``torch.fx`` lets each graph refer to its module; nothing of this package does."""
    model = MADE[name](prepared)
    run(model)
    for module in model.modules():
        if isinstance(module, torch.fx.GraphModule):
            module.graph.owning_module = None
    found = weakref.ref(model)
    del model, module
    assert found() is None


class _Heap(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def heap_bytes() -> int:
    """Bytes that the C library has handed out and not got back, of tensors and programs, too."""
    gc.collect()
    mallinfo = ctypes.CDLL(None).mallinfo2
    mallinfo.restype = _Heap
    heap = mallinfo()
    return int(heap.uordblks + heap.hblkhd)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="the C library does not count what it gave")
def test_three_hundred_conversions_leave_nothing(prepared: fxq.Quantizer) -> None:
    for _ in range(60):
        run(fxq.convert(prepared))
    before, bytes_before = held(), heap_bytes()
    for _ in range(300):
        run(fxq.convert(prepared))
    after = held()
    bytes_left = heap_bytes() - bytes_before
    assert after[1:] == before[1:]
    assert after[0] - before[0] < 30
    assert bytes_left < 300 * 512
