"""The table of what was gained; that units learn in order is seen in ``test_learned_rounding.py``."""

from __future__ import annotations

from torch import nn

from fxquant.training.rounding_layers import only_modules
from fxquant.training.unit_table import Reconstruction, UnitLoss
from fxquant.training.weighted_units import Left


def test_the_table_says_what_was_gained() -> None:
    rows = (UnitLoss("relu", "conv_act", 0.5, 0.1), UnitLoss("fc", "linear", 0.0, 0.0))
    found = Reconstruction(rows, (Left("table", "a table is read, not multiplied"),))
    assert list(found) == list(rows)
    assert str(found).splitlines() == [
        "unit    pattern      error before    learned    part",
        "------  ---------  --------------  ---------  ------",
        "relu    conv_act              0.5        0.1     20%",
        "fc      linear                  0          0    100%",
        "table is rounded to nearest: a table is read, not multiplied",
    ]


def test_layers_may_have_the_names_of_attributes() -> None:
    layer = nn.Linear(2, 2)
    assert only_modules({"to": layer})["to"] is layer
