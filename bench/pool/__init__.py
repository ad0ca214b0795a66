"""What the benchmarks of the pool have in common: models, servers, callers, memory."""
