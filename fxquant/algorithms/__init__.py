"""What learns from data how to quantize better: reads a prepared model, and gives better weights."""
