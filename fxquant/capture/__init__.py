"""From a module to a graph of torch.fx: tracing, and what of a forward a graph cannot say."""
