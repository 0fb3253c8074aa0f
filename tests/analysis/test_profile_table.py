from __future__ import annotations

import json

import pytest

from fxquant.analysis.profile_table import Profile, ProfileRow

WIDTH = 100


def row(name: str, kind: str, real: float | None, int8: float, share: float = 0.1) -> ProfileRow:
    return ProfileRow(name, name, kind, "conv_bn_act", "/a/b/model.py:7", real, int8, int8 + 9, share)  # type: ignore[arg-type]


def found(*rows: ProfileRow, program: float | None = 1.5) -> Profile:
    return Profile(rows, 2, 4.0, 3.0, program, "1 program of 3 nodes" if program else "")


SLOW, FAST = row("slow", "unit", 10.0, 30.0), row("fast", "unit", 90.0, 20.0)
BORDER, NORM = row("x_quantize", "border", None, 5.0), row("norm", "float", 7.0, 7.5)


def test_units_that_are_slower_in_int8_lose() -> None:
    assert [each.loses for each in (SLOW, FAST, BORDER, NORM)] == [True, False, False, False]
    worse = row("worse", "unit", 1.0, 50.0)
    assert [each.name for each in found(SLOW, FAST, worse).losing] == ["worse", "slow"]


def test_a_difference_within_noise_is_no_loss() -> None:
    assert not row("even", "unit", 10.0, 11.5).loses
    assert row("slow", "unit", 10.0, 12.5).loses


def test_words_agree() -> None:
    slow = " ".join(str(found(FAST, program=12.0)).split())
    assert "3.00 times as slow as float" in slow
    assert "0 of 1 units are slower in int8 than in float, beyond noise" in slow
    assert "what makes the whole slower are its borders, what stays float, and the calls in between" in slow
    assert "2.67 times as fast as float" in " ".join(str(found(FAST)).split())


def test_the_table_adds_up() -> None:
    table = found(SLOW, FAST, BORDER, NORM)
    lines = str(table).splitlines()
    assert lines[2].split() == ["slow", "conv_bn_act", "10.0", "30.0", "39.0", "10.0", "%", "loses", "model.py:7"]
    assert lines[4].split()[:4] == ["x_quantize", "border", "5.0", "14.0"]
    text = " ".join(str(table).split())
    assert "summed up on 2 threads: units 0.100 → 0.050, borders 0.000 → 0.005, floats 0.007 → 0.007" in text
    assert "int8 by its graph 3.000, int8 by programs 1.500: 2.67 times as fast" in text
    found_slow = "1 of 2 units are slower in int8 than in float, beyond noise, 20.0 µs in all: slow"
    assert lines[-3:-1] == ["1 program of 3 nodes", found_slow]
    assert "tune=batch" in lines[-1]
    assert max(map(len, lines)) <= WIDTH
    assert table.milliseconds("unit") == pytest.approx((0.1, 0.05))


def test_without_programs_the_graph_counts() -> None:
    table = found(FAST, program=None)
    assert table.int8_ms == 3.0
    assert "programs" not in str(table)
    assert str(table).splitlines()[-1] == "0 of 1 units are slower in int8 than in float, beyond noise"


def test_many_rows_are_cut_in_print_and_whole_elsewhere() -> None:
    table = found(*[row(f"r{i}", "unit", 9.0, 1.0, 0.025) for i in range(40)])
    assert "and 10 more, 25.0 % of the time" in str(table)
    assert table._repr_html_().count("<tr>") == 41
    plain = json.loads(json.dumps(table.to_dict()))
    assert len(plain["rows"]) == 40
    assert plain["milliseconds"] == {"float": 4.0, "int8_graph": 3.0, "int8_programs": 1.5}
    assert plain["rows"][0]["loses"] is False
