from __future__ import annotations

import math

import pytest

import fxquant as fxq
from fxquant.analysis.overrides import Address
from fxquant.analysis.sensitivity_table import Sensitivity, UnitCost
from fxquant.errors import InputError

WIDTH = 100


def found(count: int, missing: tuple[str, ...] = ()) -> Sensitivity:
    rows = tuple(
        UnitCost(f"u{i}", f"block.{'x' * 40}.{i}", "conv_bn_add_act", "/a/b/model.py:7", 20.0 + i, 0.5 / (i + 1), 2)
        for i in range(count)
    )
    addresses = {f"u{i}": (Address(f"block.{i}", None),) for i in range(count)}
    return Sensitivity(rows, "SQNR dB", math.inf, 17.5, 2, missing, fxq.get_default_qconfig_mapping(), addresses)


def test_the_table_names_the_most_expensive_first_and_fits_a_terminal() -> None:
    lines = str(found(25, ("late",))).splitlines()
    assert lines[2].split()[1:4] == ["conv_bn_add_act", "20", "0.5"]
    assert lines[2].endswith("model.py:7")
    assert lines[-3] == "and 5 more, each of which costs no more than these"
    assert lines[-2].startswith("SQNR dB over 2 batches: float inf, all 26 units 17.5;")
    assert lines[-1] == "interrupted: 1 units were not measured"
    assert max(map(len, lines)) <= WIDTH
    assert found(25)._repr_html_().count("<tr>") == 26


def test_a_mapping_spares_as_many_as_asked_for() -> None:
    table = found(3)
    assert table.mapping(0) == table.config
    assert table.mapping(2).module_name_qconfigs == {"block.0": None, "block.1": None}
    assert table.config.module_name_qconfigs == {}
    wide = table.mapping(1, to="int16").module_name_qconfigs["block.0"]
    assert wide.activation_scheme.bits == wide.weight_scheme.bits == 16  # type: ignore[union-attr]
    assert [row.unit for row in table.worst(2)] == ["u0", "u1"]
    assert len(list(table)) == len(table) == 3


@pytest.mark.parametrize("count", [-1, 4, True, 1.0])
def test_no_number_of_units_is_refused(count: int) -> None:
    with pytest.raises(InputError, match="count is no number of units"):
        found(3).mapping(count)
