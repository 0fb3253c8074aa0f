"""A run: it ends by itself, counts what it did, and its exit status says whether anything was found."""

from __future__ import annotations

import itertools

import pytest

from tests.fuzz import __main__ as command
from tests.fuzz import checks
from tests.fuzz.run import MOST_FINDINGS, run


@pytest.fixture
def one_check(monkeypatch):
    """Leaves one check, of a model's calls alone."""
    monkeypatch.setattr(checks, "CHECKS", checks.CHECKS)
    for name in list(checks.CHECKS)[1:]:
        monkeypatch.delitem(checks.CHECKS, name)


@pytest.fixture
def always_wrong(monkeypatch):
    for name in list(checks.CHECKS):
        monkeypatch.setitem(checks.CHECKS, name, lambda case: "wrong")


def test_a_run_counts(one_check):
    tally = run(itertools.count(1), lambda tally: tally.models == 3)
    assert tally.models == len(tally.graphs) == 3
    assert tally.findings == []
    said = str(tally).splitlines()
    assert said[0].split() == ["ingredient", "models"] * 2
    assert said[-1] == "0 findings"
    assert said[-2].startswith("3 models (3 distinct graphs), ")
    assert "models a second" in said[-2]


def test_the_exit_status(one_check, capsys):
    assert command.main(["--seconds", "100", "--seed", "3", "--models", "1"]) == 0
    assert capsys.readouterr().out.endswith("0 findings\n")


def test_findings_are_printed_and_end_the_run(always_wrong, capsys):
    assert command.main(["--seconds", "1000", "--seed", "1"]) == 1
    said = capsys.readouterr().out
    assert said.count("class Model(nn.Module)") == MOST_FINDINGS
    assert said.endswith(f"{MOST_FINDINGS} findings\n")


def test_no_time_is_no_model(capsys):
    assert command.main(["--seconds", "0"]) == 0
    assert "0 models (0 distinct graphs)" in capsys.readouterr().out
