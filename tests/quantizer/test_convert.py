"""What converting says, and to whom."""

from __future__ import annotations

import dataclasses
import logging

import pytest
import torch
from torch import nn

import fxquant as fxq
from fxquant.errors import FxQuantWarning, LoweringError
from fxquant.kernels.library import native_status
from fxquant.quantizer import checks
from fxquant.settings import Settings

X = torch.rand(2, 3)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)).eval()


@pytest.fixture
def prepared() -> fxq.Quantizer:
    return fxq.calibrate(fxq.prepare(model(), X), [X], progress=False)


def test_nothing_is_printed(prepared, capfd):
    """A library does not write to the standard output of a program: who wants a table prints it."""
    int8 = fxq.convert(prepared, check=X, tune=X)
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "units measured" not in printed.err  # a terminal shows the bar of the rounds there
    print(int8.parity, int8.tuning)
    assert capfd.readouterr().out.count("units measured") == 2


def test_tables_are_logged(prepared, logged):
    with logged.at_level(logging.INFO, logger="fxquant"):
        int8 = fxq.convert(prepared, check=X, tune=X)
    assert [str(int8.tuning), str(int8.parity)] == [
        record.getMessage() for record in logged.records if "units measured" in record.getMessage()
    ]


def test_tables_are_not_put_into_words_where_nobody_listens(prepared, monkeypatch):
    monkeypatch.setattr("fxquant.measure.parity.Parity.__str__", lambda parity: 1 / 0)
    assert fxq.convert(prepared, check=X).parity.rows


def test_debug_shows_the_tables(prepared, monkeypatch, capsys):
    monkeypatch.setenv("FXQUANT_DEBUG", "1")
    monkeypatch.setattr(logging.getLogger("fxquant"), "propagate", False)
    monkeypatch.setattr(logging.getLogger("fxquant"), "handlers", [])
    int8 = fxq.convert(prepared, check=X)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert str(int8.parity) in printed.err
    assert logging.getLogger("fxquant").handlers == []


def test_missing_kernels_are_warned_of_once(monkeypatch):
    missing = dataclasses.replace(native_status(), devices=(), reason="the native library was not built")
    monkeypatch.setattr(checks, "native_status", lambda: missing)
    monkeypatch.setattr(checks, "SETTINGS", Settings())
    checks._warn_of_missing_kernels.cache_clear()
    prepared = fxq.calibrate(fxq.prepare(model(), X), [X], progress=False)
    with pytest.warns(FxQuantWarning) as caught:
        fxq.convert(prepared)
    assert str(caught[0].message) == (
        "no native kernels are loaded, so int8 models run on the Python reference, slower than float\n"
        "  got:      the native library was not built\n"
        "  hint:     python -m fxquant doctor says more; FXQUANT_KERNELS=reference asks for the reference"
    )
    fxq.convert(prepared)  # warnings are errors here: it is said once
    checks._warn_of_missing_kernels.cache_clear()
    monkeypatch.setattr(checks, "SETTINGS", Settings(kernels="reference"))
    fxq.convert(prepared)
    checks._warn_of_missing_kernels.cache_clear()


@pytest.mark.parametrize("form", ["reference", "fake_quant"])
def test_a_check_needs_integer_operators(form):
    x = torch.randn(2, 4)
    prepared = fxq.prepare(nn.Sequential(nn.Linear(4, 3)).eval(), x, backend="onnxruntime")
    prepared.observe(x)
    with pytest.raises(LoweringError) as caught:
        fxq.convert(prepared, to=form, check=x)
    words = "backend 'onnxruntime' has no integer operators, whose parity check= measures\n"
    assert str(caught.value).startswith(f"{words}  got:      to='{form}', and a batch to check on\n")
