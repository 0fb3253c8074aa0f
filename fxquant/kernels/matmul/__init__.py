"""Products of two int8 activations."""
