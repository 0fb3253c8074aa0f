from __future__ import annotations

import torch

from fxquant.demo.measure import cpu_features, interleaved_medians, machine


def test_contestants_take_turns_and_each_timed_call_follows_a_warm_one() -> None:
    calls: list[str] = []
    medians = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "a", "b", "b"] * 2
    assert set(medians) == {"a", "b"}
    assert all(value > 0 for value in medians.values())


def test_the_machine_is_named() -> None:
    about = machine()
    assert about["torch"] == torch.__version__
    assert all(about.values())
    assert all(name in about["cpu"] for name in cpu_features())
