"""Operators of fake quantization, and of the observation that goes with it."""
