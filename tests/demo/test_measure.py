from __future__ import annotations

import math

import torch

from fxquant.demo.measure import cpu_features, interleaved_medians, machine, sqnr


def test_contestants_take_turns_and_each_timed_call_follows_a_warm_one() -> None:
    calls: list[str] = []
    medians = interleaved_medians({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, rounds=2)
    assert calls == ["a", "a", "b", "b"] * 2
    assert set(medians) == {"a", "b"}
    assert all(value > 0 for value in medians.values())


def test_sqnr_is_ten_times_the_logarithm_of_the_ratio_of_powers() -> None:
    signal = torch.full((100,), 2.0)
    assert math.isclose(sqnr(signal, signal + 0.2), 20.0, abs_tol=1e-4)  # power 4 over 0.04; 0.2 is no float32
    assert sqnr(signal, signal) == math.inf
    assert sqnr(torch.zeros(3), torch.ones(3)) == -math.inf


def test_the_machine_is_named() -> None:
    about = machine()
    assert about["torch"] == torch.__version__
    assert all(about.values())
    assert all(name in about["cpu"] for name in cpu_features())
