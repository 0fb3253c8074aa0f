"""``make calls``: some random calls of every kernel, what they reach, and that the command finds what is wrong."""

from __future__ import annotations

import importlib
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from fxquant.kernels.library import available_isas, use_isa

HERE = Path(__file__).parent
SOME = 12
"""Calls of each kernel; ``make sanitize`` makes 100,000."""

pytestmark = pytest.mark.skipif(not available_isas(), reason="no native CPU library is loaded")


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The command as a module, which finds those beside it."""
    monkeypatch.syspath_prepend(HERE)
    return importlib.import_module("random_calls")


def rows_of(path: Path) -> dict[str, Any]:
    (record,) = json.loads(path.read_text(encoding="utf-8"))
    return record["kernels"]


class Known:
    """A case whose results are given."""

    def __init__(self, want: Any, got: Any) -> None:
        self._want, self._got = want, got

    def reference(self) -> Any:
        return self._want

    def native(self) -> Any:
        if isinstance(self._got, Exception):
            raise self._got
        return self._got


@pytest.fixture
def cases(tool: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Known]], list[int]]:
    """Puts cases in the place of a kernel's; gives the seeds of those that are made."""

    def use(make: Callable[[int], Known]) -> list[int]:
        seeds: list[int] = []

        def noted(seed: int) -> Known:
            seeds.append(seed)
            return make(seed)

        monkeypatch.setitem(tool.KERNELS, "table", noted)
        return seeds

    return use


def test_every_kernel_gives_the_bits_of_its_reference(tool: ModuleType, tmp_path: Path) -> None:
    out = tmp_path / "calls.json"
    assert tool.main(["--calls", str(SOME), "--json", str(out)]) == 0
    rows = rows_of(out)
    assert set(rows) == set(tool.KERNELS)
    assert set(tool.CALLS) < set(rows)
    for name, row in rows.items():
        assert (row["calls"], row["native"], row["wrong"]) == (SOME, SOME * len(available_isas()), []), name


def test_few_calls_are_refused(tool: ModuleType) -> None:
    """Empty tensors, by the operator that needs a value; else a refused call would test nothing."""
    for name, make in tool.CALLS.items():
        refused = sum(isinstance(tool.outcome(tool.KERNELS[name](seed).reference), str) for seed in range(8))
        assert refused == 0 or name == "moving_average_qparams", name
        assert callable(make)


