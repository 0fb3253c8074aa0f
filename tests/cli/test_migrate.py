from __future__ import annotations

from pathlib import Path

import pytest

from fxquant.__main__ import main


def test_names_of_a_file_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from torch.ao.quantization import fuse_modules, prepare_jit, default_qconfig\n")
    assert main(["migrate", str(path)]) == 0
    text = capsys.readouterr().out
    assert "from fxquant.compat.quantization import default_qconfig" in text
    assert "1 as it is, 1 with a change, 1 not" in text


def test_what_is_no_python_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.py"
    path.write_text("def :")
    assert main(["migrate", str(path)]) == 1
    assert "no Python source" in capsys.readouterr().err
    assert main(["migrate", str(tmp_path / "none.py")]) == 1
