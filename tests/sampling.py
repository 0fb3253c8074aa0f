"""Which of many cases of one kind ``make test`` runs; ``make slow`` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def one_of(number: int, cases: Iterable[Any]) -> list[Any]:
    """Return parameters of which the first of each ``number`` is in ``make test``.

    Args:
        number: How many cases stand for each other.
        cases: Parameters of ``pytest.mark.parametrize``; those with marks keep them.
    """
    return [case if index % number == 0 else _slow(case) for index, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    if hasattr(case, "marks"):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
