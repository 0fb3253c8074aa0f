"""Batches go through a graph in parts, and hold no more than what the rest reads; what does not fit into memory lies in
files, and comes back as it was."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import symbolic_trace

from fxquant.errors import InputError
from fxquant.graph.interpreter import BoundInterpreter
from fxquant.measure.runner import order_by_units
from fxquant.plan.quant_plan import QuantUnit
from fxquant.training.resumable_run import Memory, ResumableRun


class Branches(nn.Module):
    """The parts of two units, one inside the other: a and d, b and c."""

    def forward(self, x: Tensor) -> Any:
        a = torch.neg(x)
        b = torch.abs(x)
        c = torch.sqrt(b)
        d = torch.add(a, c)
        return torch.exp(d), x


def unit(*nodes: str) -> QuantUnit:
    return QuantUnit("pattern", nodes, {}, (), {})


UNITS = (unit("neg", "add"), unit("abs_1", "sqrt"))


@pytest.mark.parametrize("limit", [0, 1 << 20])
def test_parts_of_a_run_are_the_run(limit: int) -> None:
    gm = symbolic_trace(Branches())
    order, places = order_by_units(gm, UNITS)
    inputs = [{"x": torch.randn(2048)} for _ in range(3)]
    with Memory(limit) as memory:
        run = ResumableRun(BoundInterpreter(gm, {}), order, inputs, memory)
        for _, place in places:
            for batch, bound in enumerate(inputs):
                run.advance(batch, place.start)
                value = run.advance(batch, place.stop)
                expected = {3: bound["x"].abs().sqrt(), 5: bound["x"].abs().sqrt() - bound["x"]}[place.stop]
                assert torch.equal(value, expected)
        assert (memory.files > 0) == (limit == 0)


def test_only_what_is_read_further_on_is_kept() -> None:
    gm = symbolic_trace(Branches())
    order, _ = order_by_units(gm, UNITS)
    with Memory(1 << 20) as memory:
        run = ResumableRun(BoundInterpreter(gm, {}), order, [{"x": torch.randn(8)}], memory)
        kept = []
        for stop in range(1, len(order) + 1):
            run.advance(0, stop)
            kept.append({node.name for node in run.values(0)})
        assert kept == [{"x"}, {"x", "abs_1"}, {"x", "sqrt"}, {"sqrt", "neg"}, set()]
        assert run.advance(0, 2) is None  # it has been there


def test_a_batch_that_does_not_run_is_named() -> None:
    gm = symbolic_trace(Branches())
    order, _ = order_by_units(gm, UNITS)
    with Memory(0) as memory:
        run = ResumableRun(BoundInterpreter(gm, {}), order, [{"x": "text"}], memory)
        with pytest.raises(InputError, match=r"this batch does not run through the model[\s\S]*abs"):
            run.advance(0, len(order))


KILO = 1 << 10


def test_what_fits_stays() -> None:
    values = {"a": torch.randn(4 * KILO), "b": 3}
    with Memory(16 * KILO) as memory:
        assert memory.keep("one", values) is values
        assert (memory.held, memory.files) == (16 * KILO, 0)
        assert memory.read(values)["a"] is values["a"]


def test_what_does_not_fit_comes_back_in_its_form() -> None:
    image = torch.randn(2, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    values = {"image": image, "again": [image], "slice": torch.randn(64, 64).t()[:, ::2], "small": torch.ones(3)}
    with Memory(8 * KILO) as memory:
        kept = memory.keep("one", values)
        read = memory.read(kept)
        assert memory.files == 2  # the image once
        assert memory.held == 12
        assert read["again"][0] is read["image"]
        assert read["image"].is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(read["image"], image)
        assert torch.equal(read["slice"], values["slice"])
        assert read["small"] is values["small"]


def test_each_owner_is_counted_as_it_is_now() -> None:
    with Memory(20 * KILO) as memory:
        memory.keep("one", {"x": torch.zeros(4 * KILO)})
        memory.keep("two", {"x": torch.zeros(4 * KILO)})
        assert (memory.held, memory.files) == (16 * KILO, 1)
        memory.keep("one", {})
        memory.keep("two", {"x": torch.zeros(4 * KILO)})
        assert (memory.held, memory.files) == (16 * KILO, 1)
        memory.free("two")
        assert memory.held == 0


def test_room_to_write_to() -> None:
    with Memory(8 * KILO) as memory:
        first, second = (memory.empty("rows", (2, KILO), torch.float32) for _ in range(2))
        assert (memory.held, memory.files) == (8 * KILO, 1)
        for tensor in (first, second):
            assert tensor.shape == (2, KILO)
            assert int(tensor.fill_(2).sum()) == 4 * KILO


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="elsewhere files go with the folder")
def test_files_go_with_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Memory(0) as memory:
        kept = memory.keep("one", {"x": torch.ones(4 * KILO)})
        (folder,) = tmp_path.iterdir()
        assert list(folder.iterdir()) == []  # its name is gone at once, the file with the last reader
        assert int(memory.read(kept)["x"].sum()) == 4 * KILO
    assert list(tmp_path.iterdir()) == []
    del kept
    gc.collect()


@pytest.mark.parametrize("limit", [-1, 2.5, "much"])
def test_a_bound_is_a_number_of_bytes(limit: object) -> None:
    with pytest.raises(InputError, match="memory is no number of bytes"):
        Memory(limit)  # type: ignore[arg-type]
