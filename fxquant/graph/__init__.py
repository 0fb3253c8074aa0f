"""What torch.fx lacks: tracing, questions about nodes, edits, text. Knows nothing of quantization."""
