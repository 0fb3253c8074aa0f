"""Pools, means and interpolation of int8 tensors: weighted sums and maxima over windows."""
