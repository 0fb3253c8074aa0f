"""Operators that hide others, and how each is written as those."""
