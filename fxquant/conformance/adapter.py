"""A tool that is run through the cases needs a class with ``run``, found by the path of its file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fxquant.conformance.case import Case


@dataclass(frozen=True, slots=True)
class Refusal:
    """The tool has no such operator, or none with such qparams: no fault, but no pass either."""

    reason: str


class Adapter(Protocol):
    """Puts cases into the terms of one tool. It is made without arguments."""

    name: str
    """Of the tool: the head of its column."""
    version: str
    """Of the tool, and what else its results depend on."""
    path: str
    """Which of several ways through the tool this is; empty if there is one. Columns of one name are joined."""

    def run(self, case: Case) -> Tensor | Refusal:
        """Return what the tool gives: a tensor of the shape of ``case.expected``, of any dtype. It may raise."""
        ...
