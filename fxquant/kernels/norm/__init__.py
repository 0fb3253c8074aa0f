"""Softmax and layer norm: rows of values, normalized."""
