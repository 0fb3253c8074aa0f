"""Turns programs of ``torch.export`` into graphs as ``trace`` makes them."""
