"""Rows of quantized tables."""
