"""Scales channels between layers, so that their weights and values use the quantization range better."""
