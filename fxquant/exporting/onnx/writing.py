"""Writes the file beside its place, and puts it there whole."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from fxquant.artifact.format import check_place
from fxquant.errors import ArtifactError
from fxquant.exporting.onnx.extras import onnx, onnx_ir

LARGEST_FILE = 3 * 2**29
"""Bytes of tensors in one file; a message of protobuf ends at 2^31. More lie in a second file, ``NAME.data``."""


def write(model: Any, path: Path, overwrite: bool = False) -> None:
    """Check a model and write it; ``PATH.data`` beside it holds what is too large for one file.

    Args:
        model: Of onnx_ir.
        path: Where to.
        overwrite: Whether ``PATH.data`` may stand there already.

    Raises:
        ArtifactError: ``PATH.data`` is needed and stands there, or the system refuses. What stood at both places before
            still does.
    """
    size = sum(value.const_value.nbytes for value in model.graph.initializers.values() if value.const_value is not None)
    external = f"{path.name}.data" if size > LARGEST_FILE else None
    if external is not None:
        check_place(path.with_name(external), overwrite)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            part = Path(folder) / path.name
            onnx_ir().save(model, part, external_data=external)
            onnx().checker.check_model(str(part), full_check=False)
            if external is None:
                os.replace(part, path)
            else:
                _replace_both(part, path, external)
    except OSError as error:
        raise ArtifactError("the file cannot be written", at=str(path), got=str(error)) from error


def _replace_both(part: Path, path: Path, external: str) -> None:
    """Put a file and its second file into their places; where the last renaming fails, undo the one before."""
    second, before = path.with_name(external), part.with_name("before")
    is_there = second.exists()
    if is_there:
        os.replace(second, before)
    try:
        os.replace(part.with_name(external), second)
        os.replace(part, path)
    except OSError:
        second.unlink(missing_ok=True)
        if is_there:
            os.replace(before, second)
        raise
