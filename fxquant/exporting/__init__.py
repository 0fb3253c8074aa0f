"""Converted models in the forms that other tools read."""

from fxquant.exporting.explicit import explicit
from fxquant.exporting.program import export
from fxquant.exporting.table import register_explicit

__all__ = ["explicit", "export", "register_explicit"]
