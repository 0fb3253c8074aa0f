from __future__ import annotations

import pytest

from fxquant.errors import DuplicateNameError, SpecError, UnknownNameError
from fxquant.registry import Registry, did_you_mean


@pytest.fixture
def colours():
    registry: Registry[int] = Registry("colour")
    registry.add("red", 1)
    registry.add("green", 2)
    return registry


def test_keeps_the_order_of_registration(colours):
    colours.add("blue", 3)
    assert list(colours) == ["red", "green", "blue"]
    assert list(colours.values()) == [1, 2, 3]
    assert len(colours) == 3
    assert colours["green"] == 2


def test_register_decorates_and_gives_the_thing_back():
    passes: Registry[object] = Registry("pass")

    @passes.register("fold")
    def fold() -> int:
        return 7

    assert passes["fold"] is fold
    assert fold() == 7


def test_refuses_a_second_thing_of_one_name(colours):
    with pytest.raises(DuplicateNameError) as caught:
        colours.add("red", 9)
    assert (
        str(caught.value)
        == """\
colour 'red' is registered already
  got:      9
  expected: a new name; 'red' is 1"""
    )
    assert colours["red"] == 1


def test_answers_a_wrong_name_with_the_nearest(colours):
    with pytest.raises(UnknownNameError) as caught:
        colours["gren"]
    assert (
        str(caught.value)
        == """\
unknown colour
  got:      'gren'
  expected: red, green
  hint:     did you mean 'green'?"""
    )


def test_an_empty_registry_says_so():
    with pytest.raises(UnknownNameError) as caught:
        Registry("backend")["cpu"]
    assert str(caught.value) == "unknown backend\n  got:      'cpu'\n  expected: none is registered"


@pytest.mark.parametrize("name", [None, 3, ["red"]])
def test_a_name_that_is_no_string_is_unknown(colours, name):
    with pytest.raises(UnknownNameError) as caught:
        colours[name]
    assert str(caught.value) == f"unknown colour\n  got:      {name!r}\n  expected: red, green"


def test_asks_like_any_mapping(colours):
    assert "red" in colours
    assert "gren" not in colours
    assert colours.get("gren") is None
    assert colours.get("gren", 5) == 5


def test_remove_forgets(colours):
    colours.remove("red")
    assert list(colours) == ["green"]
    colours.add("red", 4)
    assert list(colours.items()) == [("green", 2), ("red", 4)]


def test_remove_of_an_unknown_name(colours):
    with pytest.raises(UnknownNameError) as caught:
        colours.remove("blue")
    assert str(caught.value) == "unknown colour\n  got:      'blue'\n  expected: red, green"


def test_did_you_mean():
    assert did_you_mean("moving_avrage", ["minmax", "moving_average"]) == "did you mean 'moving_average'?"
    assert did_you_mean("onnx", ["minmax", "moving_average"]) == ""
    assert did_you_mean("x", []) == ""


@pytest.mark.parametrize(("name", "got"), [(5, "5 (a int)"), (None, "None (a NoneType)"), ("", "''"), (" ", "' '")])
def test_a_name_is_text(colours, name, got):
    with pytest.raises(SpecError) as caught:
        colours.add(name, 3)
    assert str(caught.value) == (
        f"the name of a colour is no text\n  got:      {got}\n  expected: a str with a letter in it"
    )
    assert list(colours) == ["red", "green"]
