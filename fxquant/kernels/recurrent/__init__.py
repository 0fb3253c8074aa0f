"""Recurrent layers, step by step: their gates, and the operator of all steps of one direction."""
