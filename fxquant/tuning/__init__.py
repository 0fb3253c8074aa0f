"""Measures every unit of a model on this machine, int8 against float, and leaves float what is faster so."""

from fxquant.tuning.table import Tuning, TuningRow
from fxquant.tuning.tune import tuned

__all__ = ["Tuning", "TuningRow", "tuned"]
