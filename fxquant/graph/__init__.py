"""What torch.fx lacks: tracing with the user's lines, questions about nodes, edits, text. Knows nothing of quantization."""
