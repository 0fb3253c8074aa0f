"""Lookup tables: any function of one int8 tensor."""