def test_other_bits_are_found(tool: ModuleType, cases: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = torch.ones(3)
    cases(lambda seed: Known(one, one if seed != 5 else one + 1e-7))
    arguments = ["--operator", "table", "--isa", "portable", "--calls", "9", "--json", str(tmp_path / "calls.json")]
    assert tool.main(arguments) == 1
    assert rows_of(tmp_path / "calls.json")["table"]["wrong"] == [
        "table, seed 5, portable: other bits, the reference: other bits"
    ]
    assert "table, seed 5, portable" in capsys.readouterr().out


def test_errors_agree_or_are_found(tool: ModuleType, cases: Any, tmp_path: Path) -> None:
    cases(lambda seed: Known(torch.ones(1), RuntimeError("refused")))
    out = tmp_path / "calls.json"
    assert tool.main(["--operator", "table", "--isa", "portable", "--calls", "70", "--json", str(out)]) == 1
    row = rows_of(out)["table"]
    assert row["wrong"][0] == "table, seed 1, portable: RuntimeError, the reference: other bits"
    assert row["calls"] == tool.AT_ONCE  # no more of a kernel that is wrong again and again
    assert tool.same("KernelError", "RuntimeError")
    assert not tool.same("RuntimeError", (torch.ones(1),))


def test_a_later_run_goes_on_with_other_arguments(tool: ModuleType, cases: Any, tmp_path: Path) -> None:
    seeds, out = cases(lambda seed: Known(torch.ones(1), torch.ones(1))), tmp_path / "calls.json"
    arguments = ["--operator", "table", "--isa", "portable", "--seed", "7", "--json", str(out)]
    for calls in ("4", "6", "6"):
        assert tool.main([*arguments, "--calls", calls]) == 0
    assert seeds == [7, 8, 9, 10, 11, 12]
    row = rows_of(out)["table"]
    assert (row["calls"], row["native"], row["first_seed"]) == (6, 6, 7)
    assert tool.main([*arguments[:2], "--calls", "2", "--json", str(out)]) == 0  # all sets: a record of their own
    assert [each["isas"] for each in json.loads(out.read_text())] == [["portable"], list(available_isas())]


def test_two_runs_do_not_write_one_file(tool: ModuleType, tmp_path: Path) -> None:
    with tool.hold(tmp_path / "calls.json"), pytest.raises(SystemExit, match="another run writes"):
        tool.main(["--operator", "table", "--calls", "1", "--json", str(tmp_path / "calls.json")])
    assert tool.main(["--operator", "table", "--calls", "1", "--json", str(tmp_path / "calls.json")]) == 0


def test_no_call_begins_after_the_time(tool: ModuleType, cases: Any, tmp_path: Path) -> None:
    seeds = cases(lambda seed: Known(torch.ones(1), torch.ones(1)))
    out = tmp_path / "calls.json"
    assert tool.main(["--operator", "table", "--calls", "9", "--seconds", "0", "--json", str(out)]) == 0
    assert seeds == []


def test_bits_are_compared(tool: ModuleType) -> None:
    def same(a: Tensor, b: Tensor, *sums: int) -> bool:
        return tool.same((a,), (b,), sums)

    nan, other_nan = torch.tensor([math.nan, 1.0]), torch.tensor([-math.nan, 1.0])
    assert same(nan, other_nan)
    assert not same(nan, torch.tensor([1.0, math.nan]))
    assert not same(torch.tensor([0.0]), torch.tensor([-0.0]))
    assert same(torch.tensor([0.0]), torch.tensor([-0.0]), 0)
    assert same(torch.tensor([1e6, 0.0]), torch.tensor([1e6, 0.1]), 0)
    assert not same(torch.tensor([1.0, math.nan]), torch.tensor([1.1, math.nan]), 0)
    assert not same(torch.ones(1), torch.ones(1).double())
    assert not same(torch.ones(1), torch.ones(2))


def test_a_seed_makes_one_call(tool: ModuleType) -> None:
    for seed in range(4):
        one, other = (tool.CALLS["conv2d"](tool.Maker(seed, wide=True)) for _ in range(2))
        assert all(torch.equal(a, b) if isinstance(a, Tensor) else a == b
                   for a, b in zip(one.values(), other.values(), strict=True))  # fmt: skip


def test_calls_reach_what_kernels_have_branches_for(tool: ModuleType) -> None:
    reached = set()
    for seed in range(400):
        given = tool.CALLS["conv2d"](tool.Maker(seed, wide=True))
        x, residual = given["x"], given["residual"]
        reached |= {
            ("x", x.dtype), ("y", given["dtype"]), ("residual", None if residual is None else residual.dtype),
            ("grouped", given["groups"] > 1), ("depthwise", 1 < given["groups"] == x.shape[1] == len(given["scale"])),
            ("empty", x.numel() == 0), ("offset", x.storage_offset() > 0), ("expanded", 0 in x.stride()),
            ("gaps", x.stride(-1) == 2), ("dilated", max(given["dilation"]) > 1), ("strided", max(given["stride"]) > 1),
            ("padded", max(given["padding"]) > 0), ("clamped", given["quant_max"] - given["quant_min"] < 255),
            ("last", x.is_contiguous(memory_format=torch.channels_last)), ("dense", x.is_contiguous()),
            ("passes int32", given["y_scale"] < 1e-9),
        }  # fmt: skip
    both = {name for name, value in reached if value is True} & {name for name, value in reached if value is False}
    assert both >= {
        "grouped", "depthwise", "empty", "offset", "expanded", "gaps", "dilated", "strided", "padded", "clamped",
        "last", "dense", "passes int32",
    }  # fmt: skip
    bytes_ = {torch.uint8, torch.int8}
    assert {value for name, value in reached if name == "x"} == bytes_
    assert {value for name, value in reached if name == "y"} == bytes_ | {torch.float32}
    assert {value for name, value in reached if name == "residual"} == bytes_ | {None}


def test_most_chains_are_chains(tool: ModuleType) -> None:
    chain_calls = importlib.import_module("chain_calls")
    lowest = next(isa for isa in ("avx2", "portable") if isa in available_isas())
    with use_isa(lowest):
        chains = [chain_calls.chain(tool.Maker(seed, wide=True)) for seed in range(30)]
        linked = [bool(each.program().chains) for each in chains]
    assert sum(linked) > 15
    assert any(step.adds_input for each in chains for step in each.steps)
    assert {step.name for each in chains for step in each.steps} == {"conv2d", "max_pool2d", "table"}
