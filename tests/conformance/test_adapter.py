"""Adapters of other tools are found by the path of their file; that of torch.ao, which torch brings along, runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.cli.models import load_function
from fxquant.conformance.adapter import Refusal
from fxquant.conformance.case import load_cases
from fxquant.conformance.runner import run_cases
from fxquant.errors import InputError

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_torch_ao_answers_or_refuses_with_a_reason():
    adapter = load_function(f"{BENCHMARKS / 'conformance_torch_ao.py'}:TorchAo")()
    results = run_cases(load_cases(), [adapter])
    verdicts = [outcome.verdict for outcome in results]
    assert verdicts.count("pass") > 50
    assert "error" not in verdicts
    assert all(outcome.detail for outcome in results if outcome.verdict == "refused")


def test_a_refusal_is_a_value_with_a_reason():
    assert Refusal("no int4").reason == "no int4"


def test_what_is_not_there_is_named():
    with pytest.raises(InputError, match="has no function of that name"):
        load_function(f"{BENCHMARKS / 'conformance_torch_ao.py'}:TorchAoo")
    with pytest.raises(InputError, match="there is no such file"):
        load_function("nowhere.py:Tool")
    with pytest.raises(InputError, match="this names nothing"):
        load_function("Tool")
