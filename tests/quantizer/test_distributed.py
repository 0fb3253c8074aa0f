"""Two processes, each with its part of the data, end with the same grids."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

import fxquant as fxq

RANKS = Path(__file__).parent / "ranks.py"
SPEC: Any = importlib.util.spec_from_file_location("ranks", RANKS)
ranks = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ranks)


@pytest.fixture(scope="module")
def results(fresh: Any, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each process came to."""
    folder = tmp_path_factory.mktemp("ranks")
    codes, logs = fresh.ranks(RANKS, folder, ranks.WORLD)
    assert codes == [0] * ranks.WORLD, "\n".join(logs)
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(ranks.WORLD)]


def assert_same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    """But for the statistics of batch norms: those of the first process are handed on at the next forward."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert "running_" in name or torch.equal(value, other[name]), name


def test_observers_end_with_what_all_have_seen(results):
    for name in ("extremes", "average", "histogram"):
        states = [result["bare"][name][0] for result in results]
        assert_same(*states)
    state, (scale, zero_point) = results[0]["bare"]["extremes"]
    assert (state["min_val"].item(), state["max_val"].item()) == (-4, 2)
    assert (scale.item(), zero_point.item()) == (pytest.approx(6 / 255), 170)
    average = results[0]["bare"]["average"][0]
    assert (average["min_val"].item(), average["max_val"].item()) == (-2, 1.5)
    whole = fxq.HistogramObserver()
    whole(torch.tensor([0.0, 1.0, -4.0, 2.0]))
    pooled = results[0]["bare"]["histogram"][0]
    assert_same({name: pooled[name] for name in whole.state_dict()}, whole.state_dict())


def test_observers_of_the_users_own_pool_or_say_that_they_do_not(results):
    own = [result["of_users"] for result in results]
    for form in ("prepared", "trained"):
        for found in own:
            assert found[f"Largest {form}"].splitlines() == [
                "Largest has no method 'pool', so several processes would keep different qparams",
                "  got:      the states of 2 processes",
                "  expected: def pool(self, states) in Largest: set the buffers to what all of them have seen",
                "  hint:     states holds the state_dict() of each; an observer that learns nothing has an empty pool",
            ]
            assert f"LargestOfAll {form}" not in found
            assert "after OwnCount.pool" in found[f"OwnCount {form}"]
            assert "batches" in found[f"OwnCount {form}"]
    for found in own:
        assert [scale.item() for scale in found["scales"]] == [pytest.approx(4 / 127.5)] * 2
        assert [value.item() for value in found["fixed"]] == [0.5, 3]


def test_a_process_outside_of_the_group_keeps_its_own(results):
    assert [result["outside"]["max_val"].item() for result in results] == [1, 2]


def test_parts_of_the_data_calibrate_as_the_whole_of_it(results):
    whole = fxq.prepare(ranks.float_model().eval(), ranks.batch(0, 0))
    for rank in range(ranks.WORLD):
        for step in range(2):
            whole.observe(ranks.batch(rank, step))
    expected = whole.state_dict()
    batches = "calibration_statistics.history.batches"
    assert (int(expected[batches]), int(results[0]["calibrated"]["state"][batches])) == (4, 4)
    for result in results:
        assert_same(result["calibrated"]["state"], results[0]["calibrated"]["state"])
        for name, value in result["calibrated"]["state"].items():
            own = name.startswith("calibration_statistics.")  # how it came about: not in one process
            if not own and "pooled." not in name and not name.endswith("total"):  # a float sum depends on the order
                assert torch.equal(value, expected[name]), name
    assert torch.equal(results[0]["calibrated"]["y"], results[1]["calibrated"]["y"])


def test_training_keeps_buffers_and_switches_in_step(results):
    assert_same(results[0]["trained"]["measured"], results[1]["trained"]["measured"])
    assert_same(results[0]["trained"]["state"], results[1]["trained"]["state"])
    state = results[1]["trained"]["state"]
    switches = [value.item() for name, value in state.items() if name.endswith("observer_enabled")]
    assert switches == [0] * 4
    assert all(value.isfinite().all() for value in state.values())


def test_what_was_trained_together_becomes_int8(results):
    assert results[0]["trained"]["breaches"] == ()


def test_learned_grids_start_together_and_move_together(results):
    assert_same(results[0]["learned"]["first"], results[1]["learned"]["first"])
    assert_same(results[0]["learned"]["parameters"], results[1]["learned"]["parameters"])
    scales = [name for name in results[0]["learned"]["parameters"] if name.endswith("scale")]
    assert len(scales) == 4
    for name in scales:
        assert not torch.equal(results[0]["learned"]["parameters"][name], results[0]["learned"]["first"][name]), name


def test_without_other_processes_nothing_changes():
    prepared = fxq.prepare(ranks.float_model().eval(), ranks.batch(0, 0))
    prepared.observe(ranks.batch(0, 0))
    before = {name: value.clone() for name, value in prepared.state_dict().items()}
    fxq.synchronize_observers(prepared)
    assert_same(before, prepared.state_dict())
