"""How ingredients write lines: what fails leaves nothing behind."""

from __future__ import annotations

import torch

from tests.fuzz.scope import NoValueError, Scope
from tests.fuzz.source import Input, Line


def scope() -> Scope:
    return Scope(0, (Input("x", (2, 4)), Input("ids", (2, 3), high=5)))


def test_lines_run_as_they_are_written():
    s = scope()
    assert s.add("one", lambda s: s.give(f"{s.module('nn.Linear(4, 3)')}(x)") and None)
    (name,) = (line.code.split()[0] for line in s.lines)
    assert s.shape(name) == (2, 3)
    made = s.recipe(Line(f"return {name}"))
    assert made.ingredients == {"one"}
    assert torch.equal(made.pruned().build()(s.values["x"]), s.values[name])


def test_an_ingredient_that_does_not_suit_leaves_nothing():
    s = scope()

    def fails(s: Scope) -> None:
        s.give("x * 2")
        s.give(f"{s.module('nn.Linear(5, 3)')}(x)")

    def too_large(s: Scope) -> None:
        s.give("x * 1e6")

    def of_no_value(s: Scope) -> None:
        s.pick(7)

    for build in (fails, too_large, of_no_value):
        assert not s.add("", build)
    assert (s.lines, s.members, list(s.values)) == ([], [], ["x", "ids"])


def test_indices_are_no_values_to_compute_with():
    assert {scope().pick() for _ in range(20)} == {"x"}
    try:
        scope().pick(where=lambda value: not value.is_floating_point())
    except NoValueError:
        return
    raise AssertionError
