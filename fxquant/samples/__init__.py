"""Real weights, photographs and pictures, out of packages of registries: for demo, examples, benchmarks, tests."""
