"""The functions: what quantize does with batches, and what calibrate and convert refuse."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fxquant as fxq
from fxquant.errors import CalibrationError, InputError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.conv(x).mean((2, 3)))


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture
def x() -> Tensor:
    return torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class TestQuantize:
    def test_is_prepare_calibrate_convert(self, model, x):
        stepwise = fxq.convert(fxq.calibrate(fxq.prepare(model, x), [x, x * 2], progress=False))
        for data in ([x, x * 2], [(x, 0), (x * 2, 1)], iter([x, x * 2])):
            assert torch.equal(fxq.quantize(model, data, progress=False)(x), stepwise(x))

    def test_takes_keyword_batches_and_further_arguments(self, model, x):
        int8 = fxq.quantize(
            model,
            [{"x": x}],
            fxq.get_default_qconfig_mapping().set_module_name("fc", None),
            progress=False,
        )
        assert isinstance(int8.fc, nn.Linear)
        assert torch.equal(int8(x=x), int8(x))

    def test_without_data(self, model):
        with pytest.raises(CalibrationError) as caught:
            fxq.quantize(model, [])
        assert str(caught.value).startswith("there is no calibration data")

    def test_takes_as_many_leading_elements_as_forward_needs(self):
        class Two(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

            def forward(self, x: Tensor, y: Tensor, scale: float = 1.0) -> Tensor:
                return self.a(x) + self.b(y)

        x, y = torch.rand(2, 3), torch.rand(2, 3)
        int8 = fxq.quantize(Two().eval(), [(x, y, torch.zeros(2, dtype=torch.long))], progress=False)
        assert int8(x, y).shape == (2, 2)

    def test_a_lone_tensor_is_no_data(self, model, x):
        with pytest.raises(InputError) as caught:
            fxq.quantize(model, x)
        assert str(caught.value).startswith("calibration data must be an iterable of batches")


def test_all_observations_count(model, x):
    prepared = fxq.prepare(model, x)
    assert fxq.calibrate(prepared, [x], progress=False) is prepared
    fxq.calibrate(prepared, [x * 3], progress=False)
    assert float(prepared.observers["x"].max_val) == float((x * 3).max())


@pytest.mark.parametrize("function", [fxq.convert, lambda module: fxq.calibrate(module, [])])
def test_something_else_than_a_quantizer(model, function):
    with pytest.raises(InputError) as caught:
        function(model)
    assert "takes what prepare" in str(caught.value)
    assert "got:      Net" in str(caught.value)


def test_quantize_until_ranges_have_settled(model):
    taken = []

    def endless():
        while True:
            taken.append(len(taken))
            yield torch.ones(2, 3, 8, 8).index_fill(0, torch.tensor([0]), -1.0)

    fxq.quantize(model, endless(), until_stable=True, progress=False)
    assert len(taken) == 8


def test_qparams_leave_and_come_back(model, x, tmp_path):
    prepared = fxq.calibrate(fxq.prepare(model, x), [x], progress=False)
    table = fxq.qparams(prepared)
    assert isinstance(table, fxq.QParamsTable)
    assert all(isinstance(row, fxq.TensorQParams) for row in table)
    table.save(tmp_path / "qparams.json")
    applied = fxq.apply_qparams(fxq.prepare(model, x), tmp_path / "qparams.json")
    assert torch.equal(fxq.convert(applied)(x), fxq.convert(prepared)(x))


def test_what_leaves_is_made_by_functions_too(model, x):
    int8 = fxq.quantize(model, [x], progress=False)
    explicit = fxq.explicit(int8)
    assert torch.equal(fxq.export(int8, x).module()(x), explicit(x))
    assert fxq.explicit(explicit) is explicit


class TestNamesThatAreImportedLater:
    """``LATER`` of ``fxquant/__init__.py``: a type checker reads an import, a program a table."""

    def test_both_say_the_same(self):
        tree = ast.parse(Path(fxq.__file__).read_text(encoding="utf-8"))
        (checked,) = (node.body for node in tree.body if isinstance(node, ast.If))
        assert {node.module: tuple(name.name for name in node.names) for node in checked} == fxq.LATER

    def test_each_is_public_and_there(self):
        names = [name for names in fxq.LATER.values() for name in names]
        assert {*names} < {*fxq.__all__}
        assert {*fxq.__all__} <= {*dir(fxq)}
        for module, names in fxq.LATER.items():
            assert all(getattr(fxq, name) is getattr(import_module(module), name) for name in names)

    def test_none_is_imported_before(self):
        code = """
            import sys, fxquant as fxq
            assert not {*fxq.LATER} & {*sys.modules}, {*fxq.LATER} & {*sys.modules}
            assert fxq.exporting.explicit is fxq.explicit
            assert fxq.runtime.engine_of and fxq.measure.__doc__
            exec("from fxquant import *")
            assert save.__module__ == "fxquant.artifact.save"
        """
        subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

    def test_a_name_that_is_none(self):
        with pytest.raises(AttributeError, match="module 'fxquant' has no attribute 'quantise'"):
            fxq.quantise  # noqa: B018
