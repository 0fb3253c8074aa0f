"""Fake-quantize modules: they simulate an integer grid in float."""

from fxquant.fake_quantize.static import StaticFakeQuantize

__all__ = ["StaticFakeQuantize"]
