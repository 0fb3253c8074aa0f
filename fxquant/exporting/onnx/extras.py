"""The packages that only this way out needs, each imported when it is first asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fxquant.errors import ExportError

HINT = "pip install 'fxquant[onnx]'"


@contextmanager
def needed(name: str, hint: str = HINT) -> Iterator[None]:
    """Say what to install where an import in the body fails.

    Raises:
        ExportError: it does.
    """
    try:
        yield
    except ImportError as error:
        raise ExportError(f"{name} is not installed", got=str(error), hint=hint) from error


def onnx() -> Any:
    """Return the package that defines and checks models."""
    with needed("onnx"):
        import onnx

        return onnx


def onnx_ir() -> Any:
    """Return the package whose graphs are edited here; it comes with onnxscript."""
    with needed("onnxscript"):
        import onnx_ir
        import onnx_ir.passes.common

        return onnx_ir


def onnxscript() -> Any:
    """Return the package that ``torch.onnx.export`` translates with."""
    with needed("onnxscript"):
        import onnxscript

        return onnxscript


def openvino() -> Any:
    """Return the other runtime."""
    with needed("openvino", "pip install openvino"):
        import openvino

        return openvino


def onnxruntime() -> Any:
    """Return the runtime."""
    with needed("onnxruntime"):
        import onnxruntime

        return onnxruntime
