"""Measures how good a quantized model is, and how fast: coverage, parity, noise, time."""
