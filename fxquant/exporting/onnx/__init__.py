"""ONNX: the explicit form as graphs of QuantizeLinear and DequantizeLinear, shaped for the runtime that reads them."""

from fxquant.exporting.onnx.export import export_onnx
from fxquant.exporting.onnx.report import OnnxReport, OnnxRow

__all__ = ["OnnxReport", "OnnxRow", "export_onnx"]
