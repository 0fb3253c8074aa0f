"""The borders between float values and quantized values."""
