"""Linear layers on int8 values, and on floats with a weight of 4 or 8 bits: operators and references."""
