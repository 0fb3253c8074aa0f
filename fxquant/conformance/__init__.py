"""Results that quantized operators have to give, as data, and a runner that any tool can be put into."""
