"""Chooses the bits of each layer under a budget, or so that a metric falls no further than is allowed."""
