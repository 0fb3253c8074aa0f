from __future__ import annotations

import inspect

import pytest
from torch import Tensor, nn

from fxquant.graph.operators.table import OPERATORS

ARGUMENTS = {  # for constructors that need some
    nn.MaxPool1d: (2,),
    nn.MaxPool2d: (2,),
    nn.MaxPool3d: (2,),
    nn.AvgPool1d: (2,),
    nn.AvgPool2d: (2,),
    nn.AvgPool3d: (2,),
    nn.AdaptiveAvgPool1d: (2,),
    nn.AdaptiveAvgPool2d: (2,),
    nn.AdaptiveAvgPool3d: (2,),
    nn.AdaptiveMaxPool1d: (2,),
    nn.AdaptiveMaxPool2d: (2,),
    nn.AdaptiveMaxPool3d: (2,),
    nn.PixelShuffle: (2,),
    nn.PixelUnshuffle: (2,),
    nn.Threshold: (0.1, 0.2),
}
MODULES = [(row, module) for row in OPERATORS for module in row.modules]


def test_no_spelling_is_listed_twice():
    targets = [target for row in OPERATORS for target in row.all_targets]
    assert len(targets) == len(set(targets))


@pytest.mark.parametrize("row", OPERATORS, ids=lambda row: row.target.__name__)
def test_methods_exist_and_functions_have_the_parameters_of_the_row(row):
    for name in (*row.methods, *row.inplace_methods):
        assert callable(getattr(Tensor, name)), name
    try:
        parameters = list(inspect.signature(row.target).parameters)
    except (TypeError, ValueError):  # builtins have no signature
        return
    if parameters[:1] != ["args"]:  # boolean_dispatch
        assert tuple(name for name in parameters if not name.startswith("_"))[: len(row.parameters)] == row.parameters


@pytest.mark.parametrize(("row", "module_type"), MODULES, ids=lambda value: getattr(value, "__name__", ""))
def test_modules_hold_the_parameters_as_attributes(row, module_type):
    module = module_type(*ARGUMENTS.get(module_type, ()))
    for name in (*row.parameters[1:], *row.keywords):
        known = name in row.attributes or name in row.keywords or hasattr(module, name)
        assert known, f"{module_type.__name__} has no attribute {name}"
