"""This package holds what learns: quantization-aware training, and rounding that is learned from data."""
