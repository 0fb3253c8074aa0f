"""int8 linear layers: the operator and its reference."""
