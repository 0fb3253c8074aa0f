from __future__ import annotations

from pathlib import Path

import pytest
from torch import nn

import fxquant as fxq
from fxquant.errors import InputError


def test_every_kind_of_model_is_reported_on(tmp_path: Path, planned: fxq.Quantizer, calibrated: fxq.Quantizer) -> None:
    int8 = fxq.convert(calibrated)
    for name, model in (("planned", planned), ("calibrated", calibrated), ("int8", int8)):
        path = fxq.report(model, tmp_path / f"{name}.html")
        assert path == tmp_path / f"{name}.html"
        assert "log_softmax" in path.read_text(encoding="utf-8")
    path = fxq.report(calibrated, str(tmp_path / "measured.html"), [calibrated.example_args[0]])
    assert '"title":"Parity"' in path.read_text(encoding="utf-8")


def test_what_was_measured_while_converting_is_shown(tmp_path: Path, calibrated: fxq.Quantizer) -> None:
    int8 = fxq.convert(calibrated, check=calibrated.example_args[0])
    assert '"title":"Parity"' in fxq.report(int8, tmp_path / "int8.html").read_text(encoding="utf-8")


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="report takes what prepare, prepare_qat or convert gave"):
        fxq.report(nn.ReLU(), tmp_path / "no.html")
    assert not (tmp_path / "no.html").exists()
