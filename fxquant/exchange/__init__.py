"""Qparams that leave a model and come back: as JSON that people edit, and in the formats of other tools."""

from fxquant.exchange.apply import apply_qparams
from fxquant.exchange.collect import qparams
from fxquant.exchange.table import QParamsTable, TensorQParams

__all__ = ["QParamsTable", "TensorQParams", "apply_qparams", "qparams"]
