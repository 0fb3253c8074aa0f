"""Sums, products and joins of int8 tensors, and functions with a slope per channel."""
