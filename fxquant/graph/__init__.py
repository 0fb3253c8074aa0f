"""Extends torch.fx: questions about nodes, edits, counts, text. It knows nothing of quantization."""
