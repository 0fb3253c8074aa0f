"""What learns: quantization-aware training, and rounding that is learned from data."""
