"""fxquant passes every case, by every path that this machine has."""

from __future__ import annotations

import pytest

from fxquant.conformance.case import load_cases
from fxquant.conformance.own import own_adapters
from fxquant.conformance.runner import run_cases
from fxquant.kernels.library import available_isas

PATHS = {adapter.path: adapter for adapter in own_adapters()}


def test_all_paths_are_run():
    assert tuple(PATHS) == (*available_isas(), "reference")


@pytest.mark.parametrize("path", PATHS)
def test_every_case_passes(path):
    results = run_cases(load_cases(), [PATHS[path]])
    assert [
        f"{each.case.operator}, {each.case.name}: {each.detail}" for each in results if each.verdict != "pass"
    ] == []
